//! Where values come from: defaults < configuration file < environment < flags, and which of them it was.

use crate::{
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    settings::{self, FromEnvironment},
    shell,
    streams::{self, ArchiveRules, StreamFile},
};
use clap::{Args, Subcommand};
use leasehold::{Namespace, Settings, stream::StreamRules};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, env, fmt, path::PathBuf, time::Duration};

/// What can be said with every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Where the store is: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///absolute/folder or a
    /// folder. By default a folder of yours, so that all your terminals share it [env: LEASEHOLD_STORE]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) store: Option<String>,

    /// A lock service to ask in place of a store, such as http://127.0.0.1:7420. Its token is taken from LEASEHOLD_TOKEN or
    /// from the file that LEASEHOLD_TOKEN_FILE names [env: LEASEHOLD_SERVER]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) server: Option<String>,

    /// A file of certificate authorities (PEM) to trust beside those of the machine, for a store or a service inside of your
    /// own network [env: LEASEHOLD_CA]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) ca: Option<String>,

    /// Keeps keys apart from those of others in the same store [env: LEASEHOLD_NAMESPACE] [default: default]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub(crate) namespace: Option<String>,

    /// How data is written [env: LEASEHOLD_OUTPUT] [default: table]
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", help_heading = "Global options")]
    pub(crate) output: Option<Format>,

    /// The configuration file [env: LEASEHOLD_CONFIG] [default: leasehold/config.toml where your system keeps such files]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,

    /// Say more on stderr; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,

    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Global options")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every value, and where it comes from
    Show,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    store: Option<String>,
    server: Option<String>,
    ca: Option<String>,
    namespace: Option<String>,
    output: Option<Format>,
    owner: Option<String>,
    ttl: Option<String>,
    /// By pattern.
    streams: StreamFile,
    /// By domain.
    archive: ArchiveRules,
    /// Of the store at the URL, by the names that `object_store` has for them.
    options: BTreeMap<String, String>,
    /// Checked here, for a message with a line; the environment is laid over it afterwards.
    #[serde(rename = "settings")]
    _settings: Settings,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value that knows where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Value<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

/// Everything that is configured.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) store: Value<String>,
    /// Asked in place of the store, if there is one.
    pub(crate) server: Option<Value<String>>,
    /// A file of authorities to trust.
    pub(crate) ca: Option<Value<String>>,
    /// What the service asks for. Never shown.
    pub(crate) token: Option<String>,
    pub(crate) namespace: Value<Namespace>,
    pub(crate) output: Value<Format>,
    pub(crate) owner: Value<String>,
    pub(crate) ttl: Value<Duration>,
    pub(crate) settings: Settings,
    /// Which of the settings come from the environment, and by which variable.
    settings_variables: BTreeMap<String, String>,
    pub(crate) options: BTreeMap<String, String>,
    /// What streams are made with, and set to by `stream apply`.
    pub(crate) streams: StreamRules,
    /// How domains are archived.
    pub(crate) archive: ArchiveRules,
    /// The file that was read, and the names in its `[settings]`.
    file: Option<(PathBuf, toml::Table)>,
    /// The file that `--config` named.
    named_file: Option<PathBuf>,
}

/// Takes the strongest of the values that there are.
struct Sources {
    file: Option<PathBuf>,
}

