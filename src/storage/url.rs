//! From a URL to the handles of a store.

use super::{
    backend::TimeSource, counting::Counting, local::LocalDirectory, memory::Memory, meter::Meter, page::Lister,
};
use crate::{Clock, Error, Result};
use object_store::{ObjectStore, path::Path};
use std::{path::PathBuf, sync::Arc, time::Duration};
pub(crate) use url::Url;

/// A store within reach, not yet trusted.
pub(crate) struct Connection {
    pub(crate) coordination: Arc<dyn ObjectStore>,
    pub(crate) bulk: Arc<dyn ObjectStore>,
    pub(crate) lister: Lister,
    pub(crate) prefix: Path,
    /// How messages call it.
    pub(crate) place: String,
    /// What tells it from every other store and from its own copies.
    pub(crate) identity: String,
    pub(crate) time: TimeSource,
    /// It is reached by a loopback address.
    pub(crate) is_on_loopback: bool,
    /// Of a local directory.
    pub(crate) folder: Option<PathBuf>,
}

/// Options that would end up in shell histories and process lists.
const SECRETS: [&str; 10] = [
    "secret",
    "token",
    "password",
    "access_key",
    "account_key",
    "master_key",
    "customer_key",
    "encryption_key",
    "sas",
    "credential",
];

