//! The only room that knows `object_store`: conditional writes, reads, ordered pages, deletes, and what it takes to
//! trust a store with them.

pub(crate) mod agreement;
mod answer;
mod backend;
pub(crate) mod cas;
mod clocks;
mod counting;
mod diagnose;
mod listing;
#[cfg_attr(
    not(feature = "testkit"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "public in the testkit only")
)]
pub(crate) mod local;
mod lost;
mod memory;
mod meter;
mod name;
mod open;
mod page;
mod probe;
mod repairs;
pub(crate) mod seal;
mod time;
pub(crate) mod url;

pub use agreement::{Agreement, AgreementChange, StoreInfo};
pub(crate) use agreement::{DATE_SLACK, LONGEST_WRITE};
pub(crate) use backend::{Backend, Fetched, Version};
pub(crate) use clocks::Clocks;
pub use diagnose::{Check, Diagnosis, Percentiles, Verdict};
pub(crate) use listing::Walk;
pub use lost::{FoundIn, SettingsRepair};
#[cfg(feature = "testkit")]
pub(crate) use meter::Meter;
pub(crate) use meter::tidying;
pub use meter::{AnswerKind, RequestKind, Requests};
pub(crate) use name::Name;
pub use open::{ClockState, Probing, Store, StoreBuilder};
pub(crate) use repairs::{Repair, in_a_name};
