//! What must be true of every ledger: each job in exactly one place, and as many as have come.

use super::{Ledger, Range, Row};
use crate::job::layout::Place;
use std::collections::HashMap;

/// Where the jobs of a ledger are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) unread: u64,
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    /// On the dead list, their object not yet written.
    pub(crate) burying: u64,
    /// On their way to another queue.
    pub(crate) moving: u64,
}

impl Totals {
    pub(crate) fn all(self) -> u64 {
        self.unread + self.waiting + self.running + self.burying + self.moving
    }
}

/// The places of the jobs of one row.
struct Places<'a> {
    row: &'a Row,
    taken: Vec<bool>,
}

impl Places<'_> {
    fn put(&mut self, range: Range, what: &str) -> Result<(), String> {
        for index in range.from..range.to {
            let Some(taken) = self.taken.get_mut(usize::from(index)) else {
                return Err(format!("{} has no job {index}, which is {what}", self.row.name.id));
            };
            if std::mem::replace(taken, true) {
                return Err(format!("job {index} of {} is in two places, one is {what}", self.row.name.id));
            }
        }
        Ok(())
    }
}

impl Ledger {
    pub(crate) fn totals(&self) -> Totals {
        let rows = || self.rows.iter();
        let running = self.claims.iter().flat_map(|claim| &claim.items).map(|item| u64::from(item.open.count()));
        let dead = self.dead.iter().map(|plan| match plan.raw.and_then(|(row, _)| self.row(row)) {
            Some(row) => u64::from(row.name.jobs),
            None => u64::try_from(plan.jobs.len()).unwrap_or(u64::MAX),
        });
        Totals {
            unread: rows().flat_map(|row| &row.unread).map(|unread| u64::from(unread.range.len())).sum(),
            waiting: rows().flat_map(|row| &row.runs).map(|run| u64::from(run.len())).sum(),
            running: running.sum(),
            burying: dead.sum(),
            moving: u64::try_from(self.moves.len()).unwrap_or(u64::MAX),
        }
    }

    /// Says what is wrong, if anything is. For tests and for fsck.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_rows()?;
        self.check_lists()?;
        let (counters, totals) = (&self.counters, self.totals());
        let ends = [counters.finished, counters.dead, counters.cancelled, counters.duplicates, counters.moved];
        let ended = ends.into_iter().fold(0, u64::saturating_add);
        if counters.absorbed != ended.saturating_add(totals.all()) {
            return Err(format!("{} jobs have come, {ended} have ended, {totals:?} are here", counters.absorbed));
        }
        Ok(())
    }

    fn check_rows(&self) -> Result<(), String> {
        let mut places: HashMap<u32, Places<'_>> = HashMap::new();
        let mut last = 0;
        for row in &self.rows {
            if row.number <= last || row.number >= self.next_row || row.open == 0 {
                return Err(format!("row {} of {} is out of order or empty", row.number, row.name.id));
            }
            last = row.number;
            let mut mine = Places { row, taken: vec![false; usize::from(row.name.jobs)] };
            row.moved.iter().try_for_each(|range| mine.put(*range, "moved"))?;
            row.unread.iter().try_for_each(|unread| mine.put(unread.range, "unread"))?;
            row.runs.iter().try_for_each(|run| mine.put(run.range(), "waiting"))?;
            places.insert(row.number, mine);
        }
        let mut put = |number: u32, range: Range, what: &str| {
            places
                .get_mut(&number)
                .ok_or_else(|| format!("no row {number}, of which jobs are {what}"))?
                .put(range, what)
        };
        for claim in &self.claims {
            for item in &claim.items {
                for at in item.open.iter() {
                    put(item.row, Range::one(item.run.from + at), "running")?;
                }
            }
        }
        for plan in &self.dead {
            plan.jobs.iter().try_for_each(|job| put(job.row, Range::one(job.index), "dead"))?;
            if let Some((number, _)) = plan.raw {
                let jobs = self.row(number).map_or(0, |row| row.name.jobs);
                put(number, Range { from: 0, to: jobs }, "buried as it is")?;
            }
        }
        self.moves.iter().try_for_each(|plan| put(plan.row, Range::one(plan.index), "moving"))?;
        for mine in places.values() {
            let moved: usize = mine.row.moved.iter().map(|range| usize::from(range.len())).sum();
            let here = mine.taken.iter().filter(|taken| **taken).count().saturating_sub(moved);
            if here != usize::from(mine.row.open) {
                return Err(format!("{} says {} open jobs and has {here}", mine.row.name.id, mine.row.open));
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        let mut ids: Vec<_> = self.rows.iter().map(|row| row.name.id).collect();
        ids.extend(self.finished.iter().map(|entry| entry.name.id));
        let known = ids.len();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != known {
            return Err("a segment is live or finished twice".to_owned());
        }
        if self.finished.iter().any(|entry| matches!(entry.name.place, Place::Seg | Place::Inline)) {
            return Err("the finished list names what was never in an inbox".to_owned());
        }
        for claim in &self.claims {
            if claim.items.iter().all(|item| item.open.is_empty()) {
                return Err(format!("claim {:?} has nothing", claim.id));
            }
            if self.session(claim.session).is_none() {
                return Err(format!("claim {:?} is under a session without a row", claim.id));
            }
            if Some(claim.fence) > self.fence_last {
                return Err(format!("claim {:?} has a higher fence than the ledger", claim.id));
            }
        }
        let mut taken: Vec<_> = self.unique.iter().map(|unique| unique.hash).collect();
        taken.sort_unstable();
        taken.dedup();
        if taken.len() != self.unique.len() {
            return Err("a unique key is taken twice".to_owned());
        }
        Ok(())
    }
}
