//! From a URL to the handles of a store.

use super::{
    backend::TimeSource, counting::Counting, local::LocalDirectory, memory::Memory, meter::Meter, page::Lister,
};
use crate::{Clock, Error, Result};
use object_store::{ObjectStore, path::Path};
use std::{path::PathBuf, sync::Arc, time::Duration};
pub(crate) use url::Url;

/// A store within reach, not yet trusted.
pub(super) struct Connection {
    pub(super) coordination: Arc<dyn ObjectStore>,
    pub(super) bulk: Arc<dyn ObjectStore>,
    pub(super) lister: Lister,
    pub(super) prefix: Path,
    /// How messages call it.
    pub(super) place: String,
    /// What tells it from every other store and from its own copies.
    pub(super) identity: String,
    pub(super) time: TimeSource,
}

/// Options that would end up in shell histories and process lists.
const SECRETS: [&str; 7] = ["secret", "token", "password", "access_key", "account_key", "sas", "credential"];

pub(super) async fn connect(
    text: &str,
    options: Vec<(String, String)>,
    environment: bool,
    timeouts: (Duration, Duration),
    meter: &Arc<Meter>,
    clock: &Arc<dyn Clock>,
) -> Result<Connection> {
    let (url, options) = parse(text, options)?;
    match url.scheme() {
        "file" => {
            let folder = folder(&url)?;
            let store = tokio::task::spawn_blocking(move || LocalDirectory::open(folder)).await;
            let store = store
                .map_err(|error| Error::unavailable("opening the folder was interrupted").with_source(error))??;
            Ok(embedded(Arc::new(store), place(&url), Path::default(), meter))
        }
        "memory" => {
            let store = Arc::new(Memory::new(Arc::clone(clock)));
            Ok(embedded(store, place(&url), prefix(&url)?, meter))
        }
        _ => cloud::connect(&url, &options, environment, timeouts, meter),
    }
}

/// All that a URL can be refused for before anything is opened; the options that it names come after the others.
pub(crate) fn parse(text: &str, mut options: Vec<(String, String)>) -> Result<(Url, Vec<(String, String)>)> {
    // Twice: what is left of a drive letter and an escaped dot reads differently the second time, and what is used must be
    // what messages show.
    let url = Url::parse(text).and_then(|url| Url::parse(url.as_str())).map_err(|error| {
        Error::invalid(format!(
            "{:?} is no store URL such as s3://bucket/prefix or file:///some/folder: {error}",
            without_secrets(text)
        ))
    })?;
    if url.password().is_some() {
        return Err(Error::invalid(format!(
            "a password does not belong into a URL ({}): put it into the environment",
            place(&url)
        )));
    }
    for (key, value) in url.query_pairs() {
        if SECRETS.iter().any(|secret| key.to_ascii_lowercase().contains(secret)) {
            return Err(Error::invalid(format!("{key} does not belong into a URL: put it into the environment")));
        }
        options.push((key.into_owned(), value.into_owned()));
    }
    match url.scheme() {
        "file" => {
            refuse_options(&options, "file")?;
            folder(&url)?;
        }
        "memory" => {
            refuse_options(&options, "memory")?;
            if url.host_str().is_some_and(|host| !host.is_empty()) {
                return Err(Error::invalid(format!("{url} names a host; memory has none: memory:///prefix")));
            }
            prefix(&url)?;
        }
        "s3" | "s3a" | "gs" | "az" | "azure" | "abfs" | "abfss" | "adl" => {
            if url.host_str().is_none_or(str::is_empty) {
                return Err(Error::invalid(format!("{url} names no bucket: {}://bucket/prefix", url.scheme())));
            }
            prefix(&url)?;
        }
        other => {
            let kinds = "use s3://, gs://, az://, file:// or memory://";
            return Err(Error::invalid(format!("{other:?} is no kind of store: {kinds}")));
        }
    }
    Ok((url, options))
}

/// What can be shown of a text that is no URL: neither what stands before an `@`, nor a query.
fn without_secrets(text: &str) -> &str {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    text.rsplit('@').next().unwrap_or_default()
}

