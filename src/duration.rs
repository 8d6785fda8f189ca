//! Durations as people write them, in configuration files, and as programs read them.

/// A duration such as `"30s"`.
pub(crate) mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text)
            .map_err(|error| D::Error::custom(format!("{text:?} is no duration such as \"30s\" or \"15m\": {error}")))
    }
}

/// Whole milliseconds, for programs; the name of such a field ends in `_ms`.
pub(crate) mod millis {
    use serde::Serializer;
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A duration such as `"30s"`, or nothing.
pub(crate) mod optional {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::text::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Text(#[serde(with = "super::text")] Duration);
        Ok(Option::<Text>::deserialize(deserializer)?.map(|text| text.0))
    }
}
