//! A store to test on: how to open it as often as one likes, and how to look at it from outside.

use futures_util::{StreamExt, TryStreamExt};
use leasehold::{
    Clock, Key, Settings, Store, StoreBuilder, SystemClock,
    clock::Timestamp,
    lease::{Acquired, Grant, Request},
    sweep::{Report, SweepOptions},
};
use leasehold_testkit::{LocalDirectory, Proxy, S3Server, TestClock};
use object_store::{ObjectStore, memory::InMemory, path::Path};
use std::{env, fmt::Write as _, io::Write as _, panic, sync::Arc, time::Duration};
use tempfile::TempDir;
use url::Url;

/// Which store it is.
#[allow(non_camel_case_types, reason = "named like the modules of tests")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    memory,
    directory,
    testkit,
    given,
}

/// A store, below a prefix of its own.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    url: Url,
    options: Vec<(String, String)>,
    /// The store's objects, as an operator's tool would see them.
    raw: Arc<dyn ObjectStore>,
    prefix: Path,
    _folder: Option<TempDir>,
    _server: Option<S3Server>,
}

/// A pass, and another one if the store has failed in it, three at most: what was not confirmed is for the next.
pub(crate) async fn sweep(store: &Store) -> Vec<Report> {
    let mut reports = Vec::new();
    while reports.len() < 3 {
        let report = store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
        println!("swept: {report:?}");
        reports.push(report);
        if reports[reports.len() - 1].failures == 0 {
            break;
        }
    }
    reports
}

/// Runs a test on a place of its own and removes what it has left there, also when it fails.
pub(crate) fn run<T: Future<Output = ()> + Send + 'static>(kind: Kind, test: impl FnOnce(Arc<Place>) -> T) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Arc::new(Place::new(kind).await);
        let ended = tokio::spawn(test(Arc::clone(&place))).await;
        place.remove().await;
        if let Err(failed) = ended {
            panic::resume_unwind(failed.into_panic());
        }
        assert_eq!(place.names().await, [""; 0], "something was left behind");
    });
}

impl Place {
    async fn new(kind: Kind) -> Self {
        let unique = unique();
        match kind {
            Kind::memory => Self::with(kind, "memory:///", &unique, vec![], Arc::new(InMemory::new()), None, None),
            Kind::directory => {
                let folder = tempfile::tempdir().unwrap();
                let url = Url::from_directory_path(folder.path()).unwrap();
                let raw = Arc::new(LocalDirectory::open(folder.path().join(&unique)).unwrap());
                let place = Self::with(kind, url.as_str(), &unique, vec![], raw, Some(folder), None);
                // The folder is the store: there is no prefix inside.
                Self { prefix: Path::default(), ..place }
            }
            Kind::testkit => {
                let server = S3Server::start(Arc::new(SystemClock::new())).await.unwrap();
                let options = server.options();
                let (url, raw) = raw("s3://bucket/suite", &options);
                Self::with(kind, url.as_str(), &unique, options, raw, None, Some(server))
            }
            Kind::given => {
                let given = env::var("LEASEHOLD_TEST_STORE").expect("LEASEHOLD_TEST_STORE names the store to test");
                let (url, raw) = raw(&given, &environment());
                Self::with(kind, url.as_str(), &unique, vec![], raw, None, None)
            }
        }
    }

    fn with(
        kind: Kind,
        url: &str,
        unique: &str,
        options: Vec<(String, String)>,
        raw: Arc<dyn ObjectStore>,
        folder: Option<TempDir>,
        server: Option<S3Server>,
    ) -> Self {
        let mut url = Url::parse(url).unwrap();
        url.path_segments_mut().unwrap().pop_if_empty().push(unique);
        let prefix = Path::from_url_path(url.path()).unwrap();
        Self { kind, url, options, raw, prefix, _folder: folder, _server: server }
    }

