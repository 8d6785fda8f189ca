//! Spills: waiting jobs go to a segment of `seg/`, payload and all, where the ledger knows only when they are due.

use super::{Outcome, work::Work};
use crate::job::{
    id::{JobId, SegmentId},
    layout::{Place, SegmentName},
    ledger::{JobRef, Millis, Range, Unread},
};

/// One job of a spill. It moves only if it still waits as it did when the object was written: the object's table
/// says how often it was tried and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moving {
    pub(crate) job: JobRef,
    pub(crate) attempts: u32,
    pub(crate) due: Millis,
    /// In the new segment.
    pub(crate) index: u16,
}

/// A segment of `seg/` that is there, and what is to move into it.
#[derive(Debug, Clone)]
pub(crate) struct Spill {
    pub(crate) segment: SegmentId,
    /// The `gc_epoch` of the ledger that was read before the object was written.
    pub(crate) epoch: u64,
    pub(crate) jobs: u16,
    /// In the order of the new segment.
    pub(crate) moving: Vec<Moving>,
    /// The least and the greatest id of its jobs.
    pub(crate) span: (JobId, JobId),
}

impl Work<'_> {
    pub(super) fn spill(&mut self, spill: &Spill) -> Outcome {
        let name = SegmentName { id: spill.segment, place: Place::Seg, jobs: spill.jobs };
        let known = self.position(spill.segment).is_some();
        if spill.epoch != self.ledger.gc_epoch || known || spill.segment.shard() != self.ledger.shard {
            return Outcome::WriteAgain;
        }
        if !spill.moving.is_sorted_by(|a, b| a.index < b.index)
            || spill.moving.last().is_some_and(|last| last.index >= spill.jobs)
        {
            return Outcome::Mismatch;
        }
        // A row into which nothing moves is over at once, and its object is deleted.
        let Some(target) = self.add_row(name) else { return Outcome::WriteAgain };
        let mut unread: Vec<Unread> = Vec::new();
        for one in &spill.moving {
            let Some(at) = self.position(one.job.segment) else { continue };
            let still = self.waiting(at, one.job.index).is_some_and(|run| {
                let traits = &run.traits;
                (traits.attempts, traits.due, traits.paused) == (one.attempts, one.due, false)
            });
            if !still {
                continue;
            }
            let Some(traits) = self.take_waiting(at, one.job.index) else { continue };
            self.moved_away(at, one.job.index);
            self.rehome(one.job, JobRef { segment: spill.segment, index: one.index });
            match unread.last_mut() {
                Some(last) if last.range.to == one.index && last.priority == traits.priority => last.range.to += 1,
                _ => unread.push(Unread { range: Range::one(one.index), priority: traits.priority, due: traits.due }),
            }
        }
        let row = &mut self.ledger.rows[target];
        row.open = unread.iter().map(|unread| unread.range.len()).sum();
        row.unread = unread;
        row.span = Some(spill.span);
        Outcome::Spilled { moved: row.open }
    }
}
