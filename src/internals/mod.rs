//! What tests, models, benches and fuzz targets of this repository see of the inside (feature `_internals`).
//!
//! Everything here calls what the library itself calls, so that nothing is checked but the real rules. It changes with
//! any version; `leasehold-testkit`, which is released together with the library, is what other people's tests use.

pub mod bench;
pub mod fuzz;
mod objects;
mod register;
pub mod rules;

pub use crate::storage::{
    Dates,
    local::{LocalDirectory, LocalError},
};
pub use objects::Objects;
pub use register::{Reading, Register, Swap, Verdict};
