//! How the sweeper is tuned.

use crate::{Error, Result, duration::text};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the idle sweeper works.
///
/// The defaults, as they would stand in a configuration file:
///
/// ```toml
/// idle_grace = "5m"
/// op_delay = "100ms"
/// max_ops_per_run = 1000
/// max_runtime_per_run = "30s"
/// tick = "30s"
/// hour_grace = "15m"
/// starvation_after = "1h"
/// page_size = 250
/// rest_spread = "30m"
/// cluster_singleton = false
/// ```
///
/// **A small bucket** needs none of this changed, and neither does a process that is never idle: it sweeps as much as it
/// files, at the pace which that takes. **A large bucket whose processes are idle most of the time**, with more than about
/// 300,000 keys and hours a day left behind, needs a longer or a faster run (`max_ops_per_run = 5000`,
/// `max_runtime_per_run = "10m"`, `op_delay = "20ms"`) and one sweeper for the whole cluster (`cluster_singleton = true`). **One that throttles** is left alone by itself: the sweeper
/// slows down when it is asked to; a longer `op_delay` spares it the asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SweepSettings {
    /// How long no operation may have been called before a run begins.
    #[serde(with = "text")]
    pub idle_grace: Duration,
    /// How long to wait between two entries, and before a listing, at the least. A process that is never idle goes faster
    /// where it files more than this would sweep.
    #[serde(with = "text")]
    pub op_delay: Duration,
    /// How much a run does, at the most: an op is one index entry or one listing. With the default `op_delay` the
    /// default `max_runtime_per_run` comes first, at 300. A run of a process that is never idle goes by what it has filed
    /// instead.
    pub max_ops_per_run: u32,
    /// How long a run takes, at the most.
    #[serde(with = "text")]
    pub max_runtime_per_run: Duration,
    /// How often to see whether it is time for a run.
    #[serde(with = "text")]
    pub tick: Duration,
    /// How long an hour must have ended before its entries are looked at: longer than
    /// `2 × (max_clock_skew + 60 s) + 60 s`.
    #[serde(with = "text")]
    pub hour_grace: Duration,
    /// After how long without a pass that was completed when idle a process sweeps although it is busy: up to two entries
    /// for each one that it has filed. Zero switches that off, and the index of a system that is never idle grows.
    #[serde(with = "text")]
    pub starvation_after: Duration,
    /// How many entries are listed at once, up to 1,000.
    pub page_size: usize,
    /// How far the sweepers of a fleet spread out after an hour has ended, so that they do not all wake at once.
    #[serde(with = "text")]
    pub rest_spread: Duration,
    /// Whether only one process of a cluster sweeps at a time when idle. Saves requests; nothing depends on it. Busy
    /// processes always take turns.
    pub cluster_singleton: bool,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self {
            idle_grace: Duration::from_secs(300),
            op_delay: Duration::from_millis(100),
            max_ops_per_run: 1000,
            max_runtime_per_run: Duration::from_secs(30),
            tick: Duration::from_secs(30),
            hour_grace: Duration::from_secs(900),
            starvation_after: Duration::from_secs(3600),
            page_size: 250,
            rest_spread: Duration::from_secs(1800),
            cluster_singleton: false,
        }
    }
}

impl SweepSettings {
    pub(crate) fn validate(&self, least_hour_grace: Duration) -> Result<()> {
        if self.hour_grace <= least_hour_grace {
            return Err(Error::config(format!(
                "hour_grace must be longer than {least_hour_grace:?} = 2 × (max_clock_skew + 60 s) + 60 s (got {:?})",
                self.hour_grace
            )));
        }
        if self.tick.is_zero() || self.max_ops_per_run == 0 || self.max_runtime_per_run.is_zero() {
            return Err(Error::config("tick, max_ops_per_run and max_runtime_per_run must be more than nothing"));
        }
        if !(1..=1000).contains(&self.page_size) {
            return Err(Error::config(format!("page_size is {}: 1 to 1000 are allowed", self.page_size)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_sample_is_the_default() {
        let sample: Vec<&str> = include_str!("settings.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| line.trim_start_matches("/// "))
            .collect();
        let parsed: SweepSettings = toml::from_str(&sample.join("\n")).unwrap();
        assert_eq!(parsed, SweepSettings::default());
        assert_eq!(sample.len(), 10, "every setting is in the sample");
    }

    #[test]
    fn what_would_never_sweep_anything_is_refused() {
        let refused = |change: fn(&mut SweepSettings)| {
            let mut settings = SweepSettings::default();
            change(&mut settings);
            settings.validate(Duration::ZERO).is_err()
        };
        assert!(!refused(|_| ()));
        assert!(refused(|settings| settings.tick = Duration::ZERO));
        assert!(refused(|settings| settings.max_ops_per_run = 0));
        assert!(refused(|settings| settings.max_runtime_per_run = Duration::ZERO));
        assert!(refused(|settings| settings.page_size = 0) && refused(|settings| settings.page_size = 1001));
        assert!(!refused(|settings| settings.page_size = 1) && !refused(|settings| settings.page_size = 1000));
    }

    #[test]
    fn a_grace_that_a_late_write_could_outlive_is_refused() {
        let settings = SweepSettings { hour_grace: Duration::from_secs(182), ..SweepSettings::default() };
        assert!(settings.validate(Duration::from_secs(182)).is_err());
        assert!(settings.validate(Duration::from_secs(181)).is_ok());
    }
}
