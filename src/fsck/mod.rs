//! Looking for damage in a store, and repairing it.
//!
//! Normal operation does not need it: an operation that meets an expired record settles it, and the sweeper cleans up the rest.
//! It is for what a process must not repair by itself, because it cannot know what was written: a record that cannot be
//! read, an index that lost entries, unknown names.
//!
//! | damage | what a repair does |
//! |---|---|
//! | a record that cannot be read | keeps a copy aside, and puts a new record in its place: the fence goes on above everything that was seen, and nothing is granted for as long as what it said may still hold |
//! | a record that ends, without its entry | writes the entry |
//! | an entry without its record, of an hour that is not over | writes a free record with a fence above all before |
//! | an entry without its record, of an hour that is over | nothing: a sweep deletes it |
//! | a record that is written once and cannot be read | nothing: whatever took its place could contradict it |
//! | an object of an earlier layout | nothing: it is neither read nor swept |
//! | an unknown name | nothing: it belongs to another program |
//!
//! A repair deletes nothing and overwrites nothing but what it has read: every change of a record is a compare-and-swap on
//! the very version that was judged, so it may run while others work. What it does to records is written down under
//! `.leasehold/repairs/`.

mod walk;

pub use crate::kind::{Damage, Finding};
pub(crate) use walk::run;

use crate::Namespace;
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// How many findings a report keeps. All of them are counted, and passed to the listener if there is one.
const KEPT: usize = 10_000;

/// What was looked at of one kind of record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// Records.
    pub records: u64,
    /// Index entries.
    pub entries: u64,
}

/// What was looked at and found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Records that were looked at.
    pub records: u64,
    /// Index entries that were looked at.
    pub entries: u64,
    /// Records and index entries that were looked at, by the name of their kind.
    pub kinds: BTreeMap<&'static str, Checked>,
    /// How many of each kind were found.
    pub found: BTreeMap<Damage, u64>,
    /// How many of them were repaired.
    pub repaired: u64,
    /// How many of them are harmless.
    pub harmless: u64,
    /// How many are left that an operator must act on.
    pub open: u64,
    /// Names that could not be looked at because the store failed.
    pub failures: u64,
    /// The last failure.
    pub last_error: Option<String>,
    /// The first 10,000 of what was found.
    pub findings: Vec<Finding>,
    /// Requests that it took.
    pub requests: u64,
    /// How long it took.
    pub duration_ms: u64,
}

impl Report {
    /// Whether nothing is left to be done.
    pub fn is_clean(&self) -> bool {
        self.open == 0 && self.failures == 0
    }

    fn add(&mut self, finding: Finding) {
        *self.found.entry(finding.damage).or_default() += 1;
        self.repaired += u64::from(finding.repaired.is_some());
        self.harmless += u64::from(finding.harmless);
        self.open += u64::from(finding.is_open());
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        }
    }
}

type Progress = Box<dyn Fn(&Report) + Send + Sync>;

/// How to look, and whether to repair.
#[derive(Default)]
#[must_use]
pub struct FsckOptions {
    repair: Option<String>,
    namespace: Option<Namespace>,
    progress: Option<Progress>,
}

impl FsckOptions {
    /// Only looks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Repairs what can be repaired, and writes down who did.
    pub fn repair(mut self, by: impl Into<String>) -> Self {
        self.repair = Some(by.into());
        self
    }

    /// Only looks at this namespace; without it at everything in the store, and at names that are none of ours.
    pub fn namespace(mut self, only: Namespace) -> Self {
        self.namespace = Some(only);
        self
    }

    /// Is told after every page what has been found so far.
    pub fn progress(mut self, tell: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }
}

impl fmt::Debug for FsckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsckOptions").field("repair", &self.repair).finish_non_exhaustive()
    }
}
