//! What tests of leases need, ours and yours (feature `testkit`).
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`Faults`]: what goes wrong and when, by script or by seed; shared by the two stores below.
//! - [`S3Server`]: an S3 server in this process, for what only real HTTP through a real client shows.

mod clock;
mod conformance;
mod fault;
mod generator;
mod register;
mod s3;

pub use clock::TestClock;
pub use conformance::{Check, conformance, conformance_of};
pub use fault::{Answer, Fault, Faults, Op, Rates, Rule};
pub use generator::SeededGenerator;
pub use register::{Reading, Register, Swap, Verdict};
pub use s3::{Flaw, Request, S3Server};
