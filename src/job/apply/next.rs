//! What a ledger asks its committer to do next, and when.

use super::{
    Answer, Answered, Caps, HORIZON, Op,
    absorb::unread_order,
    finished::{UNCONFIRMED, leaves},
};
use crate::job::{
    id::SegmentId,
    layout::{Layout, Listing, SegmentName},
    ledger::{ClaimId, DeadPlan, JobRef, Ledger, Millis, MovePlan, Session, SessionId, Why},
};

/// Jobs that fit into one spill.
const SPILL: usize = 2000;

/// A waiting job that is to be spilled: its payload has to be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ToSpill {
    pub(crate) job: JobRef,
    pub(crate) priority: i16,
    pub(crate) due: Millis,
    pub(crate) attempts: u32,
    pub(crate) stalls: u8,
    pub(crate) group: u16,
}

impl Ledger {
    /// Live segments with jobs that are due soon and unread, the most urgent first.
    pub(crate) fn to_open(&self, now: Millis, caps: &Caps) -> Vec<SegmentId> {
        let open: usize = self.rows.iter().map(|row| row.runs.len()).sum();
        if open >= caps.runs {
            return Vec::new();
        }
        let mut segments = Vec::new();
        for ((.., due, _), segment) in unread_order(self) {
            if due <= now.saturating_add(HORIZON) && !segments.contains(&segment) {
                segments.push(segment);
            }
        }
        segments
    }

    /// If too many retries stand in the ledger: those that are due last, as many as bring it well below the cap.
    pub(crate) fn to_spill(&self, now: Millis, caps: &Caps) -> Vec<ToSpill> {
        let mut retries = Vec::new();
        for row in &self.rows {
            let waiting = row.runs.iter().filter(|run| run.traits.why != Why::New);
            retries.extend(waiting.map(|run| (run.traits.due, row.name.id, run)));
        }
        if retries.len() <= caps.retries {
            return Vec::new();
        }
        let keep = caps.retries / 2;
        retries.sort_unstable_by_key(|(due, id, run)| (std::cmp::Reverse(*due), *id, run.from));
        retries.truncate(retries.len() - keep);
        let mut jobs = Vec::new();
        for (due, segment, run) in retries {
            // What is due soon is claimed sooner than it could be read again.
            if due <= now.saturating_add(HORIZON) || jobs.len() >= SPILL {
                break;
            }
            // Spilled, a job of a key that has a limit of 1 would be passed by those behind it.
            if run.traits.paused || (run.traits.key != 0 && self.key_limit(run.traits.key) == Some(1)) {
                continue;
            }
            jobs.extend((run.from..run.to).take(SPILL - jobs.len()).map(|index| ToSpill {
                job: JobRef { segment, index },
                priority: run.traits.priority,
                due,
                attempts: run.traits.attempts,
                stalls: run.traits.stalls,
                group: run.traits.group,
            }));
        }
        jobs
    }

    /// Names whose delete is unconfirmed for so long that anybody may send it. Each with the time that a confirmation has
    /// to name. They may be deleted within 30 s of the read of this ledger.
    pub(crate) fn to_delete(&self, now: Millis) -> Vec<(SegmentName, Millis)> {
        let old = self.finished.iter().filter(|entry| entry.confirmed.is_none());
        old.filter(|entry| now.saturating_sub(entry.since) >= UNCONFIRMED)
            .map(|entry| (entry.name, entry.since))
            .collect()
    }

    /// What a confirmation of this name's delete has to say, while it is unconfirmed: a name that is not may not be deleted.
    pub(crate) fn unconfirmed_since(&self, segment: SegmentId) -> Option<Millis> {
        let entry = self.finished.iter().find(|entry| entry.name.id == segment)?;
        Some(entry.since).filter(|_| entry.confirmed.is_none())
    }

