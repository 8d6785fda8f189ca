//! How an archiver works, and how its files are named.

use crate::{Error, Result, duration::text};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the days are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Days {
    /// `2026/02/14`.
    #[default]
    Daily,
    /// `dt=2026-02-14`, which Hive, Athena, Spark and DuckDB find by themselves.
    Hive,
}

/// How an archiver works.
///
/// ```
/// let settings: leasehold::archive::ArchiveSettings = serde_json::from_str(r#"{"batch_size": 500, "days": "hive"}"#)?;
/// assert_eq!(settings.batch_timeout.as_secs(), 60);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ArchiveSettings {
    /// A file is written when so many messages wait (1,000).
    pub batch_size: usize,
    /// Or so many bytes (64 MiB).
    pub batch_bytes: u64,
    /// Or when the first of them has waited for so long, also if nothing new arrives (60 s).
    #[serde(with = "text")]
    pub batch_timeout: Duration,
    /// How the days are named.
    pub days: Days,
    /// How often the end of a stream is looked at (1 s).
    #[serde(with = "text")]
    pub poll_interval: Duration,
    /// From how many messages on an archiver is behind (10,000).
    pub alert_messages: u64,
    /// From what age of the oldest message on an archiver is behind (1 h).
    #[serde(with = "text")]
    pub alert_age: Duration,
    /// The stream to which it publishes an event for each file, and when it is behind; none if it is not named.
    pub events: Option<String>,
}

impl Default for ArchiveSettings {
    fn default() -> Self {
        Self {
            batch_size: 1000,
            batch_bytes: 64 << 20,
            batch_timeout: Duration::from_secs(60),
            days: Days::Daily,
            poll_interval: Duration::from_secs(1),
            alert_messages: 10_000,
            alert_age: Duration::from_secs(3600),
            events: None,
        }
    }
}

impl ArchiveSettings {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.batch_size == 0 || self.batch_size > 1_000_000 || self.batch_bytes == 0 || self.poll_interval.is_zero()
        {
            return Err(Error::config(
                "batch_size must be 1 to 1000000, and batch_bytes and poll_interval more than nothing",
            ));
        }
        Ok(())
    }
}
