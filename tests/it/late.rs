//! A grant that lands too late to be used leaves nothing behind that no sweep would find.

use crate::{
    common::{key, noon, request},
    processes::{World, granted, settle, start},
};
use leasehold::sweep::SweepOptions;
use leasehold_testkit::{Answer, Fault, Op, Rule, TestClock};
use std::{pin::pin, time::Duration};

/// From the middle of an hour until that hour has been swept.
const SUSPENDED: Duration = Duration::from_secs(64 * 60);

/// One process files the hour and is suspended just as it sends its record; the sweeper of another deletes the entry,
/// as there is no lease; the first wakes up, and its record lands.
async fn lands_late(fault: Fault, request_id: Option<&str>, exists: bool) {
    let world = World::new();
    let suspended = world.process_on(&TestClock::at(noon())).await;
    let sweeping = world.process().await;
    if exists {
        let before = granted(suspended.leases.acquire(&key("a"), &request()).await);
        suspended.leases.release(&before).await.unwrap();
    }
    let asked = match request_id {
        Some(id) => request().request_id(id),
        None => request(),
    };
    world.objects.faults().script(Rule::once(Op::Put, fault).on("meta/a"));
    let name = key("a");
    {
        let mut acquiring = pin!(suspended.leases.acquire(&name, &asked));
        start(&mut acquiring).await;
        assert!(!world.entries("a").is_empty(), "the entry comes first");
        world.clock.advance(SUSPENDED);
        sweeping.store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
        assert!(world.entries("a").is_empty(), "there was no lease");
        suspended.clock.advance(SUSPENDED);
        let mut answer = None;
        for _ in 0..1000 {
            if let std::task::Poll::Ready(done) = futures_util::poll!(acquiring.as_mut()) {
                answer = Some(done);
                break;
            }
            tokio::task::yield_now().await;
            world.clock.advance(Duration::from_millis(50));
            suspended.clock.advance(Duration::from_millis(50));
        }
        assert!(answer.expect("an answer").is_err(), "it is over");
    }
    for _ in 0..100 {
        settle().await;
        world.clock.advance(Duration::from_millis(50));
        suspended.clock.advance(Duration::from_millis(50));
    }
    world.objects.object("default/meta/a.pb").expect("it landed");
    // Nothing is left for the next operation to clear.
    let looking = world.process().await;
    assert_eq!(looking.leases.get(&key("a")).await.unwrap().holder, None);
    let cleared = looking.store.stats().leases_cleared_by_operation;
    assert!(cleared == 0 || !world.entries("a").is_empty(), "a lease without an entry");
}

#[tokio::test]
async fn a_grant_that_lands_after_its_hour_was_swept_is_freed_by_its_writer() {
    for request_id in [None, Some("job-7")] {
        for exists in [true, false] {
            lands_late(Fault::Delay(SUSPENDED), request_id, exists).await;
        }
    }
}

#[tokio::test]
async fn also_where_its_writer_has_to_find_out_that_it_landed() {
    for request_id in [None, Some("job-7")] {
        for exists in [true, false] {
            lands_late(Fault::Late(SUSPENDED, Answer::Hang), request_id, exists).await;
        }
    }
}
