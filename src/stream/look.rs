//! How old a look at the store is, and what may still be believed of it. The rules of stale appenders and readers.
//!
//! A trimmer deletes only what is at least an [hour](TRIM_AGE) old, and raises the boundary before it does. So whatever was
//! seen to be missing less than [half an hour](FRESH) ago cannot have come and gone since.

use crate::{
    clock::{Moment, Timestamp},
    storage::{Backend, Interval},
};
use std::time::Duration;

/// Only segments that are at least so old by the store's own times are trimmed.
pub(crate) const TRIM_AGE: Duration = Duration::from_secs(3600);

/// For so long a look at the end of a log counts.
pub(crate) const FRESH: Duration = Duration::from_secs(30 * 60);

/// When something was asked for, by our clock and by the store's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    moment: Moment,
    store: Option<Interval>,
}

impl Look {
    /// Taken before the request is sent.
    pub(crate) fn now(backend: &Backend) -> Self {
        // What is known of the time of a store that has to be asked goes by our clock, which may have stood still.
        let store = if backend.must_be_asked_for_the_time() { None } else { backend.store_interval() };
        Self { moment: backend.clock.monotonic(), store }
    }

    /// How long ago that was, by whichever clock says more; `None` if the store does not tell.
    pub(crate) fn age(&self, backend: &Backend) -> Option<Duration> {
        let by_store = backend.latest_store_time()?.since(self.store?.lower);
        Some(by_store.max(backend.clock.monotonic().since(self.moment)))
    }

    /// Whether what was seen then may have changed unseen.
    pub(crate) fn is_stale(&self, backend: &Backend) -> bool {
        is_stale(self.age(backend))
    }

    /// The store's time, at the least.
    pub(crate) fn store_time(&self) -> Option<Timestamp> {
        self.store.map(|store| store.lower)
    }
}

/// The rule: what cannot be told counts as old.
pub(crate) fn is_stale(age: Option<Duration>) -> bool {
    age.is_none_or(|age| age > FRESH)
}

/// What a reader knows about the number that it asks for next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    /// The log began no later than here when it was that late by the store's clock.
    pub(crate) boundary: Option<(u64, Timestamp)>,
    /// When the store received the segment before it.
    pub(crate) before: Option<Timestamp>,
    /// For how long it is known to have been missing at most: `Some(None)` if that cannot be told.
    pub(crate) missing_for: Option<Option<Duration>>,
}

/// Whether a segment that was found is part of the log, and not what a stale appender left below its beginning.
///
/// Such a one is written after the boundary was raised above it, so at least an hour after the segment before it.
pub(crate) fn is_genuine(number: u64, received: Timestamp, known: &Known) -> bool {
    let since_boundary = known.boundary.is_some_and(|(first, at)| first <= number && received < at);
    let after_the_last = known.before.is_some_and(|before| received.since(before) < FRESH);
    since_boundary || after_the_last || known.missing_for.is_some_and(|age| !is_stale(age))
}

/// Whether a number that is not there is the end of the log, and was not trimmed.
pub(crate) fn is_the_end(now: Option<Timestamp>, known: &Known) -> bool {
    let young = known.before.zip(now).is_some_and(|(before, now)| now.since(before) < FRESH);
    young || known.missing_for.is_some_and(|age| !is_stale(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_millis(minutes * 60_000)
    }

    const fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    #[test]
    fn a_look_counts_for_half_an_hour_and_not_at_all_if_its_age_is_unknown() {
        assert!(!is_stale(Some(minutes(30))));
        assert!(is_stale(Some(minutes(31))));
        assert!(is_stale(None));
        assert!(2 * FRESH <= TRIM_AGE);
    }

    #[test]
    fn a_segment_is_genuine_if_it_came_before_the_boundary_or_soon_after_the_last() {
        let known = Known { boundary: Some((5, at(100))), ..Known::default() };
        assert!(is_genuine(5, at(99), &known));
        assert!(!is_genuine(5, at(100), &known), "it may have been written after the boundary was raised again");
        assert!(!is_genuine(4, at(99), &known));
        let known = Known { before: Some(at(50)), ..Known::default() };
        assert!(is_genuine(5, at(79), &known));
        assert!(!is_genuine(5, at(81), &known));
        let known = Known { missing_for: Some(Some(minutes(20))), ..Known::default() };
        assert!(is_genuine(5, at(500), &known));
        assert!(!is_genuine(5, at(500), &Known { missing_for: Some(None), ..known }));
        assert!(!is_genuine(5, at(500), &Known::default()));
    }

    #[test]
    fn a_missing_number_is_the_end_if_the_one_before_is_young_or_it_was_missing() {
        let known = Known { before: Some(at(50)), ..Known::default() };
        assert!(is_the_end(Some(at(79)), &known));
        assert!(!is_the_end(Some(at(81)), &known), "both may have been trimmed since");
        assert!(!is_the_end(None, &known));
        assert!(is_the_end(None, &Known { missing_for: Some(Some(minutes(29))), ..Known::default() }));
        assert!(!is_the_end(Some(at(0)), &Known { missing_for: Some(Some(minutes(31))), ..Known::default() }));
    }
}
