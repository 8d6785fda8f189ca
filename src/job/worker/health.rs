//! How a worker is.

use crate::{JobId, clock::Timestamp};
use serde::Serialize;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkerState {
    /// It runs jobs, or waits for some.
    #[default]
    Working,
    /// It claims nothing any more, and waits for what it has in hand.
    ShuttingDown,
    /// It has ended.
    Stopped,
}

/// How a worker is, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct WorkerHealth {
    /// Whether it does what it should.
    pub ok: bool,
    /// In words, for whoever is called at night.
    pub reason: String,
    /// What it is doing.
    pub state: WorkerState,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that were claimed and will start within about a second.
    pub ahead: usize,
    /// Jobs that run for longer than `stuck_after`.
    pub stuck: usize,
    /// When a claim was last answered, by the wall clock.
    #[serde(rename = "claimed_ms")]
    pub last_claim: Option<Timestamp>,
    /// Since when claims fail, by the wall clock.
    #[serde(rename = "failing_since_ms")]
    pub failing_since: Option<Timestamp>,
}

/// A job that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// What kind of job it is.
    pub kind: Option<String>,
    /// The number of its attempt.
    pub attempt: u32,
    /// For how long it runs.
    #[serde(rename = "running_for_ms", serialize_with = "millis")]
    pub running_for: Duration,
    /// Whether that is longer than `stuck_after`.
    pub stuck: bool,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

fn millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// What the loop knows of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) state: WorkerState,
    pub(super) concurrency: usize,
    pub(super) running: Vec<RunningJob>,
    pub(super) ahead: usize,
    pub(super) last_claim: Option<Timestamp>,
    pub(super) failing: Option<(Timestamp, String)>,
    /// When the loop last ran, and by how much it was late when it was last late.
    pub(super) last_turn: Timestamp,
    pub(super) starved: Option<(Timestamp, Duration)>,
    /// Handlers that were given up and have not stopped.
    pub(super) left_behind: usize,
}

/// How long claims may fail before a worker is called unhealthy.
const FAILING: Duration = Duration::from_secs(30);
/// For how long a runtime that was starved is spoken of.
const STARVED: Duration = Duration::from_secs(60);
/// A loop that has not run for so long is starved now.
const SILENT: Duration = Duration::from_secs(10);

impl Facts {
    /// How it is, by the wall clock.
    pub(super) fn health(&self, now: Timestamp) -> WorkerHealth {
        let stuck = self.running.iter().filter(|job| job.stuck).count();
        let (ok, reason) = self.judge(now, stuck);
        WorkerHealth {
            ok,
            reason,
            state: self.state,
            running: self.running.len(),
            ahead: self.ahead,
            stuck,
            last_claim: self.last_claim,
            failing_since: self.failing.as_ref().map(|(since, _)| *since),
        }
    }

    fn judge(&self, now: Timestamp, stuck: usize) -> (bool, String) {
        if self.state == WorkerState::Stopped {
            return (false, "the worker has stopped".into());
        }
        let silent = now.since(self.last_turn);
        if silent >= SILENT {
            return (false, format!("the runtime has not run the worker for {silent:?}: a handler blocks it"));
        }
        if let Some((since, error)) = self.failing.as_ref().filter(|(since, _)| now.since(*since) >= FAILING) {
            return (false, format!("nothing can be claimed since {since}: {error}"));
        }
        if stuck > 0 && stuck + self.left_behind >= self.concurrency {
            return (false, format!("all {} slots are taken by jobs that are stuck", self.concurrency));
        }
        if self.left_behind >= self.concurrency {
            return (false, format!("all {} slots are taken by handlers that do not stop", self.concurrency));
        }
        if let Some((_, late)) = self.starved.filter(|(at, _)| now.since(*at) < STARVED) {
            return (false, format!("the runtime was {late:?} late: a handler blocks it, or the machine stood still"));
        }
        if self.state == WorkerState::ShuttingDown {
            return (true, format!("shutting down: {} jobs are still running", self.running.len()));
        }
        let stuck = if stuck > 0 { format!(", {stuck} of them stuck") } else { String::new() };
        (true, format!("{} of {} slots are in use{stuck}", self.running.len(), self.concurrency))
    }
}

/// What a worker's handle and its loop share.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<Facts>);

impl Board {
    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn facts() -> Facts {
        Facts { concurrency: 1, last_turn: at(100), ..Facts::default() }
    }

    #[test]
    fn a_worker_with_nothing_to_do_is_well() {
        let health = facts().health(at(101));
        assert!(health.ok);
        assert_eq!(health.reason, "0 of 1 slots are in use");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let failing = Facts { failing: Some((at(50), "denied".into())), ..facts() };
        assert!(failing.health(at(101)).reason.contains("denied"));
        assert!(!failing.health(at(101)).ok);
        assert!(failing.health(at(79)).ok, "a store may be away for a moment");
        assert!(facts().health(at(115)).reason.contains("a handler blocks it"));
        let starved = Facts { starved: Some((at(90), Duration::from_secs(4))), ..facts() };
        assert!(starved.health(at(101)).reason.contains("4s late"));
        assert!(Facts { starved: Some((at(30), Duration::from_secs(4))), ..facts() }.health(at(101)).ok);
        let stopped = Facts { state: WorkerState::Stopped, ..facts() };
        assert_eq!(stopped.health(at(101)).reason, "the worker has stopped");
        let lost = Facts { left_behind: 1, ..facts() };
        assert!(lost.health(at(101)).reason.contains("do not stop"));
    }
}
