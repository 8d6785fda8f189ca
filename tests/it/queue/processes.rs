//! Two processes on one shard: nothing runs twice while they live, and what a dead one had comes back.

use super::shared::{World, jobs, one, work_down};
use leasehold::job::{AttemptEnd, JobState, StaleAttempt};
use std::{collections::BTreeSet, time::Duration};

#[tokio::test]
async fn two_processes_share_a_queue_and_no_job_is_run_twice() {
    let world = World::new();
    let (first, second) = (world.queue(1).await, world.queue(2).await);
    first.enqueue_many(jobs(300)).await.unwrap();
    second.enqueue_many(jobs(300)).await.unwrap();
    let mut seen = BTreeSet::new();
    loop {
        let (mine, others) = tokio::join!(first.claim(40), second.claim(40));
        let (mine, others) = (mine.unwrap(), others.unwrap());
        if mine.is_empty() && others.is_empty() {
            break;
        }
        for job in mine.iter().chain(&others) {
            assert!(seen.insert(job.id()), "{} was handed out twice", job.id());
        }
        let (mine, others) = tokio::join!(first.finish_all(mine), second.finish_all(others));
        assert!(mine.unwrap().iter().chain(&others.unwrap()).all(AttemptEnd::is_accepted));
    }
    assert_eq!(seen.len(), 600);
}

#[tokio::test]
async fn the_jobs_of_a_dead_process_are_run_again_with_a_higher_fence() {
    let world = World::new();
    let (dead, _stopped) = world.paused(1).await;
    let alive = world.queue(2).await;
    dead.enqueue_many(jobs(3)).await.unwrap();
    let lost = dead.claim(3).await.unwrap();
    let fence = lost[0].fence();
    world.pass(Duration::from_secs(20)).await;
    assert!(alive.claim(3).await.unwrap().is_empty(), "a session lasts 30 s");
    let waiting = tokio::spawn({
        let alive = alive.clone();
        async move { alive.claim(3).within(Duration::from_secs(60)).await }
    });
    world.pass(Duration::from_secs(31)).await;
    let again = waiting.await.unwrap().unwrap();
    assert!(!again.is_empty());
    assert!(again.iter().all(|job| job.fence() > fence && job.attempt() == 1));
    lost.into_iter().for_each(std::mem::forget);
}

#[tokio::test]
async fn a_paused_workers_finish_is_stale_once_its_job_was_claimed_again() {
    let world = World::new();
    let (paused, clock) = world.paused(1).await;
    let other = world.queue(2).await;
    let id = paused.enqueue("x").await.unwrap();
    let job = one(&paused).await;
    world.pass(Duration::from_secs(50)).await;
    drop(other.claim(1).await.unwrap());
    world.pass(Duration::from_secs(10)).await;
    let again = one(&other).await;
    // It wakes up, and does not know how long it slept.
    clock.advance(Duration::from_secs(60));
    assert!(!job.is_ours());
    let AttemptEnd::Stale(StaleAttempt::Running { owner, fence, .. }) = job.finish().await.unwrap() else {
        panic!("it is stale")
    };
    assert_eq!((owner.as_str(), fence), ("process-2", again.fence()));
    assert_eq!(other.get(id).await.unwrap().unwrap().state, JobState::Running);
    assert!(again.finish().await.unwrap().is_accepted());
}

#[tokio::test]
async fn a_late_finish_counts_while_nobody_has_claimed_the_job_again() {
    let world = World::new();
    let (paused, clock) = world.paused(1).await;
    let other = world.queue(2).await;
    paused.enqueue("x").await.unwrap();
    let job = one(&paused).await;
    world.pass(Duration::from_secs(50)).await;
    assert!(other.claim(1).await.unwrap().is_empty(), "it comes back, spread over some seconds");
    clock.advance(Duration::from_secs(50));
    assert_eq!(job.finish().await.unwrap(), AttemptEnd::Finished { late: true });
    world.pass(Duration::from_secs(10)).await;
    assert!(work_down(&other).await.is_empty());
}

#[tokio::test]
async fn a_living_process_keeps_its_job_however_long_it_runs() {
    let world = World::new();
    let (first, second) = (world.queue(1).await, world.queue(2).await);
    first.enqueue("x").await.unwrap();
    let job = one(&first).await;
    for _ in 0..4 {
        world.pass(Duration::from_secs(40)).await;
        assert!(second.claim(1).await.unwrap().is_empty());
        assert!(job.is_ours());
    }
    assert_eq!(job.finish().await.unwrap(), AttemptEnd::Finished { late: false });
}

#[tokio::test]
async fn a_session_is_given_up_when_nothing_is_in_hand() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = store.queue("emails").unwrap();
    queue.enqueue("x").await.unwrap();
    assert!(one(&queue).await.finish().await.unwrap().is_accepted());
    world.pass(Duration::from_secs(15)).await;
    let sessions = world.names("meta/session");
    assert_eq!(sessions.len(), 1);
    let writes = world.0.store.object(&sessions[0]).unwrap().1;
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(world.0.store.object(&sessions[0]).unwrap().1, writes, "nobody renews it");
    queue.enqueue("y").await.unwrap();
    assert_eq!(work_down(&queue).await, ["y"], "the next claim makes a new one");
    assert_eq!(world.names("meta/session").len(), 2);
}
