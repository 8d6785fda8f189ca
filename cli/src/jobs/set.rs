//! Settings of a queue by their names: `max_attempts=5`, `backoff.base=10s`, `kinds.mail.timeout=1m`.

use crate::exit::Failure;
use leasehold::job::{Backoff, KindSettings, QueueSettings};
use serde_json::{Map, Value};

/// One of them, as somebody wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    path: Vec<String>,
    value: String,
}

pub(crate) fn parse(text: &str) -> Result<Change, String> {
    let (name, value) = text.split_once('=').ok_or("write it like max_attempts=5 or backoff.base=10s")?;
    // The name of a kind may have dots in it; what comes after it has none.
    let path = match name.strip_prefix("kinds.").and_then(|rest| rest.rsplit_once('.')) {
        Some((kind, name)) if !kind.is_empty() => match kind.rsplit_once('.') {
            Some((kind, "backoff")) => vec!["kinds", kind, "backoff", name],
            _ => vec!["kinds", kind, name],
        },
        _ => name.split('.').collect(),
    };
    Ok(Change { path: path.into_iter().map(ToOwned::to_owned).collect(), value: value.to_owned() })
}

fn json<T: serde::Serialize>(value: &T) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::failed(format!("cannot be written as JSON: {error}")))
}

/// What a kind may have, all of it.
fn kind() -> KindSettings {
    let mut kind = KindSettings::default();
    (kind.max_attempts, kind.backoff) = (Some(1), Some(Backoff::default()));
    let any = Some(std::time::Duration::from_secs(1));
    (kind.timeout, kind.stuck_after, kind.dead_retention) = (any, any, any);
    kind
}

/// Every setting by its name, as it is written.
pub(crate) fn rows(settings: &QueueSettings) -> Result<Vec<(String, String)>, Failure> {
    fn walk(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| walk(&format!("{prefix}.{name}"), value, rows));
            }
            leaf => {
                let text = match leaf {
                    Value::Null => "none".to_owned(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                rows.push((prefix.trim_start_matches('.').to_owned(), text));
            }
        }
    }
    let mut rows = Vec::new();
    walk("", &json(settings)?, &mut rows);
    // A pause has verbs of its own.
    rows.retain(|(name, _)| !name.starts_with("paused"));
    Ok(rows)
}

/// The settings with all changes.
pub(crate) fn changed(settings: &QueueSettings, changes: &[Change]) -> Result<QueueSettings, Failure> {
    let mut all = json(settings)?;
    for change in changes {
        let name = change.path.join(".");
        if name.starts_with("paused") {
            return Err(Failure::usage("a queue is paused by `leasehold queue pause`, and by nothing else"));
        }
        let known = known(&change.path)?;
        put(&mut all, &change.path, typed(&change.value, &known, &name)?);
        if let Err(error) = serde_json::from_value::<QueueSettings>(all.clone()) {
            return Err(Failure::usage(format!("{name}={}: {error}", change.value)));
        }
    }
    serde_json::from_value(all).map_err(|error| Failure::usage(error.to_string()))
}

/// What stands at a place by default. Refuses a name that is none.
fn known(path: &[String]) -> Result<Value, Failure> {
    let mut here = match path {
        [kinds, _, ..] if kinds == "kinds" => json(&kind())?,
        _ => json(&QueueSettings::default())?,
    };
    let rest = if path.first().is_some_and(|first| first == "kinds") && path.len() > 1 { &path[2..] } else { path };
    let wrong = |here: &Value| {
        let names: Vec<&str> = match here {
            Value::Object(fields) => {
                fields.keys().map(String::as_str).filter(|name| !name.starts_with("paused")).collect()
            }
            _ => Vec::new(),
        };
        let name = path.join(".");
        match names.is_empty() {
            true => Failure::usage(format!("{name} is no setting of a queue")),
            false => {
                Failure::usage(format!("{name} is no setting of a queue; in its place there are {}", names.join(", ")))
            }
        }
    };
    for name in rest {
        here = match here.get(name) {
            Some(below) => below.clone(),
            None => return Err(wrong(&here)),
        };
    }
    if here.is_object() {
        return Err(wrong(&here));
    }
    Ok(here)
}

/// Text as what stands there by default is: a number, a switch, or text; `none` where there may be none.
fn typed(text: &str, known: &Value, name: &str) -> Result<Value, Failure> {
    let number = || text.parse::<u64>().ok().map(Value::from);
    let value = match known {
        _ if text == "none" => Some(Value::Null),
        Value::Number(_) => number(),
        Value::Bool(_) => text.parse().ok().map(Value::Bool),
        Value::String(_) => Some(Value::String(text.to_owned())),
        // There is none by default, so it may be either.
        _ => number().or_else(|| Some(Value::String(text.to_owned()))),
    };
    let kind = if known.is_boolean() { "true or false" } else { "a whole number" };
    value.ok_or_else(|| Failure::usage(format!("{name}={text}: it is {kind}")))
}

fn put(value: &mut Value, path: &[String], to: Value) {
    let [name, rest @ ..] = path else {
        *value = to;
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(fields) = value {
        put(fields.entry(name.as_str()).or_insert(Value::Null), rest, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::job::BackoffShape;
    use std::time::Duration;

    fn set(texts: &[&str]) -> Result<QueueSettings, String> {
        let changes: Result<Vec<Change>, String> = texts.iter().map(|text| parse(text)).collect();
        changed(&QueueSettings::default(), &changes?).map_err(|failure| failure.message)
    }

    #[test]
    fn settings_are_set_by_their_names() {
        let settings = set(&[
            "max_attempts=5",
            "backoff.base=10s",
            "backoff.shape=fixed",
            "capacity=1000",
            "skip_waiting=true",
            "kinds.mail.to.all.timeout=1m",
            "kinds.mail.backoff.base=3s",
            "overflow=rest",
        ])
        .unwrap();
        assert_eq!((settings.max_attempts, settings.capacity, settings.skip_waiting), (5, Some(1000), true));
        assert_eq!((settings.backoff.base, settings.backoff.shape), (Duration::from_secs(10), BackoffShape::Fixed));
        assert_eq!(settings.kinds["mail.to.all"].timeout, Some(Duration::from_secs(60)));
        assert_eq!(settings.kinds["mail"].backoff.unwrap().base, Duration::from_secs(3));
        assert_eq!(settings.overflow.as_deref(), Some("rest"));
        assert_eq!(set(&["rate=7", "rate=none"]).unwrap().rate, None);
    }

    #[test]
    fn what_is_no_setting_is_refused_with_what_there_is() {
        for (text, says) in [
            ("max_atempts=5", "max_attempts"),
            ("backoff=10s", "backoff.base, "),
            ("backoff.bass=10s", "base"),
            ("kinds.mail.tmeout=1m", "timeout"),
            ("max_attempts=many", "a whole number"),
            ("max_attempts=none", "max_attempts=none"),
            ("skip_waiting=yes", "true or false"),
            ("session_ttl=soon", "session_ttl=soon"),
            ("paused=true", "queue pause"),
            ("max_attempts", "max_attempts=5"),
        ] {
            let message = set(&[text]).unwrap_err();
            // Of a group of settings the names inside are said.
            assert!(message.contains(says.trim_end_matches(", ").trim_start_matches("backoff.")), "{text}: {message}");
        }
    }

    #[test]
    fn every_setting_that_is_shown_can_be_set_to_what_is_shown() {
        let texts: Vec<String> = rows(&QueueSettings::default())
            .unwrap()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert!(texts.len() > 15, "{texts:?}");
        assert_eq!(set(&texts).unwrap(), QueueSettings::default());
    }
}
