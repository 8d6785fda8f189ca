//! What has become of a claimed job: finished, failed, snoozed, given back, cancelled, moved.
//!
//! An answer names its claim, so an attempt that was taken away answers for nothing: neither for a job that somebody else
//! has claimed since, nor for one that it has answered for before. A late finish is accepted as long as nobody has claimed
//! the job again: it has run, and running it once more would help nobody.

use super::{
    Full, Outcome, Stale,
    work::{End, Work, count, mix},
};
use crate::{
    Fence,
    clock::Timestamp,
    job::{
        id::{JobId, SegmentId},
        layout::{Place, SegmentName},
        ledger::{ClaimId, Happened, JobRef, Millis, MovePlan, Range, Reason, Traits, Why},
    },
};
use std::sync::Arc;

/// The place of a job whose parts have changed: an object of `seg/` that was written for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) segment: SegmentId,
    pub(crate) jobs: u16,
    pub(crate) index: u16,
    /// The `gc_epoch` of the ledger that was read before the object was written.
    pub(crate) epoch: u64,
    /// The id that the job was enqueued under.
    pub(crate) id: JobId,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) claim: ClaimId,
    pub(crate) job: JobRef,
    pub(crate) what: Answered,
    /// Where a job that goes back to the queue lives on, if its parts have changed.
    pub(crate) into: Option<Home>,
}

#[derive(Debug, Clone)]
pub(crate) enum Answered {
    Finished,
    Failed {
        /// No further attempt is of use.
        for_good: bool,
        error: Option<Arc<str>>,
        kind: Option<Arc<str>>,
        /// The job's own value.
        max_attempts: Option<u32>,
    },
    Snoozed {
        until: Timestamp,
    },
    /// Given back without using an attempt. `ran`: its handler had begun, and its process lives.
    Released {
        ran: bool,
    },
    Cancelled,
    Moved {
        queue: Arc<str>,
        target: SegmentName,
        priority: i16,
        due: Timestamp,
    },
}

/// Where a claimed job is.
#[derive(Clone, Copy)]
struct Held {
    claim: usize,
    item: usize,
    row: usize,
    fence: Fence,
}

