//! What tests of leases need, ours and yours (feature `testkit`).
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`Faults`]: what goes wrong and when, by script or by seed; shared by the two stores below.
//! - [`LocalDirectory`]: the embedded store, as an `object_store::ObjectStore`.

mod clock;
mod fault;
mod generator;

pub use clock::TestClock;
pub use fault::{Answer, Fault, Faults, Op, Rates, Rule};
pub use generator::SeededGenerator;

pub use crate::store::local::{LocalDirectory, LocalError};
