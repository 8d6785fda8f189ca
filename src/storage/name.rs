//! The name of one object below the store's prefix.

use object_store::path::Path;
use std::fmt;

/// An object's name, relative to the prefix under which the store lives. Made of parts that are already safe: the
/// fixed words of the layout, namespaces, hours and encoded keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// A name that is made of safe parts.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// As it stands in the store, below the prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What follows the last slash.
    pub fn last(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The prefix inside the bucket, empty or without slashes at either end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prefix(String);

/// Leaves room for the longest name of ours within the 1024 bytes that stores allow for a whole name.
const LONGEST_PREFIX: usize = 512;

impl Prefix {
    pub(crate) fn new(path: &Path) -> crate::Result<Self> {
        let prefix = path.as_ref().trim_matches('/').to_owned();
        if prefix.len() > LONGEST_PREFIX {
            return Err(crate::Error::invalid(format!(
                "the prefix inside the bucket has {} bytes; at most {LONGEST_PREFIX} are allowed",
                prefix.len()
            )));
        }
        Ok(Self(prefix))
    }

    /// The whole path of an object, as the store knows it.
    pub(crate) fn path(&self, name: &Name) -> Path {
        // Neither part needs encoding: the prefix came through Path, which would encode its own percent signs again, and
        // names are made of safe ASCII.
        let raw = self.raw(&name.0);
        Path::parse(&raw).unwrap_or_else(|_| Path::from(raw))
    }

    /// The whole of a raw prefix for listing: unlike a path it may end in a slash or in the middle of a segment.
    pub(crate) fn raw(&self, name: &str) -> String {
        if self.0.is_empty() { name.to_owned() } else { format!("{}/{name}", self.0) }
    }

    /// The name of a listed path; `None` for one outside the prefix.
    pub(crate) fn strip(&self, path: &str) -> Option<Name> {
        let rest = if self.0.is_empty() { path } else { path.strip_prefix(&self.0)?.strip_prefix('/')? };
        Some(Name::new(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_way_through_the_store() {
        for prefix in ["", "a", "some/deep/prefix", "mit leerzeichen/ü"] {
            let prefix = Prefix::new(&Path::from(prefix)).unwrap();
            let name = Name::new("default/meta/a!2fb.pb");
            let path = prefix.path(&name);
            assert_eq!(prefix.strip(path.as_ref()), Some(name.clone()));
            assert_eq!(prefix.raw(name.as_str()), path.as_ref());
        }
    }

    #[test]
    fn a_neighbour_with_a_longer_name_is_not_ours() {
        let prefix = Prefix::new(&Path::from("team/a")).unwrap();
        assert_eq!(prefix.strip("team/ab/x"), None);
        assert_eq!(prefix.strip("team/a/x"), Some(Name::new("x")));
    }

    #[test]
    fn a_prefix_that_leaves_no_room_is_refused() {
        assert!(Prefix::new(&Path::from("x".repeat(513))).is_err());
    }
}
