//! Jobs that another system runs: who has them in hand is durable, and what the dead had is recovered.

use super::shared::{World, one};
use crate::common::{secs, settle};
use leasehold::{
    ErrorKind,
    job::{AttemptEnd, NewTracked, RecoveredJob, StaleAttempt, Tracker},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

async fn tracker(world: &World, seed: u64) -> Tracker {
    world.queue(seed).await.tracker()
}

fn ids(recovered: &[leasehold::job::Recovered]) -> Vec<String> {
    let mut ids: Vec<String> = recovered.iter().map(|job| job.id().to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn what_a_dead_process_had_is_recovered_once_with_its_payload() {
    let world = World::new();
    let (dead, _stopped) = world.paused(1).await;
    let begun = dead.tracker().begin_many([("jid:1", "one"), ("jid:2", "two")]).await.unwrap();
    let fence = begun[0].fence();
    std::mem::forget(begun);
    let others: Vec<Tracker> = {
        let mut others = Vec::new();
        for seed in 2..7 {
            others.push(tracker(&world, seed).await);
        }
        others
    };
    world.pass(secs(25)).await;
    assert!(others[0].recover(10).await.unwrap().is_empty(), "a session lasts 30 s");
    world.pass(secs(10)).await;
    drop(others[0].recover(10).await.unwrap());
    world.pass(secs(10)).await;
    // Five at the same time, within the bound: 30 s + 2 × 1 s + 4 s + 5 s of spread + a poll.
    let tries = others.iter().map(|tracker| tracker.recover(10));
    let recovered: Vec<_> = futures_util::future::try_join_all(tries).await.unwrap().into_iter().flatten().collect();
    assert_eq!(ids(&recovered), ["jid:1", "jid:2"], "each is in one hand only");
    for job in recovered {
        assert!(job.fence() > fence);
        assert_eq!(job.payload(), if job.id() == "jid:1" { "one" } else { "two" });
        assert_eq!(job.interruptions(), 1);
        assert!(job.handed_on().await.unwrap().is_accepted());
    }
    world.pass(secs(120)).await;
    assert!(others[1].recover(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_living_process_is_never_robbed_however_long_its_job_runs() {
    let world = World::new();
    let (alive, other) = (tracker(&world, 1).await, tracker(&world, 2).await);
    let tracked = alive.begin("jid", "x").await.unwrap();
    for _ in 0..10 {
        world.pass(secs(60)).await;
        assert!(other.recover(10).await.unwrap().is_empty());
        assert!(tracked.is_ours());
    }
    assert_eq!(tracked.finish().await.unwrap(), AttemptEnd::Finished { late: false });
    world.pass(secs(120)).await;
    assert!(other.recover(10).await.unwrap().is_empty(), "untracked after its end");
}

#[tokio::test]
async fn the_payload_is_removed_only_after_it_was_handed_on() {
    let world = World::new();
    let (first, second) = (tracker(&world, 1).await, tracker(&world, 2).await);
    drop(first.begin("jid", "x").await.unwrap());
    settle().await;
    let recovered = first.recover(10).await.unwrap();
    assert_eq!(ids(&recovered), ["jid"]);
    assert!(second.recover(10).await.unwrap().is_empty(), "one at a time");
    // Whoever recovered it did not get to hand it on.
    drop(recovered);
    settle().await;
    let again = second.recover(10).await.unwrap();
    assert_eq!(ids(&again), ["jid"]);
    assert_eq!(world.names("/seg/").len(), 1);
    for job in again {
        assert!(job.handed_on().await.unwrap().is_accepted());
    }
    settle().await;
    assert!(world.names("/seg/").is_empty());
}

#[tokio::test]
async fn a_shutdown_hands_back_at_once_and_counts_no_stall() {
    let world = World::new();
    let (leaving, other) = (tracker(&world, 1).await, tracker(&world, 2).await);
    let begun = leaving.begin_many([("a", "1"), ("b", "2"), ("c", "3")]).await.unwrap();
    for tracked in begun {
        let _ = tracked.hand_back().await.unwrap();
    }
    let recovered = other.recover(10).await.unwrap();
    assert_eq!(ids(&recovered), ["a", "b", "c"], "without waiting for a session to end");
    for job in recovered {
        let info = other.queue().get(job_id(&job)).await.unwrap().unwrap();
        assert_eq!(info.stalls, 0);
        assert!(job.handed_on().await.unwrap().is_accepted());
    }
}

fn job_id(job: &leasehold::job::Recovered) -> leasehold::JobId {
    job.job_id()
}

#[tokio::test]
async fn an_id_begun_elsewhere_is_taken_over_with_a_higher_fence() {
    let world = World::new();
    let (first, second) = (tracker(&world, 1).await, tracker(&world, 2).await);
    let before = first.begin("jid", "x").await.unwrap();
    let after = second.begin("jid", "x").await.unwrap();
    assert!(after.fence() > before.fence());
    assert!(matches!(before.finish().await.unwrap(), AttemptEnd::Stale(StaleAttempt::Gone)));
    assert_eq!(second.in_flight(10).await.unwrap().len(), 1);
    assert!(after.finish().await.unwrap().is_accepted());
}

#[tokio::test]
async fn two_who_begin_one_id_at_the_same_time_have_different_fences() {
    let world = World::new();
    let tracker = tracker(&world, 1).await;
    let (one, two) = tokio::join!(tracker.begin("jid", "x"), tracker.begin("jid", "x"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.fence(), two.fence());
    let (old, new) = if one.fence() < two.fence() { (one, two) } else { (two, one) };
    assert!(!old.finish().await.unwrap().is_accepted());
    assert!(new.finish().await.unwrap().is_accepted());
    let error = tracker.begin_many([("twice", "1"), ("twice", "2")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn what_cannot_be_tracked_is_an_error_and_leaves_nothing_in_hand() {
    let world = World::new();
    let tracker = tracker(&world, 1).await;
    assert!(tracker.begin("first", "x").await.unwrap().finish().await.unwrap().is_accepted());
    for name in ["/seg/", "/ledger/"] {
        world.fault(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on(name));
        let error = tracker.begin("jid", "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        world.0.store.faults().clear();
        assert!(tracker.in_flight(10).await.unwrap().is_empty());
    }
    assert!(tracker.begin("", "x").await.is_err());
}

#[tokio::test]
async fn a_lost_answer_to_a_begin_is_recognised_and_not_begun_twice() {
    let world = World::new();
    let tracker = tracker(&world, 1).await;
    assert!(tracker.begin("first", "x").await.unwrap().finish().await.unwrap().is_accepted());
    for name in ["/seg/", "/ledger/"] {
        world.fault(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on(name));
        let begin = tokio::spawn({
            let tracker = tracker.clone();
            async move { tracker.begin("jid", "x").await }
        });
        world.pass(secs(5)).await;
        let tracked = begin.await.unwrap().unwrap();
        assert_eq!(tracker.in_flight(10).await.unwrap().len(), 1);
        assert_eq!(tracked.finish().await.unwrap(), AttemptEnd::Finished { late: false });
    }
}

#[tokio::test]
async fn what_is_in_flight_is_shown_with_who_and_since_when() {
    let world = World::new();
    let (mine, other) = (tracker(&world, 1).await, tracker(&world, 2).await);
    let tracked = mine.begin("queue:jid:1", "x").await.unwrap();
    world.pass(secs(60)).await;
    let shown = other.in_flight(10).await.unwrap();
    assert_eq!((shown.len(), shown[0].id.as_str(), shown[0].owner.as_str()), (1, "queue:jid:1", "process-1"));
    assert_eq!(shown[0].fence, tracked.fence());
    let now = leasehold::Clock::wall(&world.0.clock);
    assert!(now.since(shown[0].since) >= secs(59));
    assert!(tracked.finish().await.unwrap().is_accepted());
    assert!(other.in_flight(10).await.unwrap().is_empty());
}

/// What a duty has handed on.
type Handed = Arc<Mutex<Vec<(String, u32)>>>;

fn hand_on(handed: &Handed) -> impl Fn(RecoveredJob) -> std::future::Ready<()> + Send + Sync + 'static {
    let handed = Arc::clone(handed);
    move |job| {
        handed.lock().unwrap().push((job.id().to_owned(), job.interruptions()));
        std::future::ready(())
    }
}

#[tokio::test]
async fn recovery_is_a_duty_that_never_ends() {
    let world = World::new();
    let handed = Handed::default();
    let duty = tracker(&world, 100).await.recovery().run(hand_on(&handed));
    // Long after the fleet has started, again and again.
    for (seed, hours) in [(1, 0), (2, 1), (3, 2)] {
        world.pass(secs(600 * hours)).await;
        let (dead, _stopped) = world.paused(seed).await;
        let begun = dead.tracker().begin(format!("jid-{seed}"), "x").await.unwrap();
        std::mem::forget(begun);
        let mut seconds = 0;
        while handed.lock().unwrap().len() < usize::try_from(seed).unwrap() {
            world.pass(secs(1)).await;
            seconds += 1;
            assert!(seconds <= 30 + 2 + 4 + 5 + 10, "recovered within the bound");
        }
    }
    assert_eq!(handed.lock().unwrap().len(), 3);
    drop(duty);
}

#[tokio::test]
async fn what_is_too_old_or_kills_every_process_is_buried_with_that_reason() {
    let world = World::new();
    let (leaving, handed) = (tracker(&world, 1).await, Handed::default());
    let jobs = [NewTracked::new("poison", "x").interruptions(3), NewTracked::new("fine", "x").interruptions(2)];
    drop(leaving.begin_many(jobs).await.unwrap());
    drop(leaving.begin("old", "x").await.unwrap());
    world.pass(secs(3600)).await;
    drop(
        leaving
            .begin_many([
                NewTracked::new("poison", "x").interruptions(3),
                NewTracked::new("fine", "x").interruptions(2),
            ])
            .await
            .unwrap(),
    );
    let duty = tracker(&world, 2).await.recovery().max_age(secs(1800)).run(hand_on(&handed));
    world.pass(secs(30)).await;
    assert_eq!(*handed.lock().unwrap(), [("fine".to_owned(), 3)]);
    let depth = leaving.queue().depth().await.unwrap();
    assert_eq!((depth.available, depth.retrying, depth.running), (0, 0, 0));
    assert!(!world.names("/dead/").is_empty());
    drop(duty);
}

#[tokio::test]
async fn recovered_jobs_can_go_to_a_queue_of_their_own() {
    let world = World::new();
    let store = world.process(1).await;
    let (tracker, target) = (store.queue("emails").unwrap().tracker(), store.queue("recovered").unwrap());
    drop(tracker.begin_many([NewTracked::new("jid", "payload").kind("import")]).await.unwrap());
    let duty = tracker.recovery().route(&target);
    world.pass(Duration::from_secs(2)).await;
    let job = one(&target).await;
    assert_eq!((job.caller_id(), job.kind()), (Some("jid"), Some("import")));
    assert_eq!(job.args(), "payload");
    assert_eq!(job.part("interruptions").await.unwrap().unwrap(), "1");
    assert!(job.finish().await.unwrap().is_accepted());
    drop(duty);
}

#[tokio::test]
async fn a_duty_that_cannot_hand_on_keeps_the_job() {
    let world = World::new();
    let leaving = tracker(&world, 1).await;
    drop(leaving.begin("jid", "x").await.unwrap());
    let tries = Arc::new(Mutex::new(0));
    let tried = Arc::clone(&tries);
    let duty = tracker(&world, 2).await.recovery().run(move |_job| {
        let mut tries = tried.lock().unwrap();
        *tries += 1;
        std::future::ready(if *tries < 3 { Err("redis is away") } else { Ok(()) })
    });
    world.pass(secs(60)).await;
    assert_eq!(*tries.lock().unwrap(), 3);
    assert_eq!(leaving.queue().depth().await.unwrap(), Default::default());
    drop(duty);
}
