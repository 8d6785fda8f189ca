//! Rules 5, 6 and 16: what an attempt may say, and when it is too late.

use super::*;
use crate::job::ledger::{KindPolicy, Why};

#[test]
fn a_finish_ends_the_job_and_a_second_one_is_an_error() {
    let mut bed = Bed::new().absorbed(1, 3);
    bed.claim(1, 1, 9);
    let finish = Op::Answer(Answer { claim: claim_id(1), job: job(1, 0), what: Answered::Finished, into: None });
    let both = bed.commit(Some(1), &[finish.clone(), finish.clone()]);
    assert_eq!(both, [Outcome::Ended { late: false }, Outcome::AnsweredBefore]);
    assert_eq!(bed.one(Some(1), finish), Outcome::AnsweredBefore);
    assert_eq!(bed.ledger.counters.finished, 1);
}

#[test]
fn who_was_paused_past_its_session_is_told_who_has_the_job_now_and_since_when() {
    let mut bed = Bed::new().absorbed(1, 1);
    bed.claim(1, 1, 1);
    bed.recover(1);
    bed.now += 5_000;
    bed.claim(2, 2, 1);
    let fence = bed.ledger.claims[0].fence;
    let since = Timestamp::from_millis(bed.now);
    let held = Stale::Held { owner: "worker-2".into(), session: session(2), since, fence };
    for what in [Answered::Finished, failed(), Answered::Released { ran: true }, Answered::Cancelled] {
        assert_eq!(bed.answer(9, 1, job(1, 0), what), Outcome::StaleAttempt(held.clone()));
    }
    assert_eq!(bed.finish(2, 2, job(1, 0)), Outcome::Ended { late: false }, "nothing has changed for who has it");
    assert_eq!(bed.finish(9, 1, job(1, 0)), Outcome::StaleAttempt(Stale::Gone));
}

#[test]
fn a_late_finish_is_accepted_until_the_job_is_claimed_again_and_then_never() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 2);
    bed.recover(1);
    for what in [failed(), Answered::Snoozed { until: Timestamp::from_millis(NOW) }, Answered::Released { ran: true }] {
        assert_eq!(bed.answer(9, 1, job(1, 0), what), Outcome::StaleAttempt(Stale::Waiting), "only a finish");
    }
    assert_eq!(bed.finish(9, 1, job(1, 0)), Outcome::Ended { late: true });
    assert_eq!(bed.finish(9, 1, job(1, 0)), Outcome::StaleAttempt(Stale::Gone));
    bed.now += 5_000;
    assert_eq!(bed.claim(2, 2, 9), [(segment(1), 1, 1)], "only the other one runs again");
    // Claimed again, and given back: the first attempt is still over.
    bed.answer(2, 2, job(1, 1), Answered::Released { ran: true });
    assert_eq!(bed.finish(9, 1, job(1, 1)), Outcome::StaleAttempt(Stale::Waiting));
    assert_eq!(bed.finish(9, 2, job(1, 1)), Outcome::Ended { late: true });
}

#[test]
fn what_an_attempt_has_failed_it_cannot_finish_afterwards() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 2);
    bed.fail(1, 1, job(1, 0));
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::AnsweredBefore);
    bed.answer(1, 1, job(1, 1), Answered::Snoozed { until: Timestamp::from_millis(NOW + 5) });
    assert_eq!(bed.finish(1, 1, job(1, 1)), Outcome::AnsweredBefore);
}

#[test]
fn a_finish_by_index_without_its_claim_changes_nothing() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 1);
    bed.claim(2, 2, 1);
    assert!(matches!(bed.finish(1, 1, job(1, 1)), Outcome::StaleAttempt(Stale::Held { .. })));
    assert!(matches!(bed.finish(1, 77, job(1, 0)), Outcome::StaleAttempt(Stale::Held { .. })));
    assert_eq!(bed.finish(1, 1, job(7, 0)), Outcome::StaleAttempt(Stale::Gone));
    assert_eq!(bed.ledger.counters.finished, 0);
}

#[test]
fn attempts_count_failures_and_nothing_else() {
    let mut bed = Bed::new().absorbed(1, 1);
    let mut claim = 0;
    let mut turn = |bed: &mut Bed, what| {
        claim += 1;
        bed.now += 86_400_000;
        let outcome = bed.one(Some(1), Op::Claim { claim: claim_id(claim), want: 1, idle_elsewhere: true });
        let Outcome::Claimed { jobs, .. } = outcome else { panic!("{outcome:?}") };
        bed.answer(1, claim, job(1, 0), what);
        jobs[0].attempt
    };
    let until = Timestamp::from_millis(NOW);
    assert_eq!(turn(&mut bed, Answered::Released { ran: true }), 1);
    assert_eq!(turn(&mut bed, Answered::Snoozed { until }), 1);
    assert_eq!(turn(&mut bed, failed()), 1);
    assert_eq!(turn(&mut bed, Answered::Released { ran: false }), 2);
    assert_eq!(turn(&mut bed, failed()), 2);
    assert_eq!(turn(&mut bed, Answered::Finished), 3);
}

