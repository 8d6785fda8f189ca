//! A write whose answer was lost is recognised, and what goes away leaves nothing in doubt.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::{
    ErrorKind,
    job::{AttemptEnd, Fate, JobState},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

const LOST: Fault = Fault::Lose(Answer::Drop);
const REFUSED: Fault = Fault::Refuse(Answer::Status(500));

#[tokio::test]
async fn a_lost_answer_to_a_claim_still_hands_out_its_jobs_once() {
    for fault in [LOST, REFUSED, Fault::Duplicate] {
        let world = World::new();
        let queue = world.queue(1).await;
        queue.enqueue_many(jobs(10)).await.unwrap();
        queue.settings().await.unwrap();
        world.fault(Rule::once(Op::Put, fault).on("ledger/"));
        let claimed = queue.claim(10).await.unwrap();
        assert_eq!(claimed.len(), 10, "{fault:?}");
        assert!(queue.claim(10).await.unwrap().is_empty(), "they are in hand");
        assert!(queue.finish_all(claimed).await.unwrap().iter().all(AttemptEnd::is_accepted));
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_finish_is_no_stale_attempt() {
    for fault in [LOST, REFUSED, Fault::Duplicate] {
        let world = World::new();
        let (queue, other) = (world.queue(1).await, world.queue(2).await);
        queue.enqueue_many(jobs(2)).await.unwrap();
        let mut claimed = queue.claim(2).await.unwrap();
        let rest = claimed.split_off(1);
        world.fault(Rule::once(Op::Put, fault).on("ledger/"));
        let finishing = claimed.remove(0).finish();
        // Another process commits on top before the answer is looked for.
        other.enqueue("more").await.unwrap();
        let more = other.claim(1).await.unwrap();
        assert_eq!(finishing.await.unwrap(), AttemptEnd::Finished { late: false }, "{fault:?}");
        assert!(queue.finish_all(rest).await.unwrap()[0].is_accepted());
        assert!(other.finish_all(more).await.unwrap()[0].is_accepted());
        assert!(work_down(&queue).await.is_empty());
    }
}

#[tokio::test]
async fn a_finish_stays_queued_when_nobody_waits_for_it() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("x").await.unwrap();
    let job = one(&queue).await;
    world.fault(Rule::once(Op::Put, REFUSED).on("ledger/").times(20));
    drop(job.finish());
    calm().await;
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Running, "the store refuses");
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Finished);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_unknown_and_stays_queued() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("x").await.unwrap();
    let job = one(&queue).await;
    world.fault(Rule::once(Op::Put, REFUSED).on("ledger/").times(1000));
    let waiting = tokio::spawn(async move { job.finish().await });
    world.pass(Duration::from_secs(31)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
    world.0.store.faults().clear();
    world.pass(Duration::from_secs(30)).await;
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Finished);
}

#[tokio::test]
async fn a_claim_whose_caller_went_away_is_given_back() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(5)).await.unwrap();
    // It is written, and its answer comes after its caller has gone.
    world.fault(Rule::once(Op::Put, Fault::Slow(Duration::from_secs(1))).on("ledger/"));
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.claim(5).await }
    });
    calm().await;
    waiting.abort();
    world.pass(Duration::from_secs(3)).await;
    let again = queue.claim(5).await.unwrap();
    assert_eq!(again.len(), 5, "nobody has them");
    assert!(again.iter().all(|job| job.attempt() == 1));
}

#[tokio::test]
async fn an_enqueue_whose_answer_was_lost_is_made_once() {
    for fault in [LOST, REFUSED, Fault::Duplicate] {
        let world = World::new();
        let queue = world.queue(1).await;
        queue.settings().await.unwrap();
        world.fault(Rule::once(Op::Put, fault).on("/in/"));
        let ids = queue.enqueue_many(jobs(3)).await.unwrap();
        assert_eq!(ids.len(), 3);
        assert_eq!(world.names("/in/").len(), 1, "{fault:?}");
        assert_eq!(work_down(&queue).await, ["job 0", "job 1", "job 2"]);
    }
}

#[tokio::test]
async fn an_enqueue_that_cannot_be_settled_is_unknown_and_says_its_ids() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.settings().await.unwrap();
    world.fault(Rule::always(Op::Put, REFUSED).on("/in/"));
    let failing = tokio::spawn({
        let queue = queue.clone();
        async move { queue.enqueue_many(jobs(2)).await }
    });
    world.pass(Duration::from_secs(70)).await;
    let error = failing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.fates().iter().all(|fate| matches!(fate, Fate::Unknown(_))), "{error:?}");
}

#[tokio::test]
async fn a_call_with_a_request_id_is_made_once_however_often_it_is_repeated() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    let first = queue.enqueue_many(jobs(3)).request_id("order 7").await.unwrap();
    let again = other.enqueue_many(jobs(3)).request_id("order 7").await.unwrap();
    assert_eq!(first, again);
    assert_eq!(work_down(&queue).await.len(), 3);
    assert_eq!(other.enqueue_many(jobs(3)).request_id("order 7").await.unwrap(), first);
    assert!(work_down(&other).await.is_empty(), "it is recognised after its end");
}

#[tokio::test]
async fn what_is_answered_while_a_commit_is_under_way_goes_into_the_next() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(50)).await.unwrap();
    let claimed = queue.claim(50).await.unwrap();
    let before = world.0.store.object("default/queue/emails/ledger/0.pb").unwrap().0;
    let changes = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = std::sync::Arc::clone(&changes);
    world.0.store.set_observer(Box::new(move |applied| {
        if applied.name.contains("ledger/") {
            seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }));
    let finishing: Vec<_> = claimed.into_iter().map(|job| job.finish().into_future()).collect();
    for finishing in finishing {
        assert!(finishing.await.unwrap().is_accepted());
    }
    assert!(changes.load(std::sync::atomic::Ordering::SeqCst) <= 2, "{changes:?} commits for 50 answers");
    assert_ne!(world.0.store.object("default/queue/emails/ledger/0.pb").unwrap().0, before);
}
