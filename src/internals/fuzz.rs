//! What must be true of any bytes at all: each function takes some, and panics if it is not.
//!
//! The targets in `fuzz/` hand them what a fuzzer makes up, and `tests/models` what was worth keeping of that. Where a
//! checksum would keep a fuzzer out, the bytes are given one.

#![allow(clippy::panic, clippy::expect_used, reason = "a broken promise is a panic here")]

use crate::{
    Decoded, Key, Namespace, Settings,
    clock::{Moment, Timestamp},
    decision::{self, Ages, Bounds, MarkerSlot, TxnId},
    index,
    lease::{self, ended, layout, record},
    storage::{
        Name,
        cas::{self, Slot},
        seal::seal,
        store_json::StoreSlot,
        url,
    },
    store, timing,
};
use bytes::{BufMut, Bytes, BytesMut};
use std::str;
use uuid::Uuid;

pub use crate::{
    job::fuzz::{ledger, segment},
    stream::segment::fuzz as stream_segment,
};

/// The transaction that the markers of a corpus are about.
const TXN: &str = "019b76da-a800-7000-8000-000000000001";

/// A record that can be read is the same when it is written again, and can be judged at any time.
pub fn record(data: &[u8]) {
    record_body(Bytes::copy_from_slice(data));
    let mut sealed = BytesMut::from(data);
    sealed.put_u8(record::CHECKSUM_TAG);
    sealed.put_u32_le(crc32c::crc32c(data));
    record_body(sealed.freeze());
}

fn record_body(body: Bytes) {
    let Ok((key, record)) = record::decode(body) else { return };
    let again = record::decode(record::encode(&key, &record)).expect("what was read can be written");
    assert_eq!(again, (key, record.clone()));
    let Ok(shared) = store::propose(&Settings::default()) else { return };
    let lease::Shared { max_clock_skew, max_ttl, .. } = lease::Shared::of(&shared);
    for now in [i64::MIN, 0, i64::MAX] {
        let now = Timestamp::from_micros(now);
        let known = ended::Known {
            modified: Some(now),
            time: Some(now),
            own: None,
            gone: None,
            session_over: None,
            now: Moment::default(),
            host: true,
            boot: None,
        };
        let bounds = ended::Bounds { max_clock_skew, max_ttl, stamp_slack: Some(max_ttl) };
        ended::judge(Some(&record), now, &known, None, &bounds);
    }
}

/// A marker that can be read is equal when it is written again, and its ages can be computed whatever it says.
pub fn marker(data: &[u8]) {
    let Ok(txn) = TXN.parse::<TxnId>() else { return };
    let slot = MarkerSlot(txn);
    for body in bodies(data) {
        let Ok(marker) = slot.decode(body) else { continue };
        let again = slot.encode(&marker).expect("what was read can be written");
        assert_eq!(slot.decode(again).expect("what was written can be read"), marker);
        let _ = slot.entry(marker.expires());
    }
    // Any sixteen bytes may come as the name of a transaction, and if they are one they have ages.
    let Some(id) = data.first_chunk::<16>() else { return };
    let Ok(txn) = Uuid::from_bytes(*id).to_string().parse::<TxnId>() else { return };
    let Ok(shared) = store::propose(&Settings::default()) else { return };
    let ages = Ages::of(txn, &Bounds::of(&shared));
    assert!(txn.begun() < ages.closes() && ages.closes() < ages.verdict_by() && ages.verdict_by() < ages.ends());
    assert!(ages.expiry(Timestamp::from_micros(i64::MIN)) == ages.ends());
}

/// Shared settings that can be read are equal when they are written again.
pub fn store_json(data: &[u8]) {
    for body in bodies(data) {
        let Ok(record) = StoreSlot.decode(body) else { continue };
        let again = StoreSlot.encode(&record).and_then(|body| StoreSlot.decode(body)).expect("as it was read");
        assert_eq!(cas::Record::revision(&again), cas::Record::revision(&record));
        match (store::read(&record), store::read(&again)) {
            (Ok(once), Ok(again)) => assert_eq!(once, again),
            (Err(_), Err(_)) => {}
            (once, again) => panic!("{once:?} became {again:?}"),
        }
    }
}

