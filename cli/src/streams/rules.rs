//! What the configuration file says of streams and their archive.
//!
//! ```toml
//! [streams."events.audit.>"]
//! retention = { max_age = "7d" }
//! archive = "audit"
//!
//! [archive.audit]
//! destination = "s3://cold/prefix"   # this store, if it is not said
//! batch_size = 1000
//! batch_timeout = "60s"
//! format = "jsonl"
//! compression = "gzip"
//! partition = "hive"                 # or daily
//! ```

use crate::exit::Failure;
use leasehold::{
    archive::{ArchiveSettings, Days},
    stream::{Pattern, StreamRules, StreamSettings},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// Settings of streams, by pattern, as the file has them.
pub(crate) type StreamFile = BTreeMap<String, StreamSettings>;

/// Settings of the archive, by domain.
pub(crate) type ArchiveRules = BTreeMap<String, ArchiveFile>;

/// How one domain is archived.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchiveFile {
    /// Another store that its files go to.
    pub(crate) destination: Option<String>,
    batch_size: Option<usize>,
    batch_bytes: Option<u64>,
    batch_timeout: Option<String>,
    #[serde(default)]
    format: Lines,
    #[serde(default)]
    compression: Compression,
    #[serde(default)]
    partition: Folders,
    poll_interval: Option<String>,
    alert_messages: Option<u64>,
    alert_age: Option<String>,
    events: Option<String>,
}

/// What is in a file.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Lines {
    /// One JSON object a line.
    #[default]
    Jsonl,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Compression {
    #[default]
    Gzip,
}

/// How the days are named.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Folders {
    #[default]
    Daily,
    Hive,
}

impl ArchiveFile {
    pub(crate) fn settings(&self) -> Result<ArchiveSettings, String> {
        let mut settings = ArchiveSettings::default();
        let span = |text: &Option<String>| text.as_deref().map(crate::duration::parse).transpose();
        settings.batch_size = self.batch_size.unwrap_or(settings.batch_size);
        settings.batch_bytes = self.batch_bytes.unwrap_or(settings.batch_bytes);
        settings.batch_timeout = span(&self.batch_timeout)?.unwrap_or(settings.batch_timeout);
        settings.poll_interval = span(&self.poll_interval)?.unwrap_or(settings.poll_interval);
        settings.alert_messages = self.alert_messages.unwrap_or(settings.alert_messages);
        settings.alert_age = span(&self.alert_age)?.unwrap_or(settings.alert_age);
        settings.events.clone_from(&self.events);
        settings.days = match self.partition {
            Folders::Daily => Days::Daily,
            Folders::Hive => Days::Hive,
        };
        Ok(settings)
    }
}

/// What the file says, checked.
pub(crate) fn load(path: Option<&Path>, streams: StreamFile, archive: &ArchiveRules) -> Result<StreamRules, Failure> {
    let file = path.map(|path| path.display().to_string()).unwrap_or_default();
    let wrong =
        |what: &str, why: &dyn std::fmt::Display| Failure::usage(format!("the configuration {file}, {what}: {why}"));
    let mut rules = Vec::new();
    for (text, settings) in streams {
        let pattern: Pattern = text.parse().map_err(|error| wrong(&format!("streams.{text:?}"), &error))?;
        rules.push((pattern, settings));
    }
    for (domain, rule) in archive {
        rule.settings().map_err(|why| wrong(&format!("archive.{domain}"), &why))?;
    }
    StreamRules::new(rules).map_err(|error| wrong("streams", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[derive(Debug, Deserialize)]
    struct File {
        streams: StreamFile,
        archive: ArchiveRules,
    }

    const TEXT: &str = r#"
        [streams."events.audit.>"]
        retention = { max_age = "7d" }
        archive = "audit"
        [streams."events.>"]
        retention = { max_messages = 1000 }
        [archive.audit]
        batch_size = 500
        batch_timeout = "30s"
        format = "jsonl"
        compression = "gzip"
        partition = "hive"
    "#;

    #[test]
    fn what_the_file_says_is_what_the_library_is_told() {
        let File { streams, archive } = toml::from_str(TEXT).unwrap();
        let rules = load(None, streams, &archive).unwrap();
        let audit = rules.best("events.audit.login").unwrap();
        assert_eq!(
            (audit.archive.as_deref(), audit.retention.max_age),
            (Some("audit"), Some(Duration::from_secs(604_800)))
        );
        assert_eq!(rules.best("events.other").unwrap().retention.max_messages, Some(1000));
        let settings = archive["audit"].settings().unwrap();
        assert_eq!(
            (settings.batch_size, settings.batch_timeout, settings.days),
            (500, Duration::from_secs(30), Days::Hive)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (from, to) in [
            ("\"jsonl\"", "\"parquet\""),
            ("\"gzip\"", "\"zstd\""),
            ("\"hive\"", "\"hourly\""),
            ("batch_size", "batchsize"),
            ("retention", "retension"),
        ] {
            assert!(toml::from_str::<File>(&TEXT.replacen(from, to, 1)).is_err(), "{to}");
        }
        let read = |text: &str| {
            let File { streams, archive } = toml::from_str(text).unwrap();
            load(Some(Path::new("x.toml")), streams, &archive).map_err(|failure| failure.message)
        };
        assert!(read(&TEXT.replace("30s", "soon")).unwrap_err().contains("archive.audit"));
        assert!(read(&TEXT.replace("events.>", "events.*.>")).is_ok());
        let tie = read(&TEXT.replace("events.audit.>", "events.*.login").replace("events.>", "events.audit.*"));
        assert!(tie.unwrap_err().contains("equally good"));
    }
}
