//! What the sweeper has done about the records of one kind.

use serde::Serialize;

/// What the sweeper has done about the records of one kind; with a dry run, what it would have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// Entries that were looked at.
    pub entries_seen: u64,
    /// Records that had ended and were cleared by a compare-and-swap.
    pub cleared: u64,
    /// Records that went on and were filed under a later hour.
    pub moved: u64,
    /// Objects that were deleted because no process may write them any more.
    pub deleted: u64,
    /// Index entries that were deleted.
    pub entries_deleted: u64,
    /// Index entries that were left for the next pass.
    pub entries_kept: u64,
    /// Records that could not be read or settled, names that are none of ours, deletes and chores that failed.
    pub failures: u64,
}

impl Swept {
    /// Every count by its name.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 7] {
        [
            ("seen", self.entries_seen),
            ("cleared", self.cleared),
            ("moved", self.moved),
            ("deleted", self.deleted),
            ("entry_deleted", self.entries_deleted),
            ("entry_kept", self.entries_kept),
            ("failed", self.failures),
        ]
    }

    /// One more of everything that `more` has.
    pub(crate) fn add(&mut self, more: &Self) {
        self.entries_seen += more.entries_seen;
        self.cleared += more.cleared;
        self.moved += more.moved;
        self.deleted += more.deleted;
        self.entries_deleted += more.entries_deleted;
        self.entries_kept += more.entries_kept;
        self.failures += more.failures;
    }
}
