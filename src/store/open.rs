//! Opening a store: from handle or URL to something that may be trusted.

use super::{
    Agreement, AgreementChange, Backend, Requests, StoreInfo,
    agreement::{self, Passed, StoreRecord, StoreSlot},
    backend::TimeSource,
    cas::{self, Cas, Outcome, Seen},
    counting::Counting,
    listing::Walks,
    lost,
    meter::Meter,
    name::Prefix,
    page::Lister,
    probe,
    url::{Connection, connect},
};
use crate::{
    Clock, Decisions, Error, Generator, Leases, Namespace, OsGenerator, Result, Settings, Stats, SystemClock,
    clock::Timestamp,
    decision::{self, DecisionCheck, DecisionSweep},
    fsck::{self, Checkable, FsckOptions},
    lease::{Engine, LeaseCheck, LeaseSweep, LeaseTurn},
    stats::Counters,
    sweep::{Activity, Report, RunningSweeper, SweepOptions, Sweeper, SweeperState},
};
use object_store::{ObjectStore, path::Path};
use sha2::{Digest, Sha256};
use std::{
    fmt,
    fmt::Write as _,
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
    /// Not at all: for credentials that may only read, and where somebody else has seen to it.
    Never,
}

/// An opened store. Cheap to clone; clones share their connections, counts and caches.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = leasehold::Store::open("memory://").await?;
/// assert_eq!(store.agreement().max_clock_skew.as_secs(), 1);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    backend: Arc<Backend>,
    agreement: Agreement,
    engine: Arc<Engine>,
    decisions: Arc<decision::Shared>,
    sweeper: Arc<Sweeper>,
    activity: Arc<Activity>,
    counters: Arc<Counters>,
}

impl Store {
    /// Opens the store at a URL with the environment's credentials and default settings; see [`StoreBuilder::url`].
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().url(url).open().await
    }

    /// Configures how a store is opened.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    /// The leases of a namespace; there is one named `default`.
    pub fn leases<N>(&self, namespace: N) -> Result<Leases>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        Ok(Leases::new(Arc::clone(&self.engine), namespace.try_into().map_err(Into::into)?))
    }

    /// The decisions on transactions.
    pub fn decisions(&self) -> Decisions {
        Decisions::new(Arc::clone(&self.decisions))
    }

    /// Starts to sweep in the background, whenever nobody has asked for anything for a while.
    pub fn start_sweeper(&self) -> RunningSweeper {
        self.sweeper.start(&tokio::runtime::Handle::current())
    }

    /// Sweeps once, now, from the oldest hour to the last that is over.
    pub async fn sweep_once(&self, options: SweepOptions) -> Result<Report> {
        self.sweeper.sweep_once(options).await
    }

    /// What the sweeper is doing, and how its last runs in this process ended.
    pub fn sweeper(&self) -> SweeperState {
        self.sweeper.state()
    }

    /// The namespaces that something was ever stored in: one listing. Not activity.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let folders = self.backend.folders("").await?;
        Ok(folders.iter().filter_map(|folder| Namespace::new(folder).ok()).collect())
    }

    /// Waits until what dropped operations have left behind is settled: writes in doubt, and leases that nobody wants.
    /// For a process that is about to end; whatever is not settled then is left to its time to live.
    pub async fn settle(&self) {
        self.engine.leftovers.close();
        self.engine.leftovers.wait().await;
    }

    /// What has happened since the store was opened.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    /// What all processes that use this store have agreed on.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// The shortest and the longest time to live that a lease may be asked for: the one is this process's setting, the other
    /// is what all processes have agreed on.
    pub fn ttl_limits(&self) -> (Duration, Duration) {
        self.engine.ttl_limits()
    }

    /// How many requests were made since the store was opened.
    pub fn requests(&self) -> Requests {
        self.backend.requests()
    }

    /// How long ago somebody last asked for something. Renewals by a guard, a waiter's looks, [`peek`](Leases::peek) and
    /// [`list`](Leases::list) do not count.
    pub fn idle_for(&self) -> Duration {
        self.backend.clock.monotonic().since(self.activity.last())
    }

    /// Counts as if somebody had asked for something: for a service that has work of its own.
    pub fn mark_activity(&self) {
        self.activity.touch(&*self.backend.clock);
    }

    /// What time it is by the store's own clock, if it has told.
    pub fn time(&self) -> Option<Timestamp> {
        self.backend.store_time()
    }

    /// This machine's clock beside the store's, and what follows from that.
    pub fn clock_state(&self) -> ClockState {
        let (ours, theirs) = (self.backend.clock.wall(), self.backend.store_interval());
        let apart = theirs.map(|theirs| theirs.distance(ours));
        ClockState {
            ours,
            theirs: theirs.map(|theirs| theirs.lower),
            certainly_apart: apart,
            allowed: self.agreement.max_clock_skew,
            is_wrong: apart.is_some_and(|apart| self.agreement.is_wrong(apart)),
            grants: apart.is_some_and(|apart| !self.agreement.is_far_off(apart)),
        }
    }

    /// Whether this machine's clock and the store's are close enough together for anything to be granted.
    pub fn trusts_clock(&self) -> bool {
        self.backend.believe(&self.agreement, self.backend.clock.wall()).is_ok()
    }

    /// How far this machine's clock and the store's are apart, as far as is known; the store counts whole seconds.
    pub fn skew(&self) -> Option<Duration> {
        Some(self.backend.clock.wall().distance(self.time()?))
    }

    /// Looks for damage everywhere in the store, and repairs it if that is asked for; see [`fsck`](crate::fsck).
    pub async fn fsck(&self, options: FsckOptions) -> Result<fsck::Report> {
        let kinds: [Arc<dyn Checkable>; 2] =
            [Arc::new(LeaseCheck(Arc::clone(&self.engine))), Arc::new(DecisionCheck(Arc::clone(&self.decisions)))];
        fsck::run(&self.backend, &kinds, &self.agreement, options).await
    }

    /// What is in `store.json` now.
    pub async fn info(&self) -> Result<StoreInfo> {
        let known = cas::read(&self.backend, &StoreSlot).await?;
        known.ok_or_else(|| no_store(&self.backend.place))?.record().info()
    }

    /// Changes what all processes have agreed on, and raises the epoch.
    ///
    /// **Every other process that uses the store must have been stopped** for as long as
    /// [`needs_a_stop_of`](AgreementChange::needs_a_stop_of) says (`max_ttl + margin`, or longer with another age for
    /// transactions), and be started again afterwards: a process reads the agreement once, when it opens the store, and two
    /// processes that go by different bounds could both believe in one lease. This store is closed with it; open it again.
    pub async fn change_agreement(self, change: &AgreementChange, by: &str) -> Result<Agreement> {
        agreement::change(&self.backend, change, by).await
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.backend.place)
    }
}

