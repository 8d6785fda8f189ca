//! A store's answer to a conditional write is never taken at its word: a write that landed is never called lost.
//!
//! Each test scripts the HTTP server and goes through real `object_store` S3 code. The rows are those that were measured
//! on it: it calls a write that it sent twice a conflict, and says of a timeout nothing at all.

use crate::common::Bed;
use leasehold::ErrorKind;
use leasehold_testkit::{Answer, Fault, Op, Reading, Register, Rule, Verdict};
use std::time::Duration;

fn won(verdict: Verdict) -> (Reading, u32) {
    match verdict {
        Verdict::Won { reading, attempt } => (reading, attempt),
        other => panic!("not won: {other:?}"),
    }
}

fn lost(verdict: Verdict) -> Option<Reading> {
    match verdict {
        Verdict::Lost(there) => there,
        other => panic!("not lost: {other:?}"),
    }
}

fn unknown(verdict: Verdict) -> leasehold::Error {
    match verdict {
        Verdict::Unknown(error) => error,
        other => panic!("not unknown: {other:?}"),
    }
}

/// A server, and a register on it that holds 1.
async fn bed() -> (Bed, Register, Reading) {
    let bed = Bed::new().await;
    let register = Register::new(&bed.store, "x");
    let (base, _) = won(register.swap(None).attempt(1).await);
    (bed, register, base)
}

/// The fault happens to the next write of the register.
fn next_put(bed: &Bed, fault: Fault) {
    bed.server.faults().script(Rule::once(Op::Put, fault).on("register"));
}

async fn a_create_that_landed_is_won(answer: Answer) {
    let bed = Bed::new().await;
    let register = Register::new(&bed.store, "x");
    next_put(&bed, Fault::Lose(answer));
    let (verdict, made) = bed.counting(register.swap(None).attempt(7)).await;
    let (reading, attempt) = won(verdict);
    assert_eq!((reading.value(), attempt, made.total()), (7, 1, 2), "one write, one read back");
    // The version that was read back is good for the next write.
    won(register.swap(Some(reading)).attempt(8).await);
}

async fn an_update_that_landed_is_won(answer: Answer) {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Lose(answer));
    let (verdict, made) = bed.counting(register.swap(Some(base)).attempt(7)).await;
    let (reading, _) = won(verdict);
    assert_eq!((reading.value(), reading.revision(), made.total()), (7, 2, 2));
    won(register.swap(Some(reading)).attempt(8).await);
}

#[tokio::test]
async fn a_create_that_was_committed_and_answered_500_is_won() {
    a_create_that_landed_is_won(Answer::Status(500)).await;
}

#[tokio::test]
async fn a_create_that_was_committed_and_answered_503_is_won() {
    a_create_that_landed_is_won(Answer::Status(503)).await;
}

#[tokio::test]
async fn a_create_that_was_committed_and_answered_412_is_won() {
    // What a retry below us would make of a lost answer.
    a_create_that_landed_is_won(Answer::Status(412)).await;
}

#[tokio::test]
async fn a_create_that_was_committed_and_dropped_is_won() {
    a_create_that_landed_is_won(Answer::Drop).await;
}

#[tokio::test]
async fn an_update_that_was_committed_and_answered_500_is_won() {
    an_update_that_landed_is_won(Answer::Status(500)).await;
}

#[tokio::test]
async fn an_update_that_was_committed_and_answered_503_is_won() {
    an_update_that_landed_is_won(Answer::Status(503)).await;
}

#[tokio::test]
async fn an_update_that_was_committed_and_answered_412_is_won() {
    an_update_that_landed_is_won(Answer::Status(412)).await;
}

#[tokio::test]
async fn an_update_that_was_committed_and_dropped_is_won() {
    an_update_that_landed_is_won(Answer::Drop).await;
}

#[tokio::test]
async fn a_write_that_the_transport_delivers_twice_is_won_once() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Duplicate);
    let (reading, _) = won(register.swap(Some(base)).attempt(7).await);
    assert_eq!((reading.value(), reading.revision()), (7, 2));
}

