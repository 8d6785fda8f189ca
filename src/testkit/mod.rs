//! What tests of leases need, ours and yours (feature `testkit`).
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`Faults`]: what goes wrong and when, by script or by seed; shared by the two stores below.

mod clock;
mod conformance;
mod fault;
mod generator;
mod register;

pub use clock::TestClock;
pub use conformance::{Check, conformance, conformance_of};
pub use fault::{Answer, Fault, Faults, Op, Rates, Rule};
pub use generator::SeededGenerator;
pub use register::{Reading, Register, Swap, Verdict};
