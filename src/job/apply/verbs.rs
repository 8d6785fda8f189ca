//! What an operator does to jobs that wait: open one, run it now, end all of them.

use super::{
    Full, Outcome,
    work::{End, Work, count},
};
use crate::job::{
    layout::{Place, SegmentName},
    ledger::{Happened, JobRef, Range},
    segment::Facts,
};

/// Reads one job of a live segment into a run of its own.
pub(super) fn open_one(work: &mut Work<'_>, index: u16, facts: &Facts) -> Outcome {
    let Some(at) = work.position(facts.segment) else { return Outcome::NotFound };
    if work.ledger.rows[at].name.jobs != facts.jobs {
        return Outcome::Mismatch;
    }
    let Some(run) = facts.runs.iter().find(|run| run.range().contains(index)) else { return Outcome::NotFound };
    if !work.take_unread(at, index) {
        return Outcome::Nothing;
    }
    work.wait(at, Range::one(index), run.traits.clone());
    Outcome::Done
}

/// A job that waits for its time is due now. One that is held back stays so.
pub(super) fn run_now(work: &mut Work<'_>, job: JobRef) -> Outcome {
    let now = work.now;
    let Some(at) = work.position(job.segment) else { return Outcome::NotFound };
    match work.waiting(at, job.index).map(|run| run.traits.due) {
        Some(due) if due <= now => return Outcome::Nothing,
        Some(_) => {}
        None => {
            let row = &work.ledger.rows[at];
            let unread = row.unread.iter().any(|unread| unread.range.contains(job.index));
            let moved = row.moved.iter().any(|range| range.contains(job.index));
            return match (unread, moved) {
                (true, _) => Outcome::ReadFirst,
                (_, true) => Outcome::Elsewhere,
                _ => Outcome::NotFound,
            };
        }
    }
    if let Some(mut traits) = work.take_waiting(at, job.index) {
        traits.due = now;
        work.wait(at, Range::one(job.index), traits);
    }
    Outcome::Done
}

/// Ends everything that waits: neither what runs nor what is on its way elsewhere.
pub(super) fn purge(work: &mut Work<'_>) -> Outcome {
    let mut jobs = 0;
    for at in 0..work.ledger.rows.len() {
        let row = &mut work.ledger.rows[at];
        let runs = std::mem::take(&mut row.runs).into_iter().map(|run| run.range());
        let unread = std::mem::take(&mut row.unread).into_iter().map(|unread| unread.range);
        let ranges: Vec<Range> = runs.chain(unread).collect();
        for index in ranges.iter().flat_map(|range| range.from..range.to) {
            work.end(at, index, End::Cancelled, None);
            jobs += 1;
        }
    }
    Outcome::Purged { jobs }
}

/// A segment that nobody has taken in is over at once.
pub(super) fn discard(work: &mut Work<'_>, name: &SegmentName) -> Outcome {
    if let Some(known) = work.known(name) {
        return known;
    }
    if name.id.shard() != work.ledger.shard || !matches!(name.place, Place::Inbox | Place::At(_)) {
        return Outcome::Mismatch;
    }
    if work.ledger.finished.len() + work.ledger.rows.len() >= work.context.caps.finished {
        return Outcome::Full(Full::FinishedList);
    }
    if work.add_row(*name).is_none() {
        return Outcome::Full(Full::Rows);
    }
    let jobs = u64::from(name.jobs);
    count(&mut work.ledger.counters.absorbed, jobs);
    count(&mut work.ledger.counters.cancelled, jobs);
    work.ledger.cancelling.retain(|job| job.segment != name.id);
    work.event(name.id, Range { from: 0, to: name.jobs }, Happened::Cancelled, None);
    Outcome::Purged { jobs }
}
