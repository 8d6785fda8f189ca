//! This machine's clock and the store's, read together: what is over must be over by both.

use crate::clock::Timestamp;
use std::time::Duration;

/// One reading of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// This machine's.
    pub wall: Timestamp,
    /// Not known until the store has told it.
    pub store: Option<Timestamp>,
    /// How finely the store tells when it received something, rounded down.
    pub grain: Duration,
}

impl Clocks {
    /// Past by this machine's clock and by the store's: what is deleted must have expired for all processes.
    pub fn are_past(&self, at: Timestamp) -> bool {
        self.wall > at && self.store_is_past(at)
    }

    /// Past by the store's clock, so that what it receives from now on is seen to have come later.
    pub fn store_is_past(&self, at: Timestamp) -> bool {
        self.store.is_some_and(|store| store > at)
    }

    /// Whether neither is before this time.
    pub fn have_reached(&self, at: Timestamp) -> bool {
        self.wall >= at && self.store.is_some_and(|store| store >= at)
    }

    /// By the earlier of the two.
    pub fn earliest(&self) -> Timestamp {
        self.store.map_or(self.wall, |store| store.min(self.wall))
    }

    /// By the later of the two.
    pub fn latest(&self) -> Timestamp {
        self.store.map_or(self.wall, |store| store.max(self.wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_is_past_by_both_and_not_at_the_very_moment() {
        let at = Timestamp::from_millis;
        let clocks = |wall, store: Option<i64>| Clocks { wall: at(wall), store: store.map(at), grain: Duration::ZERO };
        let judged = |clocks: Clocks| (clocks.are_past(at(10)), clocks.have_reached(at(10)), clocks.latest());
        assert_eq!(judged(clocks(11, Some(11))), (true, true, at(11)));
        assert_eq!(judged(clocks(10, Some(11))), (false, true, at(11)));
        assert_eq!(judged(clocks(11, Some(10))), (false, true, at(11)));
        assert_eq!(judged(clocks(10, Some(10))), (false, true, at(10)));
        assert_eq!(judged(clocks(9, Some(11))), (false, false, at(11)));
        assert_eq!(judged(clocks(11, Some(9))), (false, false, at(11)));
        assert_eq!(judged(clocks(11, None)), (false, false, at(11)));
    }
}
