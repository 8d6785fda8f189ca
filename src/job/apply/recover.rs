//! What a dead process had in hand comes back, and who is blamed for its death.
//!
//! A process that dies holds a whole batch, and one job of it may be what killed it. So nobody is charged at first: all
//! become suspects, who run in ever smaller groups (an eighth each time, at first never fewer than eight, so that what a
//! small process held comes back at once) and at last alone, and only a suspect that was alone when its process died is
//! charged. What comes back is spread over time. While most of a fleet dies at once it is
//! not the jobs' fault, and nobody is charged at all.

use super::{
    Outcome, Recovered,
    absorb::spread,
    work::{End, Work, count, millis},
};
use crate::job::ledger::{
    Claim, ClaimId, Ended, Happened, Item, JobRef, Millis, Range, Reason, SessionId, Traits, Why,
};

/// Over how long the jobs of a process are spread that come back for the first time.
const FIRST_SPREAD: Millis = 5_000;
/// What comes back again waits `base × (2^stalls)`, at most `most`, and half of it at random.
const AGAIN_BASE: Millis = 10_000;
const AGAIN_MOST: Millis = 600_000;
/// A batch comes back in at most about this many pieces, each at its own time: a piece costs as much as a job.
const PIECES: u32 = 32;
/// The smallest group of those that come back for the first time.
const FIRST_GROUP: u16 = 8;
/// A fleet is at least this many sessions.
const FLEET: usize = 4;

impl Work<'_> {
    pub(super) fn recover(&mut self, session: SessionId) -> Outcome {
        let own = self.context.session.as_ref().is_some_and(|ticket| ticket.id == session);
        if own || self.ledger.session(session).is_none() {
            return Outcome::Nothing;
        }
        self.ledger.sessions.retain(|known| known.id != session);
        let held = self.holds(session);
        self.ledger.ended.push(Ended { session, at: self.now, held });
        self.changed = true;
        let blameless = self.fleet_is_dying();
        // The claims stay where they are, without items, until the commit is closed: others are found by position.
        let mut taken = Vec::new();
        for claim in self.ledger.claims.iter_mut().filter(|claim| claim.session == session) {
            let items = std::mem::take(&mut claim.items);
            taken.push(Claim { items, ..claim.clone() });
        }
        let items = || taken.iter().flat_map(|claim| &claim.items);
        let total: u32 = items().map(|item| u32::from(item.open.count())).sum();
        let mut recovered = Recovered::default();
        for claim in &taken {
            for item in &claim.items {
                self.come_back(claim, item, total, blameless, &mut recovered);
            }
        }
        count(&mut self.ledger.counters.recovered, recovered.waiting);
        Outcome::Recovered(recovered)
    }

    /// More than half of at least four sessions that had something in hand have ended within one TTL.
    fn fleet_is_dying(&self) -> bool {
        let ttl = millis(self.ledger.policy.session_ttl);
        let recent = |ended: &&Ended| ended.held && self.now.saturating_sub(ended.at) < ttl;
        let ended = self.ledger.ended.iter().filter(recent).count();
        let mut alive: Vec<SessionId> = self.ledger.claims.iter().map(|claim| claim.session).collect();
        alive.sort_unstable();
        alive.dedup();
        let alive = alive.iter().filter(|id| self.ledger.session(**id).is_some()).count();
        ended + alive >= FLEET && ended * 2 > ended + alive
    }

    fn come_back(&mut self, claim: &Claim, item: &Item, total: u32, blameless: bool, recovered: &mut Recovered) {
        let Some(at) = self.position_of_number(item.row) else { return };
        let segment = self.ledger.rows[at].name.id;
        let mut traits = item.run.traits.clone();
        let again = traits.group > 0;
        // Alone, and not for the first time: it is charged.
        let charged = item.alone && total == 1 && traits.group == 1 && !blameless;
        if charged {
            traits.stalls = traits.stalls.saturating_add(1);
            recovered.charged += 1;
            count(&mut self.ledger.counters.stalls, true);
        }
        traits.group = if again { eighth(u32::from(traits.group)) } else { eighth(total).max(FIRST_GROUP) };
        traits.why = Why::Stalled;
        traits.claim = Some(claim.id);
        let most = total.div_ceil(PIECES).max(1);
        for range in pieces(item, most) {
            let mut from = range.from;
            for index in range.from..range.to {
                if !self.is_cancelling(JobRef { segment, index }) {
                    continue;
                }
                self.end(at, index, End::Cancelled, Some(claim.fence));
                recovered.cancelled += 1;
                self.return_piece(at, Range { from, to: index }, &traits, again, claim.id, recovered);
                from = index + 1;
            }
            let rest = Range { from, to: range.to };
            if charged && rest.len() == 1 && traits.stalls >= self.ledger.policy.max_stalls && !self.dead_list_is_full()
            {
                self.bury((at, rest.from), Reason::Stalled, &traits, Some(claim.fence), None);
                recovered.buried += 1;
                continue;
            }
            self.return_piece(at, rest, &traits, again, claim.id, recovered);
        }
    }

    fn return_piece(
        &mut self,
        at: usize,
        range: Range,
        traits: &Traits,
        again: bool,
        claim: ClaimId,
        recovered: &mut Recovered,
    ) {
        if range.len() == 0 {
            return;
        }
        let (number, segment) = (self.ledger.rows[at].number, self.ledger.rows[at].name.id);
        let random = [claim.get(), u64::from(number), u64::from(range.from)];
        let pause = if again {
            let most = (AGAIN_BASE << traits.stalls.min(10)).min(AGAIN_MOST);
            most / 2 + spread(random, most / 2)
        } else {
            spread(random, FIRST_SPREAD)
        };
        let due = self.now.saturating_add(pause);
        self.wait(at, range, Traits { due, ..traits.clone() });
        self.event(segment, range, Happened::Recovered, None);
        recovered.waiting += u32::from(range.len());
    }
}

fn eighth(of: u32) -> u16 {
    u16::try_from(of.div_ceil(8).max(1)).unwrap_or(u16::MAX)
}

/// The open jobs of an item, neighbours together, `most` at a time.
fn pieces(item: &Item, most: u32) -> Vec<Range> {
    let mut pieces: Vec<Range> = Vec::new();
    for position in item.open.iter() {
        let index = item.run.from + position;
        match pieces.last_mut() {
            Some(last) if last.to == index && u32::from(last.len()) < most => last.to += 1,
            _ => pieces.push(Range::one(index)),
        }
    }
    pieces
}
