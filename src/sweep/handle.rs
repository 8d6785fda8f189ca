//! What users hold of the sweeper of an opened store.

use super::{Report, RunningSweeper, SweepOptions, SweeperState, run::Sweeper};
use crate::Result;
use std::sync::Arc;

/// The sweeper of an opened store. Cheap to clone; there is one sweeper for all clones and all handles of the store.
#[derive(Debug, Clone)]
pub struct SweeperHandle(Arc<Sweeper>);

impl SweeperHandle {
    pub(crate) fn new(sweeper: Arc<Sweeper>) -> Self {
        Self(sweeper)
    }

    /// Starts to sweep in the background, whenever no operation was called for a while.
    pub fn start(&self) -> RunningSweeper {
        self.0.start(&tokio::runtime::Handle::current())
    }

    /// Sweeps once, now, from the oldest hour to the last that is over. Waits for a run that is under way.
    pub async fn run_once(&self, options: SweepOptions) -> Result<Report> {
        self.0.sweep_once(options).await
    }

    /// What it is doing, and how its last runs in this process ended.
    pub fn state(&self) -> SweeperState {
        self.0.state()
    }
}