    /// What may leave the finished list by this listing.
    pub(crate) fn to_forget(&self, layout: &Layout, listing: &Listing, now: Millis) -> Vec<SegmentId> {
        let mut segments = Vec::new();
        for entry in &self.finished {
            let ripe = leaves(entry, &self.policy).is_some_and(|at| at <= now);
            if ripe && layout.segment(&entry.name).is_some_and(|name| listing.rules_out(&name)) {
                segments.push(entry.name.id);
            }
        }
        segments
    }

    /// Plans of dead letters that nobody has carried out for a while.
    pub(crate) fn dead_to_write(&self, now: Millis) -> impl Iterator<Item = &DeadPlan> {
        self.dead.iter().filter(move |plan| now.saturating_sub(plan.at) >= UNCONFIRMED)
    }

    /// Moves that nobody has carried out for a while.
    pub(crate) fn moves_to_write(&self, now: Millis) -> impl Iterator<Item = &MovePlan> {
        self.moves.iter().filter(move |plan| now.saturating_sub(plan.at) >= UNCONFIRMED)
    }

    /// Sessions of others that may have ended by now: whether they have is read from their records.
    /// Those that have nothing in hand are left: their rows go by themselves.
    pub(crate) fn to_look_at(&self, own: Option<SessionId>, now: Millis) -> impl Iterator<Item = &Session> {
        let holds = |session: &Session| self.claims.iter().any(|claim| claim.session == session.id);
        let over = move |session: &&Session| Some(session.id) != own && session.until <= now;
        self.sessions.iter().filter(over).filter(move |session| holds(session))
    }

    /// Gives back, uncharged, what stands under a session and what its process does not know. Only for a ledger on
    /// which none of its commits is in doubt: a claim that is on its way is not in hand yet.
    pub(crate) fn to_give_back(&self, own: SessionId, in_hand: impl Fn(ClaimId, JobRef) -> bool) -> Vec<Op> {
        let mut answers = Vec::new();
        for claim in self.claims.iter().filter(|claim| claim.session == own) {
            for item in &claim.items {
                let Some(row) = self.row(item.row) else { continue };
                for position in item.open.iter() {
                    let job = JobRef { segment: row.name.id, index: item.run.from + position };
                    if !in_hand(claim.id, job) {
                        let what = Answered::Released { ran: false };
                        answers.push(Op::Answer(Answer { claim: claim.id, job, what, into: None }));
                    }
                }
            }
        }
        answers
    }

    /// When an idle process has to look again: the next due time or slot, the end of a session that has something in hand, a plan
    /// or a delete that was left undone, the end of a pause. Only what comes after `now`: what has passed is no time to wake.
    pub(crate) fn wakes_after(&self, now: Millis) -> Option<Millis> {
        let rows = || self.rows.iter();
        let held_up = self.policy.is_paused(self.now);
        let due = rows().flat_map(|row| &row.runs).filter(|run| !run.traits.paused).map(|run| run.traits.due);
        let unread = rows().flat_map(|row| &row.unread).map(|unread| unread.due);
        let rate = self.rate_allows_at().unwrap_or(Millis::MIN);
        let work = due.chain(unread).map(|due| due.max(rate)).filter(|_| !held_up);
        let slots = self.schedules.iter().filter(|schedule| !schedule.paused).filter_map(|schedule| schedule.next);
        let holds = |session: &&Session| self.claims.iter().any(|claim| claim.session == session.id);
        let sessions = self.sessions.iter().filter(holds).map(|session| session.until);
        let undone = self.dead.iter().map(|plan| plan.at).chain(self.moves.iter().map(|plan| plan.at));
        let deletes = self.finished.iter().filter(|entry| entry.confirmed.is_none()).map(|entry| entry.since);
        let undone = undone.chain(deletes).map(|at| at.saturating_add(UNCONFIRMED));
        let resumes = self.policy.paused_until.filter(|_| held_up);
        work.chain(slots).chain(sessions).chain(undone).chain(resumes).filter(|at| *at > now).min()
    }
}
