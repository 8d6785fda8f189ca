//! The names of the objects of leases: a contract with other tools, spelt here and nowhere else.
//!
//! ```text
//! <namespace>/meta/<key>.pb                  the record of one key
//! <namespace>/.lease-index/<hour>/<key>      its index entry
//! <namespace>/.session-index/<session>/<key> the entry of a lease that is held under a session
//! <namespace>/.aside/<when>-<id>/<key>.pb    a copy of a record that could not be read
//! ```

use crate::{
    Hour, Key, Namespace, Result, SessionId,
    clock::Timestamp,
    kind::{Content, Folder},
    storage::{Name, layout::OURS},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const RECORDS: &str = "meta";
const INDEX: &str = ".lease-index";
const ASIDE: &str = ".aside";
const SUFFIX: &str = ".pb";

/// What the keys of sessions begin with, in the library's own namespace. None of them is ever granted twice, so their records
/// may be deleted when they are over.
pub(crate) const SESSIONS: &str = "session/";

/// Whether a key in this namespace is that of a session.
pub(crate) fn is_session(namespace: &str, key: &Key) -> bool {
    namespace == OURS && key.as_bytes().starts_with(SESSIONS.as_bytes())
}

/// What the keys of those sessions begin with that leases are held under.
const LEASE_SESSIONS: &str = "session/leases/";

const SESSION_INDEX: &str = ".session-index";

/// The key of a session's own lease.
pub(crate) fn session_key(id: SessionId) -> Result<Key> {
    Key::new(format!("{LEASE_SESSIONS}{id}"))
}

/// The session that a key in this namespace is of, if leases are held under it.
pub(crate) fn session_of(namespace: &str, key: &Key) -> Option<SessionId> {
    let id = key.as_bytes().strip_prefix(LEASE_SESSIONS.as_bytes()).filter(|_| namespace == OURS)?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// Where the entries of leases under sessions are, in one folder for each session.
pub(crate) fn session_index(namespace: &str) -> String {
    [namespace, "/", SESSION_INDEX, "/"].concat()
}

/// Where the entries of leases under this session are.
pub(crate) fn session_folder(namespace: &str, id: SessionId) -> String {
    format!("{namespace}/{SESSION_INDEX}/{id}/")
}

/// The entry of a key that is held under a session.
pub(crate) fn session_entry(namespace: &Namespace, key: &Key, id: SessionId) -> Name {
    Name::new(format!("{namespace}/{SESSION_INDEX}/{id}/{}", key.name()))
}

/// The session and the [name](Key::name) of the key that an entry stands for.
pub(crate) fn parse_session_entry<'a>(index: &str, name: &'a Name) -> Option<(SessionId, &'a str)> {
    let (session, key) = name.as_str().strip_prefix(index)?.split_once('/')?;
    Some((session.parse().ok()?, key))
}

/// Where the records of a namespace are.
pub(crate) fn records(namespace: &str) -> String {
    [namespace, "/", RECORDS, "/"].concat()
}

/// The record of the key with this [name](Key::name).
pub(crate) fn record(namespace: &str, key_name: &str) -> Name {
    Name::new([namespace, "/", RECORDS, "/", key_name, SUFFIX].concat())
}

/// The [name](Key::name) of the key whose record has this name, below the folder of records.
pub(crate) fn key_name<'a>(records: &str, name: &'a Name) -> Option<&'a str> {
    name.as_str().strip_prefix(records)?.strip_suffix(SUFFIX)
}

/// Whether the name of an object, below the folder of records, is that of a record.
pub(crate) fn is_record(below: &str) -> bool {
    below.strip_suffix(SUFFIX).is_some_and(|name| Key::from_name(name).is_ok())
}

/// The last part of a record's name, without what all of them end in.
pub(crate) fn without_suffix(last: &str) -> &str {
    last.strip_suffix(SUFFIX).unwrap_or(last)
}

/// Where the entries of a namespace are filed.
pub(crate) fn index_folder(namespace: &str) -> String {
    [namespace, "/", INDEX, "/"].concat()
}

/// The entry of a key in the hour of its lease's expiry.
pub(crate) fn entry(namespace: &Namespace, key: &Key, hour: Hour) -> Name {
    // As [`index::entry`] has it, in one piece: this is made with every grant that must be filed.
    Name::new(format!("{namespace}/{INDEX}/{hour}/{}", key.name()))
}

/// Where a copy of a record goes that could not be read.
pub(crate) fn aside(namespace: &Namespace, key: &Key, when: &str, id: impl std::fmt::Display) -> Name {
    Name::new(format!("{namespace}/{ASIDE}/{when}-{id}/{}{SUFFIX}", key.name()))
}

/// Whether a folder right in the store can have leases: a namespace, or the library's own.
pub(crate) fn has_leases(top: &str) -> bool {
    Namespace::new(top).is_ok() || top == OURS
}

/// The folders that leases have in one that lies right in the store.
pub(crate) fn folders(top: &str) -> Vec<Folder> {
    if !has_leases(top) {
        return Vec::new();
    }
    let folder = |path: String, content| Folder { top: top.to_owned(), path, content };
    let mut folders = vec![
        folder(records(top), Content::Records),
        folder(index_folder(top), Content::Entries),
        folder(format!("{top}/{ASIDE}/"), Content::Aside),
    ];
    // The library's own leases are under no session.
    if top != OURS {
        folders.push(folder(session_index(top), Content::Filed));
    }
    folders
}

/// What stands in an entry, for people who look.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) expires_ms: i64,
}

/// The body of an entry.
pub(crate) fn entry_body(key: &Key, expires: Timestamp) -> Bytes {
    let entry = Entry { key: key.clone(), expires_ms: expires.as_millis() };
    serde_json::to_vec(&entry).unwrap_or_default().into()
}

/// The key that an entry says it is of.
pub(crate) fn key_in_entry(body: &[u8]) -> Option<Key> {
    serde_json::from_slice::<Entry>(body).ok().map(|entry| entry.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stands_in_its_hour_and_says_its_key() {
        let key = Key::new("orders/42").unwrap();
        let expires = Timestamp::from_millis(1_767_225_600_001);
        let hour = Hour::of(expires).unwrap();
        let name = entry(&Namespace::default(), &key, hour);
        assert_eq!(name.as_str(), "default/.lease-index/2026010100/orders!2f42");
        assert_eq!(name, crate::index::entry(&index_folder("default"), hour, &key.name()));
        let body = entry_body(&key, expires);
        assert_eq!(body, r#"{"key":"orders/42","expires_ms":1767225600001}"#);
        assert_eq!(key_in_entry(&body), Some(key));
        assert_eq!(key_in_entry(b"{}"), None);
    }

    #[test]
    fn a_record_is_named_after_its_key() {
        let name = record("default", "orders!2f42");
        assert_eq!(name.as_str(), "default/meta/orders!2f42.pb");
        assert_eq!(key_name(&records("default"), &name), Some("orders!2f42"));
        assert_eq!(key_name(&records("default"), &Name::new("default/meta/orders")), None);
    }

    #[test]
    fn a_key_that_is_no_text_is_in_base64() {
        let key = Key::new([0xff]).unwrap();
        let body = entry_body(&key, Timestamp::from_millis(1));
        assert_eq!(body, r#"{"key_b64":"/w==","expires_ms":1}"#);
    }
}
