//! What a run of the sweeper has done.

use crate::Error;
use serde::Serialize;
use std::fmt;

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
    /// Somebody asked for something.
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
    /// Leases that had ended and were cleared.
    pub leases_cleared: u64,
    /// Decisions whose time was over and that were deleted.
    pub markers_deleted: u64,
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
        self.entries_seen + self.lists
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.failures += 1;
        self.last_error = Some(error.to_string());
    }
}
