//! What tests of leases need, ours and yours (feature `testkit`).
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`Faults`]: what goes wrong and when, by script or by seed; shared by the two stores below.
//! - [`FaultStore`]: an object store in memory that does what [`Faults`] tells it to, for tests inside of one process.
//! - [`FlawedStore`]: makes a store of which one promise cannot be trusted ([`Flaw`]), for tests of the probe.

mod clock;
mod fault;
mod fault_store;
mod flawed;
mod generator;
mod objects;

pub use clock::TestClock;
pub use fault::{Answer, Fault, Faults, Flaw, Op, Rates, Rule};
pub use fault_store::FaultStore;
pub use flawed::FlawedStore;
pub use generator::SeededGenerator;
pub use objects::{Applied, Observer};
