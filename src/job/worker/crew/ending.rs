//! How jobs end, and how the worker does.

use super::{CancelReason, Crew, Ended, Running, Waiting, WorkerState};
use crate::{
    JobId,
    clock::Moment,
    job::{answer::Answering, counters::RUN_SECONDS, worker::JobOutcome},
};
use std::any::Any;
use tokio::task::{Id, JoinError};

impl Crew {
    /// A handler has returned, panicked or been dropped.
    pub(super) fn ended(&mut self, ended: Result<(Id, JobOutcome), JoinError>) {
        let (id, ended) = match ended {
            Ok((id, outcome)) => (id, Ended::Returned(outcome)),
            Err(error) => {
                let id = error.id();
                (id, error.try_into_panic().map_or(Ended::LeftBehind, |panic| Ended::Panicked(said(&*panic))))
            }
        };
        let Some(running) = self.running.remove(&id) else { return };
        let now = self.clock.monotonic();
        self.pace.ended(now);
        metrics::histogram!(RUN_SECONDS).record(now.since(running.began).as_secs_f64());
        let job = running.context.id();
        if let Ended::Panicked(message) = &ended {
            self.counters.panics(1);
            tracing::error!(%job, message, "a handler panicked: its attempt has failed");
        }
        let told = running.answer(ended).map(|told| (job, told));
        self.wait_for(told);
    }

    /// Waits for what becomes of answers, beside everything else.
    pub(super) fn wait_for(&mut self, told: impl IntoIterator<Item = (JobId, Answering)>) {
        for (job, told) in told {
            self.answers.push(Box::pin(async move { (job, told.await) }));
        }
    }

    /// Claims nothing more, and gives back what has not started.
    pub(super) fn begin_drain(&mut self, now: Moment) {
        self.facts.state = WorkerState::ShuttingDown;
        self.draining = Some(now);
        // Dropped, a claim takes nothing.
        self.claims.clear();
        for source in &mut self.sources {
            source.waiting = Waiting::No;
            source.claimed.clear();
        }
        self.drain(now);
        self.publish(now);
    }

    /// Cancels what still runs when the grace is over, and then leaves it behind.
    pub(super) fn drain(&mut self, now: Moment) {
        let Some(since) = self.draining else { return };
        let (grace, stop) = (self.plan.shutdown_grace, self.plan.cancel_grace);
        let passed = now.since(since);
        if passed < grace {
            self.next_tick = self.next_tick.min(since.plus(grace));
            return;
        }
        let over = passed >= grace.saturating_add(stop);
        let mut left = Vec::new();
        for running in self.running.values_mut().filter(|running| !running.left_behind) {
            running.context.cancel(CancelReason::Shutdown);
            if over {
                let job = running.context.id();
                tracing::warn!(%job, "a handler did not stop: its job is given back");
                left.extend(running.leave_behind(Ended::LeftBehind).map(|told| (job, told)));
            }
        }
        self.wait_for(left);
        if over {
            // A handler that blocks its thread cannot be waited for.
            self.running.retain(|_, running: &mut Running| !running.left_behind);
            self.tasks.detach_all();
        } else {
            self.next_tick = self.next_tick.min(since.plus(grace.saturating_add(stop)));
        }
    }
}

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
