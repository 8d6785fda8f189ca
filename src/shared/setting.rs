//! One value that all processes share, and what a kind of record says of its own.

use super::SharedSettings;
use crate::Result;
use std::time::Duration;

/// How far the clocks of any two machines that use a store may differ.
pub const MAX_CLOCK_SKEW: SharedSetting = SharedSetting {
    required: true,
    may_be_zero: true,
    ..SharedSetting::new("max_clock_skew", Duration::from_secs(1), "How far the clocks of any two machines may differ")
};

/// Skew, and the longest write that may still land.
pub const MARGIN: SharedSetting = SharedSetting {
    required: true,
    may_be_zero: true,
    ..SharedSetting::new("margin", Duration::from_secs(900), "Skew, and the longest write that may still land")
};

/// One value that all processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSetting {
    /// Its name, everywhere but in the file, where it ends in `_ms`.
    pub name: &'static str,
    /// What a new store gets, and what one has that was made before there was such a setting.
    pub default: Duration,
    /// What it is, in one line.
    pub about: &'static str,
    /// Whether every `store.json` must have it.
    pub required: bool,
    /// Whether it may be nothing.
    pub may_be_zero: bool,
}

impl SharedSetting {
    /// A setting that may be missing in a store that is older than itself, and that is longer than nothing.
    pub const fn new(name: &'static str, default: Duration, about: &'static str) -> Self {
        Self { name, default, about, required: false, may_be_zero: false }
    }

    /// Its name in `store.json`.
    pub(crate) fn in_file(&self) -> String {
        format!("{}_ms", self.name)
    }
}

/// What a kind says of the values that all processes must have alike for it.
#[derive(Debug)]
pub struct Rules {
    /// Its own settings.
    pub settings: &'static [SharedSetting],
    /// Refuses a change that the kind cannot live with. Each value alone has been looked at before.
    pub may_change: fn(old: &SharedSettings, new: &SharedSettings) -> Result<()>,
    /// For how long every process must have been stopped before such a change.
    pub stop: fn(old: &SharedSettings, new: &SharedSettings) -> Stop,
}

impl Rules {
    /// Settings that may be changed at any time.
    pub const fn of(settings: &'static [SharedSetting]) -> Self {
        Self { settings, may_change: |_, _| Ok(()), stop: |_, _| Stop { time: Duration::ZERO, why: "" } }
    }
}

/// For how long every process must have been stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stop {
    /// So long.
    pub time: Duration,
    /// What that is the sum of.
    pub why: &'static str,
}
