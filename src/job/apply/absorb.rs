//! Taking segments in, and opening what is unread in them.
//!
//! A segment is absorbed once: its id is live or finished from then on, and stays in the finished list for longer than
//! any listing or any late create of its name may live. A cap that is full leaves the segment in the inbox.

use super::{
    Full, Outcome,
    work::{End, Work, count, mix},
};
use crate::job::{
    id::{Class, SegmentId},
    layout::{Place, SegmentName},
    ledger::{Duplicate, Happened, JobRef, Millis, Range, Run, Unique, Unread},
    segment::Facts,
};
use std::collections::{BTreeMap, HashMap};

/// Jobs are opened this long before they are due, so that no read stands between a job and its time.
pub(crate) const HORIZON: Millis = 60_000;

/// Dropped jobs of which a ledger remembers what they were duplicates of.
const MOST_DUPLICATES: usize = 256;

impl Work<'_> {
    pub(super) fn absorb(&mut self, name: &SegmentName, facts: &Facts) -> Outcome {
        if let Some(known) = self.known(name) {
            return known;
        }
        let fits = facts.segment == name.id
            && facts.jobs == name.jobs
            && name.id.shard() == self.ledger.shard
            && matches!(name.place, Place::Inbox | Place::At(_));
        if !fits {
            return Outcome::Mismatch;
        }
        if let Some(full) = self.room_for(facts) {
            return Outcome::Full(full);
        }
        let Some(at) = self.add_row(*name) else { return Outcome::Full(Full::Rows) };
        self.ledger.rows[at].open = name.jobs;
        self.ledger.rows[at].request = facts.request;
        self.ledger.rows[at].span = facts.span;
        count(&mut self.ledger.counters.absorbed, name.jobs);
        // Fences of elsewhere: what is claimed here must be higher.
        self.ledger.fence_last = self.ledger.fence_last.max(facts.fence);
        let dropped = self.judge(at, facts);
        let cancelled = self.cancelled_ahead(name.id);
        let mut without: Vec<u16> = dropped.iter().map(|(index, _)| *index).chain(cancelled.iter().copied()).collect();
        without.sort_unstable();
        without.dedup();
        let room = self.room_for_runs();
        let row = &mut self.ledger.rows[at];
        place(&facts.runs, &without, self.now, room, &mut row.runs, &mut row.unread);
        for (index, of) in &dropped {
            self.end(at, *index, End::Duplicate, None);
            note_duplicate(self, JobRef { segment: name.id, index: *index }, *of);
            self.event(name.id, Range::one(*index), Happened::Duplicate(*of), None);
        }
        for index in cancelled {
            // A duplicate has ended already.
            if dropped.iter().all(|(other, _)| *other != index) {
                self.end(at, index, End::Cancelled, None);
            }
        }
        self.ledger.cancelling.retain(|job| job.segment != name.id);
        Outcome::Absorbed { dropped }
    }

    /// What to say of a name whose id is live or finished.
    pub(super) fn known(&mut self, name: &SegmentName) -> Option<Outcome> {
        let (known, confirmed) = match self.position(name.id) {
            Some(at) => (self.ledger.rows[at].name, false),
            None => {
                let at = self.finished_position(name.id)?;
                let entry = &self.ledger.finished[at];
                (entry.name, entry.confirmed.is_some())
            }
        };
        Some(if known == *name { Outcome::Known { confirmed } } else { Outcome::KnownOtherwise(known) })
    }

    pub(super) fn room_for(&self, facts: &Facts) -> Option<Full> {
        let caps = &self.context.caps;
        let ledger = &self.ledger;
        // Each row will need an entry in the finished list, which refuses none.
        if ledger.finished.len() + ledger.rows.len() >= caps.finished {
            return Some(Full::FinishedList);
        }
        if ledger.unique.len() + facts.unique.len() > caps.unique {
            return Some(Full::UniqueKeys);
        }
        let (blocked, key) = self.blocked_rows();
        if blocked >= caps.blocked {
            return Some(Full::Blocked { key });
        }
        if ledger.rows.len() - blocked >= caps.rows {
            return Some(Full::Rows);
        }
        let new = 64 + facts.runs.len().min(caps.runs) * 32 + facts.unique.len() * 56;
        (self.weight() + new > caps.size).then_some(Full::Size)
    }

    /// Rows that have nothing but what cannot run, and one of the keys that hold them up.
    fn blocked_rows(&self) -> (usize, u64) {
        let policy = &self.ledger.policy;
        let paused = || self.ledger.rows.iter().flat_map(|row| &row.runs).any(|run| run.traits.paused);
        if policy.key_limit.is_none() && self.ledger.limits.is_empty() && !paused() {
            return (0, 0);
        }
        let running = self.running_by_key();
        let mut holder = 0;
        let mut is_blocked = |run: &Run| {
            let key = run.traits.key;
            let full = key != 0
                && self.ledger.key_limit(key).is_some_and(|most| running.get(&key).copied().unwrap_or(0) >= most);
            if full {
                holder = key;
            }
            full || run.traits.paused
        };
        let rows = self.ledger.rows.iter();
        let count = rows
            .filter(|row| row.unread.is_empty() && !row.runs.is_empty() && row.runs.iter().all(&mut is_blocked))
            .count();
        (count, holder)
    }

    pub(super) fn running_by_key(&self) -> HashMap<u64, u32> {
        let mut running = HashMap::new();
        for item in self.ledger.claims.iter().flat_map(|claim| &claim.items) {
            if item.run.traits.key != 0 {
                *running.entry(item.run.traits.key).or_insert(0) += u32::from(item.open.count());
            }
        }
        running
    }

    pub(super) fn room_for_runs(&self) -> usize {
        let open = self.ledger.rows.iter().map(|row| row.runs.len()).sum();
        self.context.caps.runs.saturating_sub(open)
    }

    /// Judges the unique keys of a segment; what is a duplicate, and of which job.
    pub(super) fn judge(&mut self, at: usize, facts: &Facts) -> Vec<(u16, JobRef)> {
        let mut dropped = Vec::new();
        let period = super::work::millis(self.ledger.policy.unique_period);
        for (index, hash) in &facts.unique {
            let job = JobRef { segment: self.ledger.rows[at].name.id, index: *index };
            dropped.extend(judge_one(self, *hash, job, period).map(|of| (*index, of)));
        }
        dropped
    }

    fn cancelled_ahead(&self, segment: SegmentId) -> Vec<u16> {
        let jobs = self.ledger.row_of(segment).map_or(0, |row| row.name.jobs);
        let mine = self.ledger.cancelling.iter().filter(|job| job.segment == segment && job.index < jobs);
        mine.map(|job| job.index).collect()
    }

    /// Reads more of a live segment into runs: what is due soon, as far as there is room.
    pub(super) fn open(&mut self, facts: &Facts) -> Outcome {
        let Some(at) = self.position(facts.segment) else { return Outcome::NotFound };
        if self.ledger.rows[at].name.jobs != facts.jobs {
            return Outcome::Mismatch;
        }
        let room = self.room_for_runs();
        let ranges: Vec<Range> = self.ledger.rows[at].unread.iter().map(|unread| unread.range).collect();
        let mut mine = Vec::new();
        for range in ranges {
            for run in facts.runs.iter().filter(|run| run.from < range.to && range.from < run.to) {
                mine.push(Run { from: run.from.max(range.from), to: run.to.min(range.to), traits: run.traits.clone() });
            }
        }
        let (mut runs, mut unread) = (Vec::new(), Vec::new());
        place(&mine, &[], self.now, room, &mut runs, &mut unread);
        if runs.is_empty() {
            return Outcome::Nothing;
        }
        self.ledger.rows[at].unread = unread;
        for run in runs {
            self.wait(at, run.range(), run.traits);
        }
        self.changed = true;
        Outcome::Done
    }
}

