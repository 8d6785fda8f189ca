//! Limits on what is there, damage that is found, and ledgers that are made again.

use super::shared::{World, jobs, one, work_down};
use crate::common::calm;
use leasehold::{
    ErrorKind,
    fsck::{Damage, FsckOptions},
    job::NewJob,
    sweep::SweepOptions,
};
use std::time::Duration;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_full_queue_refuses_takes_a_call_whole_and_has_room_again() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.update_settings(|settings| settings.capacity = Some(10)).await.unwrap();
    queue.enqueue_many(jobs(9)).await.unwrap();
    queue.enqueue_many(jobs(100)).await.expect("a call that finds room is taken whole");
    let refused = queue.enqueue("one more").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("is full: 109 jobs wait or run, 10 are allowed"), "{refused}");
    queue.enqueue(NewJob::new("later").due_in(seconds(7200))).await.expect("what is due later does not count");
    assert_eq!(work_down(&queue).await.len(), 109);
    world.pass(seconds(6)).await;
    queue.enqueue("room again").await.unwrap();
}

#[tokio::test]
async fn what_a_full_queue_has_no_room_for_goes_to_its_overflow() {
    let world = World::new();
    let store = world.process(1).await;
    let (queue, other) = (store.queue("emails").unwrap(), store.queue("spare").unwrap());
    queue
        .update_settings(|settings| (settings.capacity, settings.overflow) = (Some(2), Some("spare".to_owned())))
        .await
        .unwrap();
    for _ in 0..5 {
        queue.enqueue("x").await.unwrap();
    }
    assert_eq!((queue.depth().await.unwrap().available, other.depth().await.unwrap().available), (2, 3));
}

#[tokio::test]
async fn above_the_cap_the_oldest_dead_letters_go_and_are_counted() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = store.queue("emails").unwrap();
    queue.update_settings(|settings| settings.dead_jobs = 3).await.unwrap();
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(queue.enqueue(format!("{number}")).await.unwrap());
        assert!(one(&queue).await.fail_for_good("no").await.unwrap().is_accepted());
        calm().await;
        world.0.clock.advance(seconds(3600));
    }
    calm().await;
    assert_eq!(queue.depth().await.unwrap().dead, 5);
    store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    let kept: Vec<_> = queue.dead().list().await.unwrap().letters.iter().filter_map(|letter| letter.id).collect();
    assert_eq!(kept, ids[2..]);
    assert_eq!(store.queues("default").unwrap().dead_dropped(), 2);
}

#[tokio::test]
async fn a_lost_ledger_is_found_and_made_again_and_no_job_is_lost() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = store.queue("emails").unwrap();
    queue.enqueue_many(jobs(4)).await.unwrap();
    let mut claimed = queue.claim(2).await.unwrap();
    // One lives on in an object that only the ledger names.
    let mut moved = claimed.remove(0);
    moved.set_part("state", "2");
    assert!(moved.snooze(seconds(1)).await.unwrap().is_accepted());
    assert!(claimed.remove(0).finish().await.unwrap().is_accepted());
    queue.enqueue(NewJob::new("later").due_in(seconds(7200))).await.unwrap();
    calm().await;
    for name in world.names("/ledger/") {
        assert!(world.0.store.delete_object(&name));
    }
    let fresh = world.process(2).await;
    let report = fresh.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!((report.found.get(&Damage::MissingRecord), report.is_clean()), (Some(&1), false), "{report:?}");
    let again = fresh.queue("emails").unwrap();
    let error = again.update_settings(|settings| settings.max_attempts = 9).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "nobody makes an empty one in its place: {error}");
    let report = fresh.fsck(FsckOptions::new().repair("me")).await.unwrap();
    assert_eq!(report.repaired, 1, "{report:?}");
    let third = world.process(3).await;
    assert!(third.fsck(FsckOptions::new()).await.unwrap().is_clean());
    world.pass(seconds(10)).await;
    let queue = third.queue("emails").unwrap();
    let mut run = work_down(&queue).await;
    run.sort();
    assert_eq!(run, ["job 0", "job 1", "job 2", "job 3"], "each once but what had ended, which runs again");
    world.0.clock.advance(seconds(7300));
    assert_eq!(work_down(&queue).await, ["later"]);
}

#[tokio::test]
async fn fsck_names_segments_that_are_gone_and_names_that_are_not_ours() {
    let world = World::new();
    let store = world.process(1).await;
    let queue = store.queue("emails").unwrap();
    queue.enqueue_many(jobs(2)).await.unwrap();
    let mut job = one(&queue).await;
    job.set_part("state", "2");
    assert!(job.snooze(seconds(3600)).await.unwrap().is_accepted());
    calm().await;
    assert!(store.fsck(FsckOptions::new()).await.unwrap().is_clean());
    let kept = world.names("/seg/").remove(0);
    assert!(world.0.store.delete_object(&kept));
    world.0.store.put_object("default/queue/emails/in/0/1/nonsense", "x");
    let fresh = world.process(2).await;
    let report = fresh.fsck(FsckOptions::new()).await.unwrap();
    assert_eq!(report.found.get(&Damage::MissingRecord), Some(&1), "{report:?}");
    assert_eq!(report.found.get(&Damage::UnknownName), Some(&1), "{report:?}");
}
