//! What every process that uses a store must have alike: written into `store.json` once, read from there by all others.
//!
//! Two values belong to no kind: how far clocks may differ, and the margin that follows from it. Each kind of record declares
//! its own. `store.json` is made of all of them, one number of milliseconds each.

mod change;
mod setting;

pub use change::SharedSettingsChange;
pub use setting::{MARGIN, MAX_CLOCK_SKEW, Rules, SharedSetting, Stop};

use crate::{
    Error, Result,
    storage::store_json::{FIRST_FORMAT, StoreRecord},
    timing,
    ttl::in_words,
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};
use std::{fmt, sync::Arc, time::Duration};

/// No shared value is longer.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What every process that uses a store has alike, as it stands in the store. Cheap to clone.
#[derive(Clone)]
#[non_exhaustive]
pub struct SharedSettings {
    /// Raised whenever an operator changes the rest.
    pub epoch: u64,
    /// How far the clocks of any two machines may differ.
    pub max_clock_skew: Duration,
    /// Skew, and the longest write that may still land.
    pub margin: Duration,
    /// The highest format of records that may be written. An operator raises it when no older version uses the store any more.
    pub record_format: u32,
    /// All of them, with those two, in the order of [`declared`].
    values: Arc<[Duration]>,
    rules: Arc<[&'static Rules]>,
}

/// For programs: the epoch, and every value in milliseconds by the name that it has in `store.json`.
impl Serialize for SharedSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("epoch", &self.epoch)?;
        self.in_file().iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

/// Every setting that these rules declare, after the two that belong to no kind.
pub(crate) fn declared<'a>(rules: &'a [&'static Rules]) -> impl Iterator<Item = &'static SharedSetting> + 'a {
    let kinds = rules.iter().flat_map(|rules| rules.settings);
    [&MAX_CLOCK_SKEW, &MARGIN].into_iter().chain(kinds)
}

impl SharedSettings {
    /// What a process that names these values would write into an empty store.
    pub(crate) fn propose(rules: &Arc<[&'static Rules]>, named: &SharedSettingsChange) -> Result<Self> {
        named.must_be_declared(rules)?;
        let value = |setting: &SharedSetting| named.get(setting.name).unwrap_or(setting.default);
        Self::of_values(rules, 1, declared(rules).map(value).collect())
    }

    /// What stands in the store.
    pub(crate) fn read(rules: &Arc<[&'static Rules]>, record: &StoreRecord) -> Result<Self> {
        let value = |setting: &SharedSetting| match record.value(&setting.in_file()) {
            Some(value) => value.as_u64().map(Duration::from_millis).ok_or_else(|| unreadable(setting)),
            // A store that was made before there was such a setting.
            None if !setting.required => Ok(setting.default),
            None => Err(unreadable(setting)),
        };
        let values = declared(rules).map(value).collect::<Result<_>>()?;
        let mut read = Self::of_values(rules, record.epoch(), values);
        if let Ok(read) = &mut read {
            read.record_format = record.record_format()?;
        }
        read.map_err(|error| error.while_doing("the store's own settings are wrong"))
    }

    /// Made of values in the order of [`declared`].
    pub(crate) fn of_values(rules: &Arc<[&'static Rules]>, epoch: u64, values: Vec<Duration>) -> Result<Self> {
        let (max_clock_skew, margin) = (values[0], values[1]);
        let (values, rules) = (values.into(), Arc::clone(rules));
        let shared = Self { epoch, max_clock_skew, margin, record_format: FIRST_FORMAT, values, rules };
        shared.validate()?;
        Ok(shared)
    }

    fn validate(&self) -> Result<()> {
        for (setting, value) in declared(&self.rules).zip(self.values.iter().copied()) {
            let name = setting.name;
            if value.subsec_nanos() % 1_000_000 != 0 || value > LONGEST {
                return Err(Error::config(format!(
                    "{name} is {}: it must be whole milliseconds, and at most ten years",
                    in_words(value)
                )));
            }
            if value.is_zero() && !setting.may_be_zero {
                return Err(Error::config(format!("{name} must be longer than nothing")));
            }
        }
        let least = timing::least_margin(self.max_clock_skew);
        if self.margin <= least {
            return Err(Error::config(format!(
                "margin must be longer than {1} = 2 × (max_clock_skew + 60 s) + 60 s (got {0})",
                in_words(self.margin),
                in_words(least)
            )));
        }
        Ok(())
    }

    /// The value of a setting; its default if no kind of this store has declared it.
    pub fn of(&self, setting: &SharedSetting) -> Duration {
        self.get(setting.name).unwrap_or(setting.default)
    }

    /// The value of a setting, by its name.
    pub fn get(&self, name: &str) -> Option<Duration> {
        self.values().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Every value by its name.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        declared(&self.rules).map(|setting| setting.name).zip(self.values.iter().copied())
    }

    /// For how long every process must have been stopped before an operator makes these values others.
    pub fn stop_needed(&self) -> Stop {
        self.stop_needed_for(self)
    }

    /// The longest stop that a kind asks for.
    fn stop_needed_for(&self, new: &Self) -> Stop {
        let stops = self.rules.iter().map(|rules| (rules.stop)(self, new));
        stops.fold(Stop::default(), |longest, stop| if stop.time > longest.time { stop } else { longest })
    }

    /// These settings as they stand in `store.json`.
    pub(crate) fn in_file(&self) -> Map<String, Value> {
        let millis = |value: Duration| u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        let values = self.values.iter().copied();
        declared(&self.rules).zip(values).map(|(setting, value)| (setting.in_file(), millis(value).into())).collect()
    }

    /// Whether a process that names these values may use the store: they must be what the store has.
    pub(crate) fn admit(&self, named: &SharedSettingsChange) -> Result<()> {
        named.must_be_declared(&self.rules)?;
        for (name, stored) in self.values() {
            if let Some(named) = named.get(name).filter(|named| *named != stored) {
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

    /// The values after a change, of the next epoch; refused where a kind cannot live with it.
    pub(crate) fn after(&self, change: &SharedSettingsChange) -> Result<Self> {
        let epoch = self.epoch.checked_add(1).ok_or_else(|| Error::corrupt("the store has no epoch left"))?;
        let new = self.with(change, epoch)?;
        self.rules.iter().try_for_each(|rules| (rules.may_change)(self, &new))?;
        Ok(new)
    }

    fn with(&self, change: &SharedSettingsChange, epoch: u64) -> Result<Self> {
        change.must_be_declared(&self.rules)?;
        let values = self.values().map(|(name, old)| change.get(name).unwrap_or(old)).collect();
        let with = Self::of_values(&self.rules, epoch, values)?;
        Ok(Self { record_format: self.record_format, ..with })
    }
}

fn unreadable(setting: &SharedSetting) -> Error {
    Error::corrupt(format!(
        "the store's own settings are wrong: {} is missing or no number of milliseconds: restore store.json from a backup, \
         or write it again with the values in use: leasehold store repair",
        setting.in_file()
    ))
}

impl PartialEq for SharedSettings {
    fn eq(&self, other: &Self) -> bool {
        (self.epoch, self.record_format) == (other.epoch, other.record_format) && self.values().eq(other.values())
    }
}

impl Eq for SharedSettings {}

impl fmt::Debug for SharedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entry(&"epoch", &self.epoch).entries(self.values()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ErrorKind, WriteId,
        storage::{
            cas::{Slot, Stamp},
            store_json::StoreSlot,
        },
    };

    const PATIENCE: SharedSetting = SharedSetting::new("patience", Duration::from_secs(9), "How long to wait");
    const KEPT: SharedSetting =
        SharedSetting { required: true, ..SharedSetting::new("kept", Duration::from_secs(60), "How long to keep") };
    const RULES: Rules = Rules::of(&[PATIENCE, KEPT]);

    fn rules() -> Arc<[&'static Rules]> {
        Arc::new([&RULES])
    }

    fn shared() -> SharedSettings {
        SharedSettings::propose(&rules(), &SharedSettingsChange::default()).unwrap()
    }

    fn record(values: Map<String, Value>) -> StoreRecord {
        StoreRecord::new(Stamp { write_id: WriteId::from([7; 16]), revision: 3 }, 1, values, None)
    }

    #[test]
    fn what_is_shared_survives_being_written_down() {
        let body = StoreSlot.encode(&record(shared().in_file())).unwrap();
        let read = SharedSettings::read(&rules(), &StoreSlot.decode(body).unwrap()).unwrap();
        assert_eq!(read, shared());
        assert_eq!((read.of(&PATIENCE), read.get("kept")), (Duration::from_secs(9), Some(Duration::from_secs(60))));
    }

    #[test]
    fn a_setting_newer_than_the_store_has_its_default_and_a_required_one_is_missed() {
        let mut values = shared().in_file();
        values.remove("patience_ms");
        assert_eq!(SharedSettings::read(&rules(), &record(values.clone())).unwrap(), shared());
        values.remove("kept_ms");
        let error = SharedSettings::read(&rules(), &record(values)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("kept_ms"), "{error}");
    }

    #[test]
    fn a_process_with_another_value_is_refused_and_both_are_named() {
        let named = SharedSettingsChange::default().set(&MAX_CLOCK_SKEW, Duration::from_secs(2));
        let error = shared().admit(&named).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("max_clock_skew is 2 s in this process and 1 s in the store"), "{text}");
    }

    #[test]
    fn a_name_that_no_kind_has_declared_is_refused() {
        let named =
            SharedSettingsChange::default().set(&SharedSetting::new("other", Duration::ZERO, ""), Duration::ZERO);
        assert!(shared().admit(&named).unwrap_err().to_string().contains("other"));
        assert!(shared().after(&named).is_err());
    }

    #[test]
    fn a_margin_that_skew_and_a_late_write_could_eat_is_refused() {
        let margin = |seconds| SharedSettingsChange::default().set(&MARGIN, Duration::from_secs(seconds));
        assert!(SharedSettings::propose(&rules(), &margin(182)).is_err());
        assert!(SharedSettings::propose(&rules(), &margin(183)).is_ok());
    }

    #[test]
    fn nothing_and_fractions_of_a_millisecond_are_refused() {
        let patience = |time| SharedSettings::propose(&rules(), &SharedSettingsChange::default().set(&PATIENCE, time));
        assert!(patience(Duration::ZERO).is_err());
        assert!(patience(Duration::from_micros(1)).is_err());
        assert!(patience(LONGEST).is_ok());
        assert!(patience(LONGEST + Duration::from_millis(1)).is_err());
    }
}