/// This machine's clock beside the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockState {
    /// What this machine's clock says.
    pub ours: Timestamp,
    /// What the store's clock says at the least, if it has told: it counts whole seconds.
    pub theirs: Option<Timestamp>,
    /// How far they are apart at the least.
    pub certainly_apart: Option<Duration>,
    /// How far they may be.
    pub allowed: Duration,
    /// Whether they are certainly further apart than they may be: the clock has to be set right.
    pub is_wrong: bool,
    /// Whether anything is granted, taken over, decided or deleted all the same: not any more where they are ten seconds
    /// further apart than they may be, nor where the store has not told its time.
    pub grants: bool,
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
    probing: Probing,
    must_exist: bool,
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
    #[cfg(feature = "testkit")]
    dates: Option<crate::testkit::Dates>,
}

impl Declared {
    /// What has no meaning for a store that has a URL: dropped without a word, it would make two stores of one.
    fn first(&self) -> Option<&'static str> {
        let named = [
            (self.bulk.is_some(), "bulk_store"),
            (self.prefix.is_some(), "prefix (it is part of the URL)"),
            (self.ordered, "lists_in_order"),
            (self.our_time, "shares_our_clock"),
            #[cfg(feature = "testkit")]
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
    #[cfg(feature = "testkit")]
    pub fn dated_answers(mut self, dates: crate::testkit::Dates) -> Self {
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

    /// When the store is probed.
    pub fn probing(mut self, probing: Probing) -> Self {
        self.probing = probing;
        self
    }

    /// Refuses to make a store where there is none: for whoever only looks, and may have misspelt the URL.
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

    /// Connects, makes sure that the store is safe, and agrees with the other processes on what must be the same.
    ///
    /// One read when all that is known already. Fails with nothing written when the URL, the options or the
    /// credentials are wrong, and when the store has records but what was agreed on is lost or damaged
    /// ([`repair_settings`](Self::repair_settings) writes it again).
    pub async fn open(self) -> Result<Store> {
        let proposal = Agreement::propose(&self.settings)?;
        self.settings.validate()?;
        let always = self.probing == Probing::Always
            || self.probing == Probing::WhenDue && matches!(self.source, Source::Handle(_));
        let (probing, must_exist, settings) = (self.probing, self.must_exist, self.settings.clone());
        let (backend, place) = self.connect().await?;
        let backend = Arc::new(backend);
        let mut known = cas::read(&backend, &StoreSlot).await?;
        if known.is_none() && lost::is_used(&backend).await? {
            // Another process may have made the store, and granted something, since that was read.
            known = cas::read(&backend, &StoreSlot).await?;
            if known.is_none() {
                return Err(lost::settings_lost(&backend.place));
            }
        }
        match &known {
            Some(known) => known.record().agreement()?.admit(&settings)?,
            None if must_exist => return Err(no_store(&backend.place)),
            None => {}
        }
        let due = !known
            .as_ref()
            .and_then(|known| known.record().probe.as_ref())
            .is_some_and(|passed| passed.holds(backend.store_time(), &place));
        let passed = if probing != Probing::Never && (always || due) {
            probe::probe(&backend).await?;
            backend.store_time().map(|now| Passed::now(now, &place))
        } else {
            None
        };
        if probing != Probing::Never || known.is_none() {
            backend.refresh_time().await?;
        }
        let spread = known.as_ref().map_or(Duration::ZERO, |known| known.record().spread(backend.store_time()));
        let agreement = match known {
            Some(known) if passed.is_none() || !due => known.record().agreement()?,
            known => agree(&backend, known, &proposal, passed, &settings).await?,
        };
        backend.note_spread(spread);
        let activity = Arc::new(Activity::default());
        activity.touch(&*backend.clock);
        settings.sweep.validate(agreement.least_margin())?;
        let counters = Arc::clone(&backend.counters);
        let timeout = settings.request_timeout;
        let decisions = decision::Shared::new(Arc::clone(&backend), agreement, timeout, Arc::clone(&activity));
        let sweep = settings.sweep.clone();
        let engine = Engine::new(Arc::clone(&backend), agreement, settings, Arc::clone(&activity));
        let sweeper = Sweeper::new(
            Arc::clone(&backend),
            agreement,
            sweep,
            vec![Arc::new(LeaseSweep::new(Arc::clone(&engine))), Arc::new(DecisionSweep(Arc::clone(&decisions)))],
            Arc::new(LeaseTurn(Arc::clone(&engine))),
            Arc::clone(&activity),
            Arc::clone(&counters),
        );
        let store = Store { backend, agreement, engine, decisions, sweeper, activity, counters };
        store.backend.look_at_clock(&store.agreement);
        Ok(store)
    }

    pub(super) async fn connect(self) -> Result<(Backend, String)> {
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
                    folder_has_store(&url)?;
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
                #[cfg(feature = "testkit")]
                let dated = self.declared.dates.as_ref().inspect(|dates| dates.tell(&meter)).is_some();
                #[cfg(not(feature = "testkit"))]
                let dated = false;
                let Declared { bulk, prefix, ordered, our_time, .. } = self.declared;
                let prefix = prefix.unwrap_or_default();
                let prefix = Path::parse(&prefix)
                    .map_err(|error| Error::invalid(format!("{prefix:?} is no prefix: {error}")).with_source(error))?;
                let place = format!("{store}/{prefix}");
                let count = |store| Arc::new(Counting::new(store, Arc::clone(&meter))) as Arc<dyn ObjectStore>;
                Connection {
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
                }
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

/// Writes what is agreed into a new store, or a newer probe into a known one. Whoever loses takes what is there.
async fn agree(
    backend: &Arc<Backend>,
    known: Option<Seen<StoreRecord>>,
    proposal: &Agreement,
    passed: Option<Passed>,
    settings: &Settings,
) -> Result<Agreement> {
    const TRIES: u32 = 5;
    let old = known.as_ref().map(|known| known.record().clone());
    let mut cas = Cas::new(Arc::clone(backend), StoreSlot, known);
    for tries in 0..TRIES {
        let outcome = cas.attempt((), |old, stamp| match old {
            Some(old) => old.probed(stamp, passed.clone()),
            None => StoreRecord::new(stamp, proposal, passed.clone()),
        });
        match (outcome.await, &old) {
            (Outcome::Won(seen, ()) | Outcome::Lost(Some(seen)), _) => {
                let agreement = seen.record().agreement()?;
                agreement.admit(settings)?;
                return Ok(agreement);
            }
            (Outcome::Lost(None), _) => {
                return Err(Error::unavailable(format!(
                    "the settings in {} were removed just now: open it again",
                    backend.place
                )));
            }
            // Only the note of a probe is at stake: without it the next process probes again.
            (Outcome::Unknown(error), Some(old)) => {
                tracing::debug!(%error, "the probe could not be noted");
                return old.agreement();
            }
            (Outcome::Unknown(error), None) if !error.is_retryable() || tries + 1 == TRIES => return Err(error),
            (Outcome::Unknown(_), None) => backend.pause(tries).await,
        }
    }
    Err(Error::unavailable(format!("the settings of {} could not be written", backend.place)))
}

pub(super) fn no_store(place: &str) -> Error {
    Error::config(format!("there is no store at {place}: check the URL, or let the first acquire or lock make it"))
}

/// Opening a folder makes it, so it is looked at before.
fn folder_has_store(url: &str) -> Result<()> {
    let Some(folder) =
        url::Url::parse(url).ok().filter(|url| url.scheme() == "file").and_then(|url| url.to_file_path().ok())
    else {
        return Ok(());
    };
    match folder.join(".leasehold").join("store.json").try_exists() {
        Ok(false) if !folder_has_records(&folder) => Err(no_store(url)),
        // Whatever is wrong with it is said by whoever opens it.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn folder_has_records(folder: &std::path::Path) -> bool {
    let is_filled = |folder: std::path::PathBuf| folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let records = |inside: std::fs::DirEntry| {
        inside.file_name() == ".txn-decisions"
            || inside.file_name().to_str().is_some_and(|name| Namespace::new(name).is_ok())
                && is_filled(inside.path().join("meta"))
    };
    folder.read_dir().is_ok_and(|entries| entries.flatten().any(records))
}

fn hash(identity: &str) -> String {
    Sha256::digest(identity).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
