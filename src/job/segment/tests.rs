//! A segment is read as it was written, and nothing else is taken for one.

use super::*;
use crate::job::id::Class;
use proptest::{collection::vec, option, prelude::*};
use std::path::PathBuf;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn head(pack: bool) -> Head {
    Head {
        segment: SegmentId::of_request("emails", "r", 0, 3, Class::Normal),
        write_id: [9; 16].into(),
        made: at(1_767_227_400_123),
        txn: None,
        request: false,
        source: None,
        pack,
    }
}

fn job(priority: i16, due: i64, args: impl Into<Bytes>) -> NewJob {
    NewJob { priority, due: at(due), parts: vec![("args".into(), args.into())], ..NewJob::default() }
}

fn full_job() -> NewJob {
    NewJob {
        priority: -5,
        due: at(1_767_227_400_500),
        kind: Some("send".into()),
        tenant: Some("team 7".into()),
        key: Some("user/7".into()),
        unique_key: Some("welcome/7".into()),
        caller_id: Some("018f-own".into()),
        max_attempts: Some(3),
        timeout: Some(Duration::from_millis(1500)),
        history: History {
            id: Some(SegmentId::of_request("other", "x", 0, 3, Class::Normal).job(17)),
            attempts: 2,
            stalls: 1,
            group: 8,
            fence: Some(Fence::new(1_767_227_400_000_000).unwrap()),
            error: Some("no route to höst".into()),
            reason: None,
        },
        parts: vec![
            ("args".into(), Bytes::from_static(b"{\"to\":7}")),
            ("vm_state".into(), Bytes::from(vec![b'x'; 3000])),
            ("empty".into(), Bytes::new()),
        ],
    }
}

fn written(head: &Head, jobs: &[NewJob]) -> Bytes {
    encode(head, jobs).unwrap().body
}

/// What a reader finds of a job, to compare with what was given.
fn found(segment: &Segment, index: u16) -> NewJob {
    let entry = &segment.table.jobs[usize::from(index)];
    let parts = entry.parts.iter().map(|(name, _)| (Arc::clone(name), segment.part(index, name).unwrap())).collect();
    NewJob::again(entry, parts)
}

fn same(a: &NewJob, b: &NewJob) -> bool {
    let sorted = |job: &NewJob| {
        let mut parts = job.parts.clone();
        parts.sort();
        parts
    };
    let rest = |job: &NewJob| format!("{:?}", NewJob { parts: Vec::new(), ..job.clone() });
    sorted(a) == sorted(b) && rest(a) == rest(b)
}

