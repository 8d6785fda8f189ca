//! Bugs that are put in on purpose, to see that the tests find them. None is there unless a test of this very thread
//! asks for it, and a build for production has not even the switch.

/// One mistake, each of which somebody could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it; docs/TESTING.md says how each is found")]
pub enum Planted {
    NoReadBack,
    BaseTakenAsLost,
    WriteIdReused,
    NoSkewMargin,
    TakeoverKeepsFence,
    FenceInLeaseOnly,
    IndexAfterRecord,
    CurrentHourSwept,
    FreedByDelete,
    RenewedAfterExpiry,
    DecidedWhenTooOld,
    ForgottenWithoutMargin,
    MarkerDeletedEarly,
    DeletedByLocalClock,
    HandOverUnchecked,
    CancelFreesAdopted,
    LateMarkerCounts,
    CacheTrusted,
    JudgedDropped,
    EntryBeforeMarker,
    LateVerdictBelieved,
    ToldOfOwnLease,
    ForgottenByOldAnswer,
    UndecidedByOneClock,
    VoidMarkerLeft,
    StampIgnored,
    DateEndsLease,
    LeaseBeforeTime,
    LastsFromBelief,
    MonotonicAfterAnswer,
    BeliefRevived,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::NoReadBack,
        Self::BaseTakenAsLost,
        Self::WriteIdReused,
        Self::NoSkewMargin,
        Self::TakeoverKeepsFence,
        Self::FenceInLeaseOnly,
        Self::IndexAfterRecord,
        Self::CurrentHourSwept,
        Self::FreedByDelete,
        Self::RenewedAfterExpiry,
        Self::DecidedWhenTooOld,
        Self::ForgottenWithoutMargin,
        Self::MarkerDeletedEarly,
        Self::DeletedByLocalClock,
        Self::HandOverUnchecked,
        Self::CancelFreesAdopted,
        Self::LateMarkerCounts,
        Self::CacheTrusted,
        Self::JudgedDropped,
        Self::EntryBeforeMarker,
        Self::LateVerdictBelieved,
        Self::ToldOfOwnLease,
        Self::ForgottenByOldAnswer,
        Self::UndecidedByOneClock,
        Self::VoidMarkerLeft,
        Self::StampIgnored,
        Self::DateEndsLease,
        Self::LeaseBeforeTime,
        Self::LastsFromBelief,
        Self::MonotonicAfterAnswer,
        Self::BeliefRevived,
    ];

    /// From now on this thread has this bug, or none.
    #[cfg(all(feature = "testkit", debug_assertions))]
    pub fn plant(bug: Option<Self>) {
        switch::PLANTED.set(bug);
    }
}

#[cfg(all(feature = "testkit", debug_assertions))]
mod switch {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }
}

/// Whether this bug is in.
#[cfg(all(feature = "testkit", debug_assertions))]
pub(crate) fn planted(bug: Planted) -> bool {
    switch::PLANTED.get() == Some(bug)
}

/// No bug is ever in.
#[cfg(not(all(feature = "testkit", debug_assertions)))]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}