#[test]
fn the_last_failure_by_the_count_of_job_kind_or_queue_is_a_dead_letter() {
    let kinds = vec![KindPolicy { kind: "mail".into(), max_attempts: Some(2), ..KindPolicy::default() }];
    for (own, kind, most) in [(Some(1), None, 1), (None, Some("mail"), 2), (Some(4), Some("mail"), 4), (None, None, 3)]
    {
        let mut bed = Bed::with(|policy| (policy.max_attempts, policy.kinds) = (3, kinds.clone()));
        bed.absorb(facts(1, 1));
        for attempt in 1..=most {
            bed.now += 86_400_000;
            bed.claim(1, attempt, 1);
            let kind = kind.map(Arc::from);
            let what = Answered::Failed { for_good: false, error: None, kind, max_attempts: own };
            let outcome = bed.answer(1, attempt, job(1, 0), what);
            assert_eq!(outcome == Outcome::Buried, attempt == most, "{outcome:?}");
        }
        assert_eq!(bed.ledger.dead[0].jobs[0].attempts, u32::try_from(most).unwrap());
    }
}

#[test]
fn a_buried_job_cannot_be_finished_and_its_segment_outlives_the_letter_write() {
    let mut bed = Bed::new().absorbed(1, 1);
    bed.claim(1, 1, 1);
    let what = Answered::Failed { for_good: true, error: Some("bad".into()), kind: None, max_attempts: None };
    assert_eq!(bed.answer(1, 1, job(1, 0), what), Outcome::Buried);
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::StaleAttempt(Stale::Gone));
    assert_eq!(bed.one(None, Op::Cancel { job: job(1, 0), in_inbox: false }), Outcome::Nothing);
    // Whoever died here has left a row with its payload, and a plan with its name.
    assert_eq!((bed.ledger.rows.len(), bed.ledger.finished.len()), (1, 0));
    assert_eq!(bed.ledger.dead_to_write(bed.now).count(), 0, "its planner is at it");
    assert_eq!(bed.ledger.wakes_after(bed.now), Some(NOW + 60_000).min(bed.ledger.wakes_after(bed.now)));
    assert_eq!(bed.ledger.dead_to_write(bed.now + 60_000).count(), 1);
    let plan = bed.ledger.dead[0].clone();
    assert_eq!((plan.jobs[0].error.as_deref(), plan.jobs[0].attempts), (Some("bad"), 1));
    bed.one(None, Op::DeadWritten { plan: plan.id });
    assert_eq!(bed.last.as_ref().unwrap().finished, [inbox(1, 1)]);
    assert_eq!(bed.one(None, Op::DeadWritten { plan: plan.id }), Outcome::Nothing, "two who carry it out");
    assert_eq!(bed.ledger.counters.dead, 1);
}

#[test]
fn a_full_dead_list_keeps_the_job_in_its_claim() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.caps.dead = 1;
    bed.claim(1, 1, 2);
    let what = || Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None };
    assert_eq!(bed.answer(1, 1, job(1, 0), what()), Outcome::Buried);
    assert_eq!(bed.answer(1, 1, job(1, 1), what()), Outcome::Full(Full::DeadList));
    let plan = bed.ledger.dead[0].id;
    bed.one(None, Op::DeadWritten { plan });
    assert_eq!(bed.answer(1, 1, job(1, 1), what()), Outcome::Buried);
}

#[test]
fn cancelling_ends_what_waits_and_marks_what_runs_and_a_finish_still_stands() {
    let mut bed = Bed::new().absorbed(1, 4);
    let cancel = |index| Op::Cancel { job: job(1, index), in_inbox: true };
    assert_eq!(bed.one(None, cancel(3)), Outcome::Ended { late: false });
    assert_eq!(bed.one(None, cancel(3)), Outcome::Nothing);
    bed.claim(1, 1, 9);
    for index in 0..3 {
        assert_eq!(bed.one(None, cancel(index)), Outcome::Asked);
    }
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::Ended { late: false }, "it was faster");
    assert_eq!(bed.fail(1, 1, job(1, 1)), Outcome::CancelledInstead, "it is not tried again");
    let recovered = bed.recover(1);
    assert_eq!((recovered.cancelled, recovered.waiting), (1, 0), "its process died");
    let counters = bed.ledger.counters;
    assert_eq!((counters.cancelled, counters.finished), (3, 1));
    assert_eq!(bed.ledger.cancelling, []);
}