impl Sources {
    fn pick(
        &self,
        flag: (&'static str, Option<String>),
        variable: &'static str,
        file: Option<String>,
        default: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<Value<String>, Failure> {
        let from_file = || Some((file?, Origin::File(self.file.clone()?)));
        let variable = || Some((variable_named(variable)?, Origin::Environment(variable.to_owned())));
        let found = flag.1.map(|value| (value, Origin::Flag(flag.0))).or_else(variable).or_else(from_file);
        let (value, origin) = found.map_or_else(|| Ok((default()?, Origin::Default)), Ok::<_, Failure>)?;
        Ok(Value { value, origin })
    }
}

/// An empty variable is as good as none.
fn variable_named(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

impl<T> Value<T> {
    /// This value as another type; the error says which value it is and where it stands.
    fn parsed<U>(self, name: &str, parse: impl FnOnce(&T) -> Result<U, String>) -> Result<Value<U>, Failure>
    where
        T: fmt::Display,
    {
        match parse(&self.value) {
            Ok(value) => Ok(Value { value, origin: self.origin }),
            Err(error) => {
                let text = self.value.to_string();
                let shown = if text.contains("://") { without_secrets(&text) } else { text };
                Err(Failure::usage(format!("{name} = {shown:?} ({}): {error}", self.origin)))
            }
        }
    }
}

impl Config {
    pub(crate) fn load(global: &Global) -> Result<Self, Failure> {
        let (path, file, table) = read_file(global)?;
        let sources = Sources { file: path.clone() };
        let store = sources.pick(("--store", global.store.clone()), "LEASEHOLD_STORE", file.store, default_store)?;
        let store = store.parsed("store", |text| store_url(text))?;
        if global.store.is_some() && global.server.is_some() {
            return Err(Failure::usage("--store and --server cannot both be meant: name one of them"));
        }
        let server =
            sources.pick(("--server", global.server.clone()), "LEASEHOLD_SERVER", file.server, || Ok(String::new()))?;
        // A store that was named here and now is meant, whatever the environment says.
        let named = matches!(store.origin, Origin::Flag(_)) && !matches!(server.origin, Origin::Flag(_));
        let server = Some(server).filter(|server| !server.value.is_empty() && !named);
        server.as_ref().map_or(Ok(()), no_secret_in_server)?;
        let ca = sources.pick(("--ca", global.ca.clone()), "LEASEHOLD_CA", file.ca, || Ok(String::new()))?;
        let ca = Some(ca).filter(|ca| !ca.value.is_empty());
        let token = if server.is_some() { token()? } else { None };
        let namespace = ("--namespace", global.namespace.clone());
        let namespace =
            sources.pick(namespace, "LEASEHOLD_NAMESPACE", file.namespace, || Ok(Namespace::default().to_string()))?;
        let namespace =
            namespace.parsed("namespace", |text| Namespace::new(text).map_err(|error| error.to_string()))?;
        let name = |format: Format| if format == Format::Json { "json" } else { "table" }.to_owned();
        let output = ("--output", global.output.map(name));
        let output = sources.pick(output, "LEASEHOLD_OUTPUT", file.output.map(name), || Ok("table".to_owned()))?;
        let output = output.parsed("output", |text| {
            <Format as clap::ValueEnum>::from_str(text, true).map_err(|_| "it is table or json".to_owned())
        })?;
        let owner = sources.pick(("--owner", None), "LEASEHOLD_OWNER", file.owner, || Ok(default_owner()))?;
        let ttl = sources.pick(("--ttl", None), "LEASEHOLD_TTL", file.ttl, || Ok("30s".to_owned()))?;
        let ttl = ttl.parsed("ttl", |text| duration::parse(text))?;
        let named = table.get("settings").and_then(toml::Value::as_table);
        settings::check_names(env::vars_os().filter_map(|(name, _)| name.into_string().ok()))?;
        let FromEnvironment { settings, variables } = settings::load(named, variable_named)?;
        let streams = streams::load(path.as_deref(), file.streams, &file.archive)?;
        let file_at = path.map(|path| (path, table));
        Ok(Self {
            store,
            server,
            ca,
            token,
            namespace,
            output,
            owner,
            ttl,
            settings,
            settings_variables: variables,
            options: file.options,
            streams,
            archive: file.archive,
            file: file_at,
            named_file: global.config.clone(),
        })
    }

    /// A command of this program that talks to what this one talks to, to be pasted into a shell. What the environment
    /// and the configuration file say, they say again.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let mut command = vec!["leasehold".to_owned()];
        let mut add = |origin: &Origin, value: &str| {
            if let Origin::Flag(flag) = origin {
                command.extend([(*flag).to_owned(), shell::quoted(value)]);
            }
        };
        if let Some(file) = &self.named_file {
            add(&Origin::Flag("--config"), &file.to_string_lossy());
        }
        self.ca.iter().for_each(|ca| add(&ca.origin, &ca.value));
        match &self.server {
            Some(server) => add(&server.origin, &server.value),
            None => add(&self.store.origin, &self.store.value),
        }
        add(&self.namespace.origin, &self.namespace.value.to_string());
        command.extend(words.iter().map(|word| shell::quoted(word)));
        command.join(" ")
    }

    /// Every value by its name, as text.
    fn rows(&self) -> Vec<Row> {
        let row = |name: &str, value: String, origin: &Origin| Row {
            name: name.to_owned(),
            value: Some(value),
            origin: origin.to_string(),
        };
        let format = if self.output.value == Format::Json { "json" } else { "table" };
        let mut rows = vec![
            row("store", without_secrets(&self.store.value), &self.store.origin),
            row("namespace", self.namespace.value.to_string(), &self.namespace.origin),
            row("output", format.to_owned(), &self.output.origin),
            row("owner", self.owner.value.clone(), &self.owner.origin),
            row("ttl", humantime::format_duration(self.ttl.value).to_string(), &self.ttl.origin),
        ];
        rows.extend(self.server.as_ref().map(|server| row("server", server.value.clone(), &server.origin)));
        rows.extend(self.ca.as_ref().map(|ca| row("ca", ca.value.clone(), &ca.origin)));
        let file = self.file.as_ref().map(|(path, _)| Origin::File(path.clone())).unwrap_or(Origin::Default);
        rows.extend(self.options.keys().map(|name| row(&format!("options.{name}"), "(set)".to_owned(), &file)));
        for (pattern, settings) in self.streams.iter() {
            shown(&format!("streams.{:?}", pattern.to_string()), settings, &file, &mut rows);
        }
        for (domain, rule) in &self.archive {
            shown(&format!("archive.{domain}"), rule, &file, &mut rows);
        }
        let named = self.file.as_ref().and_then(|(_, table)| table.get("settings")).and_then(toml::Value::as_table);
        flatten("settings", serde_json::to_value(&self.settings).unwrap_or_default(), named, &file, &mut rows);
        for row in &mut rows {
            let variable = row.name.strip_prefix("settings.").and_then(|path| self.settings_variables.get(path));
            row.origin = variable.cloned().unwrap_or(std::mem::take(&mut row.origin));
        }
        rows
    }

    pub(crate) fn show(&self) -> Outcome {
        let rows = self.rows();
        match self.output.value {
            Format::Json => output::json(&rows)?,
            Format::Table => {
                let text = |row: Row| [row.name, row.value.unwrap_or_else(|| "(the store's)".to_owned()), row.origin];
                output::table(["NAME", "VALUE", "FROM"], rows.into_iter().map(text))?;
            }
        }
        Ok(0)
    }
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Without one the store's own value counts.
    value: Option<String>,
    origin: String,
}

/// What the file says: all of it but what it does not say.
fn shown<T: Serialize>(name: &str, value: &T, file: &Origin, rows: &mut Vec<Row>) {
    let mut all = Vec::new();
    flatten(name, serde_json::to_value(value).unwrap_or_default(), None, file, &mut all);
    rows.extend(all.into_iter().filter(|row| row.value.is_some()).map(|row| Row { origin: file.to_string(), ..row }));
}

fn flatten(name: &str, value: serde_json::Value, named: Option<&toml::Table>, file: &Origin, rows: &mut Vec<Row>) {
    let serde_json::Value::Object(fields) = value else { return };
    for (field, value) in fields {
        let here = named.and_then(|named| named.get(&field));
        let name = format!("{name}.{field}");
        if value.is_object() {
            flatten(&name, value, here.and_then(toml::Value::as_table), file, rows);
            continue;
        }
        let origin = if here.is_some() { file.to_string() } else { Origin::Default.to_string() };
        let value = match value {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text),
            other => Some(other.to_string()),
        };
        rows.push(Row { name, value, origin });
    }
}

fn read_file(global: &Global) -> Result<(Option<PathBuf>, File, toml::Table), Failure> {
    let named = global.config.clone().or_else(|| variable_named("LEASEHOLD_CONFIG").map(PathBuf::from));
    let must_be_there = named.is_some();
    let Some(path) = named.or_else(default_file) else { return Ok(Default::default()) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_be_there => return Ok(Default::default()),
        Err(error) => {
            return Err(Failure::usage(format!("the configuration {} cannot be read: {error}", path.display())));
        }
    };
    let wrong = |error: toml::de::Error| {
        let at = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        Failure::usage(format!("the configuration {}, line {at}: {}", path.display(), error.message()))
    };
    let file = toml::from_str(&text).map_err(wrong)?;
    let table = toml::from_str(&text).map_err(wrong)?;
    Ok((Some(path), file, table))
}

fn default_file() -> Option<PathBuf> {
    let folder = variable_named("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(home()?.join(".config")))?;
    Some(folder.join("leasehold").join("config.toml"))
}

fn home() -> Option<PathBuf> {
    env::home_dir().filter(|home| home.is_absolute())
}

/// A folder of the user's, the same in every terminal.
fn default_store() -> Result<String, Failure> {
    let folder = variable_named("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(home()?.join(".local").join("share")));
    let folder =
        folder.ok_or_else(|| Failure::usage("there is no home directory for a store: name one with --store"))?;
    store_url(&folder.join("leasehold").to_string_lossy()).map_err(Failure::usage)
}

/// A URL as it is, and a folder as the URL of a folder.
pub(crate) fn store_url(text: &str) -> Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Err("that is the URL of a lock service: name it with --server".to_owned());
    }
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    if !text.starts_with(['/', '.', '~']) || text.starts_with('~') {
        return Err("it is neither a URL such as s3://bucket/prefix nor a folder such as /var/lib/leases or ./leases"
            .to_owned());
    }
    let folder = std::path::absolute(text).map_err(|error| error.to_string())?;
    url::Url::from_file_path(&folder).map(String::from).map_err(|()| "it is no folder that a URL can name".to_owned())
}

/// A store's URL as it may be shown: no password, and of its options no values but those that lead to it.
fn without_secrets(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return "(no URL)".to_owned() };
    // A URL without a host has no password either.
    let _ = url.set_password(None);
    let shown = |name: &str, value: &str| match name {
        "endpoint" | "region" => format!("{name}={value}"),
        _ => format!("{name}=(set)"),
    };
    let query: Vec<String> = url.query_pairs().map(|(name, value)| shown(&name, &value)).collect();
    url.set_query(None);
    match query.is_empty() {
        true => url.to_string(),
        false => format!("{url}?{}", query.join("&")),
    }
}

