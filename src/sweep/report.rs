//! What a run of the sweeper has done.

use crate::{Error, kind::Swept};
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoppedBy {
    /// There was nothing left to look at: the pass is complete.
    Complete,
    /// It had done as much as a run may: entries looked at, and listings.
    Ops,
    /// It had taken as long as a run may.
    Time,
    /// An operation was called.
    Activity,
    /// It was told to stop.
    Stop,
    /// The store failed.
    Error,
}

impl StoppedBy {
    /// The name that metrics and JSON have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Ops => "ops",
            Self::Time => "time",
            Self::Activity => "activity",
            Self::Stop => "stop",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for StoppedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a run has done; with a dry run, what it would have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Entries that were looked at.
    pub entries_seen: u64,
    /// Listings that were asked for.
    pub lists: u64,
    /// Steps of work that is not an entry of an hour.
    pub chores: u64,
    /// What was done about each kind of record, by its name.
    pub kinds: BTreeMap<&'static str, Swept>,
    /// Index entries that were deleted.
    pub entries_deleted: u64,
    /// Index entries that were left for the next pass.
    pub entries_kept: u64,
    /// Records that could not be read or settled, names that are none of ours, and deletes that failed.
    pub failures: u64,
    /// Requests that it took.
    pub requests: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Why it ended.
    pub stopped_by: Option<StoppedBy>,
    /// The oldest hour that still had entries when the run began to look at it, as `YYYYMMDDHH`.
    pub oldest_hour: Option<String>,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

impl Report {
    /// What is counted against the most that a run may do.
    pub(super) fn ops(&self) -> u64 {
        self.entries_seen + self.lists + self.chores
    }

    /// What was done about one kind of record.
    pub fn of(&self, kind: &str) -> Swept {
        self.kinds.get(kind).copied().unwrap_or_default()
    }

    /// All kinds taken together.
    pub fn total(&self) -> Swept {
        let mut total = Swept::default();
        self.kinds.values().for_each(|swept| total.add(swept));
        total
    }

    /// With nothing done about these kinds.
    pub(super) fn of_kinds(kinds: impl Iterator<Item = &'static str>) -> Self {
        Self { kinds: kinds.map(|kind| (kind, Swept::default())).collect(), ..Self::default() }
    }

    pub(super) fn kind(&mut self, kind: &'static str) -> &mut Swept {
        self.kinds.entry(kind).or_default()
    }

    pub(super) fn fail_of(&mut self, kind: &'static str, error: &Error) {
        self.kind(kind).failures += 1;
        self.fail(error);
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.failures += 1;
        self.last_error = Some(error.to_string());
    }
}