prop_compose! {
    fn jobs()(
        priority in prop_oneof![Just(0i16), any::<i16>()],
        due in 0i64..1_900_000_000_000,
        texts in vec(option::of("[a-zé]{1,20}"), 5),
        limits in (option::of(1u32..), option::of(1u64..1 << 50)),
        history in (any::<u32>(), any::<u8>(), any::<u16>(), 0u64..1 << 53, option::of(".{1,50}"), option::of(any::<u16>())),
        parts in proptest::collection::btree_map("[a-z_]{1,8}", vec(any::<u8>(), 0..2000), 0..4),
    ) -> NewJob {
        let mut texts = texts.into_iter().map(|text| text.map(Arc::from));
        let (attempts, stalls, group, fence, error, id) = history;
        NewJob {
            priority,
            due: at(due),
            kind: texts.next().unwrap(),
            tenant: texts.next().unwrap(),
            key: texts.next().unwrap(),
            unique_key: texts.next().unwrap(),
            caller_id: texts.next().unwrap(),
            max_attempts: limits.0,
            timeout: limits.1.map(Duration::from_millis),
            history: History {
                id: id.map(|index| SegmentId::of_request("o", "x", 0, 3, Class::Normal).job(index)),
                attempts,
                stalls,
                group,
                fence: Fence::new(fence).ok(),
                error: error.map(Arc::from),
                reason: Reason::from_number(u32::from(stalls) % 8),
            },
            parts: parts.into_iter().map(|(name, bytes)| (name.into(), bytes.into())).collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_segment_is_read_as_it_was_written(jobs in vec(jobs(), 1..40), pack: bool, txn: Option<[u8; 16]>) {
        let head = Head { txn, request: txn.is_some(), source: txn.map(|_| "other".to_owned()), ..head(pack) };
        let Encoded { body, indexes } = encode(&head, &jobs).unwrap();
        let segment = Segment::decode(&body).unwrap();
        prop_assert_eq!(segment.table.segment, head.segment);
        prop_assert_eq!(segment.table.write_id, head.write_id);
        prop_assert_eq!((segment.table.txn, segment.table.request), (head.txn, head.request));
        prop_assert_eq!(&segment.table.source, &head.source);
        for (given, index) in jobs.iter().zip(&indexes) {
            prop_assert!(same(given, &found(&segment, *index)));
        }
        let order: Vec<_> = segment.table.jobs.iter().map(|job| (job.priority, job.due)).collect();
        prop_assert!(order.is_sorted());
        let facts = segment.table.facts();
        prop_assert_eq!(facts.runs.iter().map(|run| usize::from(run.len())).sum::<usize>(), jobs.len());
        prop_assert_eq!(facts.fence, jobs.iter().filter_map(|job| job.history.fence).max());
    }

    #[test]
    fn any_part_is_found_by_range_from_the_table_alone(jobs in vec(jobs(), 1..20), pack: bool, which: prop::sample::Index) {
        let Encoded { body, indexes } = encode(&head(pack), &jobs).unwrap();
        let given = which.index(jobs.len());
        let index = indexes[given];
        let length = head_length(&body).unwrap();
        let table = Table::decode(&body[..length]).unwrap();
        for (name, bytes) in &jobs[given].parts {
            let (_, part) = table.jobs[usize::from(index)].parts.iter().find(|(known, _)| known == name).unwrap();
            let range = table.block(part.block).unwrap();
            prop_assert!(range.is_empty() || table.ranges([index].into_iter(), Some(&[name])) == [range.clone()]);
            let unpacked = BTreeMap::from([(part.block, table.unpack(part.block, body.slice(range)).unwrap())]);
            prop_assert_eq!(table.part(index, name, &unpacked).unwrap(), bytes);
        }
    }

    #[test]
    fn random_bytes_are_no_segment(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Segment::decode(&bytes.into()).is_err());
    }

    #[test]
    fn random_tables_under_right_checksums_are_read_or_refused(bytes in vec(any::<u8>(), 0..300), length in 0u32..400) {
        let _ = Segment::decode(&sealed(&bytes, length));
        let _ = Segment::decode(&sealed(&bytes, u32::try_from(bytes.len()).unwrap()));
    }
}

/// A head that fits, whatever the table says.
fn sealed(table: &[u8], length: u32) -> Bytes {
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&FORMAT.to_le_bytes());
    body.extend_from_slice(&[0, 0]);
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    body.extend_from_slice(table);
    body.extend_from_slice(&crc32c::crc32c(table).to_le_bytes());
    body.into()
}

#[test]
fn no_flipped_bit_goes_unseen() {
    for pack in [false, true] {
        let body = written(&head(pack), &[full_job(), job(0, 5, vec![7; 200])]);
        for bit in 0..body.len() * 8 {
            let mut bytes = body.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = Segment::decode(&bytes.into()).unwrap_err();
            assert!(matches!(error, Unreadable::Damaged(_)), "bit {bit}: {error}");
        }
    }
}

#[test]
fn a_truncated_segment_or_one_with_more_behind_it_is_damaged() {
    let body = written(&head(true), &[full_job()]);
    for length in 0..body.len() {
        let error = Segment::decode(&body.slice(..length)).unwrap_err();
        assert!(matches!(error, Unreadable::Damaged(_)), "{length}");
    }
    assert!(Segment::decode(&[&body[..], b"\0"].concat().into()).is_err());
    assert!(Segment::decode(&body).is_ok());
}

