//! A ledger while it is being changed, with the indexes that make finding fast.

use super::{Applied, Context, Op, Outcome, cancel, letters, limits, outbox, slots, verbs};
use crate::{
    Fence,
    job::{
        id::SegmentId,
        layout::{Place, SegmentName},
        ledger::{
            ClaimId, Finished, Happened, JobRef, Ledger, Millis, Range, Row, Run, Schedule, Session, SessionId, Traits,
            Why, insert_range,
        },
    },
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Cancelled,
    Duplicate,
    Dead,
    Moved,
}

pub(super) struct Work<'a> {
    pub(super) ledger: Ledger,
    pub(super) context: &'a Context,
    pub(super) now: Millis,
    pub(super) changed: bool,
    /// The fence of everything that this commit claims.
    pub(super) fence: Option<Fence>,
    /// Rows with numbers from here on are new in this commit.
    pub(super) first_new: u32,
    /// Events with numbers from here on are new in this commit.
    pub(super) first_event: u64,
    /// Positions of rows; none is removed before the end.
    rows: HashMap<SegmentId, usize>,
    finished: Option<HashMap<SegmentId, usize>>,
    claims: HashMap<ClaimId, usize>,
    /// Rows whose runs are out of order.
    unsorted: HashSet<usize>,
    pub(super) unique_by_hash: Option<HashMap<[u8; 16], usize>>,
    unique_by_job: Option<HashMap<JobRef, usize>>,
    /// Bytes of error texts.
    errors: Option<usize>,
    pub(super) closing: bool,
    /// Objects of `seg/` that nobody names from this commit on.
    pub(super) unnamed: Vec<SegmentId>,
}

pub(super) fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// Counts on, and stays at the top: a counter at its ceiling stops no queue.
pub(super) fn count(counter: &mut u64, by: impl Into<u64>) {
    *counter = counter.saturating_add(by.into());
}

/// A number that looks random and follows from these.
pub(super) fn mix(parts: [u64; 3]) -> u64 {
    parts.into_iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, part| {
        let mut word = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    })
}

impl<'a> Work<'a> {
    pub(super) fn new(base: &Ledger, context: &'a Context) -> Self {
        let mut ledger = base.clone();
        let now = ledger.now.max(context.now.as_millis());
        ledger.now = now;
        let mut changed = false;
        if context.settings > base.settings {
            ledger.settings = context.settings;
            ledger.policy = (*context.policy).clone();
            changed = true;
        }
        let rows = ledger.rows.iter().enumerate().map(|(at, row)| (row.name.id, at)).collect();
        let claims = ledger.claims.iter().enumerate().map(|(at, claim)| (claim.id, at)).collect();
        Self {
            first_new: ledger.next_row,
            first_event: ledger.next_event,
            ledger,
            context,
            now,
            changed,
            fence: None,
            rows,
            finished: None,
            claims,
            unsorted: HashSet::new(),
            unique_by_hash: None,
            unique_by_job: None,
            errors: None,
            closing: false,
            unnamed: Vec::new(),
        }
    }

    pub(super) fn carry_out(&mut self, operation: &Op) -> Outcome {
        match operation {
            Op::Absorb { name, facts } => self.absorb(name, facts),
            Op::BuryRaw { name, reason } => self.bury_raw(name, *reason),
            Op::Open { facts } => self.open(facts),
            Op::Claim { claim, want, idle_elsewhere } => self.claim(*claim, *want, *idle_elsewhere),
            Op::Begin(begin) => super::track::begin(self, begin),
            Op::Answer(answer) => self.answer(answer),
            Op::Recover { session } => self.recover(*session),
            Op::Spill(spill) => self.spill(spill),
            Op::Cancel { job, in_inbox } => self.cancel(*job, *in_inbox),
            Op::Unmark { segment } => cancel::unmark(self, *segment),
            Op::Pause { job, paused } => self.pause(*job, *paused),
            Op::OpenOne { index, facts } => verbs::open_one(self, *index, facts),
            Op::RunNow { job } => verbs::run_now(self, *job),
            Op::Purge => verbs::purge(self),
            Op::Discard { name } => verbs::discard(self, name),
            Op::TakeLetters(take) => letters::take(self, take),
            Op::LettersGone { plan } => letters::gone(self, *plan),
            Op::Limit { key, name, most } => limits::limit(self, *key, name, *most),
            Op::Unblock { key } => limits::unblock(self, *key),
            Op::Confirm { segment, since } => self.confirm(*segment, *since),
            Op::Unconfirm { segment } => self.unconfirm(*segment),
            Op::Forget { segments } => self.forget(segments),
            Op::DeadWritten { plan } => self.dead_written(*plan),
            Op::MoveWritten { job, target } => self.move_written(*job, *target),
            Op::RaiseEpoch { candidates } => self.raise_epoch(candidates),
            Op::PutSchedule { schedule, at_start } => slots::put_schedule(self, schedule, *at_start),
            Op::RemoveSchedule { schedule } => slots::remove_schedule(self, *schedule),
            Op::PauseSchedule { schedule, paused, next } => slots::pause_schedule(self, *schedule, *paused, *next),
            Op::Insert(due) => slots::insert(self, due),
            Op::Backfill(wanted) => slots::backfill(self, wanted),
            Op::SpillEvents { segment, epoch, from, through } => {
                outbox::spill_events(self, *segment, *epoch, *from, *through)
            }
            Op::SpillPublished { segment } => outbox::spill_published(self, *segment),
            Op::Published { through } => outbox::published(self, *through),
            Op::Close => self.close_session(),
        }
    }

