//! Rule 1: a lost answer is recognised, also under the commits of others, and never guessed.

use super::*;

/// Session 1 has a row; it sends a claim whose answer is lost.
fn in_doubt(lands: bool) -> (Bed, Attempt) {
    let mut bed = Bed::new().absorbed(1, 9);
    bed.claim(1, 1, 1);
    let base = bed.ledger.revision;
    let context = bed.context(Some(1));
    let attempt = Attempt { write_id: context.write_id, base };
    if lands {
        let claim = [Op::Claim { claim: claim_id(2), want: 1, idle_elsewhere: true }];
        bed.ledger = apply(&bed.ledger, &claim, &context).unwrap().ledger;
    }
    (bed, attempt)
}

fn judge(bed: &Bed, attempt: Attempt, had_row: bool, valid: bool) -> Verdict {
    verdict(&bed.ledger, Some(session(1)), &[attempt], had_row, valid)
}

#[test]
fn a_commit_that_landed_is_found_also_under_many_commits_of_others() {
    let (mut bed, attempt) = in_doubt(true);
    assert_eq!(judge(&bed, attempt, true, true), Verdict::Landed(0));
    for number in 10..20 {
        bed.claim(2, number, 1);
        assert_ne!(bed.ledger.write_id, attempt.write_id, "the last write alone would not tell");
        assert!(bed.ledger.carries(attempt.write_id));
        assert_eq!(judge(&bed, attempt, true, true), Verdict::Landed(0));
    }
}

#[test]
fn one_that_did_not_land_is_pending_on_its_base_and_lost_on_any_other() {
    let (mut bed, attempt) = in_doubt(false);
    assert_eq!(judge(&bed, attempt, true, true), Verdict::Pending);
    bed.claim(2, 10, 1);
    assert_eq!(judge(&bed, attempt, true, true), Verdict::NotLanded);
}

#[test]
fn of_several_attempts_only_the_ticket_of_the_one_that_landed_is_answered() {
    let (bed, landed) = in_doubt(true);
    let other = Attempt { write_id: [9; 16].into(), base: landed.base };
    assert_eq!(verdict(&bed.ledger, Some(session(1)), &[other, landed], true, true), Verdict::Landed(1));
}

#[test]
fn a_process_whose_row_is_gone_cannot_know_and_does_not_say_stale() {
    for lands in [true, false] {
        let (mut bed, attempt) = in_doubt(lands);
        bed.recover(1);
        assert_eq!(judge(&bed, attempt, true, false), Verdict::Unknowable);
        assert_eq!(judge(&bed, attempt, true, true), Verdict::Unknowable, "whatever it believes of itself");
    }
}

#[test]
fn the_first_commit_of_a_live_session_is_lost_and_of_a_dead_one_unknown() {
    let mut bed = Bed::new().absorbed(1, 9);
    let attempt = Attempt { write_id: [9; 16].into(), base: bed.ledger.revision };
    bed.claim(2, 10, 1);
    assert_eq!(judge(&bed, attempt, false, true), Verdict::NotLanded);
    assert_eq!(judge(&bed, attempt, false, false), Verdict::Unknowable);
    assert_eq!(verdict(&bed.ledger, None, &[attempt], false, true), Verdict::Unknowable, "the program has no row");
}

#[test]
fn repeating_operations_on_the_same_base_after_a_lost_answer_changes_nothing() {
    let mut bed = Bed::new().absorbed(1, 2);
    bed.claim(1, 1, 2);
    let operations = [Op::Answer(Answer { claim: claim_id(1), job: job(1, 0), what: Answered::Finished, into: None })];
    bed.commit(Some(1), &operations);
    assert_eq!(bed.commit(Some(1), &operations), [Outcome::AnsweredBefore], "why the verdict comes first");
    assert_eq!(bed.ledger.counters.finished, 1);
}

#[test]
fn a_claim_that_its_process_does_not_know_is_given_back_uncharged() {
    let (mut bed, _) = in_doubt(true);
    let known = |claim: ClaimId, _: JobRef| claim == claim_id(1);
    let back = bed.ledger.to_give_back(session(1), known);
    assert_eq!(back.len(), 1);
    let outcomes = bed.commit(Some(1), &back);
    assert!(matches!(outcomes[0], Outcome::Waits { .. }));
    assert!(bed.ledger.to_give_back(session(1), known).is_empty());
    let Found::Waiting { attempts, stalls, .. } = bed.ledger.find(job(1, 1)) else { panic!() };
    assert_eq!((attempts, stalls), (0, 0));
    assert_eq!(bed.claim(2, 9, 1), [(segment(1), 1, 1)], "at once");
}

#[test]
fn a_session_takes_its_row_out_only_if_it_has_nothing_in_hand() {
    let mut bed = Bed::new().absorbed(1, 1);
    bed.claim(1, 1, 1);
    assert_eq!(bed.one(Some(1), Op::Close), Outcome::Nothing);
    assert!(bed.ledger.session(session(1)).is_some());
    bed.finish(1, 1, job(1, 0));
    assert_eq!(bed.one(Some(1), Op::Close), Outcome::Done);
    assert!(bed.ledger.sessions.is_empty());
}

#[test]
fn what_names_a_segment_is_not_sent_again_while_its_outcome_is_unknown() {
    let into = Some(Home { segment: segment(9), jobs: 1, index: 0, epoch: 0, id: segment(9).job(0) });
    let answer = |into| Op::Answer(Answer { claim: claim_id(1), job: job(1, 0), what: failed(), into });
    let spill = Spill { segment: segment(9), epoch: 0, jobs: 1, moving: vec![], span: (id(1, 0), id(1, 0)) };
    assert!(!Op::Spill(Arc::new(spill)).may_be_sent_again_in_doubt());
    assert!(!answer(into).may_be_sent_again_in_doubt());
    assert!(answer(None).may_be_sent_again_in_doubt());
}

#[test]
fn an_operation_that_changes_nothing_needs_no_commit() {
    let mut bed = Bed::new().absorbed(1, 1);
    let idle = [
        Op::Recover { session: session(7) },
        Op::Confirm { segment: segment(7), since: 0 },
        Op::Forget { segments: vec![segment(7)] },
        Op::DeadWritten { plan: [7; 16].into() },
        Op::Cancel { job: job(7, 0), in_inbox: false },
        Op::Pause { job: job(1, 0), paused: false },
        Op::Limit { key: 7, name: "k".into(), most: None },
        Op::Published { through: 7 },
        Op::RaiseEpoch { candidates: vec![] },
        Op::Claim { claim: claim_id(7), want: 0, idle_elsewhere: true },
    ];
    bed.commit(Some(1), &idle);
    assert!(!bed.last.unwrap().changed);
}
