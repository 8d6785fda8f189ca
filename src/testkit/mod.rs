//! What tests of leases need, ours and yours (feature `testkit`).
//!
//! - [`TestClock`]: a clock that is moved by hand, and [`SeededGenerator`]: randomness that can be replayed.
//! - [`conformance`]: the contract that a store must keep, for any `Arc<dyn ObjectStore>`, and [`Register`], one number
//!   under compare-and-swap.
//! - [`Faults`]: what goes wrong and when, by script or by seed; shared by the two stores below.
//! - [`FaultStore`]: an object store in memory that does what [`Faults`] tells it to, for tests inside of one process.
//! - [`Dates`]: makes a store that is handed in tell its time with every answer, as those over HTTP do.
//! - [`FlawedStore`]: makes a store of which one promise cannot be trusted ([`Flaw`]), for tests of the probe.
//! - [`LocalDirectory`]: the embedded store by itself.
//! - [`rules`]: the rules that everything depends on, as plain functions, for models that must not have their own.
//! - [`fuzz`]: what must be true of any bytes at all.
//! - [`S3Server`]: an S3 server in this process, for what only real HTTP through a real client shows.
//! - [`Proxy`]: a network that goes wrong, between a client and a real server.

#[doc(hidden)]
pub mod bench;
mod clock;
mod conformance;
mod fault;
mod fault_store;
mod flawed;
mod fronts;
pub mod fuzz;
mod generator;
mod objects;
mod proxy;
mod register;
pub mod rules;
mod s3;

pub use clock::TestClock;
pub use conformance::{Check, conformance, conformance_of};
pub use fault::{Answer, Fault, Faults, Flaw, Op, Rates, Rule};
pub use fault_store::FaultStore;
pub use flawed::FlawedStore;
pub use generator::SeededGenerator;
pub use objects::{Applied, Observer};
pub use proxy::Proxy;
pub use register::{Reading, Register, Swap, Verdict};
pub use s3::{Request, S3Server};

pub use crate::storage::{
    Dates,
    local::{LocalDirectory, LocalError},
};
