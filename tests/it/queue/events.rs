//! Events of jobs: none is lost, and one that comes twice has the same id.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::{
    Queue, Store,
    job::{JobEvents, NewJob, QueueSettings},
    stream::Position,
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};

async fn telling(world: &World, store: &Store, events: JobEvents) -> Queue {
    let queue = store.queue("emails").unwrap();
    let settings = QueueSettings { events, max_attempts: 2, ..queue.settings().await.unwrap() };
    queue.change_settings(settings).await.unwrap();
    calm().await;
    assert_eq!(world.names("/stream/"), Vec::<String>::new());
    queue
}

/// The messages of a stream: each one's id, and what it says.
async fn told(store: &Store, stream: &str) -> Vec<(String, Value)> {
    let mut reader = store.stream(stream).unwrap().read(Position::Earliest).await.unwrap();
    let mut told = Vec::new();
    while let Some(batch) = reader.next().await.unwrap() {
        for message in batch.messages {
            assert_eq!(message.subject, stream);
            told.push((message.id.to_string(), serde_json::from_slice(&message.payload).unwrap()));
        }
    }
    told
}

#[tokio::test]
async fn every_end_of_a_job_is_published_once_with_its_id_and_its_fence() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = telling(&world, &store, JobEvents::Terminal).await;
    let ids = queue.enqueue_many(jobs(5)).await.unwrap();
    let mut claimed = queue.claim(5).await.unwrap();
    let fence = claimed[0].fence().get();
    assert!(claimed.remove(0).fail_for_good("no such address").await.unwrap().is_accepted());
    assert_eq!(queue.cancel(claimed[0].id()).await.unwrap(), leasehold::job::Cancelled::Asked);
    drop(claimed.remove(0).fail("stopped").await.unwrap());
    for end in queue.finish_all(claimed).await.unwrap() {
        assert!(end.is_accepted());
    }
    calm().await;
    let told = told(&store, "jobs.emails.terminal").await;
    let by_job: BTreeMap<&str, &Value> =
        told.iter().map(|(_, event)| (event["job"].as_str().unwrap(), event)).collect();
    assert_eq!((told.len(), by_job.len()), (5, 5), "{told:?}");
    let event = |at: usize| by_job[ids[at].to_string().as_str()];
    assert_eq!((event(0)["event"].as_str(), event(0)["reason"].as_str()), (Some("dead"), Some("failed_for_good")));
    assert_eq!(event(1)["event"], "cancelled");
    assert!((2..5).all(|at| event(at)["event"] == "finished" && event(at)["fence"] == fence), "{told:?}");
    assert!(told.iter().all(|(_, event)| event["queue"] == "emails"));
    assert_eq!(world.names("jobs.emails.retry"), Vec::<String>::new());
}

#[tokio::test]
async fn retries_are_told_where_that_is_asked_for() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = telling(&world, &store, JobEvents::All).await;
    let id = queue.enqueue("x").await.unwrap();
    drop(one(&queue).await.fail("busy").await.unwrap());
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(work_down(&queue).await, ["x"]);
    calm().await;
    let retried = told(&store, "jobs.emails.retry").await;
    assert_eq!(retried.len(), 1, "{retried:?}");
    assert_eq!(
        (retried[0].1["event"].as_str(), retried[0].1["job"].as_str()),
        (Some("retried"), Some(&*id.to_string()))
    );
    assert_eq!(told(&store, "jobs.emails.terminal").await[0].1["event"], "finished");
}

#[tokio::test]
async fn a_queue_that_tells_of_nothing_writes_to_no_stream() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(3)).await.unwrap();
    assert_eq!(work_down(&queue).await.len(), 3);
    calm().await;
    assert_eq!(world.names("/stream/"), Vec::<String>::new());
}

#[tokio::test]
async fn what_could_not_be_published_comes_after_a_later_commit_and_stops_no_job() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = telling(&world, &store, JobEvents::Terminal).await;
    world.fault(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on("/stream/"));
    queue.enqueue_many(jobs(3)).await.unwrap();
    assert_eq!(work_down(&queue).await.len(), 3, "jobs go on");
    calm().await;
    assert_eq!(world.names("/stream/"), Vec::<String>::new());
    world.0.store.faults().clear();
    queue.enqueue_many(jobs(2)).await.unwrap();
    assert_eq!(work_down(&queue).await.len(), 2);
    calm().await;
    assert_eq!(told(&store, "jobs.emails.terminal").await.len(), 5);
}

#[tokio::test]
async fn what_a_process_left_behind_is_published_by_the_next_and_has_the_same_id() {
    let world = World::new();
    let first = world.process(1).await;
    let queue = telling(&world, &first, JobEvents::Terminal).await;
    queue.enqueue_many(jobs(2)).await.unwrap();
    assert_eq!(work_down(&queue).await.len(), 2);
    calm().await;
    let before = told(&first, "jobs.emails.terminal").await;
    assert_eq!(before.len(), 2);
    // It published, and died before a commit could say so: the ledger still has them.
    let second = world.process(2).await;
    let queue = second.queue("emails").unwrap();
    queue.enqueue(NewJob::new("third")).await.unwrap();
    assert_eq!(work_down(&queue).await, ["third"]);
    calm().await;
    let after = told(&second, "jobs.emails.terminal").await;
    let once: BTreeMap<&String, &Value> = after.iter().map(|(id, event)| (id, event)).collect();
    assert_eq!(once.len(), 3, "what came twice has the same id: {after:?}");
    assert!(before.iter().all(|(id, event)| once[id] == event));
}

#[tokio::test]
async fn many_events_wait_outside_of_the_ledger_and_are_published_in_the_end() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = telling(&world, &store, JobEvents::Terminal).await;
    world.fault(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on("/stream/"));
    queue.enqueue_many(jobs(3000)).await.unwrap();
    let mut done = 0;
    // Every second one, so that no two events can be one.
    while done < 3000 {
        let (even, odd): (Vec<_>, Vec<_>) =
            queue.claim(600).await.unwrap().into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        for half in [even, odd] {
            done += half.len();
            let ends = queue.finish_all(half.into_iter().map(|(_, job)| job)).await.unwrap();
            assert!(ends.iter().all(|end| end.is_accepted()));
            calm().await;
        }
    }
    assert!(!world.names("/seg/").is_empty(), "they were moved out");
    world.0.store.faults().clear();
    queue.enqueue_many(jobs(2)).await.unwrap();
    for _ in 0..3 {
        work_down(&queue).await;
        calm().await;
        queue.enqueue_many(jobs(1)).await.unwrap();
    }
    let told = told(&store, "jobs.emails.terminal").await;
    let once: std::collections::BTreeSet<&str> = told.iter().map(|(_, event)| event["job"].as_str().unwrap()).collect();
    assert!(once.len() >= 3002, "{} of {} messages", once.len(), told.len());
    work_down(&queue).await;
    calm().await;
    assert_eq!(world.names("/seg/"), Vec::<String>::new(), "what was published is deleted");
}
