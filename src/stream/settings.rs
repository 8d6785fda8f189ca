//! What a stream is configured with. It stands in the store, so that every process trims alike.

use super::Patterns;
use crate::{
    Error, Result,
    duration::{optional, text},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most partitions that a stream may have.
const MOST_PARTITIONS: u16 = 256;

/// What is kept of a stream. Whatever goes beyond any of these is trimmed, in whole segments and never early: only what is
/// at least an hour old, never the last segment, and never what the archiver or a group has not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Retention {
    /// What is older may go.
    #[serde(with = "optional")]
    pub max_age: Option<Duration>,
    /// What comes before so many bytes of a partition may go.
    pub max_bytes: Option<u64>,
    /// What comes before so many messages of a partition may go.
    pub max_messages: Option<u64>,
}

impl Retention {
    /// Everything is kept.
    pub fn forever() -> Self {
        Self::default()
    }

    /// What is older may go.
    pub fn of_age(max_age: Duration) -> Self {
        Self { max_age: Some(max_age), ..Self::default() }
    }
}

/// Settings of a stream.
///
/// Deserialises from TOML, JSON and the like; durations are text such as `"7d"`:
///
/// ```
/// let settings: leasehold::stream::StreamSettings =
///     serde_json::from_str(r#"{"retention": {"max_age": "7d"}, "archive": "audit"}"#)?;
/// assert_eq!(settings.partitions, 1);
/// assert_eq!(settings.archive.as_deref(), Some("audit"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StreamSettings {
    /// In how many logs its messages are kept, by their keys (1). Cannot be changed.
    pub partitions: u16,
    /// What is kept of it: everything, unless told otherwise.
    pub retention: Retention,
    /// The domain of the archive that it is copied to: nothing is trimmed before it is there.
    pub archive: Option<String>,
    /// For how long after its last sign of life a group keeps messages from being trimmed (7 days).
    #[serde(with = "text")]
    pub group_expiry: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        let week = Duration::from_secs(7 * 24 * 3600);
        Self { partitions: 1, retention: Retention::default(), archive: None, group_expiry: week }
    }
}

impl StreamSettings {
    /// With these settings for what is kept.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Copied to this domain of the archive.
    #[must_use]
    pub fn archive(mut self, domain: impl Into<String>) -> Self {
        self.archive = Some(domain.into());
        self
    }

    /// In so many logs.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.partitions == 0 || self.partitions > MOST_PARTITIONS {
            let got = self.partitions;
            return Err(Error::invalid(format!("a stream must have 1 to {MOST_PARTITIONS} partitions (got {got})")));
        }
        if let Some(domain) = &self.archive {
            check_domain(domain)?;
        }
        if self.group_expiry < Duration::from_secs(3600) {
            return Err(Error::invalid(format!(
                "group_expiry must be at least 1 h (got {})",
                humantime::format_duration(self.group_expiry)
            )));
        }
        Ok(())
    }
}

/// A domain becomes a folder of the archive.
pub(crate) fn check_domain(domain: &str) -> Result<()> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    // Others are folders of leases and streams, should a namespace be called `archive`.
    let taken = ["meta", "stream", "queue"].contains(&domain);
    if domain.is_empty() || domain.len() > 63 || taken || domain.starts_with('_') || !domain.bytes().all(allowed) {
        return Err(Error::invalid(format!(
            "{domain:?} cannot be a domain of the archive: 1 to 63 of a to z, 0 to 9, '_' and '-' are allowed, not beginning with \
             '_', and not meta, queue or stream"
        )));
    }
    Ok(())
}

/// Settings of streams by the patterns of their names; a stream that fits none has the defaults.
pub type StreamRules = Patterns<StreamSettings>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let settings = StreamSettings::default();
        assert!(settings.validate().is_ok());
        assert!(settings.clone().partitions(0).validate().is_err());
        assert!(settings.clone().partitions(257).validate().is_err());
        for domain in ["", "_x", "a/b", "..", "A", "meta"] {
            assert!(settings.clone().archive(domain).validate().is_err(), "{domain}");
        }
        assert!(serde_json::from_str::<StreamSettings>(r#"{"partition": 2}"#).is_err());
    }
}
