//! Where a store is, how it is reached, and what it is opened with.

use super::{Settings, SharedSetting, SharedSettingsChange, records::folder_has_store, spread};
use crate::{
    Clock, Error, Generator, OsGenerator, Result, SystemClock, archive, decision, fenced,
    hex::hex,
    job,
    kind::{Declaration, Kind},
    lease, semaphore,
    storage::{
        Backend, Counters, Meter,
        backend::TimeSource,
        counting::Counting,
        listing::Walks,
        name::Prefix,
        page::Lister,
        url::{Connection, connect},
    },
    stream,
};
use object_store::{ObjectStore, path::Path};
use sha2::{Digest, Sha256};
use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

/// When opening a store makes it prove that it keeps its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Probing {
    /// When the store was not probed in the last seven days, at this place and by this version. A store that was
    /// handed in is probed each time.
    #[default]
    WhenDue,
    /// Each time.
    Always,
    /// Not at all: for credentials that may only read, and for stores that are known to be safe.
    Never,
}

/// Where a store is, how it is reached, and what it is opened with.
#[derive(Debug)]
#[must_use]
pub struct StoreBuilder {
    source: Source,
    declared: Declared,
    options: Vec<(String, String)>,
    environment: bool,
    pub(super) settings: Settings,
    pub(super) shared: SharedSettingsChange,
    pub(super) kinds: Vec<Arc<dyn Kind>>,
    pub(super) probing: Probing,
    pub(super) must_exist: bool,
    clock: Arc<dyn Clock>,
    generator: Arc<dyn Generator>,
}

#[derive(Debug)]
enum Source {
    Nothing,
    Url(String),
    Handle(Arc<dyn ObjectStore>),
}

/// What is said of a store that is handed in, before or after that.
#[derive(Debug, Default)]
struct Declared {
    bulk: Option<Arc<dyn ObjectStore>>,
    prefix: Option<String>,
    ordered: bool,
    our_time: bool,
    #[cfg(feature = "_internals")]
    dates: Option<crate::storage::Dates>,
}

impl Declared {
    /// What has no meaning for a store that has a URL: dropped without a word, it would make two stores of one.
    fn first(&self) -> Option<&'static str> {
        let named = [
            (self.bulk.is_some(), "bulk_store"),
            (self.prefix.is_some(), "prefix (it is part of the URL)"),
            (self.ordered, "lists_in_order"),
            (self.our_time, "shares_our_clock"),
            #[cfg(feature = "_internals")]
            (self.dates.is_some(), "dated_answers"),
        ];
        named.into_iter().find_map(|(said, name)| said.then_some(name))
    }
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            source: Source::Nothing,
            declared: Declared::default(),
            options: Vec::new(),
            environment: true,
            settings: Settings::default(),
            shared: SharedSettingsChange::default(),
            kinds: Vec::new(),
            probing: Probing::default(),
            must_exist: false,
            clock: Arc::new(SystemClock::new()),
            generator: Arc::new(OsGenerator::new()),
        }
    }
}

