//! A bucket that vanishes under an open store is not a store in which every record is missing.

use super::{PAST, at_once, entries, take};
use crate::{common::key, common::request, processes::World};
use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use leasehold::{Store, decision::Decision, store::Probing};
use leasehold_testkit::FaultStore;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// Objects that can be there and not be there.
#[derive(Debug, Clone)]
struct Vanishing {
    objects: FaultStore,
    gone: Arc<AtomicBool>,
    /// Listings are answered out of some cache.
    lists: Arc<AtomicBool>,
}

impl Vanishing {
    fn there(&self) -> Result<()> {
        if !self.gone.load(SeqCst) {
            return Ok(());
        }
        let source = "404 Not Found: <Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>".into();
        Err(Error::NotFound { path: String::new(), source })
    }

    fn listed(&self) -> Result<()> {
        if self.lists.load(SeqCst) { Ok(()) } else { self.there() }
    }
}

impl fmt::Display for Vanishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vanishing")
    }
}

#[async_trait]
impl ObjectStore for Vanishing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.there()?;
        self.objects.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, at: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.there()?;
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.there() {
            Ok(()) => self.objects.delete_stream(locations),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.listed() {
            Ok(()) => self.objects.list(prefix),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.listed()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_bucket_that_vanishes_under_an_open_store_is_no_bucket_of_missing_records() {
    let world = World::new();
    for name in ["a", "b"] {
        take(&world.process().await.leases, name).await;
    }
    let decisions = world.process().await.store.decisions();
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    world.clock.advance(PAST + Duration::from_secs(1));
    let bucket = Vanishing { objects: world.objects.clone(), gone: Arc::default(), lists: Arc::default() };
    let builder = Store::builder().object_store(Arc::new(bucket.clone())).shares_our_clock().probing(Probing::Never);
    let store = builder.clock(Arc::new(world.clock.clone())).open().await.unwrap();
    bucket.gone.store(true, SeqCst);
    let error = store.sweeper().run_once(at_once()).await.unwrap_err();
    assert!(error.to_string().contains("NoSuchBucket") || error.to_string().contains("bucket"), "{error}");
    // The worst of it: entries are listed, and every record is answered with a 404.
    bucket.lists.store(true, SeqCst);
    let report = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_seen, report.entries_deleted, report.failures), (2, 0, 2), "{report:?}");
    let leases = store.leases("default").unwrap();
    assert!(leases.acquire(&key("a"), &request()).await.is_err());
    assert!(store.decisions().forget(txn).await.is_err(), "nobody has deleted it");
    assert_eq!(entries(&world.objects).len(), 3);
    bucket.gone.store(false, SeqCst);
    let report = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.of("lease").cleared, report.entries_deleted), (2, 2), "{report:?}");
}
