//! The hour-bucketed expiry index: names and hours, not what they mean.
//!
//! An entry says that a record may expire in an hour. It is a hint and never truth: it is written before the record, so
//! that a crash in between leaves an entry too many and never a record without one.

use crate::{Bucket, Key, Namespace, clock::Timestamp, decision::TxnId, store::Name};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What stands in an entry of the lease index, for people who look.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) expires_ms: i64,
}

/// The entry of a key in the hour of its lease's expiry.
pub(crate) fn lease_entry(namespace: &Namespace, key: &Key, bucket: Bucket) -> Name {
    Name::new(format!("{namespace}/.lease-index/{bucket}/{}", key.name()))
}

/// The body of that entry.
pub(crate) fn lease_entry_body(key: &Key, expires: Timestamp) -> Bytes {
    let entry = Entry { key: key.clone(), expires_ms: expires.as_millis() };
    serde_json::to_vec(&entry).unwrap_or_default().into()
}

/// The key that an entry says it is of.
pub(crate) fn key_in_entry(body: &[u8]) -> Option<Key> {
    serde_json::from_slice::<Entry>(body).ok().map(|entry| entry.key)
}

/// Where the entries of a namespace's leases are filed.
pub(crate) fn lease_folder(namespace: &str) -> String {
    format!("{namespace}/.lease-index/")
}

/// Where the entries of decisions are filed.
pub(crate) const DECISION_FOLDER: &str = ".txn-decisions/e/";

/// The marker of a transaction.
pub(crate) fn decision_marker(txn: TxnId) -> Name {
    Name::new(format!(".txn-decisions/m/{txn}"))
}

/// The entry of a transaction in the hour of its marker's expiry.
pub(crate) fn decision_entry(txn: TxnId, bucket: Bucket) -> Name {
    Name::new(format!("{DECISION_FOLDER}{bucket}/{txn}"))
}

/// The body of that entry.
pub(crate) fn decision_entry_body(txn: TxnId, expires: Timestamp) -> Bytes {
    format!(r#"{{"txn":"{txn}","expires_ms":{}}}"#, expires.as_millis()).into()
}

/// The hour and the last part of an entry's name, below its folder.
pub(crate) fn parse_entry<'a>(folder: &str, name: &'a Name) -> Option<(Bucket, &'a str)> {
    let (bucket, entry) = name.as_str().strip_prefix(folder)?.split_once('/')?;
    Some((bucket.parse().ok()?, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stands_in_its_hour_and_says_its_key() {
        let key = Key::new("orders/42").unwrap();
        let expires = Timestamp::from_millis(1_767_225_600_001);
        let bucket = Bucket::of(expires).unwrap();
        let name = lease_entry(&Namespace::default(), &key, bucket);
        assert_eq!(name.as_str(), "default/.lease-index/2026010100/orders!2f42");
        let body = lease_entry_body(&key, expires);
        assert_eq!(body, r#"{"key":"orders/42","expires_ms":1767225600001}"#);
        assert_eq!(key_in_entry(&body), Some(key));
        assert_eq!(key_in_entry(b"{}"), None);
    }

    #[test]
    fn an_entry_of_a_decision_says_which_and_until_when() {
        let txn: TxnId = "019b76da-a800-7000-8000-000000000001".parse().unwrap();
        let body = decision_entry_body(txn, Timestamp::from_millis(1));
        assert_eq!(body, r#"{"txn":"019b76da-a800-7000-8000-000000000001","expires_ms":1}"#);
    }

    #[test]
    fn a_key_that_is_no_text_is_in_base64() {
        let key = Key::new([0xff]).unwrap();
        let body = lease_entry_body(&key, Timestamp::from_millis(1));
        assert_eq!(body, r#"{"key_b64":"/w==","expires_ms":1}"#);
    }
}
