//! A store with one ledger, processes that die, pause, lose their answers and come back, and an auditor who remembers what
//! every job was told.

use super::*;
use crate::job::{
    layout::{Layout, Listing},
    ledger::{Backoff, Shape, Why, decode, encode},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

/// A job in hand, or one that a process believes to have in hand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub(super) claim: ClaimId,
    pub(super) job: JobRef,
    pub(super) id: JobId,
}

/// A commit whose answer its process does not know.
struct Doubt {
    attempt: Attempt,
    operations: Vec<Op>,
    /// None if it never landed.
    applied: Option<Applied>,
    has_row: bool,
}

#[derive(Default)]
pub(super) struct Process {
    pub(super) session: u8,
    pub(super) has_row: bool,
    /// The settings that it goes by.
    settings: u64,
    pub(super) in_hand: Vec<Handle>,
    /// From sessions that it has lost.
    pub(super) old: Vec<Handle>,
    listing: Option<(Millis, Vec<SegmentName>)>,
    deletes: Vec<(SegmentName, Millis)>,
    confirms: Vec<(SegmentId, Millis)>,
    prepared: Option<Arc<Spill>>,
    homes: Option<(Handle, Home)>,
    orphans: Vec<SegmentId>,
    doubt: Option<Doubt>,
    /// A ledger that it saw a while ago.
    seen: Option<Ledger>,
}