    pub(super) fn position(&self, segment: SegmentId) -> Option<usize> {
        self.rows.get(&segment).copied()
    }

    pub(super) fn position_of_number(&self, number: u32) -> Option<usize> {
        self.ledger.rows.binary_search_by_key(&number, |row| row.number).ok()
    }

    pub(super) fn claim_position(&self, claim: ClaimId) -> Option<usize> {
        self.claims.get(&claim).copied()
    }

    pub(super) fn note_claim(&mut self, claim: ClaimId) {
        self.claims.insert(claim, self.ledger.claims.len());
    }

    /// Where the finished list has a segment.
    pub(super) fn finished_position(&mut self, segment: SegmentId) -> Option<usize> {
        let list = &self.ledger.finished;
        let index = self
            .finished
            .get_or_insert_with(|| list.iter().enumerate().map(|(at, entry)| (entry.name.id, at)).collect());
        index.get(&segment).copied()
    }

    pub(super) fn finished_moved(&mut self) {
        self.finished = None;
    }

    /// A new row, with nothing in it.
    pub(super) fn add_row(&mut self, name: SegmentName) -> Option<usize> {
        let number = self.ledger.next_row;
        // 4 billion segments: a shard that has had so many refuses more instead of mixing them up.
        self.ledger.next_row = number.checked_add(1)?;
        let at = self.ledger.rows.len();
        self.rows.insert(name.id, at);
        self.ledger.rows.push(Row {
            number,
            name,
            open: 0,
            request: false,
            unread: Vec::new(),
            runs: Vec::new(),
            moved: Vec::new(),
            span: None,
            inline: None,
            tracked: Vec::new(),
        });
        self.changed = true;
        Some(at)
    }

    /// Puts jobs into the runs of their row.
    pub(super) fn wait(&mut self, at: usize, range: Range, traits: Traits) {
        let Some(row) = self.ledger.rows.get_mut(at) else { return };
        let runs = &mut row.runs;
        match runs.last_mut() {
            Some(last) if last.to == range.from && last.traits == traits => last.to = range.to,
            last => {
                if last.is_some_and(|last| last.to > range.from) {
                    self.unsorted.insert(at);
                }
                runs.push(Run { from: range.from, to: range.to, traits });
            }
        }
    }

    fn sort(&mut self, at: usize) {
        if self.unsorted.remove(&at)
            && let Some(row) = self.ledger.rows.get_mut(at)
        {
            row.runs.sort_by_key(|run| run.from);
        }
    }

    pub(super) fn sort_all(&mut self) {
        for at in std::mem::take(&mut self.unsorted) {
            if let Some(row) = self.ledger.rows.get_mut(at) {
                row.runs.sort_by_key(|run| run.from);
            }
        }
    }

    /// The run in which a job waits.
    pub(super) fn waiting(&mut self, at: usize, index: u16) -> Option<&Run> {
        self.sort(at);
        let runs = &self.ledger.rows.get(at)?.runs;
        let place = runs.partition_point(|run| run.to <= index);
        runs.get(place).filter(|run| run.range().contains(index))
    }

    /// Takes a waiting job out of its run.
    pub(super) fn take_waiting(&mut self, at: usize, index: u16) -> Option<Traits> {
        self.sort(at);
        let runs = &mut self.ledger.rows.get_mut(at)?.runs;
        let place = runs.partition_point(|run| run.to <= index);
        let run = runs.get_mut(place).filter(|run| run.range().contains(index))?;
        let traits = run.traits.clone();
        match (run.from == index, run.to == index + 1) {
            (true, true) => drop(runs.remove(place)),
            (true, false) => run.from += 1,
            (false, true) => run.to -= 1,
            (false, false) => {
                let rest = Run { from: index + 1, to: run.to, traits: traits.clone() };
                run.to = index;
                runs.insert(place + 1, rest);
            }
        }
        self.changed = true;
        Some(traits)
    }

