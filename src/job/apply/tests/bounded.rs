//! A queue in which every job always fails stays bounded, and every job ends as a dead letter.

use super::*;
use crate::job::ledger::{Why, encode};
use std::collections::HashMap;

/// Spills whatever the ledger asks for; the tables of what was spilled go into `tables`.
fn spill(bed: &mut Bed, tables: &mut HashMap<SegmentId, Arc<Facts>>, number: &mut u32) {
    loop {
        let mut jobs = bed.ledger.to_spill(bed.now, &bed.caps);
        if jobs.is_empty() {
            return;
        }
        jobs.sort_by_key(|job| (job.priority, job.due));
        *number += 1;
        let table = facts_of(
            *number,
            &jobs
                .iter()
                .map(|job| {
                    let traits =
                        Traits { due: job.due, attempts: job.attempts, priority: job.priority, ..Traits::default() };
                    (1, traits)
                })
                .collect::<Vec<_>>(),
        );
        let moving = (0u16..).zip(&jobs);
        let moving = moving.map(|(index, job)| Moving { job: job.job, attempts: job.attempts, due: job.due, index });
        let span = (id(1, 0), id(1, 1));
        let moving = moving.collect();
        let spill = Spill { segment: table.segment, epoch: bed.ledger.gc_epoch, jobs: table.jobs, moving, span };
        tables.insert(table.segment, Arc::new(table));
        let outcome = bed.one(Some(1), Op::Spill(Arc::new(spill)));
        assert!(matches!(outcome, Outcome::Spilled { moved } if moved > 0), "{outcome:?}");
    }
}

#[test]
fn a_queue_in_which_every_job_always_fails_stays_bounded_and_buries_them_all() {
    const SEGMENTS: u32 = 30;
    const JOBS: u16 = 500;
    let mut bed = Bed::with(|policy| policy.max_attempts = 6);
    let mut tables = HashMap::new();
    let (mut number, mut absorbed, mut claim, mut largest, mut retries) = (1_000_000, 0, 0, 0, 0);
    while bed.ledger.counters.dead < u64::from(SEGMENTS) * u64::from(JOBS) {
        while absorbed < SEGMENTS {
            let table = facts(absorbed + 1, JOBS);
            tables.insert(table.segment, Arc::new(table.clone()));
            match bed.absorb(table) {
                Outcome::Absorbed { .. } => absorbed += 1,
                Outcome::Full(_) => break,
                other => panic!("{other:?}"),
            }
        }
        let mut operations: Vec<Op> = bed.ledger.dead.iter().map(|plan| Op::DeadWritten { plan: plan.id }).collect();
        let unconfirmed = bed.ledger.finished.iter().filter(|entry| entry.confirmed.is_none());
        operations.extend(unconfirmed.map(|entry| Op::Confirm { segment: entry.name.id, since: entry.since }));
        operations.push(Op::Forget { segments: bed.ledger.finished.iter().map(|entry| entry.name.id).collect() });
        let open = bed.ledger.to_open(bed.now, &bed.caps);
        operations.extend(open.iter().map(|segment| Op::Open { facts: Arc::clone(&tables[segment]) }));
        claim += 1;
        operations.push(Op::Claim { claim: claim_id(claim), want: 1000, idle_elsewhere: true });
        let outcomes = bed.commit(Some(1), &operations);
        let Some(Outcome::Claimed { jobs, .. }) = outcomes.last() else {
            // Enough that some are due together; a minute ahead they are read.
            bed.now = bed.ledger.wakes_after(bed.now).unwrap_or(0).max(bed.now) + 5_000;
            continue;
        };
        let all = jobs
            .iter()
            .flat_map(|taken| (taken.range.from..taken.range.to).map(|index| JobRef { segment: taken.name.id, index }));
        let answers: Vec<Op> =
            all.map(|job| Op::Answer(Answer { claim: claim_id(claim), job, what: failed(), into: None })).collect();
        for outcome in bed.commit(Some(1), &answers) {
            assert!(matches!(outcome, Outcome::Waits { .. } | Outcome::Buried), "{outcome:?}");
        }
        largest = largest.max(encode(&bed.ledger).len());
        let waiting = bed.ledger.rows.iter().flat_map(|row| &row.runs);
        retries = retries.max(waiting.filter(|run| run.traits.why != Why::New).count());
        spill(&mut bed, &mut tables, &mut number);
        bed.now += 200;
    }
    println!("{claim} cycles, the largest ledger {largest} bytes, {retries} retries at most");
    assert!(largest < 512 << 10, "{largest} bytes");
    assert!(retries <= 2 * bed.caps.retries + 1000, "{retries}");
    assert_eq!(bed.ledger.counters.failures, u64::from(SEGMENTS) * u64::from(JOBS) * 6);
    assert!(bed.ledger.rows.is_empty());
}
