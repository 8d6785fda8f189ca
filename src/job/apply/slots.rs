//! Schedules: the commit that moves a schedule's slot inserts the job of that slot, so each slot runs once, whoever finds
//! it due, and nobody leads.

use super::{
    Full, Outcome,
    absorb::{judge_one, note_duplicate},
    work::{Work, count},
};
use crate::{
    clock::Timestamp,
    job::{
        id::{Class, SegmentId, hash},
        layout::{Place, SegmentName},
        ledger::{Happened, JobRef, Millis, Range, Schedule, Traits},
    },
};

/// The longest segment that a schedule and its rows keep themselves: arguments of a kilobyte, and its table.
pub(crate) const LONGEST_INLINE: usize = 1536;
/// Schedules in one ledger.
pub(crate) const MOST_SCHEDULES: usize = 256;
/// Stretches of missed slots that a schedule remembers; the oldest go.
const MOST_MISSED: usize = 32;

/// Slots of a schedule that are due, and what follows from them. It holds only for the very schedule and slot that it
/// was computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueSlots {
    pub(crate) schedule: [u8; 16],
    pub(crate) version: u64,
    /// The slot that was next when these were computed.
    pub(crate) from: Millis,
    pub(crate) slots: Vec<Millis>,
    /// Slots that are too old, from and to.
    pub(crate) missed: Option<(Millis, Millis)>,
    /// The slot after all of these.
    pub(crate) next: Option<Millis>,
}

/// Missed slots that are to be inserted after all: every slot from `from` to before `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backfill {
    pub(crate) schedule: [u8; 16],
    pub(crate) version: u64,
    pub(crate) from: Millis,
    pub(crate) to: Millis,
    pub(crate) slots: Vec<Millis>,
}

fn schedule_at(work: &Work<'_>, id: [u8; 16]) -> Option<usize> {
    work.ledger.schedules.iter().position(|known| known.id == id)
}

/// Adds a schedule or changes it; one that is as it is asked for stays as it is. With `at_start` a new one has its
/// first slot now.
pub(super) fn put_schedule(work: &mut Work<'_>, wanted: &Schedule, at_start: bool) -> Outcome {
    if wanted.job.len() > LONGEST_INLINE {
        return Outcome::Mismatch;
    }
    let version = work.ledger.revision.saturating_add(1);
    let Some(at) = schedule_at(work, wanted.id) else {
        let large = work.weight() + wanted.job.len() + 256 > work.context.caps.size;
        if work.ledger.schedules.len() >= MOST_SCHEDULES || large {
            return Outcome::Full(Full::Schedules);
        }
        work.ledger.schedules.push(Schedule { version, missed: Vec::new(), ..wanted.clone() });
        work.changed = true;
        let at = work.ledger.schedules.len() - 1;
        if at_start && let Err(full) = insert_slot(work, at, work.now) {
            tracing::warn!(?full, schedule = %wanted.name, "there was no room for a first run");
        }
        return Outcome::Done;
    };
    let known = &work.ledger.schedules[at];
    let alike = (&known.spec, known.look_back, known.single, known.priority, &known.job)
        == (&wanted.spec, wanted.look_back, wanted.single, wanted.priority, &wanted.job);
    if alike {
        return Outcome::Nothing;
    }
    // Other times begin from now; with the same times no slot is left out or comes twice.
    let next = if known.spec == wanted.spec { known.next } else { wanted.next };
    let (slot, missed, paused) = (known.slot, known.missed.clone(), known.paused);
    work.ledger.schedules[at] = Schedule { version, slot, next, missed, paused, ..wanted.clone() };
    work.changed = true;
    Outcome::Done
}

pub(super) fn remove_schedule(work: &mut Work<'_>, id: [u8; 16]) -> Outcome {
    let Some(at) = schedule_at(work, id) else { return Outcome::NotFound };
    work.ledger.schedules.remove(at);
    work.changed = true;
    Outcome::Done
}

/// Slots that pass while a schedule is paused are missed. `next` is the first slot after it goes on.
pub(super) fn pause_schedule(work: &mut Work<'_>, id: [u8; 16], paused: bool, next: Option<Millis>) -> Outcome {
    let Some(at) = schedule_at(work, id) else { return Outcome::NotFound };
    let version = work.ledger.revision.saturating_add(1);
    let schedule = &mut work.ledger.schedules[at];
    if schedule.paused == paused {
        return Outcome::Nothing;
    }
    (schedule.paused, schedule.version) = (paused, version);
    if !paused {
        if let (Some(old), Some(new)) = (schedule.next, next)
            && old < new
        {
            schedule.miss((old, new));
        }
        schedule.next = next;
    }
    work.changed = true;
    Outcome::Done
}

