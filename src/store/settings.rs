//! Values that a process is configured with. Components (store, clock, generator) go through the builder instead.

use crate::{
    Error, Result, Ttl,
    decision::{MARKER_RETENTION, MAX_TXN_AGE},
    duration::{optional, text},
    job::JobOptions,
    lease::{LeaseSettings, MAX_TTL},
    shared::{MARGIN, MAX_CLOCK_SKEW, SharedSettingsChange},
    sweep::SweepSettings,
    timing::LONGEST_WRITE,
    ttl::in_words,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a process uses a store.
///
/// Deserialises from TOML, JSON and the like; durations are text such as `"1s"` or `"15m"`, everything has a default,
/// and a misspelt name is refused:
///
/// ```
/// let settings: leasehold::Settings = serde_json::from_str(r#"{"request_timeout": "2s"}"#)?;
/// assert_eq!(settings.request_timeout.as_secs(), 2);
/// assert!(serde_json::from_str::<leasehold::Settings>(r#"{"request_timeuot": "2s"}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// The first five are shared: every process that uses a store must have the same ones, so they are written into it
/// once, by the first process, and read from there by all others. Leave them out to take what the store says; a process
/// that names another value is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Settings {
    /// Shared. How far the clocks of any two machines that use the store may differ (1 s). A lease is taken over only
    /// this long after its expiry.
    #[serde(with = "optional")]
    pub max_clock_skew: Option<Duration>,
    /// Shared. For how long after it began a transaction may be decided (1 h).
    #[serde(with = "optional")]
    pub max_txn_age: Option<Duration>,
    /// Shared. Skew, and the longest write that may still land (15 min).
    #[serde(with = "optional")]
    pub margin: Option<Duration>,
    /// Shared. For how long a decision can be read after it was made (24 h).
    #[serde(with = "optional")]
    pub marker_retention: Option<Duration>,
    /// Shared. The longest time to live that a lease can have without being renewed (1 h).
    #[serde(with = "optional")]
    pub max_ttl: Option<Duration>,
    /// How long to wait for the answer to one read or write (5 s; a minute at the most). Far below any time to live.
    #[serde(with = "text")]
    pub request_timeout: Duration,
    /// How long to wait for one listing or bulk delete (30 s).
    #[serde(with = "text")]
    pub bulk_timeout: Duration,
    /// The shortest time to live that may be asked for (1 s).
    #[serde(with = "text")]
    pub min_ttl: Duration,
    /// How soon a waiter looks again for the first time (100 ms). It looks less and less often from then on.
    #[serde(with = "text")]
    pub poll_interval: Duration,
    /// How often a waiter looks at the least (2 s).
    #[serde(with = "text")]
    pub max_poll_interval: Duration,
    /// Of how many keys the last seen record is kept in memory (100,000), which saves a read on each.
    pub cached_keys: usize,
    /// How the sweeper works.
    pub sweep: SweepSettings,
    /// How this process works with queues.
    pub jobs: JobOptions,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_clock_skew: None,
            max_txn_age: None,
            margin: None,
            marker_retention: None,
            max_ttl: None,
            request_timeout: Duration::from_secs(5),
            bulk_timeout: Duration::from_secs(30),
            min_ttl: Duration::from_secs(1),
            poll_interval: Duration::from_millis(100),
            max_poll_interval: Duration::from_secs(2),
            cached_keys: 100_000,
            sweep: SweepSettings::default(),
            jobs: JobOptions::default(),
        }
    }
}

impl Settings {
    /// The shared ones that are named.
    pub(crate) fn shared(&self) -> SharedSettingsChange {
        SharedSettingsChange::default()
            .set_if(&MAX_CLOCK_SKEW, self.max_clock_skew)
            .set_if(&MAX_TXN_AGE, self.max_txn_age)
            .set_if(&MARGIN, self.margin)
            .set_if(&MARKER_RETENTION, self.marker_retention)
            .set_if(&MAX_TTL, self.max_ttl)
    }

    /// What leases go by.
    pub(crate) fn leases(&self) -> LeaseSettings {
        LeaseSettings {
            request_timeout: self.request_timeout,
            min_ttl: self.min_ttl,
            poll_interval: self.poll_interval,
            max_poll_interval: self.max_poll_interval,
            cached_keys: self.cached_keys,
        }
    }

    /// What no process can work with, whatever the store says.
    pub(crate) fn validate(&self) -> Result<()> {
        let longer_than_nothing = [
            ("request_timeout", self.request_timeout),
            ("bulk_timeout", self.bulk_timeout),
            ("poll_interval", self.poll_interval),
        ];
        let day = Duration::from_secs(24 * 3600);
        if let Some((name, value)) = longer_than_nothing.iter().find(|(_, value)| value.is_zero() || *value > day) {
            return Err(Error::config(format!(
                "{name} is {}: it must be longer than nothing and at most a day",
                in_words(*value)
            )));
        }
        // An answer that took longer does not tell the time, and a write may land for only so long after it was given up.
        if self.request_timeout > LONGEST_WRITE {
            return Err(Error::config(format!(
                "request_timeout is {}: it must be at most {}",
                in_words(self.request_timeout),
                in_words(LONGEST_WRITE)
            )));
        }
        if self.max_poll_interval < self.poll_interval {
            return Err(Error::config(format!(
                "max_poll_interval is {}: it must be at least poll_interval, {}",
                in_words(self.max_poll_interval),
                in_words(self.poll_interval)
            )));
        }
        Ttl::new(self.min_ttl).map_err(|error| error.while_doing("min_ttl cannot be used"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_being_written_down() {
        let settings = Settings { margin: Some(Duration::from_secs(1800)), ..Settings::default() };
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""margin":"30m""#), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn a_request_may_not_take_longer_than_a_write_may_be_under_way() {
        let settings = |seconds| Settings { request_timeout: Duration::from_secs(seconds), ..Settings::default() };
        assert!(settings(60).validate().is_ok());
        assert!(settings(61).validate().unwrap_err().to_string().contains("at most 1 min"));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        let error = serde_json::from_str::<Settings>(r#"{"margin": "fifteen"}"#).unwrap_err().to_string();
        assert!(error.contains("15m"), "{error}");
    }
}
