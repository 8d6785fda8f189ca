//! `.leasehold/store.json`: what every process that uses a store must agree on, and when the store was last probed.

use super::{
    Backend, Name, Repair,
    cas::{self, Cas, Outcome, Record, Slot, Stamp},
    lost::Logged,
    seal::{seal, unseal},
};
use crate::{Error, Result, Settings, WriteId, clock::Timestamp, ttl::in_words};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// The format that this version writes; it reads no later one.
const FORMAT: u32 = 1;

/// What is known of the time now may be behind what another process knew when it noted its probe.
const NOT_YET: Duration = Duration::from_secs(2);

/// A probe older than this is not trusted any more.
const PROBE_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

/// The longest that a write may take to land after its client gave up. A timing assumption, like the bound on skew.
pub(crate) const LONGEST_WRITE: Duration = Duration::from_secs(60);

/// How much further than `max_clock_skew` a clock may certainly be from the store's and still be used.
const FAR_OFF: Duration = Duration::from_secs(10);

/// An answer that was under way for longer than this does not tell the time.
pub(crate) const DATE_SLACK: Duration = Duration::from_secs(60);

/// What every process that uses a store has agreed on, as it stands in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// Raised whenever an operator changes the rest.
    pub epoch: u64,
    /// How far the clocks of any two machines may differ.
    pub max_clock_skew: Duration,
    /// For how long after it began a transaction may be decided.
    pub max_txn_age: Duration,
    /// Skew, and the longest write that may still land.
    pub margin: Duration,
    /// For how long a decision can be read after it was made.
    pub marker_retention: Duration,
    /// The longest time to live of a lease.
    pub max_ttl: Duration,
}

/// What is agreed on, by name, in the order of [`Agreement::values`].
pub(super) const NAMES: [&str; 5] = ["max_clock_skew", "max_txn_age", "margin", "marker_retention", "max_ttl"];

impl Agreement {
    /// What a process with these settings would write into an empty store.
    pub(crate) fn propose(settings: &Settings) -> Result<Self> {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let agreement = Self {
            epoch: 1,
            max_clock_skew: settings.max_clock_skew.unwrap_or(Duration::from_secs(1)),
            max_txn_age: settings.max_txn_age.unwrap_or(minutes(60)),
            margin: settings.margin.unwrap_or(minutes(15)),
            marker_retention: settings.marker_retention.unwrap_or(minutes(24 * 60)),
            max_ttl: settings.max_ttl.unwrap_or(minutes(60)),
        };
        agreement.validate()?;
        Ok(agreement)
    }

    fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::config(message));
        for (name, value) in self.values() {
            if value.subsec_nanos() % 1_000_000 != 0 || value > Duration::from_secs(10 * 365 * 24 * 3600) {
                return refuse(format!(
                    "{name} is {}: it must be whole milliseconds, and at most ten years",
                    in_words(value)
                ));
            }
        }
        if self.max_ttl.is_zero() || self.max_txn_age.is_zero() || self.marker_retention.is_zero() {
            return refuse("max_ttl, max_txn_age and marker_retention must be longer than nothing".to_owned());
        }
        let least = self.least_margin();
        if self.margin <= least {
            return refuse(format!(
                "margin is {}: it must be longer than {}, twice the skew and a minute, and the longest write",
                in_words(self.margin),
                in_words(least)
            ));
        }
        Ok(())
    }

    /// Whether a clock that is certainly so far from the store's is wrong.
    pub(crate) fn is_wrong(&self, distance: Duration) -> bool {
        distance > self.max_clock_skew
    }

    /// Whether a clock that is certainly so far from the store's must not grant, take over, clear, decide or delete.
    pub(crate) fn is_far_off(&self, distance: Duration) -> bool {
        distance > self.max_clock_skew + FAR_OFF
    }

    /// `margin` and `hour_grace` must be longer than this. About late writes, and not about which clock is trusted.
    pub(crate) fn least_margin(&self) -> Duration {
        2 * (self.max_clock_skew + DATE_SLACK) + LONGEST_WRITE
    }

    pub(super) fn values(&self) -> [(&'static str, Duration); 5] {
        let values = [self.max_clock_skew, self.max_txn_age, self.margin, self.marker_retention, self.max_ttl];
        std::array::from_fn(|at| (NAMES[at], values[at]))
    }

    /// The same from its values.
    pub(super) fn of_values(epoch: u64, values: [Duration; 5]) -> Result<Self> {
        let [max_clock_skew, max_txn_age, margin, marker_retention, max_ttl] = values;
        let agreement = Self { epoch, max_clock_skew, max_txn_age, margin, marker_retention, max_ttl };
        agreement.validate()?;
        Ok(agreement)
    }

    /// Whether a process with these settings may use the store: what it names must be what the store has.
    pub(crate) fn admit(&self, settings: &Settings) -> Result<()> {
        let named = [
            settings.max_clock_skew,
            settings.max_txn_age,
            settings.margin,
            settings.marker_retention,
            settings.max_ttl,
        ];
        for ((name, stored), named) in self.values().into_iter().zip(named) {
            if let Some(named) = named.filter(|named| *named != stored) {
                return Err(Error::config(format!(
                    "{name} is {} in this process and {} in the store: all processes must agree, so leave it out of the \
                     configuration, or have an operator change it in the store",
                    in_words(named),
                    in_words(stored)
                )));
            }
        }
        Ok(())
    }
}

