//! An object store in memory that fails as it is told to.

use super::{
    fault::{Answer, Fault, Faults, Op},
    fronts::Fronts,
    generator::bytes,
    objects::{Object, Objects, Observer, Put, STORE},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use leasehold::{Clock, Generator, clock::Timestamp};
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result, path::Path,
};
use std::{
    collections::BTreeSet,
    fmt,
    future::pending,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// Objects in one page of a listing and in one bulk delete, as on S3. Each page is a request of its own.
const PAGE: usize = 1000;

/// An object store in memory for tests and simulations: right by itself, and wrong in the ways that its
/// [`faults`](Self::faults) say. Clones share their objects.
///
/// It behaves as S3 does through `object_store`. ETags are hashes of bodies, so they repeat when a body does; listings
/// are in the order of names; deleting what is not there succeeds. The same seeds and the same moves of the clock give
/// the same history: it has no clock, no randomness and no thread of its own.
///
/// ```
/// use leasehold::clock::Timestamp;
/// use leasehold_testkit::{Answer, Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
/// use object_store::{ObjectStoreExt, path::Path};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let clock = TestClock::at(Timestamp::from_millis(0));
/// let store = FaultStore::new(Arc::new(clock), Arc::new(SeededGenerator::new(1)));
/// store.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Status(500))));
/// assert!(store.put(&Path::from("a"), "1".into()).await.is_err());
/// assert_eq!(store.object("a").unwrap().0, "1");
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct FaultStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    generator: Arc<dyn Generator>,
    faults: Faults,
    offset_millis: AtomicI64,
    fronts: Mutex<Fronts>,
    objects: Mutex<Objects>,
}

impl FaultStore {
    /// An empty store with no faults. Its time is that of `clock`; `generator` picks what a fault hits, such as the
    /// bit that flips.
    pub fn new(clock: Arc<dyn Clock>, generator: Arc<dyn Generator>) -> Self {
        Self(Arc::new(Shared {
            clock,
            generator,
            faults: Faults::none(),
            offset_millis: AtomicI64::new(0),
            fronts: Mutex::default(),
            objects: Mutex::default(),
        }))
    }

    /// What goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// The store's own time, which its objects carry as `last_modified`.
    pub fn time(&self) -> Timestamp {
        let offset = self.0.offset_millis.load(Ordering::SeqCst).saturating_mul(1000);
        Timestamp::from_micros(self.0.clock.wall().as_micros().saturating_add(offset))
    }

    /// From now on the store's time is so far ahead of the clock, or behind it.
    pub fn set_offset_millis(&self, millis: i64) {
        self.0.offset_millis.store(millis, Ordering::SeqCst);
    }

    /// Simulates several front-end machines, each so many milliseconds ahead of the store's time: `last_modified` and the date
    /// of an answer come from any of them. An empty list means one machine with the right time.
    pub fn set_front_ends(&self, ahead: Vec<i64>) {
        self.fronts().ahead = ahead;
    }

    /// From now on objects are stamped with whole seconds, as those of most clouds are.
    pub fn stamp_whole_seconds(&self) {
        self.fronts().whole_seconds = true;
    }

    /// What the next answer says in its `Date`: whole seconds.
    pub fn date(&self) -> Timestamp {
        let time = self.time();
        self.fronts().date(time)
    }