impl StoreBuilder {
    /// The store at a URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
    /// `file:///absolute/folder`, or `memory://` for tests. The prefix may be left out.
    ///
    /// Credentials, region and endpoint come from the environment variables that `object_store` reads (`AWS_…`,
    /// `GOOGLE_…`, `AZURE_…`), from [`option`](Self::option), and from the URL's query, each over the one before:
    /// `s3://bucket?endpoint=http://127.0.0.1:9000&region=us-east-1`. Secrets are refused in a URL.
    ///
    /// Where no credentials are named for S3, those of a profile of the AWS command line are taken: the one that the
    /// option `profile` or `AWS_PROFILE` names, or the default one, with keys or with a `credential_process`. The option
    /// `ca_file` names a file of certificate authorities (PEM) that are trusted beside those of the machine.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.source = Source::Url(url.as_ref().to_owned());
        self
    }

    /// A store that the caller has made. Calls are counted instead of HTTP attempts, listings are taken as unordered,
    /// and the store's time is read off an object that is written for the purpose.
    ///
    /// Its own retries should be few and its timeouts short; what it does below this library cannot be seen from here.
    pub fn object_store(mut self, store: Arc<dyn ObjectStore>) -> Self {
        self.source = Source::Handle(store);
        self
    }

    /// A second handle of the store that was handed in, for listing and deleting, with more patience than the first.
    pub fn bulk_store(mut self, second: Arc<dyn ObjectStore>) -> Self {
        self.declared.bulk = Some(second);
        self
    }

    /// The prefix below which everything lives in a store that was handed in.
    pub fn prefix(mut self, below: impl Into<String>) -> Self {
        self.declared.prefix = Some(below.into());
        self
    }

    /// Declares that a store that was handed in lists in byte order of the names.
    pub fn lists_in_order(mut self) -> Self {
        self.declared.ordered = true;
        self
    }

    /// Declares that a store that was handed in goes by the same clock as this process. Without this it is asked for its
    /// time by a small write and a read, and each decision is one read more.
    pub fn shares_our_clock(mut self) -> Self {
        self.declared.our_time = true;
        self
    }

    /// Declares that the answers of a store that was handed in say what time it is, as those over HTTP do.
    #[cfg(feature = "_internals")]
    #[doc(hidden)]
    pub fn dated_answers(mut self, dates: crate::storage::Dates) -> Self {
        self.declared.dates = Some(dates);
        self
    }

    /// An option of the store at the URL, by the name that `object_store` gives it: `endpoint`, `region`,
    /// `access_key_id`, … Of two values for one option the later counts. An unknown one is refused when the store is opened.
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((key.into(), value.into()));
        self
    }

    /// Ignores the environment variables.
    pub fn without_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    /// Values that differ from the defaults.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// What this process takes a shared setting to be: refused if the store has another value. Those that
    /// [`Settings`] has a field for can be named there.
    pub fn shared_setting(mut self, setting: &SharedSetting, value: Duration) -> Self {
        self.shared = self.shared.set(setting, value);
        self
    }

    /// One more kind of record: swept, checked by fsck, counted and reported like those that the library has.
    #[cfg(feature = "_internals")]
    #[doc(hidden)]
    pub fn kind(mut self, kind: Arc<dyn Kind>) -> Self {
        self.kinds.push(kind);
        self
    }

    /// When the store is probed.
    pub fn probing(mut self, probing: Probing) -> Self {
        self.probing = probing;
        self
    }

    /// Fails if the store does not exist, instead of creating it: for tools that only read, where the URL may be misspelt.
    pub fn must_exist(mut self) -> Self {
        self.must_exist = true;
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where randomness comes from.
    pub fn generator(mut self, generator: Arc<dyn Generator>) -> Self {
        self.generator = generator;
        self
    }

    /// Whether a probe that is noted in the store does not count.
    pub(super) fn always_probes(&self) -> bool {
        self.probing == Probing::Always || self.probing == Probing::WhenDue && matches!(self.source, Source::Handle(_))
    }

    /// What every kind of record says of itself.
    pub(super) fn declarations(&self) -> Vec<&'static Declaration> {
        let ours = [
            &lease::DECLARATION,
            &decision::DECLARATION,
            &job::DECLARATION,
            &stream::DECLARATION,
            &archive::DECLARATION,
            &fenced::DECLARATION,
            &semaphore::DECLARATION,
        ];
        ours.into_iter().chain(self.kinds.iter().map(|kind| kind.declaration())).collect()
    }

    /// What this process takes shared settings to be.
    pub(super) fn named(&self) -> SharedSettingsChange {
        self.shared.clone().or(&self.settings.shared())
    }

    pub(super) async fn connect(self) -> Result<(Backend, String)> {
        let declarations = self.declarations();
        let meter = Arc::new(Meter::new(Arc::clone(&self.clock)));
        let connection = match self.source {
            Source::Nothing => {
                return Err(Error::invalid("no store was named: give the builder a URL or an object store"));
            }
            Source::Url(url) => {
                if let Some(name) = self.declared.first() {
                    return Err(Error::invalid(format!("{name} is for a store that is handed in, and not for a URL")));
                }
                if self.must_exist {
                    folder_has_store(&url, &declarations)?;
                }
                let timeouts = (self.settings.request_timeout, self.settings.bulk_timeout);
                connect(&url, self.options, self.environment, timeouts, &meter, &self.clock).await?
            }
            Source::Handle(store) => {
                if let Some((key, _)) = self.options.first() {
                    return Err(Error::invalid(format!(
                        "the option {key:?} has no meaning for a store that was handed in"
                    )));
                }
                handed_in(store, self.declared, &meter)?
            }
        };
        let place = hash(&connection.identity);
        let backend = Backend {
            coordination: connection.coordination,
            bulk: connection.bulk,
            lister: connection.lister,
            prefix: Prefix::new(&connection.prefix)?,
            place: connection.place,
            meter,
            counters: Arc::new(Counters::new()),
            time: connection.time,
            is_on_loopback: connection.is_on_loopback,
            folder: connection.folder,
            alive: Mutex::default(),
            stamps: Mutex::default(),
            note_spread_in_store: spread::note,
            said_wrong: AtomicBool::new(false),
            clock: self.clock,
            generator: self.generator,
            request_timeout: self.settings.request_timeout,
            bulk_timeout: self.settings.bulk_timeout,
            walks: Walks::default(),
        };
        Ok((backend, place))
    }
}

/// A store that the caller has made.
fn handed_in(store: Arc<dyn ObjectStore>, declared: Declared, meter: &Arc<Meter>) -> Result<Connection> {
    #[cfg(feature = "_internals")]
    let dated = declared.dates.as_ref().inspect(|dates| dates.tell(meter)).is_some();
    #[cfg(not(feature = "_internals"))]
    let dated = false;
    let Declared { bulk, prefix, ordered, our_time, .. } = declared;
    let prefix = prefix.unwrap_or_default();
    let prefix = Path::parse(&prefix)
        .map_err(|error| Error::invalid(format!("{prefix:?} is no prefix: {error}")).with_source(error))?;
    let place = format!("{store}/{prefix}");
    let count = |store| Arc::new(Counting::new(store, Arc::clone(meter))) as Arc<dyn ObjectStore>;
    Ok(Connection {
        coordination: count(Arc::clone(&store)),
        bulk: count(bulk.unwrap_or(store)),
        lister: if ordered { Lister::Ordered } else { Lister::Unordered },
        prefix,
        identity: place.clone(),
        place,
        time: match (dated, our_time) {
            (true, _) => TimeSource::Answers,
            (false, true) => TimeSource::Clock,
            (false, false) => TimeSource::Object,
        },
        is_on_loopback: false,
        folder: None,
    })
}

fn hash(identity: &str) -> String {
    hex(&Sha256::digest(identity))
}
