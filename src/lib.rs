//! Leases, transaction decisions and fencing tokens on nothing but an object store.

pub mod clock;
mod error;
mod generator;
mod id;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use clock::{Clock, SystemClock};
pub use error::{Error, ErrorKind, Result};
pub use generator::{Generator, OsGenerator};
pub use id::{LeaseId, WriteId};