    fn fronts(&self) -> MutexGuard<'_, Fronts> {
        self.0.fronts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `observer` after every change from now on. It runs while the store is locked and must not use it.
    pub fn set_observer(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    /// What an object holds and when it was written, with no request and no fault.
    pub fn object(&self, name: &str) -> Option<(Bytes, Timestamp)> {
        self.lock().get(&Path::from(name)).map(|object| (object.body.clone(), object.at))
    }

    /// The names of all objects, in order.
    pub fn names(&self) -> Vec<String> {
        self.lock().paths().map(Path::to_string).collect()
    }

    /// Writes an object, with no fault.
    pub fn put_object(&self, name: &str, body: impl Into<Bytes>) {
        let put = Put {
            location: Path::from(name),
            body: body.into(),
            mode: PutMode::Overwrite,
            attributes: Default::default(),
        };
        // A write with no condition is never refused.
        let _ = self.apply(put);
    }

    /// Deletes an object, with no fault; whether it was there.
    pub fn delete_object(&self, name: &str) -> bool {
        self.erase(&Path::from(name))
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The time is read under the lock, so that it rises with the order of the changes.
    fn apply(&self, put: Put) -> Result<PutResult> {
        let mut objects = self.lock();
        let time = self.time();
        let stamp = self.fronts().stamp(time);
        objects.put(put, stamp)
    }

    fn erase(&self, location: &Path) -> bool {
        let mut objects = self.lock();
        objects.delete(location, self.time())
    }

    /// Applies `change` after this time, whether or not the client still waits.
    fn later(&self, after: Duration, change: impl FnOnce(&Self) + Send + 'static) -> Result<()> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| Error::Generic { store: STORE, source: Box::new(error) })?;
        // The time counts from here, not from when the task is first run.
        let due = self.0.clock.monotonic().plus(after);
        let store = self.clone();
        runtime.spawn(async move {
            let clock = &store.0.clock;
            clock.sleep(due.since(clock.monotonic())).await;
            change(&store);
        });
        Ok(())
    }

    async fn request_put(&self, put: Put) -> Result<PutResult> {
        let (name, mode) = (put.location.clone(), put.mode.clone());
        let refused = |answer| refusal(answer, name.as_ref(), Some(&mode));
        match self.0.faults.next(Op::Put, name.as_ref()) {
            Some(Fault::Refuse(answer)) => Err(refused(answer).await),
            Some(Fault::Truncate) => {
                let _ = self.apply(put);
                Err(refused(Answer::Drop).await)
            }
            Some(Fault::Lose(answer)) => {
                // The client does not learn whether the condition held.
                let _ = self.apply(put);
                Err(refused(answer).await)
            }
            Some(Fault::Late(after, answer)) => {
                self.later(after, |store| drop(store.apply(put)))?;
                Err(refused(answer).await)
            }
            Some(Fault::Duplicate) => {
                let _ = self.apply(put.clone());
                self.apply(put)
            }
            Some(Fault::Delay(delay)) => {
                self.0.clock.sleep(delay).await;
                self.apply(put)
            }
            Some(Fault::Slow(delay)) => {
                let applied = self.apply(put);
                self.0.clock.sleep(delay).await;
                applied
            }
            Some(Fault::Shuffle | Fault::Gap | Fault::Stale | Fault::Corrupt) | None => self.apply(put),
        }
    }

    /// One request, of one object or in bulk: it fails as a whole.
    async fn request_delete(self, locations: Vec<Path>) -> Result<Vec<Path>> {
        let erase = |store: &Self, locations: &[Path]| {
            for location in locations {
                store.erase(location);
            }
        };
        let names = locations.iter().map(Path::as_ref).collect::<Vec<_>>().join("\n");
        match self.0.faults.next(Op::Delete, &names) {
            Some(Fault::Refuse(answer)) => return Err(refusal(answer, &names, None).await),
            Some(Fault::Truncate) => {
                erase(&self, &locations);
                return Err(refusal(Answer::Drop, &names, None).await);
            }
            Some(Fault::Lose(answer)) => {
                erase(&self, &locations);
                return Err(refusal(answer, &names, None).await);
            }
            Some(Fault::Late(after, answer)) => {
                self.later(after, move |store| erase(store, &locations))?;
                return Err(refusal(answer, &names, None).await);
            }
            Some(Fault::Duplicate) => erase(&self, &locations),
            Some(Fault::Delay(delay)) => self.0.clock.sleep(delay).await,
            Some(Fault::Slow(delay)) => {
                erase(&self, &locations);
                self.0.clock.sleep(delay).await;
                return Ok(locations);
            }
            Some(Fault::Shuffle | Fault::Gap | Fault::Stale | Fault::Corrupt) | None => {}
        }
        erase(&self, &locations);
        Ok(locations)
    }

    /// The object, and whether what is read of it arrives corrupt.
    async fn read(&self, location: &Path) -> Result<(Object, bool)> {
        let fault = self.0.faults.next(Op::Get, location.as_ref());
        match fault {
            Some(Fault::Refuse(answer) | Fault::Lose(answer) | Fault::Late(_, answer)) => {
                return Err(refusal(answer, location.as_ref(), None).await);
            }
            Some(Fault::Truncate) => return Err(refusal(Answer::Drop, location.as_ref(), None).await),
            Some(Fault::Delay(delay)) => self.0.clock.sleep(delay).await,
            _ => {}
        }
        let found = self.find(location);
        if let Some(Fault::Slow(delay)) = fault {
            self.0.clock.sleep(delay).await;
        }
        Ok((found?, fault == Some(Fault::Corrupt)))
    }

    fn find(&self, location: &Path) -> Result<Object> {
        let object = self.lock().get(location).cloned();
        object.ok_or_else(|| Error::NotFound { path: location.to_string(), source: "404 Not Found".into() })
    }

    /// One page: what of it arrives, in which order, and after which name the next page begins.
    async fn list_page(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        limit: usize,
    ) -> Result<(Vec<ObjectMeta>, Option<Path>)> {
        let fault = self.0.faults.next(Op::List, prefix.as_ref());
        match fault {
            Some(Fault::Refuse(answer) | Fault::Lose(answer) | Fault::Late(_, answer)) => {
                return Err(refusal(answer, prefix.as_ref(), None).await);
            }
            Some(Fault::Truncate) => return Err(refusal(Answer::Drop, prefix.as_ref(), None).await),
            Some(Fault::Delay(delay)) => self.0.clock.sleep(delay).await,
            _ => {}
        }
        let mut page = {
            let objects = self.lock();
            let missed = match (fault, objects.recent()) {
                (Some(Fault::Stale), recent @ 1..) => 1 + self.chance().pick(recent),
                _ => 0,
            };
            objects.list(prefix, after, limit, missed)
        };
        let next = page.last().filter(|_| page.len() == limit).map(|last| last.location.clone());
        match fault {
            Some(Fault::Slow(delay)) => self.0.clock.sleep(delay).await,
            Some(Fault::Shuffle) => self.chance().shuffle(&mut page),
            Some(Fault::Gap) => self.chance().tear(&mut page),
            _ => {}
        }
        Ok((page, next))
    }

    fn pages(&self, prefix: Option<&Path>, after: Option<Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        stream::try_unfold((self.clone(), prefix, Some(after)), |(store, prefix, after)| async move {
            let Some(after) = after else { return Ok::<_, Error>(None) };
            let (page, next) = store.list_page(&prefix, after.as_ref(), PAGE).await?;
            Ok(Some((page, (store, prefix, next.map(Some)))))
        })
        .map_ok(|page| stream::iter(page.into_iter().map(Ok)))
        .try_flatten()
        .boxed()
    }

    fn chance(&self) -> Chance<'_> {
        Chance(&*self.0.generator)
    }
}

/// What goes wrong by chance.
struct Chance<'a>(&'a dyn Generator);