    /// Takes a job out of the unread ranges of its row; whether it was there.
    pub(super) fn take_unread(&mut self, at: usize, index: u16) -> bool {
        let Some(row) = self.ledger.rows.get_mut(at) else { return false };
        let Some(place) = row.unread.iter().position(|unread| unread.range.contains(index)) else { return false };
        let mut before = row.unread[place];
        let mut after = before;
        before.range.to = index;
        after.range.from = index + 1;
        let parts = [before, after].into_iter().filter(|part| part.range.len() > 0);
        row.unread.splice(place..=place, parts);
        self.changed = true;
        true
    }

    /// A job that is in no place any more has ended.
    pub(super) fn end(&mut self, at: usize, index: u16, how: End, fence: Option<Fence>) {
        let Some(row) = self.ledger.rows.get_mut(at) else { return };
        row.open = row.open.saturating_sub(1);
        let segment = row.name.id;
        let counters = &mut self.ledger.counters;
        let (counter, event) = match how {
            End::Finished => (&mut counters.finished, Some(Happened::Finished)),
            End::Cancelled => (&mut counters.cancelled, Some(Happened::Cancelled)),
            End::Duplicate => (&mut counters.duplicates, None),
            End::Dead => (&mut counters.dead, None),
            End::Moved => (&mut counters.moved, None),
        };
        *counter = counter.saturating_add(1);
        self.changed = true;
        self.forget_marks(JobRef { segment, index });
        if let Some(event) = event {
            self.event(segment, Range::one(index), event, fence);
        }
    }

    /// A job that will not run here again holds no unique key and needs no cancel.
    pub(super) fn forget_marks(&mut self, job: JobRef) {
        if !self.ledger.cancelling.is_empty() {
            self.ledger.cancelling.retain(|cancelled| *cancelled != job);
        }
        let Some(at) = self.unique_of(job) else { return };
        let now = self.now;
        if let Some(unique) = self.ledger.unique.get_mut(at) {
            unique.ended.get_or_insert(now);
        }
    }

    fn unique_of(&mut self, job: JobRef) -> Option<usize> {
        let list = &self.ledger.unique;
        if list.is_empty() {
            return None;
        }
        let index = self
            .unique_by_job
            .get_or_insert_with(|| list.iter().enumerate().map(|(at, unique)| (unique.job, at)).collect());
        index.get(&job).copied().filter(|at| list.get(*at).is_some_and(|unique| unique.job == job))
    }

    pub(super) fn note_unique(&mut self, job: JobRef, at: usize) {
        if let Some(index) = &mut self.unique_by_job {
            index.insert(job, at);
        }
    }

    /// A job lives on in another place: its key goes with it.
    pub(super) fn rehome(&mut self, from: JobRef, to: JobRef) {
        let Some(at) = self.unique_of(from) else { return };
        let unique = &mut self.ledger.unique[at];
        unique.first.get_or_insert(from);
        unique.job = to;
        self.note_unique(to, at);
    }

    /// A job leaves its row for another segment, and lives on there.
    pub(super) fn moved_away(&mut self, at: usize, index: u16) {
        if let Some(row) = self.ledger.rows.get_mut(at) {
            row.open = row.open.saturating_sub(1);
            insert_range(&mut row.moved, Range::one(index));
        }
        self.changed = true;
    }

    /// An error text as far as there is room for it: jobs are never dropped, texts are.
    pub(super) fn keep_error(&mut self, error: Option<&Arc<str>>) -> Option<Arc<str>> {
        let error = error?;
        let rows = &self.ledger.rows;
        let used = self.errors.get_or_insert_with(|| {
            let all = rows.iter().flat_map(|row| &row.runs).filter_map(|run| run.traits.error.as_ref());
            all.map(|error| error.len()).sum()
        });
        let room = self.context.caps.errors.saturating_sub(*used).min(256);
        let cut = (0..=error.len().min(room)).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
        *used += cut;
        if cut == error.len() { Some(Arc::clone(error)) } else { Some(Arc::from(&error[..cut])).filter(|_| cut > 0) }
    }

    pub(super) fn is_cancelling(&self, job: JobRef) -> bool {
        !self.ledger.cancelling.is_empty() && self.ledger.cancelling.contains(&job)
    }

    pub(super) fn holds(&self, session: SessionId) -> bool {
        self.ledger.claims.iter().any(|claim| claim.session == session)
    }

    fn close_unique(&mut self) {
        let period = millis(self.ledger.policy.unique_period);
        let now = self.now;
        self.ledger.unique.retain(|unique| unique.ended.is_none_or(|ended| now < ended.saturating_add(period)));
    }

