//! Turns between processes: a waiting process asks for one by a mark in the record, and the process that holds the key gives
//! it up.

use crate::{
    common::{Memory, SECOND, calm, granted, key, request},
    waiting::{LONG, acquire, held, wait},
};
use leasehold::{
    Clock, Leases, Settings,
    lease::Grant,
    store::{AnswerKind, RequestKind},
    sweep::SweepOptions,
};
use leasehold_testkit::{Fault, Op, Rule};
use std::time::Duration;

/// Makes a poller of `waiting` put its mark into the record while `holder` passes the lease from hand to hand.
async fn marked(memory: &Memory, holder: &Leases, mut grant: Grant) -> Grant {
    for _ in 0..50 {
        if holder.peek(&key("a")).await.unwrap().waited_for {
            return grant;
        }
        let next = wait(holder, request(), LONG);
        calm().await;
        holder.release(&grant).await.unwrap();
        grant = granted(next.await.unwrap());
        memory.pass(SECOND).await;
    }
    panic!("no mark");
}

/// How often a process passes the lease on to its own before it lets go, and the last of its grants.
async fn turns(leases: &Leases, mut grant: Grant, at_most: usize) -> usize {
    let key = key("a");
    for turn in 0..at_most {
        let waiting = wait(leases, request(), LONG);
        calm().await;
        leases.release(&grant).await.unwrap();
        calm().await;
        if !waiting.is_finished() {
            waiting.abort();
            calm().await;
            assert_eq!(leases.peek(&key).await.unwrap().holder, None, "let go and still held");
            return turn;
        }
        grant = granted(waiting.await.unwrap());
    }
    leases.release(&grant).await.unwrap();
    at_most
}

#[tokio::test]
async fn with_nobody_else_waiting_a_process_passes_the_lease_on_without_limit() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let grant = acquire(&leases).await;
    assert_eq!(turns(&leases, grant, 100).await, 100);
}

#[tokio::test]
async fn with_a_mark_a_process_passes_the_lease_on_sixteen_times_and_then_stays_back() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let grant = acquire(&leases).await;
    let theirs = wait(&others, request(), LONG);
    calm().await;
    let grant = marked(&memory, &leases, grant).await;
    assert_eq!(turns(&leases, grant, 100).await, 16);
    let back = held(leases.acquire(&key("a"), &request()).await);
    assert_eq!(back.by, None, "it is somebody else's turn");
    assert!(back.retry_after <= 10 * SECOND && back.retry_after > Duration::ZERO, "{back:?}");
    // The other one finds it free while this one stays back.
    memory.pass(back.retry_after - Duration::from_millis(1)).await;
    assert!(theirs.is_finished(), "its turn has passed");
    granted(theirs.await.unwrap());
    memory.pass(Duration::from_millis(1)).await;
    assert!(held(leases.acquire(&key("a"), &request()).await).by.is_some());
}

#[tokio::test]
async fn a_mark_that_came_too_late_is_tried_again_at_once() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let store = memory.builder(2).open().await.unwrap();
    let (slow, step) = (Duration::from_millis(1500), Duration::from_millis(50));
    let mut grant = acquire(&leases).await;
    let _theirs = wait(&store.leases("default").unwrap(), request(), LONG);
    // The key changes hands once a second, so a mark that is under way for longer meets another record.
    for _ in 0..20 * 20 {
        if store.requests().answered(AnswerKind::Conflict) > 0 {
            assert!(!leases.peek(&key("a")).await.unwrap().waited_for);
            memory.pass(slow).await;
            assert!(leases.peek(&key("a")).await.unwrap().waited_for, "it waits for its next look");
            return;
        }
        if memory.clock.wall().as_millis() % 1000 == 0 {
            memory.store.faults().clear();
            let next = wait(&leases, request(), LONG);
            calm().await;
            leases.release(&grant).await.unwrap();
            grant = granted(next.await.unwrap());
            memory.store.faults().script(Rule::always(Op::Put, Fault::Delay(slow)).on("meta/a"));
        }
        memory.pass(step).await;
    }
    panic!("no mark came too late");
}

#[tokio::test]
async fn the_mark_of_a_waiter_that_has_died_costs_one_pause() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let grant = acquire(&leases).await;
    let dead = wait(&others, request(), LONG);
    calm().await;
    let grant = marked(&memory, &leases, grant).await;
    dead.abort();
    calm().await;
    assert_eq!(turns(&leases, grant, 100).await, 16);
    let back = held(leases.acquire(&key("a"), &request()).await).retry_after;
    assert!(back <= 10 * SECOND, "{back:?}");
    memory.pass(back).await;
    let grant = acquire(&leases).await;
    assert!(!leases.peek(&key("a")).await.unwrap().waited_for);
    assert_eq!(turns(&leases, grant, 100).await, 100);
}

#[tokio::test]
async fn a_mark_goes_with_the_lease_that_a_sweep_clears() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let (leases, others) = (store.leases("default").unwrap(), memory.process(2).await);
    let grant = acquire(&leases).await;
    let dead = wait(&others, request(), LONG);
    calm().await;
    marked(&memory, &leases, grant).await;
    dead.abort();
    calm().await;
    memory.clock.advance(Duration::from_secs(2 * 3600));
    let report = store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!(report.of("lease").cleared, 1, "{report:?}");
    assert!(!leases.peek(&key("a")).await.unwrap().waited_for);
}

