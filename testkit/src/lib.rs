#![doc = include_str!("../README.md")]
//!
//! # The tools
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`Faults`]: what goes wrong and when, by [`Rule`] or by [`Rates`].
//! - [`FaultStore`]: an object store in memory with faults, for tests inside of one process.
//! - [`S3Server`]: an S3 server in this process with faults, for what only real HTTP through a real client shows.
//! - [`Proxy`]: a network that goes wrong, between a client and a real server.
//! - [`FlawedStore`]: a store that breaks one promise for good ([`Flaw`]), for tests of the probe.
//! - [`conformance`]: the contract that a store must keep; [`Register`]: one number under compare-and-swap.
//! - [`JobTest`]: queues in memory for tests of your own jobs: drained by hand, with assertions and an inline mode.
//! - [`Dates`]: lets a store that is handed in tell its time with every answer, as those over HTTP do.
//! - [`LocalDirectory`]: the store behind `file://` URLs by itself.

mod clock;
mod conformance;
mod fault;
mod fault_store;
mod flawed;
mod fronts;
mod generator;
mod jobs;
mod objects;
mod proxy;
mod s3;
#[cfg(test)]
mod tests;

pub use clock::TestClock;
pub use conformance::{Check, conformance, conformance_of};
pub use fault::{Answer, Fault, Faults, Flaw, Op, Rates, Rule};
pub use fault_store::FaultStore;
pub use flawed::FlawedStore;
pub use generator::SeededGenerator;
pub use jobs::{InlineQueue, JobTest};
pub use leasehold::internals::{Dates, LocalDirectory, LocalError, Reading, Register, Swap, Verdict};
pub use objects::{Applied, Observer};
pub use proxy::Proxy;
pub use s3::{Request, S3Server};
