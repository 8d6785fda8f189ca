//! The store's own time: an interval by what its answers say, and the stamps of objects, by which records end.
//!
//! Two different things, because `Date` may be the clock of a proxy, and that proxy may run on this very machine. So an
//! answer's date serves to find wrong clocks, to choose when to look again, for the hours of sweeps and for fences; the
//! end of another process's record is judged by stamps only: that of a *time object*, written and read back before the record
//! was read, and that of the record.

use super::{Backend, backend::TimeSource, layout};
use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    generator::GeneratorExt,
    sync::Locked as _,
    timing::{GRAIN, LONGEST_SPREAD, STAMP_SLACK},
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

/// So many names for time objects, as some stores take about one write a second to one name.
const TIME_OBJECTS: u8 = 64;

/// Between these two it is, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) lower: Timestamp,
    pub(crate) upper: Timestamp,
}

impl Interval {
    /// Exactly this.
    pub(crate) fn exactly(at: Timestamp) -> Self {
        Self { lower: at, upper: at }
    }

    /// What a date says when it arrives, of which the store cut the fraction, after a round trip of this length.
    pub(crate) fn told(date: Timestamp, round_trip: Duration) -> Self {
        Self { lower: date, upper: date.plus(GRAIN).plus(round_trip) }
    }

    /// What the interval has become so much later, by a clock that may be wrong by 1 in 2,000.
    pub(crate) fn aged(self, by: Duration) -> Self {
        Self { lower: self.lower.plus(by).minus(by / 2000), upper: self.upper.plus(by).plus(by / 2000) }
    }

    /// What both say; what `newer` says alone if they contradict each other.
    pub(crate) fn narrowed(self, newer: Self) -> Self {
        let both = Self { lower: self.lower.max(newer.lower), upper: self.upper.min(newer.upper) };
        if both.lower <= both.upper { both } else { newer }
    }

    /// How far a clock is certainly away from it: from its nearer end.
    pub(crate) fn distance(&self, wall: Timestamp) -> Duration {
        self.lower.since(wall).max(wall.since(self.upper))
    }
}

/// What is known of the store's stamps.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// The latest stamp of a time object that this process has read back.
    latest: Option<Timestamp>,
    /// How far stamps were found apart.
    spread: Duration,
    /// The spread that stands in `store.json`.
    noted: Duration,
}

impl Stamps {
    /// A time object that was sent when `before` had been answered has this stamp. Returns whether what is noted in the
    /// store must be raised.
    fn learn(&mut self, before: Option<Timestamp>, stamp: Timestamp) -> bool {
        // Below one that was answered before it was sent: two clocks stamp, and they are this far apart at the least.
        if let Some(apart) = before.map(|before| before.since(stamp)) {
            self.spread = self.spread.max(apart);
        }
        self.latest = self.latest.max(Some(stamp));
        self.spread >= self.noted + GRAIN
    }
}

impl Backend {
    /// Whether all processes that use the store run on this machine and share its boot-time clock.
    pub(crate) fn is_on_this_host(&self) -> bool {
        self.time == TimeSource::Host
    }

