//! A ledger is read as it was written, and nothing else is taken for one.

use super::*;
use crate::{
    Fence,
    job::{
        id::Class,
        layout::{Minute, Place},
    },
};
use bytes::Bytes;
use prost::Message;
use std::{path::PathBuf, time::Duration};

fn id(number: u32) -> SegmentId {
    SegmentId::of_request("q", &number.to_string(), 0, 3, Class::Normal)
}

fn fence(number: u64) -> Fence {
    Fence::new(1_767_227_400_000_000 + number).unwrap()
}

fn run(from: u16, to: u16, due: Millis) -> Run {
    Run { from, to, traits: Traits { due, ..Traits::default() } }
}

const NOW: Millis = 1_767_227_400_000;

/// One that has something of everything.
#[allow(clippy::too_many_lines, reason = "one value")]
pub(crate) fn full() -> Ledger {
    let claim = ClaimId::new(7).unwrap();
    let traits = Traits {
        priority: -7,
        due: NOW + 5,
        tenant: 6,
        key: 5,
        attempts: 4,
        stalls: 2,
        group: 63,
        why: Why::Stalled,
        claim: Some(claim),
        paused: true,
        error: Some("no röute".into()),
    };
    let minute = Minute::from_number(29_453_790).unwrap();
    let name = |number, place| SegmentName { id: id(number), place, jobs: 200 };
    let row = |number, place| Row {
        number,
        name: name(number, place),
        open: 200,
        request: false,
        unread: vec![],
        runs: vec![run(0, 200, NOW)],
        moved: vec![],
        span: None,
        inline: None,
        tracked: vec![],
    };
    let kinds = vec![
        KindPolicy { kind: "a".into(), max_attempts: Some(2), ..KindPolicy::default() },
        KindPolicy {
            kind: "b".into(),
            max_attempts: None,
            backoff: Some(Backoff { shape: Shape::Fixed, base: Duration::from_secs(9), ..Backoff::default() }),
            dead_retention: Some(Duration::from_secs(3600)),
        },
    ];
    let policy = Policy {
        paused: true,
        paused_until: Some(NOW + 9),
        kinds,
        key_limit: Some(3),
        rate_milli: Some(1500),
        events: JobEvents::Terminal,
        ..Policy::default()
    };
    let mut open = Bits::first(99);
    open.take(3);
    let taken = Item { row: 1, run: run(1, 100, NOW), open, alone: false };
    let alone = Item { row: 2, run: Run { from: 4, to: 5, traits: traits.clone() }, open: Bits::first(1), alone: true };
    let event = |number, what| Event {
        number,
        segment: id(1),
        range: Range { from: 3, to: 5 },
        what,
        at: NOW,
        fence: Some(fence(1)),
    };
    let dead = |row, index| DeadJob {
        row,
        index,
        reason: Reason::Stalled,
        attempts: 3,
        stalls: 3,
        fence: Some(fence(0)),
        error: Some("gone".into()),
    };
    let mut ledger = Ledger {
        epoch: 3,
        now: NOW,
        fence_last: Some(fence(9)),
        gc_epoch: 2,
        next_row: 9,
        rows: vec![
            Row {
                open: 199,
                request: true,
                unread: vec![Unread { range: Range { from: 150, to: 199 }, priority: -2, due: NOW + 60_000 }],
                runs: vec![run(0, 1, NOW), Run { from: 100, to: 149, traits: traits.clone() }],
                moved: vec![Range { from: 149, to: 150 }],
                ..row(1, Place::Inbox)
            },
            Row {
                runs: vec![run(0, 4, NOW), run(7, 200, NOW)],
                span: Some((id(7).job(1), id(8).job(3))),
                tracked: vec![1, u64::MAX],
                ..row(2, Place::Seg)
            },
            Row { runs: vec![], ..row(4, Place::At(minute)) },
            Row { inline: Some(Bytes::from_static(b"args")), ..row(5, Place::Inline) },
        ],
        claims: vec![Claim {
            id: claim,
            session: SessionId([1; 16]),
            fence: fence(9),
            at: NOW,
            items: vec![taken, alone],
        }],
        sessions: vec![Session {
            id: SessionId([1; 16]),
            lease: [2; 16],
            owner: "wörker".into(),
            last_write: [3; 16].into(),
            until: NOW + 30_000,
            owns_until: 0,
        }],
        ended: vec![Ended { session: SessionId([4; 16]), at: NOW - 1, held: true }],
        finished: vec![
            Finished { name: name(11, Place::Inbox), since: NOW, confirmed: None, request: false },
            Finished { name: name(12, Place::At(minute)), since: NOW, confirmed: Some(NOW), request: true },
        ],
        dead: vec![
            DeadPlan { id: [6; 16].into(), hour: 2026010100, at: NOW, jobs: vec![dead(2, 5)], raw: None },
            DeadPlan { id: [7; 16].into(), hour: 2026010101, at: NOW, jobs: vec![], raw: Some((4, Reason::Damaged)) },
        ],
        moves: vec![MovePlan {
            row: 2,
            index: 6,
            queue: "other".into(),
            target: SegmentName { id: id(77), place: Place::At(minute), jobs: 1 },
            priority: 4,
            due: NOW,
            fence: fence(2),
            at: NOW,
        }],
        cancelling: vec![JobRef { segment: id(1), index: 50 }],
        unique: vec![
            Unique { hash: [8; 16], job: JobRef { segment: id(1), index: 0 }, first: None, ended: None },
            Unique { hash: [9; 16], job: JobRef { segment: id(1), index: 1 }, first: None, ended: Some(NOW) },
        ],
        limits: vec![Limit { key: 5, most: 2, name: "".into() }],
        schedules: vec![Schedule { id: [4; 16], slot: NOW, ..Schedule::default() }],
        tokens: Tokens { milli: 2500, at: NOW },
        turn: 99,
        outbox: vec![
            event(1, Happened::Finished),
            event(2, Happened::Dead(Reason::Exhausted)),
            event(3, Happened::Cancelled),
            event(4, Happened::Recovered),
            event(5, Happened::Duplicate(JobRef { segment: id(2), index: 9 })),
        ],
        next_event: 6,
        outbox_spills: vec![id(55)],
        counters: Counters { finished: 7, ..Counters::default() },
        letters: vec![Letters {
            plan: [9; 16].into(),
            hour: 2026010102,
            jobs: 40,
            taken: vec![Range { from: 0, to: 2 }, Range { from: 7, to: 40 }],
            gone: Some(NOW),
        }],
        ..Ledger::new("emäils", 3, [5; 16].into(), 12, policy)
    };
    // One job of the claim was answered for; a spilled one lives on in row 2.
    ledger.rows[0].open = 197;
    ledger.counters.absorbed = ledger.totals().all() + 7;
    ledger
}