/// What an operator wants to be different. Whatever is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgreementChange {
    /// See [`Agreement::max_clock_skew`].
    pub max_clock_skew: Option<Duration>,
    /// See [`Agreement::max_txn_age`].
    pub max_txn_age: Option<Duration>,
    /// See [`Agreement::margin`].
    pub margin: Option<Duration>,
    /// See [`Agreement::marker_retention`].
    pub marker_retention: Option<Duration>,
    /// See [`Agreement::max_ttl`].
    pub max_ttl: Option<Duration>,
}

impl AgreementChange {
    /// In the order of [`NAMES`].
    pub(super) fn values(&self) -> [Option<Duration>; 5] {
        [self.max_clock_skew, self.max_txn_age, self.margin, self.marker_retention, self.max_ttl]
    }

    /// The agreement with these values, of the next epoch.
    fn of(&self, old: &Agreement) -> Result<Agreement> {
        let agreement = Agreement {
            epoch: old.epoch.checked_add(1).ok_or_else(|| Error::corrupt("the store has no epoch left"))?,
            max_clock_skew: self.max_clock_skew.unwrap_or(old.max_clock_skew),
            max_txn_age: self.max_txn_age.unwrap_or(old.max_txn_age),
            margin: self.margin.unwrap_or(old.margin),
            marker_retention: self.marker_retention.unwrap_or(old.marker_retention),
            max_ttl: self.max_ttl.unwrap_or(old.max_ttl),
        };
        agreement.validate()?;
        // A decision that was made late would be judged void by the new ages, and be deleted long before its time.
        let (ends, ended) = (agreement.max_txn_age + agreement.margin, old.max_txn_age + old.margin);
        if ends < ended {
            return Err(Error::config(format!(
                "max_txn_age and margin would be {} together: they may become longer than {} but not shorter, or decisions \
                 that stand would count as made too late",
                in_words(ends),
                in_words(ended)
            )));
        }
        Ok(agreement)
    }

    /// For how long every process must have been stopped before this change. With another age for transactions, until none
    /// of those that began before can be decided any more: one may have been decided and forgotten.
    pub fn needs_a_stop_of(&self, old: &Agreement) -> Duration {
        let leases = old.max_ttl + old.margin;
        match (self.max_txn_age, self.margin) {
            (None, None) => leases,
            (age, margin) => leases.max(age.unwrap_or(old.max_txn_age) + margin.unwrap_or(old.margin)),
        }
    }
}