    /// As a user would open it. Memory is handed in, because every URL of it is another memory.
    pub(crate) fn builder(&self) -> StoreBuilder {
        if self.kind == Kind::memory {
            return self.handed_in().shares_our_clock();
        }
        self.builder_at(&self.url)
    }

    /// A process of its own on it, as far as that can be had in one.
    pub(crate) async fn open(&self) -> Store {
        self.builder().open().await.unwrap()
    }

    /// A store on these objects, with a clock that is moved by hand: the time of a real server cannot be moved.
    pub(crate) async fn open_at(&self, clock: &TestClock) -> Store {
        self.builder_on(clock).open().await.unwrap()
    }

    pub(crate) fn builder_on(&self, clock: &TestClock) -> StoreBuilder {
        self.handed_in().shares_our_clock().clock(Arc::new(clock.clone()))
    }

    fn handed_in(&self) -> StoreBuilder {
        Store::builder().object_store(Arc::clone(&self.raw)).prefix(self.prefix.as_ref()).settings(settings())
    }

    /// This place with other credentials.
    pub(crate) fn as_user(&self, user: &str, secret: &str) -> Self {
        let mut options = self.options.clone();
        let credentials = [("access_key_id", user), ("secret_access_key", secret)];
        options.extend(credentials.map(|(key, value)| (key.into(), value.into())));
        let raw = raw(self.url.as_str(), &options).1;
        Self {
            kind: self.kind,
            url: self.url.clone(),
            options,
            raw,
            prefix: self.prefix.clone(),
            _folder: None,
            _server: None,
        }
    }

    /// Where its server listens, if it has one.
    pub(crate) fn endpoint(&self) -> Option<Url> {
        let query = self.url.query_pairs().find(|(key, _)| key == "endpoint").map(|(_, value)| value.into_owned());
        let option = || self.options.iter().find(|(key, _)| key == "aws_endpoint").map(|(_, value)| value.clone());
        query.or_else(option).map(|endpoint| Url::parse(&endpoint).unwrap())
    }

    /// Its URL, with a proxy in front of its server.
    pub(crate) fn through(&self, proxy: &Proxy) -> Url {
        let (mut endpoint, proxy) = (self.endpoint().unwrap(), Url::parse(&proxy.endpoint()).unwrap());
        endpoint.set_host(proxy.host_str()).unwrap();
        endpoint.set_port(proxy.port()).unwrap();
        let mut url = self.url.clone();
        let rest: Vec<_> = self.url.query_pairs().filter(|(key, _)| key != "endpoint").collect();
        let endpoint = endpoint.as_str().trim_end_matches('/');
        url.query_pairs_mut().clear().extend_pairs(rest).append_pair("endpoint", endpoint);
        url
    }

    /// As a user would open it at another URL.
    pub(crate) fn builder_at(&self, url: &Url) -> StoreBuilder {
        let builder = Store::builder().url(url);
        self.options.iter().fold(builder, |builder, (key, value)| builder.option(key, value)).settings(settings())
    }

