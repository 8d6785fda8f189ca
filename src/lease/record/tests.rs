//! What is written down is read back, and what was not written by us is never taken for a record.

use super::*;
use crate::{
    ErrorKind, Leases, Store,
    lease::Request,
    store::Probing,
    testkit::{FaultStore, SeededGenerator, TestClock},
};
use proptest::{collection::vec, option, prelude::*};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex},
};

fn key(bytes: impl AsRef<[u8]>) -> Key {
    Key::new(bytes).unwrap()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn slot(key: Key) -> KeySlot {
    KeySlot { namespace: Namespace::default(), key }
}

fn free() -> Record {
    Record {
        format: 1,
        write_id: [1; 16].into(),
        revision: 7,
        last_fence: Some(Fence::new(1_767_227_400_000_000).unwrap()),
        lease: None,
        waiting: None,
        written: at(1_767_227_400_123),
        hour: Some(Hour::of(at(1_767_227_430_000)).unwrap()),
        beat_stamp: None,
        forced: None,
        epoch: 0,
        asked: Vec::new(),
    }
}

fn held() -> Record {
    Record {
        lease: Some(Lease {
            id: [2; 16].into(),
            request_id: Some("job-7".to_owned()),
            owner: "wörker/7".into(),
            process: [3; 16].into(),
            note: Some(Bytes::from_static(b"any \xff bytes")),
            fence: Fence::new(1_767_227_400_000_000).unwrap(),
            granted: at(1_767_227_400_000),
            expires: at(1_767_227_430_000),
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            beat: [4; 16].into(),
            lasts: None,
            boot: None,
            session: None,
        }),
        waiting: Some(Mark {
            process: [5; 16].into(),
            since: at(1_767_227_401_000),
            interval: Duration::from_millis(250),
        }),
        ..free()
    }
}

/// A body of these fields, its checksum right.
fn sealed(message: &wire::Record, more: &[u8]) -> Bytes {
    let mut body = message.encode_to_vec();
    body.extend_from_slice(more);
    let checksum = crc32c::crc32c(&body);
    body.push(CHECKSUM_TAG);
    body.extend_from_slice(&checksum.to_le_bytes());
    body.into()
}

/// The fields of a record, to be changed into what we would never write.
fn fields(key: &Key, record: &Record) -> wire::Record {
    let mut message = wire::Record::decode(encode(key, record)).unwrap();
    message.checksum = 0;
    message
}

fn times() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        // All that the clock can count, and then what is likely.
        (i64::MIN / 1000..=i64::MAX / 1000).prop_map(at),
        (1_700_000_000_000i64..1_900_000_000_000).prop_map(at),
    ]
}

fn expiries() -> impl Strategy<Value = Timestamp> {
    (-62_167_219_200_000i64..=253_402_300_799_999).prop_map(at)
}

fn fences() -> impl Strategy<Value = Fence> {
    (1u64..1 << 53).prop_map(|number| Fence::new(number).unwrap())
}

fn leases() -> impl Strategy<Value = Lease> {
    let names = (any::<[u8; 16]>(), option::of(".{0,64}"), ".{0,64}", any::<[u8; 16]>(), any::<[u8; 16]>());
    let rest = (option::of(vec(any::<u8>(), 0..100)), fences(), times(), expiries(), 1..=Ttl::MAX.as_millis());
    let ends = (option::of(any::<u64>()), option::of((any::<[u8; 16]>(), any::<u64>())));
    (names, rest, ends).prop_map(|(names, (note, fence, granted, expires, ttl), (lasts, boot))| {
        let (id, request_id, owner, process, beat) = names;
        Lease {
            id: id.into(),
            request_id,
            owner: owner.into(),
            process: process.into(),
            note: note.map(Bytes::from),
            fence,
            granted,
            expires,
            ttl: Ttl::new(Duration::from_millis(ttl)).unwrap(),
            beat: beat.into(),
            lasts: lasts.map(Duration::from_millis),
            boot: boot.map(|(id, at)| Boot { id: id.into(), at: Duration::from_millis(at) }),
            session: None,
        }
    })
}

prop_compose! {
    fn forced()(lease: [u8; 16], by in ".{0,20}", reason in ".{0,50}") -> Box<ForcedAway> {
        Box::new(ForcedAway { lease: lease.into(), by, reason })
    }
}

prop_compose! {
    fn marks()(process: [u8; 16], since in times(), interval: u64) -> Mark {
        Mark { process: process.into(), since, interval: Duration::from_millis(interval) }
    }
}