/// What is in `store.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The version of its format.
    pub format: u32,
    /// How often it was written.
    pub revision: u64,
    /// What all processes have agreed on.
    pub agreement: Agreement,
    /// When the store was last found to be safe, by its own clock.
    pub probed_at: Option<Timestamp>,
    /// By which version of this library.
    pub probed_by: Option<String>,
    /// How far apart the stamps of the store's own clocks were found: leases end later by as much.
    pub spread: Duration,
}

/// Changes what is agreed, by a swap on what was read: of two operators who change it at once, one is told.
pub(super) async fn change(backend: &Arc<Backend>, change: &AgreementChange, by: &str) -> Result<Agreement> {
    const TRIES: u32 = 5;
    let gone = || Error::config(format!("there are no settings in {}: open the store first", backend.place));
    let mut known = cas::read(backend, &StoreSlot).await?.ok_or_else(gone)?;
    let old = known.record().agreement()?;
    let new = change.of(&old)?;
    let said = |agreement: &Agreement| {
        agreement.values().map(|(name, value)| format!("{name} {}", in_words(value))).join(", ")
    };
    let what = format!("{} instead of {}", said(&new), said(&old));
    let at = Repair { what: "settings_changed", namespace: None, key: None, reason: &what, by, aside: None };
    at.record_with(backend, &Logged::of(&new)).await?;
    for _ in 0..TRIES {
        let mut cas = Cas::new(Arc::clone(backend), StoreSlot, Some(known));
        let mut tries = 0;
        let there = loop {
            let outcome = cas.attempt((), |base, stamp| match base {
                Some(base) => base.changed(stamp, &new),
                None => StoreRecord::new(stamp, &new, None),
            });
            match outcome.await {
                Outcome::Won(..) => {
                    tracing::warn!(store = %backend.place, epoch = new.epoch, by, "the settings were changed");
                    return Ok(new);
                }
                Outcome::Lost(there) => break there.ok_or_else(gone)?,
                Outcome::Unknown(error) if error.is_retryable() && tries < TRIES => {
                    backend.pause(tries).await;
                    tries += 1;
                }
                Outcome::Unknown(error) => return Err(error),
            }
        };
        // Most likely somebody has noted a probe. Another change is another operator's, who must be talked to.
        if there.record().agreement()? != old {
            return Err(Error::config(
                "somebody else has changed the settings at the same time: look at them, and change them again if need be",
            ));
        }
        known = there;
    }
    Err(Error::unavailable(format!("the settings in {} change too fast: try again", backend.place)))
}

/// A probe that the store has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// When, by the store's clock.
    at_ms: i64,
    version: String,
    /// A hash of endpoint, bucket and prefix: a copied bucket is another store.
    place: String,
}

impl Passed {
    pub(crate) fn now(at: Timestamp, place: &str) -> Self {
        Self { at_ms: at.as_millis(), version: env!("CARGO_PKG_VERSION").to_owned(), place: place.to_owned() }
    }

    pub(crate) fn holds(&self, now: Option<Timestamp>, place: &str) -> bool {
        let at = Timestamp::from_millis(self.at_ms);
        let recent = now.is_some_and(|now| at <= now.plus(NOT_YET) && now.since(at) < PROBE_LASTS);
        recent && self.place == place && self.version == env!("CARGO_PKG_VERSION")
    }
}

/// How far apart the store's own stamps were found, and when, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Spread {
    ms: u64,
    at_ms: i64,
}

/// Notes a larger spread than is noted, by a swap that leaves the settings alone.
pub(super) async fn raise_spread(backend: &Arc<Backend>, spread: Duration) -> Result<()> {
    const TRIES: u32 = 3;
    for tries in 0..TRIES {
        match try_to_raise_spread(backend, spread).await? {
            true => return Ok(()),
            false => backend.pause(tries).await,
        }
    }
    Err(Error::unavailable(format!(
        "the settings in {} change too fast: the next time object tries again",
        backend.place
    )))
}