impl Chance<'_> {
    fn pick(&self, below: usize) -> usize {
        // Fits: it is below a usize.
        (u64::from_le_bytes(bytes(self.0)) % below.max(1) as u64) as usize
    }

    fn shuffle(&self, page: &mut [ObjectMeta]) {
        for last in (1..page.len()).rev() {
            page.swap(last, self.pick(last + 1));
        }
        // Chance may put them in order, and then it would be no fault.
        if page.is_sorted_by(|a, b| a.location <= b.location) {
            page.reverse();
        }
    }

    /// Removes about half of them, and at least one.
    fn tear(&self, page: &mut Vec<ObjectMeta>) {
        if page.is_empty() {
            return;
        }
        page.remove(self.pick(page.len()));
        page.retain(|_| self.pick(2) == 0);
    }

    fn flip(&self, body: Bytes) -> Bytes {
        let mut bytes = body.to_vec();
        let bit = self.pick(bytes.len() * 8);
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        bytes.into()
    }
}

/// What the client makes of a request that went wrong: the errors of `object_store` for S3.
async fn refusal(answer: Answer, name: &str, mode: Option<&PutMode>) -> Error {
    let path = name.to_owned();
    let status = match answer {
        Answer::Hang => return pending().await,
        Answer::Drop => return Error::Generic { store: STORE, source: "connection closed before an answer".into() },
        Answer::Status(status) => status,
    };
    let source = format!("HTTP status {status}").into();
    match (status, mode) {
        (304 | 412, Some(PutMode::Create)) | (409, _) => Error::AlreadyExists { path, source },
        (404, Some(PutMode::Update(_))) | (412, _) => Error::Precondition { path, source },
        (304, _) => Error::NotModified { path, source },
        (401, _) => Error::Unauthenticated { path, source },
        (403, _) => Error::PermissionDenied { path, source },
        (404, _) => Error::NotFound { path, source },
        _ => Error::Generic { store: STORE, source },
    }
}

