//! What goes by the clock: time-outs, jobs that are stuck, a lost session, a starved runtime, cancels.

use super::{Notes, World, text, until};
use crate::{
    common::{secs, settle},
    queue::shared::jobs,
};
use leasehold::{
    Clock as _,
    job::{CancelReason, Cancelled, JobContext, JobState, KindOptions, NewJob},
};
use std::time::Duration;

/// Notes why it is told to stop, and stops.
fn obedient(
    notes: &Notes,
) -> impl Fn(JobContext) -> futures_util::future::BoxFuture<'static, Result<(), String>> + Send + Sync + 'static {
    let notes = notes.clone();
    move |job| {
        let notes = notes.clone();
        Box::pin(async move {
            notes.note("began");
            job.cancelled().await;
            notes.note(format!("{:?}", job.cancel_reason().unwrap()));
            Err("stopped".to_owned())
        })
    }
}

#[tokio::test]
async fn a_job_over_its_time_is_told_to_stop_and_has_failed() {
    let world = World::new();
    let queue = world.queue(1).await;
    let own = queue.enqueue(NewJob::new("own").timeout(secs(3))).await.unwrap();
    let of_kind = queue.enqueue(NewJob::new("kind").kind("slow")).await.unwrap();
    let of_worker = queue.enqueue(NewJob::new("worker")).await.unwrap();
    let notes = Notes::default();
    let worker =
        queue.worker().timeout(secs(30)).kind("slow", KindOptions::new().timeout(secs(10))).run(obedient(&notes));
    until(&world, "all have begun", || notes.len() == 3).await;
    let failed = |id| {
        let queue = queue.clone();
        async move { queue.get(id).await.unwrap().unwrap().last_error.unwrap_or_default() }
    };
    world.pass(Duration::from_millis(3200)).await;
    assert_eq!(failed(own).await, "timed out after 3s: stopped");
    assert_eq!((failed(of_kind).await.as_str(), failed(of_worker).await.as_str()), ("", ""));
    world.pass(secs(7)).await;
    assert_eq!(failed(of_kind).await, "timed out after 10s: stopped");
    assert_eq!(failed(of_worker).await, "");
    world.pass(secs(20)).await;
    assert_eq!(failed(of_worker).await, "timed out after 30s: stopped");
    drop(worker);
}

#[tokio::test]
async fn a_handler_that_does_not_stop_is_given_up_after_the_grace() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("deaf").await.unwrap();
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().timeout(secs(5)).run(move |job: JobContext| {
        said.note(format!("attempt {}", job.attempt()));
        std::future::pending::<()>()
    });
    until(&world, "it has begun", || notes.len() == 1).await;
    world.pass(secs(14)).await;
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Running);
    world.pass(Duration::from_millis(1200)).await;
    let info = queue.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts), (JobState::Retrying, 1));
    assert_eq!(info.last_error.unwrap(), "timed out after 5s, and did not stop within 10s");
    until(&world, "it runs again", || notes.len() == 2).await;
    assert_eq!(notes.all()[1], "attempt 2");
    world.pass(secs(2)).await;
    assert_eq!(worker.health().running, 1, "its slot was free again");
}

#[tokio::test]
async fn a_job_that_runs_for_long_is_listed_as_stuck_and_left_alone() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("long").await.unwrap();
    let notes = Notes::default();
    let worker = queue.worker().concurrency(2).stuck_after(secs(60)).run(obedient(&notes));
    until(&world, "it has begun", || notes.len() == 1).await;
    world.pass(secs(50)).await;
    assert_eq!(worker.health().stuck, 0);
    world.pass(secs(15)).await;
    let health = worker.health();
    assert!(health.ok && health.stuck == 1 && health.reason.contains("1 of them stuck"), "{health:?}");
    let listed = worker.running();
    assert_eq!((listed[0].id, listed[0].stuck, listed[0].stopping), (id, true, false));
    assert!(listed[0].running_for >= secs(60));
    assert_eq!(notes.len(), 1, "it only tells");
    queue.enqueue("long too").await.unwrap();
    world.pass(secs(70)).await;
    let health = worker.health();
    assert!(!health.ok && health.reason.contains("all 2 slots are taken by jobs that are stuck"), "{health:?}");
}

#[tokio::test]
async fn a_handler_hears_that_the_session_is_lost() {
    let world = World::new();
    let (queue, clock) = world.paused(1).await;
    queue.enqueue("x").await.unwrap();
    let notes = Notes::default();
    let _worker = queue.worker().run(obedient(&notes));
    settle().await;
    assert_eq!(notes.len(), 1);
    // The process stands still for longer than its session lasts.
    world.pass(secs(40)).await;
    clock.advance(secs(40));
    settle().await;
    assert_eq!(notes.all()[1], "SessionLost");
}

#[tokio::test]
async fn a_runtime_that_was_starved_is_said() {
    let world = World::new();
    let queue = world.queue(1).await;
    let worker = queue.worker().run(|_: JobContext| async {});
    world.pass(secs(3)).await;
    assert!(worker.health().ok);
    world.0.clock.advance(secs(5));
    settle().await;
    let health = worker.health();
    assert!(!health.ok && health.reason.contains("s late: a handler blocks it"), "{health:?}");
    world.pass(secs(61)).await;
    assert!(worker.health().ok);
    // And while it lasts: the loop has not run.
    world.0.clock.advance(secs(15));
    assert!(worker.health().reason.contains("has not run the worker for"), "{:?}", worker.health());
}

#[tokio::test]
async fn a_cancelled_job_is_told_to_stop_and_ends_as_cancelled() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    let id = queue.enqueue("x").await.unwrap();
    let notes = Notes::default();
    let worker = queue.worker().run(obedient(&notes));
    until(&world, "it has begun", || notes.len() == 1).await;
    world.pass(secs(2)).await;
    assert_eq!(other.cancel(id).await.unwrap(), Cancelled::Asked);
    world.pass(secs(12)).await;
    assert_eq!(notes.all()[1], format!("{:?}", CancelReason::Asked));
    assert!(queue.get(id).await.unwrap().is_none_or(|job| job.state == JobState::Finished), "it ran no more");
    world.pass(secs(60)).await;
    assert_eq!(notes.len(), 2);
    drop(worker);
}

#[tokio::test]
async fn a_session_is_kept_for_as_long_as_anything_runs() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(2)).await.unwrap();
    let notes = Notes::default();
    let (said, clock) = (notes.clone(), world.0.clock.clone());
    let _worker = queue.worker().run(move |job: JobContext| {
        let (said, clock) = (said.clone(), clock.clone());
        async move {
            clock.sleep(secs(200)).await;
            said.note(text(&job));
        }
    });
    for _ in 0..6 {
        world.pass(secs(30)).await;
        assert!(other.claim(2).await.unwrap().is_empty(), "nobody robs the living");
    }
    until(&world, "both are done", || notes.len() == 2).await;
    assert!(notes.counted().values().all(|times| *times == 1));
}
