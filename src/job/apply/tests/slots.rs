//! Schedules in the ledger: each slot once, whoever finds it due.

use super::*;
use bytes::Bytes;
use std::time::Duration;

const MINUTE: Millis = 60_000;

fn schedule() -> Schedule {
    Schedule {
        id: [3; 16],
        slot: NOW,
        next: Some(NOW + MINUTE),
        name: "nightly".into(),
        spec: "every|60000|0".into(),
        look_back: MINUTE,
        job: Bytes::from_static(b"x"),
        ..Schedule::default()
    }
}

fn put(bed: &mut Bed, schedule: Schedule, at_start: bool) -> Outcome {
    bed.one(None, Op::PutSchedule { schedule: Arc::new(schedule), at_start })
}

fn due(bed: &Bed, slots: &[Millis], next: Millis) -> Op {
    let known = &bed.ledger.schedules[0];
    Op::Insert(Arc::new(DueSlots {
        schedule: known.id,
        version: known.version,
        from: known.next.unwrap(),
        slots: slots.to_vec(),
        missed: None,
        next: Some(next),
    }))
}

fn claim_all(bed: &mut Bed, session: u8, claim: u64) -> Vec<Taken> {
    let claim = Op::Claim { claim: claim_id(claim), want: 99, idle_elsewhere: true };
    match bed.one(Some(session), claim) {
        Outcome::Claimed { jobs, .. } => jobs,
        _ => Vec::new(),
    }
}

#[test]
fn a_slot_of_a_schedule_runs_once_whoever_finds_it_due() {
    let mut bed = Bed::new();
    assert_eq!(put(&mut bed, schedule(), false), Outcome::Done);
    bed.now += MINUTE;
    let slot = due(&bed, &[NOW + MINUTE], NOW + 2 * MINUTE);
    assert_eq!(bed.commit(Some(1), &[slot.clone(), slot.clone()]), [Outcome::Done, Outcome::Nothing]);
    assert_eq!(bed.one(Some(2), slot.clone()), Outcome::Nothing, "another process found it due as well");
    let jobs = claim_all(&mut bed, 1, 1);
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].inline.as_deref(), Some(&b"x"[..]));
    let place = JobRef { segment: jobs[0].name.id, index: 0 };
    assert_eq!(bed.finish(1, 1, place), Outcome::Ended { late: false });
    assert_eq!(bed.ledger.finished, [], "there is no object to delete");
    assert_eq!(bed.one(Some(2), slot), Outcome::Nothing, "also after it has run");
    assert_eq!(bed.ledger.wakes_after(NOW), Some(NOW + 2 * MINUTE), "an idle process wakes for the next one");
}

#[test]
fn slots_that_were_computed_from_another_definition_are_refused() {
    let mut bed = Bed::new();
    put(&mut bed, schedule(), false);
    bed.now += MINUTE;
    let before = due(&bed, &[NOW + MINUTE], NOW + 2 * MINUTE);
    assert_eq!(put(&mut bed, schedule(), false), Outcome::Nothing, "added again as it is");
    assert_eq!(put(&mut bed, Schedule { priority: 3, ..schedule() }, false), Outcome::Done);
    assert_eq!(bed.one(Some(1), before), Outcome::Nothing);
    let now = due(&bed, &[NOW + MINUTE], NOW + 2 * MINUTE);
    bed.one(None, Op::PauseSchedule { schedule: [3; 16], paused: true, next: None });
    assert_eq!(bed.one(Some(1), now), Outcome::Nothing, "it was paused since");
    assert_eq!(bed.one(None, Op::RemoveSchedule { schedule: [3; 16] }), Outcome::Done);
    assert_eq!(bed.one(None, Op::RemoveSchedule { schedule: [3; 16] }), Outcome::NotFound);
    assert_eq!(bed.ledger.rows, []);
}

