//! How long a batch takes. Run by hand, in a release build: `cargo test --release --lib job::apply::tests::speed -- --ignored
//! --nocapture`.

use super::*;
use crate::job::ledger::{decode, encode};
use std::time::Instant;

/// A ledger in the middle of its work: live segments, claims of other processes, retries, a long finished list.
fn busy(rows: u32, retries: u16) -> Bed {
    let mut bed = Bed::new();
    bed.caps.size = 1 << 20;
    for number in 1..=200 {
        bed.absorb(facts(number, 1));
    }
    bed.claim(9, 9, 200);
    for number in 1..=200 {
        bed.finish(9, 9, job(number, 0));
    }
    bed.absorb(facts(7_000_000, 2000));
    bed.claim(8, 8, u32::from(retries));
    let until = |index: u16| Timestamp::from_millis(NOW + 1_000_000 + i64::from(index) * 777);
    let snooze = (0..retries).map(|index| {
        let what = Answered::Snoozed { until: until(index) };
        Op::Answer(Answer { claim: claim_id(8), job: job(7_000_000, index), what, into: None })
    });
    let snooze: Vec<Op> = snooze.collect();
    bed.commit(Some(8), &snooze);
    let operations: Vec<Op> = (0..rows)
        .map(|number| {
            let number = 1000 + number;
            Op::Absorb { name: inbox(number, 1000), facts: Arc::new(facts(number, 1000)) }
        })
        .collect();
    bed.commit(None, &operations);
    bed
}

fn median(mut times: Vec<u128>) -> u128 {
    times.sort_unstable();
    times[times.len() / 2] / 1000
}

#[test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "a measurement needs the real clock")]
fn a_batch_of_a_thousand_jobs() {
    for (rows, retries) in [(1, 0), (64, 500), (256, 1000), (1000, 1900)] {
        let mut bed = busy(rows, retries);
        bed.caps = Caps::default();
        let (mut applying, mut encoding, mut decoding, mut length) = (vec![], vec![], vec![], 0);
        bed.claim(1, 100, 1000);
        for cycle in 0..100u64 {
            let claim = bed.ledger.claims.iter().find(|claim| claim.session == session(1)).unwrap().clone();
            let mut operations = Vec::new();
            for item in &claim.items {
                let segment = bed.ledger.row(item.row).unwrap().name.id;
                let answers = (item.run.from..item.run.to).map(|index| {
                    let job = JobRef { segment, index };
                    Op::Answer(Answer { claim: claim.id, job, what: Answered::Finished, into: None })
                });
                operations.extend(answers);
            }
            let number = 100_000 + u32::try_from(cycle).unwrap();
            operations.push(Op::Absorb { name: inbox(number, 1000), facts: Arc::new(facts(number, 1000)) });
            operations.push(Op::Claim { claim: claim_id(101 + cycle), want: 1000, idle_elsewhere: true });
            let context = bed.context(Some(1));
            let start = Instant::now();
            let applied = apply(&bed.ledger, &operations, &context).unwrap();
            applying.push(start.elapsed().as_nanos());
            assert!(matches!(applied.outcomes.last(), Some(Outcome::Claimed { jobs, .. }) if !jobs.is_empty()));
            let start = Instant::now();
            let body = encode(&applied.ledger);
            encoding.push(start.elapsed().as_nanos());
            length = body.len();
            let start = Instant::now();
            let again = decode(&body).unwrap();
            decoding.push(start.elapsed().as_nanos());
            assert_eq!(again, applied.ledger);
            bed.ledger = applied.ledger;
            // What is over long ago does not pile up.
            bed.now += 1000;
            bed.ledger.finished.retain(|entry| entry.since > bed.now - 200_000);
        }
        let (apply, encode, decode) = (median(applying), median(encoding), median(decoding));
        println!(
            "{rows} segments, {retries} retries, {length} bytes: apply {apply} µs, encode {encode} µs, decode {decode} µs"
        );
    }
}

#[test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "a measurement needs the real clock")]
fn a_segment_of_a_thousand_jobs() {
    use crate::job::segment::{Head, NewJob, Segment, encode};
    let text =
        |number: u32| format!("{{\"user\":{number},\"template\":\"welcome\",\"body\":\"{}\"}}", "hello ".repeat(26));
    let jobs: Vec<NewJob> = (0..1000)
        .map(|number| NewJob {
            due: Timestamp::from_millis(NOW),
            kind: Some("mail".into()),
            parts: vec![("args".into(), text(number).into())],
            ..NewJob::default()
        })
        .collect();
    for pack in [false, true] {
        let head = Head {
            segment: segment(1),
            write_id: [1; 16].into(),
            made: Timestamp::from_millis(NOW),
            txn: None,
            request: false,
            source: None,
            pack,
        };
        let (mut encoding, mut decoding, mut length) = (vec![], vec![], 0);
        for _ in 0..50 {
            let start = Instant::now();
            let body = encode(&head, &jobs).unwrap().body;
            encoding.push(start.elapsed().as_nanos());
            length = body.len();
            let start = Instant::now();
            let segment = Segment::decode(&body).unwrap();
            let facts = segment.table.facts();
            decoding.push(start.elapsed().as_nanos());
            assert_eq!(facts.runs.len(), 1);
        }
        let (encode, decode) = (median(encoding), median(decoding));
        println!("1000 jobs of 200 bytes, packed {pack}: {length} bytes, encode {encode} µs, decode {decode} µs");
    }
}
