//! Credentials as the AWS command line keeps them: profiles in `~/.aws/config` and `~/.aws/credentials`, with keys or with a
//! program that prints them (`credential_process`).

use crate::{
    Clock, Error, Result,
    clock::{Timestamp, within},
};
use async_trait::async_trait;
use object_store::{
    aws::{AwsCredential, AwsCredentialProvider},
    client::{CredentialProvider, StaticCredentialProvider},
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env, fmt, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::sync::Mutex;

/// Credentials are asked for again so long before they expire.
const EARLY: Duration = Duration::from_secs(5 * 60);

/// How long a program may take to print credentials.
const PATIENCE: Duration = Duration::from_secs(60);

/// What names credentials without any profile.
const CREDENTIALS: [&str; 6] = [
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
    "aws_bearer_token",
];

/// What a profile is used for.
pub(super) struct Profile {
    pub(super) credentials: AwsCredentialProvider,
    /// Region and endpoint, where nothing else names them: options of the store.
    pub(super) options: Vec<(String, String)>,
}

/// The profile to use, if there is one: the one that an option or `AWS_PROFILE` names, or the default one if nothing else
/// names credentials.
pub(super) fn find(options: &[(String, String)], environment: bool, clock: &Arc<dyn Clock>) -> Result<Option<Profile>> {
    let variable = |name: &str| env::var(name).ok().filter(|value| environment && !value.is_empty());
    let option = |name: &str| options.iter().rev().find(|(key, _)| long(key) == name).map(|(_, value)| value.clone());
    let given = |name: &str| option(name).or_else(|| variable(&name.to_uppercase()));
    let asked = option("aws_profile");
    if asked.is_none() && (!environment || CREDENTIALS.iter().any(|name| given(name).is_some())) {
        return Ok(None);
    }
    let named = asked.or_else(|| variable("AWS_PROFILE"));
    let home = env::home_dir().unwrap_or_default().join(".aws");
    let path = |name: &str, file: &str| variable(name).map_or_else(|| home.join(file), PathBuf::from);
    let files = [path("AWS_CONFIG_FILE", "config"), path("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    let name = named.as_deref().unwrap_or("default");
    let mut values = BTreeMap::new();
    for file in &files {
        values.extend(section(&read(file)?, name));
    }
    let Some(credentials) = credentials(name, &values, clock) else {
        return match named {
            Some(name) => Err(unusable(&name, &values, &files)),
            None => Ok(None),
        };
    };
    let mut options = Vec::new();
    let known = |names: &[&str]| names.iter().any(|name| given(name).is_some());
    if !known(&["aws_region", "aws_default_region"]) {
        options.extend(values.get("region").map(|region| ("aws_region".to_owned(), region.clone())));
    }
    if !known(&["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3"]) {
        options.extend(values.get("endpoint_url").map(|endpoint| ("aws_endpoint".to_owned(), endpoint.clone())));
    }
    Ok(Some(Profile { credentials, options }))
}

/// Options may be written without the name of the cloud.
fn long(key: &str) -> String {
    let key = key.to_ascii_lowercase();
    if key.starts_with("aws_") { key } else { format!("aws_{key}") }
}

/// A file that is not there says nothing.
fn read(file: &Path) -> Result<String> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::config(format!("the AWS profiles in {} cannot be read: {error}", file.display())))
        }
        text => Ok(text.unwrap_or_default()),
    }
}

/// The values of a profile. What is indented belongs to a table inside of it, and is none of ours.
fn section(text: &str, name: &str) -> BTreeMap<String, String> {
    let mut inside = false;
    let mut values = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(header) = line.trim_end().strip_prefix('[').and_then(|line| line.split(']').next()) {
            let header = header.trim();
            inside = header.strip_prefix("profile").map_or(header, str::trim).trim_matches('"') == name;
        } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    values
}