/// Takes a unique key for a job, or says which job has it: one that has not ended, or ended within the period.
pub(super) fn judge_one(work: &mut Work<'_>, hash: [u8; 16], job: JobRef, period: Millis) -> Option<JobRef> {
    let taken = Unique { hash, job, first: None, ended: None };
    let list = &mut work.ledger.unique;
    let by_hash = work
        .unique_by_hash
        .get_or_insert_with(|| list.iter().enumerate().map(|(at, unique)| (unique.hash, at)).collect());
    let place = match by_hash.get(&hash) {
        Some(place) => {
            let other = &mut list[*place];
            if other.ended.is_none_or(|ended| work.now < ended.saturating_add(period)) {
                return Some(other.first.unwrap_or(other.job));
            }
            *other = taken;
            *place
        }
        None => {
            by_hash.insert(hash, list.len());
            list.push(taken);
            list.len() - 1
        }
    };
    work.note_unique(job, place);
    None
}

/// Who asks for a job that was dropped is told which one had its key. The oldest go when there are too many.
pub(super) fn note_duplicate(work: &mut Work<'_>, job: JobRef, of: JobRef) {
    let list = &mut work.ledger.duplicates;
    if list.len() >= MOST_DUPLICATES {
        list.remove(0);
    }
    list.push(Duplicate { job, of });
}

/// Puts jobs into runs if they are due soon, and else into unread ranges of one priority each. Leaves out `without`.
pub(super) fn place(
    facts: &[Run],
    without: &[u16],
    now: Millis,
    room: usize,
    runs: &mut Vec<Run>,
    unread: &mut Vec<Unread>,
) {
    let mut left = without.iter().copied().peekable();
    let mut put = |run: Run| {
        if run.is_empty() {
            return;
        }
        if run.traits.due <= now.saturating_add(HORIZON) && runs.len() < room {
            match runs.last_mut() {
                Some(last) if last.to == run.from && last.traits == run.traits => last.to = run.to,
                _ => runs.push(run),
            }
            return;
        }
        let (range, priority, due) = (run.range(), run.traits.priority, run.traits.due);
        match unread.last_mut() {
            Some(last) if last.range.to == range.from && last.priority == priority => last.range.to = range.to,
            _ => unread.push(Unread { range, priority, due }),
        }
    };
    for run in facts {
        let mut from = run.from;
        while let Some(index) = left.next_if(|index| *index < run.to) {
            if index >= from {
                put(Run { from, to: index, traits: run.traits.clone() });
                from = index + 1;
            }
        }
        put(Run { from, to: run.to, traits: run.traits.clone() });
    }
}

/// All jobs of a segment but `without`, unread.
pub(crate) fn unread_of(facts: &Facts, without: &[u16]) -> Vec<Unread> {
    let (mut runs, mut unread) = (Vec::new(), Vec::new());
    place(&facts.runs, without, 0, 0, &mut runs, &mut unread);
    unread
}

/// Spreads what comes at once over `width` milliseconds.
pub(super) fn spread(parts: [u64; 3], width: Millis) -> Millis {
    let width = u64::try_from(width).unwrap_or(0).max(1);
    Millis::try_from(mix(parts) % width).unwrap_or(0)
}

/// Rows by class and priority of what they have unread, for who reads them next.
pub(super) fn unread_order(ledger: &crate::job::ledger::Ledger) -> BTreeMap<(Class, i16, Millis, u32), SegmentId> {
    let mut order = BTreeMap::new();
    for row in &ledger.rows {
        for unread in &row.unread {
            order.insert((row.name.id.class(), unread.priority, unread.due, row.number), row.name.id);
        }
    }
    order
}
