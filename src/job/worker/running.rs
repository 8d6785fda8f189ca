//! One job that runs: what the clock says about it.

use super::{
    beside::InHand,
    context::{CancelReason, JobContext},
    health::RunningJob,
    verdict::{Ended, verdict},
};
use crate::{
    clock::Moment,
    job::{
        answer::Answering,
        attempt::{answer_once, place},
    },
};
use std::time::Duration;
use tokio::task::AbortHandle;

/// A job whose handler was started.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) context: JobContext,
    /// What it takes of the process: given back when the handler is gone.
    pub(super) hand: InHand,
    pub(super) began: Moment,
    pub(super) timeout: Option<Duration>,
    pub(super) stuck_after: Duration,
    pub(super) abort: AbortHandle,
    /// When it is given up if its handler has not returned.
    give_up: Option<Moment>,
    pub(super) stuck: bool,
    /// It was answered for: its handler is only waited for.
    pub(super) left_behind: bool,
}

/// What the clock asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Nothing,
    /// It has run for so long that it is to be reported.
    Stuck,
    /// Its time is over and its handler does not stop.
    GiveUp,
}

impl Running {
    pub(super) fn new(
        context: JobContext,
        hand: InHand,
        began: Moment,
        (timeout, stuck_after): (Option<Duration>, Duration),
        abort: AbortHandle,
    ) -> Self {
        Self { context, hand, began, timeout, stuck_after, abort, give_up: None, stuck: false, left_behind: false }
    }

    /// Cancels its token when its time is over.
    pub(super) fn watch(&mut self, now: Moment, grace: Duration) -> Watch {
        if self.left_behind {
            return Watch::Nothing;
        }
        let age = now.since(self.began);
        if let Some(timeout) = self.timeout.filter(|timeout| age >= *timeout) {
            match self.give_up {
                None => {
                    self.context.cancel(CancelReason::TimedOut { timeout });
                    self.give_up = Some(now.plus(grace));
                }
                Some(at) if now >= at => return Watch::GiveUp,
                Some(_) => {}
            }
        }
        if !self.stuck && age >= self.stuck_after {
            self.stuck = true;
            return Watch::Stuck;
        }
        Watch::Nothing
    }

    /// When the clock has something to say about it next.
    pub(super) fn next(&self) -> Option<Moment> {
        if self.left_behind {
            return None;
        }
        let timeout = self.give_up.or_else(|| self.timeout.map(|timeout| self.began.plus(timeout)));
        let stuck = (!self.stuck).then(|| self.began.plus(self.stuck_after));
        [timeout, stuck].into_iter().flatten().min()
    }

    /// Says what has become of it, unless that was said before.
    pub(super) fn answer(&self, ended: Ended) -> Option<Answering> {
        let said = verdict(ended, self.context.cancel_reason().as_ref());
        answer_once(&self.context, &said, self.context.take_changes())
    }

    /// Gives it up, although its handler has not returned.
    pub(super) fn leave_behind(&mut self, ended: Ended) -> Option<Answering> {
        let answering = self.answer(ended);
        self.left_behind = true;
        self.abort.abort();
        answering
    }

    pub(super) fn shown(&self, now: Moment) -> RunningJob {
        RunningJob {
            id: self.context.id(),
            queue: place(&self.context).0.queue.name.to_string(),
            kind: self.context.kind().map(str::to_owned),
            attempt: self.context.attempt(),
            running_for: now.since(self.began),
            stuck: self.stuck,
            stopping: self.context.cancel_reason().is_some(),
        }
    }
}
