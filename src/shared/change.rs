//! Values that are named: by an operator who wants them changed, or by a process that is configured with them.

use super::{Rules, SharedSetting, SharedSettings, Stop, declared};
use crate::{Error, Result};
use std::{collections::BTreeMap, time::Duration};

/// Some of the shared values. Those that are left out stay as they are in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedSettingsChange(BTreeMap<&'static str, Duration>);

impl SharedSettingsChange {
    /// With this value for a setting.
    #[must_use]
    pub fn set(mut self, setting: &SharedSetting, value: Duration) -> Self {
        self.0.insert(setting.name, value);
        self
    }

    /// With this value for a setting, if there is one.
    #[must_use]
    pub fn set_if(self, setting: &SharedSetting, value: Option<Duration>) -> Self {
        match value {
            Some(value) => self.set(setting, value),
            None => self,
        }
    }

    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For how long every process must have been stopped before this change, and why. Fails if the change is refused.
    pub fn needs_a_stop_of(&self, old: &SharedSettings) -> Result<Stop> {
        Ok(old.stop_needed_for(&old.with(self, old.epoch)?))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Duration> {
        self.0.get(name).copied()
    }

    /// These values, and those of another for what it does not name itself.
    pub(crate) fn or(mut self, other: &Self) -> Self {
        for (name, value) in &other.0 {
            self.0.entry(name).or_insert(*value);
        }
        self
    }

    pub(super) fn must_be_declared(&self, rules: &[&'static Rules]) -> Result<()> {
        match self.0.keys().find(|name| declared(rules).all(|setting| setting.name != **name)) {
            Some(name) => Err(Error::config(format!("this store has no shared setting {name:?}"))),
            None => Ok(()),
        }
    }
}
