//! Rules 2, 4, 6, 11, 13 and 15: what is taken in, what is left, what is dropped as a duplicate.

use super::*;
use crate::job::ledger::{Counters, Unique};
use std::time::Duration;

fn absorb(number: u32, jobs: u16) -> Op {
    Op::Absorb { name: inbox(number, jobs), facts: Arc::new(facts(number, jobs)) }
}

#[test]
fn a_segment_is_absorbed_once_whoever_finds_it_again_and_whenever() {
    let mut bed = Bed::new();
    let twice = bed.commit(Some(1), &[absorb(1, 3), absorb(1, 3)]);
    assert_eq!(twice, [Outcome::Absorbed { dropped: vec![] }, Outcome::Known { confirmed: false }]);
    bed.claim(1, 1, 9);
    assert_eq!(bed.one(Some(2), absorb(1, 3)), Outcome::Known { confirmed: false }, "while it runs");
    for index in 0..3 {
        bed.finish(1, 1, job(1, index));
    }
    assert_eq!(bed.ledger.rows.len(), 0);
    assert_eq!(bed.one(Some(2), absorb(1, 3)), Outcome::Known { confirmed: false }, "a stale listing");
    let since = bed.ledger.unconfirmed_since(segment(1)).unwrap();
    bed.one(None, Op::Confirm { segment: segment(1), since });
    assert_eq!(bed.one(Some(2), absorb(1, 3)), Outcome::Known { confirmed: true }, "a late create");
    assert_eq!(bed.ledger.counters.absorbed, 3);
}

#[test]
fn a_known_id_under_another_name_is_reported_and_left() {
    let mut bed = Bed::new().absorbed(1, 3);
    let other = inbox(1, 4);
    let later = SegmentName { place: Place::At(later(5)), ..inbox(1, 3) };
    for name in [other, later] {
        let facts = Facts { jobs: name.jobs, ..facts(1, name.jobs) };
        let outcome = bed.one(None, Op::Absorb { name, facts: Arc::new(facts) });
        assert_eq!(outcome, Outcome::KnownOtherwise(inbox(1, 3)));
        assert_eq!(bed.one(None, Op::BuryRaw { name, reason: Reason::Damaged }), Outcome::KnownOtherwise(inbox(1, 3)));
    }
    bed.claim(1, 1, 9);
    (0..3).for_each(|index| drop(bed.finish(1, 1, job(1, index))));
    let outcome = bed.one(None, Op::Absorb { name: other, facts: Arc::new(facts(1, 4)) });
    assert_eq!(outcome, Outcome::KnownOtherwise(inbox(1, 3)), "also when it is finished");
}

#[test]
fn a_table_that_is_not_that_of_the_name_or_of_the_shard_is_not_absorbed() {
    let mut bed = Bed::new();
    let foreign = SegmentId::of_request("q", "x", 0, 9, Class::Normal);
    let mismatches = [
        (inbox(1, 3), facts(1, 2)),
        (inbox(1, 3), facts(2, 3)),
        (SegmentName { id: foreign, ..inbox(1, 3) }, Facts { segment: foreign, ..facts(1, 3) }),
        (SegmentName { place: Place::Seg, ..inbox(1, 3) }, facts(1, 3)),
    ];
    for (name, facts) in mismatches {
        assert_eq!(bed.one(None, Op::Absorb { name, facts: Arc::new(facts) }), Outcome::Mismatch);
    }
    assert_eq!(bed.ledger.counters, Counters::default());
}

#[test]
fn a_full_cap_leaves_the_segment_in_the_inbox_and_drops_nothing() {
    let small = Caps { rows: 2, ..Caps::default() };
    let unique = || Facts { unique: vec![(0, [1; 16]), (1, [2; 16])], ..facts(9, 3) };
    let cases = [
        (small, Full::Rows),
        (Caps { finished: 2, ..Caps::default() }, Full::FinishedList),
        (Caps { unique: 1, ..Caps::default() }, Full::UniqueKeys),
        (Caps { size: 700, ..Caps::default() }, Full::Size),
    ];
    for (caps, full) in cases {
        let mut bed = Bed::new().absorbed(1, 3).absorbed(2, 3);
        bed.caps = caps;
        let before = bed.ledger.clone();
        let name = inbox(9, 3);
        assert_eq!(bed.one(None, Op::Absorb { name, facts: Arc::new(unique()) }), Outcome::Full(full));
        assert!(!bed.last.as_ref().unwrap().changed);
        assert_eq!((bed.ledger.rows, bed.ledger.counters), (before.rows, before.counters));
    }
}

