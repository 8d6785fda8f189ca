//! A wrapper that counts calls, for stores where no HTTP attempt can be seen: local disk, memory, handed in.

use super::{
    answer::{is_conflict, is_missing, is_throttling},
    meter::{AnswerKind, Meter, Pending, RequestKind},
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, path::Path,
};
use std::{fmt, ops::Range, sync::Arc};

#[derive(Debug)]
pub(crate) struct Counting {
    inner: Arc<dyn ObjectStore>,
    meter: Arc<Meter>,
}

impl Counting {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }

    async fn count<T>(&self, kind: RequestKind, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut pending = self.meter.begin(kind);
        let result = call.await;
        pending.answer = answer(&result);
        result
    }
}

fn answer<T>(result: &Result<T>) -> AnswerKind {
    match result {
        Ok(_) => AnswerKind::Ok,
        Err(error) if is_missing(error) => AnswerKind::Missing,
        Err(error) if is_conflict(error) => AnswerKind::Conflict,
        Err(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => AnswerKind::Denied,
        Err(error) if is_throttling(error) => AnswerKind::Throttled,
        Err(_) => AnswerKind::Failed,
    }
}

/// Counts a stream as one call, by its first bad answer.
fn counted<T: Send + 'static>(
    stream: BoxStream<'static, Result<T>>,
    mut pending: Pending,
) -> BoxStream<'static, Result<T>> {
    pending.answer = AnswerKind::Ok;
    stream
        // By a method: a closure that only touches the field would keep a copy of that, and count all as good.
        .inspect(move |item| pending.hear(answer(item)))
        .boxed()
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Counting {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.count(RequestKind::Put, self.inner.as_ref().put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.count(RequestKind::Put, self.inner.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.count(RequestKind::Get, self.inner.as_ref().get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.count(RequestKind::Get, self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        counted(self.inner.delete_stream(locations), self.meter.begin(RequestKind::Delete))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        counted(self.inner.list(prefix), self.meter.begin(RequestKind::List))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        counted(self.inner.list_with_offset(prefix, offset), self.meter.begin(RequestKind::List))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count(RequestKind::List, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.count(RequestKind::Put, self.inner.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.count(RequestKind::Put, self.inner.rename_opts(from, to, options)).await
    }
}