#[tokio::test]
async fn a_stay_back_is_never_longer_than_ten_seconds() {
    let memory = Memory::new();
    let mut settings = Settings::default();
    (settings.poll_interval, settings.max_poll_interval) = (20 * SECOND, 20 * SECOND);
    let slow = memory.builder(2).settings(settings).open().await.unwrap().leases("default").unwrap();
    let leases = memory.process(1).await;
    let mut grant = acquire(&leases).await;
    let theirs = wait(&slow, request(), LONG);
    calm().await;
    while !leases.peek(&key("a")).await.unwrap().waited_for {
        let next = wait(&leases, request(), LONG);
        calm().await;
        leases.release(&grant).await.unwrap();
        grant = granted(next.await.unwrap());
        memory.pass(20 * SECOND).await;
    }
    leases.release(&grant).await.unwrap();
    let back = held(leases.acquire(&key("a"), &request()).await);
    assert_eq!((back.by, back.retry_after), (None, 10 * SECOND));
    theirs.abort();
}

#[tokio::test]
async fn a_waiter_whose_turn_went_to_a_third_process_asks_again() {
    let memory = Memory::new();
    let (leases, others, third) = (memory.process(1).await, memory.process(2).await, memory.process(3).await);
    let grant = acquire(&leases).await;
    let theirs = wait(&others, request(), LONG);
    calm().await;
    let grant = marked(&memory, &leases, grant).await;
    leases.release(&grant).await.unwrap();
    // Before the one that asked has looked, another process takes it and keeps passing it on.
    let grant = acquire(&third).await;
    assert!(!third.peek(&key("a")).await.unwrap().waited_for);
    let grant = marked(&memory, &third, grant).await;
    assert_eq!(turns(&third, grant, 100).await, 16);
    memory.pass(2 * SECOND).await;
    granted(theirs.await.unwrap());
}

#[tokio::test]
async fn the_next_poller_of_a_process_keeps_to_the_interval_its_mark_promised() {
    for extra in 0..8 {
        let memory = Memory::new();
        let (leases, others) = (memory.process(1).await, memory.process(2).await);
        let mut grant = acquire(&leases).await;
        let first = wait(&others, request(), LONG);
        calm().await;
        // Fast changes of hands, so that the interval in the mark is a short one.
        while !leases.peek(&key("a")).await.unwrap().waited_for {
            leases.release(&grant).await.unwrap();
            grant = acquire(&leases).await;
            memory.pass(Duration::from_millis(50)).await;
        }
        let second = wait(&others, request(), LONG);
        calm().await;
        first.abort();
        // The holder is slow from now on, and the mark stands.
        memory.pass(20 * SECOND + extra * Duration::from_millis(250)).await;
        assert!(leases.peek(&key("a")).await.unwrap().waited_for);
        leases.release(&grant).await.unwrap();
        let back = held(leases.acquire(&key("a"), &request()).await);
        assert_eq!(back.by, None);
        memory.pass(back.retry_after).await;
        assert!(second.is_finished(), "its turn of {:?} has passed", back.retry_after);
        granted(second.await.unwrap());
    }
}

#[tokio::test]
async fn a_request_that_was_granted_is_granted_again_while_its_process_stays_back() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let grant = acquire(&leases).await;
    let theirs = wait(&others, request(), LONG);
    calm().await;
    let grant = marked(&memory, &leases, grant).await;
    theirs.abort();
    leases.release(&grant).await.unwrap();
    assert_eq!(held(leases.acquire(&key("a"), &request()).await).by, None);
    let asked = request().request_id("job-7");
    assert_eq!(held(leases.acquire(&key("a"), &asked).await).by, None, "a new request stays back as well");
    let elsewhere = granted(others.acquire(&key("a"), &asked).await);
    let again = granted(leases.acquire(&key("a"), &asked).await);
    assert_eq!(again.lease_id(), elsewhere.lease_id());
}

#[tokio::test]
async fn the_mark_of_another_process_does_not_set_the_pace_of_who_waits() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let grant = acquire(&leases).await;
    let _eager = wait(&others, request(), LONG);
    calm().await;
    // The holder keeps it from now on, and the mark stands.
    let _guard = leases.guard(marked(&memory, &leases, grant).await, None);
    let mut settings = Settings::default();
    (settings.poll_interval, settings.max_poll_interval) = (10 * SECOND, 10 * SECOND);
    let store = memory.builder(3).settings(settings).open().await.unwrap();
    let _slow = wait(&store.leases("default").unwrap(), request(), LONG);
    calm().await;
    let before = store.requests();
    memory.pass(100 * SECOND).await;
    let looks = store.requests().since(&before).of(RequestKind::Get);
    assert!((10..=20).contains(&looks), "{looks} looks");
    assert!(leases.peek(&key("a")).await.unwrap().waited_for);
}
