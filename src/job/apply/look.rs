//! What a ledger says of one job, and of all of them together.

use crate::{
    Fence,
    job::{
        id::SegmentId,
        ledger::{ClaimId, JobRef, Ledger, Millis, Reason, Row, SessionId, Why},
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// Where a job is, as far as the ledger knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Waits; its table has the rest.
    Unread,
    Waiting {
        why: Why,
        due: Millis,
        attempts: u32,
        stalls: u8,
        paused: bool,
        error: Option<Arc<str>>,
    },
    Running {
        claim: ClaimId,
        session: SessionId,
        fence: Fence,
        since: Millis,
        attempt: u32,
        stalls: u8,
        cancelling: bool,
    },
    /// On the dead list, its object not yet written.
    Burying(Reason),
    /// On its way to that segment of that queue.
    Moving {
        queue: Arc<str>,
        target: SegmentId,
    },
    /// Its segment is live and it is in no place: it has ended.
    Ended,
    /// In one of these segments of `seg/`, whose spans cover its id: their tables say which.
    Elsewhere(Vec<SegmentId>),
    /// All of its segment has ended not long ago.
    SegmentFinished,
    /// The ledger does not know its segment: it may be in the inbox.
    Unknown,
}

/// How many jobs there are, as far as the ledger knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Depth {
    /// Due, whether read or not. Of what is unread, all of a range counts as due when its first job is.
    pub(crate) ready: u64,
    pub(crate) scheduled: u64,
    pub(crate) retrying: u64,
    pub(crate) paused: u64,
    pub(crate) running: u64,
    /// On the dead list, their object not yet written.
    pub(crate) burying: u64,
    pub(crate) moving: u64,
    /// Of what is due later, how many within the next hour.
    pub(crate) next_hour: u64,
    /// The earliest time at which something is due, past or not.
    pub(crate) oldest: Option<Millis>,
    /// The earliest time to come at which something is due.
    pub(crate) next: Option<Millis>,
    /// Jobs were counted by the due time of the first of them.
    pub(crate) estimated: bool,
}

/// Where each job of a row is, by its index; nothing for those that have ended or live on elsewhere.
pub(crate) fn jobs_of(ledger: &Ledger, row: &Row) -> BTreeMap<u16, Found> {
    let mut jobs = BTreeMap::new();
    for unread in &row.unread {
        jobs.extend((unread.range.from..unread.range.to).map(|index| (index, Found::Unread)));
    }
    for run in &row.runs {
        let traits = &run.traits;
        let waiting = Found::Waiting {
            why: traits.why,
            due: traits.due,
            attempts: traits.attempts,
            stalls: traits.stalls,
            paused: traits.paused,
            error: traits.error.clone(),
        };
        jobs.extend((run.from..run.to).map(|index| (index, waiting.clone())));
    }
    for claim in &ledger.claims {
        for item in claim.items.iter().filter(|item| item.row == row.number) {
            for index in item.open.iter().map(|at| item.run.from + at) {
                let running = Found::Running {
                    claim: claim.id,
                    session: claim.session,
                    fence: claim.fence,
                    since: claim.at,
                    attempt: item.run.traits.attempts.saturating_add(1),
                    stalls: item.run.traits.stalls,
                    cancelling: ledger.cancelling.contains(&JobRef { segment: row.name.id, index }),
                };
                jobs.insert(index, running);
            }
        }
    }
    for plan in &ledger.dead {
        if let Some((_, reason)) = plan.raw.filter(|(number, _)| *number == row.number) {
            jobs.extend((0..row.name.jobs).map(|index| (index, Found::Burying(reason))));
        }
        let mine = plan.jobs.iter().filter(|job| job.row == row.number);
        jobs.extend(mine.map(|job| (job.index, Found::Burying(job.reason))));
    }
    jobs
}

impl Ledger {
    pub(crate) fn find(&self, job: JobRef) -> Found {
        let Some(row) = self.row_of(job.segment) else {
            let spills = self.covering(job);
            if !spills.is_empty() {
                return Found::Elsewhere(spills);
            }
            let finished = self.finished.iter().any(|entry| entry.name.id == job.segment);
            return if finished { Found::SegmentFinished } else { Found::Unknown };
        };
        if row.unread.iter().any(|unread| unread.range.contains(job.index)) {
            return Found::Unread;
        }
        if let Some(run) = row.runs.iter().find(|run| run.range().contains(job.index)) {
            let traits = &run.traits;
            return Found::Waiting {
                why: traits.why,
                due: traits.due,
                attempts: traits.attempts,
                stalls: traits.stalls,
                paused: traits.paused,
                error: traits.error.clone(),
            };
        }
        if row.moved.iter().any(|range| range.contains(job.index)) {
            return Found::Elsewhere(self.covering(job));
        }
        self.find_held(row.number, job).unwrap_or(Found::Ended)
    }

    fn find_held(&self, row: u32, job: JobRef) -> Option<Found> {
        for claim in &self.claims {
            let has = |item: &&crate::job::ledger::Item| {
                item.row == row && item.run.range().contains(job.index) && item.open.contains(job.index - item.run.from)
            };
            if let Some(item) = claim.items.iter().find(has) {
                return Some(Found::Running {
                    claim: claim.id,
                    session: claim.session,
                    fence: claim.fence,
                    since: claim.at,
                    attempt: item.run.traits.attempts.saturating_add(1),
                    stalls: item.run.traits.stalls,
                    cancelling: self.cancelling.contains(&job),
                });
            }
        }
        for plan in &self.dead {
            if let Some((_, reason)) = plan.raw.filter(|(number, _)| *number == row) {
                return Some(Found::Burying(reason));
            }
            if let Some(dead) = plan.jobs.iter().find(|dead| (dead.row, dead.index) == (row, job.index)) {
                return Some(Found::Burying(dead.reason));
            }
        }
        let plan = self.moves.iter().find(|plan| (plan.row, plan.index) == (row, job.index))?;
        Some(Found::Moving { queue: Arc::clone(&plan.queue), target: plan.target.id })
    }

    fn covering(&self, job: JobRef) -> Vec<SegmentId> {
        let id = job.segment.job(job.index);
        let covers = |span: &(_, _)| span.0 <= id && id <= span.1;
        self.rows.iter().filter(|row| row.span.as_ref().is_some_and(covers)).map(|row| row.name.id).collect()
    }

    pub(crate) fn depth(&self, now: Millis) -> Depth {
        let totals = self.totals();
        let mut depth =
            Depth { running: totals.running, burying: totals.burying, moving: totals.moving, ..Depth::default() };
        for row in &self.rows {
            for unread in &row.unread {
                let count = u64::from(unread.range.len());
                depth.estimated |= count > 1;
                depth.wait(count, unread.due, now, Why::New);
            }
            for run in &row.runs {
                let (count, traits) = (u64::from(run.len()), &run.traits);
                if traits.paused {
                    depth.paused += count;
                } else {
                    depth.wait(count, traits.due, now, traits.why);
                }
            }
        }
        depth
    }
}

impl Depth {
    fn wait(&mut self, count: u64, due: Millis, now: Millis, why: Why) {
        self.oldest = Some(self.oldest.map_or(due, |known| known.min(due)));
        if due <= now {
            self.ready += count;
            return;
        }
        self.next = Some(self.next.map_or(due, |known| known.min(due)));
        match why {
            Why::Failed | Why::Stalled => self.retrying += count,
            _ => {
                self.scheduled += count;
                self.next_hour += if due <= now.saturating_add(HOUR) { count } else { 0 };
            }
        }
    }
}

/// In milliseconds.
pub(crate) const HOUR: Millis = 3_600_000;
