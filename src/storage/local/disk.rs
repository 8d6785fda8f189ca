//! The directory itself: opening it, durable reads, and flushing, which once failed is never trusted again.

use super::{
    durable::{Durable, Tag},
    error::{LocalError, from_io, is_missing, permit},
    name::{Name, PRIVATE, SHARDS, is_hour},
    share::Share,
    write::Shard,
};
use crate::{Clock, Error, sync::Locked as _};
use object_store::Result;
use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::SystemTime,
};

/// What all handles of one opened store share.
pub(super) struct Disk {
    pub(super) root: PathBuf,
    pub(super) private: PathBuf,
    pub(super) share: Share,
    pub(super) shards: [Shard; SHARDS],
    /// Kept open, so that its inode cannot be given to a folder that takes its place.
    #[cfg(unix)]
    private_folder: File,
    /// The machine's own, whatever the store goes by: it tells whether a thread was stopped.
    pub(super) clock: Arc<dyn Clock>,
    durable: Mutex<Durable>,
    failed: OnceLock<LocalError>,
    #[cfg(test)]
    pub(super) before_sync: Mutex<Option<BeforeSync>>,
}

#[cfg(test)]
pub(super) type BeforeSync = std::sync::Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

/// An object as it was when it was opened.
pub(super) struct Loaded {
    file: File,
    pub(super) bytes: Vec<u8>,
    pub(super) tag: Tag,
    pub(super) modified: SystemTime,
}

impl Disk {
    pub(super) fn open(root: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |error| unusable(&path, error)
        };
        let root = &std::path::absolute(root).map_err(at(root))?;
        let made = root.ancestors().take_while(|folder| !folder.exists()).count();
        fs::create_dir_all(root).map_err(at(root))?;
        // Neither a change of the working directory nor of a symbolic link may move an open store.
        let root = fs::canonicalize(root).map_err(at(root))?;
        let share = Share::of(&root).map_err(at(&root))?;
        let private = root.join(PRIVATE[0]).join(PRIVATE[1]);
        share.make_folders(&root, &private).map_err(|(folder, error)| unusable(&folder, error))?;
        locks_exclude(&private, &root, share)?;
        let disk = Self {
            shards: std::array::from_fn(|_| Shard::default()),
            #[cfg(unix)]
            private_folder: File::open(&private).map_err(at(&private))?,
            clock,
            durable: Mutex::default(),
            failed: OnceLock::new(),
            #[cfg(test)]
            before_sync: Mutex::default(),
            root,
            private,
            share,
        };
        let flushed = disk.private.ancestors().take(3).chain(disk.root.ancestors().skip(1).take(made));
        for folder in flushed {
            disk.sync_folder(folder).map_err(|error| {
                Error::config(format!(
                    "{} cannot be flushed to disk, so nothing in it would survive a power cut: choose a directory on \
                     another filesystem",
                    folder.display()
                ))
                .with_source(error)
            })?;
        }
        Ok(disk)
    }

    /// Every operation asks first: a store that failed to flush, or that is not there any more, answers nothing.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(failed) = self.failed.get() {
            return Err(failed.clone().into());
        }
        #[cfg(unix)]
        if !is_at(&self.private_folder, &self.private) {
            return Err(LocalError::Replaced { path: self.root.clone() }.into());
        }
        Ok(())
    }

    /// Reads an object and flushes it first: a power cut must not take back what a caller was told.
    pub(super) fn read(&self, name: &Name) -> Result<Option<Loaded>> {
        self.check()?;
        let Some(loaded) = self.load(name)? else { return Ok(None) };
        self.make_durable(name, &loaded)?;
        Ok(Some(loaded))
    }

    /// The object as it is, which may not be durable yet. A folder is not an object.
    pub(super) fn load(&self, name: &Name) -> Result<Option<Loaded>> {
        let failed = |error| from_io("reading", &name.file, error);
        let mut file = match File::open(&name.file) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let meta = file.metadata().map_err(failed)?;
        if meta.is_dir() {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default());
        file.read_to_end(&mut bytes).map_err(failed)?;
        let tag = Tag::of([bytes.as_slice()]);
        Ok(Some(Loaded { file, tag, bytes, modified: meta.modified().map_err(failed)? }))
    }

    /// Flushes what this process has not seen flushed: another process may have died between rename and flush.
    pub(super) fn make_durable(&self, name: &Name, loaded: &Loaded) -> Result<()> {
        if self.durable().holds(&name.location, loaded.tag) {
            return Ok(());
        }
        // Windows flushes neither what is open for reading nor folders.
        if cfg!(not(windows)) {
            self.sync(&loaded.file, &name.file)?;
        }
        self.sync_folders(&name.folder)?;
        // A write of this process that is visible, and failed to flush while we did not, counts as failed.
        self.check()?;
        self.durable().remember(name.location.clone(), loaded.tag);
        Ok(())
    }

    /// Flushes the entries of a folder, and of the folders above it that are not known to be flushed, whoever made
    /// them.
    pub(super) fn sync_folders(&self, folder: &Path) -> Result<()> {
        self.sync_folder(folder)?;
        let inside = |folder: &&Path| *folder != self.root;
        for folder in folder.ancestors().take_while(inside) {
            if self.durable().holds_folder(folder) {
                break;
            }
            self.sync_folder(folder.parent().unwrap_or(&self.root))?;
        }
        let mut durable = self.durable();
        // An hour may be removed and made again by another process.
        folder.ancestors().take_while(inside).filter(|folder| !is_hour(folder)).for_each(|folder| {
            durable.remember_folder(folder);
        });
        Ok(())
    }

    /// A folder that has vanished has nothing to flush. One that cannot be opened (too many open files, for instance)
    /// is an error but not a failed flush: what is visible is flushed by the next read.
    pub(super) fn sync_folder(&self, folder: &Path) -> Result<()> {
        if cfg!(windows) {
            return Ok(());
        }
        match File::open(folder) {
            Ok(file) => self.sync(&file, folder),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(from_io("opening", folder, error)),
        }
    }

    fn sync(&self, file: &File, path: &Path) -> Result<()> {
        self.try_sync(file, path).map_err(|error| self.fail(path, &error))
    }

    /// For a file without a name yet; the caller judges the error.
    pub(super) fn try_sync(&self, file: &File, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        {
            let hook = self.before_sync.lock().unwrap().clone();
            hook.map_or(Ok(()), |hook| hook(path))?;
        }
        #[cfg(not(test))]
        let _ = path;
        file.sync_all()
    }

    /// From here on the store answers nothing.
    pub(super) fn fail(&self, path: &Path, error: &io::Error) -> object_store::Error {
        let failed = LocalError::FlushFailed { path: path.to_path_buf(), reason: error.to_string() };
        tracing::error!(path = %path.display(), %error, "the disk failed to flush: the store must be reopened");
        self.failed.get_or_init(|| failed).clone().into()
    }

    pub(super) fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.locked()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("root", &self.root).field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// Whether the open file is still the one under this path.
