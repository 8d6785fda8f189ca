//! What a dead process held can be claimed again in time, whoever works on the queue and whatever that does meanwhile.

use super::process::{World, numbers};
use leasehold::job::AttemptEnd;
use std::time::Duration;

/// A session's time to live, what it takes to see that it has ended, the spread of what comes back, and one poll.
const BOUND: Duration = Duration::from_secs(30 + 2 + 4 + 5 + 10);

#[test]
fn a_process_that_only_runs_its_job_brings_back_in_time_what_a_dead_one_held() {
    let world = World::new();
    let (dead, busy) = (world.process(1), world.process(2));
    dead.enqueue(6);
    let long = busy.claim(1).remove(0);
    let claimed = dead.claim(5);
    dead.dies_with(claimed);
    // It claims nothing: it has its hands full.
    busy.pass(&world, Duration::from_secs(28));
    let depth = busy.run(busy.queue.depth()).unwrap();
    assert_eq!((depth.running, depth.available), (6, 0), "the dead one may still be believed in");
    busy.pass(&world, BOUND - Duration::from_secs(28));
    let depth = busy.run(busy.queue.depth()).unwrap();
    assert_eq!((depth.running, depth.available), (1, 5), "{depth:?}");
    assert!(long.is_ours(), "nobody has taken what it runs");
    assert_eq!(busy.run(long.finish().into_future()).unwrap(), AttemptEnd::Finished { late: false });
    assert_eq!(busy.claim(10).len(), 5);
}

#[test]
fn a_claim_that_waits_is_given_in_time_what_a_dead_process_held() {
    let world = World::new();
    let (dead, waits) = (world.process(1), world.process(2));
    dead.enqueue(3);
    let claimed = dead.claim(3);
    dead.dies_with(claimed);
    let began = world.0.clock_now();
    let mut taken = Vec::new();
    while taken.len() < 3 {
        let call = waits.queue.claim(10).within(Duration::from_secs(120)).into_future();
        taken.extend(waits.run_in_time(&world, call).unwrap());
    }
    let waited = world.0.clock_now().since(began);
    assert!(waited >= Duration::from_secs(30) && waited <= BOUND, "{waited:?}");
    assert_eq!(numbers(&taken), [0, 1, 2]);
}

#[test]
fn an_idle_process_looks_at_nothing() {
    let world = World::new();
    let one = world.process(1);
    one.enqueue(1);
    let job = one.claim(1).remove(0);
    assert!(one.run(job.finish().into_future()).unwrap().is_accepted());
    one.pass(&world, Duration::from_secs(60));
    let before = one.store.requests();
    one.pass(&world, Duration::from_secs(300));
    let made = one.store.requests().since(&before);
    assert_eq!(made.total(), 0, "neither session nor shard is kept: {made:?}");
}

#[test]
fn a_process_that_lives_is_never_robbed_however_long_its_job_runs() {
    let world = World::new();
    let (long, busy) = (world.process(1), world.process(2));
    long.enqueue(2);
    let (job, other) = (long.claim(1).remove(0), busy.claim(1).remove(0));
    for _ in 0..30 {
        // Both live: each is run for a while.
        long.pass(&world, Duration::from_secs(5));
        busy.pass(&world, Duration::from_secs(5));
    }
    assert!(job.is_ours() && other.is_ours());
    assert_eq!(busy.claim(5).len(), 0);
    assert_eq!(long.run(job.finish().into_future()).unwrap(), AttemptEnd::Finished { late: false });
}

/// The bound is on being claimable again. What comes back from a large batch runs in ever smaller groups, so that a job that
/// kills its process is found: how soon all of it has run depends on how many hands there are.
#[test]
fn a_large_batch_of_a_dead_process_is_claimable_in_time_and_runs_in_groups() {
    let world = World::new();
    let (dead, one, other) = (world.process(1), world.process(2), world.process(3));
    dead.enqueue(1001);
    let long = one.claim(1).remove(0);
    let claimed = dead.claim(1000);
    assert_eq!(claimed.len(), 1000);
    dead.dies_with(claimed);
    one.pass(&world, BOUND);
    let depth = one.run(one.queue.depth()).unwrap();
    assert_eq!((depth.available, depth.running, depth.retrying), (1000, 1, 0), "{depth:?}");
    // An eighth of it for each hand at once, and no more while that is not answered for.
    let mut first = one.claim(1000);
    assert_eq!(first.len(), 125);
    assert_eq!(one.claim(1000).len(), 0);
    let second = other.claim(1000);
    assert_eq!(second.len(), 125);
    assert!(first.iter().chain(&second).all(|job| job.attempt() == 1 && job.stalls() == 0));
    // Hand after hand, all of it is worked off.
    let mut done = second.len();
    assert!(other.run(other.queue.finish_all(second)).unwrap().iter().all(AttemptEnd::is_accepted));
    while !first.is_empty() {
        done += first.len();
        assert!(one.run(one.queue.finish_all(first)).unwrap().iter().all(AttemptEnd::is_accepted));
        first = one.claim(1000);
    }
    assert_eq!(done, 1000);
    assert!(one.run(long.finish().into_future()).unwrap().is_accepted());
}