#[test]
fn a_ledger_is_read_as_it_was_written() {
    for ledger in [full(), Ledger::new("q", 0, [1; 16].into(), 0, Policy::default())] {
        let body = encode(&ledger);
        assert_eq!(decode(&body).unwrap(), ledger);
        assert_eq!(encode(&decode(&body).unwrap()), body);
    }
}

#[test]
fn the_check_of_a_ledger_finds_a_job_in_two_places_and_one_that_is_missing() {
    assert_eq!(full().check(), Ok(()));
    type Spoil = fn(&mut Ledger);
    let spoilt: [(&str, Spoil); 11] = [
        ("two places", |ledger| ledger.rows[0].runs[0].to = 2),
        ("two places", |ledger| ledger.moves[0].index = 5),
        ("two places", |ledger| ledger.rows[1].runs[0].to = 5),
        ("open jobs", |ledger| ledger.rows[0].open += 1),
        ("no job", |ledger| ledger.rows[1].runs[1].to = 201),
        ("no row", |ledger| ledger.claims[0].items[0].row = 8),
        ("out of order", |ledger| ledger.rows.swap(0, 1)),
        ("finished twice", |ledger| ledger.finished[0].name.id = id(1)),
        ("without a row", |ledger| ledger.sessions.clear()),
        ("have come", |ledger| ledger.counters.absorbed += 1),
        ("higher fence", |ledger| ledger.fence_last = None),
    ];
    for (why, spoil) in spoilt {
        let mut ledger = full();
        spoil(&mut ledger);
        let error = ledger.check().unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn no_flipped_bit_and_no_truncation_goes_unseen() {
    let body = encode(&full());
    for bit in 0..body.len() * 8 {
        let mut bytes = body.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode(&bytes.into()), Err(Unusable::Damaged(_))), "bit {bit}");
    }
    for length in 0..body.len() {
        assert!(decode(&body.slice(..length)).is_err());
    }
    assert!(decode(&[&body[..], b"\0"].concat().into()).is_err());
    assert!(decode(&sealed(&wire::Ledger::default())).is_err());
}

fn sealed(message: &wire::Ledger) -> Bytes {
    let mut body = message.encode_to_vec();
    let checksum = crc32c::crc32c(&body);
    body.push(CHECKSUM_TAG);
    body.extend_from_slice(&checksum.to_le_bytes());
    body.into()
}