#[cfg(unix)]
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(ours), Ok(theirs)) = (file.metadata(), fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
}

/// The system has no such numbers; nor does it let an open file be removed.
#[cfg(not(unix))]
pub(super) fn is_at(_file: &File, _path: &Path) -> bool {
    true
}

/// Why the store cannot be opened, by the file or folder that stands in the way.
fn unusable(path: &Path, error: io::Error) -> Error {
    let what = path.display();
    let message = match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            format!("{what} is not a directory: name another one, or move the file away")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{what} cannot be written ({error}): {}", permit("writing"))
        }
        _ => format!("{what} cannot be used as a store: {error}"),
    };
    Error::config(message).with_source(error)
}

/// Opens a lock file, which is made if it is missing. One of another user, who lets us only read it, locks as well.
pub(super) fn open_lock(path: &Path, share: Share) -> io::Result<File> {
    let mut options = OpenOptions::new();
    share.prepare(&mut options).read(true).write(true).create(true).truncate(false);
    let file = match options.open(path) {
        // A read-only file can be locked too: a lock needs no right to write.
        Err(denied) if matches!(denied.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            match File::open(path) {
                Err(error) if is_missing(&error) => Err(denied),
                opened => opened,
            }
        }
        opened => opened,
    }?;
    share.take_after(&file);
    Ok(file)
}

/// What is in the way if a lock file cannot be opened: the file, or the folder if it cannot be made there.
pub(super) fn lock_or_folder<'a>(path: &'a Path, private: &'a Path) -> (&'static str, &'a Path) {
    match path.exists() {
        true => ("locking", path),
        false => ("writing into", private),
    }
}

/// Two handles on one file must not both get its lock. Some network and FUSE filesystems have no locks, or pretend.
fn locks_exclude(private: &Path, root: &Path, share: Share) -> Result<(), Error> {
    let path = &private.join("lock-check");
    let lockless = |why: &str| {
        Error::config(format!(
            "the filesystem of {} has no file locks ({why}), so two processes could both win: choose a directory on a \
             local filesystem",
            root.display()
        ))
    };
    let open = || open_lock(path, share).map_err(|error| unusable(lock_or_folder(path, private).1, error));
    let (first, second) = (open()?, open()?);
    match first.try_lock() {
        Ok(()) => match second.try_lock() {
            Ok(()) => Err(lockless("two handles got the same lock")),
            Err(_) => Ok(()),
        },
        // Another process is opening the store at this moment, and the lock holds.
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(lockless(&error.to_string()).with_source(error)),
    }
}
