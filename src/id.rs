//! Random 128-bit ids, written as 32 lower-case hexadecimal digits.

use crate::{Error, Generator, generator::GeneratorExt};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 16]);

        impl $name {
            /// A fresh one.
            pub fn random(generator: &dyn Generator) -> Self {
                Self(generator.bytes())
            }

            /// Its bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                parse(text).map(Self).ok_or_else(|| {
                    Error::invalid(format!(concat!($what, " is 32 hexadecimal digits, not {:?}"), text))
                })
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    };
}

id! {
    /// Names one write of one record. Every attempt has a fresh one, so that no two bodies are ever equal and a
    /// writer recognises its own write when it reads it back.
    WriteId, "a write id"
}

id! {
    /// Names one lease, from its grant to its end.
    LeaseId, "a lease id"
}

id! {
    /// Names one process, or rather one opened store in it: two processes of one owner are two holders.
    ProcessId, "a process id"
}

id! {
    /// Names one session. Fresh with every one, and never used again.
    SessionId, "a session id"
}

id! {
    /// Names one start of one machine: clocks that count from it share their origin.
    BootId, "a boot id"
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsGenerator;

    #[test]
    fn an_id_survives_its_own_text() {
        let id = LeaseId::random(&OsGenerator::new());
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        assert_eq!(serde_json::from_str::<LeaseId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "00",
            "zz000000000000000000000000000000",
            "é000000000000000000000000000000",
            "+f000000000000000000000000000000",
        ] {
            assert!(text.parse::<WriteId>().is_err(), "{text:?}");
        }
    }
}
