//! How a process uses a store: the library's settings, from the configuration file and from the environment.

use crate::{exit::Failure, output};
use leasehold::Settings;
use serde::Deserialize as _;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Settings, and the variables that they come from, by the path of the setting (`sweep.idle_grace`).
#[derive(Debug, Default)]
pub(crate) struct FromEnvironment {
    pub(crate) settings: Settings,
    pub(crate) variables: BTreeMap<String, String>,
}

/// Every setting that a variable names takes the place of what the file says: `LEASEHOLD_` and its path, such as
/// `LEASEHOLD_REQUEST_TIMEOUT` for `request_timeout` and `LEASEHOLD_SWEEP_IDLE_GRACE` for `sweep.idle_grace`.
pub(crate) fn load(
    file: Option<&toml::Table>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<FromEnvironment, Failure> {
    let mut table = file.cloned().unwrap_or_default();
    let mut variables = BTreeMap::new();
    for (path, default) in paths() {
        let name = variable_of(&path);
        let Some(text) = variable(&name) else { continue };
        let value = typed(&text, &default);
        // By itself first, so that the message can name the variable.
        let mut alone = toml::Table::new();
        put(&mut alone, &path, value.clone());
        if let Err(error) = parsed(alone) {
            return Err(Failure::usage(format!("{path} = {text:?} ({name}): {}", error.message())));
        }
        put(&mut table, &path, value);
        variables.insert(path, name);
    }
    let settings = parsed(table).map_err(|error| Failure::usage(format!("settings: {}", error.message())))?;
    Ok(FromEnvironment { settings, variables })
}

/// What the program reads besides the settings, and what `lock`, `elect` and `work` tell their command.
const OTHERS: [&str; 23] = [
    "STORE",
    "SERVER",
    "NAMESPACE",
    "OUTPUT",
    "CONFIG",
    "OWNER",
    "TTL",
    "TOKEN",
    "TOKEN_FILE",
    "LISTEN",
    "KEY",
    "FENCE",
    "LEASE",
    "SLOT",
    "CA",
    "JOB",
    "JOB_FILE",
    "JOB_KIND",
    "JOB_KEY",
    "JOB_TENANT",
    "JOB_CALLER_ID",
    "ATTEMPT",
    "QUEUE",
];

/// What Kubernetes sets for a service that is called leasehold, and what the tests of this project set.
const NOT_OURS: [&str; 3] = ["SERVICE_", "PORT", "TEST_"];

/// Says which variables look like ours and are read by nothing: a mistyped name must not be ignored without a word.
/// Among the settings of the sweeper that is an error, as with a flag; elsewhere the name may be another program's.
pub(crate) fn check_names(names: impl Iterator<Item = String>) -> Result<(), Failure> {
    let known: Vec<String> = paths().iter().map(|(path, _)| variable_of(path)).collect();
    let unread = |name: &String| {
        let rest = name.strip_prefix("LEASEHOLD_");
        rest.is_some_and(|rest| !OTHERS.contains(&rest) && !NOT_OURS.iter().any(|begins| rest.starts_with(begins)))
            && !known.contains(name)
    };
    let mut unread: Vec<String> = names.filter(unread).collect();
    unread.sort();
    if let Some(name) = unread.iter().find(|name| name.starts_with("LEASEHOLD_SWEEP_")) {
        let sweep: Vec<&str> = known.iter().filter_map(|known| known.strip_prefix("LEASEHOLD_SWEEP_")).collect();
        return Err(Failure::usage(format!(
            "{name} is set, and there is no such setting; those of the sweeper are LEASEHOLD_SWEEP_ and one of {}",
            sweep.join(", ")
        )));
    }
    for name in unread {
        output::say(format_args!(
            "warning: {name} is set, and nothing reads it; `leasehold config show` lists all settings"
        ));
    }
    Ok(())
}

fn parsed(table: toml::Table) -> Result<Settings, toml::de::Error> {
    Settings::deserialize(toml::Value::Table(table))
}

fn variable_of(path: &str) -> String {
    format!("LEASEHOLD_{}", path.replace('.', "_").to_uppercase())
}

/// The path of every setting, with its default.
fn paths() -> Vec<(String, Json)> {
    fn walk(prefix: &str, value: Json, paths: &mut Vec<(String, Json)>) {
        match value {
            Json::Object(fields) => {
                fields.into_iter().for_each(|(name, value)| walk(&format!("{prefix}{name}."), value, paths));
            }
            leaf => paths.push((prefix.trim_end_matches('.').to_owned(), leaf)),
        }
    }
    let mut paths = Vec::new();
    walk("", serde_json::to_value(Settings::default()).unwrap_or_default(), &mut paths);
    paths
}

/// A variable is text; what is a number or a switch by default is read as one. What is none stays text, and is refused.
fn typed(text: &str, default: &Json) -> toml::Value {
    let other = match default {
        Json::Number(_) => text.parse().ok().map(toml::Value::Integer),
        Json::Bool(_) => text.parse().ok().map(toml::Value::Boolean),
        _ => None,
    };
    other.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

fn put(table: &mut toml::Table, path: &str, value: toml::Value) {
    match path.split_once('.') {
        None => drop(table.insert(path.to_owned(), value)),
        Some((folder, rest)) => {
            let inner = table.entry(folder).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn of<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn every_setting_can_be_named_by_a_variable_of_its_own() {
        let names: Vec<String> = paths().iter().map(|(path, _)| variable_of(path)).collect();
        assert!(names.len() >= 20, "{names:?}");
        for name in ["LEASEHOLD_MAX_CLOCK_SKEW", "LEASEHOLD_CACHED_KEYS", "LEASEHOLD_SWEEP_IDLE_GRACE"] {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        assert!(OTHERS.iter().all(|name| !names.contains(&format!("LEASEHOLD_{name}"))));
    }

    #[test]
    fn a_variable_takes_the_place_of_the_file_and_leaves_the_rest_of_it() {
        let file: toml::Table =
            toml::from_str("request_timeout = '2s'\n[sweep]\nidle_grace = '1m'\ntick = '7s'").unwrap();
        let variables = [
            ("LEASEHOLD_SWEEP_IDLE_GRACE", "9s"),
            ("LEASEHOLD_SWEEP_PAGE_SIZE", "50"),
            ("LEASEHOLD_SWEEP_CLUSTER_SINGLETON", "true"),
            ("LEASEHOLD_MAX_TTL", "2h"),
        ];
        let FromEnvironment { settings, variables } = load(Some(&file), of(&variables)).unwrap();
        assert_eq!((settings.sweep.idle_grace, settings.sweep.tick), (Duration::from_secs(9), Duration::from_secs(7)));
        assert_eq!((settings.sweep.page_size, settings.sweep.cluster_singleton), (50, true));
        assert_eq!(settings.max_ttl, Some(Duration::from_secs(7200)));
        assert_eq!(settings.request_timeout, Duration::from_secs(2));
        assert_eq!(variables["sweep.idle_grace"], "LEASEHOLD_SWEEP_IDLE_GRACE");
        assert_eq!(variables.len(), 4);
    }

    #[test]
    fn a_mistyped_setting_of_the_sweeper_is_refused() {
        let check = |name: &str| check_names([name.to_owned(), "PATH".to_owned()].into_iter());
        let message = check("LEASEHOLD_SWEEP_IDLE_GRASE").unwrap_err().message;
        assert!(message.contains("LEASEHOLD_SWEEP_IDLE_GRASE") && message.contains("IDLE_GRACE"), "{message}");
        for name in ["LEASEHOLD_SWEEP_IDLE_GRACE", "LEASEHOLD_STORE", "LEASEHOLD_SERVICE_HOST", "LEASEHOLD_REQUST"] {
            assert!(check(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_named() {
        for (name, value) in [("LEASEHOLD_SWEEP_TICK", "soon"), ("LEASEHOLD_CACHED_KEYS", "many")] {
            let message = load(None, of(&[(name, value)])).unwrap_err().message;
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }
}
