//! Dead letters that leave their object: redriven, or given up.
//!
//! An object of dead letters is never changed. What was taken out of it stands in the ledger, and a redrive puts the job
//! back by the same commit: so of any number of redrives one counts, also when an answer is lost or the object is read
//! again while it is being deleted. The entry stays for longer than anybody may use what they have read of the object.

use super::{
    Full, Outcome,
    absorb::place,
    finished::KEPT,
    work::{Work, count},
};
use crate::{
    Hour, WriteId,
    job::{
        layout::{Place, SegmentName},
        ledger::{Letters, Millis, Range, insert_range},
        segment::Facts,
    },
};
use std::sync::Arc;

/// What is to be taken out of one object of dead letters.
#[derive(Debug, Clone)]
pub(crate) struct TakeLetters {
    /// The plan and the hour in the object's name, and how many jobs it has.
    pub(crate) plan: WriteId,
    pub(crate) hour: u64,
    pub(crate) jobs: u16,
    /// Indexes in the object; for a redrive each with its index in the new segment.
    pub(crate) indexes: Vec<(u16, u16)>,
    pub(crate) into: Option<Redrive>,
}

/// A segment of `seg/` that is there, with the jobs of a redrive.
#[derive(Debug, Clone)]
pub(crate) struct Redrive {
    pub(crate) facts: Arc<Facts>,
    /// The `gc_epoch` of the ledger that was read before the object was written.
    pub(crate) epoch: u64,
}

/// Whether dead letters of this hour are over, whether or not somebody has deleted them.
fn is_over(hour: u64, now: Millis) -> bool {
    Hour::from_number(hour).is_ok_and(|hour| hour.end().as_millis() <= now)
}

pub(super) fn take(work: &mut Work<'_>, take: &TakeLetters) -> Outcome {
    let known = work.ledger.letters.iter().position(|letters| letters.plan == take.plan);
    let all = || take.indexes.iter().map(|(index, _)| *index);
    // The object was made for one attempt: if it has a row, this very operation has landed before.
    if take.into.as_ref().is_some_and(|redrive| work.position(redrive.facts.segment).is_some()) {
        let left = known.map_or(0, |at| work.ledger.letters[at].left());
        return Outcome::LettersTaken { taken: all().collect(), left };
    }
    if is_over(take.hour, work.now) || known.is_some_and(|at| work.ledger.letters[at].gone.is_some()) {
        return Outcome::NotFound;
    }
    // Whoever carries the plan out would write the object once more, after it was emptied and deleted.
    if work.ledger.dead.iter().any(|plan| plan.id == take.plan) {
        return Outcome::NotYet;
    }
    if known.is_none() && work.ledger.letters.len() >= work.context.caps.letters {
        return Outcome::Full(Full::Letters);
    }
    let is_free = |index: u16| index < take.jobs && known.is_none_or(|at| !work.ledger.letters[at].is_taken(index));
    let mut free: Vec<(u16, u16)> = take.indexes.iter().copied().filter(|(index, _)| is_free(*index)).collect();
    if let Some(redrive) = &take.into
        && let Err(outcome) = put_back(work, redrive, &mut free)
    {
        return outcome;
    }
    if free.is_empty() {
        let left = known.map_or(take.jobs, |at| work.ledger.letters[at].left());
        return Outcome::LettersTaken { taken: Vec::new(), left };
    }
    let at = known.unwrap_or_else(|| {
        let letters = Letters { plan: take.plan, hour: take.hour, jobs: take.jobs, taken: Vec::new(), gone: None };
        work.ledger.letters.push(letters);
        work.ledger.letters.len() - 1
    });
    let letters = &mut work.ledger.letters[at];
    for (index, _) in &free {
        insert_range(&mut letters.taken, Range::one(*index));
    }
    work.changed = true;
    Outcome::LettersTaken { taken: free.into_iter().map(|(index, _)| index).collect(), left: letters.left() }
}

/// The jobs that are still dead wait again. One whose unique key another job has stays dead.
fn put_back(work: &mut Work<'_>, redrive: &Redrive, free: &mut Vec<(u16, u16)>) -> Result<(), Outcome> {
    let facts = &redrive.facts;
    if redrive.epoch != work.ledger.gc_epoch || facts.segment.shard() != work.ledger.shard {
        return Err(Outcome::WriteAgain);
    }
    if let Some(full) = work.room_for(facts) {
        return Err(Outcome::Full(full));
    }
    let name = SegmentName { id: facts.segment, place: Place::Seg, jobs: facts.jobs };
    // A row into which nothing goes is over at once, and its object is deleted.
    let Some(at) = work.add_row(name) else { return Err(Outcome::Full(Full::Rows)) };
    let wanted = |index: u16| free.iter().any(|(_, new)| *new == index);
    let unique = facts.unique.iter().copied().filter(|(index, _)| wanted(*index)).collect();
    let dropped = work.judge(at, &Facts { unique, ..facts.as_ref().clone() });
    free.retain(|(_, new)| dropped.iter().all(|(index, _)| index != new));
    let mut without: Vec<u16> = (0..facts.jobs).collect();
    let stay: std::collections::HashSet<u16> = free.iter().map(|(_, new)| *new).collect();
    without.retain(|index| !stay.contains(index));
    let room = work.room_for_runs();
    let row = &mut work.ledger.rows[at];
    place(&facts.runs, &without, work.now, room, &mut row.runs, &mut row.unread);
    row.open = u16::try_from(free.len()).unwrap_or(u16::MAX);
    row.span = facts.span;
    count(&mut work.ledger.counters.absorbed, row.open);
    work.ledger.fence_last = work.ledger.fence_last.max(facts.fence);
    Ok(())
}

/// The object is not there any more.
pub(super) fn gone(work: &mut Work<'_>, plan: WriteId) -> Outcome {
    let now = work.now;
    match work.ledger.letters.iter_mut().find(|letters| letters.plan == plan && letters.gone.is_none()) {
        Some(letters) => {
            letters.gone = Some(now);
            work.changed = true;
            Outcome::Done
        }
        None => Outcome::Nothing,
    }
}

/// Entries leave when nobody can use what they have read of the object any more.
pub(super) fn tidy(letters: &mut Vec<Letters>, now: Millis) {
    letters.retain(|letters| {
        let unreadable = letters.gone.is_some_and(|gone| gone.saturating_add(KEPT) <= now);
        !unreadable && !is_over(letters.hour, now)
    });
}