    pub(crate) fn options(&self) -> &[(String, String)] {
        &self.options
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// All names there are, without the prefix, in order.
    pub(crate) async fn names(&self) -> Vec<String> {
        let listed: Vec<_> = self.raw.list(self.below().as_ref()).try_collect().await.unwrap();
        let within =
            |path: Path| path.as_ref().strip_prefix(self.prefix.as_ref()).unwrap().trim_start_matches('/').to_owned();
        let mut names: Vec<String> = listed.into_iter().map(|object| within(object.location)).collect();
        names.sort();
        names
    }

    /// The index entries among them.
    pub(crate) async fn entries(&self) -> Vec<String> {
        let names = self.names().await.into_iter();
        names.filter(|name| name.contains("/.lease-index/") || name.starts_with(".txn-decisions/e/")).collect()
    }

    /// Writes objects as another program would, without a condition.
    pub(crate) async fn put(&self, names: Vec<String>, body: &'static str) {
        let put = |name: String| async move {
            let path = Path::parse(format!("{}/{name}", self.prefix).trim_start_matches('/')).unwrap();
            self.raw.put_opts(&path, body.into(), Default::default()).await.unwrap();
        };
        futures_util::stream::iter(names).map(put).buffer_unordered(16).collect::<()>().await;
    }

    /// Whether requests are counted where HTTP happens.
    pub(crate) fn counts_http(&self) -> bool {
        !matches!(self.url.scheme(), "memory" | "file")
    }

    fn below(&self) -> Option<Path> {
        (!self.prefix.as_ref().is_empty()).then(|| self.prefix.clone())
    }

    /// A server that resets a connection has not seen the end of it: what is left is asked for again.
    async fn remove(&self) {
        for _ in 0..3 {
            let names = self.raw.list(self.below().as_ref()).map_ok(|object| object.location).boxed();
            let removed = self.raw.delete_stream(names).collect::<Vec<_>>().await;
            // Azure says of an object that is gone already that it is not there.
            let gone = |error: &object_store::Error| error.to_string().contains("not found");
            match removed.into_iter().filter_map(Result::err).find(|error| !gone(error)) {
                Some(error) => println!("not all was removed: {error}"),
                None => return,
            }
        }
    }
}

/// A handle of the store at a URL, and the URL without its query.
fn raw(url: &str, options: &[(String, String)]) -> (Url, Arc<dyn ObjectStore>) {
    let url = Url::parse(url).unwrap();
    let query = url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned()));
    let options: Vec<_> = options.iter().cloned().chain(query).chain([("allow_http".into(), "true".into())]).collect();
    let mut bare = url.clone();
    bare.set_query(None);
    let (store, _) = object_store::parse_url_opts(&bare, options).unwrap();
    (url, Arc::from(store))
}

fn environment() -> Vec<(String, String)> {
    env::vars().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}

/// A unique name.
pub(crate) fn unique() -> String {
    let mut bytes = [0; 8];
    leasehold::Generator::fill(&leasehold::OsGenerator::new(), &mut bytes);
    bytes.iter().fold("leasehold-test-".to_owned(), |mut name, byte| {
        write!(name, "{byte:02x}").unwrap();
        name
    })
}

/// Patient, because a server shares its few cores with us and with others.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.request_timeout = Duration::from_secs(20);
    settings.bulk_timeout = Duration::from_secs(60);
    settings.sweep.page_size = 1000;
    settings
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// For a lease that outlives a slow test.
pub(crate) fn request() -> Request {
    Request::new(Duration::from_secs(120)).owner("suite")
}

/// For a lease that is over soon, by the store's own clock as well: that one cannot be moved.
pub(crate) fn brief() -> Request {
    Request::new(Duration::from_secs(1)).owner("suite")
}

/// Waits until a brief lease has ended for all processes: a second, and what clocks and stamps may differ by.
pub(crate) async fn until_brief_ones_have_ended() {
    SystemClock::new().sleep(Duration::from_secs(6)).await;
}

pub(crate) fn granted(acquired: leasehold::Result<Acquired>) -> Grant {
    acquired.unwrap().granted().expect("granted")
}

pub(crate) fn now() -> Timestamp {
    SystemClock::new().wall()
}

/// A clock that stands three hours ago, for leases that have ended long since.
pub(crate) fn long_ago() -> TestClock {
    TestClock::at(now().minus(Duration::from_secs(3 * 3600)))
}

/// Waits until no lease of these tests can cross into the next hour while its requests are counted.
pub(crate) async fn away_from_the_end_of_an_hour() {
    while now().as_millis() / 3_600_000 != now().plus(Duration::from_secs(240)).as_millis() / 3_600_000 {
        SystemClock::new().sleep(Duration::from_secs(1)).await;
    }
}

/// A line for the table of `tests/servers/run`, beyond the names of the tests.
pub(crate) fn report(line: &str) {
    println!("{line}");
    if let Some(file) = env::var_os("LEASEHOLD_TEST_REPORT") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        writeln!(file.unwrap(), "{line}").unwrap();
    }
}
