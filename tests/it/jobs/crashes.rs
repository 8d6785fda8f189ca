//! Wherever a process stops, no acknowledged job is lost, what it held runs again with a higher fence, and what it says
//! afterwards changes nothing that somebody else has.

use super::process::{Process, RECOVERED, World, numbers};
use crate::common::{noon, s3};
use leasehold::{
    ErrorKind,
    job::{AttemptEnd, Cancelled, Job, StaleAttempt},
    store::Probing,
};
use leasehold_testkit::{Answer, Fault, Op, Rule, S3Server, TestClock};
use std::{sync::Arc, time::Duration};

const LEDGER: &str = "/ledger/";

/// Claims until there is something, as time passes.
fn recovered(world: &World, process: &Process, most: u32) -> Vec<Job> {
    process.pass(world, RECOVERED);
    process.claim(most)
}

#[test]
fn an_enqueue_whose_caller_died_before_the_answer_runs_once() {
    let world = World::new();
    let (producer, worker) = (world.process(1), world.process(2));
    world.fault(Op::Put, "/in/", Fault::Lose(Answer::Hang));
    producer.run(async {
        let mut call = Box::pin(producer.queue.enqueue("0").into_future());
        tokio::select! { biased; _ = &mut call => panic!("no answer comes"), () = crate::common::calm() => {} }
        std::mem::forget(call);
    });
    producer.dies_with(Vec::new());
    let claimed = worker.claim(10);
    assert_eq!(numbers(&claimed), [0]);
    assert!(worker.run(worker.queue.finish_all(claimed)).unwrap()[0].is_accepted());
    assert_eq!(worker.claim(10).len(), 0);
}

#[test]
fn a_listing_that_misses_names_delays_jobs_and_loses_none() {
    for fault in [Fault::Gap, Fault::Stale, Fault::Shuffle] {
        let world = World::new();
        let worker = world.process(1);
        (0..6).for_each(|_| worker.enqueue(1));
        world.0.store.faults().script(Rule::once(Op::List, fault).on("/in"));
        let mut claimed = worker.claim(100);
        for _ in 0..3 {
            worker.pass(&world, Duration::from_secs(2));
            claimed.extend(worker.claim(100));
        }
        assert_eq!(claimed.len(), 6, "{fault:?}");
    }
}

#[test]
fn two_that_absorb_at_once_take_each_job_once() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(40);
    let (mut ours, mut theirs) = (one.claim(10), other.claim(10));
    for _ in 0..5 {
        ours.extend(one.claim(3));
        theirs.extend(other.claim(5));
    }
    assert!(ours.len() > 10 && theirs.len() > 10);
    let mut all = numbers(&ours);
    all.extend(numbers(&theirs));
    all.sort_unstable();
    assert_eq!(all, (0..all.len()).collect::<Vec<_>>(), "no attempt is given to two while both sessions hold");
}

#[test]
fn two_workers_on_one_shard_never_run_one_attempt_twice_while_sessions_hold() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(300);
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..200 {
        for process in [&one, &other] {
            let claimed = process.claim(1 + round % 7);
            for job in &claimed {
                assert!(seen.insert((job.id(), job.attempt()), job.fence()).is_none(), "{job:?} runs twice");
            }
            let ends = process.run(process.queue.finish_all(claimed)).unwrap();
            assert!(ends.iter().all(AttemptEnd::is_accepted));
        }
        one.pass(&world, Duration::from_millis(300));
        other.pass(&world, Duration::from_millis(10));
    }
    assert_eq!(seen.len(), 300);
}

#[test]
fn jobs_of_a_process_that_died_before_starting_them_are_claimed_in_time() {
    let world = World::new();
    let (dead, other) = (world.process(1), world.process(2));
    dead.enqueue(5);
    let claimed = dead.claim(5);
    let fence = dead.dies_with(claimed).unwrap();
    other.pass(&world, Duration::from_secs(25));
    assert_eq!(other.claim(10).len(), 0, "its session may still be believed in");
    other.pass(&world, Duration::from_secs(12));
    // The look that finds it over; what comes back is spread over five seconds.
    other.claim(10);
    let mut again = Vec::new();
    for _ in 0..7 {
        other.pass(&world, Duration::from_secs(1));
        again.extend(other.claim(10));
    }
    assert_eq!(numbers(&again), [0, 1, 2, 3, 4]);
    assert!(again.iter().all(|job| job.fence() > fence && job.attempt() == 1 && job.stalls() == 0));
}

