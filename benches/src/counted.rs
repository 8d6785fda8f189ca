//! Counts requests from outside of the library, as a server would: a page of a listing has up to 1,000 names, and so has
//! a bulk delete.

use async_trait::async_trait;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, path::Path,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The most names that S3 lists, or deletes, in one request.
const PAGE: u64 = 1000;

/// How many requests were made.
#[derive(Debug, Default)]
pub struct Counts {
    pub puts: AtomicU64,
    pub gets: AtomicU64,
    pub lists: AtomicU64,
    pub deletes: AtomicU64,
}

impl Counts {
    /// All of them.
    pub fn total(&self) -> u64 {
        [&self.puts, &self.gets, &self.lists, &self.deletes].iter().map(|count| count.load(Relaxed)).sum()
    }
}

/// A store that counts.
#[derive(Debug)]
pub struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S: ObjectStore> Counted<S> {
    /// In front of this one.
    pub fn new(inner: S) -> (Arc<Self>, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (Arc::new(Self { inner, counts: Arc::clone(&counts) }), counts)
    }

    /// One more request with every page that is really taken from a stream.
    fn paged<T: Send + 'static>(
        &self,
        stream: BoxStream<'static, Result<T>>,
        count: fn(&Counts) -> &AtomicU64,
    ) -> BoxStream<'static, Result<T>> {
        let counts = Arc::clone(&self.counts);
        count(&counts).fetch_add(1, Relaxed);
        let mut taken = 0;
        stream
            .inspect(move |_| {
                if taken > 0 && taken % PAGE == 0 {
                    count(&counts).fetch_add(1, Relaxed);
                }
                taken += 1;
            })
            .boxed()
    }
}

impl<S: fmt::Display> fmt::Display for Counted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for Counted<S> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.counts.puts.fetch_add(1, Relaxed);
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.counts.puts.fetch_add(1, Relaxed);
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.counts.gets.fetch_add(1, Relaxed);
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.paged(self.inner.delete_stream(locations), |counts| &counts.deletes)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.paged(self.inner.list(prefix), |counts| &counts.lists)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.paged(self.inner.list_with_offset(prefix, offset), |counts| &counts.lists)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.lists.fetch_add(1, Relaxed);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.counts.puts.fetch_add(1, Relaxed);
        self.inner.copy_opts(from, to, options).await
    }
}