    /// Takes out what is over, and signs.
    pub(super) fn close(mut self, outcomes: Vec<Outcome>) -> Applied {
        self.sort_all();
        let (mut finished, mut unnamed) = (Vec::new(), std::mem::take(&mut self.unnamed));
        let (now, list) = (self.now, &mut self.ledger.finished);
        self.ledger.rows.retain(|row| {
            if row.open > 0 {
                return true;
            }
            match row.name.place {
                Place::Inbox | Place::At(_) => {
                    finished.push(row.name);
                    list.push(Finished { name: row.name, since: now, confirmed: None, request: row.request });
                }
                Place::Seg => unnamed.push(row.name.id),
                Place::Inline => {}
            }
            false
        });
        for claim in &mut self.ledger.claims {
            claim.items.retain(|item| !item.open.is_empty());
        }
        self.ledger.claims.retain(|claim| !claim.items.is_empty());
        self.close_unique();
        letters::tidy(&mut self.ledger.letters, now);
        close_duplicates(&mut self.ledger);
        let ttl = millis(self.ledger.policy.session_ttl);
        self.ledger.ended.retain(|ended| now.saturating_sub(ended.at) < ttl);
        self.drop_idle_sessions();
        self.sign();
        Applied { ledger: self.ledger, outcomes, changed: self.changed, finished, unnamed }
    }

    fn sign(&mut self) {
        let owns_until = self.owns_until();
        let Self { ledger, context, .. } = self;
        ledger.write_id = context.write_id;
        ledger.revision = ledger.revision.saturating_add(1);
        ledger.epoch = ledger.epoch.max(context.epoch);
        let Some(ticket) = context.session.as_ref().filter(|_| !self.closing) else { return };
        match ledger.sessions.iter_mut().find(|session| session.id == ticket.id) {
            Some(session) => {
                session.last_write = context.write_id;
                session.until = session.until.max(ticket.until);
                session.owns_until = owns_until.unwrap_or(session.owns_until);
            }
            None => ledger.sessions.push(Session {
                id: ticket.id,
                lease: ticket.lease,
                owner: Arc::clone(&ticket.owner),
                last_write: context.write_id,
                until: ticket.until,
                owns_until: owns_until.unwrap_or(0),
            }),
        }
    }

    /// An estimate of the ledger's length, from above.
    pub(super) fn weight(&self) -> usize {
        let run = |traits: &Traits| 32 + traits.error.as_ref().map_or(0, |error| error.len() + 2);
        let row = |row: &Row| {
            64 + row.unread.len() * 24
                + row.runs.iter().map(|one| run(&one.traits)).sum::<usize>()
                + row.moved.len() * 6
                + row.inline.as_ref().map_or(0, |inline| inline.len() + 4)
                + row.tracked.len() * 8
                + row.span.map_or(0, |_| 36)
        };
        let schedule = |one: &Schedule| 96 + one.name.len() + one.spec.len() + one.job.len() + one.missed.len() * 14;
        let ledger = &self.ledger;
        let items = ledger.claims.iter().flat_map(|claim| &claim.items);
        512 + ledger.rows.iter().map(row).sum::<usize>()
            + ledger.claims.len() * 64
            + items.map(|item| 8 + run(&item.run.traits) + usize::from(item.run.len() / 8)).sum::<usize>()
            + ledger.sessions.iter().map(|session| 72 + session.owner.len()).sum::<usize>()
            + ledger.finished.len() * 48
            + ledger.dead.iter().map(|plan| 48 + plan.jobs.len() * 32).sum::<usize>()
            + ledger.moves.len() * 128
            + ledger.cancelling.len() * 24
            + ledger.unique.len() * 56
            + ledger.duplicates.len() * 48
            + ledger.limits.iter().map(|limit| 16 + limit.name.len()).sum::<usize>()
            + ledger.schedules.iter().map(schedule).sum::<usize>()
            + ledger.outbox.len() * 64
            + ledger.outbox_spills.len() * 18
            + ledger.letters.iter().map(|letters| 40 + letters.taken.len() * 6).sum::<usize>()
    }

    /// How many jobs wait that have been claimed before, in runs.
    pub(super) fn retries(&self) -> usize {
        self.ledger.rows.iter().flat_map(|row| &row.runs).filter(|run| run.traits.why != Why::New).count()
    }
}

/// What a job was a duplicate of is told while its segment is known.
fn close_duplicates(ledger: &mut Ledger) {
    let Ledger { duplicates, rows, finished, .. } = ledger;
    if !duplicates.is_empty() {
        let finished = finished.iter().map(|entry| entry.name.id);
        let known: HashSet<SegmentId> = rows.iter().map(|row| row.name.id).chain(finished).collect();
        duplicates.retain(|one| known.contains(&one.job.segment));
    }
}
