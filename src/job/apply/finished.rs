//! The finished list: a segment of an inbox that is over, until nobody can meet its name any more.
//!
//! Nothing is deleted on unknown. An entry is unconfirmed until the delete of that very name was answered; it leaves 90 s
//! after that, and only when a listing from the folder's start does not show the name. A name that is shown again (a
//! late duplicate of its create) is made unconfirmed first, so that no process with an older view lets it go meanwhile.

use super::{
    Outcome,
    work::{Work, millis},
};
use crate::job::{
    id::SegmentId,
    layout::Place,
    ledger::{Finished, Millis, Policy},
};
use std::collections::HashSet;

/// Longer than a listing may be used and a producer may send.
pub(super) const KEPT: Millis = 90_000;
/// After this anybody deletes what its finisher has not.
pub(super) const UNCONFIRMED: Millis = 60_000;

/// When an entry may leave the list at the earliest.
pub(super) fn leaves(entry: &Finished, policy: &Policy) -> Option<Millis> {
    let kept = KEPT + if entry.request { millis(policy.request_window) } else { 0 };
    entry.confirmed.map(|confirmed| confirmed.saturating_add(kept))
}

impl Work<'_> {
    /// `since` is that of the entry when the delete was sent: a confirmation of an earlier delete proves nothing.
    pub(super) fn confirm(&mut self, segment: SegmentId, since: Millis) -> Outcome {
        let now = self.now;
        let Some(at) = self.finished_position(segment) else { return Outcome::Nothing };
        let entry = &mut self.ledger.finished[at];
        if entry.confirmed.is_some() || entry.since != since {
            return Outcome::Nothing;
        }
        entry.confirmed = Some(now);
        self.changed = true;
        Outcome::Done
    }

    pub(super) fn unconfirm(&mut self, segment: SegmentId) -> Outcome {
        let now = self.now;
        let Some(at) = self.finished_position(segment) else { return Outcome::Nothing };
        let entry = &mut self.ledger.finished[at];
        if entry.confirmed.is_some() {
            entry.confirmed = None;
            // Later than before, also when the clock stands still: no confirmation of before fits it.
            entry.since = now.max(entry.since.saturating_add(1));
            self.changed = true;
        }
        let name = entry.name;
        Outcome::Delete(vec![name])
    }

    pub(super) fn forget(&mut self, segments: &[SegmentId]) -> Outcome {
        let not_shown: HashSet<SegmentId> = segments.iter().copied().collect();
        let (now, policy) = (self.now, &self.ledger.policy);
        let before = self.ledger.finished.len();
        self.ledger.finished.retain(|entry| {
            let may_leave = leaves(entry, policy).is_some_and(|at| at <= now);
            !(may_leave && not_shown.contains(&entry.name.id))
        });
        if self.ledger.finished.len() == before {
            return Outcome::Nothing;
        }
        self.finished_moved();
        self.changed = true;
        Outcome::Done
    }

    /// Makes every commit that is on its way and names an object of before fail, then tells which ones nobody names.
    pub(super) fn raise_epoch(&mut self, candidates: &[SegmentId]) -> Outcome {
        let orphans: Vec<SegmentId> = candidates.iter().copied().filter(|id| !self.names(*id)).collect();
        if orphans.is_empty() {
            return Outcome::Nothing;
        }
        self.ledger.gc_epoch = self.ledger.gc_epoch.saturating_add(1);
        self.changed = true;
        Outcome::Orphans(orphans)
    }

    fn names(&self, id: SegmentId) -> bool {
        let row = self.position(id).is_some_and(|at| self.ledger.rows[at].name.place == Place::Seg);
        row || self.ledger.outbox_spills.contains(&id)
    }
}