fn refuse_options(options: &[(String, String)], scheme: &str) -> Result<()> {
    match options.first() {
        Some((key, _)) => Err(Error::invalid(format!("unknown option {key:?}: a {scheme}:// store has none"))),
        None => Ok(()),
    }
}

/// Stores inside this machine: calls are counted, and time is our own.
fn embedded(store: Arc<dyn ObjectStore>, place: String, prefix: Path, meter: &Arc<Meter>) -> Connection {
    let store: Arc<dyn ObjectStore> = Arc::new(Counting::new(store, Arc::clone(meter)));
    Connection {
        coordination: Arc::clone(&store),
        bulk: store,
        lister: Lister::Ordered,
        prefix,
        identity: place.clone(),
        place,
        time: TimeSource::Clock,
    }
}

fn folder(url: &Url) -> Result<PathBuf> {
    url.to_file_path()
        .map_err(|()| Error::invalid(format!("{url} names no folder of this machine: file:///absolute/folder")))
}

pub(crate) fn prefix(url: &Url) -> Result<Path> {
    Path::from_url_path(url.path())
        .map_err(|error| Error::invalid(format!("{url} has no usable prefix: {error}")).with_source(error))
}

/// The URL without its query, where an endpoint may say more than a message should.
pub(crate) fn place(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Refused before anything is opened; this is for the message that says so.
    let _ = url.set_password(None);
    url.to_string()
}

#[cfg(not(feature = "cloud"))]
mod cloud {
    use super::*;

    pub(super) fn connect(
        url: &Url,
        _: &[(String, String)],
        _: bool,
        _: (Duration, Duration),
        _: &Arc<Meter>,
    ) -> Result<Connection> {
        Err(missing_feature(url))
    }

    fn missing_feature(url: &Url) -> Error {
        Error::config(format!(
            "{}:// stores are not in this build: switch on the feature aws, gcp or azure",
            url.scheme()
        ))
    }
}