/// Inserts the jobs of slots that are due, unless somebody else has moved the schedule since.
pub(super) fn insert(work: &mut Work<'_>, due: &DueSlots) -> Outcome {
    let Some(at) = schedule_at(work, due.schedule) else { return Outcome::NotFound };
    let known = &work.ledger.schedules[at];
    if known.version != due.version || known.next != Some(due.from) || known.paused {
        return Outcome::Nothing;
    }
    if let Some(missed) = due.missed {
        let schedule = &mut work.ledger.schedules[at];
        schedule.miss(missed);
        schedule.next = due.slots.first().copied().or(due.next);
    }
    work.changed = true;
    for (place, slot) in due.slots.iter().enumerate() {
        if let Err(full) = insert_slot(work, at, *slot) {
            // The slot stays the next one: nothing is dropped.
            work.ledger.schedules[at].next = Some(*slot);
            return Outcome::Full(full);
        }
        let schedule = &mut work.ledger.schedules[at];
        schedule.slot = *slot;
        schedule.next = due.slots.get(place + 1).copied().or(due.next);
    }
    Outcome::Done
}

/// Inserts missed slots, each once: what was inserted is not missed any more.
pub(super) fn backfill(work: &mut Work<'_>, wanted: &Backfill) -> Outcome {
    let Some(at) = schedule_at(work, wanted.schedule) else { return Outcome::NotFound };
    if work.ledger.schedules[at].version != wanted.version {
        return Outcome::Nothing;
    }
    let missed = std::mem::take(&mut work.ledger.schedules[at].missed);
    let (mut left, mut inserted, mut full) = (Vec::new(), 0u32, None);
    for (from, to) in missed {
        let (first, last) = (from.max(wanted.from), to.min(wanted.to));
        if first >= last || full.is_some() {
            left.push((from, to));
            continue;
        }
        let mut done = first;
        for slot in wanted.slots.iter().filter(|slot| (first..last).contains(*slot)) {
            if let Err(why) = insert_slot(work, at, *slot) {
                full = Some(why);
                break;
            }
            inserted += 1;
            done = slot.saturating_add(1);
        }
        let done = if full.is_some() { done } else { last };
        left.extend([(from, first), (done, to)].into_iter().filter(|(from, to)| from < to));
    }
    work.ledger.schedules[at].missed = left;
    work.changed |= inserted > 0 || full.is_none();
    match full {
        Some(full) if inserted == 0 => Outcome::Full(full),
        _ => Outcome::Backfilled { inserted },
    }
}

/// One job for one slot; without an object, so nothing is to be written or deleted.
fn insert_slot(work: &mut Work<'_>, at: usize, slot: Millis) -> Result<(), Full> {
    let Schedule { id: schedule, priority, single, ref job, .. } = work.ledger.schedules[at];
    let job = job.clone();
    let id = SegmentId::of_slot(&schedule, Timestamp::from_millis(slot), work.ledger.shard, Class::of(priority));
    if work.position(id).is_some() {
        return Ok(());
    }
    let caps = &work.context.caps;
    if work.ledger.rows.len() >= caps.rows {
        return Err(Full::Rows);
    }
    if work.weight() + job.len() + 128 > caps.size {
        return Err(Full::Size);
    }
    let place = JobRef { segment: id, index: 0 };
    if single && let Some(of) = judge_one(work, hash(&[b"schedule", &schedule]), place, 0) {
        note_duplicate(work, place, of);
        work.event(id, Range::one(0), Happened::Duplicate(of), None);
        return Ok(());
    }
    let traits = Traits { priority, due: slot.min(work.now), ..Traits::default() };
    let row = work.add_row(SegmentName { id, place: Place::Inline, jobs: 1 }).ok_or(Full::Rows)?;
    work.ledger.rows[row].open = 1;
    work.ledger.rows[row].inline = Some(job);
    count(&mut work.ledger.counters.absorbed, 1u16);
    work.wait(row, Range::one(0), traits);
    Ok(())
}

impl Schedule {
    fn miss(&mut self, range: (Millis, Millis)) {
        match self.missed.last_mut() {
            Some(last) if last.1 >= range.0 => last.1 = last.1.max(range.1),
            _ => self.missed.push(range),
        }
        if self.missed.len() > MOST_MISSED {
            self.missed.remove(0);
        }
    }
}
