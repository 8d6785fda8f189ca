//! When the slots of a schedule are: a cron expression in a time zone, or an interval. Pure: the same for everybody.

use crate::{Error, Result, job::ledger::Millis};
use chrono::{DateTime, TimeDelta};
use chrono_tz::Tz;
use croner::{
    Cron,
    parser::{CronParser, Seconds},
};
use std::{fmt, time::Duration};

/// The shortest interval between two slots.
const SHORTEST: Duration = Duration::from_secs(1);

/// When slots are.
#[derive(Debug, Clone)]
pub(crate) enum Spec {
    Cron { cron: Box<Cron>, expression: String, zone: Tz },
    Every { every: Millis, from: Millis },
}

impl Spec {
    /// Five fields, or six with seconds in front; `@daily` and the like.
    pub(crate) fn cron(expression: &str, zone: &str) -> Result<Self> {
        let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(&expression).map_err(|error| {
            Error::invalid(format!(
                "{expression:?} is no cron expression: {error}; five fields are expected, such as \"0 3 * * *\""
            ))
        })?;
        let zone: Tz = zone.parse().map_err(|_| {
            Error::invalid(format!("{zone:?} is no time zone: use a name such as Europe/Berlin, or UTC"))
        })?;
        Ok(Self::Cron { cron: Box::new(cron), expression, zone })
    }

    pub(crate) fn every(every: Duration, from: Millis) -> Result<Self> {
        if every < SHORTEST {
            return Err(Error::invalid(format!("an interval is at least 1 s (got {every:?})")));
        }
        let every = Millis::try_from(every.as_millis())
            .map_err(|_| Error::invalid(format!("{every:?} is too long for an interval")))?;
        Ok(Self::Every { every, from })
    }

    /// From how it stands in a ledger.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let unreadable = || Error::corrupt(format!("{text:?} says of no schedule when its slots are"));
        let mut parts = text.splitn(3, '|');
        let (kind, first, second) = (parts.next(), parts.next(), parts.next());
        match (kind, first.zip(second)) {
            (Some("cron"), Some((zone, expression))) => Self::cron(expression, zone),
            (Some("every"), Some((every, from))) => {
                let every = every.parse().map_err(|_| unreadable())?;
                Self::every(Duration::from_millis(every), from.parse().map_err(|_| unreadable())?)
            }
            _ => Err(unreadable()),
        }
    }

    /// The first slot after this time; none if there is no other.
    pub(crate) fn after(&self, at: Millis) -> Option<Millis> {
        match self {
            Self::Every { every, from } if at < *from => Some(*from).filter(|_| *every > 0),
            Self::Every { every, from } => {
                at.checked_sub(*from)?.div_euclid(*every).checked_add(1)?.checked_mul(*every)?.checked_add(*from)
            }
            Self::Cron { cron, zone, .. } => {
                // Whatever is found must be later: a schedule that stood still would insert one slot for ever.
                let mut start = at;
                for _ in 0..4 {
                    let time = DateTime::from_timestamp_millis(start)?.with_timezone(zone);
                    let found = cron.find_next_occurrence(&time, false).ok()?;
                    let millis = found.timestamp_millis();
                    if millis > at && is_slot(cron, &found) {
                        return Some(millis);
                    }
                    start = if millis > at { millis } else { start.checked_add(3_600_000)? };
                }
                None
            }
        }
    }

    /// The first slot at this time or later.
    pub(crate) fn at_or_after(&self, at: Millis) -> Option<Millis> {
        self.after(at.checked_sub(1)?)
    }

    /// Slots from the first time to before the second, in order, at most so many.
    pub(crate) fn between(&self, from: Millis, to: Millis, most: usize) -> Vec<Millis> {
        let first = self.at_or_after(from);
        std::iter::successors(first, |slot| self.after(*slot)).take_while(|slot| *slot < to).take(most).collect()
    }
}

/// Whether a time that was found is one of the expression, or the end of a gap in which there is one. After a slot shortly
/// before a gap the parser also offers the end of the gap, which is nobody's.
fn is_slot(cron: &Cron, found: &DateTime<Tz>) -> bool {
    if cron.is_time_matching(found).unwrap_or(true) {
        return true;
    }
    let second = TimeDelta::seconds(1);
    let gap = (*found - second).naive_local() + second;
    cron.find_next_occurrence(&gap, true).is_ok_and(|slot| slot < found.naive_local())
}

