//! What was promised of keys, unique keys, slots and transactions: a limit of 1, one at a time, each slot once, and jobs that
//! run if and only if their transaction is committed.

use leasehold::decision::{Decision, TxnId};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The one schedule of a run.
pub const SCHEDULE: &str = "beat";
/// What the job of a slot carries.
pub const SLOT: &str = "slot";
/// Between two slots.
pub const INTERVAL: Duration = Duration::from_secs(7);

/// What a job is bound by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    Key(u64),
    Unique(u64),
    Transaction(TxnId),
}

#[derive(Default)]
struct Slot {
    ended: bool,
}

#[derive(Default)]
pub struct Rules {
    bound: BTreeMap<u64, Bound>,
    decided: BTreeMap<TxnId, Decision>,
    /// Jobs of transactions that have begun to run.
    ran: BTreeSet<u64>,
    slots: BTreeMap<i64, Slot>,
}

impl Rules {
    pub fn bind(&mut self, number: u64, bound: Bound) {
        self.bound.insert(number, bound);
    }

    /// Others that are bound by the same key or unique key.
    pub fn others(&self, number: u64) -> Vec<u64> {
        let Some(mine) = self.bound.get(&number) else { return Vec::new() };
        let same = self.bound.iter().filter(|(other, bound)| **other != number && *bound == mine);
        same.map(|(other, _)| *other).collect()
    }

    pub fn bound(&self, number: u64) -> Option<&Bound> {
        self.bound.get(&number)
    }

    pub fn starts(&mut self, number: u64) -> Result<(), String> {
        let Some(Bound::Transaction(txn)) = self.bound.get(&number) else { return Ok(()) };
        self.ran.insert(number);
        match self.decided.get(txn) {
            Some(Decision::Abort) => Err(format!("J9: {txn} is aborted, and its job {number} runs")),
            _ => Ok(()),
        }
    }

    /// Somebody was told what was decided; `None` that it cannot be decided any more.
    pub fn decided(&mut self, txn: TxnId, decision: Option<Decision>) -> Result<(), String> {
        if let Some(decision) = decision {
            self.decided.insert(txn, decision);
        }
        let ran = self.ran.iter().find(|number| self.bound.get(number) == Some(&Bound::Transaction(txn)));
        match ran {
            Some(number) if decision != Some(Decision::Commit) => {
                Err(format!("J9: {txn} was not committed ({decision:?}), and its job {number} has run"))
            }
            _ => Ok(()),
        }
    }

    /// All transactions that jobs hang on.
    pub fn transactions(&self) -> BTreeSet<TxnId> {
        let txn = |bound: &Bound| match bound {
            Bound::Transaction(txn) => Some(*txn),
            _ => None,
        };
        self.bound.values().filter_map(txn).collect()
    }

    /// Whether a job may end without having run: as a duplicate, or with its transaction.
    pub fn may_vanish(&self, number: u64) -> bool {
        match self.bound.get(&number) {
            Some(Bound::Unique(_)) => true,
            Some(Bound::Transaction(txn)) => self.decided.get(txn) != Some(&Decision::Commit),
            Some(Bound::Key(_)) | None => false,
        }
    }

    pub fn slot_starts(&mut self, slot: i64) -> Result<(), String> {
        match self.slots.entry(slot).or_default().ended {
            true => Err(format!("J8: the slot at {slot} has ended, and runs again")),
            false => Ok(()),
        }
    }

    pub fn slot_ended(&mut self, slot: i64) -> Result<(), String> {
        match std::mem::replace(&mut self.slots.entry(slot).or_default().ended, true) {
            true => Err(format!("J8: the slot at {slot} has ended twice")),
            false => Ok(()),
        }
    }

    /// Slots that nobody ran although later ones were.
    pub fn missing(&self) -> Vec<String> {
        let step = i64::try_from(INTERVAL.as_millis()).unwrap_or(i64::MAX);
        let slots: Vec<i64> = self.slots.keys().copied().collect();
        let gaps = slots.windows(2).filter(|pair| pair[1] - pair[0] != step);
        gaps.map(|pair| format!("J8: after the slot at {} comes that at {}", pair[0], pair[1])).collect()
    }
}
