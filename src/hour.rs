//! Hours by which the expiry index is filed.

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
/// use leasehold::{Hour, clock::Timestamp};
///
/// let hour = Hour::of(Timestamp::from_millis(1_767_225_600_000))?;
/// assert_eq!(hour.to_string(), "2026010100");
/// assert_eq!("2026010100".parse::<Hour>()?, hour);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hour {
    /// Hours since 1970, of a year from 0000 to 9999.
    hours: i64,
}

impl Hour {
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

impl fmt::Display for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = DateTime::from_timestamp(self.hours * SECONDS, 0).ok_or(fmt::Error)?;
        write!(f, "{:04}{:02}{:02}{:02}", start.year(), start.month(), start.day(), start.hour())
    }
}

impl fmt::Debug for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hour {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        parse(name).ok_or_else(|| no_hour(name))
    }
}

fn no_hour(name: &str) -> Error {
    Error::invalid(format!("an hour is a real UTC hour, YYYYMMDDHH, not {name:?}"))
}

fn parse(name: &str) -> Option<Hour> {
    if name.len() != 10 || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    hour_of(name.parse().ok()?)
}

fn hour_of(number: u64) -> Option<Hour> {
    let two = |above: u64| u32::try_from(number / above % 100).ok();
    let year = i32::try_from(number / 1_000_000).ok()?;
    let start = NaiveDate::from_ymd_opt(year, two(10_000)?, two(100)?)?.and_hms_opt(two(1)?, 0, 0)?.and_utc();
    Hour::from_hours(start.timestamp().div_euclid(SECONDS))
}

impl TryFrom<String> for Hour {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<Hour> for String {
    fn from(hour: Hour) -> Self {
        hour.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hour(name: &str) -> Hour {
        name.parse().unwrap()
    }

    fn hours() -> impl Strategy<Value = Hour> {
        (Hour::FIRST.hours..=Hour::LAST.hours).prop_map(|hours| Hour { hours })
    }

    #[test]
    fn it_reads_the_same_in_a_log() {
        assert_eq!(format!("{:?}", "2026010113".parse::<Hour>().unwrap()), "2026010113");
    }

    #[test]
    fn an_hour_reads_as_its_name() {
        let hour = hour("2026010100");
        assert_eq!((format!("{hour:?}").as_str(), String::from(hour).as_str()), ("2026010100", "2026010100"));
    }

    proptest! {
        #[test]
        fn the_hour_of_an_expiry_contains_it(hour in hours(), into in 0..MICROS) {
            let at = Timestamp::from_micros(hour.start().as_micros() + into);
            prop_assert_eq!(Hour::of(at).unwrap(), hour);
            prop_assert!(hour.start() <= at && at < hour.end());
        }

        #[test]
        fn any_reading_of_a_clock_has_an_hour_or_an_error(micros: i64) {
            let at = Timestamp::from_micros(micros);
            if let Ok(hour) = Hour::of(at) {
                prop_assert!(hour.start() <= at && at < hour.end());
            }
        }

        #[test]
        fn the_order_of_names_is_the_order_of_time(one in hours(), other in hours()) {
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
            prop_assert_eq!(one.cmp(&other), one.start().cmp(&other.start()));
        }

        #[test]
        fn an_hour_survives_its_name(hour in hours()) {
            prop_assert_eq!(hour.to_string().len(), 10);
            prop_assert_eq!(hour.to_string().parse::<Hour>().unwrap(), hour);
            if let Some(next) = hour.next() {
                prop_assert_eq!(next.start(), hour.end());
                prop_assert!(next.to_string() > hour.to_string());
            }
        }

        #[test]
        fn an_hour_survives_its_number_which_is_its_name(hour in hours()) {
            prop_assert_eq!(format!("{:010}", hour.number()), hour.to_string());
            prop_assert_eq!(Hour::from_number(hour.number()).unwrap(), hour);
        }

        #[test]
        fn a_number_is_an_hour_if_it_is_the_name_of_one(number in 0..20_000_000_000_u64) {
            let read = Hour::from_number(number);
            prop_assert_eq!(read.ok(), format!("{number:010}").parse::<Hour>().ok());
        }

        #[test]
        fn what_is_read_as_a_name_is_what_would_be_written(name in "[0-2][0-9]{3}[01][0-9][0-3][0-9][0-2][0-9]") {
            if let Ok(hour) = name.parse::<Hour>() {
                prop_assert_eq!(hour.to_string(), name);
            }
        }
    }

    #[test]
    fn an_hour_begins_with_its_first_microsecond_and_ends_before_the_next() {
        let at = hour("2026010100");
        assert_eq!(at.start(), Timestamp::from_millis(1_767_225_600_000));
        let last = Timestamp::from_micros(at.start().as_micros() - 1);
        assert_eq!(Hour::of(last).unwrap(), hour("2025123123"));
        assert_eq!(Hour::of(at.start()).unwrap(), at);
    }

    #[test]
    fn time_before_1970_is_filed_like_any_other() {
        assert_eq!(Hour::of(Timestamp::from_micros(-1)).unwrap(), hour("1969123123"));
        assert_eq!(Hour::of(Timestamp::from_micros(0)).unwrap(), hour("1970010100"));
    }

    #[test]
    fn the_years_end_at_0000_and_9999() {
        assert_eq!(Hour::FIRST, hour("0000010100"));
        assert_eq!(Hour::LAST, hour("9999123123"));
        assert_eq!(Hour::LAST.next(), None);
        for at in [Hour::LAST.end(), Timestamp::from_micros(i64::MAX), Timestamp::from_micros(i64::MIN)] {
            let error = Hour::of(at).unwrap_err().to_string();
            assert!(error.contains("0000 to 9999"), "{error}");
        }
        assert!(Hour::of(Timestamp::from_micros(Hour::FIRST.start().as_micros() - 1)).is_err());
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
            assert!(name.parse::<Hour>().is_err(), "{name}");
        }
        assert_eq!(hour("2024022923").next(), Some(hour("2024030100")));
    }
}
