//! What jobs cost: each row of the budget in HTTP attempts, counted at both ends.

use super::process::jobs;
use crate::common::{Bed, noon, s3};
use leasehold::{
    Queue, Settings, Store,
    job::{AttemptEnd, Job},
    store::{
        Probing,
        RequestKind::{Delete, Get, List, Put},
        Requests,
    },
};
use leasehold_testkit::{S3Server, TestClock};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Writes, reads, listings, deletes.
fn kinds(made: &Requests) -> [u64; 4] {
    [made.of(Put), made.of(Get), made.of(List), made.of(Delete)]
}

/// A server, a process on it, and a queue of one shard that is made.
async fn bed() -> (Bed, Queue) {
    let clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
    let mut settings = one_shard();
    settings.request_timeout = Duration::from_secs(30);
    let store = s3(&server, &clock).settings(settings).probing(Probing::Never).open().await.unwrap();
    let queue = store.queue("work").unwrap();
    queue.settings().await.unwrap();
    server.clear_requests();
    (Bed { clock, server, store }, queue)
}

/// Everything that so many jobs need from their enqueue to their end, up to the delete of their segment.
async fn round(queue: &Queue, store: &Store, count: usize) -> Requests {
    let before = store.requests();
    queue.enqueue_many(jobs(count)).await.unwrap();
    let mut done = 0;
    while done < count {
        let claimed = queue.claim(1000).await.unwrap();
        assert!(!claimed.is_empty());
        done += claimed.len();
        let ends = queue.finish_all(claimed).await.unwrap();
        assert!(ends.iter().all(AttemptEnd::is_accepted));
    }
    while store.requests().since(&before).of(Delete) == 0 {
        tokio::task::yield_now().await;
    }
    store.requests().since(&before)
}

#[tokio::test]
async fn an_enqueue_of_one_or_two_thousand_jobs_is_one_request() {
    let (bed, queue) = bed().await;
    for count in [1, 2000] {
        let (ids, made) = bed.counting(queue.enqueue_many(jobs(count)).into_future()).await;
        assert_eq!(ids.unwrap().len(), count);
        assert_eq!(kinds(&made), [1, 0, 0, 0]);
    }
    let (ids, made) = bed.counting(queue.enqueue_many(jobs(10)).request_id("call-7").into_future()).await;
    assert_eq!((ids.unwrap().len(), kinds(&made)), (10, [1, 0, 0, 0]));
}

