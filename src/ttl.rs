//! How long a lease lasts.

use crate::{Error, Result, clock::Timestamp};
use std::{fmt, time::Duration};

/// How long a lease lasts without being renewed: whole milliseconds, from one to ten years.
///
/// ```
/// use leasehold::Ttl;
/// use std::time::Duration;
///
/// let ttl = Ttl::new(Duration::from_secs(30))?;
/// assert_eq!(ttl.to_string(), "30s");
/// assert!(Ttl::new(Duration::ZERO).is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    millis: u64,
}

impl Ttl {
    /// The shortest one.
    pub const MIN: Self = Self { millis: 1 };

    /// The longest one: ten years of 365 days.
    pub const MAX: Self = Self { millis: 10 * 365 * 24 * 3600 * 1000 };

    /// Rounds down to whole milliseconds; refuses less than one of them and more than ten years.
    pub fn new(duration: Duration) -> Result<Self> {
        u64::try_from(duration.as_millis())
            .ok()
            .map(|millis| Self { millis })
            .filter(|ttl| (Self::MIN..=Self::MAX).contains(ttl))
            .ok_or_else(|| {
                Error::invalid(format!("TTL must be between 1 ms and 10 years (got {})", in_words(duration)))
            })
    }

    /// The nearest one from `min` to `max`; `max` if those are the wrong way round.
    #[must_use]
    pub fn clamp(self, min: Self, max: Self) -> Self {
        self.max(min).min(max)
    }

    /// As a [`Duration`].
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// In milliseconds.
    pub fn as_millis(self) -> u64 {
        self.millis
    }

    /// When a lease that begins `now` expires, in whole milliseconds: `now` is rounded down, so that the holder
    /// believes in exactly what is stored. Refused when the clock stands so far ahead that time would end first.
    pub fn expiry(self, now: Timestamp) -> Result<Timestamp> {
        i64::try_from(self.millis)
            .ok()
            .and_then(|millis| now.as_millis().checked_add(millis))
            .and_then(|millis| millis.checked_mul(1000))
            .map(Timestamp::from_micros)
            .ok_or_else(|| Error::invalid(format!("a TTL of {self} from {now} on is past the end of time")))
    }
}

/// A duration as people write it: `1 h 30 min`, `250 ms`.
pub(crate) fn in_words(duration: Duration) -> String {
    const UNITS: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1000, "µs"),
        (1, "ns"),
    ];
    let mut left = duration.as_nanos();
    let mut words = Vec::new();
    for (unit, name) in UNITS {
        if left >= unit {
            words.push(format!("{} {name}", left / unit));
            left %= unit;
        }
    }
    if words.is_empty() { "0 s".to_owned() } else { words.join(" ") }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;

    fn try_from(duration: Duration) -> Result<Self> {
        Self::new(duration)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let (unit, name) = UNITS.into_iter().find(|(unit, _)| self.millis.is_multiple_of(*unit)).unwrap_or((1, "ms"));
        write!(f, "{}{name}", self.millis / unit)
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_is_ten_years() {
        assert_eq!(Ttl::MAX.as_duration().as_secs(), 315_360_000);
        assert!(Ttl::new(Ttl::MAX.as_duration() + Duration::from_millis(1)).is_err());
    }

    fn millis(millis: u64) -> Ttl {
        Ttl::new(Duration::from_millis(millis)).unwrap()
    }

    proptest! {
        #[test]
        fn no_duration_and_no_clock_makes_a_ttl_panic(duration: Duration, now: i64, min: Duration, max: Duration) {
            for duration in [duration, Duration::from_millis(duration.as_secs()), duration / 1_000_000_000] {
                if let Ok(ttl) = Ttl::new(duration) {
                    prop_assert!(ttl.as_duration() <= duration);
                    prop_assert!(duration - ttl.as_duration() < Duration::from_millis(1));
                    let _ = ttl.expiry(Timestamp::from_micros(now));
                    let (min, max) = (Ttl::new(min).unwrap_or(Ttl::MIN), Ttl::new(max / 1000).unwrap_or(Ttl::MAX));
                    prop_assert!(ttl.clamp(min, max) <= max);
                    let _ = ttl.to_string();
                }
            }
        }

        #[test]
        fn an_expiry_is_the_ttl_after_the_whole_millisecond(ms in 1..=Ttl::MAX.millis, now in -1i64 << 50..1 << 55) {
            let now = Timestamp::from_micros(now);
            let expiry = millis(ms).expiry(now).unwrap();
            prop_assert_eq!(expiry.as_micros() % 1000, 0);
            prop_assert_eq!(expiry.as_millis() - now.as_millis(), i64::try_from(ms).unwrap());
        }
    }

    #[test]
    fn a_duration_reads_as_people_write_it() {
        for (millis, words) in [
            (0, "0 s"),
            (10, "10 ms"),
            (1000, "1 s"),
            (90_000, "1 min 30 s"),
            (3_600_000, "1 h"),
            (86_400_000, "1 d"),
            (359_999_996_400_000, "4166666 d 15 h"),
        ] {
            assert_eq!(in_words(Duration::from_millis(millis)), words);
        }
        assert_eq!(in_words(Duration::from_micros(999)), "999 µs");
    }

    #[test]
    fn it_reads_the_same_in_a_log() {
        let ttl = Ttl::new(Duration::from_secs(90)).unwrap();
        assert_eq!((format!("{ttl:?}"), ttl.to_string()), ("90s".into(), "90s".into()));
    }

    #[test]
    fn what_is_no_ttl_is_refused_with_the_limits_named() {
        let ten_years = Ttl::MAX.as_duration();
        let refused = [Duration::ZERO, Duration::from_micros(999), ten_years + Duration::from_millis(1), Duration::MAX];
        for duration in refused {
            let error = Ttl::new(duration).unwrap_err().to_string();
            assert!(error.contains("between 1 ms and 10 years"), "{error}");
        }
        assert_eq!(Ttl::new(ten_years).unwrap(), Ttl::MAX);
        assert_eq!(Ttl::new(Duration::from_micros(1999)).unwrap(), Ttl::MIN);
    }

    #[test]
    fn a_ttl_is_clamped_without_a_panic() {
        assert_eq!(millis(5).clamp(millis(10), millis(20)), millis(10));
        assert_eq!(millis(15).clamp(millis(10), millis(20)), millis(15));
        assert_eq!(millis(50).clamp(millis(10), millis(20)), millis(20));
        assert_eq!(millis(15).clamp(millis(20), millis(10)), millis(10));
    }

    #[test]
    fn an_expiry_past_the_end_of_time_is_refused() {
        assert!(Ttl::MIN.expiry(Timestamp::from_micros(i64::MAX)).is_err());
        assert!(Ttl::MAX.expiry(Timestamp::from_micros(i64::MIN)).is_ok());
    }

    #[test]
    fn a_ttl_prints_in_the_largest_unit_that_is_exact() {
        for (ms, text) in
            [(1, "1ms"), (1500, "1500ms"), (30_000, "30s"), (90_000, "90s"), (300_000, "5m"), (86_400_000, "1d")]
        {
            assert_eq!(millis(ms).to_string(), text);
        }
    }
}
