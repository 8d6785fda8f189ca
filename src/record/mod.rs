//! What a process knows of one record, and how it changes it, for every kind of record.
//!
//! - [`Cached`] is what was last seen of a record. A write may be based on it; a store that went back is noticed.
//! - [`Line`] gives one operation at a time the right to change a record: one write in flight for each record and process.
//! - [`InFlight`] has the writes of one operation, so that dropping it forgets none of them.
//! - [`repeat`] is the loop around compare-and-swap, written once; [`Change`] is the loop with a plan and nothing else.
//! - [`settle`] finds out, in the background, what became of writes whose outcome nothing waits for.
//!
//! No other module but the probe makes conditional writes.

mod cached;
mod change;
mod in_flight;
mod line;
mod repeat;
pub(crate) mod sealed;
mod settle;
#[cfg(test)]
mod tests;

pub(crate) use cached::{Cached, Known};
pub(crate) use change::{Change, Plan};
pub(crate) use in_flight::InFlight;
pub(crate) use line::{Line, Order, Right};
pub(crate) use repeat::{Attempted, Attempts, Changed, Patience, repeat};
pub(crate) use settle::{Settled, Unchanged, settle};
