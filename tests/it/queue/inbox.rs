//! What stands in the inbox: damaged segments stall nothing, and a thousand jobs cost a handful of requests.

use super::shared::{World, jobs, work_down};
use crate::common::{Bed, calm};
use leasehold::job::AttemptEnd;
use std::time::Duration;

#[tokio::test]
async fn a_damaged_segment_is_buried_as_it_is_and_stalls_nothing() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue("damaged").await.unwrap();
    let name = world.names("/in/").remove(0);
    let mut body = world.0.store.object(&name).unwrap().0.to_vec();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    world.0.store.put_object(&name, body);
    queue.enqueue("sound").await.unwrap();
    assert_eq!(work_down(&queue).await, ["sound"]);
    calm().await;
    assert_eq!((world.names("/in/").len(), world.names("/dead/").len()), (0, 1));
}

#[tokio::test]
async fn a_thousand_jobs_take_eight_requests_from_enqueue_to_the_end() {
    let bed = Bed::new().await;
    let queue = bed.store.queue("emails").unwrap();
    queue.settings().await.unwrap();
    let (ends, made) = bed
        .counting(async {
            queue.enqueue_many(jobs(1000)).await.unwrap();
            let claimed = queue.claim(1000).await.unwrap();
            let ends = queue.finish_all(claimed).await.unwrap();
            // The delete is on its way.
            while !bed.server.requests().iter().any(|request| request.op == leasehold_testkit::Op::Delete) {
                tokio::task::yield_now().await;
            }
            bed.store.drain().await;
            ends
        })
        .await;
    assert_eq!(ends.len(), 1000);
    assert!(ends.iter().all(AttemptEnd::is_accepted));
    // Two of them give the session up, which a process that goes on working does not.
    assert!(made.total() <= 8 + 2, "{made:?}");
}

#[tokio::test]
async fn an_idle_worker_keeps_no_session_and_looks_rarely() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.settings().await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.claim(1).within(Duration::from_secs(300)).await }
    });
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(world.names("meta/session"), Vec::<String>::new());
    let other = world.queue(2).await;
    other.enqueue("x").await.unwrap();
    world.pass(Duration::from_secs(11)).await;
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}
