//! Opening a store, and what an opened one hands out. The top of the library: the only place that knows every kind of
//! record, and registers each of them once.

mod builder;
mod diagnose;
mod info;
mod open;
mod records;
mod repair;
mod settings;
mod spread;
mod stats;

pub use crate::shared::{MARGIN, MAX_CLOCK_SKEW, SharedSetting, SharedSettings, SharedSettingsChange, Stop};
pub use crate::storage::{AnswerKind, RequestKind, Requests};
pub use builder::{Probing, StoreBuilder};
pub use diagnose::{Check, Diagnosis, Percentiles, Verdict};
pub use info::StoreInfo;
pub use repair::{FoundIn, SharedSettingsRepair};
pub use settings::Settings;
pub use stats::Stats;

use self::open::no_store;
use crate::{
    Decisions, Error, Fenced, Key, Leases, Namespace, Queue, Result,
    archive::{self, ArchiveSettings, Archiver, Destination},
    clock::Timestamp,
    decision,
    fsck::{self, FsckOptions},
    job,
    kind::Kind,
    lease::{Engine, Lock, TryLock},
    semaphore::{self, Semaphore, Semaphores},
    session::NewSession,
    shared::Rules,
    storage::{Backend, cas, store_json::StoreSlot},
    stream::{self, Stream, StreamName, Streams},
    sweep::{Activity, Sweeper, SweeperHandle},
    timing,
};
use std::{fmt, sync::Arc, time::Duration};

