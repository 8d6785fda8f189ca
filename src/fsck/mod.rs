//! Looking for damage in a store, and repairing it.
//!
//! Nothing of this is needed while all goes well: whoever touches a record settles it, and the sweeper tidies the rest.
//! It is for what no process may mend by itself, because it cannot know better than whoever wrote it: a record that cannot
//! be read, an index that lost entries, names that are none of ours.
//!
//! | damage | what a repair does |
//! |---|---|
//! | a record that cannot be read | keeps a copy aside, and puts a new record in its place: the fence goes on above everything that was seen, and the key stays closed for as long as somebody may still believe in the lease that was in it |
//! | a lease without its entry | writes the entry |
//! | an entry without its record, of an hour that is not over | makes a record that nobody holds, with a fence above all before |
//! | an entry without its record, of an hour that is over | nothing: a sweep deletes it |
//! | a decision that cannot be read | nothing: whatever took its place could contradict it |
//! | a name that is none of ours | nothing: it is somebody else's |
//!
//! A repair deletes nothing and overwrites nothing but what it has read: every change of a record is a compare-and-swap on
//! the very version that was judged, so it may run while others work. What it does to records is written down under
//! `.leasehold/repairs/`.

mod walk;

pub(crate) use walk::{ASIDE, run};

use crate::{Key, Namespace, Result, store::Name};
use async_trait::async_trait;
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// How many findings a report keeps. All of them are counted, and told to whoever listens.
const KEPT: usize = 10_000;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Damage {
    /// A record or a decision cannot be read.
    Unreadable,
    /// A lease or a decision has no entry: nobody would tidy it.
    MissingEntry,
    /// An entry has no record.
    MissingRecord,
    /// A name that is none of ours.
    UnknownName,
    /// Written by a later version than this one.
    LaterFormat,
}

impl Damage {
    /// The name that JSON has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::MissingEntry => "missing_entry",
            Self::MissingRecord => "missing_record",
            Self::UnknownName => "unknown_name",
            Self::LaterFormat => "later_format",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What is wrong.
    pub damage: Damage,
    /// The object.
    pub name: String,
    /// The key that it belongs to, as text for people, where that is known.
    pub key: Option<String>,
    /// In a few words.
    pub detail: String,
    /// It does no harm, and nothing needs to be done about it.
    pub harmless: bool,
    /// What was done about it.
    pub repaired: Option<String>,
    /// What is left to do.
    pub advice: Option<String>,
}

impl Finding {
    pub(crate) fn new(damage: Damage, name: &Name, detail: impl Into<String>) -> Self {
        let name = name.as_str().to_owned();
        Self { damage, name, key: None, detail: detail.into(), harmless: false, repaired: None, advice: None }
    }

    pub(crate) fn unknown(name: &Name) -> Self {
        Self::new(Damage::UnknownName, name, "no name that leasehold writes").advise("look at it, and move it away")
    }

    pub(crate) fn key(mut self, key: &Key) -> Self {
        self.key = Some(key.to_string());
        self
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn harmless(mut self) -> Self {
        self.harmless = true;
        self
    }

    pub(crate) fn repaired(mut self, what: impl Into<String>) -> Self {
        self.repaired = Some(what.into());
        self.advice = None;
        self
    }

    /// Whether somebody must still do something.
    pub fn is_open(&self) -> bool {
        !self.harmless && self.repaired.is_none()
    }
}

/// What was looked at and found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Records that were looked at.
    pub records: u64,
    /// Decisions that were looked at.
    pub markers: u64,
    /// Index entries that were looked at.
    pub entries: u64,
    /// How many of each kind were found.
    pub found: BTreeMap<Damage, u64>,
    /// How many of them were repaired.
    pub repaired: u64,
    /// How many of them are harmless.
    pub harmless: u64,
    /// How many are left that somebody must do something about.
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

    /// Only looks at this namespace; without it at all of them, at decisions, and at names that are none of ours.
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

/// What stands in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Records,
    Markers,
    Entries,
}

/// A folder of ours. Ends in a slash.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    /// The namespace, or whatever else its kind has one folder for.
    pub(crate) label: String,
    pub(crate) path: String,
    pub(crate) content: Content,
}

/// A kind of record that can be damaged. A new kind is one more implementation of this; nothing in the walk changes.
#[async_trait]
pub(crate) trait Checkable: fmt::Debug + Send + Sync {
    /// The folders that it has inside of one at the top of the store; none if that is not its own.
    fn folders(&self, top: &str) -> Vec<Folder>;

    /// Looks at one object. With somebody who repairs, what can be repaired is.
    async fn check(&self, folder: &Folder, name: &Name, repair: Option<&str>) -> Result<Option<Finding>>;
}