fn credentials(name: &str, values: &BTreeMap<String, String>, clock: &Arc<dyn Clock>) -> Option<AwsCredentialProvider> {
    let value = |name: &str| values.get(name).filter(|value| !value.is_empty()).cloned();
    if let (Some(key_id), Some(secret_key)) = (value("aws_access_key_id"), value("aws_secret_access_key")) {
        let token = value("aws_session_token");
        return Some(Arc::new(StaticCredentialProvider::new(AwsCredential { key_id, secret_key, token })));
    }
    let line = value("credential_process")?;
    Some(Arc::new(Process(Arc::new(Program {
        profile: name.to_owned(),
        line,
        clock: Arc::clone(clock),
        known: Mutex::default(),
    }))))
}

/// Why a profile that was named does not do.
fn unusable(name: &str, values: &BTreeMap<String, String>, [config, credentials]: &[PathBuf; 2]) -> Error {
    let (config, credentials) = (config.display(), credentials.display());
    if values.is_empty() {
        return Error::config(format!(
            "the AWS profile {name:?} is neither in {config} nor in {credentials}: check AWS_PROFILE"
        ));
    }
    Error::config(format!(
        "the AWS profile {name:?} has neither keys nor a credential_process. Where it signs in by SSO or takes a role, let \
         the AWS command line do that: put the two lines `[profile {name}-leasehold]` and `credential_process = aws configure \
         export-credentials --profile {name} --format process` into {config}, and set AWS_PROFILE={name}-leasehold"
    ))
}

/// A program that prints credentials, and what it has printed last.
struct Program {
    profile: String,
    line: String,
    clock: Arc<dyn Clock>,
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    credential: Arc<AwsCredential>,
    expires: Option<Timestamp>,
}

impl Known {
    fn is_good(&self, at: Timestamp) -> bool {
        self.expires.is_none_or(|expires| at < expires)
    }
}

/// What the program prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<chrono::DateTime<chrono::Utc>>,
}

impl Program {
    async fn credential(&self) -> std::result::Result<Arc<AwsCredential>, String> {
        let mut known = self.known.lock().await;
        let now = self.clock.wall();
        if let Some(known) = known.as_ref().filter(|known| known.is_good(now.plus(EARLY))) {
            return Ok(Arc::clone(&known.credential));
        }
        match self.run().await {
            Ok(new) => Ok(Arc::clone(&known.insert(new).credential)),
            // It may work again before these have expired.
            Err(why) => match known.as_ref().filter(|known| known.is_good(now)) {
                Some(known) => Ok(Arc::clone(&known.credential)),
                None => Err(why),
            },
        }
    }

    async fn run(&self) -> std::result::Result<Known, String> {
        let failed = |why: String| format!("credential_process of the AWS profile {:?} {why}", self.profile);
        let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
        let mut command = std::process::Command::new(shell);
        command.args([flag, &self.line]).stdin(Stdio::null());
        let running = tokio::task::spawn_blocking(move || command.output());
        let ended = within(&*self.clock, PATIENCE, running).await.ok_or_else(|| failed("takes too long".to_owned()))?;
        let output =
            ended.map_err(io::Error::other).flatten().map_err(|error| failed(format!("cannot run: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("failed ({}): {}", output.status, said.trim())));
        }
        // What it printed is secret, so no message quotes it.
        let printed: Printed = serde_json::from_slice(&output.stdout)
            .map_err(|error| failed(format!("did not print credentials (line {})", error.line())))?;
        if printed.version != 1 {
            return Err(failed(format!("printed version {}, and only 1 is known", printed.version)));
        }
        let credential = Arc::new(AwsCredential {
            key_id: printed.access_key_id,
            secret_key: printed.secret_access_key,
            token: printed.session_token,
        });
        Ok(Known { credential, expires: printed.expiration.map(Timestamp::from) })
    }
}

/// Asks the program. Who gives up asking does not stop it: the next one finds what it printed.
struct Process(Arc<Program>);

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credential_process of {}", self.0.profile)
    }
}

#[async_trait]
impl CredentialProvider for Process {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let program = Arc::clone(&self.0);
        let asked = tokio::spawn(async move { program.credential().await }).await;
        asked.map_err(|error| error.to_string()).flatten().map_err(|why| object_store::Error::Unauthenticated {
            path: format!("the AWS profile {:?}", self.0.profile),
            source: why.into(),
        })
    }
}
