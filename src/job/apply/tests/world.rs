//! A store with one ledger, processes that die, pause, lose their answers and come back, and an auditor who remembers what
//! every job was told.

mod steps;

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
    at: Millis,
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
    /// What has ended.
    pub(super) over: HashSet<JobId>,
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
            over: HashSet::new(),
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
            let lands = fate.is_multiple_of(2);
            let attempt = Attempt { write_id: context.write_id, base: self.ledger.revision };
            if lands {
                self.land(&applied);
            }
            // One that takes its row out cannot tell by its absence that it has not landed.
            let closes = operations.iter().any(|operation| matches!(operation, Op::Close));
            let has_row = self.processes[process].has_row || closes;
            let applied = lands.then_some(applied);
            self.processes[process].doubt = Some(Doubt { attempt, operations, applied, has_row, at: self.now });
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
                assert!(!self.over.contains(&id), "{id} is over and claimed again");
                let last = self.fences.insert(id, *fence);
                assert!(Some(*fence) > last, "the fence of {id} does not rise");
                for process in &self.processes {
                    let runs = process.in_hand.iter().any(|handle| handle.id == id && !process.has_answered(handle));
                    assert!(!runs || self.ended.contains(&process.session), "{id} runs in a living process");
                }
            }
        }
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
            // The row of a session that has nothing in hand may go at any time.
            let own = session(self.processes[process].session);
            let holds = applied.ledger.claims.iter().any(|claim| claim.session == own);
            self.processes[process].has_row = holds && !closed;
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
            (Op::Spill(_), Outcome::Spilled { .. }) => {}
            (Op::Spill(spill), _) => self.processes[process].orphans.push(spill.segment),
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
            assert!(!self.over.contains(id), "{id} came back");
        }
        self.over.extend(self.enqueued.iter().filter(|id| !here.contains(*id)));
        let counters = &self.ledger.counters;
        let ended = counters.finished + counters.dead + counters.cancelled + counters.duplicates + counters.moved;
        assert_eq!(u64::try_from(self.over.len()).unwrap(), ended, "as many have ended as the ledger says");
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
