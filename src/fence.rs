//! Fences: the numbers by which a resource tells a holder from one that has lost its lease.

use crate::{Error, Result, clock::Timestamp};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Further than this beyond the skew no clock is from the store's that still grants.
const WRONGEST: Duration = Duration::from_secs(12);

/// The first number that is no fence: JSON readers that count in floating point are exact below it.
const LIMIT: u64 = 1 << 53;

/// Rises strictly with every grant of a key and is never used twice: a protected resource refuses a fence that is lower
/// than one that it has seen.
///
/// A fence is the time of its grant in microseconds since 1970, or one more than the last one if that is higher. So
/// it rises also over a record that an operator has removed, and over a bucket that was restored from a backup. At least
/// 1 (an unset field is 0) and below 2^53.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Fence(u64);

impl Fence {
    /// A fence as it was handed on. 0, and 2^53 and more, are [`Invalid`](crate::ErrorKind::Invalid): no grant has them.
    pub fn new(number: u64) -> Result<Self> {
        if (1..LIMIT).contains(&number) {
            Ok(Self(number))
        } else {
            Err(Error::invalid(format!("a fence must be between 1 and 2^53 - 1 (got {number})")))
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The fence of the next grant: `max(last + 1, now)`, or with no `last` that of [`first`](Self::first).
    ///
    /// `last` is the highest fence that the record or this process knows for the key. Where the record is missing,
    /// ask [`first`](Self::first), also when the process remembers a fence.
    ///
    /// ```
    /// use leasehold::{Fence, clock::Timestamp};
    /// use std::time::Duration;
    ///
    /// let (now, skew) = (Timestamp::from_micros(5_000_000), Duration::from_secs(1));
    /// let first = Fence::next(None, now, skew)?;
    /// assert_eq!(first.get(), 31_000_000);
    /// assert_eq!(Fence::next(Some(first), now, skew)?.get(), 31_000_001);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn next(last: Option<Self>, now: Timestamp, max_clock_skew: Duration) -> Result<Self> {
        match last {
            Some(_) => Self::above(last, now, Duration::ZERO),
            None => Self::first(None, now, max_clock_skew),
        }
    }

    /// The fence of a grant on a key that has no record: `max(known + 1, now + 2 × (max_clock_skew + 12 s))`, where `now`
    /// is the latest that it can be by the store's clock.
    ///
    /// There may have been a record, removed since, whose fence came from the clock of a machine that was wrong by as much
    /// as one may be that still grants, and what this process remembers of the key, `known`, may be older than that fence.
    #[doc(hidden)]
    pub fn first(known: Option<Self>, now: Timestamp, max_clock_skew: Duration) -> Result<Self> {
        Self::above(known, now, max_clock_skew.saturating_add(WRONGEST).saturating_mul(2))
    }

    fn above(last: Option<Self>, now: Timestamp, ahead: Duration) -> Result<Self> {
        // A clock before 1970 is wrong, but a fence only has to rise.
        let now_micros = u64::try_from(now.as_micros()).unwrap_or(0);
        let time = u64::try_from(ahead.as_micros()).ok().and_then(|ahead| now_micros.checked_add(ahead));
        // `last` is below 2^53.
        let after_last = last.map_or(1, |last| last.0 + 1);
        match time.map(|time| time.max(after_last)) {
            Some(number) if number < LIMIT => Ok(Self(number)),
            _ => Err(Error::corrupt(format!(
                "no fence is left below 2^53: the last one is {}, and the clock reads {now}",
                last.map_or_else(|| "none".to_owned(), |last| last.to_string()),
            ))),
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<u64> for Fence {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self> {
        Self::new(number)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::{collection::vec, prelude::*};

    const SKEW: Duration = Duration::from_secs(1);

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_fence_reads_as_its_number() {
        let fence = Fence::new(42).unwrap();
        assert_eq!((fence.to_string(), format!("{fence:?}"), u64::from(fence)), ("42".into(), "42".into(), 42));
        assert_eq!(format!("{fence:>4}"), "  42");
    }

    proptest! {
        #[test]
        fn a_fence_rises_strictly_whatever_the_clocks_do(clocks in vec(-5_000_000i64..1 << 52, 1..50)) {
            let mut last = None;
            for now in clocks {
                let fence = Fence::next(last, at(now), SKEW).unwrap();
                prop_assert!(Some(fence) > last);
                prop_assert!(i64::try_from(fence.get()).unwrap() >= now);
                prop_assert!(Fence::first(last, at(now), SKEW).unwrap() >= fence);
                last = Some(fence);
            }
        }

        #[test]
        fn a_fence_rises_or_is_refused_and_never_wraps(last: u64, now: i64, skew: Duration) {
            let last = Fence::new(last % LIMIT).ok();
            for fence in [Fence::next(last, at(now), skew), Fence::first(last, at(now), skew)] {
                match fence {
                    Ok(fence) => prop_assert!(Some(fence) > last && fence.get() < LIMIT),
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
                }
            }
        }
    }

    #[test]
    fn a_grant_takes_the_time_or_one_more_than_the_last() {
        let last = Fence::new(1000).unwrap();
        assert_eq!(Fence::next(Some(last), at(5000), SKEW).unwrap().get(), 5000);
        assert_eq!(Fence::next(Some(last), at(1000), SKEW).unwrap().get(), 1001);
        assert_eq!(Fence::next(Some(last), at(-7), SKEW).unwrap().get(), 1001);
    }

    #[test]
    fn a_missing_record_is_outrun_by_the_skew_even_if_an_older_fence_is_remembered() {
        let known = Fence::new(4000).unwrap();
        let removed = Fence::next(Some(known), at(5000).plus(SKEW).minus(Duration::from_micros(1)), SKEW).unwrap();
        assert!(Fence::first(Some(known), at(5000), SKEW).unwrap() > removed);
        assert!(Fence::first(None, at(5000), SKEW).unwrap() > removed);
        let ahead = Fence::new(90_000_000).unwrap();
        assert_eq!(Fence::first(Some(ahead), at(5000), SKEW).unwrap().get(), 90_000_001);
    }

    #[test]
    fn a_clock_before_1970_still_gives_a_fence() {
        assert_eq!(Fence::next(None, at(i64::MIN), Duration::ZERO).unwrap().get(), 24_000_000);
        assert_eq!(Fence::next(None, at(-1), SKEW).unwrap().get(), 26_000_000);
    }

    #[test]
    fn the_last_fence_is_followed_by_none() {
        let last = Fence::new(LIMIT - 1).unwrap();
        let before = Fence::new(LIMIT - 2).unwrap();
        assert_eq!(Fence::next(Some(before), at(0), SKEW).unwrap(), last);
        for refused in [
            Fence::next(Some(last), at(0), SKEW),
            Fence::next(Some(before), at(1 << 53), SKEW),
            Fence::next(None, at(i64::MAX), Duration::MAX),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
        }
        for number in [LIMIT, u64::MAX, 0] {
            assert_eq!(Fence::new(number).unwrap_err().kind(), ErrorKind::Invalid, "an argument, not what is stored");
        }
        assert!(serde_json::from_str::<Fence>("9007199254740992").is_err());
        for json in ["1.5", "1e3", "-1", "0", "\"1\"", "null", "[1]", "18446744073709551616"] {
            assert!(serde_json::from_str::<Fence>(json).is_err(), "{json}");
        }
        assert_eq!(serde_json::from_str::<Fence>("9007199254740991").unwrap(), last);
    }
}