pub(crate) async fn connect(
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
            let root = folder.clone();
            let store = tokio::task::spawn_blocking(move || LocalDirectory::open(folder)).await;
            let store = store
                .map_err(|error| Error::unavailable("opening the folder was interrupted").with_source(error))??;
            Ok(embedded(Arc::new(store), place(&url), Path::default(), meter, Some(root)))
        }
        "memory" => {
            let store = Arc::new(Memory::new(Arc::clone(clock)));
            Ok(embedded(store, place(&url), prefix(&url)?, meter, None))
        }
        _ => cloud::connect(&url, options, environment, timeouts, meter, clock),
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
            let kinds = "use s3://, gs://, az:// or file://";
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
fn embedded(
    store: Arc<dyn ObjectStore>,
    place: String,
    prefix: Path,
    meter: &Arc<Meter>,
    folder: Option<PathBuf>,
) -> Connection {
    let store: Arc<dyn ObjectStore> = Arc::new(Counting::new(store, Arc::clone(meter)));
    Connection {
        coordination: Arc::clone(&store),
        bulk: store,
        lister: Lister::Ordered,
        prefix,
        identity: place.clone(),
        place,
        time: if folder.is_some() { TimeSource::Host } else { TimeSource::Clock },
        is_on_loopback: false,
        folder,
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

#[cfg(not(feature = "_cloud"))]
mod cloud {
    use super::*;

    pub(crate) fn connect(
        url: &Url,
        _: Vec<(String, String)>,
        _: bool,
        _: (Duration, Duration),
        _: &Arc<Meter>,
        _: &Arc<dyn Clock>,
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

#[cfg(feature = "_cloud")]
mod cloud {
    #[cfg(feature = "aws")]
    use super::super::aws_profile;
    use super::{super::meter::http::MeteredConnector, *};
    use crate::ErrorKind;
    use object_store::{BackoffConfig, Certificate, ClientConfigKey, RetryConfig};
    use std::str::FromStr;

    /// Reads and writes that an operation waits for are never sent twice by the client below us: it cannot tell a write
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

    /// The environment, by the name of a configuration key.
    fn variables<K: FromStr>(prefix: &str) -> Vec<(K, String)> {
        let variables = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(key, _)| key.starts_with(prefix));
        // Others have variables that begin like ours: those are not an error.
        variables.filter_map(|(key, value)| Some((key.to_ascii_lowercase().parse().ok()?, value))).collect()
    }

    /// Options by the name of a configuration key.
    fn parsed<K: FromStr>(options: &[(String, String)], scheme: &str) -> Result<Vec<(K, String)>> {
        let parse = |(key, value): &(String, String)| {
            let known = key.to_ascii_lowercase().parse();
            let known = known.map_err(|_| Error::invalid(format!("unknown option {key:?} for a {scheme}:// store")))?;
            Ok((known, value.clone()))
        };
        options.iter().map(parse).collect()
    }

    /// The options with the environment below them, and with one endpoint at the most. `object_store` has two names for it
    /// and prefers one of them wherever it comes from: what the environment says must not go over what was asked for, or
    /// processes that name the same store would use two.
    pub(crate) fn settled<K: Clone>(
        environment: Vec<(K, String)>,
        options: Vec<(K, String)>,
        rank: impl Fn(&K) -> Option<u32>,
        endpoint: K,
    ) -> (Vec<(K, String)>, Option<String>) {
        let named = options.iter().rev().find(|(key, _)| rank(key).is_some());
        let around = || environment.iter().filter(|(key, _)| rank(key).is_some()).min_by_key(|(key, _)| rank(key));
        let chosen = named.or_else(around).map(|(_, value)| value.clone());
        let mut all: Vec<_> = environment.into_iter().chain(options).filter(|(key, _)| rank(key).is_none()).collect();
        all.extend(chosen.clone().map(|value| (endpoint, value)));
        (all, chosen)
    }

    fn unusable(error: object_store::Error, url: &Url) -> Error {
        let text = error.to_string();
        Error::new(ErrorKind::Config, format!("{} cannot be opened: {text}", place(url))).with_source(error)
    }

    /// Whether an endpoint is on this machine.
    pub(crate) fn is_loopback(endpoint: &str) -> bool {
        let endpoint = Url::parse(endpoint).ok();
        match endpoint.as_ref().and_then(Url::host) {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }

    /// What `object_store` has no names for.
    #[derive(Default)]
    struct Ours {
        /// Of authorities that are trusted beside those of the machine.
        certificates: Vec<Certificate>,
        #[cfg(feature = "aws")]
        credentials: Option<object_store::aws::AwsCredentialProvider>,
    }

    impl Ours {
        /// The options that are none of `object_store`'s, taken out of the others.
        fn take(options: &mut Vec<(String, String)>) -> Result<Self> {
            let mut ours = Self::default();
            for (_, file) in options.extract_if(.., |(key, _)| key.eq_ignore_ascii_case("ca_file")) {
                let wrong = |why: String| Error::config(format!("ca_file = {file:?} cannot be used: {why}"));
                let pem = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
                let found = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
                if found.is_empty() {
                    return Err(wrong("there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)".to_owned()));
                }
                ours.certificates.extend(found);
            }
            Ok(ours)
        }
    }

    macro_rules! connect {
        (
            $name:ident,
            $feature:literal,
            $builder:ty,
            $key:ty,
            $endpoint:path,
            $rank:expr,
            $environment:literal,
            $prepare:expr
        ) => {
            #[cfg(feature = $feature)]
            fn $name(
                url: &Url,
                options: &[(String, String)],
                environment: bool,
                timeouts: (Duration, Duration),
                meter: &Arc<Meter>,
                ours: &Ours,
            ) -> Result<Connection> {
                type Key = $key;
                let around = if environment { variables($environment) } else { Vec::new() };
                let options = parsed::<Key>(options, url.scheme())?;
                let (options, endpoint) = settled(around, options, $rank, $endpoint);
                let bucket =
                    url.username().is_empty().then(|| url.host_str()).flatten().unwrap_or(url.username()).to_owned();
                let build = |retry: RetryConfig, timeout: Duration| {
                    // A plain-text endpoint is refused by default, but whoever names one means it.
                    let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                    let builder = <$builder>::new()
                        .with_url(place(url))
                        .with_config(Key::Client(ClientConfigKey::AllowHttp), plain.to_string())
                        .with_config(
                            Key::Client(ClientConfigKey::Timeout),
                            humantime::format_duration(timeout).to_string(),
                        );
                    let builder =
                        options.iter().fold(builder, |builder, (key, value)| builder.with_config(key.clone(), value));
                    let prepare: fn($builder, &Ours) -> $builder = $prepare;
                    prepare(builder, ours)
                        .with_retry(retry)
                        .with_http_connector(MeteredConnector {
                            meter: Arc::clone(meter),
                            bucket: bucket.clone(),
                            certificates: ours.certificates.clone(),
                        })
                        .build()
                        .map_err(|error| unusable(error, url))
                };
                let bulk = Arc::new(build(FEW_RETRIES, timeouts.1)?);
                let place = place(url);
                Ok(Connection {
                    coordination: Arc::new(build(NO_RETRIES, timeouts.0)?),
                    bulk: Arc::clone(&bulk) as Arc<dyn ObjectStore>,
                    // Directory buckets list in no order.
                    lister: match bucket.ends_with("--x-s3") {
                        true => Lister::Unordered,
                        false => Lister::Paged(Arc::clone(&bulk) as _),
                    },
                    prefix: prefix(url)?,
                    // The store names itself: an Azure container is one of an account, which may come from the environment.
                    identity: format!(
                        "{place} at {}: {bulk}",
                        endpoint.as_deref().unwrap_or("the provider's endpoint")
                    ),
                    place,
                    time: TimeSource::Answers,
                    is_on_loopback: endpoint.as_deref().is_some_and(is_loopback),
                    folder: None,
                })
            }

            #[cfg(not(feature = $feature))]
            fn $name(
                url: &Url,
                _: &[(String, String)],
                _: bool,
                _: (Duration, Duration),
                _: &Arc<Meter>,
                _: &Ours,
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
        object_store::aws::AmazonS3ConfigKey::Endpoint,
        |key: &Key| match key {
            Key::S3Endpoint => Some(0),
            Key::Endpoint => Some(1),
            _ => None,
        },
        "AWS_",
        |builder, ours| match &ours.credentials {
            Some(credentials) => builder.with_credentials(Arc::clone(credentials)),
            None => builder,
        }
    );
    connect!(
        gcs,
        "gcp",
        object_store::gcp::GoogleCloudStorageBuilder,
        object_store::gcp::GoogleConfigKey,
        object_store::gcp::GoogleConfigKey::BaseUrl,
        |key: &Key| matches!(key, Key::BaseUrl).then_some(0),
        "GOOGLE_",
        |builder, _| builder
    );
    connect!(
        azure,
        "azure",
        object_store::azure::MicrosoftAzureBuilder,
        object_store::azure::AzureConfigKey,
        object_store::azure::AzureConfigKey::Endpoint,
        |key: &Key| matches!(key, Key::Endpoint).then_some(0),
        "AZURE_",
        |builder, _| builder
    );

    pub(crate) fn connect(
        url: &Url,
        mut options: Vec<(String, String)>,
        environment: bool,
        timeouts: (Duration, Duration),
        meter: &Arc<Meter>,
        #[cfg_attr(not(feature = "aws"), allow(unused_variables))] clock: &Arc<dyn Clock>,
    ) -> Result<Connection> {
        #[cfg_attr(not(feature = "aws"), allow(unused_mut))]
        let mut ours = Ours::take(&mut options)?;
        #[cfg(feature = "aws")]
        if matches!(url.scheme(), "s3" | "s3a") {
            if let Some(profile) = aws_profile::find(&options, environment, clock)? {
                ours.credentials = Some(profile.credentials);
                options.extend(profile.options);
            }
            options.retain(|(key, _)| !matches!(key.to_ascii_lowercase().as_str(), "profile" | "aws_profile"));
        }
        match url.scheme() {
            "s3" | "s3a" => s3(url, &options, environment, timeouts, meter, &ours),
            "gs" => gcs(url, &options, environment, timeouts, meter, &ours),
            _ => azure(url, &options, environment, timeouts, meter, &ours),
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

    #[cfg(feature = "_cloud")]
    #[test]
    fn what_was_asked_for_goes_over_the_environment_whatever_it_is_called() {
        let rank = |key: &&'static str| ["s3", "any"].iter().position(|name| name == key).map(|at| at as u32);
        let settle = |environment: &[(&'static str, &str)], options: &[(&'static str, &str)]| {
            let owned =
                |pairs: &[(&'static str, &str)]| pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
            let (all, endpoint) = cloud::settled(owned(environment), owned(options), rank, "any");
            assert!(all.iter().filter(|(key, _)| rank(key).is_some()).count() <= 1, "{all:?}");
            endpoint
        };
        assert_eq!(settle(&[("region", "r")], &[]), None);
        assert_eq!(settle(&[("s3", "1"), ("any", "2")], &[("any", "3")]).as_deref(), Some("3"));
        assert_eq!(settle(&[("any", "2")], &[("any", "3"), ("s3", "4")]).as_deref(), Some("4"));
        for environment in [[("s3", "1"), ("any", "2")], [("any", "2"), ("s3", "1")]] {
            assert_eq!(settle(&environment, &[]).as_deref(), Some("1"), "as object_store has it");
        }
    }

    #[cfg(all(feature = "gcp", feature = "azure"))]
    #[tokio::test]
    async fn each_scheme_leads_to_its_own_cloud() {
        let clock: Arc<dyn Clock> = Arc::new(crate::SystemClock::new());
        let meter = Arc::new(Meter::new(Arc::clone(&clock)));
        // An option that only one of them knows.
        for (url, known, other) in
            [("gs://b/p", "google_service_account_key", "account_name"), ("az://c/p", "account_name", "google_bucket")]
        {
            let timeouts = (Duration::from_secs(5), Duration::from_secs(30));
            let option = |name: &str| vec![(name.to_owned(), "x".to_owned())];
            let refused = |found: Result<Connection>| found.err().map(|error| error.to_string()).unwrap_or_default();
            let found = connect(url, option(known), false, timeouts, &meter, &clock).await;
            assert!(!refused(found).contains("unknown option"), "{url}");
            let found = connect(url, option(other), false, timeouts, &meter, &clock).await;
            assert!(refused(found).contains("unknown option"), "{url}");
        }
    }

    #[cfg(feature = "aws")]
    #[tokio::test]
    async fn a_directory_bucket_lists_in_no_order() {
        let clock: Arc<dyn Clock> = Arc::new(crate::SystemClock::new());
        let meter = Arc::new(Meter::new(Arc::clone(&clock)));
        for (bucket, lister) in [("logs--use1-az4--x-s3", "Unordered"), ("logs", "Paged")] {
            let options = [("region", "us-east-1"), ("access_key_id", "id"), ("secret_access_key", "key")];
            let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
            let timeouts = (Duration::from_secs(5), Duration::from_secs(30));
            let found = connect(&format!("s3://{bucket}/p"), options, false, timeouts, &meter, &clock).await.unwrap();
            assert_eq!(format!("{:?}", found.lister), lister, "{bucket}");
        }
    }
}