/// Time passes until an idle process has nothing left to do.
async fn idle(bed: &Bed) {
    for _ in 0..90 {
        bed.clock.advance(Duration::from_secs(1));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_thousand_jobs_from_enqueue_to_the_end_are_at_most_8_requests() {
    let (bed, queue) = bed().await;
    // From a process that has neither session nor shard to one that has neither again.
    for _ in 0..2 {
        let whole = async {
            round(&queue, &bed.store, 1000).await;
            idle(&bed).await;
        };
        let ((), made) = bed.counting(whole).await;
        println!("1,000 jobs from enqueue to the end, with a session that is made and given up: {made:?}");
        assert!(made.total() <= 8, "{made:?}");
        // Its settings are a minute old by now: read outside of what is counted.
        queue.settings().await.unwrap();
    }
    round(&queue, &bed.store, 1000).await;
    for _ in 0..3 {
        let made = round(&queue, &bed.store, 1000).await;
        println!("1,000 jobs from enqueue to the end, by a process that works on: {made:?}");
        assert!(made.total() <= 6, "{made:?}");
    }
}

#[tokio::test]
async fn a_cycle_that_finishes_and_claims_is_one_swap() {
    let (bed, queue) = bed().await;
    queue.enqueue_many(jobs(1000)).await.unwrap();
    let mut hand = queue.claim(100).await.unwrap();
    for _ in 0..3 {
        let cycle = async {
            // Queued at the call: they ride on the claim's commit.
            let finished: Vec<_> = hand.drain(..).map(leasehold::job::Job::finish).collect();
            hand = queue.claim(100).await.unwrap();
            for finished in finished {
                assert!(finished.await.unwrap().is_accepted());
            }
            assert_eq!(hand.len(), 100);
        };
        let ((), made) = bed.counting(cycle).await;
        let [puts, gets, lists, deletes] = kinds(&made);
        println!("a cycle of 100: {made:?}");
        assert_eq!((puts, deletes), (1, 0), "{made:?}");
        assert!(gets <= 1 && lists <= 1, "one look at the inbox at most, and the parts: {made:?}");
    }
}

#[tokio::test]
async fn depth_is_three_listings_and_a_read_of_each_ledger() {
    let (bed, queue) = bed().await;
    queue.enqueue_many(jobs(30)).await.unwrap();
    let (depth, made) = bed.counting(queue.depth()).await;
    assert_eq!((depth.unwrap().available, kinds(&made)[0]), (30, 0));
    assert!(kinds(&made)[1] <= 2 && kinds(&made)[2] == 3, "{made:?}");
}

#[tokio::test]
async fn a_lookup_is_at_most_three_requests_and_a_cancel_a_swap_more() {
    let (bed, queue) = bed().await;
    let ids = queue.enqueue_many(jobs(3)).await.unwrap();
    let hand = queue.claim(1).await.unwrap();
    let (found, made) = bed.counting(queue.get(ids[1])).await;
    assert!(found.unwrap().is_some());
    assert!(made.total() <= 2, "{made:?}");
    let (_, made) = bed.counting(queue.cancel(ids[1])).await;
    println!("cancel: {made:?}");
    assert!(made.of(Put) == 1 && made.total() <= 4, "{made:?}");
    drop(hand);
}

/// A queue with so many waiting jobs, of which the first claim has taken in what it needs.
async fn with_waiting(store: &Store, waiting: usize, each: usize) -> (Queue, Vec<Job>) {
    let queue = store.queue(format!("w{waiting}")).unwrap();
    queue.settings().await.unwrap();
    for _ in 0..waiting / each {
        queue.enqueue_many(jobs(each)).await.unwrap();
    }
    let first = queue.claim(CLAIMED).await.unwrap();
    (queue, first)
}

const CLAIMED: u32 = 20;

/// Requests and time of one claim.
#[allow(clippy::disallowed_methods, reason = "measures real time")]
async fn one_claim(store: &Store, queue: &Queue, kept: &mut Vec<Job>) -> (u64, Duration) {
    let before = store.requests();
    let began = Instant::now();
    let hand = queue.claim(CLAIMED).await.unwrap();
    let took = began.elapsed();
    assert_eq!(hand.len(), CLAIMED as usize);
    kept.extend(hand);
    (kinds(&store.requests().since(&before)).iter().sum(), took)
}

/// Claims in turn from a short and from a long queue, so that a slow disk or processor is slow for both.
async fn compare(store: &Store, many: usize, what: &str) {
    let (short, mut kept) = with_waiting(store, 1_000, 100).await;
    let (long, more) = with_waiting(store, many, 1_000).await;
    kept.extend(more);
    let (mut few, mut lots) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        few.push(one_claim(store, &short, &mut kept).await);
        lots.push(one_claim(store, &long, &mut kept).await);
    }
    let requests = |claims: &[(u64, Duration)]| claims.iter().map(|(made, _)| made).sum::<u64>();
    let median = |claims: &mut Vec<(u64, Duration)>| {
        claims.sort_by_key(|(_, took)| *took);
        claims[claims.len() / 2].1
    };
    let (few_made, lots_made) = (requests(&few), requests(&lots));
    let (short, long) = (median(&mut few), median(&mut lots));
    println!(
        "{what}: 25 claims beside 1,000 jobs: {few_made} requests, median {short:?}; beside {many}: {lots_made}, {long:?}"
    );
    assert!(lots_made <= few_made, "{few_made} and {lots_made} requests");
    assert!(long <= short * 2 + Duration::from_millis(2), "{short:?} and {long:?}");
}

fn one_shard() -> Settings {
    let mut settings = Settings::default();
    settings.jobs.shards = 1;
    settings
}

#[tokio::test]
async fn a_claim_costs_the_same_beside_a_thousand_and_a_hundred_thousand_jobs() {
    let store = Store::builder().url("memory://").settings(one_shard()).open().await.unwrap();
    compare(&store, 100_000, "memory").await;
}

#[tokio::test]
#[ignore = "measures: .ci/long runs it"]
async fn a_claim_beside_a_million_jobs_costs_what_it_costs_beside_a_thousand() {
    let store = Store::builder().url("memory://").settings(one_shard()).open().await.unwrap();
    compare(&store, 1_000_000, "memory").await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let store = Store::builder().url(url).settings(one_shard()).probing(Probing::Never).open().await.unwrap();
    compare(&store, 1_000_000, "directory").await;
}

async fn many_small(segments: usize) {
    let store = Store::builder().url("memory://").settings(one_shard()).open().await.unwrap();
    let queue = store.queue("small").unwrap();
    queue.settings().await.unwrap();
    for number in 0..segments {
        queue.enqueue(number.to_string()).await.unwrap();
    }
    let before = store.requests();
    let depth = queue.depth().await.unwrap();
    let made = kinds(&store.requests().since(&before));
    println!("{segments} segments of one job: depth {} (at least: {}) {made:?}", depth.available, depth.at_least);
    assert_eq!((depth.at_least, depth.available), (segments > 1000, segments.min(1000) as u64));
    assert!(made.iter().sum::<u64>() <= 3, "{made:?}");
    let first = queue.claim(10).await.unwrap();
    assert_eq!(first.len(), 10);
    let before = store.requests();
    let second = queue.claim(10).await.unwrap();
    let made = kinds(&store.requests().since(&before));
    println!("a claim of 10 of them: {made:?}");
    assert_eq!(second.len(), 10);
    assert!(made[0] <= 1 && made[2] <= 1, "{made:?}");
}

#[tokio::test]
async fn claim_and_depth_of_three_thousand_small_segments_stay_within_their_requests() {
    many_small(3_000).await;
}

#[tokio::test]
#[ignore = "measures: .ci/long runs it"]
async fn a_hundred_thousand_small_segments_keep_claim_and_depth_within_requests() {
    many_small(100_000).await;
}

#[tokio::test]
async fn a_begin_of_a_tracker_is_one_create_and_one_commit_and_a_finish_one_commit() {
    let (bed, queue) = bed().await;
    let tracker = queue.tracker();
    // The first one makes the session.
    assert!(tracker.begin("first", "x").await.unwrap().finish().await.unwrap().is_accepted());
    for count in [1, 1000] {
        let jobs = (0..count).map(|number| (format!("jid-{number}"), "payload"));
        let (begun, made) = bed.counting(tracker.begin_many(jobs)).await;
        let begun = begun.unwrap();
        assert_eq!((begun.len(), kinds(&made)[..3].to_vec()), (count, vec![2, 0, 0]), "{made:?}");
        let (ends, made) = bed.counting(tracker.finish_all(begun)).await;
        assert!(ends.unwrap().iter().all(AttemptEnd::is_accepted));
        assert_eq!(kinds(&made)[..3], [1, 0, 0], "{made:?}");
    }
    // Many callers at once are not many commits.
    let (begun, made) = bed
        .counting(futures_util::future::try_join_all((0..200).map(|number| tracker.begin(format!("b{number}"), "x"))))
        .await;
    assert_eq!(begun.unwrap().len(), 200);
    assert!(made.of(Put) <= 4, "{made:?}");
}