#[cfg(feature = "cloud")]
mod cloud {
    use super::{super::meter::http::MeteredConnector, *};
    use crate::ErrorKind;
    use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};
    use std::str::FromStr;

    /// Reads and writes that somebody waits for are never sent twice by the client below us: it cannot tell a write
    /// that landed from one that did not.
    const NO_RETRIES: RetryConfig = retries(0);
    const FEW_RETRIES: RetryConfig = retries(3);

    const fn retries(max_retries: usize) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.,
            },
            max_retries,
            retry_timeout: Duration::from_secs(20),
        }
    }

    /// Options by the name of a configuration key, with the environment below them.
    fn parsed<K: FromStr>(
        options: &[(String, String)],
        environment: Option<&str>,
        scheme: &str,
    ) -> Result<Vec<(K, String)>> {
        let mut parsed = Vec::new();
        if let Some(prefix) = environment {
            let variables = std::env::vars_os()
                .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
            for (key, value) in variables.filter(|(key, _)| key.starts_with(prefix)) {
                // Others have variables that begin like ours: those are not an error.
                if let Ok(key) = key.to_ascii_lowercase().parse() {
                    parsed.push((key, value));
                }
            }
        }
        for (key, value) in options {
            let known = key.to_ascii_lowercase().parse();
            let known = known.map_err(|_| Error::invalid(format!("unknown option {key:?} for a {scheme}:// store")))?;
            parsed.push((known, value.clone()));
        }
        Ok(parsed)
    }

    fn unusable(error: object_store::Error, url: &Url) -> Error {
        let text = error.to_string();
        Error::new(ErrorKind::Config, format!("{} cannot be opened: {text}", place(url))).with_source(error)
    }

    macro_rules! connect {
        ($name:ident, $feature:literal, $builder:ty, $key:ty, $client:path, $endpoint:pat, $environment:literal) => {
            #[cfg(feature = $feature)]
            fn $name(
                url: &Url,
                options: &[(String, String)],
                environment: bool,
                timeouts: (Duration, Duration),
                meter: &Arc<Meter>,
            ) -> Result<Connection> {
                let options = parsed::<$key>(options, environment.then_some($environment), url.scheme())?;
                let bucket =
                    url.username().is_empty().then(|| url.host_str()).flatten().unwrap_or(url.username()).to_owned();
                let endpoint =
                    options.iter().rev().find(|(key, _)| matches!(key, $endpoint)).map(|(_, value)| value.clone());
                let build = |retry: RetryConfig, timeout: Duration| {
                    // A plain-text endpoint is refused by default, but whoever names one means it.
                    let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                    let builder = <$builder>::new()
                        .with_url(place(url))
                        .with_config($client(ClientConfigKey::AllowHttp), plain.to_string())
                        .with_config(
                            $client(ClientConfigKey::Timeout),
                            humantime::format_duration(timeout).to_string(),
                        );
                    options
                        .iter()
                        .fold(builder, |builder, (key, value)| builder.with_config(key.clone(), value))
                        .with_retry(retry)
                        .with_http_connector(MeteredConnector { meter: Arc::clone(meter), bucket: bucket.clone() })
                        .build()
                        .map_err(|error| unusable(error, url))
                };
                let bulk = Arc::new(build(FEW_RETRIES, timeouts.1)?);
                let place = place(url);
                Ok(Connection {
                    coordination: Arc::new(build(NO_RETRIES, timeouts.0)?),
                    bulk: Arc::clone(&bulk) as Arc<dyn ObjectStore>,
                    lister: Lister::Paged(Arc::clone(&bulk) as _),
                    prefix: prefix(url)?,
                    // The store names itself: an Azure container is one of an account, which may come from the environment.
                    identity: format!(
                        "{place} at {}: {bulk}",
                        endpoint.as_deref().unwrap_or("the provider's endpoint")
                    ),
                    place,
                    time: TimeSource::Answers,
                })
            }

            #[cfg(not(feature = $feature))]
            fn $name(
                url: &Url,
                _: &[(String, String)],
                _: bool,
                _: (Duration, Duration),
                _: &Arc<Meter>,
            ) -> Result<Connection> {
                let message = concat!(" stores are not in this build: switch on the feature ", $feature);
                Err(Error::config(format!("{}://{message}", url.scheme())))
            }
        };
    }

    connect!(
        s3,
        "aws",
        object_store::aws::AmazonS3Builder,
        object_store::aws::AmazonS3ConfigKey,
        object_store::aws::AmazonS3ConfigKey::Client,
        object_store::aws::AmazonS3ConfigKey::Endpoint | object_store::aws::AmazonS3ConfigKey::S3Endpoint,
        "AWS_"
    );
    connect!(
        gcs,
        "gcp",
        object_store::gcp::GoogleCloudStorageBuilder,
        object_store::gcp::GoogleConfigKey,
        object_store::gcp::GoogleConfigKey::Client,
        object_store::gcp::GoogleConfigKey::BaseUrl,
        "GOOGLE_"
    );
    connect!(
        azure,
        "azure",
        object_store::azure::MicrosoftAzureBuilder,
        object_store::azure::AzureConfigKey,
        object_store::azure::AzureConfigKey::Client,
        object_store::azure::AzureConfigKey::Endpoint,
        "AZURE_"
    );

    pub(super) fn connect(
        url: &Url,
        options: &[(String, String)],
        environment: bool,
        timeouts: (Duration, Duration),
        meter: &Arc<Meter>,
    ) -> Result<Connection> {
        match url.scheme() {
            "s3" | "s3a" => s3(url, options, environment, timeouts, meter),
            "gs" => gcs(url, options, environment, timeouts, meter),
            _ => azure(url, options, environment, timeouts, meter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_url_is_shown_without_what_may_be_secret() {
        for text in ["s3://id:hunter2@bucket:port/", "hunter2@bucket", "://bucket?token=hunter2", "bucket#hunter2"] {
            let error = parse(text, Vec::new()).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && error.contains("bucket"), "{error}");
        }
    }
}
