//! From the name of an object to its file, and the reserved folder that holds no objects.

use super::error::{LocalError, not_found};
use object_store::{Result, path::Path};
use sha2::{Digest, Sha256};
use std::path::{Path as FilePath, PathBuf};

/// Locks and temporary files live here, hidden from readers, writers and listings.
pub(super) const PRIVATE: [&str; 2] = [".leasehold", ".local"];

/// How many locks there are. Like [`Name::shard`] a contract between all processes on a directory.
pub(super) const SHARDS: usize = 64;

/// The name of an object that may be stored, and where.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) location: Path,
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
}

impl Name {
    /// A private name answers `NotFound`: there is no such object.
    pub(super) fn new(root: &FilePath, location: &Path) -> Result<Self> {
        check(location)?;
        if is_private(location.as_ref()) {
            return Err(not_found(location));
        }
        let mut file = root.to_path_buf();
        file.extend(location.as_ref().split('/'));
        let folder = file.parent().unwrap_or(root).to_path_buf();
        Ok(Self { location: location.clone(), file, folder })
    }

    /// Which lock guards the name.
    pub(super) fn shard(&self) -> usize {
        usize::from(Sha256::digest(self.location.as_ref())[0]) % SHARDS
    }
}

/// Whether the name is, or lies in, the folder that the store keeps for itself.
pub(super) fn is_private(name: &str) -> bool {
    let mut segments = name.split('/');
    PRIVATE.iter().all(|ours| segments.next().is_some_and(|segment| segment.eq_ignore_ascii_case(ours)))
}

fn check(location: &Path) -> Result<()> {
    let bad = |why| LocalError::BadName { name: location.to_string(), why };
    for segment in location.as_ref().split('/') {
        segment_fits(segment).map_err(bad)?;
    }
    Ok(())
}

/// Whether a part of a name can be the name of a file, on every system, as it is.
pub(super) fn segment_fits(segment: &str) -> Result<(), &'static str> {
    match segment {
        "" => Err("a part of it is empty"),
        "." | ".." => Err("a part of it is `.` or `..`"),
        _ if segment.len() > 255 => Err("a part of it is longer than 255 bytes"),
        _ if segment.contains(|c: char| c.is_ascii_control() || c == '\\') => {
            Err("it contains a control character or a backslash")
        }
        _ => Ok(()),
    }
}

/// Whether the folder is named like an hour of an index. Those come and go; all others are kept once made.
pub(super) fn is_hour(folder: &FilePath) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.len() == 10 && name.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::Error;

    #[test]
    fn names_that_a_directory_cannot_hold_are_refused() {
        let root = FilePath::new("/root");
        let long = "x".repeat(256);
        for name in ["", "a\\b", long.as_str()] {
            let refused = Name::new(root, &Path::parse(name).unwrap()).unwrap_err();
            assert!(matches!(refused, Error::Generic { .. }), "{name:?}: {refused}");
        }
        for segment in [".", "..", "", "a\0b", "a\nb", &long] {
            assert!(segment_fits(segment).is_err(), "{segment:?}");
        }
        assert!(segment_fits(&long[1..]).is_ok());
        let fine = Name::new(root, &Path::parse("orders/meta/%41~b.pb").unwrap()).unwrap();
        assert_eq!(fine.file, FilePath::new("/root/orders/meta/%41~b.pb"));
        assert_eq!(fine.folder, FilePath::new("/root/orders/meta"));
    }

    #[test]
    fn only_the_private_folder_is_hidden() {
        for hidden in [".leasehold/.local", ".leasehold/.local/lock-00", ".Leasehold/.LOCAL/x"] {
            assert!(is_private(hidden), "{hidden}");
        }
        for seen in [".leasehold", ".leasehold/store.json", "a/.leasehold/.local", ".leasehold/.localx"] {
            assert!(!is_private(seen), "{seen}");
        }
    }
}
