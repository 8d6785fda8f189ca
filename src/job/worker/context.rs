//! A job as its handler sees it.

use crate::job::{Job, attempt, committer::PartChange};
use bytes::Bytes;
use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Why a handler was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The worker shuts down, and its grace is over. What stops now is given back, and uses no attempt.
    Shutdown,
    /// The attempt took longer than it may.
    TimedOut {
        /// So long.
        timeout: Duration,
    },
    /// Somebody cancelled the job.
    Asked,
    /// This process was silent for too long: somebody else may have been given the job.
    SessionLost,
}

/// A job that is being run: everything that a [`Job`] shows, and whether to stop. Cheap to clone.
///
/// The worker answers for the job by what its handler returns.
#[derive(Debug, Clone)]
pub struct JobContext(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    job: Job,
    token: CancellationToken,
    asked: Mutex<Option<CancelReason>>,
    changes: Mutex<Vec<PartChange>>,
    shutdown: CancellationToken,
}

impl JobContext {
    pub(super) fn new(job: Job, shutdown: CancellationToken) -> Self {
        let token = attempt::lost(&job);
        Self(Arc::new(Shown { job, token, asked: Mutex::default(), changes: Mutex::default(), shutdown }))
    }

    /// Cancelled when the handler is to stop: its time is over, the job was cancelled, the worker shuts down, or the session
    /// is lost. [`cancel_reason`](Self::cancel_reason) says which.
    pub fn cancellation(&self) -> CancellationToken {
        self.0.token.clone()
    }

    /// Resolves when the handler is to stop.
    pub async fn cancelled(&self) {
        self.0.token.cancelled().await;
    }

    /// Why the handler is to stop, once it is.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        let asked = *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.or_else(|| self.0.token.is_cancelled().then_some(CancelReason::SessionLost))
    }

    /// Sets a part for the next attempt, if this one ends by going back to the queue: failed, snoozed or given back.
    pub fn set_part(&self, name: impl Into<String>, content: impl Into<Bytes>) {
        self.change(name.into(), Some(content.into()));
    }

    /// Takes a part away for the next attempt, if this one ends by going back to the queue.
    pub fn clear_part(&self, name: impl Into<String>) {
        self.change(name.into(), None);
    }

    /// Shuts the worker down that runs this job, as its [shutdown token](super::WorkerBuilder::shutdown) does.
    pub fn shut_down_worker(&self) {
        self.0.shutdown.cancel();
    }

    fn change(&self, name: String, content: Option<Bytes>) {
        let mut changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain(|(known, _)| *known != name);
        changes.push((name, content));
    }

    pub(super) fn take_changes(&self) -> Vec<PartChange> {
        std::mem::take(&mut *self.0.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the handler to stop. The first reason stands.
    pub(super) fn cancel(&self, reason: CancelReason) {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.0.token.cancel();
    }
}

impl Deref for JobContext {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0.job
    }
}
