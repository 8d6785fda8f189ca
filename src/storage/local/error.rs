//! What can go wrong on a disk, in words that say what to do, and how `object_store` hears of it.

use object_store::Error;
use std::{io, path::Path, path::PathBuf, sync::Arc};

pub(super) const STORE: &str = "LocalDirectory";

/// The source of the `object_store::Error` that a caller sees.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LocalError {
    /// Unknown for good: the kernel may have dropped what it could not write, so neither a retry nor a read tells.
    #[error(
        "the disk failed to flush {}: {reason}; what was written may or may not survive a power cut, so this store \
         answers nothing more until it is reopened: check the disk first",
        path.display()
    )]
    FlushFailed {
        /// What could not be flushed.
        path: PathBuf,
        /// In the words of the operating system.
        reason: String,
    },
    /// Nothing was changed.
    #[error("disk full while writing below {}: nothing was changed; make room, then try again", path.display())]
    DiskFull {
        /// Where there is no room.
        path: PathBuf,
    },
    /// Writes would no longer exclude each other, or would go to the wrong disk.
    #[error(
        "{} was removed, replaced or unmounted while the store was open: reopen the store once the directory is back",
        path.display()
    )]
    Replaced {
        /// What is not there any more.
        path: PathBuf,
    },
    /// No such object can exist here.
    #[error("the name {name:?} cannot be stored in a directory: {why}")]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// On a disk, unlike in an object store, a name cannot be an object and a folder at once.
    #[error("{} cannot be an object and a folder at once: choose another name", path.display())]
    Nested {
        /// The file.
        path: PathBuf,
    },
    /// The user of this process may not do that.
    #[error("{doing} {}: {source}; {}", path.display(), permit(doing))]
    Denied {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// In the words of the operating system.
        source: Arc<io::Error>,
    },
    /// Anything else.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// In the words of the operating system.
        source: Arc<io::Error>,
    },
    /// The runtime ended while the operation was on its way.
    #[error("interrupted: {0}; a write may or may not have happened")]
    Interrupted(String),
}

impl LocalError {
    /// What to do, where its words do not say it.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        matches!(self, Self::Io { .. } | Self::Interrupted(_)).then_some("try again later")
    }
}

/// What is missing: a lock needs no more than to be read.
pub(super) fn permit(doing: &str) -> &'static str {
    match doing {
        "reading" | "locking" | "opening" | "listing" => {
            "give the user of this process read access to it, or choose another directory"
        }
        _ => "give the user of this process write access to it, or choose another directory",
    }
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Self {
        let path = match &error {
            LocalError::Denied { path, .. } => path.display().to_string(),
            _ => return Self::Generic { store: STORE, source: error.into() },
        };
        Self::PermissionDenied { path, source: error.into() }
    }
}

/// An error of the operating system, as the callers of an object store know it.
pub(super) fn from_io(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound { path: path.display().to_string(), source: error.into() },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            LocalError::Denied { doing, path, source: error.into() }.into()
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => LocalError::Nested { path }.into(),
        _ if is_full(&error) => LocalError::DiskFull { path }.into(),
        _ => LocalError::Io { doing, path, source: error.into() }.into(),
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the path leads nowhere: it was never there, or its folder is a file.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn not_found(location: &object_store::path::Path) -> Error {
    Error::NotFound { path: location.to_string(), source: "there is no such file".into() }
}
