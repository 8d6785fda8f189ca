//! What is assumed of time: by clocks, writes and stores. Everything that a bound rests on stands here.

use std::time::Duration;

/// The longest that a write may take to land after its client gave up.
pub(crate) const LONGEST_WRITE: Duration = Duration::from_secs(60);

/// An answer that was under way for longer than this does not tell the time.
pub(crate) const DATE_SLACK: Duration = Duration::from_secs(60);

/// How much further than `max_clock_skew` a clock may certainly be from the store's and still be used.
const FAR_OFF: Duration = Duration::from_secs(10);

/// A store's times are cut to whole seconds.
pub(crate) const GRAIN: Duration = Duration::from_secs(1);

/// What stamps of one store may differ by without that having been measured.
pub(crate) const STAMP_SLACK: Duration = Duration::from_secs(2);

/// Stamps that differ by more than this do not end leases.
pub(crate) const LONGEST_SPREAD: Duration = Duration::from_secs(60);

/// A probe older than this is not trusted any more, and a measured spread is forgotten.
pub(crate) const PROBE_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is known of the time now may be behind what another process knew when it noted its probe.
pub(crate) const NOT_YET: Duration = Duration::from_secs(2);

/// Whether a clock that is certainly so far from the store's is wrong.
pub(crate) fn is_wrong(distance: Duration, max_clock_skew: Duration) -> bool {
    distance > max_clock_skew
}

/// Whether a clock that is certainly so far from the store's must not grant, take over, clear, decide or delete.
pub(crate) fn is_far_off(distance: Duration, max_clock_skew: Duration) -> bool {
    distance > max_clock_skew + FAR_OFF
}

/// `margin` and `hour_grace` must be longer than this. About late writes, and not about which clock is trusted.
pub(crate) fn least_margin(max_clock_skew: Duration) -> Duration {
    2 * (max_clock_skew + DATE_SLACK) + LONGEST_WRITE
}