/// A service's URL stands in messages, in process lists and in shell histories: nothing secret may be in it.
fn no_secret_in_server(server: &Value<String>) -> Result<(), Failure> {
    let secret = match url::Url::parse(&server.value) {
        Ok(url) => !url.username().is_empty() || url.password().is_some() || url.query().is_some(),
        Err(_) => server.value.contains('@'),
    };
    match secret {
        true => Err(Failure::usage(format!(
            "server ({}): neither a user name, a password nor a query belongs into the URL of a service; write it like \
             http://127.0.0.1:7420, and put the token into LEASEHOLD_TOKEN or into the file that LEASEHOLD_TOKEN_FILE names",
            server.origin
        ))),
        false => Ok(()),
    }
}

/// The token for a service.
fn token() -> Result<Option<String>, Failure> {
    if let Some(token) = variable_named("LEASEHOLD_TOKEN") {
        return Ok(Some(token));
    }
    let Some(file) = variable_named("LEASEHOLD_TOKEN_FILE") else { return Ok(None) };
    let text = std::fs::read_to_string(&file)
        .map_err(|error| Failure::usage(format!("LEASEHOLD_TOKEN_FILE = {file:?} cannot be read: {error}")))?;
    Ok(text.lines().map(str::trim).find(|line| !line.is_empty()).map(ToOwned::to_owned))
}