#[tokio::test]
async fn a_409_on_create_is_unknown_and_not_somebody_elses_win() {
    let bed = Bed::new().await;
    let register = Register::new(&bed.store, "x");
    next_put(&bed, Fault::Refuse(Answer::Status(409)));
    let mut swap = register.swap(None);
    let error = unknown(swap.attempt(7).await);
    assert!(error.is_retryable(), "{error}");
    let (reading, attempt) = won(swap.attempt(7).await);
    assert_eq!((reading.value(), attempt), (7, 2));
}

#[tokio::test]
async fn a_409_on_update_is_settled_by_trying_again() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Refuse(Answer::Status(409)));
    let mut swap = register.swap(Some(base));
    unknown(swap.attempt(7).await);
    assert_eq!(won(swap.attempt(7).await).1, 2);
}

#[tokio::test]
async fn a_409_for_ever_stays_unknown() {
    let (bed, register, base) = bed().await;
    bed.server.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(409))));
    let mut swap = register.swap(Some(base.clone()));
    for _ in 0..5 {
        let error = unknown(swap.attempt(7).await);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    bed.server.faults().clear();
    assert_eq!(register.read().await.unwrap().unwrap().write_id(), base.write_id());
}

#[tokio::test]
async fn a_404_on_update_is_lost_to_whoever_removed_the_record() {
    let (bed, register, base) = bed().await;
    bed.server.delete_object(&format!("some/prefix/{}", register.object_name()));
    assert!(lost(register.swap(Some(base)).attempt(7).await).is_none());
    assert!(register.read().await.unwrap().is_none(), "and it is not made again");
}

#[tokio::test]
async fn a_write_that_is_never_answered_is_unknown_until_it_is_looked_for() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Lose(Answer::Hang));
    let writing = tokio::spawn({
        let register = register.clone();
        async move { register.swap(Some(base)).attempt(7).await }
    });
    bed.clock.wait_for_sleepers(1).await;
    while bed
        .server
        .object(&format!("some/prefix/{}", register.object_name()))
        .is_none_or(|body| !body.ends_with(b"7}"))
    {
        tokio::task::yield_now().await;
    }
    bed.clock.advance(Duration::from_secs(30));
    let (reading, _) = won(writing.await.unwrap());
    assert_eq!(reading.value(), 7, "it had landed");
}

#[tokio::test]
async fn a_write_that_hangs_and_did_not_land_is_unknown() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Refuse(Answer::Hang));
    let mut swap = register.swap(Some(base));
    let clock = bed.clock.clone();
    let moving = tokio::spawn(async move {
        clock.wait_for_sleepers(1).await;
        clock.advance(Duration::from_secs(30));
    });
    let error = unknown(swap.attempt(7).await);
    assert!(error.to_string().contains("no answer within 30s"), "{error}");
    moving.await.unwrap();
    assert_eq!(won(swap.attempt(7).await).1, 2);
}

#[tokio::test]
async fn a_500_that_was_not_applied_is_unknown_and_not_lost() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Refuse(Answer::Status(500)));
    let mut swap = register.swap(Some(base));
    unknown(swap.attempt(7).await);
    assert_eq!(won(swap.attempt(7).await).1, 2);
}

#[tokio::test]
async fn the_base_still_there_after_a_conflict_is_unknown_and_not_lost() {
    // The store says "condition not met", and what we based the write on is there: our write may be under way.
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Refuse(Answer::Status(412)));
    unknown(register.swap(Some(base)).attempt(7).await);
}

#[tokio::test]
async fn nothing_there_after_a_create_is_unknown_and_not_lost() {
    let bed = Bed::new().await;
    let register = Register::new(&bed.store, "x");
    next_put(&bed, Fault::Refuse(Answer::Status(412)));
    unknown(register.swap(None).attempt(7).await);
}