#[test]
fn a_move_is_planned_then_written_then_dropped_and_its_fence_goes_with_it() {
    let mut bed = Bed::new().absorbed(1, 1);
    bed.claim(1, 1, 1);
    let target = SegmentName { id: SegmentId::of_move(id(1, 0), 2, Class::Normal), place: Place::Inbox, jobs: 1 };
    let due = Timestamp::from_millis(NOW);
    let moved = || Answered::Moved { queue: "other".into(), target, priority: 3, due };
    assert_eq!(bed.answer(1, 1, job(1, 0), moved()), Outcome::Done);
    assert_eq!(bed.ledger.moves[0].fence, bed.ledger.fence_last.unwrap());
    assert_eq!(bed.answer(1, 1, job(1, 0), moved()), Outcome::StaleAttempt(Stale::Gone));
    // Its process dies before the segment is there: the job is neither claimed here nor lost.
    bed.now += 60_000;
    assert_eq!(bed.one(None, Op::Recover { session: session(1) }), Outcome::Recovered(Recovered::default()));
    assert_eq!(bed.claim(2, 2, 9), []);
    assert_eq!(bed.ledger.moves_to_write(bed.now).count(), 1);
    assert_eq!(bed.one(None, Op::MoveWritten { job: job(1, 0), target: segment(5) }), Outcome::Nothing, "not that one");
    let written = || Op::MoveWritten { job: job(1, 0), target: target.id };
    assert_eq!(bed.one(None, written()), Outcome::Done);
    assert_eq!(bed.one(None, written()), Outcome::Nothing);
    assert_eq!((bed.ledger.counters.moved, bed.ledger.rows.len()), (1, 0));
}

fn home(number: u32, epoch: u64) -> Home {
    Home { segment: segment(number), jobs: 2, index: 0, epoch, id: segment(number).job(0) }
}

#[test]
fn a_job_whose_parts_have_changed_lives_on_in_a_new_segment_under_its_old_id() {
    let mut bed = Bed::new();
    bed.absorb(Facts { unique: vec![(0, [5; 16])], ..facts(1, 1) });
    bed.claim(1, 1, 1);
    let fail = |into| Op::Answer(Answer { claim: claim_id(1), job: job(1, 0), what: failed(), into: Some(into) });
    assert!(matches!(bed.one(Some(1), fail(home(50, 0))), Outcome::Waits { .. }));
    assert_eq!(bed.last.as_ref().unwrap().finished, [inbox(1, 1)], "the old segment has nothing left");
    assert_eq!(bed.finish(1, 1, job(1, 0)), Outcome::StaleAttempt(Stale::Gone));
    assert!(matches!(bed.ledger.find(job(50, 0)), Found::Waiting { why: Why::Failed, attempts: 1, .. }));
    assert_eq!(bed.ledger.unique[0].job, job(50, 0), "its key goes with it");
    bed.now += 60_000;
    assert_eq!(bed.claim(1, 2, 9), [(segment(50), 0, 1)]);
    bed.finish(1, 2, job(50, 0));
    let applied = bed.last.as_ref().unwrap();
    assert_eq!((&applied.finished[..], &applied.unnamed[..]), (&[][..], &[segment(50)][..]));
}

#[test]
fn an_object_that_was_written_before_the_epoch_rose_is_not_named() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 2);
    let orphans = bed.one(None, Op::RaiseEpoch { candidates: vec![segment(50)] });
    assert_eq!(orphans, Outcome::Orphans(vec![segment(50)]));
    let fail = |into| Op::Answer(Answer { claim: claim_id(1), job: job(1, 0), what: failed(), into: Some(into) });
    assert_eq!(bed.one(Some(1), fail(home(50, 0))), Outcome::WriteAgain);
    assert_eq!(bed.ledger.totals().running, 2, "it stays in its claim");
    assert!(matches!(bed.one(Some(1), fail(home(51, 1))), Outcome::Waits { .. }));
    let again = Op::Answer(Answer { claim: claim_id(1), job: job(1, 1), what: failed(), into: Some(home(51, 1)) });
    assert_eq!(bed.one(Some(1), again), Outcome::WriteAgain, "a row of an earlier commit takes no more");
    assert_eq!(
        bed.one(None, Op::RaiseEpoch { candidates: vec![segment(51)] }),
        Outcome::Nothing,
        "what is named stays"
    );
}

#[test]
fn an_error_text_is_cut_when_there_is_no_room_and_the_job_is_not() {
    let mut bed = Bed::new().absorbed(1, 3);
    bed.caps.errors = 300;
    bed.claim(1, 1, 3);
    for index in 0..3 {
        let error = Some(Arc::from("ö".repeat(100)));
        let what = Answered::Failed { for_good: false, error, kind: None, max_attempts: None };
        assert!(matches!(bed.answer(1, 1, job(1, index), what), Outcome::Waits { .. }));
    }
    let errors = bed.ledger.rows[0].runs.iter().map(|run| run.traits.error.as_ref().map_or(0, |error| error.len()));
    assert_eq!(errors.collect::<Vec<_>>(), [200, 100, 0]);
}
