//! Runs: neighbours in a segment that are alike and are kept as one.

use super::{ClaimId, Millis};
use std::sync::Arc;

/// Indexes of one segment, from the first to before the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Range {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Range {
    pub(crate) fn one(index: u16) -> Self {
        Self { from: index, to: index.saturating_add(1) }
    }

    pub(crate) fn len(self) -> u16 {
        self.to.saturating_sub(self.from)
    }

    pub(crate) fn contains(self, index: u16) -> bool {
        (self.from..self.to).contains(&index)
    }
}

/// Puts a range into a list that is kept in order and without neighbours that touch.
pub(crate) fn insert_range(ranges: &mut Vec<Range>, range: Range) {
    let at = ranges.partition_point(|known| known.from < range.from);
    ranges.insert(at, range);
    if at + 1 < ranges.len() && ranges[at].to == ranges[at + 1].from {
        ranges[at].to = ranges[at + 1].to;
        ranges.remove(at + 1);
    }
    if at > 0 && ranges[at - 1].to == ranges[at].from {
        ranges[at - 1].to = ranges[at].to;
        ranges.remove(at);
    }
}

/// Why a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Why {
    /// It was never claimed here.
    #[default]
    New,
    /// Its last attempt failed.
    Failed,
    /// Its handler asked for a later time.
    Snoozed,
    /// It was given back.
    Returned,
    /// Its process died.
    Stalled,
}

impl Why {
    /// Whether the attempt that it comes from may still finish it, as long as nobody has claimed it again.
    pub(crate) fn may_still_finish(self) -> bool {
        matches!(self, Self::Returned | Self::Stalled)
    }
}

/// What neighbours in a run have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Traits {
    pub(crate) priority: i16,
    pub(crate) due: Millis,
    /// 0 for none.
    pub(crate) tenant: u32,
    /// 0 for none.
    pub(crate) key: u64,
    /// Attempts that failed.
    pub(crate) attempts: u32,
    /// Times in a row that it was alone when its process died.
    pub(crate) stalls: u8,
    /// It came back from a dead process: no more than this many of its kind are in one hand. 0: it did not.
    pub(crate) group: u16,
    pub(crate) why: Why,
    /// The claim that it was last under.
    pub(crate) claim: Option<ClaimId>,
    pub(crate) paused: bool,
    /// What its last failed attempt said.
    pub(crate) error: Option<Arc<str>>,
}

/// Neighbours that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Run {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) traits: Traits,
}

impl Run {
    pub(crate) fn range(&self) -> Range {
        Range { from: self.from, to: self.to }
    }

    pub(crate) fn len(&self) -> u16 {
        self.range().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