/// Who asks, for people who look: `user@host`.
fn default_owner() -> String {
    let user = variable_named("USER").or_else(|| variable_named("LOGNAME")).unwrap_or_else(|| "somebody".to_owned());
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = variable_named("COMPUTERNAME").unwrap_or_else(|| "somewhere".to_owned());
    format!("{user}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_store_and_a_typo_is_not() {
        assert_eq!(store_url("s3://bucket/prefix").unwrap(), "s3://bucket/prefix");
        assert_eq!(store_url("/var/lib/my leases").unwrap(), "file:///var/lib/my%20leases");
        assert!(store_url("./leases").unwrap().starts_with("file:///"));
        assert!(store_url("leases").unwrap_err().contains("./leases"));
        assert!(store_url("s3:/bucket").is_err());
        assert!(store_url("http://127.0.0.1:7420").unwrap_err().contains("--server"));
    }

    #[test]
    fn no_secret_of_a_stores_url_is_shown() {
        let shown =
            without_secrets("s3://id:hunter2@bucket/prefix?endpoint=http://host:9000&secret_access_key=hunter2");
        assert_eq!(shown, "s3://id@bucket/prefix?endpoint=http://host:9000&secret_access_key=(set)");
        assert_eq!(without_secrets("file:///var/lib/leases"), "file:///var/lib/leases");
    }

    #[test]
    fn a_secret_in_a_services_url_is_refused_and_not_shown() {
        let refused = |text: &str| {
            no_secret_in_server(&Value { value: text.to_owned(), origin: Origin::Flag("--server") })
                .map_err(|failure| failure.message)
        };
        for text in ["http://user:hunter2@host:7420", "http://hunter2@host", "hunter2@host", "http://host/?t=hunter2"] {
            let message = refused(text).unwrap_err();
            assert!(!message.contains("hunter2") && message.contains("LEASEHOLD_TOKEN"), "{message}");
        }
        assert_eq!(refused("http://127.0.0.1:7420"), Ok(()));
    }
}
