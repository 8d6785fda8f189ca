//! What is enqueued is claimed, run and finished, and leaves nothing behind.

use super::shared::{World, jobs};
use crate::common::calm;
use leasehold::job::{AttemptEnd, JobState, NewJob};
use std::time::Duration;

#[tokio::test]
async fn a_job_is_enqueued_claimed_and_finished() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue(NewJob::new("hello").kind("mail").caller_id("42").priority(3)).await.unwrap();
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Available);
    let mut claimed = queue.claim(10).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let job = claimed.remove(0);
    assert_eq!((job.id(), job.args().as_ref(), job.kind()), (id, &b"hello"[..], Some("mail")));
    assert_eq!((job.caller_id(), job.priority(), job.attempt()), (Some("42"), 3, 1));
    let info = queue.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.owner.as_deref()), (JobState::Running, Some("process-1")));
    assert_eq!(info.fence, Some(job.fence()));
    assert!(queue.claim(10).await.unwrap().is_empty(), "it is in hand");
    assert_eq!(job.finish().await.unwrap(), AttemptEnd::Finished { late: false });
    calm().await;
    assert_eq!(queue.get(id).await.unwrap().unwrap().state, JobState::Finished);
    assert_eq!(world.names("/in/"), Vec::<String>::new(), "its segment is deleted");
}

#[tokio::test]
async fn ids_come_in_the_order_of_the_call_and_no_jobs_are_no_call() {
    let world = World::new();
    let queue = world.queue(1).await;
    assert_eq!(queue.enqueue_many(Vec::<NewJob>::new()).await.unwrap(), []);
    assert_eq!(world.names("queue/"), Vec::<String>::new(), "nothing was sent");
    let mixed = (0..5000).map(|number| NewJob::new(number.to_string()).priority([5, -5, 0][number % 3]));
    let ids = queue.enqueue_many(mixed).await.unwrap();
    assert_eq!(ids.len(), 5000);
    let mut seen = 0;
    let mut last = i16::MIN;
    loop {
        let claimed = queue.claim(700).await.unwrap();
        if claimed.is_empty() {
            break;
        }
        for job in &claimed {
            let number: usize = std::str::from_utf8(&job.args()).unwrap().parse().unwrap();
            assert_eq!(ids[number], job.id());
            if seen == 0 {
                assert!(job.priority() >= last, "urgent ones first");
                last = job.priority();
            }
        }
        seen += claimed.len();
        for end in queue.finish_all(claimed).await.unwrap() {
            assert!(end.is_accepted());
        }
    }
    assert_eq!(seen, 5000);
}

#[tokio::test]
async fn a_job_that_is_dropped_goes_back_and_uses_no_attempt() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(3)).await.unwrap();
    let claimed = queue.claim(3).await.unwrap();
    let fence = claimed[0].fence();
    drop(claimed);
    calm().await;
    let again = queue.claim(3).await.unwrap();
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|job| job.attempt() == 1 && job.fence() > fence));
}

#[tokio::test]
async fn what_failed_runs_again_when_the_queue_says_so() {
    let world = World::new();
    let queue = world.queue(1).await;
    let id = queue.enqueue("x").await.unwrap();
    let job = queue.claim(1).await.unwrap().remove(0);
    let AttemptEnd::Waits { .. } = job.fail("no route").await.unwrap() else { panic!("it waits") };
    let info = queue.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts, info.last_error.as_deref()), (JobState::Retrying, 1, Some("no route")));
    assert!(queue.claim(1).await.unwrap().is_empty());
    world.pass(Duration::from_secs(2)).await;
    let job = queue.claim(1).await.unwrap().remove(0);
    assert_eq!(job.attempt(), 2);
    let AttemptEnd::Waits { .. } = job.snooze(Duration::from_secs(5)).await.unwrap() else { panic!("it waits") };
    world.pass(Duration::from_secs(6)).await;
    let job = queue.claim(1).await.unwrap().remove(0);
    assert_eq!(job.attempt(), 2, "a snooze uses no attempt");
    assert!(job.finish().await.unwrap().is_accepted());
}

#[tokio::test]
async fn a_claim_that_waits_is_woken_by_an_enqueue_of_its_process() {
    let world = World::new();
    let queue = world.queue(1).await;
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.claim(1).within(Duration::from_secs(60)).await }
    });
    calm().await;
    queue.enqueue("x").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn parts_that_a_claim_leaves_out_are_fetched_when_they_are_needed() {
    let world = World::new();
    let queue = world.queue(1).await;
    let large = vec![7u8; 3 << 20];
    queue.enqueue(NewJob::new("small").part("blob", large.clone())).await.unwrap();
    let job = queue.claim(1).parts(["args"]).await.unwrap().remove(0);
    assert_eq!((job.args().as_ref(), job.loaded_part("blob")), (&b"small"[..], None));
    assert_eq!(job.part("blob").await.unwrap().unwrap(), large);
    assert_eq!(job.part("other").await.unwrap(), None);
    assert_eq!(job.part_names(), ["args", "blob"]);
}
