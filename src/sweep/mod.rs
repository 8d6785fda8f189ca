//! Tidying what nobody touches again, when nobody is looking.
//!
//! Correctness never waits for this room: whoever meets an ended record settles it. The sweeper walks the hours of the
//! index that have ended, a page at a time, and lets every kind of record say what is to be done about an entry.

mod activity;
mod history;
mod kind;
mod pace;
mod report;
mod run;
mod runner;
mod settings;

pub(crate) use activity::Activity;
pub use history::{Run, SweeperState};
pub(crate) use kind::{Entry, Shelf, Sweepable, Verdict};
pub use report::{Report, StoppedBy};
pub use run::SweepOptions;
#[cfg(feature = "testkit")]
pub(crate) use run::due;
pub(crate) use run::{Sweeper, Turn, TurnTaken};
pub use runner::RunningSweeper;
pub use settings::SweepSettings;
