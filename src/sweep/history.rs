//! What the sweeper is doing, and what became of its last runs: for people who look.

use super::Report;
use crate::{
    clock::{Clock, Moment, Timestamp},
    sync::Locked as _,
};
use serde::Serialize;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

/// How many runs are remembered.
const REMEMBERED: usize = 64;

/// A run of the sweeper that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// When it ended.
    #[serde(rename = "ended_ms")]
    pub ended_at: Timestamp,
    /// True if it was started by [`run_once`](super::SweeperHandle::run_once), false if by the idle sweeper.
    pub by_hand: bool,
    /// What it did.
    pub report: Report,
}

/// What the sweeper is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SweeperState {
    /// Whether a run is under way.
    pub running: bool,
    /// Until when nothing is to be done: the last pass was complete, or the store failed.
    #[serde(rename = "rests_until_ms")]
    pub rests_until: Option<Timestamp>,
    /// The last runs of this process, the newest first. Dry runs are not among them.
    pub runs: Vec<Run>,
}

#[derive(Debug, Default)]
pub(super) struct History(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    running: bool,
    rests_until: Option<Moment>,
    runs: VecDeque<Run>,
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.locked()
    }

    /// A run is under way until this is dropped.
    pub(super) fn begin(&self) -> impl Drop + use<'_> {
        struct Running<'a>(&'a History);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.lock().running = false;
            }
        }
        self.lock().running = true;
        Running(self)
    }

    pub(super) fn add(&self, run: Run) {
        let mut inner = self.lock();
        inner.runs.push_front(run);
        inner.runs.truncate(REMEMBERED);
    }

    pub(super) fn rest(&self, until: Option<Moment>) {
        self.lock().rests_until = until;
    }

    pub(super) fn state(&self, clock: &dyn Clock) -> SweeperState {
        let inner = self.lock();
        let now = clock.monotonic();
        let rest = inner.rests_until.filter(|until| *until > now).map(|until| clock.wall().plus(until.since(now)));
        SweeperState { running: inner.running, rests_until: rest, runs: inner.runs.iter().cloned().collect() }
    }
}
