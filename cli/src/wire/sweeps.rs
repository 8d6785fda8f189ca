//! The sweeper: a run by hand, and what its runs have done.

use super::{maybe_whole, ms, present};
use leasehold::sweep::{Report, Run, Swept};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A sweep by hand.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweep {
    /// Only says what would be done.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Only what is in one namespace.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// How many entries to look at, at the most (1,000).
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000, value_type = u32)]
    pub(crate) max_ops: Option<u32>,
}

/// What a run of the sweeper has done.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct SweepReport {
    pub(crate) entries_seen: u64,
    /// Steps of work that is not an entry of an hour.
    pub(crate) chores: u64,
    /// What was done about each kind of record, such as `lease` and `decision`.
    pub(crate) kinds: BTreeMap<String, KindSwept>,
    pub(crate) entries_deleted: u64,
    pub(crate) entries_kept: u64,
    pub(crate) failures: u64,
    pub(crate) requests: u64,
    pub(crate) duration_ms: u64,
    /// `complete`, `ops`, `time`, `activity`, `stop` or `error`.
    pub(crate) stopped_by: Option<String>,
    pub(crate) oldest_hour: Option<String>,
    pub(crate) last_error: Option<String>,
}

/// What the sweeper has done about one kind of record.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct KindSwept {
    pub(crate) entries_seen: u64,
    /// Records that had ended and were cleared.
    pub(crate) cleared: u64,
    /// Records that went on and were filed under a later hour.
    pub(crate) moved: u64,
    /// Objects that were deleted because nobody may write them any more.
    pub(crate) deleted: u64,
    pub(crate) entries_deleted: u64,
    pub(crate) entries_kept: u64,
    pub(crate) failures: u64,
}

/// A run of the sweeper that has ended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SweepRun {
    pub(crate) ended_ms: i64,
    /// Whether somebody asked for it.
    pub(crate) by_hand: bool,
    pub(crate) report: SweepReport,
}

/// What the sweeper is doing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SweepStatus {
    /// Whether a run is under way.
    pub(crate) running: bool,
    /// How long nobody has asked for anything.
    pub(crate) idle_ms: u64,
    /// How long nobody must have asked before it begins.
    pub(crate) idle_grace_ms: u64,
    /// Until when there is nothing for it to do.
    pub(crate) rests_until_ms: Option<i64>,
    /// The last runs, the newest first.
    pub(crate) runs: Vec<SweepRun>,
}

impl From<Report> for SweepReport {
    fn from(report: Report) -> Self {
        Self {
            entries_seen: report.entries_seen,
            chores: report.chores,
            kinds: report.kinds.into_iter().map(|(kind, swept)| (kind.to_owned(), swept.into())).collect(),
            entries_deleted: report.entries_deleted,
            entries_kept: report.entries_kept,
            failures: report.failures,
            requests: report.requests,
            duration_ms: report.duration_ms,
            stopped_by: report.stopped_by.map(|by| by.as_str().to_owned()),
            oldest_hour: report.oldest_hour,
            last_error: report.last_error,
        }
    }
}

impl From<Swept> for KindSwept {
    fn from(swept: Swept) -> Self {
        Self {
            entries_seen: swept.entries_seen,
            cleared: swept.cleared,
            moved: swept.moved,
            deleted: swept.deleted,
            entries_deleted: swept.entries_deleted,
            entries_kept: swept.entries_kept,
            failures: swept.failures,
        }
    }
}

impl From<Run> for SweepRun {
    fn from(run: Run) -> Self {
        Self { ended_ms: ms(run.ended_at), by_hand: run.by_hand, report: run.report.into() }
    }
}
