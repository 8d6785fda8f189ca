//! What is done to single jobs from outside, and the end of a session.

use super::{
    Full, Outcome,
    work::{End, Work},
};
use crate::job::{
    id::SegmentId,
    ledger::{JobRef, Range},
};

impl Work<'_> {
    /// A waiting job ends at once; a running one is marked, and ends as cancelled however its attempt ends, unless it is
    /// finished; one that is not absorbed yet is marked if the inbox has it.
    pub(super) fn cancel(&mut self, job: JobRef, in_inbox: bool) -> Outcome {
        let Some(at) = self.position(job.segment) else {
            return if in_inbox && self.finished_position(job.segment).is_none() {
                self.mark(job)
            } else {
                Outcome::NotFound
            };
        };
        if self.take_waiting(at, job.index).is_some() || self.take_unread(at, job.index) {
            self.end(at, job.index, End::Cancelled, None);
            return Outcome::Ended { late: false };
        }
        let row = &self.ledger.rows[at];
        if row.moved.iter().any(|range| range.contains(job.index)) {
            return Outcome::Elsewhere;
        }
        let number = row.number;
        let running = self.ledger.claims.iter().flat_map(|claim| &claim.items).any(|item| {
            item.row == number && item.run.range().contains(job.index) && item.open.contains(job.index - item.run.from)
        });
        if running { self.mark(job) } else { Outcome::Nothing }
    }

    fn mark(&mut self, job: JobRef) -> Outcome {
        if self.is_cancelling(job) {
            return Outcome::Asked;
        }
        if self.ledger.cancelling.len() >= self.context.caps.cancels {
            return Outcome::Full(Full::Cancels);
        }
        self.ledger.cancelling.push(job);
        self.changed = true;
        Outcome::Asked
    }

    pub(super) fn pause(&mut self, job: JobRef, paused: bool) -> Outcome {
        let Some(at) = self.position(job.segment) else { return Outcome::NotFound };
        match self.waiting(at, job.index).map(|run| run.traits.paused) {
            Some(now) if now == paused => return Outcome::Nothing,
            Some(_) => {}
            None if self.ledger.rows[at].unread.iter().any(|unread| unread.range.contains(job.index)) => {
                return Outcome::ReadFirst;
            }
            None if self.ledger.rows[at].moved.iter().any(|range| range.contains(job.index)) => {
                return Outcome::Elsewhere;
            }
            None => return Outcome::NotFound,
        }
        if let Some(mut traits) = self.take_waiting(at, job.index) {
            traits.paused = paused;
            self.wait(at, Range::one(job.index), traits);
        }
        Outcome::Done
    }

    pub(super) fn close_session(&mut self) -> Outcome {
        let Some(ticket) = &self.context.session else { return Outcome::Nothing };
        if self.holds(ticket.id) {
            return Outcome::Nothing;
        }
        self.closing = true;
        let before = self.ledger.sessions.len();
        self.ledger.sessions.retain(|session| session.id != ticket.id);
        self.changed |= self.ledger.sessions.len() != before;
        Outcome::Done
    }
}

/// Cancels of jobs that were never taken in, and are gone, mean nothing any more.
pub(super) fn unmark(work: &mut Work<'_>, segment: SegmentId) -> Outcome {
    if work.position(segment).is_some() || work.ledger.cancelling.iter().all(|job| job.segment != segment) {
        return Outcome::Nothing;
    }
    work.ledger.cancelling.retain(|job| job.segment != segment);
    work.changed = true;
    Outcome::Done
}