fn fields() -> wire::Ledger {
    let mut message = wire::Ledger::decode(encode(&full())).unwrap();
    message.checksum = 0;
    message
}

#[test]
fn a_later_format_is_told_apart_from_damage() {
    let later = wire::Ledger { format: FORMAT + 1, ..fields() };
    assert_eq!(decode(&sealed(&later)), Err(Unusable::Later(FORMAT + 1)));
}

#[test]
fn what_we_would_never_write_is_not_read_either() {
    assert!(decode(&sealed(&fields())).is_ok());
    type Spoil = fn(&mut wire::Ledger);
    fn runs(ledger: &mut wire::Ledger) -> &mut wire::Runs {
        ledger.rows[0].runs.as_mut().unwrap()
    }
    let spoilt: [Spoil; 27] = [
        |ledger| ledger.format = 0,
        |ledger| ledger.shard = 256,
        |ledger| ledger.write_id = Bytes::from_static(b"x"),
        |ledger| ledger.fence_last = 1 << 53,
        |ledger| ledger.now_ms = i64::MAX,
        |ledger| ledger.policy = None,
        |ledger| ledger.policy.as_mut().unwrap().backoff = None,
        |ledger| ledger.policy.as_mut().unwrap().max_stalls = 256,
        |ledger| ledger.rows[0].low |= 1,
        |ledger| ledger.rows[0].jobs = 65_536,
        |ledger| ledger.rows[0].place = 4,
        |ledger| ledger.rows[0].unread[0].length = 0,
        |ledger| ledger.rows[0].moved.truncate(1),
        |ledger| ledger.rows[1].least = Bytes::new(),
        |ledger| runs(ledger).length[0] = 0,
        |ledger| runs(ledger).length[0] = 65_535 + 1,
        |ledger| runs(ledger).from[0] = 65_535,
        |ledger| runs(ledger).due_ms.truncate(1),
        |ledger| runs(ledger).why[1] = 9,
        |ledger| ledger.claims[0].id = 0,
        |ledger| ledger.claims[0].fence = 0,
        |ledger| ledger.claims[0].open = Bytes::new(),
        |ledger| ledger.claims[0].rows.truncate(1),
        |ledger| ledger.dead[0].jobs[0].reason = 9,
        |ledger| ledger.unique[0].job = None,
        |ledger| ledger.outbox[0].what = 9,
        |ledger| ledger.outbox[4].of = None,
    ];
    for (number, spoil) in spoilt.iter().enumerate() {
        let mut message = fields();
        spoil(&mut message);
        assert!(matches!(decode(&sealed(&message)), Err(Unusable::Damaged(_))), "case {number}");
    }
}

#[test]
fn a_thousand_jobs_enqueued_together_cost_a_few_dozen_bytes() {
    let mut ledger = Ledger::new("q", 0, [1; 16].into(), 0, Policy::default());
    let empty = encode(&ledger).len();
    for number in 1..=100 {
        ledger.rows.push(Row {
            number,
            name: SegmentName { id: id(number), place: Place::Inbox, jobs: 1000 },
            open: 1000,
            request: false,
            unread: vec![],
            runs: vec![run(0, 1000, NOW)],
            moved: vec![],
            span: None,
            inline: None,
            tracked: vec![],
        });
    }
    let row = (encode(&ledger).len() - empty) / 100;
    assert!(row < 64, "{row} bytes a row");
}

#[test]
fn ranges_that_touch_become_one() {
    let mut ranges = Vec::new();
    for index in [5, 1, 3, 2, 9, 4, 8] {
        insert_range(&mut ranges, Range::one(index));
    }
    assert_eq!(ranges, [Range { from: 1, to: 6 }, Range { from: 8, to: 10 }]);
}

#[test]
#[ignore = "writes the file if it is missing; it is committed"]
fn write_the_golden_file() {
    if !golden_path().exists() {
        std::fs::write(golden_path(), encode(&earlier())).unwrap();
    }
}

/// Without what was added since the file was written.
fn earlier() -> Ledger {
    let mut ledger = full();
    ledger.letters.clear();
    for kind in &mut ledger.policy.kinds {
        kind.dead_retention = None;
    }
    ledger
}

fn golden_path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/job/golden/ledger.pb"))
}

#[test]
fn what_was_ever_written_is_read_for_ever() {
    let body = Bytes::from(std::fs::read(golden_path()).unwrap());
    assert_eq!(decode(&body).unwrap(), earlier());
    assert_eq!(encode(&earlier()), body, "the same values are the same bytes");
}