prop_compose! {
    fn records()(
        write_id: [u8; 16],
        revision: u64,
        fence in option::of(fences()),
        lease in option::of(leases()),
        waiting in option::of(marks()),
        written in times(),
        hour in option::of(expiries()),
        stamp in option::of(any::<i64>()),
        forced in option::of(forced()),
        epoch: u64,
    ) -> Record {
        Record {
            format: FORMAT,
            write_id: write_id.into(),
            revision,
            last_fence: fence.max(lease.as_ref().map(|lease| lease.fence)),
            lease,
            waiting,
            written,
            hour: hour.map(|at| Hour::of(at).unwrap()),
            beat_stamp: stamp.map(Timestamp::from_micros),
            forced,
            epoch,
            asked: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written(bytes in vec(any::<u8>(), 1..1024), record in records()) {
        let slot = slot(key(bytes));
        let body = slot.encode(&record).unwrap();
        prop_assert_eq!(slot.decode(body.clone()).unwrap(), record.clone());
        prop_assert_eq!(slot.encode(&record).unwrap(), body);
    }

    #[test]
    fn random_bytes_are_no_record(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(bytes.into()).is_err());
    }

    #[test]
    fn random_fields_under_a_right_checksum_are_read_exactly_or_refused(
        numbers: (u32, u64, u64, i64, u64),
        ids in vec(prop_oneof![Just(16usize), 0..40usize], 4),
        lease in option::of((any::<u64>(), any::<i64>(), any::<i64>(), any::<u64>())),
        mark in option::of((any::<i64>(), any::<u64>())),
        more in vec(any::<u8>(), 0..40),
    ) {
        let (format, revision, last_fence, written_ms, hour) = numbers;
        let id = |at: usize| Bytes::from(vec![7; ids[at]]);
        let message = wire::Record {
            format, key: Bytes::from_static(b"a"), write_id: id(0), revision, last_fence, written_ms, hour, checksum: 0,
            beat_stamp_us: mark.map(|(since_ms, _)| since_ms),
            forced: mark.map(|_| wire::Forced { lease: id(2), by: "me".into(), reason: String::new() }),
            epoch: revision,
            asked: Vec::new(),
            lease: lease.map(|(fence, granted_ms, expires_ms, ttl_ms)| wire::Lease {
                id: id(1), process: id(2), beat: id(3), fence, granted_ms, expires_ms, ttl_ms,
                lasts_ms: Some(ttl_ms), boot: Some(wire::Boot { id: id(1), at_ms: ttl_ms }), session: None,
                ..Default::default()
            }),
            waiting: mark.map(|(since_ms, interval_ms)| wire::Mark { process: id(0), since_ms, interval_ms }),
        };
        for (body, whole) in [(sealed(&message, &[]), true), (sealed(&message, &more), false)] {
            if let Ok((key, record)) = decode(body) && whole {
                prop_assert_eq!(fields(&key, &record), message.clone());
            }
        }
    }
}

#[test]
fn a_truncated_record_is_none() {
    let body = encode(&key("orders/42"), &held());
    for length in 0..body.len() {
        assert!(decode(body.slice(..length)).is_err(), "{length} bytes");
        assert!(decode(body.slice(body.len() - length..)).is_err(), "the last {length} bytes");
    }
    assert!(decode(body).is_ok());
}

#[test]
fn a_record_with_one_flipped_bit_is_none() {
    for record in [free(), held()] {
        let body = encode(&key("orders/42"), &record);
        for bit in 0..body.len() * 8 {
            let mut bytes = body.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(bytes.into()).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn nothing_and_zeros_and_more_than_a_record_are_none() {
    for length in 0..300 {
        assert!(decode(vec![0; length].into()).is_err(), "{length} zeros");
        assert!(decode(vec![0xff; length].into()).is_err(), "{length} times 255");
    }
    let body = encode(&key("a"), &held());
    assert!(decode([&body[..], b"\0"].concat().into()).is_err());
    assert!(decode([&body[..], &body[..]].concat().into()).is_err());
    assert!(decode(sealed(&wire::Record::default(), &[])).is_err(), "a right checksum over nothing");
}

#[test]
fn what_is_unreadable_is_corrupt_and_says_which_object() {
    let error = slot(key("orders/42")).decode(Bytes::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("default/meta/orders!2f42.pb") && text.contains("operator"), "{text}");
}

#[test]
fn the_record_of_another_key_is_corrupt_and_both_are_named() {
    let error = slot(key("orders/42")).decode(encode(&key("orders/43"), &held())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("orders/42") && text.contains("orders/43"), "{text}");
}

/// What is wrong, and how it came to be.
type Spoilt = (&'static str, fn(&mut wire::Record));

#[test]
fn what_we_would_never_write_is_not_read_either() {
    fn lease(message: &mut wire::Record) -> &mut wire::Lease {
        message.lease.as_mut().unwrap()
    }
    let spoilt: [Spoilt; 15] = [
        ("fence", |message| message.last_fence = 1 << 53),
        ("fence", |message| message.last_fence = u64::MAX),
        ("fence", |message| lease(message).fence = 1 << 53),
        ("fence", |message| lease(message).fence = 0),
        ("higher fence", |message| lease(message).fence += 1),
        ("higher fence", |message| message.last_fence = 0),
        ("TTL", |message| lease(message).ttl_ms = 0),
        ("TTL", |message| lease(message).ttl_ms = u64::MAX),
        ("years", |message| lease(message).expires_ms = 253_402_300_800_000),
        ("no clock", |message| lease(message).expires_ms = i64::MAX),
        ("no clock", |message| lease(message).granted_ms = i64::MIN),
        ("no clock", |message| message.written_ms = i64::MAX),
        ("hour", |message| message.hour = 2_026_023_014),
        ("no format", |message| message.format = 0),
        ("key", |message| message.key = Bytes::new()),
    ];
    let good = fields(&key("a"), &held());
    assert!(decode(sealed(&good, &[])).is_ok());
    for (why, spoil) in spoilt {
        let mut message = good.clone();
        spoil(&mut message);
        let error = decode(sealed(&message, &[])).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
}

/// The files of each format. They are never written again: what they hold is in the stores of users.
fn golden() -> [(&'static str, Key, Record); 8] {
    let plain = Record { waiting: None, hour: None, ..held() };
    let bare = Lease { request_id: None, note: None, owner: "".into(), ..held().lease.unwrap() };
    [
        ("v1/free", key("orders/42"), free()),
        ("v1/held", key("orders/42"), held()),
        ("v1/not_utf8", key(b"\xff\x00/\xc3"), Record { lease: Some(bare), ..plain.clone() }),
        ("v1/hashed", key("long/".repeat(200)), plain),
        ("v2/free", key("orders/42"), second(free())),
        ("v2/held", key("orders/42"), second(held())),
        ("v3/under_session", key("orders/42"), third(held())),
        ("v3/session", key("session/leases/08080808080808080808080808080808"), session()),
    ]
}

/// A lease that is held under a session.
fn third(record: Record) -> Record {
    let name = SessionName { id: [8; 16].into(), lease: [9; 16].into() };
    let record = second(record);
    let lease = record.lease.map(|lease| Lease { request_id: None, session: Some(name), ..lease });
    Record { format: 3, lease, ..record }
}

/// The record of a session, whose process is asked for a lease.
fn session() -> Record {
    let record = second(held());
    let away = ForcedAway { lease: [2; 16].into(), by: "alice".to_owned(), reason: "it hangs".to_owned() };
    let asked = vec![Asked { namespace: Namespace::default(), key: key("orders/42"), away }];
    Record { format: 3, asked, ..record }
}

#[test]
fn a_record_has_the_third_format_only_while_it_has_to_do_with_sessions() {
    let stamp = Stamp { write_id: [4; 16].into(), revision: 8 };
    let named = third(held());
    assert_eq!(named.clone().with_its_format().format, 3);
    assert_eq!(session().with_its_format().format, 3);
    assert_eq!(Record::without_lease(Some(&named), stamp, at(0)).with_its_format().format, 2, "given back");
    assert_eq!(Record::after(Some(&named), None, stamp, at(0)).with_its_format().format, 3, "left as it is");
    let later = Record { format: 4, ..named };
    assert_eq!(Record::without_lease(Some(&later), stamp, at(0)).format, 4, "not ours to write");
    assert!(later.must_be_ours(&key("orders/42")).unwrap_err().to_string().contains("use a newer version"));
}

#[test]
fn a_session_in_an_older_format_is_damage() {
    for record in [third(held()), session()] {
        let body = encode(&key("orders/42"), &Record { format: 2, ..record });
        assert!(decode(body).unwrap_err().contains("format 2 does not have"));
    }
}

/// A record with all that the second format has added.
fn second(record: Record) -> Record {
    let forced = ForcedAway { lease: [6; 16].into(), by: "alice".to_owned(), reason: "its host is gone".to_owned() };
    let lease = record.lease.map(|lease| Lease {
        lasts: Some(Duration::from_millis(45_001)),
        boot: Some(Boot { id: [7; 16].into(), at: Duration::from_millis(123_456) }),
        session: None,
        ..lease
    });
    Record {
        format: 2,
        beat_stamp: lease.as_ref().map(|_| Timestamp::from_micros(1_767_227_400_123_456)),
        forced: lease.is_none().then(|| Box::new(forced)),
        epoch: 3,
        lease,
        ..record
    }
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name).with_extension("pb")
}

#[test]
#[ignore = "writes the files that are missing; they are committed"]
fn write_the_golden_files() {
    for (name, key, record) in golden() {
        if !golden_path(name).exists() {
            std::fs::write(golden_path(name), encode(&key, &record)).unwrap();
        }
    }
}

#[test]
fn what_was_ever_written_is_read_for_ever() {
    for (name, key, record) in golden() {
        let body = Bytes::from(std::fs::read(golden_path(name)).unwrap());
        assert_eq!(decode(body.clone()).unwrap(), (key.clone(), record.clone()), "{name}");
        assert_eq!(slot(key.clone()).decode(body.clone()).unwrap(), record, "{name}");
        assert_eq!(encode(&key, &record), body, "{name}: the same values are the same bytes");
    }
    assert!(key("long/".repeat(200)).name().contains("!h"));
}

/// A store in memory on a clock that is moved by hand.
async fn bed() -> (FaultStore, TestClock, Leases) {
    let clock = TestClock::at(at(1_767_227_400_000));
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock();
    let store = builder.clock(Arc::new(clock.clone())).probing(Probing::Never).open().await.unwrap();
    (objects, clock, store.leases("default").unwrap())
}

/// As a later version might write it: with a field that we do not know.
fn newer(record: &Record) -> Bytes {
    let mut message = fields(&key("a"), record);
    message.format = SESSION_FORMAT + 1;
    // Field 14, a string.
    sealed(&message, b"\x72\x06future")
}

const NAME: &str = "default/meta/a.pb";

#[tokio::test]
async fn a_record_of_a_later_format_is_shown_and_every_write_is_refused() {
    let request = Request::new(Duration::from_secs(30));
    let id = held().lease.unwrap().id;
    for (record, passed) in [(free(), 0), (held(), 0), (held(), 60)] {
        let (objects, clock, leases) = bed().await;
        let body = newer(&record);
        objects.put_object(NAME, body.clone());
        clock.advance(Duration::from_secs(passed));
        let running = record.lease.is_some() && passed == 0;
        for status in [leases.peek(&key("a")).await.unwrap(), leases.get(&key("a")).await.unwrap()] {
            assert_eq!(status.holder.is_some(), running);
            assert_eq!(status.last_fence, record.last_fence);
        }
        let mut refused = Vec::new();
        if !running {
            refused.push(leases.acquire(&key("a"), &request).await.unwrap_err());
            refused.push(leases.acquire_within(&key("a"), &request, Duration::from_secs(9)).await.unwrap_err());
        } else {
            assert!(leases.acquire(&key("a"), &request).await.unwrap().granted().is_none());
            refused.push(leases.renew_by_id(&key("a"), id, None).await.unwrap_err());
        }
        if record.lease.is_some() {
            refused.push(leases.release_by_id(&key("a"), id).await.unwrap_err());
        }
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("newer version"), "{error}");
        }
        assert_eq!(objects.object(NAME).unwrap().0, body, "it stays as it was");
    }
}

#[tokio::test]
async fn a_record_of_a_later_format_gets_no_waiting_mark() {
    let (objects, clock, leases) = bed().await;
    let waiting = tokio::spawn({
        let request = Request::new(Duration::from_secs(30));
        objects.put_object(NAME, newer(&Record { waiting: None, ..held() }));
        async move { leases.acquire_within(&key("a"), &request, Duration::from_secs(20)).await }
    });
    for change in 1..8u64 {
        clock.wait_for_sleepers(1).await;
        let mut record = Record { waiting: None, revision: 7 + change, ..held() };
        let fence = Fence::new(1_767_227_400_000_000 + change).unwrap();
        record.last_fence = Some(fence);
        record.lease.as_mut().unwrap().fence = fence;
        let body = newer(&record);
        objects.put_object(NAME, body.clone());
        clock.advance(Duration::from_secs(2));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(objects.object(NAME).unwrap().0, body, "it stays as it was");
    }
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test]
async fn no_two_writes_have_equal_bodies_even_while_time_stands_still() {
    let (objects, _clock, leases) = bed().await;
    let bodies = Arc::new(Mutex::new(Vec::new()));
    objects.set_observer(Box::new({
        let bodies = Arc::clone(&bodies);
        move |applied| {
            if applied.name == NAME {
                bodies.lock().unwrap().push(applied.body.clone().unwrap());
            }
        }
    }));
    let request = Request::new(Duration::from_secs(30)).owner("one");
    for _ in 0..20 {
        let grant = leases.acquire(&key("a"), &request).await.unwrap().granted().unwrap();
        let _ = leases.renew(&grant).await.unwrap();
        let _ = leases.renew(&grant).await.unwrap();
        leases.release(&grant).await.unwrap();
    }
    let bodies = bodies.lock().unwrap();
    assert_eq!(bodies.len(), 80);
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), 80);
}

#[tokio::test]
async fn a_revision_that_cannot_be_followed_is_an_error_and_no_panic() {
    let (objects, _clock, leases) = bed().await;
    objects.put_object(NAME, encode(&key("a"), &Record { revision: u64::MAX, ..free() }));
    leases.peek(&key("a")).await.unwrap();
    let error = leases.acquire(&key("a"), &Request::new(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
