//! Claiming: by class, priority and due time, between tenants in turn, within the limits of keys and of the rate.
//!
//! Jobs that came back from a dead process are suspects. No hand has more of them than the smallest of their groups
//! allows, and one whose group is 1 is taken by a hand that is empty and gets nothing else until it is answered for: only
//! so does the next death of that process say something about the job. If nobody's hand is empty for a minute, it runs
//! with others, and is not charged.

use super::{
    Idle, Outcome, limits,
    work::{Work, count},
};
use crate::{
    Fence,
    clock::Timestamp,
    job::{
        id::Class,
        layout::SegmentName,
        ledger::{Bits, Claim, ClaimId, Item, Millis, Range, Run, SessionId, Why},
    },
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// How long a job that should run alone waits for an empty hand.
const PATIENCE: Millis = 60_000;

/// What a job may cost when it comes back.
const COST_OF_RETURN: usize = 48;

/// Jobs of one segment that were claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) name: SegmentName,
    pub(crate) range: Range,
    /// The number of this attempt, from 1.
    pub(crate) attempt: u32,
    pub(crate) stalls: u8,
    /// The process must start nothing else until it has answered for it.
    pub(crate) alone: bool,
    pub(crate) inline: Option<Bytes>,
}

/// A run that may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    class: Class,
    priority: i16,
    due: Millis,
    row: usize,
    run: usize,
    tenant: u32,
}

/// What a session has in hand here.
#[derive(Debug, Default)]
struct Hand {
    jobs: u32,
    suspects: u32,
    /// The smallest group of its suspects.
    group: Option<u16>,
    alone: bool,
}

/// What is left to give while a claim is filled.
struct Left {
    jobs: u32,
    hand: Hand,
    running: Option<HashMap<u64, u32>>,
    /// Of keys with a limit of 1, the job that nobody may pass.
    heads: HashMap<u64, (u32, u16)>,
    only_retries: bool,
}