#[test]
fn rows_of_only_a_key_at_its_limit_have_their_own_cap_and_name_the_key() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(1));
    bed.caps.blocked = 3;
    bed.caps.rows = 2;
    let keyed = |number| facts_of(number, &[(1, traits(|traits| traits.key = 77))]);
    bed.absorb(keyed(1));
    assert_eq!(bed.claim(1, 1, 9).len(), 1);
    for number in 2..5 {
        assert_eq!(bed.absorb(keyed(number)), Outcome::Absorbed { dropped: vec![] });
    }
    assert_eq!(bed.absorb(keyed(9)), Outcome::Full(Full::Blocked { key: 77 }));
    bed.finish(1, 1, job(1, 0));
    assert_eq!(bed.claim(1, 2, 9), [(segment(2), 0, 1)]);
}

#[test]
fn the_fence_of_a_job_that_comes_from_elsewhere_is_outrun() {
    let mut bed = Bed::new();
    let high = Fence::new(u64::try_from(NOW).unwrap() * 1000 + 90_000_000).unwrap();
    bed.absorb(Facts { fence: Some(high), ..facts(1, 1) });
    let Outcome::Claimed { fence, .. } =
        bed.one(Some(1), Op::Claim { claim: claim_id(1), want: 1, idle_elsewhere: true })
    else {
        panic!()
    };
    assert!(fence > high);
}

#[test]
fn what_is_due_later_stays_unread_until_a_minute_before_and_costs_one_range() {
    let mut bed = Bed::new();
    let hours = |count: i64| traits(|traits| traits.due = NOW + count * 3_600_000);
    let runs: Vec<_> = (0..50).map(|hour| (1, hours(hour))).collect();
    let table = facts_of(1, &runs);
    bed.absorb(table.clone());
    assert_eq!((bed.ledger.rows[0].runs.len(), bed.ledger.rows[0].unread.len()), (1, 1));
    assert_eq!(bed.claim(1, 1, 99), [(segment(1), 0, 1)]);
    assert_eq!(bed.ledger.to_open(bed.now, &bed.caps), []);
    let open = |bed: &mut Bed| bed.one(None, Op::Open { facts: Arc::new(table.clone()) });
    assert_eq!(open(&mut bed), Outcome::Nothing, "nothing is due soon");
    bed.now += 3_600_000 - 30_000;
    assert_eq!(bed.ledger.to_open(bed.now, &bed.caps), [segment(1)]);
    assert_eq!(open(&mut bed), Outcome::Done);
    assert_eq!(bed.claim(1, 2, 99), [], "never early");
    bed.now += 30_000;
    assert_eq!(bed.claim(1, 3, 99), [(segment(1), 1, 1)]);
    assert_eq!(
        bed.ledger.wakes_after(bed.now),
        Some(bed.now + 30_000),
        "the end of the session comes before the next job"
    );
    assert_eq!(bed.ledger.depth(bed.now).scheduled, 48);
}

#[test]
fn a_cancel_ahead_of_absorption_leaves_with_the_segment_however_it_goes() {
    for buried in [false, true] {
        let mut bed = Bed::new();
        assert_eq!(bed.one(None, Op::Cancel { job: job(1, 2), in_inbox: false }), Outcome::NotFound, "and is not kept");
        assert_eq!(bed.one(None, Op::Cancel { job: job(1, 1), in_inbox: true }), Outcome::Asked);
        assert_eq!(bed.ledger.cancelling.len(), 1);
        if buried {
            bed.one(None, Op::BuryRaw { name: inbox(1, 3), reason: Reason::Damaged });
        } else {
            bed.absorb(facts(1, 3));
            assert_eq!(bed.ledger.counters.cancelled, 1);
            assert_eq!(bed.claim(1, 1, 9), [(segment(1), 0, 1), (segment(1), 2, 1)]);
        }
        assert_eq!(bed.ledger.cancelling, []);
    }
}

