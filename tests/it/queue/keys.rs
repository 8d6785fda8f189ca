//! Keys: limits and order, unique keys, and calls that are repeated.

use super::shared::{World, one, work_down};
use leasehold::job::{AttemptEnd, JobState, NewJob, QueueSettings};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

fn keyed(key: &str, args: &str) -> NewJob {
    NewJob::new(args.to_owned()).key(key)
}

#[tokio::test]
async fn a_limit_of_one_gives_order_and_a_changed_one_holds_at_once() {
    let world = World::new();
    let (first, second) = (world.queue(1).await, world.queue(2).await);
    first.keys().set_limit("k", 1).await.unwrap();
    for number in 0..5 {
        first.enqueue(keyed("k", &number.to_string())).await.unwrap();
    }
    let running = one(&first).await;
    assert_eq!(running.args().as_ref(), b"0");
    assert!(second.claim(9).await.unwrap().is_empty(), "another process is held to it as well");
    second.keys().set_limit("k", 3).await.unwrap();
    let more = first.claim(9).await.unwrap();
    assert_eq!(more.iter().map(|job| job.args()).collect::<Vec<_>>(), ["1", "2"]);
    let limits = first.keys().limits().await.unwrap();
    assert_eq!((limits[0].key.as_str(), limits[0].most, limits.len()), ("k", 3, 1));
    first.keys().clear_limit("k").await.unwrap();
    assert_eq!(second.claim(9).await.unwrap().len(), 2, "no limit");
    assert!(first.keys().limits().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_dead_process_leaks_no_slot_and_its_job_comes_first() {
    let world = World::new();
    let (dead, _stopped) = world.paused(1).await;
    let alive = world.queue(2).await;
    alive.keys().set_limit("k", 1).await.unwrap();
    alive.enqueue(keyed("k", "a")).await.unwrap();
    alive.enqueue(keyed("k", "b")).await.unwrap();
    let lost = one(&dead).await;
    world.pass(Duration::from_secs(20)).await;
    assert!(alive.claim(9).await.unwrap().is_empty());
    world.pass(Duration::from_secs(30)).await;
    let _ = alive.claim(9).await.unwrap();
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(work_down(&alive).await, ["a", "b"]);
    std::mem::forget(lost);
}

#[tokio::test]
async fn a_failed_job_holds_up_its_key_until_it_is_unblocked() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.change_settings(QueueSettings { shards: 1, key_limit: Some(1), ..QueueSettings::default() }).await.unwrap();
    queue.enqueue(keyed("k", "a")).await.unwrap();
    queue.enqueue(keyed("k", "b")).await.unwrap();
    let AttemptEnd::Waits { .. } = one(&queue).await.fail("no").await.unwrap() else { panic!("it waits") };
    assert!(queue.claim(9).await.unwrap().is_empty());
    assert_eq!(queue.keys().unblock("other").await.unwrap(), 0);
    assert_eq!(queue.keys().unblock("k").await.unwrap(), 1);
    assert_eq!(work_down(&queue).await, ["a", "b"]);
}

#[tokio::test]
async fn a_duplicate_is_dropped_and_says_of_which_job() {
    let world = World::new();
    let queue = world.queue(1).await;
    let unique = |args: &str| NewJob::new(args.to_owned()).unique_key("u");
    let first = queue.enqueue(unique("a")).await.unwrap();
    let second = queue.enqueue(unique("b")).await.unwrap();
    assert_eq!(queue.keys().unique_holder("u", None).await.unwrap(), None, "nobody has taken them in");
    let mut claimed = queue.claim(9).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let job = claimed.remove(0);
    assert_eq!(job.id(), first);
    let info = queue.get(second).await.unwrap().unwrap();
    assert_eq!((info.state, info.duplicate_of), (JobState::Duplicate, Some(first)));
    assert_eq!(queue.keys().unique_holder("u", None).await.unwrap(), Some(first));
    let mut job = job;
    // It lives on in another place, and keeps its name and its key.
    job.set_part("more", "x");
    let AttemptEnd::Waits { .. } = job.fail("no").await.unwrap() else { panic!("it waits") };
    let third = queue.enqueue(unique("c")).await.unwrap();
    assert!(queue.claim(9).await.unwrap().is_empty());
    assert_eq!(queue.get(third).await.unwrap().unwrap().duplicate_of, Some(first));
    world.pass(Duration::from_secs(3)).await;
    assert_eq!(work_down(&queue).await, ["a"]);
    queue.enqueue(unique("d")).await.unwrap();
    assert_eq!(work_down(&queue).await, ["d"], "a job that ended frees its key");
}

#[tokio::test]
async fn a_unique_key_stays_taken_for_the_queues_period() {
    let world = World::new();
    let queue = world.queue(1).await;
    let unique_period = Duration::from_secs(60);
    queue.change_settings(QueueSettings { shards: 1, unique_period, ..QueueSettings::default() }).await.unwrap();
    let unique = |args: &str| NewJob::new(args.to_owned()).unique_key("u");
    queue.enqueue(unique("a")).await.unwrap();
    assert_eq!(work_down(&queue).await, ["a"]);
    queue.enqueue(unique("b")).await.unwrap();
    assert!(work_down(&queue).await.is_empty());
    world.pass(Duration::from_secs(61)).await;
    queue.enqueue(unique("c")).await.unwrap();
    assert_eq!(work_down(&queue).await, ["c"]);
}

#[tokio::test]
async fn of_a_hundred_racing_jobs_of_one_unique_key_one_runs_at_a_time() {
    let world = World::new();
    let queues = futures_util::future::join_all((1..=10).map(|seed| world.queue(seed))).await;
    let mut ids = Vec::new();
    for queue in &queues {
        let calls = (0..10).map(|n| queue.enqueue(NewJob::new(n.to_string()).unique_key("u")).into_future());
        ids.extend(futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap));
    }
    let claims = futures_util::future::join_all(queues.iter().map(|queue| queue.claim(100).into_future())).await;
    let claimed: Vec<_> = claims.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(claimed.len(), 1);
    let holder = claimed[0].id();
    for id in ids.into_iter().filter(|id| *id != holder) {
        assert_eq!(queues[0].get(id).await.unwrap().unwrap().duplicate_of, Some(holder));
    }
}

