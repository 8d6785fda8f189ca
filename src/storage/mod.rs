//! The only room that knows `object_store`: conditional writes, reads, ordered pages, deletes, the store's time, and what it
//! takes to trust a store with them.

mod answer;
#[cfg(feature = "aws")]
mod aws_profile;
pub(crate) mod backend;
pub(crate) mod bodies;
pub(crate) mod cas;
mod clocks;
mod counters;
pub(crate) mod counting;
#[cfg(feature = "_internals")]
mod dates;
pub(crate) mod layout;
pub(crate) mod listing;
#[cfg_attr(
    not(feature = "_internals"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "public through `internals` only")
)]
pub(crate) mod local;
mod memory;
pub(crate) mod meter;
pub(crate) mod name;
mod objects;
pub(crate) mod page;
pub(crate) mod probe;
mod repairs;
pub(crate) mod seal;
pub(crate) mod store_json;
mod time;
pub(crate) mod url;

pub(crate) use answer::blames_credentials;
pub(crate) use backend::{Backend, Fetched, Version};
pub use clocks::Clocks;
pub(crate) use counters::{Counters, Counts};
#[cfg(feature = "_internals")]
pub use dates::Dates;
pub(crate) use listing::Walk;
pub use meter::{AnswerKind, RequestKind, Requests};
pub(crate) use meter::{Meter, tidying};
pub use name::Name;
pub(crate) use objects::{Created, Listed};
pub(crate) use repairs::{Repair, in_a_name};
pub(crate) use time::Interval;
