//! What must hold of the transition: tables of cases by theme, and random sequences of everything at once.

mod absorbing;
mod answering;
mod bounded;
mod claiming;
mod deleting;
mod doubting;
mod operating;
mod owning;
mod random;
mod slots;
mod speed;
mod stalling;
mod tracking;
mod world;

use super::*;
use crate::job::{
    id::{Class, JobId},
    layout::{Minute, Place},
    ledger::{Range, Run, Traits},
};

pub(super) const NOW: Millis = 1_767_227_400_000;

pub(super) fn segment(number: u32) -> SegmentId {
    SegmentId::of_request("q", &number.to_string(), 0, 0, Class::Normal)
}

pub(super) fn inbox(number: u32, jobs: u16) -> SegmentName {
    SegmentName { id: segment(number), place: Place::Inbox, jobs }
}

pub(super) fn job(number: u32, index: u16) -> JobRef {
    JobRef { segment: segment(number), index }
}

pub(super) fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

pub(super) fn claim_id(number: u64) -> ClaimId {
    ClaimId::new(number).unwrap()
}

/// Jobs that are all alike and due.
pub(super) fn facts(number: u32, jobs: u16) -> Facts {
    facts_of(number, &[(jobs, Traits { due: NOW, ..Traits::default() })])
}

pub(super) fn facts_of(number: u32, runs: &[(u16, Traits)]) -> Facts {
    let mut from = 0;
    let runs = runs.iter().map(|(length, traits)| {
        from += length;
        Run { from: from - length, to: from, traits: traits.clone() }
    });
    let runs: Vec<Run> = runs.collect();
    Facts {
        segment: segment(number),
        jobs: runs.last().unwrap().to,
        runs,
        unique: Vec::new(),
        fence: None,
        request: false,
        span: None,
    }
}

/// A ledger that is changed by commits that all land, on a clock that is moved by hand.
pub(super) struct Bed {
    pub(super) ledger: Ledger,
    pub(super) now: Millis,
    pub(super) policy: Policy,
    pub(super) settings: u64,
    pub(super) caps: Caps,
    pub(super) writes: u32,
    pub(super) last: Option<Applied>,
}

impl Bed {
    pub(super) fn new() -> Self {
        let policy = Policy::default();
        let ledger = Ledger::new("q", 0, [0; 16].into(), 0, policy.clone());
        Self { ledger, now: NOW, policy, settings: 0, caps: Caps::default(), writes: 0, last: None }
    }

    pub(super) fn with(change: impl FnOnce(&mut Policy)) -> Self {
        let mut bed = Self::new();
        change(&mut bed.policy);
        bed.settings = 1;
        bed
    }

    /// Segment `number` with so many jobs that are due.
    pub(super) fn absorbed(mut self, number: u32, jobs: u16) -> Self {
        self.absorb(facts(number, jobs));
        self
    }

    pub(super) fn absorb(&mut self, facts: Facts) -> Outcome {
        let name = SegmentName { id: facts.segment, place: Place::Inbox, jobs: facts.jobs };
        self.one(None, Op::Absorb { name, facts: Arc::new(facts) })
    }

    pub(super) fn context(&mut self, by: Option<u8>) -> Context {
        self.writes += 1;
        let mut id = [0xaa; 16];
        id[..4].copy_from_slice(&self.writes.to_be_bytes());
        let ticket = |number: u8| Ticket {
            id: session(number),
            lease: [number; 16],
            owner: format!("worker-{number}").into(),
            until: self.now + 30_000,
            has_row: false,
        };
        Context {
            now: Timestamp::from_millis(self.now),
            write_id: id.into(),
            session: by.map(ticket),
            settings: self.settings,
            policy: Arc::new(self.policy.clone()),
            epoch: 0,
            caps: self.caps,
        }
    }

    pub(super) fn commit(&mut self, by: Option<u8>, operations: &[Op]) -> Vec<Outcome> {
        let context = self.context(by);
        let applied = apply(&self.ledger, operations, &context).unwrap();
        assert_eq!(applied.ledger.check(), Ok(()), "after {operations:?}");
        self.ledger = applied.ledger.clone();
        let outcomes = applied.outcomes.clone();
        self.last = Some(applied);
        outcomes
    }

    pub(super) fn one(&mut self, by: Option<u8>, operation: Op) -> Outcome {
        self.commit(by, &[operation]).remove(0)
    }

    /// What session `by` is given under claim `claim`: segment, first index and how many, each with its attempt.
    pub(super) fn claim(&mut self, by: u8, claim: u64, want: u32) -> Vec<(SegmentId, u16, u16)> {
        match self.one(Some(by), Op::Claim { claim: claim_id(claim), want, idle_elsewhere: true }) {
            Outcome::Claimed { jobs, .. } => {
                jobs.iter().map(|taken| (taken.name.id, taken.range.from, taken.range.len())).collect()
            }
            Outcome::NothingToClaim(_) => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn answer(&mut self, by: u8, claim: u64, job: JobRef, what: Answered) -> Outcome {
        self.one(Some(by), Op::Answer(Answer { claim: claim_id(claim), job, what, into: None }))
    }

    pub(super) fn finish(&mut self, by: u8, claim: u64, job: JobRef) -> Outcome {
        self.answer(by, claim, job, Answered::Finished)
    }

    pub(super) fn fail(&mut self, by: u8, claim: u64, job: JobRef) -> Outcome {
        self.answer(by, claim, job, failed())
    }

    pub(super) fn recover(&mut self, dead: u8) -> Recovered {
        match self.one(None, Op::Recover { session: session(dead) }) {
            Outcome::Recovered(recovered) => recovered,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn failed() -> Answered {
    Answered::Failed { for_good: false, error: Some("broken".into()), kind: None, max_attempts: None }
}

pub(super) fn traits(change: impl FnOnce(&mut Traits)) -> Traits {
    let mut traits = Traits { due: NOW, ..Traits::default() };
    change(&mut traits);
    traits
}

pub(super) fn later(minutes: i64) -> Minute {
    Minute::of(Timestamp::from_millis(NOW + minutes * 60_000))
}

pub(super) fn id(number: u32, index: u16) -> JobId {
    segment(number).job(index)
}