#[tokio::test]
async fn a_repeated_request_runs_once_after_a_lost_answer_and_a_restart() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.settings().await.unwrap();
    let call = |queue: &leasehold::Queue| queue.enqueue_many(["a", "b"]).request_id("order-7").into_future();
    world.fault(Rule::always(Op::Put, Fault::Lose(Answer::Drop)).on("/in/"));
    let lost = tokio::spawn(call(&queue));
    world.pass(Duration::from_secs(70)).await;
    drop(lost.await.unwrap());
    world.0.store.faults().clear();
    // Another process, which knows nothing of the first.
    let restarted = world.queue(2).await;
    let ids = call(&restarted).await.unwrap();
    assert_eq!(call(&restarted).await.unwrap(), ids);
    assert_eq!(work_down(&restarted).await, ["a", "b"]);
    world.pass(Duration::from_secs(300)).await;
    assert_eq!(call(&world.queue(3).await).await.unwrap(), ids, "within its window");
    assert!(work_down(&restarted).await.is_empty());
}

#[tokio::test]
async fn a_rate_holds_over_all_processes() {
    let world = World::new();
    let settings = QueueSettings { shards: 1, rate: Some(100), ..QueueSettings::default() };
    let queues = futures_util::future::join_all((1..=8).map(|seed| world.queue(seed))).await;
    queues[0].change_settings(settings).await.unwrap();
    queues[0].enqueue_many((0..7000).map(|n| NewJob::new(n.to_string()))).await.unwrap();
    let mut started = Vec::new();
    for tick in 0..600 {
        let queue = &queues[tick % 8];
        let jobs = queue.claim(500).await.unwrap();
        started.push(jobs.len());
        queue.finish_all(jobs).await.unwrap();
        world.pass(Duration::from_millis(100)).await;
    }
    let total: usize = started.iter().sum();
    assert!((5880..=6120).contains(&total), "{total} in 60 s of 100 a second");
    for second in started.chunks(10).skip(1) {
        let jobs: usize = second.iter().sum();
        assert!((98..=102).contains(&jobs), "{jobs} in one second");
    }
}
