//! The store as one process of a simulation sees it: every request waits to be scheduled before and after it is applied, and
//! its answer says what time it is.

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use leasehold_testkit::{Dates, FaultStore};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, path::Path,
};
use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
};

#[derive(Debug, Clone)]
pub struct Wire {
    pub store: FaultStore,
    pub dates: Dates,
    /// A machine that is paused hears nothing.
    pub paused: Arc<AtomicBool>,
}

impl Wire {
    /// Returns at the next poll but one, and not while the machine is paused.
    async fn turn(&self) {
        let mut been = false;
        poll_fn(|context| {
            if been && !self.paused.load(Relaxed) {
                return Poll::Ready(());
            }
            been = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    async fn send<T>(&self, run: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = self.dates.asked();
        self.turn().await;
        let done = run.await;
        let date = self.store.date();
        self.turn().await;
        if let Some(asked) = asked {
            self.dates.answered(date, asked);
        }
        done
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

#[async_trait]
impl ObjectStore for Wire {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.send(self.store.put_opts(at, payload, options)).await
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.send(self.store.get_opts(at, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let wire = self.clone();
        stream::once(async move {
            let deleting = async { Ok(wire.store.delete_stream(paths).collect::<Vec<_>>().await) };
            Ok::<_, object_store::Error>(stream::iter(wire.send(deleting).await?))
        })
        .try_flatten()
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix.cloned(), None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix.cloned(), Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.send(self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

impl Wire {
    fn listing(&self, prefix: Option<Path>, offset: Option<Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let wire = self.clone();
        stream::once(async move {
            let listing = async {
                let listed = match &offset {
                    Some(offset) => wire.store.list_with_offset(prefix.as_ref(), offset),
                    None => wire.store.list(prefix.as_ref()),
                };
                listed.try_collect::<Vec<_>>().await
            };
            Ok::<_, object_store::Error>(stream::iter(wire.send(listing).await?.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }
}
