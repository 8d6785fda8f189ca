//! Workers: handlers that are run for the jobs of queues, as many at a time as is wanted.
//!
//! A worker is one task with one loop (`crew`). It claims from its queues by their weights, a little ahead of what runs
//! (`intake`), starts a task of its own for each job, watches over time to live, time-outs and cancels (`running`), and tells
//! the queue what has become of each (`verdict`). It has no state that must survive: what it had in hand when its process
//! dies is the ledger's business.

mod beside;
mod builder;
mod context;
mod crew;
mod handler;
mod health;
mod intake;
mod running;
mod verdict;

pub(crate) use beside::Beside;
pub use builder::{KindOptions, Worker, WorkerBuilder};
pub use context::{CancelReason, JobContext};
pub use handler::{IntoOutcome, JobOutcome, typed, with_state};
pub use health::{RunningJob, WorkerHealth, WorkerState};
pub(crate) use verdict::Said;