/// As they are, and if they are a JSON object with the checksum that they should have.
fn bodies(data: &[u8]) -> Vec<Bytes> {
    let sealed = serde_json::from_slice::<serde_json::Value>(data).ok().and_then(|json| seal(&json).ok());
    [Some(data.to_vec()), sealed].into_iter().flatten().map(Bytes::from).collect()
}

/// An index entry that is taken for one has the name that we would give it, and so has its body.
pub fn entry(data: &[u8]) {
    if let Ok(entry) = serde_json::from_slice::<layout::Entry>(data) {
        let body = layout::entry_body(&entry.key, Timestamp::from_millis(entry.expires_ms));
        let again: layout::Entry = serde_json::from_slice(&body).expect("what was written can be read");
        assert_eq!(again.key, entry.key);
    }
    let Ok(name) = str::from_utf8(data) else { return };
    let namespace = Namespace::default();
    let name = Name::new(name);
    if let Some((hour, entry)) = index::parse_entry(&layout::index_folder("default"), &name)
        && let Ok(Decoded::Key(key)) = Key::from_name(entry)
    {
        assert_eq!(layout::entry(&namespace, &key, hour), name);
    }
    if let Some((hour, entry)) = index::parse_entry(decision::layout::INDEX, &name)
        && let Ok(txn) = entry.parse::<TxnId>()
    {
        assert_eq!(decision::layout::entry(txn, hour), name);
    }
}

/// A key comes back from its name and from JSON, and a name that is taken for a key's is the one that the key has.
pub fn key(data: &[u8]) {
    if let Ok(key) = Key::new(data) {
        let name = key.name();
        assert!(name.len() <= 200 && name.bytes().all(|byte| b"!-_".contains(&byte) || byte.is_ascii_alphanumeric()));
        match Key::from_name(&name).expect("a name of ours is one") {
            Decoded::Key(again) => assert_eq!(again, key),
            Decoded::Hashed => assert!(name.len() > 66),
        }
        assert!(name.starts_with(&Key::name_prefix(&data[..data.len() / 2])));
        let json = serde_json::to_vec(&key).expect("any key is JSON");
        assert_eq!(serde_json::from_slice::<Key>(&json).expect("any key is JSON"), key);
    }
    if let Ok(key) = serde_json::from_slice::<Key>(data) {
        assert!((1..=1024).contains(&key.as_bytes().len()));
    }
    if let Ok(name) = str::from_utf8(data)
        && let Ok(Decoded::Key(key)) = Key::from_name(name)
    {
        assert_eq!(key.name(), name);
    }
}

/// A URL is taken without secrets, and what messages call the store names the same one again.
pub fn url(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match url::parse(text, Vec::new()) {
        Ok((url, _)) => {
            assert!(url.password().is_none(), "{text:?} was taken with a password");
            let place = url::place(&url);
            let (again, options) = url::parse(&place, Vec::new()).expect("the same without options");
            assert!(options.is_empty());
            assert_eq!(again.host_str(), url.host_str(), "{place}");
            assert_eq!(url::prefix(&again).ok(), url::prefix(&url).ok(), "{place}");
        }
        Err(error) => {
            let url = url::Url::parse(text).ok();
            let password = url.as_ref().and_then(|url| url.password()).filter(|password| password.len() > 8);
            // One that stands elsewhere as well may be shown there: as the URL was read, where tabs and line ends part
            // nothing, and an escape may end like a password begins.
            let once = |password: &&str| url.as_ref().is_some_and(|url| url.as_str().matches(password).count() == 1);
            if let Some(password) = password.filter(once) {
                assert!(!error.to_string().contains(password), "{error}");
            }
        }
    }
}

/// Settings from JSON; see [`settings_hold`].
pub fn settings(data: &[u8]) {
    if let Ok(settings) = serde_json::from_slice::<Settings>(data) {
        settings_hold(&settings);
    }
}

/// Settings are the same after being written down, and those that are taken are within what the code can count.
pub fn settings_hold(settings: &Settings) {
    let json = serde_json::to_vec(settings).expect("settings can be written down");
    assert_eq!(&serde_json::from_slice::<Settings>(&json).expect("what was written can be read"), settings);
    if let Ok(shared) = settings.validate().and_then(|()| store::propose(settings)) {
        assert!(shared.admit(&settings.shared()).is_ok());
        let _ = settings.sweep.validate(timing::least_margin(shared.max_clock_skew));
    }
}
