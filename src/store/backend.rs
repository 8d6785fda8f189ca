//! The requests that the rest of the library makes, each with a deadline of its own.

use super::{
    Agreement, Name,
    answer::{explain, is_bucket_missing, is_conflict, is_missing},
    clocks::Clocks,
    meter::{Meter, Requests},
    name::Prefix,
    page::Lister,
};
use crate::{
    Clock, Error, ErrorKind, Generator, Result,
    clock::{self, Timestamp},
    generator::GeneratorExt,
    stats::Counters,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::{
    Error as StoreError, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion, path::Path,
};
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

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
    fn new(e_tag: Option<String>, generation: Option<String>) -> Self {
        Self { e_tag: e_tag.map(Into::into), generation: generation.map(Into::into) }
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
    #[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only clouds answer over HTTP"))]
    Answers,
    /// Our clock: memory and local disk have no other.
    Clock,
    /// The `last_modified` of an object that is written for the purpose.
    Object,
}

/// An opened store, as the rooms above see it.
pub(crate) struct Backend {
    /// For reads and writes that somebody waits for: no retries below us, a short deadline.
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
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) generator: Arc<dyn Generator>,
    pub(crate) request_timeout: Duration,
    pub(crate) bulk_timeout: Duration,
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
        let result = self.within(limit, put).await.map_err(|error| {
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
        self.within(self.request_timeout, put).await.map_err(|error| self.explain(error, "writing", name))?;
        Ok(())
    }

    /// Writes an object under a name that nobody else has: one that is there is our own, whose answer was lost.
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
    pub(crate) async fn get_whatever(&self, name: &Name, handle: &Arc<dyn ObjectStore>) -> Result<Option<Fetched>> {
        self.get_up_to(name, handle, LARGEST_MOVED).await
    }

    async fn get_up_to(&self, name: &Name, handle: &Arc<dyn ObjectStore>, most: u64) -> Result<Option<Fetched>> {
        let path = self.prefix.path(name);
        let read = async {
            let found = handle.as_ref().get_opts(&path, GetOptions::default()).await?;
            let meta = found.meta.clone();
            let body = if meta.size > most { None } else { Some(found.bytes().await?) };
            Ok((meta, body))
        };
        match self.within(self.request_timeout, read).await {
            Ok((meta, Some(body))) => Ok(Some(Fetched {
                body,
                version: Version::new(meta.e_tag, meta.version),
                modified: Timestamp::from(meta.last_modified),
            })),
            Ok((meta, None)) => Err(Error::corrupt(format!(
                "{name} in {} has {} bytes, which no object of ours has: look at it, and move it away",
                self.place, meta.size
            ))),
            // A missing bucket is not a missing object: the first is a mistake that must not look like a free lease.
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
        let answers = match self.within(self.bulk_timeout, deleting).await {
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

    /// The time by the store's clock, if it is known.
    pub(crate) fn store_time(&self) -> Option<Timestamp> {
        match self.time {
            TimeSource::Clock => Some(self.clock.wall()),
            TimeSource::Answers | TimeSource::Object => self.meter.store_time(),
        }
    }

    /// Both clocks, as they are now.
    pub(crate) fn clocks(&self) -> Clocks {
        let grain = if self.time == TimeSource::Clock { Duration::ZERO } else { Duration::from_secs(1) };
        Clocks { wall: self.clock.wall(), store: self.store_time(), grain }
    }

    /// Fails while this machine's clock and the store's differ by more than clocks may: one machine whose clock is a day
    /// ahead must not be able to steal every lease and erase every decision. Asks the store before it refuses: what is
    /// known of its time may come from before the machine was suspended.
    pub(crate) async fn trust_clock(&self, agreement: &Agreement) -> Result<()> {
        if self.store_time().is_none() || self.believe(agreement, self.clock.wall()).is_err() {
            self.ask_time().await?;
        }
        if self.store_time().is_none() {
            return Err(Error::unavailable(format!(
                "{} does not say what time it is, or took too long to: without that nothing is granted, decided or \
                 deleted; see that whatever stands in between leaves the Date of its answers alone",
                self.place
            )));
        }
        let believed = self.believe(agreement, self.clock.wall());
        if believed.is_err() {
            self.counters.clock_refusals(1);
        }
        believed
    }

    /// The same for one reading of the wall clock, by what is known of the store's.
    pub(crate) fn believe(&self, agreement: &Agreement, wall: Timestamp) -> Result<()> {
        let allowed = agreement.longest_difference();
        match self.store_time() {
            Some(store) if store.distance(wall) > allowed => Err(Error::new(
                ErrorKind::Clock,
                format!(
                    "this machine's clock says {wall}, that of {} says {store}: they may differ by {allowed:?} at most; \
                     nothing is granted, decided or deleted until the clock is mended",
                    self.place
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whether this machine's clock is so far behind the store's that others take what it writes now for long ended.
    ///
    /// A machine that stood still with both of its clocks (a virtual one that was paused) notices nothing by itself; the
    /// date of an answer tells it.
    pub(crate) fn is_behind(&self, agreement: &Agreement, wall: Timestamp) -> bool {
        self.store_time().is_some_and(|store| store > wall.plus(agreement.longest_difference()))
    }

    /// Whether no answer says what time it is.
    pub(crate) fn must_be_asked_for_the_time(&self) -> bool {
        self.time == TimeSource::Object
    }

    /// Asks the store for its time now, whatever it has told before.
    pub(crate) async fn ask_time(&self) -> Result<()> {
        match self.time {
            TimeSource::Clock => Ok(()),
            // Any answer has a date.
            TimeSource::Answers => self.get(&Name::new(".leasehold/store.json")).await.map(drop),
            TimeSource::Object => self.refresh_time().await,
        }
    }

    /// Asks a store that tells its time in no other way, by writing a small object and reading when that was.
    pub(crate) async fn refresh_time(&self) -> Result<()> {
        if self.time != TimeSource::Object {
            return Ok(());
        }
        let name = Name::new(".leasehold/time");
        let asked = self.meter.now();
        self.put_hint(&name, Bytes::from_static(b"{}")).await?;
        let written = self.get(&name).await?.ok_or_else(|| {
            Error::new(ErrorKind::Regressed, format!("{name} is not in {} right after it was written", self.place))
        })?;
        if !self.meter.note_date(written.modified, asked) {
            return Err(Error::unavailable(format!("{} took too long to tell its time: ask again", self.place)));
        }
        Ok(())
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

    pub(crate) fn explain(&self, error: StoreError, doing: &str, name: &Name) -> Error {
        explain(error, format!("{doing} {name}").trim_end(), &self.place, self.store_time().is_some())
    }
}
