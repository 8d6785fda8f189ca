//! The embedded store: a local directory with real compare-and-swap, safe between the processes of one host.
//!
//! A write locks its share of the names, compares, writes a temporary file, flushes it, renames it onto the object and
//! flushes the folder. So an object is whole or not there, also after a kill or a power cut. What this
//! process cannot know to be on disk is flushed before it is told to anybody ([`disk`]), and a disk that failed to
//! flush is not asked again.

pub(crate) mod alive;
mod disk;
mod durable;
mod error;
mod list;
mod name;
mod share;
#[cfg(test)]
mod tests;
mod write;

pub use error::LocalError;

use crate::SystemClock;
use async_trait::async_trait;
use bytes::Bytes;
use disk::{Disk, Loaded};
use error::{STORE, not_found};
use futures_util::{FutureExt, StreamExt, TryStreamExt, future, stream, stream::BoxStream};
use name::Name;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result, path::Path,
};
use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

/// How many deletes share one flush.
const DELETES: usize = 256;

/// A store in a local directory, for one or many processes of one host.
///
/// Clones share one opened store. Objects are read into memory whole; attributes and tags are not kept. The ETag is
/// made of the content, so writing the same bytes again gives the same one.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = leasehold::internals::LocalDirectory::open(dir.path().join("store"))?;
/// # drop(store);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LocalDirectory {
    disk: Arc<Disk>,
}

impl LocalDirectory {
    /// Opens a directory, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when it is not a directory, cannot be written, or lies on a filesystem
    /// that cannot lock files or flush folders.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, crate::Error> {
        Ok(Self { disk: Arc::new(Disk::open(&root.into(), Arc::new(SystemClock::new()))?) })
    }

    async fn read(&self, location: &Path) -> Result<(Bytes, ObjectMeta)> {
        let name = Name::new(&self.disk.root, location)?;
        let disk = Arc::clone(&self.disk);
        let Loaded { bytes, tag, modified, .. } =
            blocking(move || disk.read(&name)?.ok_or_else(|| not_found(&name.location))).await?;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: modified.into(),
            size: bytes.len() as u64,
            e_tag: Some(tag.to_string()),
            version: None,
        };
        Ok((bytes.into(), meta))
    }

    async fn write(&self, location: &Path, body: PutPayload, mode: PutMode) -> Result<PutResult> {
        if name::is_private(location.as_ref()) {
            let why = "it belongs to the store itself";
            return Err(LocalError::BadName { name: location.to_string(), why }.into());
        }
        let tag = self.disk.put(Name::new(&self.disk.root, location)?, body, mode).await?;
        Ok(PutResult { e_tag: Some(tag.to_string()), version: None, extensions: Default::default() })
    }
}

impl fmt::Display for LocalDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.disk.root.display())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for LocalDirectory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.write(location, payload, opts.mode).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "put_multipart_opts".into(), implementer: self.to_string() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (bytes, meta) = self.read(location).await?;
        options.check_preconditions(&meta)?;
        let range = match options.range {
            Some(range) => within(&range, meta.size)?,
            None => 0..meta.size,
        };
        let body = match options.head {
            true => Bytes::new(),
            false => cut(&bytes, &range),
        };
        let payload = GetResultPayload::Stream(stream::once(future::ready(Ok(body))).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (bytes, meta) = self.read(location).await?;
        let cut = |range: &Range<u64>| Ok(cut(&bytes, &within(&GetRange::Bounded(range.clone()), meta.size)?));
        ranges.iter().map(cut).collect()
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let disk = Arc::clone(&self.disk);
        let delete = move |chunk| {
            let disk = Arc::clone(&disk);
            async move { stream::iter(disk.delete(chunk).await) }
        };
        locations.ready_chunks(DELETES).then(delete).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::stream(Arc::clone(&self.disk), prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        list::stream(Arc::clone(&self.disk), prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        list::with_delimiter(Arc::clone(&self.disk), prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Create => PutMode::Create,
            CopyMode::Overwrite => PutMode::Overwrite,
        };
        let (bytes, _) = self.read(from).await?;
        self.write(to, bytes.into(), mode).await.map(drop)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let mode = match options.target_mode {
            RenameTargetMode::Create => CopyMode::Create,
            RenameTargetMode::Overwrite => CopyMode::Overwrite,
        };
        self.copy_opts(from, to, CopyOptions::new().with_mode(mode)).await?;
        if from == to {
            return Ok(());
        }
        let from = future::ready(Ok(from.clone())).into_stream().boxed();
        self.delete_stream(from).try_collect::<Vec<_>>().await.map(drop)
    }
}

fn within(range: &GetRange, size: u64) -> Result<Range<u64>> {
    range.as_range(size).map_err(|error| Error::Generic { store: STORE, source: error.into() })
}

fn cut(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let at = |position: u64| usize::try_from(position).map_or(bytes.len(), |at| at.min(bytes.len()));
    bytes.slice(at(range.start)..at(range.end))
}

/// Runs the work where it may block. Without a runtime there is nothing that it could hold up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => match runtime.spawn_blocking(work).await {
            Ok(answer) => answer,
            Err(gone) => Err(LocalError::Interrupted(gone.to_string()).into()),
        },
        Err(_) => work(),
    }
}
