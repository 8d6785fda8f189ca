//! The requests that the rest of the library makes, each with a deadline of its own.

use super::{
    Name,
    answer::{explain, is_bucket_missing, is_conflict, is_missing},
    clocks::Clocks,
    counters::Counters,
    layout,
    listing::Walks,
    local::alive::{self, Alive},
    meter::{Meter, Requests},
    name::Prefix,
    page::Lister,
    time::Stamps,
};
use crate::{
    Clock, Error, ErrorKind, Generator, ProcessId, Result,
    clock::{self, Timestamp},
    generator::GeneratorExt,
    sync::Locked as _,
    timing,
};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use object_store::{
    Error as StoreError, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion, path::Path,
};
use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// No object of ours is near this size; a larger one is not ours and is not read.
const LARGEST_BODY: u64 = 1 << 20;

/// What a repair still moves aside.
const LARGEST_MOVED: u64 = 256 << 20;

/// How often a read that failed for a passing reason is tried in all.
const READ_TRIES: u32 = 3;

/// What a conditional write must name: both the ETag and the generation, because GCS goes by the one and all others
/// by the other. Lives as long as a process at most: ETags are never stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    // One is kept for every key in the cache: no room to spare.
    e_tag: Option<Box<str>>,
    generation: Option<Box<str>>,
}

impl Version {
    pub(super) fn new(e_tag: Option<String>, generation: Option<String>) -> Self {
        Self { e_tag: e_tag.map(Into::into), generation: generation.map(Into::into) }
    }

    /// What a read that wants only changes must name.
    pub(super) fn e_tag(&self) -> Option<String> {
        self.e_tag.as_deref().map(str::to_owned)
    }
}

impl From<&Version> for UpdateVersion {
    fn from(version: &Version) -> Self {
        let text = |part: &Option<Box<str>>| part.as_deref().map(str::to_owned);
        Self { e_tag: text(&version.e_tag), version: text(&version.generation) }
    }
}

/// An object as it was read.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) body: Bytes,
    pub(crate) version: Version,
    pub(crate) modified: Timestamp,
}

/// A write that was not answered with Ok. Not proof that it did not happen.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The store said that a condition was not met.
    pub(crate) conflict: bool,
    pub(crate) error: Error,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { conflict: false, error }
    }
}

/// What became of a bulk delete.
#[derive(Debug)]
pub(crate) struct Deleted {
    /// What is certainly gone, also if it was not there before.
    pub(crate) gone: BTreeSet<Name>,
    /// Why the rest is not.
    pub(crate) error: Option<Error>,
}

/// Where the store's own time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSource {
    /// The `Date` of every answer.
    #[cfg_attr(
        not(any(feature = "_cloud", feature = "_internals")),
        allow(dead_code, reason = "only clouds answer over HTTP")
    )]
    Answers,
    /// Our clock: memory has no other.
    Clock,
    /// Our clock as well, on a local directory. Records there end by the boot-time clock that all processes of the host share.
    Host,
    /// The `last_modified` of an object that is written for the purpose.
    Object,
}

/// Writes down, for all processes, how far the stamps of a store were found apart.
pub(crate) type NoteSpread = fn(Arc<Backend>, Duration) -> BoxFuture<'static, Result<()>>;

/// An opened store, as the rooms above see it.
pub(crate) struct Backend {
    /// For reads and writes that an operation waits for: no retries below us, a short deadline.
    pub(crate) coordination: Arc<dyn ObjectStore>,
    /// For listing and deleting.
    pub(crate) bulk: Arc<dyn ObjectStore>,
    pub(crate) lister: Lister,
    pub(crate) prefix: Prefix,
    /// How messages call this store.
    pub(crate) place: String,
    pub(crate) meter: Arc<Meter>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) time: TimeSource,
    /// It is reached by a loopback address.
    pub(crate) is_on_loopback: bool,
    /// The folder of a local directory, and what says there that this process is alive.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) alive: Mutex<Option<Alive>>,
    pub(crate) stamps: Mutex<Stamps>,
    pub(crate) note_spread_in_store: NoteSpread,
    /// Whether the clock was found wrong when it was last looked at: said once.
    pub(crate) said_wrong: AtomicBool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) generator: Arc<dyn Generator>,
    pub(crate) request_timeout: Duration,
    pub(crate) bulk_timeout: Duration,
    /// Listings of users, between two of their pages.
    pub(crate) walks: Walks,
}