#[test]
fn a_claim_that_landed_as_its_process_died_is_taken_over_like_any_other() {
    let world = World::new();
    let (dead, other) = (world.process(1), world.process(2));
    dead.enqueue(2);
    // Its session is there before, so that the next write of the ledger is the claim.
    world.fault(Op::Put, LEDGER, Fault::Lose(Answer::Hang));
    dead.run(async {
        let mut call = Box::pin(dead.queue.claim(2).into_future());
        tokio::select! { biased; _ = &mut call => panic!("no answer comes"), () = crate::common::calm() => {} }
        std::mem::forget(call);
    });
    dead.dies_with(Vec::new());
    assert_eq!(other.claim(10).len(), 0, "they are in the dead one's hands");
    other.pass(&world, Duration::from_secs(37));
    let mut again = other.claim(10);
    for _ in 0..7 {
        other.pass(&world, Duration::from_secs(1));
        again.extend(other.claim(10));
    }
    assert_eq!(numbers(&again), [0, 1]);
}

#[test]
fn a_paused_worker_finishes_late_if_nobody_has_claimed_its_job_since() {
    let world = World::new();
    let (paused, other) = (world.process(1), world.process(2));
    paused.enqueue(1);
    let job = paused.claim(1).remove(0);
    other.pass(&world, Duration::from_secs(60));
    // Found over, and not claimed: what came back is due a little later.
    assert_eq!(other.claim(1).len(), 0);
    let depth = other.run(other.queue.depth()).unwrap();
    assert_eq!((depth.running, depth.retrying), (0, 1), "it was taken away");
    let end = paused.run_in_time(&world, job.finish().into_future()).unwrap();
    assert_eq!(end, AttemptEnd::Finished { late: true });
    other.pass(&world, Duration::from_secs(10));
    assert_eq!(other.claim(1).len(), 0, "it has ended");
}

#[test]
fn the_finish_of_a_paused_worker_is_stale_once_its_job_was_claimed_again() {
    let world = World::new();
    let (paused, other) = (world.process(1), world.process(2));
    paused.enqueue(1);
    let job = paused.claim(1).remove(0);
    let fence = job.fence();
    assert!(recovered(&world, &other, 1).is_empty(), "found over, and due a little later");
    other.pass(&world, Duration::from_secs(6));
    let again = other.claim(1).remove(0);
    assert!(!job.is_ours());
    let end = paused.run_in_time(&world, job.finish().into_future()).unwrap();
    let AttemptEnd::Stale(StaleAttempt::Running { owner, fence: theirs, .. }) = end else { panic!("{end:?}") };
    assert_eq!((owner.as_str(), theirs), ("process-2", again.fence()));
    assert!(theirs > fence);
    let end = other.run_in_time(&world, again.finish().into_future()).unwrap();
    assert_eq!(end, AttemptEnd::Finished { late: false }, "nothing has changed for who has it");
}

#[test]
fn of_a_cancel_and_a_finish_the_first_holds_and_the_other_is_told() {
    let world = World::new();
    let (worker, caller) = (world.process(1), world.process(2));
    worker.enqueue(2);
    let mut claimed = worker.claim(2);
    let (first, second) = (claimed.remove(0), claimed.remove(0));
    let (first_id, second_id) = (first.id(), second.id());
    assert!(worker.run(first.finish().into_future()).unwrap().is_accepted());
    assert_eq!(caller.run(caller.queue.cancel(first_id)).unwrap(), Cancelled::AlreadyEnded);
    assert_eq!(caller.run(caller.queue.cancel(second_id)).unwrap(), Cancelled::Asked);
    assert_eq!(worker.run(second.fail("x").into_future()).unwrap(), AttemptEnd::Cancelled);
    worker.pass(&world, Duration::from_secs(60));
    assert_eq!(worker.claim(2).len(), 0);
}

