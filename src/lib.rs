//! Leases, transaction decisions and fencing tokens on nothing but an object store.

mod bucket;
pub mod clock;
pub mod decision;
mod error;
mod fence;
mod generator;
mod id;
mod index;
mod key;
pub mod lease;
mod namespace;
mod settings;
mod stats;
pub mod store;
pub mod sweep;
#[cfg(feature = "testkit")]
pub mod testkit;
mod ttl;

pub use bucket::Bucket;
pub use clock::{Clock, SystemClock};
pub use decision::Decisions;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use generator::{Generator, OsGenerator};
pub use id::{LeaseId, ProcessId, WriteId};
pub use key::{Decoded, Key, KeyJson};
pub use lease::Leases;
pub use namespace::Namespace;
pub use settings::Settings;
pub use stats::Stats;
pub use store::{Store, StoreBuilder};
pub use ttl::Ttl;