/// Whether it stands there now; not if somebody else has written meanwhile.
async fn try_to_raise_spread(backend: &Arc<Backend>, spread: Duration) -> Result<bool> {
    let Some(known) = cas::read(backend, &StoreSlot).await? else { return Ok(true) };
    let now = backend.store_time();
    let Some(at) = now.filter(|_| known.record().spread(now) < spread) else { return Ok(true) };
    let spread = Spread { ms: u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), at_ms: at.as_millis() };
    let old = known.record().clone();
    let mut cas = Cas::new(Arc::clone(backend), StoreSlot, Some(known));
    match cas.attempt((), |_, stamp| old.spread_out(stamp, spread)).await {
        Outcome::Won(..) => Ok(true),
        Outcome::Lost(_) => Ok(false),
        Outcome::Unknown(error) => Err(error),
    }
}

/// The object itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    format: u32,
    write_id: WriteId,
    revision: u64,
    epoch: u64,
    max_clock_skew_ms: u64,
    max_txn_age_ms: u64,
    margin_ms: u64,
    marker_retention_ms: u64,
    max_ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) probe: Option<Passed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<Spread>,
    /// What a later version has added stays when this one replaces the probe.
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

impl StoreRecord {
    pub(crate) fn new(stamp: Stamp, agreement: &Agreement, probe: Option<Passed>) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            format: FORMAT,
            write_id: stamp.write_id,
            revision: stamp.revision,
            epoch: agreement.epoch,
            max_clock_skew_ms: ms(agreement.max_clock_skew),
            max_txn_age_ms: ms(agreement.max_txn_age),
            margin_ms: ms(agreement.margin),
            marker_retention_ms: ms(agreement.marker_retention),
            max_ttl_ms: ms(agreement.max_ttl),
            probe,
            spread: None,
            rest: serde_json::Map::new(),
        }
    }

    /// Other settings, and everything else as it was.
    fn changed(&self, stamp: Stamp, agreement: &Agreement) -> Self {
        let new = Self::new(stamp, agreement, self.probe.clone());
        Self { format: self.format, spread: self.spread, rest: self.rest.clone(), ..new }
    }

    pub(crate) fn info(&self) -> Result<StoreInfo> {
        Ok(StoreInfo {
            format: self.format,
            revision: self.revision,
            agreement: self.agreement()?,
            probed_at: self.probe.as_ref().map(|probe| Timestamp::from_millis(probe.at_ms)),
            probed_by: self.probe.as_ref().map(|probe| probe.version.clone()),
            spread: self.spread(None),
        })
    }

    /// The same settings, with a newer probe.
    pub(crate) fn probed(&self, stamp: Stamp, probe: Option<Passed>) -> Self {
        Self { write_id: stamp.write_id, revision: stamp.revision, probe, ..self.clone() }
    }

    /// How far the store's stamps were found apart in the last seven days.
    pub(crate) fn spread(&self, now: Option<Timestamp>) -> Duration {
        let fresh =
            |spread: &Spread| now.is_none_or(|now| now.since(Timestamp::from_millis(spread.at_ms)) < PROBE_LASTS);
        self.spread.filter(fresh).map_or(Duration::ZERO, |spread| Duration::from_millis(spread.ms))
    }

    /// The same settings, with another spread.
    fn spread_out(&self, stamp: Stamp, spread: Spread) -> Self {
        Self { write_id: stamp.write_id, revision: stamp.revision, spread: Some(spread), ..self.clone() }
    }

    pub(crate) fn agreement(&self) -> Result<Agreement> {
        let agreement = Agreement {
            epoch: self.epoch,
            max_clock_skew: Duration::from_millis(self.max_clock_skew_ms),
            max_txn_age: Duration::from_millis(self.max_txn_age_ms),
            margin: Duration::from_millis(self.margin_ms),
            marker_retention: Duration::from_millis(self.marker_retention_ms),
            max_ttl: Duration::from_millis(self.max_ttl_ms),
        };
        agreement.validate().map_err(|error| error.while_doing("the store's own settings are wrong"))?;
        Ok(agreement)
    }
}

impl Record for StoreRecord {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreSlot;

impl Slot for StoreSlot {
    type Record = StoreRecord;

