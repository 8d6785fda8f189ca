//! Deleting what has expired and is not used any more, while the process is idle.
//!
//! Correctness never depends on it: an operation that meets an ended record settles it. The sweeper walks the hours of the
//! index that have ended, a page at a time, and lets every kind of record say what is to be done about an entry. A process
//! that is never idle sweeps up to two entries for each one that it has filed, so that the index does not grow with time.

mod activity;
mod contain;
mod counters;
mod earned;
mod handle;
mod history;
mod options;
mod pace;
mod pass;
mod report;
mod run;
mod runner;
mod schedule;
mod settings;
mod share;
mod walk;

pub use crate::kind::Swept;
pub(crate) use activity::Activity;
pub use handle::SweeperHandle;
pub use history::{Run, SweeperState};
pub use options::SweepOptions;
pub use report::{Report, StoppedBy};
#[cfg(feature = "_internals")]
pub(crate) use run::due;
pub(crate) use run::{Sweeper, Turn, TurnTaken};
pub use runner::RunningSweeper;
pub use settings::SweepSettings;
