//! This machine's clock and the store's, read together: what is over must be over by both.

use crate::{
    clock::Timestamp,
    planted::{Planted, planted},
};
use std::time::Duration;

/// One reading of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clocks {
    pub(crate) wall: Timestamp,
    /// Not known until the store has told it.
    pub(crate) store: Option<Timestamp>,
    /// How finely the store tells when it received something, rounded down.
    pub(crate) grain: Duration,
}

impl Clocks {
    /// Past by this machine's clock and by the store's: what is deleted must be over for everybody.
    pub(crate) fn are_past(&self, at: Timestamp) -> bool {
        self.wall > at && self.store_is_past(at)
    }

    /// Past by the store's clock, so that what it receives from now on is seen to have come later.
    pub(crate) fn store_is_past(&self, at: Timestamp) -> bool {
        planted(Planted::DeletedByLocalClock) || self.store.is_some_and(|store| store > at)
    }

    /// Whether neither is before this time.
    pub(crate) fn have_reached(&self, at: Timestamp) -> bool {
        self.wall >= at && self.store.is_some_and(|store| store >= at)
    }

    /// By whichever is later.
    pub(crate) fn latest(&self) -> Timestamp {
        self.store.map_or(self.wall, |store| store.max(self.wall))
    }
}