/// An opened store. Cheap to clone; clones share their connections, counts and caches. Open it once in a process: what one
/// handle has learnt about a key saves requests only in its clones.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = leasehold::Store::open("memory://").await?; // s3://bucket/prefix, gs://…, az://…, file:///folder
///
/// let guard = store.lock("orders/42").await?;
/// println!("{store}: orders/42 is ours, with fence {}", guard.fence());
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    backend: Arc<Backend>,
    shared: SharedSettings,
    engine: Arc<Engine>,
    decisions: Arc<decision::Shared>,
    jobs: Arc<job::Shared>,
    streams: Arc<stream::Shared>,
    archive: Arc<archive::Counters>,
    semaphores: Arc<semaphore::Engine>,
    /// Every kind of record, the library's own first.
    kinds: Arc<[Arc<dyn Kind>]>,
    sweeper: Arc<Sweeper>,
    activity: Arc<Activity>,
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

    /// Waits for the lock on a key, and keeps it alive until the [`Guard`] is released, dropped or lost. [`Lock`] says what
    /// else can be asked for, and what the defaults are.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # async fn import(_: leasehold::Fence) -> u32 { 7 }
    /// let store = leasehold::Store::open("memory://").await?;
    /// let guard = store.lock("orders/42").await?;
    /// let orders = guard.run(import(guard.fence())).await?; // ends with an error as soon as the lease is lost
    /// guard.release().await?;
    /// # assert_eq!(orders, 7);
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Guard`]: crate::lease::Guard
    pub fn lock<K>(&self, key: K) -> Lock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.default_leases().lock(key)
    }

    /// Tries once to lock a key; `None` if another process holds it. See [`TryLock`].
    pub fn try_lock<K>(&self, key: K) -> TryLock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.default_leases().try_lock(key)
    }

    /// The leases of the namespace `default`.
    pub fn default_leases(&self) -> Leases {
        Leases::new(Arc::clone(&self.engine), Namespace::default())
    }

    /// The leases of a namespace; [`default_leases`](Self::default_leases) are those of the one named `default`.
    pub fn leases<N>(&self, namespace: N) -> Result<Leases>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        Ok(Leases::new(Arc::clone(&self.engine), namespace.try_into().map_err(Into::into)?))
    }

    /// Begins a session, under which any number of locks are held for the price of one; see [`crate::session`].
    pub fn session(&self) -> NewSession {
        let backend = Arc::clone(&self.backend);
        let allowed = async move { info::record_format(&backend).await };
        NewSession::new(Arc::clone(&self.engine), Box::pin(allowed))
    }

    /// Allows records of this format to be written from now on: for an operator who knows that no older version uses the store
    /// any more, as those refuse to change such records. It cannot be taken back. Processes that run need not be restarted.
    pub async fn allow_record_format(&self, format: u32, by: &str) -> Result<()> {
        info::allow_record_format(&self.backend, format, by).await?;
        self.engine.allow(format);
        Ok(())
    }

    /// The decisions on transactions.
    pub fn decisions(&self) -> Decisions {
        Decisions::new(Arc::clone(&self.decisions))
    }

    /// A semaphore of the namespace `default` with `size` slots; see [`crate::semaphore`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let store = leasehold::Store::open("memory://").await?;
    /// let permit = store.semaphore("gpu", 1).acquire().await?;
    /// assert!(store.semaphore("gpu", 1).try_acquire().await?.is_none(), "full");
    /// permit.release().await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn semaphore<K>(&self, name: K, size: u32) -> Semaphore
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Semaphore::new(&self.semaphores, name, size)
    }

    /// The semaphores of a namespace, one step at a time.
    pub fn semaphores<N>(&self, namespace: N) -> Result<Semaphores>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        Ok(Semaphores::new(&self.semaphores, namespace.try_into().map_err(Into::into)?))
    }

    /// Objects of the namespace `default` that refuse a fence lower than one that they were written with; see
    /// [`fenced`](crate::fenced).
    pub fn fenced(&self) -> Fenced {
        Fenced::new(&self.backend, &self.activity, Namespace::default())
    }

    /// A queue of jobs in the namespace `default`; [`Queue::namespace`] has it in another one. Nothing is sent: the queue is
    /// made when it is first used. Its name is any text of 1 to 64 bytes.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<Queue> {
        job::open_queue(&self.jobs, Namespace::default(), name.as_ref())
    }

    /// The queues of a namespace.
    pub fn queues<N>(&self, namespace: N) -> Result<job::Queues>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        Ok(job::Queues::new(&self.jobs, namespace.try_into().map_err(Into::into)?))
    }

    /// A stream of the namespace `default`; see [`crate::stream`].
    pub fn stream<N>(&self, name: N) -> Result<Stream>
    where
        N: TryInto<StreamName>,
        N::Error: Into<Error>,
    {
        Streams::new(Arc::clone(&self.streams), Namespace::default()).stream(name)
    }

    /// The streams of a namespace.
    pub fn streams<N>(&self, namespace: N) -> Result<Streams>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        Ok(Streams::new(Arc::clone(&self.streams), namespace.try_into().map_err(Into::into)?))
    }

    /// What copies the streams of one domain in the namespace `default` to the archive; see [`crate::archive`].
    pub fn archiver(&self, domain: &str, settings: ArchiveSettings) -> Result<Archiver> {
        let streams = Streams::new(Arc::clone(&self.streams), Namespace::default());
        Archiver::new(streams, domain, settings, Arc::clone(&self.archive))
    }

    /// This store as a place for the archive of another one.
    pub fn destination(&self) -> Destination {
        Destination::new(Arc::clone(&self.backend))
    }

    /// The sweeper, which tidies records that are not used any more: started in the background, or run once.
    pub fn sweeper(&self) -> SweeperHandle {
        SweeperHandle::new(Arc::clone(&self.sweeper))
    }

    /// The namespaces that something was ever stored in: one listing. Not activity.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let folders = self.backend.folders("").await?;
        Ok(folders.iter().filter_map(|folder| Namespace::new(folder).ok()).collect())
    }

    /// Waits until what dropped operations have left behind is settled: writes in doubt, and leases and jobs whose callers have gone away.
    /// For a process that is about to end; whatever is not settled then is left to its time to live.
    pub async fn drain(&self) {
        self.jobs.drain().await;
        self.engine.leftovers.close();
        self.engine.leftovers.wait().await;
    }

    /// What has happened since the store was opened.
    pub fn stats(&self) -> Stats {
        let (stream, archive) = (self.streams.counters.counts(), self.archive.counts());
        let (lease, decision) = (self.engine.counts(), self.decisions.counts());
        let (semaphore, storage) = (self.semaphores.counts(), self.backend.counters.counts());
        Stats::of(storage, lease, decision, stream, archive, semaphore, &self.sweeper)
    }

    /// What all processes that use this store have alike.
    pub fn shared_settings(&self) -> &SharedSettings {
        &self.shared
    }

    /// The shortest and the longest time to live that a lease may be asked for: the one is this process's setting, the other
    /// is what all processes have alike.
    pub fn ttl_limits(&self) -> (Duration, Duration) {
        self.engine.ttl_limits()
    }

    /// How many requests were made since the store was opened.
    pub fn requests(&self) -> Requests {
        self.backend.requests()
    }

    /// How long ago the last operation was called. Renewals by a guard, polls by a waiter, [`peek`](Leases::peek) and
    /// [`list`](Leases::list) do not count.
    pub fn idle_for(&self) -> Duration {
        self.backend.clock.monotonic().since(self.activity.last())
    }

    /// Counts as an operation, so that the process is not idle: for a service that has other work.
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
            allowed: self.shared.max_clock_skew,
            is_wrong: apart.is_some_and(|apart| timing::is_wrong(apart, self.shared.max_clock_skew)),
            grants: apart.is_some_and(|apart| !timing::is_far_off(apart, self.shared.max_clock_skew)),
        }
    }

    /// Whether this machine's clock and the store's are close enough together for anything to be granted.
    pub fn trusts_clock(&self) -> bool {
        self.backend.check_clock(self.shared.max_clock_skew, self.backend.clock.wall()).is_ok()
    }

    /// How far this machine's clock and the store's are apart, as far as is known; the store counts whole seconds.
    pub fn skew(&self) -> Option<Duration> {
        Some(self.backend.clock.wall().distance(self.time()?))
    }

    /// Looks for damage everywhere in the store, and repairs it if that is asked for; see [`fsck`].
    pub async fn fsck(&self, options: FsckOptions) -> Result<fsck::Report> {
        fsck::run(&self.backend, &self.kinds, self.shared.max_clock_skew, options).await
    }

    /// What is in `store.json` now.
    pub async fn info(&self) -> Result<StoreInfo> {
        let known = cas::read(&self.backend, &StoreSlot).await?;
        let known = known.ok_or_else(|| no_store(&self.backend.place))?;
        StoreInfo::of(known.record(), &rules_of(&self.kinds))
    }

    /// Changes what all processes have alike, and raises the epoch.
    ///
    /// **Every other process that uses the store must have been stopped** for as long as
    /// [`needs_a_stop_of`](SharedSettingsChange::needs_a_stop_of) says (`max_ttl + margin`, or longer with another age for
    /// transactions), and be started again afterwards: a process reads these values once, when it opens the store, and two
    /// processes that go by different bounds could both believe in one lease. This handle, its clones and everything made
    /// from them go on with the old values: drop them all, and open the store again.
    pub async fn change_shared_settings(&self, change: &SharedSettingsChange, by: &str) -> Result<SharedSettings> {
        info::change(&self.backend, &rules_of(&self.kinds), change, by).await
    }

    #[cfg(feature = "_internals")]
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }
}

/// What these kinds say of shared settings.
fn rules_of(kinds: &[Arc<dyn Kind>]) -> Arc<[&'static Rules]> {
    kinds.iter().map(|kind| &kind.declaration().shared).collect()
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.backend.place)
    }
}

/// What a process with these settings would write into an empty store.
#[cfg(feature = "_internals")]
pub(crate) fn propose(settings: &Settings) -> Result<SharedSettings> {
    SharedSettings::propose(&our_rules(), &settings.shared())
}

/// What stands in a store.
#[cfg(feature = "_internals")]
pub(crate) fn read(record: &crate::storage::store_json::StoreRecord) -> Result<SharedSettings> {
    SharedSettings::read(&our_rules(), record)
}

#[cfg(feature = "_internals")]
fn our_rules() -> Arc<[&'static Rules]> {
    StoreBuilder::default().declarations().iter().map(|kind| &kind.shared).collect()
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
