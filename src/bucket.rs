//! Buckets: the hours by which the expiry index is filed.

use crate::{Error, Result, clock::Timestamp};
use chrono::{DateTime, Datelike, NaiveDate, Timelike};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const SECONDS: i64 = 3600;
const MICROS: i64 = SECONDS * 1_000_000;

/// One hour in UTC, written `YYYYMMDDHH`: the hour in which a record expires.
///
/// All names are ten digits long, so the order of names is the order of time. Covers the years 0000 to 9999.
///
/// ```
/// use leasehold::{Bucket, clock::Timestamp};
///
/// let bucket = Bucket::of(Timestamp::from_millis(1_767_225_600_000))?;
/// assert_eq!(bucket.to_string(), "2026010100");
/// assert_eq!("2026010100".parse::<Bucket>()?, bucket);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bucket {
    /// Hours since 1970, of a year from 0000 to 9999.
    hours: i64,
}

impl Bucket {
    const FIRST: Self = Self { hours: -719_528 * 24 };
    const LAST: Self = Self { hours: 2_932_897 * 24 - 1 };

    /// The hour that this instant is in; refused outside the years 0000 to 9999.
    pub fn of(at: Timestamp) -> Result<Self> {
        Self::from_hours(at.as_micros().div_euclid(MICROS)).ok_or_else(|| {
            Error::invalid(format!("{at} is in no hour that can be filed: years 0000 to 9999 are allowed"))
        })
    }

    /// Its first instant.
    pub fn start(self) -> Timestamp {
        Timestamp::from_micros(self.hours * MICROS)
    }

    /// The first instant after it.
    pub fn end(self) -> Timestamp {
        Timestamp::from_micros((self.hours + 1) * MICROS)
    }

    /// The hour after it; none after the last hour of the year 9999.
    pub fn next(self) -> Option<Self> {
        Self::from_hours(self.hours + 1)
    }

    /// Its name as a number, for records.
    pub(crate) fn number(self) -> u64 {
        let Some(start) = DateTime::from_timestamp(self.hours * SECONDS, 0) else { return 0 };
        let year = u64::try_from(start.year()).unwrap_or(0);
        [start.month(), start.day(), start.hour()].into_iter().fold(year, |number, two| number * 100 + u64::from(two))
    }

    pub(crate) fn from_number(number: u64) -> Result<Self> {
        hour_of(number).ok_or_else(|| no_hour(&format!("{number:010}")))
    }