    fn stamps(&self) -> std::sync::MutexGuard<'_, Stamps> {
        self.stamps.locked()
    }

    /// What is known of the time by the store's clock.
    pub(crate) fn store_interval(&self) -> Option<Interval> {
        match self.time {
            TimeSource::Clock | TimeSource::Host => Some(Interval::exactly(self.clock.wall())),
            TimeSource::Answers | TimeSource::Object => self.meter.store_interval(),
        }
    }

    /// How late it is by the store's clock, at the most: for what must not be too old.
    pub(crate) fn latest_store_time(&self) -> Option<Timestamp> {
        Some(self.store_interval()?.upper.max(self.meter.latest_date().unwrap_or_default()))
    }

    /// The stamp of a time object, or what is as good as one: whatever is read from now on was read after it was written.
    pub(crate) fn latest_stamp(&self) -> Option<Timestamp> {
        match self.time {
            TimeSource::Clock | TimeSource::Host => Some(self.clock.wall()),
            TimeSource::Answers | TimeSource::Object => self.stamps().latest,
        }
    }

    /// What has to be added to the time for which a record lasts before a stamp ends it; `None` where stamps are so far
    /// apart that they end nothing.
    pub(crate) fn stamp_slack(&self) -> Option<Duration> {
        match self.time {
            TimeSource::Clock | TimeSource::Host => Some(Duration::ZERO),
            TimeSource::Answers | TimeSource::Object => {
                let spread = self.spread();
                (spread <= LONGEST_SPREAD).then_some(STAMP_SLACK + spread)
            }
        }
    }

    /// How far apart the stamps of this store were found.
    pub(crate) fn spread(&self) -> Duration {
        self.stamps().spread
    }

    /// What others have found and noted in `store.json`.
    pub(crate) fn note_spread(&self, noted: Duration) {
        let mut stamps = self.stamps();
        stamps.noted = stamps.noted.max(noted);
        stamps.spread = stamps.spread.max(noted);
    }

    /// The stamp of a time object that is not older than this, written now if need be.
    pub(crate) async fn stamp_from(self: &Arc<Self>, at_least: Timestamp) -> Result<Timestamp> {
        match self.latest_stamp() {
            Some(stamp) if stamp >= at_least => Ok(stamp),
            _ => self.write_time().await,
        }
    }

    /// Writes a time object and reads its stamp back. Whatever is read afterwards may be judged by it.
    pub(crate) async fn write_time(self: &Arc<Self>) -> Result<Timestamp> {
        if matches!(self.time, TimeSource::Clock | TimeSource::Host) {
            return Ok(self.clock.wall());
        }
        let before = self.stamps().latest;
        let [number] = self.generator.bytes();
        let name = layout::time_object(number % TIME_OBJECTS);
        let asked = self.meter.now();
        self.put_hint(&name, Bytes::from_static(b"{}")).await?;
        let written = self.get(&name).await?.ok_or_else(|| {
            Error::new(ErrorKind::Regressed, format!("{name} is not in {} right after it was written", self.place))
        })?;
        if self.time == TimeSource::Object {
            self.meter.note_date(written.modified, asked);
        }
        let raise = self.stamps().learn(before, written.modified);
        if raise {
            let spread = self.spread();
            tracing::warn!(store = %self.place, spread = ?spread, "the store's own clocks differ: what others hold ends later by as much");
            match (self.note_spread_in_store)(Arc::clone(self), spread).await {
                Ok(()) => self.stamps().noted = spread,
                Err(error) => tracing::debug!(%error, "the store's spread could not be noted"),
            }
        }
        Ok(written.modified)
    }

    /// Asks a store that tells its time in no other way than by stamps.
    pub(crate) async fn refresh_time(self: &Arc<Self>) -> Result<()> {
        if self.time == TimeSource::Object {
            self.write_time().await?;
        }
        Ok(())
    }

    /// Asks the store for its time now, also if it is known.
    pub(crate) async fn ask_time(self: &Arc<Self>) -> Result<()> {
        match self.time {
            TimeSource::Clock | TimeSource::Host => Ok(()),
            // Any answer has a date.
            TimeSource::Answers => self.get(&layout::store_json()).await.map(drop),
            TimeSource::Object => self.refresh_time().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_response_places_the_time_within_a_second_and_a_round_trip_of_its_date() {
        let told = Interval::told(at(10_000), ms(20));
        assert_eq!(told, Interval { lower: at(10_000), upper: at(11_020) });
        assert_eq!(told.aged(ms(20_000)), Interval { lower: at(29_990), upper: at(31_030) });
    }

    #[test]
    fn a_clock_is_certainly_wrong_by_the_distance_to_the_nearer_end() {
        let told = Interval::told(at(10_000), ms(20));
        assert_eq!(told.distance(at(8_000)), ms(2000));
        assert_eq!(told.distance(at(10_000)), ms(0));
        assert_eq!(told.distance(at(11_020)), ms(0));
        assert_eq!(told.distance(at(14_000)), ms(2980));
    }

    #[test]
    fn answers_that_agree_narrow_the_time_and_one_that_does_not_replaces_it() {
        let first = Interval { lower: at(10_000), upper: at(11_000) };
        assert_eq!(
            first.narrowed(Interval { lower: at(10_600), upper: at(11_600) }),
            Interval { lower: at(10_600), upper: at(11_000) }
        );
        let later = Interval { lower: at(90_000), upper: at(91_000) };
        assert_eq!(first.narrowed(later), later);
        assert_eq!(later.narrowed(first), first);
    }

    #[test]
    fn a_stamp_below_one_that_was_answered_before_is_the_spread() {
        let mut stamps = Stamps::default();
        assert!(!stamps.learn(None, at(10_000)));
        assert!(!stamps.learn(Some(at(10_000)), at(12_000)));
        assert_eq!(stamps.spread, Duration::ZERO);
        assert!(stamps.learn(Some(at(12_000)), at(10_000)), "the whole distance is noted");
        assert_eq!((stamps.spread, stamps.latest), (ms(2000), Some(at(12_000))));
        stamps.noted = ms(2000);
        assert!(!stamps.learn(Some(at(12_000)), at(11_000)));
        // Sent before the other was answered: they may have passed each other.
        assert!(!stamps.learn(None, at(1_000)));
        assert_eq!(stamps.spread, ms(2000));
    }
}
