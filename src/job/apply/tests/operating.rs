//! What operators do: dead letters leave once, and what waits can be opened, hurried and ended.

use super::*;
use crate::job::ledger::Letters;

const HOUR: u64 = 2_026_011_500;

fn plan() -> WriteId {
    [9; 16].into()
}

/// A redrive of these indexes of an object of ten, into segment `number`.
fn redrive(number: u32, indexes: &[u16], epoch: u64) -> Op {
    let facts = Arc::new(facts(number, u16::try_from(indexes.len()).unwrap()));
    let indexes = indexes.iter().copied().zip(0..).collect();
    let into = Some(Redrive { facts, epoch });
    Op::TakeLetters(Arc::new(TakeLetters { plan: plan(), hour: HOUR, jobs: 10, indexes, into }))
}

fn taken(taken: &[u16], left: u16) -> Outcome {
    Outcome::LettersTaken { taken: taken.to_vec(), left }
}

#[test]
fn of_two_redrives_of_one_letter_the_second_puts_nothing_back() {
    let mut bed = Bed::new();
    assert_eq!(bed.one(None, redrive(1, &[3, 4], 0)), taken(&[3, 4], 8));
    assert_eq!(bed.one(None, redrive(2, &[4, 5], 0)), taken(&[5], 7));
    assert_eq!(bed.claim(1, 1, 9).iter().map(|(_, _, jobs)| jobs).sum::<u16>(), 3);
    assert_eq!(bed.one(None, redrive(3, &[3], 0)), taken(&[], 7));
    assert_eq!(bed.last.as_ref().unwrap().unnamed, [segment(3)], "what was written in vain is deleted");
}

#[test]
fn the_same_redrive_sent_again_is_recognised_while_its_jobs_live() {
    let mut bed = Bed::new();
    let op = redrive(1, &[0], 0);
    assert_eq!(bed.one(None, op.clone()), taken(&[0], 9));
    assert_eq!(bed.one(None, op), taken(&[0], 9));
    assert_eq!(bed.ledger.totals().all(), 1);
}

#[test]
fn a_redrive_whose_object_may_be_collected_is_written_again() {
    let mut bed = Bed::new();
    bed.ledger.gc_epoch = 1;
    assert_eq!(bed.one(None, redrive(1, &[0], 0)), Outcome::WriteAgain);
    assert!(bed.ledger.letters.is_empty());
}

#[test]
fn what_is_taken_is_remembered_longer_than_anybody_may_use_what_was_read() {
    let mut bed = Bed::new();
    let all: Vec<u16> = (0..10).collect();
    assert_eq!(bed.one(None, redrive(1, &all, 0)), taken(&all, 0));
    assert_eq!(bed.one(None, Op::LettersGone { plan: plan() }), Outcome::Done);
    bed.now += 89_000;
    assert_eq!(bed.one(None, redrive(2, &[0], 0)), Outcome::NotFound, "whoever had read it before it was deleted");
    bed.absorb(facts(7, 1));
    assert_eq!(bed.ledger.letters.len(), 1);
    bed.now += 2_000;
    bed.absorb(facts(8, 1));
    assert!(bed.ledger.letters.is_empty());
}

#[test]
fn an_object_that_is_over_is_not_redriven_and_not_remembered() {
    let mut bed = Bed::new();
    assert_eq!(bed.one(None, redrive(1, &[0], 0)), taken(&[0], 9));
    bed.now += 15 * 86_400_000;
    assert_eq!(bed.one(None, redrive(2, &[1], 0)), Outcome::NotFound);
    bed.absorb(facts(8, 1));
    assert!(bed.ledger.letters.is_empty());
}

#[test]
fn letters_whose_object_may_be_written_once_more_stay() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 2);
    let what = Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None };
    assert_eq!(bed.answer(1, 1, job(1, 0), what), Outcome::Buried);
    let plan = bed.ledger.dead[0].id;
    let take = |into| Op::TakeLetters(Arc::new(TakeLetters { plan, hour: HOUR, jobs: 1, indexes: vec![(0, 0)], into }));
    assert_eq!(bed.one(None, take(None)), Outcome::NotYet);
    bed.one(None, Op::DeadWritten { plan });
    assert_eq!(bed.one(None, take(None)), taken(&[0], 0));
}

#[test]
fn the_fence_of_a_redriven_job_is_outrun() {
    let mut bed = Bed::new();
    let high = Fence::new(u64::try_from(NOW * 1000 + 5_000_000_000).unwrap()).unwrap();
    let facts = Arc::new(Facts { fence: Some(high), ..facts(1, 1) });
    let into = Some(Redrive { facts, epoch: 0 });
    let indexes = vec![(0, 0)];
    let op = Op::TakeLetters(Arc::new(TakeLetters { plan: plan(), hour: HOUR, jobs: 1, indexes, into }));
    assert_eq!(bed.one(None, op), taken(&[0], 0));
    bed.claim(1, 1, 1);
    assert!(bed.ledger.claims[0].fence > high);
}

#[test]
fn a_full_list_of_begun_objects_refuses_more_and_drops_none() {
    let mut bed = Bed::new();
    bed.caps.letters = 1;
    assert_eq!(bed.one(None, redrive(1, &[0], 0)), taken(&[0], 9));
    let other = TakeLetters { plan: [8; 16].into(), hour: HOUR, jobs: 2, indexes: vec![(0, 0)], into: None };
    assert_eq!(bed.one(None, Op::TakeLetters(Arc::new(other))), Outcome::Full(Full::Letters));
    assert_eq!(bed.one(None, redrive(2, &[1], 0)), taken(&[1], 8), "one that is begun goes on");
    assert_eq!(bed.ledger.letters.iter().map(Letters::left).collect::<Vec<_>>(), [8]);
}

#[test]
fn a_purge_ends_all_that_waits_and_nothing_that_runs() {
    let later = traits(|traits| traits.due = NOW + 3_600_000);
    let mut bed = Bed::new();
    bed.absorb(facts_of(1, &[(5, traits(|_| {})), (5, later)]));
    bed.claim(1, 1, 2);
    assert_eq!(bed.one(None, Op::Purge), Outcome::Purged { jobs: 8 });
    assert_eq!((bed.ledger.totals().running, bed.ledger.totals().all()), (2, 2));
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::Ended { late: false });
    assert_eq!(bed.one(None, Op::Discard { name: inbox(9, 7) }), Outcome::Purged { jobs: 7 });
    assert_eq!(bed.last.as_ref().unwrap().finished, [inbox(9, 7)]);
    assert_eq!(bed.absorb(facts(9, 7)), Outcome::Known { confirmed: false }, "it is not taken in after that");
}

#[test]
fn a_job_that_is_due_later_is_opened_and_runs_now() {
    let later = traits(|traits| traits.due = NOW + 3_600_000);
    let facts = facts_of(1, &[(3, later)]);
    let mut bed = Bed::new();
    bed.absorb(facts.clone());
    assert_eq!(bed.one(None, Op::RunNow { job: job(1, 1) }), Outcome::ReadFirst);
    let open = Op::OpenOne { index: 1, facts: Arc::new(facts) };
    assert_eq!(bed.commit(None, &[open, Op::RunNow { job: job(1, 1) }]), [Outcome::Done, Outcome::Done]);
    assert_eq!(bed.claim(1, 1, 9), [(segment(1), 1, 1)]);
    assert_eq!(bed.one(None, Op::RunNow { job: job(1, 1) }), Outcome::NotFound, "it runs");
}
