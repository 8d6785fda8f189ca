//! Queues for tests.

use crate::JobTest;
use leasehold::job::{NewJob, NewSchedule};
use std::{cell::RefCell, time::Duration};

#[tokio::test]
async fn draining_runs_what_is_due_and_what_that_enqueues() {
    let test = JobTest::new().await.unwrap();
    let queue = test.queue("q").unwrap();
    queue.enqueue("3").await.unwrap();
    let seen = RefCell::new(Vec::new());
    let run = test.drain(&queue, async |job| {
        let left: u32 = std::str::from_utf8(&job.args()).unwrap().parse().unwrap();
        seen.borrow_mut().push(left);
        if left > 0 {
            queue.enqueue((left - 1).to_string()).await?;
        }
        job.finish().await.map(drop)
    });
    assert_eq!(run.await.unwrap(), 4);
    assert_eq!(*seen.borrow(), [3, 2, 1, 0]);
    test.assert_nothing_enqueued(&queue).await.unwrap();
}

#[tokio::test]
async fn what_is_due_later_runs_when_time_is_moved() {
    let test = JobTest::new().await.unwrap();
    let queue = test.queue("q").unwrap();
    queue.enqueue(NewJob::new("x").due_in(Duration::from_secs(7200))).await.unwrap();
    queue.schedules().add("s", NewSchedule::every(Duration::from_secs(3600), "slot")).await.unwrap();
    test.assert_nothing_enqueued(&queue).await.unwrap();
    let seen = RefCell::new(Vec::new());
    for _ in 0..2 {
        test.advance(Duration::from_secs(3600)).await;
        let drained = test.drain(&queue, async |job| {
            seen.borrow_mut().push(job.args());
            job.finish().await.map(drop)
        });
        drained.await.unwrap();
    }
    seen.borrow_mut().sort();
    assert_eq!(*seen.borrow(), ["slot", "slot", "x"]);
}

#[tokio::test]
async fn an_assertion_leaves_the_jobs_as_they_were() {
    let test = JobTest::new().await.unwrap();
    let queue = test.queue("q").unwrap();
    queue.enqueue(NewJob::new("ann").kind("welcome")).await.unwrap();
    for _ in 0..2 {
        test.assert_enqueued(&queue, "a welcome", |job| job.kind() == Some("welcome")).await.unwrap();
    }
    let attempts = test.drain(&queue, async |job| {
        assert_eq!(job.attempt(), 1);
        job.finish().await.map(drop)
    });
    assert_eq!(attempts.await.unwrap(), 1);
}

#[tokio::test]
#[should_panic(expected = "has no job that is a farewell; what is due: [welcome \"ann\"]")]
async fn an_assertion_that_fails_says_what_is_there() {
    let test = JobTest::new().await.unwrap();
    let queue = test.queue("q").unwrap();
    queue.enqueue(NewJob::new("ann").kind("welcome")).await.unwrap();
    let _ = test.assert_enqueued(&queue, "a farewell", |job| job.kind() == Some("farewell")).await;
}

#[tokio::test]
async fn inline_jobs_run_in_the_call_that_enqueues_them() {
    let test = JobTest::new().await.unwrap();
    let seen = RefCell::new(Vec::new());
    let mut queue = test
        .inline("q", async |job| {
            seen.borrow_mut().push(job.args());
            job.finish().await.map(drop)
        })
        .unwrap();
    queue.enqueue("a").await.unwrap();
    assert_eq!(*seen.borrow(), ["a"]);
    queue.enqueue("b").await.unwrap();
    assert_eq!(*seen.borrow(), ["a", "b"]);
}
