//! The network between a machine and the store. A request under way is not stopped by the death of who sent it.

use crate::{
    auditor::Auditor,
    world::{STORE, World},
};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use leasehold::{Clock, clock::Timestamp};
use leasehold_testkit::{Dates, FaultStore};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};
use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::oneshot};

/// One machine's line to the store.
#[derive(Debug, Clone)]
pub struct Wire {
    pub machine: usize,
    pub world: World,
    pub store: FaultStore,
    /// Where the store runs.
    pub runtime: Handle,
    pub auditor: Auditor,
    pub requests: Arc<AtomicU64>,
    /// The longest that a request takes each way, in microseconds.
    pub latency: u64,
    /// Hears what time the answers tell, if they tell any.
    pub dates: Option<Dates>,
    /// Something on the machine itself puts its own clock's time in the place of the store's.
    pub proxied: bool,
}

impl Wire {
    /// A latency that follows from how many requests there were: no generator is needed, and none is disturbed.
    fn latency(&self, number: u64) -> Duration {
        let mixed = (number ^ self.machine as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        Duration::from_micros(200 + mixed % self.latency.max(1))
    }

    async fn send<T: Send + 'static>(
        &self,
        what: String,
        run: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        self.world.note(format_args!("{}→ #{number} {what}", self.machine));
        let (there, back) = (self.latency(2 * number), self.latency(2 * number + 1));
        let asked = self.dates.as_ref().and_then(Dates::asked);
        let (answer, answered) = oneshot::channel();
        let (store, dated) = (self.store.clone(), self.dates.is_some());
        let (world, machine, clock) = (self.world.clone(), self.machine, self.world.clock(STORE));
        world.touch(STORE);
        self.runtime.spawn(async move {
            // What a machine had in its hands as it fell asleep leaves when it wakes.
            while let Some(until) = world.awake_at(machine) {
                clock.sleep(Duration::from_micros((until - world.now()).max(1).unsigned_abs())).await;
            }
            clock.sleep(there).await;
            let done = run.await;
            let date = dated.then(|| store.date());
            clock.sleep(back).await;
            match &done {
                Ok(_) => world.note(format_args!("{machine}← #{number} ok")),
                Err(error) => world.note(format_args!("{machine}← #{number} {}", short(error))),
            }
            world.touch(machine);
            let _ = answer.send((done, date));
        });
        // The store's runtime ends with the simulation only.
        let ended = || Err(Error::NotImplemented { operation: what_ended(), implementer: "Wire".into() });
        let (done, date) = answered.await.unwrap_or_else(|_| (ended(), None));
        if let (Some(dates), Some(date), Some(asked)) = (&self.dates, date, asked)
            && done.as_ref().err().is_none_or(is_its_own)
        {
            dates.answered(if self.proxied { self.own_date() } else { date }, asked);
        }
        done
    }

    /// What a proxy on the machine says that it is: whole seconds.
    fn own_date(&self) -> Timestamp {
        let wall = self.world.watching(|| self.world.clock(self.machine).wall());
        Timestamp::from_millis(wall.as_millis().div_euclid(1000) * 1000)
    }
}

/// Whether an answer is the store's own, and not that of something in between.
fn is_its_own(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. } | Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. }
    )
}

fn what_ended() -> String {
    "a request after the end of the simulation".into()
}

fn short(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "not found",
        Error::AlreadyExists { .. } => "already exists",
        Error::Precondition { .. } => "precondition",
        Error::NotModified { .. } => "not modified",
        _ => "failed",
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

#[async_trait]
impl ObjectStore for Wire {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (store, path) = (self.store.clone(), location.clone());
        let how = match &options.mode {
            PutMode::Create => "create",
            PutMode::Update(_) => "update",
            PutMode::Overwrite => "put",
        };
        let body = bytes::Bytes::from(payload);
        self.auditor.sent(self.machine, location.as_ref(), &body);
        self.world.sends(self.machine, location.as_ref());
        let what = format!("{how} {location}");
        self.send(what, async move { store.put_opts(&path, body.into(), options).await }).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".into(), implementer: "Wire".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (store, path) = (self.store.clone(), location.clone());
        let (world, machine) = (self.world.clone(), self.machine);
        let what = format!("get {location}");
        let found = self.send(what, async move {
            let found = store.get_opts(&path, options).await;
            world.answers(machine, path.as_ref());
            let found = found?;
            let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
            Ok((meta, range, attributes, found.bytes().await?))
        });
        let (meta, range, attributes, body) = found.await?;
        let payload = GetResultPayload::Stream(stream::once(async move { Ok(body) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.store.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let wire = self.clone();
        stream::once(async move {
            let paths: Vec<Path> = locations.try_collect().await?;
            let (store, what) = (wire.store.clone(), format!("delete {} objects, {:?}", paths.len(), paths.first()));
            let deleting = async move {
                // The answers to single objects are answers as well, so the request itself succeeds.
                Ok(store.delete_stream(stream::iter(paths).map(Ok).boxed()).collect::<Vec<_>>().await)
            };
            Ok::<_, Error>(stream::iter(wire.send(what, deleting).await?))
        })
        .try_flatten()
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (store, prefix) = (self.store.clone(), prefix.cloned());
        let what = format!("list folders of {prefix:?}");
        self.send(what, async move { store.list_with_delimiter(prefix.as_ref()).await }).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".into(), implementer: "Wire".into() })
    }
}

impl Wire {
    fn listing(&self, prefix: Option<&Path>, offset: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (wire, prefix, offset) = (self.clone(), prefix.cloned(), offset.cloned());
        stream::once(async move {
            let (store, what) = (wire.store.clone(), format!("list {prefix:?} after {offset:?}"));
            let listing = async move {
                let listed = match &offset {
                    Some(offset) => store.list_with_offset(prefix.as_ref(), offset),
                    None => store.list(prefix.as_ref()),
                };
                listed.try_collect::<Vec<_>>().await
            };
            Ok::<_, Error>(stream::iter(wire.send(what, listing).await?.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }
}
