//! Changing one record by compare-and-swap, whatever kind of record it is: the bounded loop around [`Cas`], written once.

mod change;
pub(crate) mod sealed;

pub(crate) use change::{Change, Changed, Patience, Plan};
