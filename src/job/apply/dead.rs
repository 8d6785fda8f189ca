//! Dead letters and moves: plan, write, commit.
//!
//! The commit that takes a job out of the queue names the object that it goes to; then the object is written; the next
//! commit drops the job. The segment with its payload stays live until then, so a process that dies in between leaves
//! nothing that another one could not complete, under the same name and with the same jobs.

use super::{
    Full, Outcome,
    work::{End, Work, count},
};
use crate::{
    Fence, WriteId,
    clock::Timestamp,
    job::{
        id::SegmentId,
        layout::{Place, SegmentName, hour_of},
        ledger::{DeadJob, DeadPlan, Happened, JobRef, Range, Reason, Traits},
    },
};
use std::sync::Arc;

impl Work<'_> {
    pub(super) fn dead_list_is_full(&self) -> bool {
        let jobs: usize = self.ledger.dead.iter().map(|plan| plan.jobs.len().max(1)).sum();
        jobs >= self.context.caps.dead
    }

    /// Puts a job on the dead list, with all others that this commit buries.
    /// Kinds that are kept for other times have objects of their own.
    pub(super) fn bury(
        &mut self,
        (at, index): (usize, u16),
        reason: Reason,
        traits: &Traits,
        fence: Option<Fence>,
        kind: Option<&str>,
    ) {
        let (number, segment) = (self.ledger.rows[at].number, self.ledger.rows[at].name.id);
        self.forget_marks(JobRef { segment, index });
        self.event(segment, Range::one(index), Happened::Dead(reason), fence);
        let job = DeadJob {
            row: number,
            index,
            reason,
            attempts: traits.attempts,
            stalls: traits.stalls,
            fence: fence.or(self.ledger.fence_last),
            error: traits.error.as_ref().map(Arc::clone),
        };
        let hour = self.dead_hour(kind);
        let mut id = *self.context.write_id.as_bytes();
        if hour != self.dead_hour(None) {
            for (byte, part) in id[8..].iter_mut().zip((hour << 32).to_be_bytes()) {
                *byte ^= part;
            }
        }
        let id = WriteId::from(id);
        match self.ledger.dead.iter_mut().find(|plan| plan.id == id && plan.raw.is_none()) {
            Some(plan) => plan.jobs.push(job),
            None => self.ledger.dead.push(DeadPlan { id, hour, at: self.now, jobs: vec![job], raw: None }),
        }
        self.changed = true;
    }

    /// The hour in which what dies now expires.
    fn dead_hour(&self, kind: Option<&str>) -> u64 {
        hour_of(Timestamp::from_millis(self.now).plus(self.ledger.policy.dead_retention(kind)))
    }

    /// A segment that is no use to anybody goes to the dead letters as it is.
    pub(super) fn bury_raw(&mut self, name: &SegmentName, reason: Reason) -> Outcome {
        if let Some(known) = self.known(name) {
            return known;
        }
        if name.id.shard() != self.ledger.shard || !matches!(name.place, Place::Inbox | Place::At(_)) {
            return Outcome::Mismatch;
        }
        let caps = &self.context.caps;
        if self.ledger.finished.len() + self.ledger.rows.len() >= caps.finished {
            return Outcome::Full(Full::FinishedList);
        }
        if self.dead_list_is_full() {
            return Outcome::Full(Full::DeadList);
        }
        let Some(at) = self.add_row(*name) else { return Outcome::Full(Full::Rows) };
        let number = self.ledger.rows[at].number;
        self.ledger.rows[at].open = name.jobs;
        count(&mut self.ledger.counters.absorbed, name.jobs);
        // Whoever was cancelled ahead is dead all the same.
        self.ledger.cancelling.retain(|job| job.segment != name.id);
        // Several segments of one commit need several names.
        let mut id = *self.context.write_id.as_bytes();
        for (byte, part) in id[8..].iter_mut().zip(u64::from(number).to_be_bytes()) {
            *byte ^= part;
        }
        let (hour, at, raw) = (self.dead_hour(None), self.now, Some((number, reason)));
        self.ledger.dead.push(DeadPlan { id: id.into(), hour, at, jobs: Vec::new(), raw });
        self.event(name.id, Range { from: 0, to: name.jobs }, Happened::Dead(reason), None);
        Outcome::Buried
    }

    pub(super) fn dead_written(&mut self, plan: WriteId) -> Outcome {
        let Some(at) = self.ledger.dead.iter().position(|known| known.id == plan) else { return Outcome::Nothing };
        let plan = self.ledger.dead.remove(at);
        self.changed = true;
        for job in &plan.jobs {
            if let Some(row) = self.position_of_number(job.row) {
                self.end(row, job.index, End::Dead, None);
            }
        }
        if let Some(row) = plan.raw.and_then(|(number, _)| self.position_of_number(number)) {
            let open = self.ledger.rows[row].open;
            count(&mut self.ledger.counters.dead, open);
            self.ledger.rows[row].open = 0;
        }
        Outcome::Done
    }

    pub(super) fn move_written(&mut self, job: JobRef, target: SegmentId) -> Outcome {
        let Some(row) = self.position(job.segment) else { return Outcome::Nothing };
        let number = self.ledger.rows[row].number;
        let plan =
            |plan: &crate::job::ledger::MovePlan| (plan.row, plan.index, plan.target.id) == (number, job.index, target);
        let Some(at) = self.ledger.moves.iter().position(plan) else { return Outcome::Nothing };
        self.ledger.moves.remove(at);
        self.end(row, job.index, End::Moved, None);
        Outcome::Done
    }
}
