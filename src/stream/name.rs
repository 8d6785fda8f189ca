//! The names of streams and groups.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, sync::Arc};

/// The longest name of a stream or a group, in bytes.
const MAX: usize = 120;

/// Whether these are words of `a` to `z`, `0` to `9`, `_` and `-`, separated by dots.
fn is_dotted(name: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
    };
    name.len() <= MAX && name.split('.').all(word)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                if is_dotted(text) {
                    return Ok(Self(text.into()));
                }
                Err(Error::invalid(format!(
                    concat!("{:?} is no name of ", $what, ": 1 to {} of a to z, 0 to 9, '_' and '-', in words that are separated by dots"),
                    text, MAX
                )))
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;

            fn try_from(text: &str) -> Result<Self> {
                text.parse()
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a stream: words separated by dots, such as `events.audit`.
    StreamName, "a stream"
}

name! {
    /// The name of a group of consumers.
    GroupName, "a group"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dotted_words() {
        for name in ["events", "events.audit", "a-b_c.0"] {
            assert_eq!(name.parse::<StreamName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "a..b", ".a", "a.", "A", "a/b", "a b", "a.*", &"a".repeat(121)] {
            assert!(name.parse::<StreamName>().is_err(), "{name}");
            assert!(name.parse::<GroupName>().is_err(), "{name}");
        }
    }
}