#[test]
fn missed_slots_are_backfilled_once() {
    let mut bed = Bed::new();
    put(&mut bed, schedule(), false);
    bed.one(None, Op::PauseSchedule { schedule: [3; 16], paused: true, next: None });
    bed.now += 10 * MINUTE;
    let next = Some(NOW + 11 * MINUTE);
    bed.one(None, Op::PauseSchedule { schedule: [3; 16], paused: false, next });
    assert_eq!(bed.ledger.schedules[0].missed, [(NOW + MINUTE, NOW + 11 * MINUTE)]);
    let backfill = |bed: &Bed, from: Millis, to: Millis| {
        let slots = (from..to).map(|minute| NOW + minute * MINUTE).collect();
        let version = bed.ledger.schedules[0].version;
        let (from, to) = (NOW + from * MINUTE, NOW + to * MINUTE);
        Op::Backfill(Arc::new(Backfill { schedule: [3; 16], version, from, to, slots }))
    };
    let some = backfill(&bed, 3, 5);
    let twice = bed.commit(None, &[some.clone(), some]);
    assert_eq!(twice, [Outcome::Backfilled { inserted: 2 }, Outcome::Backfilled { inserted: 0 }]);
    let left = [(NOW + MINUTE, NOW + 3 * MINUTE), (NOW + 5 * MINUTE, NOW + 11 * MINUTE)];
    assert_eq!(bed.ledger.schedules[0].missed, left);
    let all = backfill(&bed, 0, 20);
    assert_eq!(bed.one(None, all), Outcome::Backfilled { inserted: 8 }, "the rest, and nothing beyond");
    assert_eq!(bed.ledger.schedules[0].missed, []);
    assert_eq!(claim_all(&mut bed, 1, 1).len(), 10);
}

#[test]
fn a_slot_is_left_out_while_the_one_before_runs_if_it_is_asked_for() {
    let mut bed = Bed::new();
    put(&mut bed, Schedule { single: true, ..schedule() }, true);
    bed.now += MINUTE;
    let first = claim_all(&mut bed, 1, 1);
    assert_eq!(first.len(), 1, "the run at its start");
    let op = due(&bed, &[NOW + MINUTE], NOW + 2 * MINUTE);
    assert_eq!(bed.one(Some(1), op), Outcome::Done);
    assert_eq!(claim_all(&mut bed, 2, 2), []);
    bed.finish(1, 1, JobRef { segment: first[0].name.id, index: 0 });
    bed.now += MINUTE;
    let op = due(&bed, &[NOW + 2 * MINUTE], NOW + 3 * MINUTE);
    bed.one(Some(1), op);
    assert_eq!(claim_all(&mut bed, 2, 3).len(), 1);
}

#[test]
fn a_slot_for_which_there_is_no_room_stays_the_next_one() {
    let mut bed = Bed::new();
    put(&mut bed, schedule(), false);
    bed.caps.rows = 1;
    bed.now += 2 * MINUTE;
    let op = due(&bed, &[NOW + MINUTE, NOW + 2 * MINUTE], NOW + 3 * MINUTE);
    assert_eq!(bed.one(Some(1), op), Outcome::Full(Full::Rows));
    assert_eq!((bed.ledger.rows.len(), bed.ledger.schedules[0].next), (1, Some(NOW + 2 * MINUTE)));
    let jobs = claim_all(&mut bed, 1, 1);
    bed.finish(1, 1, JobRef { segment: jobs[0].name.id, index: 0 });
    let op = due(&bed, &[NOW + 2 * MINUTE], NOW + 3 * MINUTE);
    assert_eq!(bed.one(Some(1), op), Outcome::Done);
}