#[test]
fn a_table_that_does_not_reach_says_how_much_it_needs() {
    let body = written(&head(true), &[full_job()]);
    assert_eq!(Table::decode(&body[..7]), Err(Unreadable::Short(PREFIX)));
    let needed = head_length(&body).unwrap();
    assert_eq!(Table::decode(&body[..needed - 1]), Err(Unreadable::Short(needed)));
    assert!(Table::decode(&body[..needed]).is_ok());
}

#[test]
fn a_later_format_is_told_apart_from_damage() {
    let body = written(&head(true), &[full_job()]);
    let mut later = body.to_vec();
    later[4..6].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    assert!(matches!(Segment::decode(&later.clone().into()), Err(Unreadable::Damaged(_))), "its checksum is wrong");
    let checksum = crc32c::crc32c(&later[..12]).to_le_bytes();
    later[12..16].copy_from_slice(&checksum);
    assert_eq!(Segment::decode(&later.clone().into()).unwrap_err(), Unreadable::Later(FORMAT + 1));
    later.truncate(PREFIX);
    assert_eq!(Table::decode(&later), Err(Unreadable::Later(FORMAT + 1)), "whatever follows");
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is() {
    let noise: Vec<u8> = (0..500u32).flat_map(|number| crc32c::crc32c(&number.to_le_bytes()).to_le_bytes()).collect();
    let zeros = vec![0; 2000];
    let size = |pack, part: &[u8]| written(&head(pack), &[job(0, 0, part.to_vec())]).len();
    assert!(size(true, &zeros) < size(false, &zeros) - 1900);
    assert_eq!(size(true, &noise), size(false, &noise));
}

#[test]
fn parts_of_one_name_lie_together_and_a_claim_reads_only_them() {
    let jobs: Vec<_> = (0..100)
        .map(|number| NewJob {
            parts: vec![("args".into(), vec![number; 100].into()), ("state".into(), vec![number; 9000].into())],
            ..NewJob::default()
        })
        .collect();
    let body = written(&head(false), &jobs);
    let table = Table::decode(&body).unwrap();
    let args = table.ranges(0..100, Some(&["args"]));
    assert_eq!(args.len(), 1);
    assert_eq!(args[0].len(), 10_000);
    let some = table.ranges(20..30, Some(&["state"]));
    assert!(some.len() == 1 && some[0].len() < 250_000, "{some:?}");
    assert_eq!(table.ranges(0..100, None).iter().map(|range| range.len()).sum::<usize>(), 910_000);
}

#[test]
fn limits_are_checked_before_anything_is_written() {
    let text = |length: usize| Some(Arc::from("x".repeat(length)));
    let part = |name: &str| (Arc::from(name), Bytes::new());
    let refused = [
        NewJob { kind: text(129), ..job(0, 0, "") },
        NewJob { caller_id: text(129), ..job(0, 0, "") },
        NewJob { key: text(0), ..job(0, 0, "") },
        NewJob { unique_key: text(129), ..job(0, 0, "") },
        NewJob { max_attempts: Some(0), ..job(0, 0, "") },
        NewJob { timeout: Some(Duration::from_micros(1)), ..job(0, 0, "") },
        NewJob { parts: vec![part("a"), part("a")], ..NewJob::default() },
        NewJob { parts: vec![part("")], ..NewJob::default() },
        NewJob { parts: vec![part(&"x".repeat(65))], ..NewJob::default() },
        NewJob { parts: (0..9).map(|n| part(&n.to_string())).collect(), ..NewJob::default() },
        job(0, 0, vec![0; LONGEST + 1]),
        job(0, 0, vec![0; LONGEST]),
    ];
    for job in refused {
        assert!(encode(&head(false), std::slice::from_ref(&job)).is_err(), "{job:.100?}");
    }
    assert!(encode(&head(false), &[]).is_err());
    assert!(encode(&head(false), &vec![job(0, 0, ""); MOST_JOBS + 1]).is_err());
    assert!(encode(&head(false), &vec![job(0, 0, ""); MOST_JOBS]).is_ok());
    let longest = NewJob { caller_id: text(128), ..job(0, 0, vec![0; LONGEST]) };
    assert!(
        Segment::decode(&written(&head(true), &[longest])).is_ok(),
        "a part that shrinks may be as long as a segment"
    );
}

#[test]
fn jobs_that_are_alike_are_one_run_for_the_ledger() {
    let body = written(&head(false), &vec![job(0, 5, "x"); 2000]);
    let facts = Table::decode(&body).unwrap().facts();
    assert_eq!((facts.runs.len(), facts.jobs), (1, 2000));
    let tenants = ["a", "a", "b", "b", "b"].map(|tenant| NewJob { tenant: Some(tenant.into()), ..job(0, 5, "x") });
    let facts = Table::decode(&written(&head(false), &tenants)).unwrap().facts();
    assert_eq!(facts.runs.iter().map(|run| run.len()).collect::<Vec<_>>(), [2, 3]);
}

/// What is wrong, and how it came to be.
type Spoilt = fn(&mut wire::Table);

#[test]
fn what_we_would_never_write_is_not_read_either() {
    let good = {
        let body = written(&head(false), &[full_job(), job(0, 1, "x")]);
        let length = head_length(&body).unwrap();
        wire::Table::decode(&body[PREFIX..length - CHECKSUM]).unwrap()
    };
    let read = |table: &wire::Table| {
        let bytes = table.encode_to_vec();
        Table::decode(&sealed(&bytes, u32::try_from(bytes.len()).unwrap()))
    };
    assert!(read(&good).is_ok());
    let spoilt: [Spoilt; 18] = [
        |table| table.segment = Bytes::from_static(b"short"),
        |table| table.segment = Bytes::copy_from_slice(&[0xff; 16]),
        |table| table.write_id = Bytes::new(),
        |table| table.txn = Bytes::from_static(b"short"),
        |table| table.made_ms = i64::MAX,
        |table| table.jobs.clear(),
        |table| table.jobs.reverse(),
        |table| table.jobs[0].priority = 40_000,
        |table| table.jobs[0].due_ms = i64::MIN,
        |table| table.jobs[0].kind = 99,
        |table| table.jobs[0].fence = 1 << 53,
        |table| table.jobs[0].stalls = 256,
        |table| table.jobs[0].id = Bytes::from_static(b"x"),
        |table| table.jobs[0].key = "x".repeat(129),
        |table| table.jobs[0].parts[0].length = u32::MAX,
        |table| table.jobs[0].parts[0].block = 77,
        |table| table.blocks[0].length += 1,
        |table| table.blocks[0].stored = u32::MAX,
    ];
    for (number, spoil) in spoilt.iter().enumerate() {
        let mut table = good.clone();
        spoil(&mut table);
        assert!(matches!(read(&table), Err(Unreadable::Damaged(_))), "case {number}");
    }
}

fn golden() -> [(&'static str, Head, Vec<NewJob>); 2] {
    let head_with_all = Head { txn: Some([5; 16]), request: true, source: Some("other".to_owned()), ..head(true) };
    [
        ("segment_plain", head(false), vec![job(0, 1_767_227_400_000, "a"), job(-3, 1_767_227_400_001, "b")]),
        ("segment_full", head_with_all, vec![full_job(), job(0, 1_767_227_400_000, vec![b'z'; 500])]),
    ]
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/job/golden")).join(name)
}

#[test]
#[ignore = "writes the files that are missing; they are committed"]
fn write_the_golden_files() {
    for (name, head, jobs) in golden() {
        if !golden_path(name).exists() {
            std::fs::write(golden_path(name), written(&head, &jobs)).unwrap();
        }
    }
}

#[test]
fn what_was_ever_written_is_read_for_ever() {
    for (name, head, jobs) in golden() {
        let body = Bytes::from(std::fs::read(golden_path(name)).unwrap());
        let segment = Segment::decode(&body).unwrap();
        let Encoded { indexes, .. } = encode(&head, &jobs).unwrap();
        assert_eq!((segment.table.segment, segment.table.made), (head.segment, head.made));
        assert_eq!((segment.table.txn, segment.table.request), (head.txn, head.request));
        for (given, index) in jobs.iter().zip(indexes) {
            assert!(same(given, &found(&segment, index)), "{name}");
        }
    }
}