/// As it stands in a ledger.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron { expression, zone, .. } => write!(f, "cron|{}|{expression}", zone.name()),
            Self::Every { every, from } => write!(f, "every|{every}|{from}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Millis {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()
    }

    fn next(spec: &Spec, from: &str, count: usize) -> Vec<String> {
        let slots = std::iter::successors(spec.after(at(from)), |slot| spec.after(*slot)).take(count);
        slots.map(|slot| DateTime::from_timestamp_millis(slot).unwrap().to_rfc3339()).collect()
    }

    #[test]
    fn a_daily_slot_in_a_zone_moves_with_daylight_saving() {
        let spec = Spec::cron("0 3 * * *", "Europe/Berlin").unwrap();
        let slots = next(&spec, "2026-03-28T12:00:00Z", 2);
        assert_eq!(slots, ["2026-03-29T01:00:00+00:00", "2026-03-30T01:00:00+00:00"]);
        let before = next(&spec, "2026-03-27T12:00:00Z", 1);
        assert_eq!(before, ["2026-03-28T02:00:00+00:00"]);
    }

    #[test]
    fn a_daily_slot_runs_once_on_days_with_another_length() {
        let spec = Spec::cron("30 2 * * *", "Europe/Berlin").unwrap();
        let spring = next(&spec, "2026-03-28T12:00:00Z", 2);
        assert_eq!(spring.len(), 2);
        assert!(spring[0].starts_with("2026-03-29T01:"), "on that day, after the gap: {spring:?}");
        assert_eq!(spring[1], "2026-03-30T00:30:00+00:00");
        let autumn = next(&spec, "2026-10-24T12:00:00Z", 2);
        assert_eq!(autumn[0], "2026-10-25T00:30:00+00:00");
        assert_eq!(autumn[1], "2026-10-26T01:30:00+00:00", "not again an hour later");
    }

    #[test]
    fn a_slot_shortly_before_a_gap_runs_once() {
        let spec = Spec::cron("30 1 * * SUN", "Europe/Berlin").unwrap();
        let slots = next(&spec, "2026-03-22T12:00:00Z", 2);
        assert_eq!(slots, ["2026-03-29T00:30:00+00:00", "2026-04-04T23:30:00+00:00"]);
    }

    #[test]
    fn slots_rise_strictly_over_years_of_every_zone_of_interest() {
        for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Africa/Casablanca"] {
            for expression in ["*/20 * * * *", "0 2 * * *", "30 1 * * SUN", "@hourly"] {
                let spec = Spec::cron(expression, zone).unwrap();
                let mut last = at("2025-12-31T00:00:00Z");
                for _ in 0..400 {
                    let slot = spec.after(last).unwrap();
                    assert!(slot > last, "{expression} in {zone} at {last}");
                    assert_eq!(spec.at_or_after(slot), Some(slot), "{expression} in {zone}: a slot is one from itself");
                    last = slot;
                }
            }
        }
    }

    #[test]
    fn an_interval_counts_from_its_beginning() {
        let spec = Spec::every(Duration::from_secs(90), 1_000).unwrap();
        assert_eq!((spec.after(0), spec.after(1_000), spec.after(90_999)), (Some(1_000), Some(91_000), Some(91_000)));
        assert_eq!(spec.after(91_000), Some(181_000));
        assert_eq!(spec.at_or_after(91_000), Some(91_000));
        assert_eq!(spec.between(91_000, 271_000, 9), [91_000, 181_000]);
        assert_eq!(spec.after(Millis::MAX), None);
    }

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is_one() {
        for spec in [Spec::cron(" 0  3 * * * ", "Asia/Tokyo").unwrap(), Spec::every(Duration::from_secs(5), 7).unwrap()]
        {
            assert_eq!(Spec::read(&spec.to_string()).unwrap().to_string(), spec.to_string());
        }
        for text in ["", "cron", "cron|UTC", "cron|Nowhere|0 3 * * *", "every|0|0", "every|x|0", "at|1|2"] {
            assert!(Spec::read(text).is_err(), "{text:?}");
        }
        let wrong = Spec::cron("61 * * * *", "UTC").unwrap_err().to_string();
        assert!(wrong.contains("is no cron expression"), "{wrong}");
        assert!(Spec::every(Duration::from_millis(999), 0).is_err());
    }
}