#[tokio::test]
async fn the_first_of_two_tries_lands_late_and_the_second_knows_it_for_its_own() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Late(Duration::from_secs(3), Answer::Status(503)));
    let mut swap = register.swap(Some(base));
    unknown(swap.attempt(7).await);
    // It lands before the second try arrives, which then meets a conflict.
    bed.clock.wait_for_sleepers(1).await;
    bed.clock.advance(Duration::from_secs(3));
    while register.read().await.unwrap().unwrap().value() != 7 {
        tokio::task::yield_now().await;
    }
    let (reading, attempt) = won(swap.attempt(8).await);
    assert_eq!((reading.value(), attempt), (7, 1), "the first attempt is the one that is there");
}

#[tokio::test]
async fn a_first_try_that_lands_after_the_second_changes_nothing() {
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Late(Duration::from_secs(3), Answer::Status(503)));
    let mut swap = register.swap(Some(base));
    unknown(swap.attempt(7).await);
    let (reading, attempt) = won(swap.attempt(8).await);
    assert_eq!((reading.value(), attempt), (8, 2));
    bed.clock.wait_for_sleepers(1).await;
    bed.clock.advance(Duration::from_secs(3));
    while bed.clock.sleepers() > 0 {
        tokio::task::yield_now().await;
    }
    won(register.swap(Some(reading)).attempt(9).await);
}

#[tokio::test]
async fn a_retry_recognises_the_id_of_its_own_earlier_try() {
    // Both answers are lost, of which only the first was applied.
    let (bed, register, base) = bed().await;
    next_put(&bed, Fault::Lose(Answer::Status(500)));
    bed.server.faults().script(Rule::once(Op::Get, Fault::Refuse(Answer::Status(500))).times(3));
    let mut swap = register.swap(Some(base));
    let clock = bed.clock.clone();
    let moving = tokio::spawn(async move {
        clock.wait_for_sleepers(1).await;
        loop {
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    });
    unknown(swap.attempt(7).await);
    moving.abort();
    let (reading, attempt) = won(swap.attempt(8).await);
    assert_eq!((reading.value(), attempt), (7, 1));
}

#[tokio::test]
async fn a_write_that_lost_learns_what_is_there() {
    let (_bed, register, base) = bed().await;
    let (theirs, _) = won(register.swap(Some(base.clone())).attempt(2).await);
    let there = lost(register.swap(Some(base)).attempt(3).await).unwrap();
    assert_eq!(there.write_id(), theirs.write_id());
}

#[tokio::test]
async fn equal_values_written_again_are_different_writes() {
    // ETags are MD5 here: were the bodies equal, the version of the first would be good again after the third.
    let (_bed, register, first) = bed().await;
    let (second, _) = won(register.swap(Some(first.clone())).attempt(2).await);
    let (third, _) = won(register.swap(Some(second)).attempt(1).await);
    let there = lost(register.swap(Some(first)).attempt(9).await).unwrap();
    assert_eq!(there.write_id(), third.write_id());
}

#[tokio::test]
async fn a_record_older_than_the_base_is_a_regress_and_not_a_loss() {
    let (bed, register, first) = bed().await;
    let name = format!("some/prefix/{}", register.object_name());
    let old = bed.server.object(&name).unwrap();
    let (second, _) = won(register.swap(Some(first)).attempt(2).await);
    let (third, _) = won(register.swap(Some(second)).attempt(3).await);
    bed.server.put_object(&name, old);
    let error = unknown(register.swap(Some(third)).attempt(4).await);
    assert_eq!(error.kind(), ErrorKind::Regressed, "{error}");
}

#[tokio::test]
async fn a_denied_write_says_so_and_changes_nothing() {
    let (bed, register, base) = bed().await;
    bed.server.deny(Op::Put);
    let error = unknown(register.swap(Some(base)).attempt(7).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.is_retryable());
    assert_eq!(register.read().await.unwrap().unwrap().value(), 1);
}

#[tokio::test]
async fn a_bucket_that_vanished_is_no_free_lease() {
    let (bed, register, base) = bed().await;
    bed.server.remove_bucket();
    let error = register.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
    let error = unknown(register.swap(Some(base)).attempt(7).await);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}
