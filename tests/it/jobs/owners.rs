//! The owner of a shard commits without reading; others leave it what is young, and nothing waits for an owner that has gone.

use super::process::{World, numbers};
use leasehold::{
    job::AttemptEnd,
    store::RequestKind::{Get, Put},
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_owner_commits_without_reading_and_guests_read_first_and_write_once() {
    let world = World::new();
    let (owner, guest) = (world.process(1), world.process(2));
    owner.enqueue(60);
    // Each has its session by now, and the ledger has both.
    let (mut ours, mut theirs) = (owner.claim(5), guest.claim(5));
    for _ in 0..4 {
        let before = guest.store.requests();
        let ends = guest.run(guest.queue.finish_all(theirs)).unwrap();
        assert!(ends.iter().all(AttemptEnd::is_accepted));
        theirs = guest.claim(5);
        let made = guest.store.requests().since(&before);
        assert_eq!(made.of(Put), 2, "none of its writes comes too late: {made:?}");
        assert!(made.of(Get) >= 2, "{made:?}");
        // It meets the guest's commits: one write that comes too late and one read, however many they were.
        let ends = owner.run(owner.queue.finish_all(ours)).unwrap();
        assert!(ends.iter().all(AttemptEnd::is_accepted));
        let before = owner.store.requests();
        ours = owner.claim(5);
        let made = owner.store.requests().since(&before);
        assert_eq!((made.of(Put), made.of(Get)), (1, 0), "it reads nothing: {made:?}");
    }
}

#[test]
fn a_guest_that_can_wait_writes_nothing_while_the_owner_keeps_up() {
    let world = World::new();
    let (owner, guest) = (world.process(1), world.process(2));
    owner.enqueue(2);
    let mut hand = owner.claim(1);
    let mut waiting = Box::pin(guest.queue.claim(10).within(Duration::from_secs(60)).into_future());
    let before = guest.store.requests();
    for _ in 0..30 {
        // What is enqueued is worked off within half a second.
        owner.enqueue(1);
        guest.run(async {
            tokio::select! {
                biased;
                taken = &mut waiting => panic!("the owner keeps up: {taken:?}"),
                () = world.0.pass(SECOND / 2) => {}
            }
        });
        let ends = owner.run(owner.queue.finish_all(hand)).unwrap();
        assert!(ends.iter().all(AttemptEnd::is_accepted));
        hand = owner.claim(10);
        assert!(!hand.is_empty());
    }
    let made = guest.store.requests().since(&before);
    assert_eq!(made.of(Put), 0, "{made:?}");
    // The owner does nothing any more: what comes now waits for a second.
    owner.enqueue(1);
    let began = world.0.clock_now();
    let taken = guest.run_in_time(&world, waiting).unwrap();
    let waited = world.0.clock_now().since(began);
    assert_eq!(taken.len(), 1);
    assert!((SECOND..3 * SECOND).contains(&waited), "{waited:?}");
}

#[test]
fn a_claim_that_does_not_wait_takes_what_is_there_whoever_owns_the_shard() {
    let world = World::new();
    let (owner, guest) = (world.process(1), world.process(2));
    owner.enqueue(3);
    let _ours = owner.claim(1);
    let theirs = guest.claim(5);
    assert_eq!(theirs.len(), 2);
    // With less than a second to wait there is no time to be polite either.
    owner.enqueue(1);
    let soon = guest.queue.claim(5).within(SECOND / 2).into_future();
    assert_eq!(guest.run_in_time(&world, soon).unwrap().len(), 1);
}

#[test]
fn a_guest_that_has_won_yields_to_the_owner_for_up_to_a_second() {
    let world = World::new();
    let (owner, guest) = (world.process(1), world.process(2));
    owner.enqueue(50);
    guest.pass(&world, 3 * SECOND);
    let mut hand = owner.claim(1);
    let take = || {
        let began = world.0.clock_now();
        let taken = guest.run_in_time(&world, guest.queue.claim(2).within(20 * SECOND).into_future()).unwrap();
        assert_eq!(taken.len(), 2);
        (taken, world.0.clock_now().since(began))
    };
    let (_first, waited) = take();
    assert!(waited < SECOND / 2, "all of them wait for more than a second: {waited:?}");
    let (_second, waited) = take();
    assert!(waited >= SECOND * 9 / 10, "nobody has committed since it won: {waited:?}");
    assert!(owner.run(hand.remove(0).finish().into_future()).unwrap().is_accepted());
    let (_third, waited) = take();
    assert!(waited < SECOND / 2, "the owner had its turn: {waited:?}");
}

#[test]
fn with_two_shards_two_processes_have_one_each() {
    let world = World::new();
    let (one, other) = (world.process_with(1, |jobs| jobs.shards = 2), world.process_with(2, |jobs| jobs.shards = 2));
    let mut conflicts = 0;
    let mut hands = [Vec::new(), Vec::new()];
    for _ in 0..20 {
        // One call for each shard.
        one.enqueue(4);
        one.enqueue(4);
        for (process, hand) in [&one, &other].into_iter().zip(&mut hands) {
            let ends = process.run_in_time(&world, process.queue.finish_all(std::mem::take(hand))).unwrap();
            assert!(ends.iter().all(AttemptEnd::is_accepted));
            let before = process.store.requests();
            let wait = 5 * SECOND;
            *hand = process.run_in_time(&world, process.queue.claim(4).within(wait).into_future()).unwrap();
            assert_eq!(hand.len(), 4);
            conflicts += process.store.requests().since(&before).of(Put).saturating_sub(1);
        }
    }
    // The first claims make a session each.
    assert!(conflicts <= 6, "{conflicts} writes more than one for each claim");
    let _ = numbers(&hands[0]);
}