impl fmt::Debug for Backend {
    // Without its handles, whose own Debug runs over pages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("place", &self.place).field("lister", &self.lister).finish_non_exhaustive()
    }
}

impl Backend {
    pub(crate) fn requests(&self) -> Requests {
        self.meter.requests()
    }

    /// One conditional write, sent once. Only [`super::cas`] and the probe may interpret its failure.
    pub(crate) async fn put(
        &self,
        name: &Name,
        body: Bytes,
        mode: PutMode,
        limit: Duration,
    ) -> Result<Version, Refusal> {
        let updates = matches!(mode, PutMode::Update(_));
        let path = self.prefix.path(name);
        // The handle itself: an `Arc` of one is a store too, and costs another allocation.
        let put = self.coordination.as_ref().put_opts(&path, PutPayload::from_bytes(body), PutOptions::from(mode));
        let result = self.told("write", name, self.within(limit, put)).await.map_err(|error| {
            // Some stores say "not found" to an update of a missing object; on a create it is the bucket.
            let removed = updates && is_missing(&error) && !is_bucket_missing(&error);
            let conflict = is_conflict(&error) || removed;
            let error = if removed {
                Error::unavailable(format!("{name} was removed from {} meanwhile", self.place)).with_source(error)
            } else {
                self.explain(error, "writing", name)
            };
            Refusal { conflict, error }
        })?;
        if result.e_tag.is_none() && result.version.is_none() {
            let error = Error::unknown(format!("{} answered the write of {name} without a version", self.place));
            return Err(error.into());
        }
        Ok(Version::new(result.e_tag, result.version))
    }

    /// An unconditional write of a hint. Anything but Ok means that it may not be there.
    pub(crate) async fn put_hint(&self, name: &Name, body: Bytes) -> Result<()> {
        let path = self.prefix.path(name);
        let put = self.coordination.as_ref().put_opts(&path, PutPayload::from_bytes(body), PutOptions::default());
        let put = self.told("write", name, self.within(self.request_timeout, put));
        put.await.map_err(|error| self.explain(error, "writing", name))?;
        Ok(())
    }

    /// Files an index entry, and counts it: the sweeper earns its work by it. Anything but Ok means that it may not be there.
    pub(crate) async fn file(&self, name: &Name, body: Bytes) -> Result<()> {
        self.counters.entries_filed(1);
        self.put_hint(name, body).await
    }

