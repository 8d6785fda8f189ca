//! Stores that break one promise for good, for tests of the probe.

use super::{fault::Flaw, objects::check};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result, path::Path,
};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How often a writer yields to others between its check and its write.
const YIELDS: usize = 8;

/// Another store, with a [`Flaw`].
#[derive(Debug)]
pub struct FlawedStore {
    inner: Arc<dyn ObjectStore>,
    flaw: Flaw,
    /// What the next read of an overwritten object will return.
    stale: Mutex<BTreeMap<Path, Before>>,
}

#[derive(Debug)]
struct Before {
    meta: ObjectMeta,
    attributes: Attributes,
    body: Bytes,
}

impl FlawedStore {
    /// `inner`, except for what `flaw` says.
    pub fn new(inner: Arc<dyn ObjectStore>, flaw: Flaw) -> Self {
        Self { inner, flaw, stale: Mutex::default() }
    }

    fn stale(&self) -> MutexGuard<'_, BTreeMap<Path, Before>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn put_blindly(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, PutOptions { mode: PutMode::Overwrite, ..opts }).await
    }

    async fn check_then_put(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let e_tag = match self.inner.head(location).await {
            Ok(meta) => meta.e_tag,
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        check(location, &opts.mode, e_tag.as_deref())?;
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        self.put_blindly(location, payload, opts).await
    }

    async fn put_or_create(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        match self.inner.put_opts(location, payload.clone(), opts.clone()).await {
            Err(Error::Precondition { .. } | Error::NotFound { .. }) if self.is_missing(location).await => {
                self.put_blindly(location, payload, opts).await
            }
            answer => answer,
        }
    }

    async fn is_missing(&self, location: &Path) -> bool {
        matches!(self.inner.head(location).await, Err(Error::NotFound { .. }))
    }

    async fn put_and_keep(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let before = match self.inner.get(location).await {
            Ok(found) => {
                let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
                Some(Before { meta, attributes, body: found.bytes().await? })
            }
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let put = self.inner.put_opts(location, payload, opts).await?;
        if let Some(before) = before {
            self.stale().insert(location.clone(), before);
        }
        Ok(put)
    }
}

impl Before {
    fn read(self, options: &GetOptions) -> Result<GetResult> {
        options.check_preconditions(&self.meta)?;
        let all = GetRange::Offset(0);
        let range = match options.range.as_ref().unwrap_or(&all).as_range(self.meta.size) {
            Ok(range) => range,
            Err(_) if options.range.is_none() => 0..0,
            Err(error) => return Err(Error::Generic { store: "FlawedStore", source: Box::new(error) }),
        };
        // Fits: it is within a body.
        let body = self.body.slice(range.start as usize..range.end as usize);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async move { Ok(body) }).boxed()),
            meta: self.meta,
            range,
            attributes: self.attributes,
            extensions: Default::default(),
        })
    }
}