/// Absorbs one job with unique key 5; what it is a duplicate of.
fn unique_job(bed: &mut Bed, number: u32) -> Option<JobRef> {
    let facts = Facts { unique: vec![(0, [5; 16])], ..facts(number, 1) };
    match bed.absorb(facts) {
        Outcome::Absorbed { dropped } => dropped.first().map(|(_, of)| *of),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_unique_key_is_held_while_its_job_waits_runs_or_is_to_be_tried_again() {
    let mut bed = Bed::new();
    assert_eq!(unique_job(&mut bed, 1), None);
    assert_eq!(unique_job(&mut bed, 2), Some(job(1, 0)), "queued");
    bed.claim(1, 1, 1);
    assert_eq!(unique_job(&mut bed, 3), Some(job(1, 0)), "running");
    bed.fail(1, 1, job(1, 0));
    assert_eq!(unique_job(&mut bed, 4), Some(job(1, 0)), "waiting for its retry");
    assert_eq!(bed.ledger.counters.duplicates, 3);
    assert_eq!(bed.ledger.finished.len(), 3, "a segment of duplicates is over at once");
}

#[test]
fn a_unique_key_is_free_when_its_job_is_finished_cancelled_dead_or_moved() {
    let moved = || Answered::Moved {
        queue: "other".into(),
        target: inbox(99, 1),
        priority: 0,
        due: Timestamp::from_millis(NOW),
    };
    let dead = || Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None };
    for what in [Answered::Finished, Answered::Cancelled, dead(), moved()] {
        let mut bed = Bed::new();
        unique_job(&mut bed, 1);
        bed.claim(1, 1, 1);
        bed.answer(1, 1, job(1, 0), what);
        assert_eq!(unique_job(&mut bed, 2), None);
    }
    let mut bed = Bed::with(|policy| policy.unique_period = Duration::from_secs(60));
    unique_job(&mut bed, 1);
    bed.claim(1, 1, 1);
    bed.finish(1, 1, job(1, 0));
    bed.now += 59_999;
    assert_eq!(unique_job(&mut bed, 2), Some(job(1, 0)), "within the period");
    bed.now += 1;
    assert_eq!(unique_job(&mut bed, 3), None);
    assert_eq!(bed.ledger.unique, [Unique { hash: [5; 16], job: job(3, 0), first: None, ended: None }]);
}

#[test]
fn of_two_jobs_with_one_key_in_one_segment_the_first_runs() {
    let mut bed = Bed::new();
    let twice = Facts { unique: vec![(0, [5; 16]), (1, [5; 16])], ..facts(1, 3) };
    assert_eq!(bed.absorb(twice), Outcome::Absorbed { dropped: vec![(1, job(1, 0))] });
    assert_eq!(bed.claim(1, 1, 9), [(segment(1), 0, 1), (segment(1), 2, 1)]);
}

#[test]
fn a_commit_by_older_settings_is_refused_and_newer_ones_hold_at_once() {
    let mut bed = Bed::new().absorbed(1, 1);
    bed.settings = 7;
    bed.policy.paused = true;
    let paused = bed.one(Some(1), Op::Claim { claim: claim_id(1), want: 1, idle_elsewhere: true });
    assert_eq!(paused, Outcome::NothingToClaim(Idle::Paused));
    assert_eq!((bed.ledger.settings, bed.ledger.policy.paused), (7, true));
    bed.settings = 6;
    bed.policy.paused = false;
    let context = bed.context(Some(1));
    let claim = [Op::Claim { claim: claim_id(2), want: 1, idle_elsewhere: true }];
    let refused = apply(&bed.ledger, &claim, &context).unwrap_err();
    assert_eq!(refused, Refused::OlderSettings { ours: 6, ledgers: 7 });
    bed.settings = 7;
    assert_eq!(bed.claim(1, 3, 1), [], "what the ledger says counts, not what a process believes of that revision");
}

#[test]
fn a_damaged_segment_is_buried_and_its_object_outlives_the_letter_write() {
    let mut bed = Bed::new();
    assert_eq!(bed.one(None, Op::BuryRaw { name: inbox(1, 3), reason: Reason::Damaged }), Outcome::Buried);
    assert_eq!(bed.one(None, absorb(1, 3)), Outcome::Known { confirmed: false });
    assert_eq!(bed.ledger.find(job(1, 1)), Found::Burying(Reason::Damaged));
    assert_eq!(bed.ledger.finished, []);
    let plan = bed.ledger.dead[0].id;
    assert_eq!(bed.one(None, Op::DeadWritten { plan }), Outcome::Done);
    assert_eq!((bed.ledger.counters.dead, bed.ledger.finished.len()), (3, 1));
    let both = [2, 3].map(|number| Op::BuryRaw { name: inbox(number, 1), reason: Reason::Forgotten });
    bed.commit(None, &both);
    assert_ne!(bed.ledger.dead[0].id, bed.ledger.dead[1].id, "two objects have two names");
}