#[test]
fn a_schedule_and_a_limit_are_read_as_they_were_written() {
    let mut bed = Bed::new();
    let missed = vec![(1, 2), (5, 9)];
    put(&mut bed, schedule(), false);
    bed.one(None, Op::Limit { key: 7, name: "kündin".into(), most: Some(0) });
    let known = &mut bed.ledger.schedules[0];
    (known.missed, known.paused, known.single, known.priority) = (missed, true, true, -4);
    bed.ledger.duplicates.push(crate::job::ledger::Duplicate { job: job(1, 2), of: job(3, 4) });
    bed.ledger.unique.push(crate::job::ledger::Unique {
        hash: [1; 16],
        job: job(1, 1),
        first: Some(job(2, 2)),
        ended: None,
    });
    let again = crate::job::ledger::decode(&crate::job::ledger::encode(&bed.ledger)).unwrap();
    assert_eq!(again, bed.ledger);
}

#[test]
fn with_limit_one_a_job_that_has_run_before_comes_first() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(1));
    let of = |key| Traits { key, due: NOW, ..Traits::default() };
    bed.absorb(facts_of(1, &[(3, of(7))]));
    assert_eq!(bed.claim(1, 1, 9), [(segment(1), 0, 1)]);
    // Its process dies; it comes back later than those behind it were due.
    bed.recover(1);
    assert_eq!(bed.claim(2, 2, 9), [], "nobody passes it");
    bed.now += 10_000;
    assert_eq!(bed.claim(2, 3, 9), [(segment(1), 0, 1)], "it is the first, although it is due last");
    assert_eq!(bed.claim(3, 4, 9), [], "one at a time");
    bed.finish(2, 3, job(1, 0));
    assert_eq!(bed.claim(3, 5, 9), [(segment(1), 1, 1)]);
}

#[test]
fn a_job_that_should_run_alone_respects_the_limit_of_its_key() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(1));
    let new = Traits { key: 7, due: NOW, ..Traits::default() };
    let suspect = Traits { group: 1, due: NOW - 1, ..new.clone() };
    bed.absorb(facts_of(1, &[(1, new), (2, suspect)]));
    bed.now += 120_000;
    let first = bed.claim(1, 1, 1);
    assert_eq!(first.len(), 1);
    assert_eq!(bed.claim(2, 2, 9), [], "whichever of them runs");
}

#[test]
fn a_rate_has_no_burst_and_wakes_whoever_waits_for_it() {
    let mut bed = Bed::with(|policy| policy.rate_milli = Some(50_000));
    bed.absorb(facts(1, 1000));
    assert_eq!(bed.claim(1, 1, 99), [(segment(1), 0, 1)], "one at once");
    assert_eq!(bed.claim(1, 2, 99), []);
    assert_eq!(bed.ledger.wakes_after(NOW), Some(NOW + 100), "for five of them together");
    let mut taken = 1;
    for millis in 1..=10_000u64 {
        bed.now += 1;
        taken += bed.claim(1, 10 + millis, 99).iter().map(|(_, _, count)| u64::from(*count)).sum::<u64>();
    }
    assert!((499..=501).contains(&taken), "{taken} in ten seconds of 50 a second");
    let slow = Duration::from_secs(60);
    let mut bed = Bed::with(|policy| policy.rate_milli = Some(62));
    bed.absorb(facts(1, 1000));
    let mut taken = 0;
    for millis in (0..slow.as_millis() as u64).step_by(5) {
        bed.now += 5;
        taken += bed.claim(1, 10 + millis, 99).len();
    }
    assert!((4..=5).contains(&taken), "{taken}: a slow rate is not lost to those who look often");
}

#[test]
fn a_key_that_is_held_up_is_unblocked() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(1));
    bed.absorb(facts_of(1, &[(2, Traits { key: 7, due: NOW, ..Traits::default() })]));
    bed.claim(1, 1, 9);
    bed.fail(1, 1, job(1, 0));
    assert_eq!(bed.claim(1, 2, 9), []);
    assert_eq!(bed.one(None, Op::Unblock { key: 8 }), Outcome::Nothing);
    assert_eq!(bed.one(None, Op::Unblock { key: 7 }), Outcome::Unblocked { jobs: 1 });
    assert_eq!(bed.claim(1, 3, 9), [(segment(1), 0, 1)]);
}
