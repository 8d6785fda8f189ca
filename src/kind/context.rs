//! Under which circumstances a kind is asked to do something.

use crate::{
    clock::Moment,
    storage::{Backend, Clocks},
};
use std::{fmt, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Under which circumstances a kind is asked to do something.
#[derive(Clone)]
pub struct Context {
    backend: Arc<Backend>,
    dry_run: bool,
    repairs: Option<Arc<str>>,
    deadline: Option<Moment>,
    stop: CancellationToken,
}

impl Context {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend, dry_run: false, repairs: None, deadline: None, stop: CancellationToken::new() }
    }

    /// For a run of the sweeper.
    pub(crate) fn sweeping(mut self, dry_run: bool, deadline: Option<Moment>, stop: CancellationToken) -> Self {
        (self.dry_run, self.deadline, self.stop) = (dry_run, deadline, stop);
        self
    }

    /// For fsck: without a repair, nothing is written.
    pub(crate) fn checking(mut self, repairs: Option<&str>) -> Self {
        (self.dry_run, self.repairs) = (repairs.is_none(), repairs.map(Into::into));
        self
    }

    /// Nothing is written: only what would be done is said.
    pub fn dry_run(&self) -> bool {
        self.dry_run
    }

    /// Who repairs, if anybody does.
    pub fn repairs(&self) -> Option<&str> {
        self.repairs.as_deref()
    }

    /// Until when the run may take, on the monotonic clock.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Is cancelled when the run is to stop.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Whether the run is to stop, or has taken as long as it may.
    pub fn must_stop(&self) -> bool {
        self.stop.is_cancelled() || self.deadline.is_some_and(|deadline| self.backend.clock.monotonic() >= deadline)
    }

    /// This machine's clock and the store's, as they are now.
    pub fn clocks(&self) -> Clocks {
        self.backend.clocks()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("dry_run", &self.dry_run)
            .field("repairs", &self.repairs)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
