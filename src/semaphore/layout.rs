//! The names of the objects of semaphores: a contract with other tools, spelt here and nowhere else.
//!
//! ```text
//! <namespace>/semaphore/<name>.pb                  the record of one semaphore
//! <namespace>/.semaphore-index/<hour>/<name>       an index entry: a slot may end in this hour
//! ```

use crate::{
    Hour, Key, Namespace,
    clock::Timestamp,
    index,
    kind::{Content, Folder},
    storage::Name,
};
use bytes::Bytes;

const RECORDS: &str = "semaphore";
const INDEX: &str = ".semaphore-index";
const SUFFIX: &str = ".pb";

/// Where the records of a namespace are.
pub(super) fn records(namespace: &str) -> String {
    [namespace, "/", RECORDS, "/"].concat()
}

/// The record of the semaphore with this [name](Key::name).
pub(super) fn record(namespace: &str, key_name: &str) -> Name {
    Name::new([&records(namespace), key_name, SUFFIX].concat())
}

/// The [name](Key::name) of the semaphore whose record has this name, below the folder of records.
pub(super) fn key_name<'a>(records: &str, name: &'a Name) -> Option<&'a str> {
    name.as_str().strip_prefix(records)?.strip_suffix(SUFFIX)
}

/// Whether the name of an object, below the folder of records, is that of a record.
pub(super) fn is_record(below: &str) -> bool {
    below.strip_suffix(SUFFIX).is_some_and(|name| Key::from_name(name).is_ok())
}

/// Where the entries of a namespace are filed.
pub(super) fn index_folder(namespace: &str) -> String {
    [namespace, "/", INDEX, "/"].concat()
}

/// The entry of a semaphore in the hour in which a slot of it ends.
pub(super) fn entry(namespace: &Namespace, key: &Key, hour: Hour) -> Name {
    index::entry(&index_folder(namespace.as_str()), hour, &key.name())
}

/// The body of an entry, for people who look.
pub(super) fn entry_body(key: &Key, expires: Timestamp) -> Bytes {
    let mut entry = serde_json::to_value(key).unwrap_or_default();
    entry["expires_ms"] = expires.as_millis().into();
    entry.to_string().into()
}

/// The folders that semaphores have in one that lies right in the store.
pub(super) fn folders(top: &str) -> Vec<Folder> {
    if Namespace::new(top).is_err() {
        return Vec::new();
    }
    let folder = |path: String, content| Folder { top: top.to_owned(), path, content };
    vec![folder(records(top), Content::Records), folder(index_folder(top), Content::Entries)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semaphore_is_named_after_its_key_and_filed_by_the_hour() {
        let key = Key::new("gpu/a").unwrap();
        let name = record("default", &key.name());
        assert_eq!(name.as_str(), "default/semaphore/gpu!2fa.pb");
        assert_eq!(key_name(&records("default"), &name), Some("gpu!2fa"));
        let hour = "2026010100".parse().unwrap();
        assert_eq!(entry(&Namespace::default(), &key, hour).as_str(), "default/.semaphore-index/2026010100/gpu!2fa");
        let body = entry_body(&key, Timestamp::from_millis(1));
        assert_eq!(body, r#"{"expires_ms":1,"key":"gpu/a"}"#);
        assert!(folders(".leasehold").is_empty() && folders("default").len() == 2);
    }
}
