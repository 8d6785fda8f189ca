//! How jobs end otherwise: dead, cancelled, moved, with other parts.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::job::{AttemptEnd, Cancelled, JobState, NewJob, QueueSettings};
use std::time::Duration;

#[tokio::test]
async fn a_job_that_fails_for_good_becomes_a_dead_letter_and_leaves_the_queue() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(2)).await.unwrap();
    let mut claimed = queue.claim(2).await.unwrap();
    assert_eq!(claimed.remove(0).fail_for_good("no such address").await.unwrap(), AttemptEnd::Dead);
    assert!(claimed.remove(0).finish().await.unwrap().is_accepted());
    calm().await;
    assert_eq!(world.names("/dead/").len(), 1);
    assert_eq!(world.names("/in/"), Vec::<String>::new(), "its segment went after its dead letter was written");
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.available, depth.running, depth.burying), (0, 0, 0));
}

#[tokio::test]
async fn a_job_is_dead_after_as_many_attempts_as_the_queue_allows() {
    let world = World::new();
    let queue = world.queue(1).await;
    let settings = QueueSettings { max_attempts: 3, ..queue.settings().await.unwrap() };
    queue.change_settings(settings).await.unwrap();
    queue.enqueue("x").await.unwrap();
    for attempt in 1..=3 {
        let job = one(&queue).await;
        assert_eq!(job.attempt(), attempt);
        let end = job.fail("again").await.unwrap();
        assert_eq!(matches!(end, AttemptEnd::Dead), attempt == 3, "{end:?}");
        world.pass(Duration::from_secs(20)).await;
    }
    assert!(work_down(&queue).await.is_empty());
    assert_eq!(world.names("/dead/").len(), 1);
}

#[tokio::test]
async fn a_cancelled_job_is_not_run_wherever_it_was() {
    let world = World::new();
    let queue = world.queue(1).await;
    let ids = queue.enqueue_many(jobs(4)).await.unwrap();
    assert_eq!(queue.cancel(ids[3]).await.unwrap(), Cancelled::Asked, "it is in the inbox");
    let job = one(&queue).await;
    assert_eq!(queue.cancel(ids[1]).await.unwrap(), Cancelled::Done, "it waits");
    assert_eq!(queue.cancel(job.id()).await.unwrap(), Cancelled::Asked, "it runs");
    assert_eq!(queue.get(job.id()).await.unwrap().unwrap().state, JobState::Cancelled);
    assert_eq!(job.fail("stopped").await.unwrap(), AttemptEnd::Cancelled);
    assert_eq!(work_down(&queue).await, ["job 2"]);
    assert_eq!(queue.cancel(ids[0]).await.unwrap(), Cancelled::AlreadyEnded);
    let nobody = world.queue(9).await.namespace("other").unwrap();
    assert_eq!(nobody.cancel(ids[0]).await.unwrap(), Cancelled::NotFound);
}

#[tokio::test]
async fn parts_are_set_cleared_or_kept_when_a_job_goes_back() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue(NewJob::new("args").part("state", "1").part("temp", "x").kind("k")).await.unwrap();
    let mut job = one(&queue).await;
    job.set_part("state", "2");
    job.clear_part("temp");
    job.set_part("new", "3");
    assert!(job.snooze(Duration::from_secs(1)).await.unwrap().is_accepted());
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Scheduled, "it is found by its first id");
    world.pass(Duration::from_secs(2)).await;
    let job = one(&queue).await;
    assert_eq!((job.id(), job.args().as_ref(), job.kind()), (id, &b"args"[..], Some("k")));
    assert_eq!(job.loaded_part("state").as_deref(), Some(&b"2"[..]));
    assert_eq!(job.loaded_part("new").as_deref(), Some(&b"3"[..]));
    assert_eq!(job.part("temp").await.unwrap(), None);
    assert!(job.finish().await.unwrap().is_accepted());
    calm().await;
    assert_eq!((world.names("/in/").len(), world.names("/seg/").len()), (0, 0), "nothing is left behind");
}

#[tokio::test]
async fn a_job_moves_to_another_queue_with_a_fence_that_goes_on_rising() {
    let world = World::new();
    let store = world.process(1).await;
    let (from, to) = (store.queue("emails").unwrap(), store.queue("slow").unwrap());
    from.enqueue(NewJob::new("args").kind("k")).await.unwrap();
    let job = one(&from).await;
    let fence = job.fence();
    assert!(job.move_to(&to).await.unwrap().is_accepted());
    calm().await;
    assert!(work_down(&from).await.is_empty());
    let moved = one(&to).await;
    assert_eq!((moved.args().as_ref(), moved.kind()), (&b"args"[..], Some("k")));
    assert!(moved.fence() > fence);
    assert!(moved.finish().await.unwrap().is_accepted());
    calm().await;
    assert_eq!(world.names("/in/"), Vec::<String>::new());
}

#[tokio::test]
async fn jobs_that_are_due_later_run_then_and_not_before() {
    let world = World::new();
    let queue = world.queue(1).await;
    let later = |after| NewJob::new(format!("{after}")).due_in(Duration::from_secs(after));
    queue.enqueue_many([later(10), later(600), later(7200)]).await.unwrap();
    assert_eq!(world.names("/at/").len(), 2, "by due hour");
    assert!(work_down(&queue).await.is_empty());
    world.pass(Duration::from_secs(11)).await;
    assert_eq!(work_down(&queue).await, ["10"]);
    world.0.clock.advance(Duration::from_secs(560));
    assert!(work_down(&queue).await.is_empty());
    world.0.clock.advance(Duration::from_secs(60));
    assert_eq!(work_down(&queue).await, ["600"]);
    world.0.clock.advance(Duration::from_secs(7200));
    assert_eq!(work_down(&queue).await, ["7200"]);
}

#[tokio::test]
async fn a_paused_queue_hands_out_nothing_until_it_goes_on() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(3)).await.unwrap();
    let open = queue.settings().await.unwrap();
    queue.change_settings(QueueSettings { paused: true, ..open.clone() }).await.unwrap();
    assert!(other.claim(3).await.unwrap().is_empty());
    other.change_settings(open).await.unwrap();
    assert_eq!(queue.claim(3).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_queue_that_grows_works_off_all_its_shards() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(3)).await.unwrap();
    let one = queue.settings().await.unwrap();
    queue.change_settings(QueueSettings { shards: 4, ..one.clone() }).await.unwrap();
    for _ in 0..4 {
        queue.enqueue_many(jobs(2)).await.unwrap();
    }
    queue.change_settings(QueueSettings { shards: 1, ..one }).await.unwrap();
    assert_eq!(work_down(&other).await.len(), 11, "a shard that was dropped is never forgotten");
}