    fn from_hours(hours: i64) -> Option<Self> {
        (Self::FIRST.hours..=Self::LAST.hours).contains(&hours).then_some(Self { hours })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = DateTime::from_timestamp(self.hours * SECONDS, 0).ok_or(fmt::Error)?;
        write!(f, "{:04}{:02}{:02}{:02}", start.year(), start.month(), start.day(), start.hour())
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Bucket {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        parse(name).ok_or_else(|| no_hour(name))
    }
}

fn no_hour(name: &str) -> Error {
    Error::invalid(format!("a bucket is a real UTC hour, YYYYMMDDHH, not {name:?}"))
}

fn parse(name: &str) -> Option<Bucket> {
    if name.len() != 10 || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    hour_of(name.parse().ok()?)
}

fn hour_of(number: u64) -> Option<Bucket> {
    let two = |above: u64| u32::try_from(number / above % 100).ok();
    let year = i32::try_from(number / 1_000_000).ok()?;
    let start = NaiveDate::from_ymd_opt(year, two(10_000)?, two(100)?)?.and_hms_opt(two(1)?, 0, 0)?.and_utc();
    Bucket::from_hours(start.timestamp().div_euclid(SECONDS))
}

impl TryFrom<String> for Bucket {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<Bucket> for String {
    fn from(bucket: Bucket) -> Self {
        bucket.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(name: &str) -> Bucket {
        name.parse().unwrap()
    }

    fn hours() -> impl Strategy<Value = Bucket> {
        (Bucket::FIRST.hours..=Bucket::LAST.hours).prop_map(|hours| Bucket { hours })
    }

    #[test]
    fn it_reads_the_same_in_a_log() {
        assert_eq!(format!("{:?}", "2026010113".parse::<Bucket>().unwrap()), "2026010113");
    }

    #[test]
    fn a_bucket_reads_as_its_name() {
        let bucket = bucket("2026010100");
        assert_eq!((format!("{bucket:?}").as_str(), String::from(bucket).as_str()), ("2026010100", "2026010100"));
    }

    proptest! {
        #[test]
        fn the_bucket_of_an_expiry_contains_it(bucket in hours(), into in 0..MICROS) {
            let at = Timestamp::from_micros(bucket.start().as_micros() + into);
            prop_assert_eq!(Bucket::of(at).unwrap(), bucket);
            prop_assert!(bucket.start() <= at && at < bucket.end());
        }

        #[test]
        fn any_reading_of_a_clock_has_a_bucket_or_an_error(micros: i64) {
            let at = Timestamp::from_micros(micros);
            if let Ok(bucket) = Bucket::of(at) {
                prop_assert!(bucket.start() <= at && at < bucket.end());
            }
        }

        #[test]
        fn the_order_of_names_is_the_order_of_time(one in hours(), other in hours()) {
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
            prop_assert_eq!(one.cmp(&other), one.start().cmp(&other.start()));
        }

        #[test]
        fn a_bucket_survives_its_name(bucket in hours()) {
            prop_assert_eq!(bucket.to_string().len(), 10);
            prop_assert_eq!(bucket.to_string().parse::<Bucket>().unwrap(), bucket);
            if let Some(next) = bucket.next() {
                prop_assert_eq!(next.start(), bucket.end());
                prop_assert!(next.to_string() > bucket.to_string());
            }
        }

        #[test]
        fn a_bucket_survives_its_number_which_is_its_name(bucket in hours()) {
            prop_assert_eq!(format!("{:010}", bucket.number()), bucket.to_string());
            prop_assert_eq!(Bucket::from_number(bucket.number()).unwrap(), bucket);
        }

        #[test]
        fn a_number_is_a_bucket_if_it_is_the_name_of_one(number in 0..20_000_000_000_u64) {
            let read = Bucket::from_number(number);
            prop_assert_eq!(read.ok(), format!("{number:010}").parse::<Bucket>().ok());
        }

        #[test]
        fn what_is_read_as_a_name_is_what_would_be_written(name in "[0-2][0-9]{3}[01][0-9][0-3][0-9][0-2][0-9]") {
            if let Ok(bucket) = name.parse::<Bucket>() {
                prop_assert_eq!(bucket.to_string(), name);
            }
        }
    }

    #[test]
    fn an_hour_begins_with_its_first_microsecond_and_ends_before_the_next() {
        let at = bucket("2026010100");
        assert_eq!(at.start(), Timestamp::from_millis(1_767_225_600_000));
        let last = Timestamp::from_micros(at.start().as_micros() - 1);
        assert_eq!(Bucket::of(last).unwrap(), bucket("2025123123"));
        assert_eq!(Bucket::of(at.start()).unwrap(), at);
    }

    #[test]
    fn time_before_1970_is_filed_like_any_other() {
        assert_eq!(Bucket::of(Timestamp::from_micros(-1)).unwrap(), bucket("1969123123"));
        assert_eq!(Bucket::of(Timestamp::from_micros(0)).unwrap(), bucket("1970010100"));
    }

    #[test]
    fn the_years_end_at_0000_and_9999() {
        assert_eq!(Bucket::FIRST, bucket("0000010100"));
        assert_eq!(Bucket::LAST, bucket("9999123123"));
        assert_eq!(Bucket::LAST.next(), None);
        for at in [Bucket::LAST.end(), Timestamp::from_micros(i64::MAX), Timestamp::from_micros(i64::MIN)] {
            let error = Bucket::of(at).unwrap_err().to_string();
            assert!(error.contains("0000 to 9999"), "{error}");
        }
        assert!(Bucket::of(Timestamp::from_micros(Bucket::FIRST.start().as_micros() - 1)).is_err());
    }

    #[test]
    fn what_is_no_real_hour_is_refused() {
        let refused = [
            "",
            "2026023014",
            "2026022914",
            "2026013224",
            "2026130100",
            "2026000100",
            "2026010000",
            "2026010124",
            "202601010",
            "20260101000",
            "+026010100",
            "2026-01-01",
            "2026 10100",
            "２026010100",
            "é26010100",
        ];
        for name in refused {
            assert!(name.parse::<Bucket>().is_err(), "{name}");
        }
        assert_eq!(bucket("2024022923").next(), Some(bucket("2024030100")));
    }
}
