//! What this process knows to survive a power cut, so that it is flushed once and not on every read.

use object_store::path::Path;
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::Hash,
    path::{Path as FilePath, PathBuf},
};

/// The content of an object in 16 bytes.
///
/// Not inode and time, which can repeat (a freed inode is used again at once, clocks are coarse). The records of this
/// library carry a fresh write id, so that their contents cannot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag([u8; 16]);

impl Tag {
    pub(super) fn of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for chunk in chunks {
            hash.update(chunk);
        }
        let mut tag = [0; 16];
        tag.copy_from_slice(&hash.finalize()[..16]);
        Self(tag)
    }
}

/// As an ETag: in quotes.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{:032x}\"", u128::from_be_bytes(self.0))
    }
}

/// What has been flushed, by this process, as far as it remembers.
#[derive(Default)]
pub(super) struct Durable {
    objects: Recent<Path, Tag>,
    /// Folders whose own entry has been flushed, up to the root.
    folders: HashSet<PathBuf>,
}

/// Forgetting costs a flush, no more.
const REMEMBERED: usize = 8192;

impl Durable {
    pub(super) fn holds(&mut self, location: &Path, tag: Tag) -> bool {
        self.objects.get(location) == Some(tag)
    }

    pub(super) fn remember(&mut self, location: Path, tag: Tag) {
        self.objects.insert(location, tag);
    }

    pub(super) fn forget(&mut self, location: &Path) {
        self.objects.remove(location);
    }

    pub(super) fn holds_folder(&self, folder: &FilePath) -> bool {
        self.folders.contains(folder)
    }

    pub(super) fn remember_folder(&mut self, folder: &FilePath) {
        if self.folders.len() >= REMEMBERED {
            self.folders.clear();
        }
        self.folders.insert(folder.to_path_buf());
    }
}

/// A bounded map: what was not used while `REMEMBERED` others were is forgotten.
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone, V: Copy> Recent<K, V> {
    fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(*value);
        }
        let value = self.old.remove(key)?;
        self.insert(key.clone(), value);
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest_wins() {
        let mut durable = Durable::default();
        let name = |i: usize| Path::from(format!("n{i}"));
        let (old, new) = (Tag::of([&b"old"[..]]), Tag::of([&b"new"[..]]));
        durable.remember(name(0), old);
        durable.remember(name(0), new);
        assert!(durable.holds(&name(0), new) && !durable.holds(&name(0), old));
        for i in 1..3 * REMEMBERED {
            durable.remember(name(i), old);
            assert!(durable.holds(&name(0), new), "what is used stays");
        }
        assert!(!durable.holds(&name(1), old));
        assert!(durable.objects.young.len() + durable.objects.old.len() <= 2 * REMEMBERED);
        durable.forget(&name(0));
        assert!(!durable.holds(&name(0), new));
    }

    #[test]
    fn a_tag_depends_on_the_bytes_and_not_on_how_they_are_cut() {
        assert_eq!(Tag::of([&b"ab"[..], b"c"]).to_string(), Tag::of([&b"abc"[..]]).to_string());
        assert_eq!(Tag::of([&b"abc"[..]]).to_string(), "\"ba7816bf8f01cfea414140de5dae2223\"");
    }
}
