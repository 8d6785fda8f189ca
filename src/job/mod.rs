//! Jobs.

pub(crate) mod apply;
pub(crate) mod id;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod segment;