    fn name(&self) -> Name {
        Name::new(".leasehold/store.json")
    }

    fn encode(&self, record: &StoreRecord) -> Result<Bytes> {
        let body = seal(record);
        Ok(body
            .map_err(|error| Error::corrupt("the store's settings cannot be written down").with_source(error))?
            .into())
    }

    fn decode(&self, body: Bytes) -> Result<StoreRecord> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let unreadable = |error| {
            let message = "cannot be read: restore it from a backup, or write it again with the values in use: leasehold \
                           store repair";
            Error::corrupt(format!("{} {message}", self.name())).with_source(error)
        };
        let head: Head = serde_json::from_slice(&body).map_err(unreadable)?;
        if head.format > FORMAT {
            return Err(Error::config(format!(
                "{} has format {}, this version knows {FORMAT}: use a newer version of leasehold",
                self.name(),
                head.format
            )));
        }
        unseal(&body).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn record() -> StoreRecord {
        let stamp = Stamp { write_id: WriteId::from([7; 16]), revision: 3 };
        StoreRecord::new(stamp, &Agreement::propose(&Settings::default()).unwrap(), None)
    }

    #[test]
    fn what_is_agreed_survives_being_written_down() {
        let body = StoreSlot.encode(&record()).unwrap();
        let read = StoreSlot.decode(body).unwrap();
        assert_eq!(read.agreement().unwrap(), record().agreement().unwrap());
    }

    #[test]
    fn a_process_with_another_value_is_refused_and_both_are_named() {
        let settings = Settings { max_clock_skew: Some(Duration::from_secs(2)), ..Settings::default() };
        let error = record().agreement().unwrap().admit(&settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("max_clock_skew is 2 s in this process and 1 s in the store"), "{text}");
    }

    #[test]
    fn a_margin_that_skew_and_a_late_write_could_eat_is_refused() {
        let settings = Settings { margin: Some(Duration::from_secs(182)), ..Settings::default() };
        assert!(Agreement::propose(&settings).is_err());
        let settings = Settings { margin: Some(Duration::from_secs(183)), ..Settings::default() };
        assert!(Agreement::propose(&settings).is_ok());
    }

    #[test]
    fn what_a_later_version_added_is_kept_when_the_probe_is_replaced() {
        let mut json: serde_json::Value = serde_json::from_slice(&StoreSlot.encode(&record()).unwrap()).unwrap();
        json["later"] = serde_json::json!({"a": 1});
        let read = StoreSlot.decode(seal(&json).unwrap().into()).unwrap();
        let stamp = Stamp { write_id: WriteId::from([8; 16]), revision: 4 };
        let again = StoreSlot.encode(&read.probed(stamp, None)).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&again).unwrap();
        assert_eq!(json["later"]["a"], 1);
    }

    #[test]
    fn a_later_format_is_refused_and_not_taken_for_damage() {
        let error = StoreSlot.decode(Bytes::from_static(b"{\"format\":2,\"anything\":true}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let error = StoreSlot.decode(Bytes::from_static(b"{\"format\":")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_probe_holds_for_a_week_here_and_for_this_version() {
        let at = Timestamp::from_millis(1_000_000);
        let passed = Passed::now(at, "here");
        assert!(passed.holds(Some(at), "here"));
        assert!(passed.holds(Some(at.plus(PROBE_LASTS - Duration::from_millis(1))), "here"));
        assert!(!passed.holds(Some(at.plus(PROBE_LASTS)), "here"), "too old");
        assert!(passed.holds(Some(at.minus(NOT_YET)), "here"), "what is known of the time may be that far behind");
        assert!(!passed.holds(Some(at.minus(NOT_YET + Duration::from_millis(1))), "here"), "from the future");
        assert!(!passed.holds(Some(at), "there"), "a copy");
        assert!(!passed.holds(None, "here"), "the store's time is not known");
        let older = Passed { version: "0.0.1".into(), ..passed };
        assert!(!older.holds(Some(at), "here"), "another version");
    }
}