impl Work<'_> {
    pub(super) fn claim(&mut self, claim: ClaimId, want: u32, idle_elsewhere: bool) -> Outcome {
        let Some(session) = self.context.session.as_ref().map(|ticket| ticket.id).filter(|_| !self.closing) else {
            return Outcome::NothingToClaim(Idle::NoSession);
        };
        if self.ledger.policy.is_paused(self.now) {
            return Outcome::NothingToClaim(Idle::Paused);
        }
        if self.claim_position(claim).is_some() {
            return Outcome::Nothing;
        }
        let hand = self.hand(session);
        if hand.alone {
            return Outcome::NothingToClaim(Idle::RunsAlone);
        }
        let jobs = want.min(self.room_for_jobs()).min(limits::tokens(self));
        if jobs == 0 {
            let rate = self.ledger.policy.rate_milli.is_some() && self.ledger.tokens.milli < 1000;
            let why = if rate { Idle::Rate } else { Idle::NoRoom };
            return Outcome::NothingToClaim(if want == 0 { Idle::NothingDue } else { why });
        }
        let candidates = self.candidates();
        let only_retries = self.retries() >= self.context.caps.retries * 2;
        let heads = limits::heads(self);
        let limited = self.ledger.policy.key_limit.is_some() || !self.ledger.limits.is_empty();
        let running = limited.then(|| self.running_by_key());
        let left = Left { jobs, hand, running, heads, only_retries };
        let lone = |candidate: &&Candidate| self.group(candidate) == 1 && key_allows(self, candidate, &left) > 0;
        let mut items = Vec::new();
        if left.hand.jobs == 0
            && idle_elsewhere
            && let Some(candidate) = candidates.iter().find(lone).copied()
        {
            items.push(self.take(&candidate, 1, true));
        } else {
            self.fill(&candidates, left, &mut items);
        }
        if items.is_empty() {
            let why = if only_retries && !candidates.is_empty() { Idle::SpillFirst } else { Idle::NothingDue };
            return Outcome::NothingToClaim(why);
        }
        self.grant(claim, session, items)
    }

    pub(super) fn grant(&mut self, claim: ClaimId, session: SessionId, mut items: Vec<Item>) -> Outcome {
        // Known to be there: it was asked for before anything was taken.
        let Some(fence) = self.fence.or_else(|| self.next_fence()) else {
            self.put_back(items);
            return Outcome::NothingToClaim(Idle::NoFence);
        };
        self.fence = Some(fence);
        self.ledger.fence_last = Some(fence);
        items.sort_by_key(|item| (item.row, item.run.from));
        let taken: Vec<Taken> = items.iter().filter_map(|item| self.taken(item)).collect();
        let jobs = items.iter().map(|item| u64::from(item.run.len())).sum::<u64>();
        count(&mut self.ledger.counters.claimed, jobs);
        limits::spend(self, jobs);
        self.note_claim(claim);
        self.ledger.claims.push(Claim { id: claim, session, fence, at: self.now, items });
        for row in &mut self.ledger.rows {
            row.runs.retain(|run| !run.is_empty());
        }
        self.changed = true;
        Outcome::Claimed { claim, fence, jobs: taken }
    }

    fn taken(&self, item: &Item) -> Option<Taken> {
        let row = self.ledger.row(item.row)?;
        Some(Taken {
            name: row.name,
            range: item.run.range(),
            attempt: item.run.traits.attempts.saturating_add(1),
            stalls: item.run.traits.stalls,
            alone: item.alone,
            inline: row.inline.clone(),
        })
    }

    fn next_fence(&self) -> Option<Fence> {
        Fence::next(self.ledger.fence_last, Timestamp::from_millis(self.now), Duration::ZERO).ok()
    }

    fn put_back(&mut self, items: Vec<Item>) {
        for item in items {
            if let Some(at) = self.position_of_number(item.row) {
                self.ledger.rows[at].runs.push(item.run);
                self.ledger.rows[at].runs.retain(|run| !run.is_empty());
                self.ledger.rows[at].runs.sort_by_key(|run| run.from);
            }
        }
    }

    fn hand(&self, session: SessionId) -> Hand {
        let mut hand = Hand::default();
        let claims = self.ledger.claims.iter().filter(|claim| claim.session == session);
        for item in claims.flat_map(|claim| &claim.items) {
            let open = u32::from(item.open.count());
            if open == 0 {
                continue;
            }
            hand.jobs += open;
            hand.alone |= item.alone;
            hand.note_suspects(item.run.traits.group, open);
        }
        hand
    }

    /// How many more may run, so that all of them could come back and the ledger still be written.
    fn room_for_jobs(&self) -> u32 {
        let running = self.ledger.totals().running;
        let room = self.context.caps.longest.saturating_sub(self.weight() + (64 << 10)) / COST_OF_RETURN;
        u32::try_from(u64::try_from(room).unwrap_or(u64::MAX).saturating_sub(running)).unwrap_or(u32::MAX)
    }

    /// What is due and not held back, in order.
    fn candidates(&mut self) -> Vec<Candidate> {
        self.sort_all();
        let mut candidates = Vec::new();
        for (at, row) in self.ledger.rows.iter().enumerate() {
            for (run, one) in row.runs.iter().enumerate() {
                let traits = &one.traits;
                if traits.due <= self.now && !traits.paused && !one.is_empty() {
                    let (class, tenant) = (row.name.id.class(), traits.tenant);
                    candidates.push(Candidate {
                        class,
                        priority: traits.priority,
                        due: traits.due,
                        row: at,
                        run,
                        tenant,
                    });
                }
            }
        }
        candidates.sort_unstable();
        candidates
    }

    fn group(&self, candidate: &Candidate) -> u16 {
        self.ledger.rows[candidate.row].runs[candidate.run].traits.group
    }

    /// Takes from the candidates in order; those of one class and priority share by tenant.
    fn fill(&mut self, candidates: &[Candidate], mut left: Left, items: &mut Vec<Item>) {
        for equal in candidates.chunk_by(|a, b| (a.class, a.priority) == (b.class, b.priority)) {
            if left.jobs == 0 {
                return;
            }
            if equal.iter().all(|candidate| candidate.tenant == equal[0].tenant) {
                for candidate in equal {
                    let most = left.jobs;
                    self.take_some(candidate, most, &mut left, items);
                }
                continue;
            }
            self.in_turn(equal, &mut left, items);
        }
    }

    /// Each tenant gets the same share, the one after the last that had a turn first, until all have what they want.
    fn in_turn(&mut self, candidates: &[Candidate], left: &mut Left, items: &mut Vec<Item>) {
        let mut tenants: BTreeMap<u32, Vec<&Candidate>> = BTreeMap::new();
        for candidate in candidates {
            tenants.entry(candidate.tenant).or_default().push(candidate);
        }
        let mut order: Vec<u32> = tenants.keys().copied().collect();
        let next = order.partition_point(|tenant| *tenant <= self.ledger.turn);
        let tenants_now = order.len().max(1);
        order.rotate_left(next % tenants_now);
        while left.jobs > 0 && !order.is_empty() {
            let share = (left.jobs / u32::try_from(order.len()).unwrap_or(u32::MAX)).max(1);
            let before = left.jobs;
            order.retain(|tenant| {
                let had = left.jobs;
                let mut quota = share.min(had);
                for candidate in tenants.get(tenant).map_or(&[][..], Vec::as_slice) {
                    if quota == 0 {
                        break;
                    }
                    quota -= self.take_some(candidate, quota, left, items);
                }
                if left.jobs < had {
                    self.ledger.turn = *tenant;
                }
                quota == 0 && left.jobs > 0
            });
            if left.jobs == before {
                return;
            }
        }
    }

    /// Takes up to `most` from one candidate, as far as its key and its group allow; how many.
    fn take_some(&mut self, candidate: &Candidate, most: u32, left: &mut Left, items: &mut Vec<Item>) -> u32 {
        let run = &self.ledger.rows[candidate.row].runs[candidate.run];
        let (traits, length) = (&run.traits, u32::from(run.len()));
        if left.only_retries && traits.why == Why::New {
            return 0;
        }
        let (key, group) = (traits.key, traits.group);
        let mut count = length.min(most).min(left.jobs).min(key_allows(self, candidate, left));
        if group > 0 {
            if group == 1 && self.now.saturating_sub(traits.due) < PATIENCE {
                return 0;
            }
            count = count.min(left.hand.room_for_suspect(group));
        }
        if count == 0 {
            return 0;
        }
        let item = self.take(candidate, u16::try_from(count).unwrap_or(u16::MAX), false);
        let count = u32::from(item.run.len());
        left.jobs -= count;
        left.hand.jobs += count;
        left.hand.note_suspects(group, count);
        if let Some(running) = &mut left.running {
            *running.entry(key).or_insert(0) += count;
        }
        match items.last_mut() {
            // What was taken from one run in several turns is one item.
            Some(last)
                if last.row == item.row && last.run.to == item.run.from && last.run.traits == item.run.traits =>
            {
                last.run.to = item.run.to;
                last.open = Bits::first(last.run.len());
            }
            _ => items.push(item),
        }
        count
    }

    /// Takes the first jobs of a run.
    fn take(&mut self, candidate: &Candidate, count: u16, alone: bool) -> Item {
        let row = &mut self.ledger.rows[candidate.row];
        let run = &mut row.runs[candidate.run];
        let count = count.min(run.len());
        let taken = Run { from: run.from, to: run.from + count, traits: run.traits.clone() };
        run.from += count;
        Item { row: row.number, run: taken, open: Bits::first(count), alone }
    }
}

/// How many of a candidate its key lets run now.
fn key_allows(work: &Work<'_>, candidate: &Candidate, left: &Left) -> u32 {
    let row = &work.ledger.rows[candidate.row];
    let run = &row.runs[candidate.run];
    let key = run.traits.key;
    if key == 0 || left.heads.get(&key).is_some_and(|head| *head != (row.number, run.from)) {
        return if key == 0 { u32::MAX } else { 0 };
    }
    match (&left.running, work.ledger.key_limit(key)) {
        (Some(running), Some(limit)) => limit.saturating_sub(running.get(&key).copied().unwrap_or(0)),
        _ => u32::MAX,
    }
}

impl Hand {
    fn note_suspects(&mut self, group: u16, count: u32) {
        if group > 0 {
            self.suspects += count;
            self.group = Some(self.group.map_or(group, |known| known.min(group)));
        }
    }

    fn room_for_suspect(&self, group: u16) -> u32 {
        u32::from(self.group.map_or(group, |known| known.min(group))).saturating_sub(self.suspects)
    }
}
