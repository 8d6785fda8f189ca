//! What must be true of any bytes at all: each function takes some, and panics if it is not. For the targets in `fuzz/`.

#![allow(clippy::panic, clippy::expect_used, reason = "a broken promise is a panic here")]

use super::{
    apply::{Answer, Answered, Caps, Context, Op, Ticket, apply},
    ledger::{self, ClaimId, JobRef, Ledger},
    segment::{Segment, Table, Unreadable, head_length},
};
use crate::clock::Timestamp;
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Arc;

/// A segment that can be read says where each of its parts is, and what asks for more bytes asks for more than it has.
pub fn segment(data: &[u8]) {
    segment_body(&Bytes::copy_from_slice(data));
    // A checksum would keep a fuzzer out: the same bytes as the table of a segment whose head is right.
    let mut sealed = BytesMut::from(&b"LHSG\x01\0\0\0"[..]);
    sealed.put_u32_le(u32::try_from(data.len()).unwrap_or(u32::MAX));
    let checksum = crc32c::crc32c(&sealed);
    sealed.put_u32_le(checksum);
    sealed.put_slice(data);
    sealed.put_u32_le(crc32c::crc32c(data));
    segment_body(&sealed.freeze());
}

fn segment_body(body: &Bytes) {
    match Table::decode(body) {
        Err(Unreadable::Short(needed)) => assert!(needed > body.len()),
        Err(_) => assert!(Segment::decode(body).is_err()),
        Ok(table) => {
            assert!(head_length(body).is_ok_and(|head| head <= body.len() && head <= table.length()));
            let facts = table.facts();
            let jobs: usize = facts.runs.iter().map(|run| usize::from(run.len())).sum();
            assert_eq!(jobs, table.jobs.len());
            for index in 0..facts.jobs {
                assert!(table.id(index).is_some());
            }
            for range in table.ranges(0..facts.jobs, None) {
                assert!(range.end <= table.length());
            }
        }
    }
    let Ok(segment) = Segment::decode(body) else { return };
    for (index, entry) in (0u16..).zip(&segment.table.jobs) {
        for (name, at) in &entry.parts {
            let part = segment.part(index, name).expect("a part that the table names is there");
            assert_eq!(u32::try_from(part.len()), Ok(at.length));
        }
    }
}

/// A ledger that can be read is the same when it is written again, and no operation on it panics, whatever it says.
pub fn ledger(data: &[u8]) {
    ledger_body(&Bytes::copy_from_slice(data));
    let mut sealed = BytesMut::from(data);
    sealed.put_u8(ledger::CHECKSUM_TAG);
    sealed.put_u32_le(crc32c::crc32c(data));
    ledger_body(&sealed.freeze());
}

fn ledger_body(body: &Bytes) {
    let Ok(ledger) = ledger::decode(body) else { return };
    let again = ledger::decode(&ledger::encode(&ledger)).expect("what was read can be written");
    assert_eq!(again, ledger);
    let sound = ledger.check().is_ok();
    for now in [Timestamp::from_millis(0), Timestamp::from_millis(ledger.now), Timestamp::from_micros(i64::MAX)] {
        let _ = (ledger.wakes_after(now.as_millis()), ledger.depth(now.as_millis()), ledger.to_delete(now.as_millis()));
        let context = Context {
            now,
            write_id: [0xfe; 16].into(),
            session: Some(Ticket {
                id: ledger::SessionId([0xfe; 16]),
                lease: [0xfe; 16],
                owner: "fuzz".into(),
                until: 0,
                has_row: false,
            }),
            settings: u64::MAX,
            policy: Arc::new(ledger.policy.clone()),
            epoch: 0,
            caps: Caps::default(),
        };
        for operations in everything(&ledger) {
            if let Ok(applied) = apply(&ledger, &operations, &context)
                && sound
                && ledger.counters.absorbed < u64::MAX / 2
            {
                assert_eq!(applied.ledger.check(), Ok(()), "{operations:?}");
            }
        }
    }
}

/// Operations on all that a ledger names.
fn everything(ledger: &Ledger) -> Vec<Vec<Op>> {
    let mut answers = Vec::new();
    for claim in &ledger.claims {
        for item in &claim.items {
            let Some(row) = ledger.row(item.row) else { continue };
            for (at, index) in (item.run.from..item.run.to).enumerate().take(64) {
                let what = match at % 4 {
                    0 => Answered::Finished,
                    1 => Answered::Failed { for_good: false, error: Some("x".into()), kind: None, max_attempts: None },
                    2 => Answered::Released { ran: true },
                    _ => Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None },
                };
                let job = JobRef { segment: row.name.id, index };
                answers.push(Op::Answer(Answer { claim: claim.id, job, what, into: None }));
            }
        }
    }
    let recover = ledger.sessions.iter().map(|session| Op::Recover { session: session.id });
    let cancels = ledger.rows.iter().map(|row| JobRef { segment: row.name.id, index: row.name.jobs / 2 });
    let cancels = cancels.flat_map(|job| [Op::Pause { job, paused: true }, Op::Cancel { job, in_inbox: true }]);
    let plans = ledger.dead.iter().map(|plan| Op::DeadWritten { plan: plan.id });
    let entries = || ledger.finished.iter();
    let confirms = entries().map(|entry| Op::Confirm { segment: entry.name.id, since: entry.since });
    let forget = Op::Forget { segments: entries().map(|entry| entry.name.id).collect() };
    let claim = ClaimId::new(u64::MAX).map(|claim| Op::Claim { claim, want: u32::MAX, idle_elsewhere: true });
    vec![
        answers,
        recover.chain(claim.clone()).collect(),
        cancels.chain(claim).collect(),
        plans.chain(confirms).chain([forget, Op::RaiseEpoch { candidates: Vec::new() }]).collect(),
    ]
}

#[cfg(test)]
mod tests {
    proptest::proptest! {
        #[test]
        fn a_ledger_with_some_bytes_changed_is_refused_or_harmless(
            changes in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 1..4),
        ) {
            let mut body = crate::job::ledger::encode(&crate::job::ledger::tests::full()).to_vec();
            body.truncate(body.len() - 5);
            for (at, byte) in changes {
                let at = at.index(body.len());
                body[at] = byte;
            }
            super::ledger(&body);
        }
    }
}