fn slice(body: &Bytes, range: &GetRange) -> Result<(Bytes, Range<u64>)> {
    let range =
        range.as_range(body.len() as u64).map_err(|error| Error::Generic { store: STORE, source: Box::new(error) })?;
    // Fits: it is within a body.
    Ok((body.slice(range.start as usize..range.end as usize), range))
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let PutOptions { mode, attributes, .. } = opts;
        self.request_put(Put { location: location.clone(), body: payload.into(), mode, attributes }).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "`put_multipart_opts`".into(), implementer: STORE.into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (object, corrupt) = self.read(location).await?;
        let meta = object.meta(location);
        options.check_preconditions(&meta)?;
        let (body, range) = match &options.range {
            Some(range) => slice(&object.body, range)?,
            None => (object.body, 0..meta.size),
        };
        let body = match (options.head, corrupt) {
            (true, _) => Bytes::new(),
            (false, true) => self.chance().flip(body),
            (false, false) => body,
        };
        let payload = GetResultPayload::Stream(stream::once(async move { Ok(body) }).boxed());
        Ok(GetResult { payload, meta, range, attributes: object.attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (object, corrupt) = self.read(location).await?;
        let body = if corrupt { self.chance().flip(object.body) } else { object.body };
        ranges.iter().map(|range| Ok(slice(&body, &GetRange::Bounded(range.clone()))?.0)).collect()
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .try_chunks(PAGE)
            .map_err(|error| error.1)
            .and_then(move |chunk| store.clone().request_delete(chunk))
            .map_ok(|deleted| stream::iter(deleted.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(prefix, Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let (listed, _) = self.list_page(&prefix, None, usize::MAX).await?;
        let (mut objects, mut common_prefixes, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for meta in listed {
            let mut parts = meta.location.prefix_match(&prefix).into_iter().flatten();
            let first = parts.next().map(|part| prefix.clone().join(part));
            match (first, parts.next()) {
                (Some(folder), Some(_)) => {
                    if seen.insert(folder.clone()) {
                        common_prefixes.push(folder);
                    }
                }
                _ => {
                    drop(parts);
                    objects.push(meta);
                }
            }
        }
        Ok(ListResult { objects, common_prefixes, extensions: Default::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let Object { body, attributes, .. } = self.find(from)?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.request_put(Put { location: to.clone(), body, mode, attributes }).await.map(drop)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let mode = match options.target_mode {
            RenameTargetMode::Overwrite => CopyMode::Overwrite,
            RenameTargetMode::Create => CopyMode::Create,
        };
        self.copy_opts(from, to, CopyOptions::new().with_mode(mode)).await?;
        self.clone().request_delete(vec![from.clone()]).await.map(drop)
    }
}
