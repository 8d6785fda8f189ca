//! Shutting down: nothing is lost, nothing is counted as a failure.

use super::{Notes, World, ended, text, until};
use crate::{common::secs, queue::shared::jobs};
use leasehold::{
    CancellationToken,
    job::{CancelReason, JobContext, JobState, WorkerState},
};
use std::time::Duration;

/// Runs until it is told to stop, or for so long.
fn patient(
    world: &World,
    notes: &Notes,
    time: Duration,
) -> impl Fn(JobContext) -> futures_util::future::BoxFuture<'static, Result<(), String>> + Send + Sync + 'static {
    let (clock, notes) = (world.0.clock.clone(), notes.clone());
    move |job| {
        let (clock, notes) = (clock.clone(), notes.clone());
        Box::pin(async move {
            notes.note(format!("began {}", text(&job)));
            tokio::select! {
                () = leasehold::Clock::sleep(&clock, time) => {
                    notes.note(format!("done {}", text(&job)));
                    Ok(())
                }
                () = job.cancelled() => {
                    assert_eq!(job.cancel_reason(), Some(CancelReason::Shutdown));
                    notes.note(format!("stopped {}", text(&job)));
                    Err("interrupted".to_owned())
                }
            }
        })
    }
}

#[tokio::test]
async fn a_shutdown_waits_for_what_runs_and_starts_nothing_more() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(10)).await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let worker = queue.worker().concurrency(2).shutdown(token.clone()).run(patient(&world, &notes, secs(20)));
    until(&world, "two have begun", || notes.len() == 2).await;
    token.cancel();
    world.pass(secs(2)).await;
    assert_eq!(worker.health().state, WorkerState::ShuttingDown);
    assert!(worker.health().reason.contains("2 jobs are still running"), "{:?}", worker.health());
    ended(&world, tokio::spawn(worker.into_future())).await;
    assert_eq!(notes.all().iter().filter(|what| what.starts_with("done")).count(), 2);
    assert_eq!(notes.len(), 4, "nothing else was begun: {:?}", notes.all());
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.available, depth.running), (8, 0));
}

#[tokio::test]
async fn what_stops_when_it_is_told_to_is_given_back_and_uses_no_attempt() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    let id = queue.enqueue("long").await.unwrap();
    let notes = Notes::default();
    let worker = queue.worker().shutdown_grace(secs(5), secs(5)).run(patient(&world, &notes, secs(3600)));
    until(&world, "it has begun", || notes.len() == 1).await;
    let since = leasehold::Clock::monotonic(&world.0.clock);
    ended(&world, tokio::spawn(worker.shutdown())).await;
    let took = leasehold::Clock::monotonic(&world.0.clock).since(since);
    assert!(took >= secs(5) && took < secs(6), "{took:?}");
    assert_eq!(notes.all()[1], "stopped long");
    let info = queue.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts, info.stalls, info.last_error), (JobState::Available, 0, 0, None));
    let again = other.claim(1).await.unwrap();
    assert_eq!((again[0].id(), again[0].attempt()), (id, 1), "at once, not after a session's time");
}

#[tokio::test]
async fn what_does_not_stop_is_given_back_all_the_same() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    let id = queue.enqueue("deaf").await.unwrap();
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().shutdown_grace(secs(1), secs(1)).run(move |_: JobContext| {
        said.note("began");
        std::future::pending::<()>()
    });
    until(&world, "it has begun", || notes.len() == 1).await;
    ended(&world, tokio::spawn(worker.shutdown())).await;
    let again = other.claim(1).await.unwrap();
    assert_eq!((again[0].id(), again[0].attempt(), again[0].stalls()), (id, 1, 0));
}

#[tokio::test]
async fn a_worker_that_is_dropped_shuts_down() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(3)).await.unwrap();
    let notes = Notes::default();
    let worker = queue.worker().concurrency(1).run(patient(&world, &notes, secs(3)));
    until(&world, "one has begun", || notes.len() == 1).await;
    drop(worker);
    world.pass(secs(30)).await;
    assert_eq!(notes.len(), 2, "the one that ran was done, and no other: {:?}", notes.all());
    assert_eq!(queue.depth().await.unwrap().available, 2);
}
