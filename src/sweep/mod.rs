//! Tidying what nobody touches again.

mod activity;

pub(crate) use activity::Activity;
