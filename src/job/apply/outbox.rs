//! Events: they stand in the outbox until they are known to be published, or to stand in an object of `seg/`.

use super::{Outcome, work::Work};
use crate::{
    Fence,
    job::{
        id::SegmentId,
        ledger::{Event, Happened, Range},
    },
};

impl Work<'_> {
    pub(super) fn event(&mut self, segment: SegmentId, range: Range, what: Happened, fence: Option<Fence>) {
        if !self.ledger.policy.events.tells(what) {
            return;
        }
        let at = self.now;
        // Never into an event of an earlier commit: it may have been published as it was.
        if let Some(last) = self.ledger.outbox.last_mut()
            && last.number >= self.first_event
            && (last.segment, last.what, last.at, last.fence) == (segment, what, at, fence)
            && last.range.to == range.from
        {
            last.range.to = range.to;
            return;
        }
        let number = self.ledger.next_event;
        self.ledger.next_event = number.saturating_add(1);
        self.ledger.outbox.push(Event { number, segment, range, what, at, fence });
    }
}

/// Only what the object holds leaves the outbox: exactly the events that were there when it was written.
pub(super) fn spill_events(work: &mut Work<'_>, segment: SegmentId, epoch: u64, from: u64, through: u64) -> Outcome {
    if epoch != work.ledger.gc_epoch {
        return Outcome::WriteAgain;
    }
    let is_first = work.ledger.outbox.first().is_some_and(|event| event.number == from);
    if !is_first || through >= work.first_event || work.ledger.outbox_spills.contains(&segment) {
        return Outcome::Nothing;
    }
    work.ledger.outbox_spills.push(segment);
    published(work, through)
}

pub(super) fn spill_published(work: &mut Work<'_>, segment: SegmentId) -> Outcome {
    let Some(at) = work.ledger.outbox_spills.iter().position(|known| *known == segment) else {
        return Outcome::Nothing;
    };
    work.ledger.outbox_spills.remove(at);
    work.unnamed.push(segment);
    work.changed = true;
    Outcome::Done
}

pub(super) fn published(work: &mut Work<'_>, through: u64) -> Outcome {
    let before = work.ledger.outbox.len();
    work.ledger.outbox.retain(|event| event.number > through);
    if work.ledger.outbox.len() == before {
        return Outcome::Nothing;
    }
    work.changed = true;
    Outcome::Done
}
