//! `.leasehold/store.json`: when the store was last probed, how far apart its own clocks were found, and the values that
//! all processes share. What those values mean is the business of others.

use super::{
    Name,
    cas::{Record, Slot, Stamp},
    layout,
    seal::{seal, unseal},
};
use crate::{
    Error, Result, WriteId,
    clock::Timestamp,
    timing::{NOT_YET, PROBE_LASTS},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// The format that this version writes; it reads no later one.
const FORMAT: u32 = 1;

/// The highest record format of a store that does not say one: what every version may write that reads this file.
pub(crate) const FIRST_FORMAT: u32 = 2;

/// The name of the highest record format in the file.
const RECORD_FORMAT: &str = "record_format";

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

    /// When, by the store's clock.
    pub(crate) fn at(&self) -> Timestamp {
        Timestamp::from_millis(self.at_ms)
    }

    /// By which version of this library.
    pub(crate) fn version(&self) -> &str {
        &self.version
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

/// The object itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    format: u32,
    write_id: WriteId,
    revision: u64,
    epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) probe: Option<Passed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<Spread>,
    /// The shared values, and whatever a later version has added: that stays when this one replaces the probe.
    #[serde(flatten)]
    values: Map<String, Value>,
}

impl StoreRecord {
    pub(crate) fn new(stamp: Stamp, epoch: u64, values: Map<String, Value>, probe: Option<Passed>) -> Self {
        let Stamp { write_id, revision } = stamp;
        Self { format: FORMAT, write_id, revision, epoch, probe, spread: None, values }
    }

    /// Other values, and everything else as it was.
    pub(crate) fn changed(&self, stamp: Stamp, epoch: u64, values: Map<String, Value>) -> Self {
        let mut changed = Self { write_id: stamp.write_id, revision: stamp.revision, epoch, ..self.clone() };
        changed.values.extend(values);
        changed
    }

    pub(crate) fn format(&self) -> u32 {
        self.format
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A shared value, by its name in the file.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// The highest record format that may be written.
    pub(crate) fn record_format(&self) -> Result<u32> {
        match self.values.get(RECORD_FORMAT) {
            None => Ok(FIRST_FORMAT),
            Some(value) => value.as_u64().and_then(|format| u32::try_from(format).ok()).ok_or_else(|| {
                Error::corrupt(format!(
                    "the store's own settings are wrong: {RECORD_FORMAT} is no number: restore store.json from a backup, or \
                     write it again with the values in use: leasehold store repair"
                ))
            }),
        }
    }

    /// Everything as it was, with another highest record format.
    pub(crate) fn allowing(&self, stamp: Stamp, record_format: u32) -> Self {
        let mut allowing = Self { write_id: stamp.write_id, revision: stamp.revision, ..self.clone() };
        allowing.values.insert(RECORD_FORMAT.to_owned(), record_format.into());
        allowing
    }

    /// A copy with a newer probe.
    pub(crate) fn probed(&self, stamp: Stamp, probe: Option<Passed>) -> Self {
        Self { write_id: stamp.write_id, revision: stamp.revision, probe, ..self.clone() }
    }

    /// How far the store's stamps were found apart in the last seven days.
    pub(crate) fn spread(&self, now: Option<Timestamp>) -> Duration {
        let fresh =
            |spread: &Spread| now.is_none_or(|now| now.since(Timestamp::from_millis(spread.at_ms)) < PROBE_LASTS);
        self.spread.filter(fresh).map_or(Duration::ZERO, |spread| Duration::from_millis(spread.ms))
    }

    /// Everything as it was, with a spread that was found now.
    pub(crate) fn spread_out(&self, stamp: Stamp, spread: Duration, now: Timestamp) -> Self {
        let spread = Spread { ms: u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), at_ms: now.as_millis() };
        Self { write_id: stamp.write_id, revision: stamp.revision, spread: Some(spread), ..self.clone() }
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
        layout::store_json()
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
        let values = [("some_ms".to_owned(), Value::from(5))].into_iter().collect();
        StoreRecord::new(Stamp { write_id: WriteId::from([7; 16]), revision: 3 }, 1, values, None)
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
