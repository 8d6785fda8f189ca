//! What trackers begin is claimed from birth, and an id is in one hand only.

use super::*;
use crate::job::apply::{Begin, Begun};

fn begun(number: u32, hashes: &[u64]) -> Arc<Begun> {
    Arc::new(Begun { segment: segment(number), epoch: 0, hashes: hashes.to_vec() })
}

fn begin(claim: u64, begun: &Arc<Begun>, from: u16, to: u16) -> Op {
    Op::Begin(Begin { claim: claim_id(claim), begun: Arc::clone(begun), range: Range { from, to } })
}

fn fence(outcome: &Outcome) -> Fence {
    match outcome {
        Outcome::Claimed { fence, .. } => *fence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_begun_runs_at_once_and_its_object_goes_with_the_last() {
    let mut bed = Bed::new();
    let two = begun(1, &[10, 20, 30]);
    let outcomes = bed.commit(Some(1), &[begin(1, &two, 0, 2), begin(2, &two, 2, 3)]);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Claimed { .. })), "two callers, one object");
    assert_eq!(bed.ledger.depth(NOW).running, 3);
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::Ended { late: false });
    assert_eq!(bed.finish(1, 1, job(1, 1)), Outcome::Ended { late: false });
    assert!(bed.last.as_ref().unwrap().unnamed.is_empty());
    assert_eq!(bed.finish(1, 2, job(1, 2)), Outcome::Ended { late: false });
    assert_eq!(bed.last.as_ref().unwrap().unnamed, [segment(1)]);
    assert!(bed.ledger.rows.is_empty());
}

#[test]
fn an_id_is_taken_over_from_the_living_with_a_higher_fence() {
    let mut bed = Bed::new();
    let first = bed.one(Some(1), begin(1, &begun(1, &[10, 20]), 0, 2));
    let second = bed.one(Some(2), begin(2, &begun(2, &[20]), 0, 1));
    assert!(fence(&second) > fence(&first));
    assert_eq!(bed.ledger.depth(NOW).running, 2, "each id once");
    assert!(matches!(bed.finish(1, 1, job(1, 1)), Outcome::AnsweredBefore | Outcome::StaleAttempt(_)));
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::Ended { late: false });
    assert_eq!(bed.finish(2, 2, job(2, 0)), Outcome::Ended { late: false });
}

#[test]
fn an_id_that_waits_to_be_recovered_is_taken_over_and_not_recovered() {
    let mut bed = Bed::new();
    bed.one(Some(1), begin(1, &begun(1, &[10, 20]), 0, 2));
    assert_eq!(bed.recover(1).waiting, 2);
    bed.one(Some(2), begin(2, &begun(2, &[20]), 0, 1));
    bed.now += 60_000;
    assert_eq!(bed.claim(3, 3, 10), [(segment(1), 0, 1)], "only the other one");
}

#[test]
fn what_is_released_can_be_claimed_at_once_and_counts_no_stall() {
    let mut bed = Bed::new();
    bed.one(Some(1), begin(1, &begun(1, &[10]), 0, 1));
    assert!(bed.claim(2, 2, 10).is_empty(), "a living process has it");
    bed.answer(1, 1, job(1, 0), Answered::Released { ran: true });
    assert_eq!(bed.claim(2, 3, 10), [(segment(1), 0, 1)]);
    assert_eq!(bed.ledger.counters.stalls, 0);
}

#[test]
fn an_object_that_may_be_gone_is_written_again() {
    let mut bed = Bed::new();
    let old = begun(1, &[10]);
    bed.one(None, Op::RaiseEpoch { candidates: vec![segment(1)] });
    assert_eq!(bed.one(Some(1), begin(1, &old, 0, 1)), Outcome::WriteAgain);
    let new = Arc::new(Begun { epoch: bed.ledger.gc_epoch, ..(*begun(2, &[10])).clone() });
    assert!(matches!(bed.one(Some(1), begin(1, &new, 0, 1)), Outcome::Claimed { .. }));
    // An object of an earlier commit may have ended and been deleted since.
    let late = Op::Begin(Begin { claim: claim_id(2), begun: new, range: Range { from: 0, to: 1 } });
    assert_eq!(bed.one(Some(1), late), Outcome::WriteAgain);
}

#[test]
fn nothing_is_begun_without_a_session_or_room() {
    let mut bed = Bed::new();
    let one = begun(1, &[10]);
    assert_eq!(bed.one(None, begin(1, &one, 0, 1)), Outcome::NothingToClaim(Idle::NoSession));
    assert_eq!(bed.one(Some(1), begin(1, &one, 0, 2)), Outcome::Mismatch);
    bed.caps.rows = 0;
    assert_eq!(bed.one(Some(1), begin(1, &one, 0, 1)), Outcome::Full(Full::Rows));
}