impl Work<'_> {
    pub(super) fn answer(&mut self, answer: &Answer) -> Outcome {
        let held = match self.held(answer.claim, answer.job) {
            Ok(held) => held,
            Err(outcome) => return outcome.unwrap_or_else(|| self.late(answer)),
        };
        // Everything that may be refused is asked before anything is changed.
        if self.is_cancelling(answer.job) && !matches!(answer.what, Answered::Finished) {
            self.take_claimed(held, answer.job.index);
            self.end(held.row, answer.job.index, End::Cancelled, Some(held.fence));
            return Outcome::CancelledInstead;
        }
        match &answer.what {
            Answered::Finished => self.ended(held, answer.job, End::Finished),
            Answered::Cancelled => self.ended(held, answer.job, End::Cancelled),
            Answered::Failed { for_good, error, kind, max_attempts } => {
                let attempts = self.traits(held).attempts.saturating_add(1);
                let most = self.ledger.policy.max_attempts(*max_attempts, kind.as_deref());
                if *for_good || attempts >= most {
                    let reason = if *for_good { Reason::ForGood } else { Reason::Exhausted };
                    return self.fails_for_the_last_time(held, answer.job, reason, error.as_ref(), kind.as_deref());
                }
                let random = mix([answer.claim.get(), u64::from(answer.job.index), u64::from(attempts)]);
                let pause = self.ledger.policy.backoff(kind.as_deref()).pause(attempts, random);
                let due = self.now.saturating_add(pause);
                let error = self.keep_error(error.as_ref());
                let outcome = self.back(held, answer, due, Why::Failed, |traits| {
                    traits.attempts = attempts;
                    traits.error = error;
                    traits.forgive();
                });
                if matches!(outcome, Outcome::Waits { .. }) {
                    count(&mut self.ledger.counters.failures, true);
                    self.event(answer.job.segment, Range::one(answer.job.index), Happened::Retried, Some(held.fence));
                }
                outcome
            }
            Answered::Snoozed { until } => {
                let due = until.as_millis().max(self.now);
                self.back(held, answer, due, Why::Snoozed, Traits::forgive)
            }
            Answered::Released { ran } => {
                let due = self.traits(held).due;
                let forgive = if *ran { Traits::forgive } else { |_: &mut Traits| {} };
                self.back(held, answer, due, Why::Returned, forgive)
            }
            Answered::Moved { queue, target, priority, due } => {
                let plan = MovePlan {
                    row: self.ledger.rows[held.row].number,
                    index: answer.job.index,
                    queue: Arc::clone(queue),
                    target: *target,
                    priority: *priority,
                    due: due.as_millis(),
                    fence: held.fence,
                    at: self.now,
                };
                self.plan_move(held, answer.job, plan)
            }
        }
    }

    /// The item that has the job, if the claim still does; otherwise what there is to say at once.
    fn held(&self, claim: ClaimId, job: JobRef) -> Result<Held, Option<Outcome>> {
        let (Some(at), Some(row)) = (self.claim_position(claim), self.position(job.segment)) else { return Err(None) };
        let number = self.ledger.rows[row].number;
        let claim = &self.ledger.claims[at];
        let item = claim.items.partition_point(|item| (item.row, item.run.to) <= (number, job.index));
        let found = claim.items.get(item).filter(|item| item.row == number && item.run.range().contains(job.index));
        let Some(found) = found else { return Err(None) };
        if !found.open.contains(job.index - found.run.from) {
            return Err(Some(Outcome::AnsweredBefore));
        }
        Ok(Held { claim: at, item, row, fence: claim.fence })
    }

    fn traits(&self, held: Held) -> &Traits {
        &self.ledger.claims[held.claim].items[held.item].run.traits
    }

    fn take_claimed(&mut self, held: Held, index: u16) {
        let item = &mut self.ledger.claims[held.claim].items[held.item];
        item.open.take(index - item.run.from);
        self.changed = true;
    }

    fn ended(&mut self, held: Held, job: JobRef, how: End) -> Outcome {
        self.take_claimed(held, job.index);
        self.end(held.row, job.index, how, Some(held.fence));
        Outcome::Ended { late: false }
    }

    fn fails_for_the_last_time(
        &mut self,
        held: Held,
        job: JobRef,
        reason: Reason,
        error: Option<&Arc<str>>,
        kind: Option<&str>,
    ) -> Outcome {
        if self.dead_list_is_full() {
            return Outcome::Full(Full::DeadList);
        }
        let mut traits = self.traits(held).clone();
        traits.attempts = traits.attempts.saturating_add(1);
        traits.error = self.keep_error(error);
        self.take_claimed(held, job.index);
        count(&mut self.ledger.counters.failures, true);
        self.bury((held.row, job.index), reason, &traits, Some(held.fence), kind);
        Outcome::Buried
    }

    /// The job goes back to the queue, where it was or, with new parts, to a new place.
    fn back(
        &mut self,
        held: Held,
        answer: &Answer,
        due: Millis,
        why: Why,
        change: impl FnOnce(&mut Traits),
    ) -> Outcome {
        let (row, index) = match answer.into {
            None => (held.row, answer.job.index),
            Some(home) => match self.home(home) {
                Some(row) => (row, home.index),
                None => return Outcome::WriteAgain,
            },
        };
        let mut traits = self.traits(held).clone();
        traits.due = due;
        traits.why = why;
        traits.claim = Some(answer.claim);
        change(&mut traits);
        self.take_claimed(held, answer.job.index);
        if row != held.row {
            self.moved_away(held.row, answer.job.index);
            self.ledger.rows[row].open = self.ledger.rows[row].open.saturating_add(1);
            if let Some(home) = answer.into {
                // By its span a look-up finds the job under the id that it was enqueued with.
                let span = &mut self.ledger.rows[row].span;
                *span = Some(span.map_or((home.id, home.id), |(least, most)| (least.min(home.id), most.max(home.id))));
            }
            self.rehome(answer.job, JobRef { segment: self.ledger.rows[row].name.id, index });
        }
        self.wait(row, Range::one(index), traits);
        Outcome::Waits { due }
    }

    /// The row of an object that was written for changed parts. It must be new in this commit: one that an earlier commit
    /// named may have ended since.
    fn home(&mut self, home: Home) -> Option<usize> {
        let name = SegmentName { id: home.segment, place: Place::Seg, jobs: home.jobs };
        if home.epoch != self.ledger.gc_epoch || home.index >= home.jobs || home.segment.shard() != self.ledger.shard {
            return None;
        }
        let at = match self.position(home.segment) {
            Some(at) => at,
            None => self.add_row(name)?,
        };
        let row = &self.ledger.rows[at];
        (row.number >= self.first_new && row.name == name && self.waiting(at, home.index).is_none()).then_some(at)
    }

    fn plan_move(&mut self, held: Held, job: JobRef, plan: MovePlan) -> Outcome {
        if self.ledger.moves.len() >= self.context.caps.moves {
            return Outcome::Full(Full::Moves);
        }
        self.take_claimed(held, job.index);
        self.forget_marks(job);
        self.ledger.moves.push(plan);
        Outcome::Done
    }

    /// The claim has not got the job any more.
    fn late(&mut self, answer: &Answer) -> Outcome {
        let job = answer.job;
        let Some(row) = self.position(job.segment) else { return Outcome::StaleAttempt(Stale::Gone) };
        if let Some(run) = self.waiting(row, job.index) {
            if run.traits.claim != Some(answer.claim) {
                return Outcome::StaleAttempt(Stale::Waiting);
            }
            if !run.traits.why.may_still_finish() {
                return Outcome::AnsweredBefore;
            }
            if !matches!(answer.what, Answered::Finished) {
                return Outcome::StaleAttempt(Stale::Waiting);
            }
            self.take_waiting(row, job.index);
            self.end(row, job.index, End::Finished, None);
            return Outcome::Ended { late: true };
        }
        Outcome::StaleAttempt(self.holder(row, job.index))
    }

    fn holder(&self, row: usize, index: u16) -> Stale {
        let number = self.ledger.rows[row].number;
        for claim in &self.ledger.claims {
            let has = claim.items.iter().any(|item| {
                item.row == number && item.run.range().contains(index) && item.open.contains(index - item.run.from)
            });
            if has {
                let owner = self.ledger.session(claim.session).map(|session| Arc::clone(&session.owner));
                return Stale::Held {
                    owner: owner.unwrap_or_else(|| Arc::from("")),
                    session: claim.session,
                    since: Timestamp::from_millis(claim.at),
                    fence: claim.fence,
                };
            }
        }
        Stale::Gone
    }
}

impl Traits {
    /// Its process has lived with it: stalls count only in a row.
    pub(super) fn forgive(&mut self) {
        self.stalls = 0;
        self.group = 0;
    }
}
