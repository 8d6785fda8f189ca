//! Namespaces: the first segment of the names of everything that belongs together.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, sync::Arc};

/// The longest namespace, in bytes.
const MAX: usize = 63;

/// Keeps the keys of one application, tenant or environment apart from those of others in the same store.
///
/// 1 to 63 of `a` to `z`, `0` to `9`, `.`, `_` and `-`; begins with a letter or a digit and does not end in a dot.
///
/// ```
/// use leasehold::Namespace;
///
/// let namespace = Namespace::new("billing.eu-west")?;
/// assert_eq!(namespace.as_str(), "billing.eu-west");
/// assert_eq!(Namespace::default().as_str(), "default");
/// assert!(Namespace::new(".hidden").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// A namespace of this name; refused when the name breaks the rules above.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let wrong = if name.is_empty() {
            "is empty"
        } else if name.len() > MAX {
            "is too long"
        } else if !name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            "does not begin with a to z or 0 to 9"
        } else if !name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-')) {
            "has other characters"
        } else if name.ends_with('.') {
            "ends in a dot"
        } else {
            return Ok(Self(name.into()));
        };
        Err(Error::invalid(format!(
            "the namespace {name:?} {wrong}: 1 to 63 of a to z, 0 to 9, '.', '_' and '-' are allowed, \
             beginning with a letter or a digit and not ending in a dot"
        )))
    }

    /// Without a check: for names that were checked before, and for those that are reserved.
    pub(crate) fn trusted(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Namespace {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for Namespace {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_the_pattern_allows_is_allowed_and_stays_itself(name in "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?") {
            let namespace = Namespace::new(&name).unwrap();
            prop_assert_eq!(namespace.to_string(), name.as_str());
            prop_assert_eq!(Path::from(name.as_str()).to_string(), name.as_str());
            let json = serde_json::to_string(&namespace).unwrap();
            prop_assert_eq!(serde_json::from_str::<Namespace>(&json).unwrap(), namespace);
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_rule_named() {
        let long = "a".repeat(64);
        for name in ["", ".", "..", ".a", "a.", "-a", "_a", "A", "aB", "a/b", "a b", "é", "a\0", "a%", "a!", &long] {
            let error = Namespace::new(name).unwrap_err().to_string();
            assert!(error.contains("1 to 63"), "{error}");
            assert!(serde_json::from_value::<Namespace>(name.into()).is_err());
        }
    }

    #[test]
    fn the_default_is_a_namespace_like_any_other() {
        assert_eq!("default".parse::<Namespace>().unwrap(), Namespace::default());
    }
}