impl fmt::Display for FlawedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlawedStore({:?}, {})", self.flaw, self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FlawedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        match (self.flaw, &opts.mode) {
            (Flaw::IgnoresPreconditions, _) => self.put_blindly(location, payload, opts).await,
            (Flaw::ChecksThenWrites, PutMode::Create | PutMode::Update(_)) => {
                self.check_then_put(location, payload, opts).await
            }
            (Flaw::UpdatesTheMissing, PutMode::Update(_)) => self.put_or_create(location, payload, opts).await,
            (Flaw::StaleReads, _) => self.put_and_keep(location, payload, opts).await,
            _ => self.inner.put_opts(location, payload, opts).await,
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let before = self.stale().remove(location);
        match before {
            Some(before) => before.read(&options),
            None => self.inner.get_opts(location, options).await,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultStore, SeededGenerator, TestClock};
    use futures_util::future::join_all;
    use leasehold::clock::Timestamp;

    const FLAWS: [Flaw; 4] =
        [Flaw::IgnoresPreconditions, Flaw::ChecksThenWrites, Flaw::UpdatesTheMissing, Flaw::StaleReads];

    fn flawed(flaw: Flaw) -> Arc<FlawedStore> {
        let clock = TestClock::at(Timestamp::from_millis(0));
        let inner = FaultStore::new(Arc::new(clock), Arc::new(SeededGenerator::new(1)));
        Arc::new(FlawedStore::new(Arc::new(inner), flaw))
    }

    async fn write(store: &FlawedStore, name: &str, body: String, mode: PutMode) -> Result<PutResult> {
        store.put_opts(&Path::from(name), body.into(), mode.into()).await
    }

    async fn read(store: &FlawedStore, name: &str) -> Bytes {
        store.get(&Path::from(name)).await.unwrap().bytes().await.unwrap()
    }

    // Bodies differ from race to race: writing the same one again would bring the base's tag back.
    async fn winners(store: &Arc<FlawedStore>, race: &'static str, mode: impl Fn() -> PutMode) -> usize {
        let racers = (0..8).map(|n| {
            let (store, mode) = (store.clone(), mode());
            tokio::spawn(async move { write(&store, "raced", format!("{race} {n}"), mode).await.is_ok() })
        });
        join_all(racers).await.into_iter().filter(|won| *won.as_ref().unwrap()).count()
    }

    /// What a store with each flaw gets wrong: create over an object, update on a stale tag, update of nothing, two
    /// winners of a race, a stale read.
    async fn wrongs(flaw: Flaw) -> [bool; 5] {
        let store = flawed(flaw);
        let one = write(&store, "a", "1".into(), PutMode::Create).await.unwrap();
        let created_over = write(&store, "a", "2".into(), PutMode::Create).await.is_ok();
        let two = write(&store, "a", "2".into(), PutMode::Overwrite).await.unwrap();
        let updated_stale = write(&store, "a", "3".into(), PutMode::Update(one.into())).await.is_ok();
        let updated_missing = write(&store, "b", "3".into(), PutMode::Update(two.into())).await.is_ok();
        let creates = winners(&store, "create", || PutMode::Create).await;
        let base = store.inner.head(&Path::from("raced")).await.unwrap();
        let update = || PutMode::Update(object_store::UpdateVersion { e_tag: base.e_tag.clone(), version: None });
        let updates = winners(&store, "update", update).await;
        assert_eq!(creates > 1, updates > 1);
        write(&store, "c", "old".into(), PutMode::Overwrite).await.unwrap();
        assert_eq!(read(&store, "c").await, "old");
        write(&store, "c", "new".into(), PutMode::Overwrite).await.unwrap();
        let read_stale = read(&store, "c").await == "old";
        assert_eq!(read(&store, "c").await, "new", "only the first read is stale");
        [created_over, updated_stale, updated_missing, creates > 1, read_stale]
    }

    #[tokio::test]
    async fn each_flaw_breaks_its_promise_and_no_other() {
        let found = join_all(FLAWS.map(wrongs)).await;
        let expected = [
            [true, true, true, true, false],
            [false, false, false, true, false],
            [false, false, true, false, false],
            [false, false, false, false, true],
        ];
        assert_eq!(found, expected);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn racing_writers_win_together_also_on_several_threads() {
        let store = flawed(Flaw::ChecksThenWrites);
        let mut most = 0;
        for _ in 0..20 {
            most = most.max(winners(&store, "create", || PutMode::Create).await);
            store.inner.delete(&Path::from("raced")).await.unwrap();
        }
        assert!(most > 1);
    }

    #[tokio::test]
    async fn a_stale_read_obeys_its_conditions_and_its_range() {
        let store = flawed(Flaw::StaleReads);
        let path = Path::from("a");
        let old = write(&store, "a", "old!".into(), PutMode::Create).await.unwrap();
        write(&store, "a", "new".into(), PutMode::Overwrite).await.unwrap();
        assert_eq!(store.get_range(&path, 1..3).await.unwrap(), "ld");
        write(&store, "a", "newer".into(), PutMode::Overwrite).await.unwrap();
        let not_old = GetOptions { if_match: old.e_tag, ..Default::default() };
        assert!(matches!(store.get_opts(&path, not_old).await, Err(Error::Precondition { .. })));
    }
}