    /// Writes an object under a name that no other process has: one that is there is our own, whose answer was lost.
    pub(crate) async fn put_fresh(&self, name: &Name, body: Bytes, limit: Duration) -> Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.put(name, body.clone(), PutMode::Create, limit).await {
                Ok(_) => return Ok(()),
                Err(refusal) if refusal.conflict && tries > 1 => return Ok(()),
                Err(refusal) if refusal.error.is_retryable() && tries < READ_TRIES => self.pause(tries - 1).await,
                Err(refusal) => return Err(refusal.error),
            }
        }
    }

    /// Reads an object; tried again a few times when the failure looks like a passing one.
    pub(crate) async fn get(&self, name: &Name) -> Result<Option<Fetched>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.get_once(name, &self.coordination).await {
                Err(error) if error.is_retryable() && tries < READ_TRIES => self.pause(tries - 1).await,
                done => return done,
            }
        }
    }

    /// One read on a given handle.
    pub(crate) async fn get_once(&self, name: &Name, handle: &Arc<dyn ObjectStore>) -> Result<Option<Fetched>> {
        self.get_up_to(name, handle, LARGEST_BODY).await
    }

    /// One read for a repair, of what may be larger than anything of ours.
    pub(crate) async fn get_oversized(&self, name: &Name, handle: &Arc<dyn ObjectStore>) -> Result<Option<Fetched>> {
        self.get_up_to(name, handle, LARGEST_MOVED).await
    }

    pub(super) async fn get_up_to(
        &self,
        name: &Name,
        handle: &Arc<dyn ObjectStore>,
        most: u64,
    ) -> Result<Option<Fetched>> {
        let path = self.prefix.path(name);
        let read = async {
            let found = handle.as_ref().get_opts(&path, GetOptions::default()).await?;
            let meta = found.meta.clone();
            let body = if meta.size > most { None } else { Some(found.bytes().await?) };
            Ok((meta, body))
        };
        match self.told("read", name, self.within(self.request_timeout, read)).await {
            Ok((meta, Some(body))) => Ok(Some(Fetched {
                body,
                version: Version::new(meta.e_tag, meta.version),
                modified: Timestamp::from(meta.last_modified),
            })),
            Ok((meta, None)) => Err(Error::corrupt(format!(
                "{name} in {} has {} bytes, which no object of ours has: look at it, and move it away",
                self.place, meta.size
            ))),
            // A missing bucket is not a missing object: the first is a mistake that must not look like a free key.
            Err(error) if is_missing(&error) && !is_bucket_missing(&error) => Ok(None),
            Err(error) => Err(self.explain(error, "reading", name)),
        }
    }

    /// Deletes objects that can no longer be written, in as few requests as the store allows. One that is not there is
    /// as good as deleted.
    pub(crate) async fn delete(&self, names: &[Name]) -> Deleted {
        let paths: Vec<Path> = names.iter().map(|name| self.prefix.path(name)).collect();
        let count = paths.len();
        let deleting =
            async { Ok(self.bulk.delete_stream(stream::iter(paths).map(Ok).boxed()).collect::<Vec<_>>().await) };
        let answers = match self.told("delete", &names[0], self.within(self.bulk_timeout, deleting)).await {
            Ok(answers) => answers,
            Err(error) => {
                let error = self.explain(error, "deleting", &names[0]);
                return Deleted { gone: BTreeSet::new(), error: Some(error) };
            }
        };
        // One answer for each name comes in the names' order. A failed chunk has one answer for all its names: then
        // only what was confirmed by its own path counts.
        let one_each = answers.len() == count;
        let mut deleted = Deleted { gone: BTreeSet::new(), error: None };
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(path) => deleted.gone.extend(self.prefix.strip(path.as_ref())),
                Err(error) if is_missing(&error) && !is_bucket_missing(&error) && one_each => {
                    deleted.gone.insert(names[at].clone());
                }
                Err(error) => {
                    let name = if one_each { &names[at] } else { &names[0] };
                    deleted.error.get_or_insert_with(|| self.explain(error, "deleting", name));
                }
            }
        }
        deleted
    }

    /// The time by the store's clock, if it is known: it is not earlier.
    pub(crate) fn store_time(&self) -> Option<Timestamp> {
        self.store_interval().map(|time| time.lower)
    }

    /// Both clocks, as they are now.
    pub(crate) fn clocks(&self) -> Clocks {
        let ours = matches!(self.time, TimeSource::Clock | TimeSource::Host);
        let grain = if ours { Duration::ZERO } else { Duration::from_secs(1) };
        Clocks { wall: self.clock.wall(), store: self.store_time(), grain }
    }

    /// Fails while this machine's clock is certainly further from the store's than clocks may be: it must not be able to
    /// take what others hold, nor erase what was written once. Asks the store before it refuses: what is known of its time may come
    /// from before the machine was suspended.
    pub(crate) async fn trust_clock(self: &Arc<Self>, max_clock_skew: Duration) -> Result<()> {
        if self.store_time().is_none() || self.check_clock(max_clock_skew, self.clock.wall()).is_err() {
            self.ask_time().await?;
        }
        if self.store_time().is_none() {
            return Err(Error::unavailable(format!(
                "{} does not say what time it is, or took too long to: without that nothing is granted, decided or \
                 deleted; see that whatever stands in between leaves the Date of its answers alone",
                self.place
            )));
        }
        self.look_at_clock(max_clock_skew);
        let checked = self.check_clock(max_clock_skew, self.clock.wall());
        if checked.is_err() {
            self.counters.clock_refusals(1);
        }
        checked
    }

    /// Says once when this machine's clock is found to be wrong, and once when it is right again.
    pub(crate) fn look_at_clock(&self, max_clock_skew: Duration) {
        let (wall, store) = (self.clock.wall(), self.store_interval());
        let wrong = store.is_some_and(|store| timing::is_wrong(store.distance(wall), max_clock_skew));
        if wrong != self.said_wrong.swap(wrong, Relaxed) {
            if let Some(store) = store.filter(|_| wrong) {
                let allowed = humantime::format_duration(max_clock_skew);
                tracing::warn!(store = %self.place, ours = %wall, theirs = %store.lower, %allowed, "this machine's clock is wrong: set it, for instance by NTP");
            } else {
                tracing::warn!(store = %self.place, "this machine's clock is right again");
            }
        }
    }

    /// Whether one reading of the wall clock may be gone by, by what is known of the store's.
    pub(crate) fn check_clock(&self, max_clock_skew: Duration, wall: Timestamp) -> Result<()> {
        // In a local directory there is no other clock, and one that was set since it was read is no reason to refuse.
        if self.time == TimeSource::Host {
            return Ok(());
        }
        match self.store_interval() {
            Some(store) if timing::is_far_off(store.distance(wall), max_clock_skew) => Err(Error::new(
                ErrorKind::Clock,
                format!(
                    "this machine's clock says {wall}, that of {} says {}: they may differ by {} at most; nothing is \
                     granted, taken over, decided or deleted until the clock is set right",
                    self.place,
                    store.lower,
                    humantime::format_duration(max_clock_skew)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// In a local directory: says that this process is alive, from before its first record on.
    pub(crate) fn announce(&self, process: ProcessId) -> Result<()> {
        let Some(folder) = self.folder.as_deref() else { return Ok(()) };
        let mut alive = self.alive.locked();
        if alive.is_none() {
            // Without it others would take it for one that has ended.
            let name = Name::new(layout::PROCESSES);
            let announced = alive::announce(folder, process);
            *alive = Some(announced.map_err(|error| self.explain(error, "locking", &name))?);
        }
        Ok(())
    }

    /// In a local directory: whether the process that wrote a record is known to have ended. Where that cannot be found out
    /// it is taken to be alive, and its record ends by being watched.
    pub(crate) async fn has_ended(&self, process: ProcessId) -> bool {
        let Some(folder) = self.folder.clone() else { return false };
        let asked = tokio::task::spawn_blocking(move || alive::has_ended(&folder, process)).await;
        match asked {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => {
                tracing::warn!(%error, store = %self.place, "whether the holder's process is alive cannot be found out");
                false
            }
            // The runtime is going down.
            Err(_) => false,
        }
    }

    /// Whether no answer says what time it is.
    pub(crate) fn must_be_asked_for_the_time(&self) -> bool {
        self.time == TimeSource::Object
    }

    /// Waits before a retry: not at all before the first, then longer and longer, with jitter.
    pub(crate) async fn pause(&self, retries: u32) {
        let Some(doublings) = retries.checked_sub(1) else { return };
        let longest = Duration::from_millis(50 << doublings.min(6));
        self.clock.sleep(self.generator.between(longest / 2, longest)).await;
    }

    /// `object_store` has no deadline that follows our clock, and its own is for one attempt.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        clock::within(&*self.clock, limit, request).await.unwrap_or_else(|| {
            Err(StoreError::Generic { store: "leasehold", source: format!("no answer within {limit:?}").into() })
        })
    }

    /// Logs each request at the level of debugging (`-vv`): what, how long it took, and what came of it.
    async fn told<T>(
        &self,
        what: &'static str,
        name: &Name,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return request.await;
        }
        let began = self.clock.monotonic();
        let answer = request.await;
        let ms = self.clock.monotonic().since(began).as_millis();
        match &answer {
            Ok(_) => tracing::debug!(%name, ms, "{what}"),
            Err(error) if is_missing(error) => tracing::debug!(%name, ms, "{what}: it is not there"),
            Err(error) if is_conflict(error) => tracing::debug!(%name, ms, "{what}: refused, as another came first"),
            Err(_) => tracing::debug!(%name, ms, "{what}: failed"),
        }
        answer
    }

    pub(crate) fn explain(&self, error: StoreError, doing: &str, name: &Name) -> Error {
        explain(error, format!("{doing} {name}").trim_end(), &self.place, self.store_time().is_some())
    }
}
