//! Jobs.

pub(crate) mod id;
pub(crate) mod layout;