impl Process {
    /// It runs the job no more, and waits to hear whether its answer has landed.
    fn has_answered(&self, handle: &Handle) -> bool {
        let operations = self.doubt.iter().flat_map(|doubt| &doubt.operations);
        operations.into_iter().any(|operation| {
            matches!(operation, Op::Answer(answer) if answer.claim == handle.claim && answer.job == handle.job)
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Finished,
    Cancelled,
    Dead,
    Moved,
    Duplicate,
}

pub(super) struct World {
    pub(super) ledger: Ledger,
    pub(super) now: Millis,
    pub(super) caps: Caps,
    settings: u64,
    policy: Arc<Policy>,
    layout: Layout,
    numbers: u32,
    sessions: u8,
    ended: HashSet<u8>,
    pub(super) processes: Vec<Process>,
    /// Objects of the inbox, with when they were first enqueued.
    inbox: BTreeMap<SegmentName, Millis>,
    sent: Vec<(SegmentName, Millis)>,
    seg: BTreeSet<SegmentId>,
    tables: HashMap<SegmentId, (Arc<Facts>, Vec<JobId>)>,
    // What the auditor knows.
    pub(super) enqueued: HashSet<JobId>,
    pub(super) over: HashMap<JobId, Over>,
    fences: HashMap<JobId, Fence>,
    pub(super) commits: u64,
    pub(super) largest: usize,
    /// How often each outcome was met.
    pub(super) met: BTreeMap<String, u64>,
}

impl World {
    pub(super) fn new(processes: u8) -> Self {
        let policy = test_policy(4);
        let mut world = Self {
            ledger: Ledger::new("q", 0, [0; 16].into(), 0, policy.clone()),
            now: NOW,
            caps: Caps {
                retries: 2,
                rows: 8,
                finished: 14,
                dead: 3,
                moves: 2,
                unique: 4,
                runs: 24,
                cancels: 3,
                sessions: 4,
                ..Caps::default()
            },
            settings: 0,
            policy: Arc::new(policy),
            layout: Layout::new("default", "q").unwrap(),
            numbers: 0,
            sessions: 0,
            ended: HashSet::new(),
            processes: Vec::new(),
            inbox: BTreeMap::new(),
            sent: Vec::new(),
            seg: BTreeSet::new(),
            tables: HashMap::new(),
            enqueued: HashSet::new(),
            over: HashMap::new(),
            fences: HashMap::new(),
            commits: 0,
            largest: 0,
            met: BTreeMap::new(),
        };
        for _ in 0..processes {
            let session = world.new_session();
            world.processes.push(Process { session, ..Process::default() });
        }
        world
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn new_session(&mut self) -> u8 {
        self.sessions = self.sessions.wrapping_add(1).max(1);
        self.sessions
    }

    fn context(&mut self, process: usize, with_session: bool) -> Context {
        let write = self.number();
        let mut id = [0x55; 16];
        id[..4].copy_from_slice(&write.to_be_bytes());
        let known = &self.processes[process];
        let ticket = Ticket {
            id: session(known.session),
            lease: [known.session; 16],
            owner: "w".into(),
            until: self.now + 30_000,
            has_row: known.has_row,
        };
        Context {
            now: Timestamp::from_millis(self.now),
            write_id: id.into(),
            session: with_session.then_some(ticket),
            settings: known.settings,
            policy: Arc::clone(&self.policy),
            epoch: 0,
            caps: self.caps,
        }
    }

    /// One commit of a process. `fate`: whether it lands at once, after a conflict, or in doubt.
    pub(super) fn commit(
        &mut self,
        process: usize,
        operations: Vec<Op>,
        with_session: bool,
        fate: u32,
    ) -> Vec<Outcome> {
        if self.processes[process].doubt.is_some() {
            return Vec::new();
        }
        let mut context = self.context(process, with_session);
        if fate % 4 == 1
            && let Some(old) = self.processes[process].seen.take()
        {
            // A conflict: what was made on an older base comes to nothing, and is made again on what is there now.
            if let Ok(lost) = apply(&old, &operations, &context) {
                assert_eq!(lost.ledger.check(), Ok(()), "{operations:?}");
            }
            context = self.context(process, with_session);
        }
        let applied = match apply(&self.ledger, &operations, &context) {
            Ok(applied) => applied,
            Err(Refused::OlderSettings { .. }) => {
                self.processes[process].settings = self.settings;
                return Vec::new();
            }
            Err(Refused::SessionEnded) => {
                assert!(self.ended.contains(&self.processes[process].session), "a living session was refused");
                return Vec::new();
            }
            Err(Refused::SessionsFull) => return Vec::new(),
        };
        if fate % 7 == 3 && with_session {
            let lands = fate % 2 == 0;
            let attempt = Attempt { write_id: context.write_id, base: self.ledger.revision };
            if lands {
                self.land(&applied);
            }
            let has_row = self.processes[process].has_row;
            let applied = lands.then_some(applied);
            self.processes[process].doubt = Some(Doubt { attempt, operations, applied, has_row });
            return Vec::new();
        }
        if !applied.changed {
            assert_eq!(same_but_time(&applied.ledger), same_but_time(&self.ledger), "{operations:?}");
        }
        self.land(&applied);
        let outcomes = applied.outcomes.clone();
        self.told(process, &operations, applied, with_session);
        outcomes
    }

    fn land(&mut self, applied: &Applied) {
        self.commits += 1;
        assert_eq!(applied.ledger.check(), Ok(()));
        assert!(applied.ledger.fence_last >= self.ledger.fence_last, "fences fall");
        assert!(applied.ledger.now >= self.ledger.now, "time falls");
        let body = encode(&applied.ledger);
        self.largest = self.largest.max(body.len());
        if self.commits.is_multiple_of(8) {
            assert_eq!(decode(&body).unwrap(), applied.ledger);
        }
        self.ledger = applied.ledger.clone();
        for outcome in &applied.outcomes {
            self.note_claimed(outcome);
            let text = format!("{outcome:?}");
            let name: String = text.chars().take_while(|letter| letter.is_alphabetic() || *letter == '(').collect();
            *self.met.entry(name).or_default() += 1;
        }
        for row in &self.ledger.rows {
            match row.name.place {
                Place::Seg => assert!(self.seg.contains(&row.name.id), "a named object of seg/ is gone"),
                Place::Inline => {}
                _ => assert!(self.inbox.contains_key(&row.name), "a live segment is gone"),
            }
        }
    }

    fn id_of(&self, job: JobRef) -> JobId {
        self.tables[&job.segment].1[usize::from(job.index)]
    }

    /// What is claimed in a commit that landed runs with a higher fence than ever before, and is not over.
    fn note_claimed(&mut self, outcome: &Outcome) {
        let Outcome::Claimed { fence, jobs, .. } = outcome else { return };
        for taken in jobs {
            for index in taken.range.from..taken.range.to {
                let id = self.id_of(JobRef { segment: taken.name.id, index });
                assert!(!self.over.contains_key(&id), "{id} is over ({:?}) and claimed again", self.over[&id]);
                let last = self.fences.insert(id, *fence);
                assert!(Some(*fence) > last, "the fence of {id} does not rise");
                for process in &self.processes {
                    let runs = process.in_hand.iter().any(|handle| handle.id == id && !process.has_answered(handle));
                    assert!(!runs || self.ended.contains(&process.session), "{id} runs in a living process");
                }
            }
        }
    }

    fn end(&mut self, id: JobId, how: Over) {
        let before = self.over.insert(id, how);
        assert_eq!(before, None, "{id} ends twice");
    }

    /// A process learns that its commit has landed.
    fn told(&mut self, process: usize, operations: &[Op], applied: Applied, with_session: bool) {
        for name in &applied.finished {
            if let Some(since) = applied.ledger.unconfirmed_since(name.id) {
                self.processes[process].deletes.push((*name, since));
            }
        }
        self.processes[process].orphans.extend(&applied.unnamed);
        if with_session {
            let closed = operations
                .iter()
                .zip(&applied.outcomes)
                .any(|(operation, outcome)| matches!((operation, outcome), (Op::Close, Outcome::Done)));
            self.processes[process].has_row = !closed;
            if closed {
                // A session that closed its row begins anew when it works again.
                self.ended.insert(self.processes[process].session);
                self.processes[process].session = self.new_session();
            }
        }
        for (operation, outcome) in operations.iter().zip(applied.outcomes) {
            self.told_one(process, operation, outcome);
        }
    }

    fn told_one(&mut self, process: usize, operation: &Op, outcome: Outcome) {
        match (operation, outcome) {
            (Op::Absorb { name, .. }, Outcome::Absorbed { .. }) => self.note_dropped(name.id),
            (_, Outcome::Claimed { claim, jobs, .. }) => {
                for taken in jobs {
                    for index in taken.range.from..taken.range.to {
                        let job = JobRef { segment: taken.name.id, index };
                        let handle = Handle { claim, job, id: self.id_of(job) };
                        self.processes[process].in_hand.push(handle);
                    }
                }
            }
            (Op::Answer(answer), outcome) => self.answered(process, answer, outcome),
            (Op::Confirm { segment, .. }, _) => {
                self.processes[process].confirms.retain(|(known, _)| known != segment);
            }
            (Op::Spill(spill), outcome) => {
                if !matches!(outcome, Outcome::Spilled { .. }) {
                    self.processes[process].orphans.push(spill.segment);
                }
            }
            (_, Outcome::Orphans(orphans)) => self.processes[process].orphans.extend(orphans),
            (_, Outcome::Delete(names)) => {
                for name in names {
                    if let Some(since) = self.ledger.unconfirmed_since(name.id) {
                        self.processes[process].deletes.push((name, since));
                    }
                }
            }
            _ => {}
        }
    }

    fn note_dropped(&mut self, segment: SegmentId) {
        // Whoever absorbs notes what ended at once; `settle` finds it too.
        let _ = segment;
    }

    fn answered(&mut self, process: usize, answer: &Answer, outcome: Outcome) {
        let mine = |handle: &Handle| handle.claim == answer.claim && handle.job == answer.job;
        let known = &mut self.processes[process];
        let live = known.in_hand.iter().any(mine) && !self.ended.contains(&known.session);
        match outcome {
            Outcome::WriteAgain | Outcome::Full(_) => return,
            Outcome::StaleAttempt(_) | Outcome::AnsweredBefore => {
                assert!(!live, "a living attempt was told {outcome:?}");
            }
            _ => {}
        }
        known.in_hand.retain(|handle| !mine(handle));
        known.old.retain(|handle| !mine(handle));
    }

    /// The auditor looks at where every job is, and notes what has ended since. Nothing may come back from there.
    pub(super) fn settle(&mut self) {
        let mut here = HashSet::new();
        for row in &self.ledger.rows {
            for index in 0..row.name.jobs {
                let job = JobRef { segment: row.name.id, index };
                if !matches!(self.ledger.find(job), Found::Ended | Found::Elsewhere(_)) {
                    assert!(here.insert(self.id_of(job)), "one job in two places");
                }
            }
        }
        let mut unread = Vec::new();
        for name in self.inbox.keys() {
            let known = self.ledger.row_of(name.id).is_some();
            let finished = self.ledger.finished.iter().any(|entry| entry.name.id == name.id);
            if !known && !finished {
                unread.extend(self.tables[&name.id].1.iter().copied());
            }
        }
        for id in unread {
            assert!(here.insert(id), "one job in two places, one the inbox");
        }
        for id in &here {
            assert!(!self.over.contains_key(id), "{id} came back");
        }
        let gone: Vec<JobId> =
            self.enqueued.iter().filter(|id| !here.contains(*id) && !self.over.contains_key(*id)).copied().collect();
        for id in gone {
            self.end(id, Over::Finished);
        }
        let counters = &self.ledger.counters;
        let ended = counters.finished + counters.dead + counters.cancelled + counters.duplicates + counters.moved;
        assert_eq!(u64::try_from(self.over.len()).unwrap(), ended, "as many have ended as the ledger says");
    }

    pub(super) fn enqueue(&mut self, arg: u32) {
        let number = self.number();
        let count = 1 + (arg % 5) as u16;
        let place = if arg & 0x100 == 0 { Place::Inbox } else { Place::At(later(i64::from(arg % 3))) };
        let class = if arg & 0x200 == 0 { Class::Normal } else { Class::Urgent };
        let segment = SegmentId::of_request("q", &number.to_string(), 0, 0, class);
        let mut runs: Vec<Run> = Vec::new();
        for index in 0..count {
            let group = index / (1 + (arg >> 10 & 3) as u16);
            let traits = Traits {
                due: self.now + if arg & 0x100 == 0 { 0 } else { i64::from(group) * 70_000 },
                tenant: arg >> 12 & 1 * u32::from(group % 2),
                key: u64::from(arg >> 13 & 1) * u64::from(1 + group % 2),
                ..Traits::default()
            };
            match runs.last_mut() {
                Some(run) if run.traits == traits => run.to += 1,
                _ => runs.push(Run { from: index, to: index + 1, traits }),
            }
        }
        let unique = (0..count).filter(|index| arg >> 14 & 1 == 1 && index % 2 == 0);
        let facts = Facts {
            segment,
            jobs: count,
            runs,
            unique: unique.map(|index| (index, [(arg >> 16 & 1) as u8 + index as u8; 16])).collect(),
            fence: None,
            request: arg & 0x8000 != 0,
            span: None,
        };
        let ids: Vec<JobId> = (0..count).map(|index| segment.job(index)).collect();
        self.enqueued.extend(&ids);
        self.tables.insert(segment, (Arc::new(facts), ids));
        let name = SegmentName { id: segment, place, jobs: count };
        self.inbox.insert(name, self.now);
        self.sent.push((name, self.now));
    }

    /// The producer's create lands once more: it sends one name for a minute, a request for as long as its window.
    pub(super) fn duplicate(&mut self, arg: u32) {
        if self.sent.is_empty() {
            return;
        }
        let mut chosen = arg as usize % self.sent.len();
        // Those that were deleted are the ones that matter.
        if arg & 0x10000 == 0
            && let Some(entry) = self.ledger.finished.iter().rev().find(|entry| entry.confirmed.is_some())
        {
            chosen = self.sent.iter().position(|(name, _)| *name == entry.name).unwrap_or(chosen);
        }
        let (name, sent) = self.sent[chosen];
        let request = self.tables[&name.id].0.request;
        let entry = self.ledger.finished.iter().find(|entry| entry.name.id == name.id);
        let in_window = request
            && entry.is_some_and(|entry| entry.confirmed.is_none_or(|confirmed| self.now < confirmed + 600_000));
        if self.now - sent <= 60_000 || in_window {
            self.inbox.insert(name, sent);
        }
    }

    pub(super) fn list(&mut self, process: usize) {
        self.processes[process].listing = Some((self.now, self.inbox.keys().copied().collect()));
        self.processes[process].seen = Some(self.ledger.clone());
    }

    pub(super) fn absorb(&mut self, process: usize, arg: u32) {
        let Some((at, names)) = &self.processes[process].listing else { return };
        if self.now - at > 30_000 || names.is_empty() {
            self.processes[process].listing = None;
            return;
        }
        let mut operations = Vec::new();
        for name in names.iter().skip(arg as usize % names.len()).take(3) {
            // One that is not there any more is passed over; damage is seen by two reads.
            if !self.inbox.contains_key(name)
                || matches!(name.place, Place::At(minute) if minute.start().as_millis() > self.now)
            {
                continue;
            }
            let facts = Arc::clone(&self.tables[&name.id].0);
            operations.push(if arg & 0xf00 == 0x100 && facts.unique.is_empty() && !facts.request {
                Op::BuryRaw { name: *name, reason: Reason::Damaged }
            } else {
                Op::Absorb { name: *name, facts }
            });
        }
        let names: Vec<SegmentId> = names.iter().map(|name| name.id).collect();
        let outcomes = self.commit(process, operations.clone(), arg & 0x1000 == 0, arg >> 16);
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if let (Op::Absorb { name, .. }, Outcome::Known { confirmed: true }) = (operation, outcome)
                && names.contains(&name.id)
            {
                self.commit(process, vec![Op::Unconfirm { segment: name.id }], false, 0);
            }
        }
    }

    pub(super) fn open(&mut self, process: usize) {
        let segments = self.ledger.to_open(self.now, &self.caps);
        let open = |segment: &SegmentId| Op::Open { facts: Arc::clone(&self.tables[segment].0) };
        let operations = segments.iter().map(open).collect();
        self.commit(process, operations, false, 0);
    }

    pub(super) fn claim(&mut self, process: usize, arg: u32) {
        let claim = claim_id(u64::from(self.number()));
        let operation = Op::Claim { claim, want: arg % 7, idle_elsewhere: arg & 0x100 == 0 };
        self.commit(process, vec![operation], true, arg >> 16);
    }

    /// Answers for up to three jobs, in one commit.
    pub(super) fn answer(&mut self, process: usize, arg: u32) {
        let known = &self.processes[process];
        let old = arg & 0x800 != 0 && !known.old.is_empty();
        let handles = if old { &known.old } else { &known.in_hand };
        if handles.is_empty() {
            return;
        }
        let mut operations = Vec::new();
        for step in 0..1 + (arg >> 8 & 3) {
            let handle = handles[(arg + step) as usize % handles.len()];
            let into = known.homes.filter(|(other, _)| other.claim == handle.claim && other.job == handle.job);
            let into = into.map(|(_, home)| home);
            let what = match (arg >> 4) % 8 {
                0 | 1 => Answered::Finished,
                2 | 3 => failed(),
                4 => Answered::Snoozed { until: Timestamp::from_millis(self.now + i64::from(arg % 200) * 1000) },
                5 => Answered::Released { ran: arg & 0x200 == 0 },
                6 => Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None },
                _ => match arg & 0x400 {
                    0 => Answered::Cancelled,
                    _ => Answered::Moved {
                        queue: "other".into(),
                        target: SegmentName {
                            id: SegmentId::of_move(handle.id, 0, Class::Normal),
                            place: Place::Inbox,
                            jobs: 1,
                        },
                        priority: 0,
                        due: Timestamp::from_millis(self.now),
                    },
                },
            };
            operations.push(Op::Answer(Answer { claim: handle.claim, job: handle.job, what, into }));
        }
        self.processes[process].homes = None;
        self.commit(process, operations, true, arg >> 16);
    }

    /// Writes an object for a job whose parts have changed; the commit comes later.
    pub(super) fn rewrite(&mut self, process: usize, arg: u32) {
        let known = &self.processes[process].in_hand;
        if known.is_empty() {
            return;
        }
        let handle = known[arg as usize % known.len()];
        let Some(run) = self.ledger.claims.iter().flat_map(|claim| &claim.items).find(|item| {
            self.ledger.row(item.row).is_some_and(|row| row.name.id == handle.job.segment)
                && item.run.range().contains(handle.job.index)
        }) else {
            return;
        };
        let traits = Traits { why: Why::New, claim: None, ..run.run.traits.clone() };
        let number = self.number();
        let segment = SegmentId::of_request("home", &number.to_string(), 0, 0, Class::Normal);
        self.put_seg(segment, vec![Run { from: 0, to: 1, traits }], vec![handle.id]);
        let home = Home { segment, jobs: 1, index: 0, epoch: self.ledger.gc_epoch };
        self.processes[process].homes = Some((handle, home));
    }

    fn put_seg(&mut self, segment: SegmentId, runs: Vec<Run>, ids: Vec<JobId>) {
        let jobs = u16::try_from(ids.len()).unwrap();
        let span = ids.iter().min().copied().zip(ids.iter().max().copied());
        let facts =
            Facts { segment, jobs, runs, unique: Vec::new(), fence: self.ledger.fence_last, request: false, span };
        self.tables.insert(segment, (Arc::new(facts), ids));
        self.seg.insert(segment);
    }

    /// Writes the object of a spill; the commit comes later.
    pub(super) fn prepare_spill(&mut self, process: usize) {
        let mut jobs = self.ledger.to_spill(self.now, &self.caps);
        if jobs.is_empty() || self.processes[process].prepared.is_some() {
            return;
        }
        jobs.sort_by_key(|job| (job.priority, job.due));
        let number = self.number();
        let segment = SegmentId::of_request("spill", &number.to_string(), 0, 0, Class::Normal);
        let ids: Vec<JobId> = jobs.iter().map(|job| self.id_of(job.job)).collect();
        let key = |job: JobRef| {
            let row = self.ledger.row_of(job.segment).unwrap();
            row.runs.iter().find(|run| run.range().contains(job.index)).unwrap().traits.clone()
        };
        let runs = (0u16..).zip(&jobs).map(|(index, job)| {
            let traits = Traits { why: Why::New, claim: None, error: None, ..key(job.job) };
            Run { from: index, to: index + 1, traits }
        });
        let runs = runs.collect();
        let moving = (0u16..).zip(&jobs);
        let moving = moving.map(|(index, job)| Moving { job: job.job, attempts: job.attempts, due: job.due, index });
        let spill = Spill {
            segment,
            epoch: self.ledger.gc_epoch,
            jobs: u16::try_from(jobs.len()).unwrap(),
            moving: moving.collect(),
            span: (*ids.iter().min().unwrap(), *ids.iter().max().unwrap()),
        };
        self.put_seg(segment, runs, ids);
        self.processes[process].prepared = Some(Arc::new(spill));
    }

    pub(super) fn commit_spill(&mut self, process: usize, arg: u32) {
        if let Some(spill) = self.processes[process].prepared.take() {
            self.commit(process, vec![Op::Spill(spill)], true, arg >> 16);
        }
    }

    /// A session ends; its process may not know, and keeps what it has in hand. Then it makes a new one.
    pub(super) fn die(&mut self, process: usize) {
        let session = self.new_session();
        let known = &mut self.processes[process];
        self.ended.insert(known.session);
        known.old.append(&mut known.in_hand);
        let excess = known.old.len().saturating_sub(12);
        known.old.drain(..excess);
        known.session = session;
        known.has_row = false;
        known.prepared = None;
        known.homes = None;
        // What was in doubt stays unknown for ever.
        known.doubt = None;
    }

    pub(super) fn recover(&mut self, process: usize, arg: u32) {
        let ended = |known: &&crate::job::ledger::Session| self.ended.contains(&known.id.0[0]);
        let sessions: Vec<SessionId> = self.ledger.sessions.iter().filter(ended).map(|known| known.id).collect();
        let operations = sessions.into_iter().map(|session| Op::Recover { session }).collect();
        self.commit(process, operations, arg & 1 == 0, arg >> 16);
    }

    /// A process looks at what has become of a commit whose answer it never got.
    pub(super) fn find_out(&mut self, process: usize) {
        let Some(doubt) = self.processes[process].doubt.take() else { return };
        let own = session(self.processes[process].session);
        match verdict(&self.ledger, Some(own), &[doubt.attempt], doubt.has_row, true) {
            Verdict::Landed(_) => {
                let applied = doubt.applied.expect("only what landed is found");
                self.told(process, &doubt.operations, applied, true);
            }
            Verdict::NotLanded => {
                assert!(doubt.applied.is_none(), "a commit that landed was taken for lost");
                self.commit(process, doubt.operations, true, 0);
            }
            Verdict::Pending => {
                assert!(doubt.applied.is_none());
                self.commit(process, doubt.operations, true, 0);
            }
            // Its own session has closed its row by this very commit.
            Verdict::Unknowable => {
                assert!(doubt.operations.iter().any(|operation| matches!(operation, Op::Close)));
                self.die(process);
            }
        }
    }

    /// Gives back what it does not know; only when none of its commits is in doubt.
    pub(super) fn give_back(&mut self, process: usize) {
        if self.processes[process].doubt.is_some() {
            return;
        }
        let known = &self.processes[process];
        let hand: HashSet<(ClaimId, JobRef)> = known.in_hand.iter().map(|handle| (handle.claim, handle.job)).collect();
        let own = session(known.session);
        let operations = self.ledger.to_give_back(own, |claim, job| hand.contains(&(claim, job)));
        assert!(operations.is_empty(), "a process that was told everything knows everything");
    }

    /// A delete: `fate` 0 is answered, 1 lands without an answer, 2 is lost.
    pub(super) fn delete(&mut self, process: usize, fate: u32) {
        let late = self.ledger.to_delete(self.now);
        let Some((name, since)) = self.processes[process].deletes.pop().or(late.first().copied()) else { return };
        if self.ledger.unconfirmed_since(name.id) != Some(since) {
            return;
        }
        assert!(self.ledger.row_of(name.id).is_none(), "a live segment would be deleted");
        if fate != 2 {
            self.inbox.remove(&name);
        }
        if fate == 0 || fate == 3 {
            self.processes[process].confirms.push((name.id, since));
        }
    }

    pub(super) fn confirm(&mut self, process: usize, arg: u32) {
        let confirms = self.processes[process].confirms.clone();
        let operations = confirms.into_iter().map(|(segment, since)| Op::Confirm { segment, since }).collect();
        self.commit(process, operations, false, arg >> 16);
    }

    pub(super) fn forget(&mut self, process: usize) {
        let shown: HashSet<String> = self.inbox.keys().filter_map(|name| self.layout.segment(name)).collect();
        let listing = Listing { prefix: "default/queue/q/".into(), from_start: true, cut_off_after: None, shown };
        let segments = self.ledger.to_forget(&self.layout, &listing, self.now);
        self.commit(process, vec![Op::Forget { segments }], false, 0);
    }

    /// Lists `seg/` and raises the epoch; the delete comes later.
    pub(super) fn collect(&mut self, process: usize) {
        let candidates = self.seg.iter().copied().collect();
        self.commit(process, vec![Op::RaiseEpoch { candidates }], false, 0);
    }

    pub(super) fn delete_orphans(&mut self, process: usize) {
        for orphan in std::mem::take(&mut self.processes[process].orphans) {
            assert!(self.ledger.row_of(orphan).is_none(), "an orphan is named");
            self.seg.remove(&orphan);
        }
    }

    pub(super) fn carry_out_plans(&mut self, process: usize, arg: u32) {
        let dead = self.ledger.dead.iter().map(|plan| {
            // Its payload must be there: the rows are live.
            assert!(plan.jobs.iter().all(|job| self.ledger.row(job.row).is_some()), "a payload is gone");
            Op::DeadWritten { plan: plan.id }
        });
        let moves = self.ledger.moves.iter().map(|plan| {
            let segment = self.ledger.row(plan.row).expect("a payload is gone").name.id;
            Op::MoveWritten { job: JobRef { segment, index: plan.index }, target: plan.target.id }
        });
        let operations = dead.chain(moves).collect();
        self.commit(process, operations, false, arg >> 16);
    }

    /// Cancels or pauses a job wherever it is.
    pub(super) fn touch(&mut self, process: usize, arg: u32) {
        let mut all: Vec<JobId> = self.enqueued.iter().copied().collect();
        all.sort_unstable();
        if all.is_empty() {
            return;
        }
        let id = all[arg as usize % all.len()];
        let mut job = JobRef::from(id);
        if let Found::Elsewhere(segments) = self.ledger.find(job) {
            let in_it = |segment: &&SegmentId| self.tables[*segment].1.contains(&id);
            let Some(segment) = segments.iter().find(in_it) else { return };
            let index = self.tables[segment].1.iter().position(|known| *known == id).unwrap();
            job = JobRef { segment: *segment, index: u16::try_from(index).unwrap() };
        }
        let in_inbox = self.inbox.keys().any(|name| name.id == job.segment);
        let operation = match arg >> 8 & 3 {
            0 => Op::Pause { job, paused: true },
            1 => Op::Pause { job, paused: false },
            _ => Op::Cancel { job, in_inbox },
        };
        self.commit(process, vec![operation], false, arg >> 16);
    }

    pub(super) fn change_settings(&mut self, process: usize, arg: u32) {
        self.settings += 1;
        self.policy = Arc::new(Policy {
            key_limit: (arg & 1 == 1).then_some(1),
            paused: arg & 14 == 14,
            paused_until: (arg & 256 == 0).then_some(self.now + 60_000),
            skip_waiting: arg & 16 == 16,
            rate_milli: (arg & 96 == 96).then_some(2000),
            unique_period: Duration::from_secs(u64::from(arg >> 7 & 1) * 30),
            ..test_policy(2 + arg % 4)
        });
        self.processes[process].settings = self.settings;
        self.commit(process, Vec::new(), false, 0);
    }

    pub(super) fn close(&mut self, process: usize, arg: u32) {
        if self.processes[process].has_row {
            self.commit(process, vec![Op::Close], true, arg >> 16);
        }
    }

    /// Everything goes well from here on: every job must end.
    pub(super) fn drain(&mut self) {
        let settings = self.settings + 1;
        self.settings = settings;
        self.policy = Arc::new(test_policy(3));
        for process in 0..self.processes.len() {
            self.die(process);
            self.processes[process].settings = settings;
        }
        for round in 0..400 {
            if self.enqueued.len() == self.over.len() && self.ledger.finished.is_empty() && self.seg.is_empty() {
                return;
            }
            self.now += 20_000;
            self.recover(0, 0);
            self.list(0);
            let count = self.inbox.len().max(1);
            for skip in (0..count).step_by(3) {
                self.absorb(0, u32::try_from(skip).unwrap());
            }
            self.open(0);
            self.resume_all();
            self.claim(0, 6);
            for handle in self.processes[0].in_hand.clone() {
                let what = Answered::Finished;
                self.commit(
                    0,
                    vec![Op::Answer(Answer { claim: handle.claim, job: handle.job, what, into: None })],
                    true,
                    0,
                );
            }
            self.carry_out_plans(0, 0);
            while !self.ledger.to_delete(self.now).is_empty() || !self.processes[0].deletes.is_empty() {
                let before = (self.processes[0].deletes.len(), self.processes[0].confirms.len());
                self.delete(0, 0);
                self.confirm(0, 0);
                if before == (self.processes[0].deletes.len(), self.processes[0].confirms.len()) {
                    break;
                }
            }
            self.forget(0);
            if round % 5 == 0 {
                self.collect(0);
            }
            self.delete_orphans(0);
            self.settle();
        }
        let left = self.enqueued.len() - self.over.len();
        panic!("{left} jobs never end; ledger {:#?}, inbox {:?}", self.ledger, self.inbox);
    }

    fn resume_all(&mut self) {
        let mut paused = Vec::new();
        for row in &self.ledger.rows {
            for run in row.runs.iter().filter(|run| run.traits.paused) {
                let job = |index| JobRef { segment: row.name.id, index };
                paused.extend((run.from..run.to).map(job));
            }
        }
        let operations = paused.into_iter().map(|job| Op::Pause { job, paused: false }).collect();
        self.commit(0, operations, false, 0);
    }
}

/// Retries that wait long enough to be spilled.
fn test_policy(max_attempts: u32) -> Policy {
    let backoff = Backoff {
        shape: Shape::Exponential,
        base: Duration::from_secs(45),
        power: 2,
        cap: Duration::from_secs(300),
        jitter: 10,
    };
    Policy { max_attempts, backoff, ..Policy::default() }
}

/// What must be equal when nothing has changed.
fn same_but_time(ledger: &Ledger) -> Ledger {
    Ledger {
        now: 0,
        revision: 0,
        write_id: [0; 16].into(),
        sessions: Vec::new(),
        ended: Vec::new(),
        unique: Vec::new(),
        tokens: Default::default(),
        ..ledger.clone()
    }
}
