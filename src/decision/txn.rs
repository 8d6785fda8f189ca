//! The names of transactions, which say when they began.

use crate::{
    Error, Generator, Result,
    clock::{Clock, Timestamp},
    generator::GeneratorExt,
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// A transaction: a UUID of version 7, whose first 48 bits are the milliseconds since 1970 at which it began.
///
/// The age of a transaction decides whether it may still be decided, so it must be part of its name: it cannot be looked
/// up where nothing is stored yet, or any more.
///
/// ```
/// use leasehold::decision::TxnId;
///
/// let txn: TxnId = "019b76da-a800-7000-8000-000000000001".parse()?;
/// assert_eq!(txn.begun().to_string(), "2026-01-01T00:00:00.000Z");
/// // A random id says nothing about its age.
/// assert!("7d444840-9dc0-41d1-b245-5ffdce74fad2".parse::<TxnId>().is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TxnId(Uuid);

impl TxnId {
    /// A new transaction that begins now.
    pub fn begin(clock: &dyn Clock, generator: &dyn Generator) -> Self {
        let millis = u64::try_from(clock.wall().as_millis()).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &generator.bytes()).into_uuid())
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        *self.0.as_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        Uuid::from_bytes(bytes).to_string().parse().ok()
    }

    /// When it began, by the clock of who began it.
    pub fn begun(&self) -> Timestamp {
        let bytes = self.0.as_bytes();
        let millis = bytes[..6].iter().fold(0, |millis: i64, byte| millis << 8 | i64::from(*byte));
        Timestamp::from_millis(millis)
    }
}

impl FromStr for TxnId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Only the usual spelling, so that no transaction has two names.
        let uuid = Uuid::try_parse(text).ok().filter(|uuid| uuid.to_string() == text);
        match uuid {
            Some(uuid) if uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122 => Ok(Self(uuid)),
            Some(_) => Err(Error::invalid(format!(
                "{text} is a UUID, but not of version 7: a transaction's id must say when it began, take one from begin()"
            ))),
            None => Err(Error::invalid(format!("{text:?} is no transaction: take an id from begin()"))),
        }
    }
}

impl TryFrom<String> for TxnId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TxnId> for String {
    fn from(txn: TxnId) -> Self {
        txn.to_string()
    }
}

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsGenerator;
    use crate::testkit::TestClock;

    #[test]
    fn it_reads_the_same_in_a_log() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        assert_eq!(format!("{:?}", id.parse::<TxnId>().unwrap()), id);
    }

    #[test]
    fn an_id_says_when_it_began() {
        let at = Timestamp::from_millis(1_767_225_600_123);
        let txn = TxnId::begin(&TestClock::at(at), &OsGenerator::new());
        assert_eq!(txn.begun(), at);
        assert_eq!(txn.to_string().parse::<TxnId>().unwrap(), txn);
    }

    #[test]
    fn other_spellings_and_versions_are_refused() {
        for text in [
            "",
            "7d444840-9dc0-41d1-b245-5ffdce74fad2",
            "019B76DA-A800-7000-8000-000000000001",
            "019b76daa80070008000000000000001",
            "{019b76da-a800-7000-8000-000000000001}",
            "019b76da-a800-7000-0000-000000000001",
            "../../019b76da-a800-7000-8000-000000000001",
        ] {
            assert!(text.parse::<TxnId>().is_err(), "{text}");
        }
    }
}