#[test]
fn a_finished_segment_whose_delete_failed_is_deleted_later_and_not_run_again() {
    for fault in [Fault::Refuse(Answer::Status(503)), Fault::Lose(Answer::Drop), Fault::Refuse(Answer::Drop)] {
        let world = World::new();
        let worker = world.process(1);
        worker.enqueue(1);
        world.0.store.faults().script(Rule::once(Op::Delete, fault).times(4));
        let claimed = worker.claim(1);
        worker.run(worker.queue.finish_all(claimed)).unwrap();
        worker.calm();
        for _ in 0..30 {
            worker.pass(&world, Duration::from_secs(5));
            assert_eq!(worker.claim(1).len(), 0, "it has ended");
        }
        assert_eq!(world.names("/in/"), Vec::<String>::new(), "{fault:?}");
    }
}

#[test]
fn a_delete_that_arrives_late_meets_nothing_that_counts() {
    let world = World::new();
    let worker = world.process(1);
    worker.enqueue(1);
    world.fault(Op::Delete, "/in/", Fault::Late(Duration::from_secs(40), Answer::Drop));
    let claimed = worker.claim(1);
    worker.run(worker.queue.finish_all(claimed)).unwrap();
    let mut claimed = Vec::new();
    for _ in 0..30 {
        worker.enqueue(1);
        worker.pass(&world, Duration::from_secs(5));
        claimed.extend(worker.claim(10));
    }
    assert_eq!(claimed.len(), 30, "each new one, and the finished one never");
}

#[test]
fn a_damaged_segment_stalls_nothing() {
    let world = World::new();
    let worker = world.process(1);
    worker.enqueue(1);
    let damaged = world.names("/in/").remove(0);
    let (body, _) = world.0.store.object(&damaged).unwrap();
    world.0.store.put_object(&damaged, body.slice(..body.len() / 2));
    worker.enqueue(3);
    let mut claimed = worker.claim(10);
    worker.pass(&world, Duration::from_secs(2));
    claimed.extend(worker.claim(10));
    assert_eq!(claimed.len(), 3);
}

#[test]
fn a_ledger_that_is_gone_stops_its_shard_and_is_not_made_anew() {
    let world = World::new();
    let worker = world.process(1);
    worker.enqueue(1);
    let name = world.names(LEDGER).remove(0);
    assert!(world.0.store.delete_object(&name));
    let fresh = world.process(2);
    let error = fresh.run_in_time(&world, fresh.queue.claim(1).into_future()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(world.names(LEDGER), Vec::<String>::new());
}

#[tokio::test]
async fn with_a_clock_that_is_minutes_wrong_nothing_is_claimed_and_finishing_goes_on() {
    // The store and each process have clocks of their own.
    let clocks = [noon(), noon(), noon()].map(TestClock::at);
    let [theirs, ours, right] = &clocks;
    let server = S3Server::start(Arc::new(theirs.clone())).await.unwrap();
    let (store, other) = (s3(&server, ours).probing(Probing::Never), s3(&server, right).probing(Probing::Never));
    let (store, other) = (store.open().await.unwrap(), other.open().await.unwrap());
    let (queue, others) = (store.queue("work").unwrap(), other.queue("work").unwrap());
    queue.enqueue_many(super::process::jobs(3)).await.unwrap();
    let job = queue.claim(1).await.unwrap().remove(0);
    for wrong in [-300_000, 600_000] {
        ours.step_wall(wrong);
        let error = queue.claim(1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
    }
    // It is five minutes ahead by now, and believes in nothing; the right ones go on as if nothing was.
    assert!(!job.is_ours());
    let end = job.finish().await.unwrap();
    assert_eq!(end, AttemptEnd::Finished { late: false }, "nobody has been given it");
    let claimed = others.claim(5).await.unwrap();
    assert_eq!(numbers(&claimed).len(), 2, "what is due is not put off, and nothing was taken by the wrong one");
    ours.step_wall(-300_000);
    queue.enqueue("7").await.unwrap();
    let mut again = Vec::new();
    for _ in 0..4 {
        again.extend(queue.claim(5).await.unwrap());
    }
    assert_eq!(numbers(&again), [7], "with its clock set right it claims again");
}
