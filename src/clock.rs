//! Time, as a component: the wall clock, a monotonic clock and sleep come from one [`Clock`] given to the builder.
//!
//! Nothing else in the library asks the system what time it is; `clippy.toml` keeps it so. That is what lets tests
//! move time instead of waiting for it, and lets each simulated node have a clock of its own that is wrong in its own way.

use crate::BootId;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    fmt::{self, Debug},
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::Duration,
};

/// A reading of a wall clock: microseconds since 1970-01-01 UTC. May be wrong and may jump.
///
/// For people it is printed in RFC 3339; for programs (serde) it is a number, whole milliseconds since 1970, and the name of
/// such a field ends in `_ms`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.as_millis())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self::from_millis)
    }
}

impl Timestamp {
    /// From milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// From microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Whole milliseconds since 1970, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This much later; saturates at the end of time.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// This much earlier; saturates at the beginning of time.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }

    /// How long after `earlier` this is; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// How far apart the two are, whichever is later.
    pub fn distance(self, other: Self) -> Duration {
        Duration::from_micros(self.0.abs_diff(other.0))
    }

    /// This instant as a date and time in UTC; `None` outside the years that `chrono` covers.
    pub fn to_datetime(self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_micros(self.0)
    }
}

fn micros(by: Duration) -> i64 {
    let seconds = i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
    seconds.saturating_mul(1_000_000).saturating_add(i64::from(by.subsec_micros()))
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(at: DateTime<Utc>) -> Self {
        Self(at.timestamp_micros())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_datetime() {
            Some(at) => f.write_str(&at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
            None => write!(f, "{} ms since 1970", self.as_millis()),
        }
    }
}

impl Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A reading of a monotonic clock: time since an origin that means nothing outside the process. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// So long after the clock's origin.
    pub const fn from_origin(since: Duration) -> Self {
        Self(since)
    }

    /// This much later; saturates.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// How long after `earlier` this is; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from.
///
/// # Contract
/// `monotonic` never goes back and runs at the rate of real time; where the system has a clock that also counts the
/// time for which the machine was suspended, it is that one. `wall` may jump in either direction. `sleep` returns no
/// earlier than asked on the monotonic clock, and may be dropped at any time.
#[async_trait]
pub trait Clock: Debug + Send + Sync + 'static {
    /// The wall clock, as this machine believes it.
    fn wall(&self) -> Timestamp;

    /// The monotonic clock.
    fn monotonic(&self) -> Moment;

    /// Returns after `duration` on the monotonic clock.
    async fn sleep(&self, duration: Duration);

    /// Which start of which machine the monotonic clock counts from: two clocks that name the same one can be compared.
    /// `None` where that is not known. Leases in a local directory end by it.
    fn boot(&self) -> Option<BootId> {
        None
    }
}

/// What comes of `work` if it comes within `limit`.
///
/// The clock is asked for a sleep only when the work is not done at once: a sleep is an allocation and a timer.
pub(crate) async fn within<T>(clock: &dyn Clock, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut sleep) = (pin!(work), None);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        let sleep = sleep.get_or_insert_with(|| clock.sleep(limit));
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// The machine's own clocks; the default.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SystemClock;

impl SystemClock {
    /// The machine's own clocks.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
#[allow(clippy::disallowed_methods, reason = "this is the real clock that everything else is sent to")]
impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        // Without a calendar in between: this is read several times in every operation.
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => Timestamp(micros(since)),
            Err(before) => Timestamp(-micros(before.duration())),
        }
    }

    // Rust's Instant stops while a Linux machine is suspended: a holder would believe in its lease for as long as the
    // lid was closed. BOOTTIME goes on counting.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn monotonic(&self) -> Moment {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Moment(Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn monotonic(&self) -> Moment {
        static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Moment(ORIGIN.get_or_init(std::time::Instant::now).elapsed())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn boot(&self) -> Option<BootId> {
        static BOOT: std::sync::OnceLock<Option<BootId>> = std::sync::OnceLock::new();
        *BOOT.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            text.trim().replace('-', "").parse().ok()
        })
    }

    // In parts: the runtime's timers stop while the machine is suspended, and a sleep until a lease has ended must not go
    // on for as long as was left when the machine was suspended.
    async fn sleep(&self, duration: Duration) {
        let end = self.monotonic().plus(duration);
        loop {
            let left = end.since(self.monotonic());
            let part = part_of(left);
            tokio::time::sleep(part).await;
            if part == left {
                return;
            }
        }
    }
}

/// The longest that a sleep goes on after a machine was suspended past its end.
const LONGEST_PART: Duration = Duration::from_secs(5);

/// How long to sleep before looking at the clock again: a second, or for long sleeps a sixteenth of what is left, up to
/// five seconds. A look costs microseconds.
fn part_of(left: Duration) -> Duration {
    (left / 16).clamp(Duration::from_secs(1), LONGEST_PART).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_prints_as_utc_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(1_767_225_600_123).to_string(), "2026-01-01T00:00:00.123Z");
    }

    #[test]
    fn millis_round_down_also_before_1970() {
        assert_eq!(Timestamp::from_micros(-1).as_millis(), -1);
        assert_eq!(Timestamp::from_micros(1999).as_millis(), 1);
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let end = Timestamp::from_micros(i64::MAX);
        assert_eq!(end.plus(Duration::MAX), end);
        assert_eq!(end.since(Timestamp::from_micros(i64::MIN)), Duration::from_micros(i64::MAX as u64));
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
        assert_eq!(Timestamp::from_millis(5).distance(Timestamp::from_millis(9)), Duration::from_millis(4));
    }

    #[test]
    fn a_long_sleep_looks_at_the_clock_now_and_then_and_ends_when_it_should() {
        let day = Duration::from_secs(24 * 3600);
        let (mut left, mut looks) = (day, 0);
        while !left.is_zero() {
            let part = part_of(left);
            // If the machine is suspended right now, it sleeps on for so long.
            assert!(part <= Duration::from_secs(1).max(left / 16).min(Duration::from_secs(5)), "{part:?} of {left:?}");
            left -= part;
            looks += 1;
        }
        assert!(looks < 24 * 3600 / 4, "{looks} looks in a day: less than one in four seconds");
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = SystemClock::new();
        let readings: Vec<_> = (0..1000).map(|_| clock.monotonic()).collect();
        assert!(readings.is_sorted());
    }
}
