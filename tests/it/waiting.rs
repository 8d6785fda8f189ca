//! Who waits is served in turn, costs nothing while nothing happens, and leaves no trace when it goes.

use crate::common::{Memory, calm, granted, key, request};
use leasehold::{
    Clock, Leases, Settings,
    lease::{Acquired, Grant, Held, Renewed, Request},
    store::{AnswerKind, RequestKind},
    sweep::SweepOptions,
    testkit::{Answer, Fault, Op, Rule},
};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

type Waiting = JoinHandle<leasehold::Result<Acquired>>;

/// Waits in a task of its own.
fn wait(leases: &Leases, asked: Request, at_most: Duration) -> Waiting {
    let leases = leases.clone();
    tokio::spawn(async move { leases.acquire_within(&key("a"), &asked, at_most).await })
}

fn held(acquired: leasehold::Result<Acquired>) -> Held {
    match acquired.unwrap() {
        Acquired::Held(held) => held,
        Acquired::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Runs a future as far as it goes now.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

async fn acquire(leases: &Leases) -> Grant {
    granted(leases.acquire(&key("a"), &request()).await)
}

async fn renew(leases: &Leases, grant: &Grant) -> Grant {
    match leases.renew(grant).await.unwrap() {
        Renewed::Renewed(grant) => grant,
        Renewed::Lost(loss) => panic!("{loss:?}"),
    }
}

#[tokio::test]
async fn those_who_wait_in_a_process_are_served_in_their_order() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mut holder = acquire(&leases).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..5 {
        let (leases, served) = (leases.clone(), Arc::clone(&served));
        waiting.push(tokio::spawn(async move {
            let grant = granted(leases.acquire_within(&key("a"), &request(), LONG).await);
            served.lock().unwrap().push(number);
            grant
        }));
        calm().await;
    }
    for task in waiting {
        leases.release(&holder).await.unwrap();
        let next = task.await.unwrap();
        assert!(next.fence() > holder.fence());
        assert!(next.is_valid());
        holder = next;
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_waiter_that_is_dropped_or_out_of_time_is_passed_over_and_the_next_one_polls() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let theirs = acquire(&others).await;
    let dropped = wait(&leases, request(), LONG);
    calm().await;
    let late = wait(&leases, request(), 2 * SECOND);
    calm().await;
    let patient = wait(&leases, request(), LONG);
    memory.pass(SECOND).await;
    dropped.abort();
    memory.pass(2 * SECOND).await;
    assert_eq!(held(late.await.unwrap()).by.unwrap().lease_id, theirs.lease_id());
    others.release(&theirs).await.unwrap();
    memory.pass(2 * SECOND).await;
    assert!(patient.is_finished(), "nobody polls");
    let grant = granted(patient.await.unwrap());
    leases.release(&grant).await.unwrap();
    assert_eq!(leases.peek(&key("a")).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_waiter_that_gave_up_during_a_release_that_came_too_late_does_not_stop_the_others_from_polling() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let mine = acquire(&leases).await;
    let first = wait(&leases, request(), LONG);
    calm().await;
    let second = wait(&leases, request(), LONG);
    calm().await;
    let third = wait(&leases, request(), LONG);
    calm().await;
    // Somebody releases it by its id, and takes it.
    others.release(&mine).await.unwrap();
    let theirs = acquire(&others).await;
    // The release that comes too late has the first one in hand while that one goes.
    memory.store.faults().script(Rule::once(Op::Put, Fault::Delay(SECOND)));
    let releasing = tokio::spawn({
        let (leases, mine) = (leases.clone(), mine.clone());
        async move { leases.release(&mine).await }
    });
    calm().await;
    first.abort();
    memory.pass(SECOND).await;
    releasing.await.unwrap().unwrap();
    second.abort();
    calm().await;
    others.release(&theirs).await.unwrap();
    memory.pass(5 * SECOND).await;
    assert!(third.is_finished(), "nobody polls");
    granted(third.await.unwrap());
}

#[tokio::test]
async fn a_waiter_wakes_when_the_lease_has_ended_and_the_skew_is_over_and_not_before() {
    let memory = Memory::new();
    let mut settings = Settings::default();
    (settings.poll_interval, settings.max_poll_interval) = (LONG, LONG);
    let store = memory.builder(1).settings(settings).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let others = memory.process(2).await;
    for holder in [&others, &leases] {
        let theirs = acquire(holder).await;
        let waiting = wait(&leases, request(), LONG);
        calm().await;
        let before = store.requests();
        memory.pass(theirs.expires_at().plus(SECOND).since(theirs.expires_at().minus(theirs.ttl()))).await;
        assert!(!waiting.is_finished(), "the skew is not over");
        assert_eq!(store.requests().since(&before).total(), 0, "it looks only when there is something to see");
        memory.pass(Duration::from_millis(1)).await;
        assert!(waiting.is_finished(), "it sleeps too long");
        let grant = granted(waiting.await.unwrap());
        leases.release(&grant).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_goes_by_the_expiry_of_a_lease_that_is_renewed_in_its_own_process() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let mut mine = acquire(&leases).await;
    let waiting = wait(&leases, request(), LONG);
    calm().await;
    let before = store.requests();
    for _ in 0..10 {
        memory.pass(10 * SECOND).await;
        mine = renew(&leases, &mine).await;
    }
    assert_eq!(store.requests().since(&before).total(), 10, "renewals only");
    memory.pass(31 * SECOND).await;
    assert!(!waiting.is_finished());
    memory.pass(Duration::from_millis(1)).await;
    granted(waiting.await.unwrap());
}

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
    let report = store.sweep_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!(report.leases_cleared, 1, "{report:?}");
    assert!(!leases.peek(&key("a")).await.unwrap().waited_for);
}

#[tokio::test]
async fn who_waits_for_another_process_looks_once_or_twice_in_an_interval_that_grows_by_half() {
    let memory = Memory::new();
    let mut settings = Settings::default();
    (settings.poll_interval, settings.max_poll_interval) = (SECOND, 10 * SECOND);
    let store = memory.builder(2).settings(settings).open().await.unwrap();
    granted(memory.process(1).await.acquire(&key("a"), &Request::new(LONG).unwrap()).await);
    let _waiting = wait(&store.leases("default").unwrap(), request(), LONG);
    calm().await;
    // First at most 1.5, 2.25 and 3.4 s, and at least half of each; in the end 5 to 10.
    for (time, least, most) in [(7150, 3, 5), (60_000, 6, 14), (100_000, 10, 20)] {
        let before = store.requests();
        memory.pass(Duration::from_millis(time)).await;
        let looks = store.requests().since(&before).of(RequestKind::Get);
        assert!((least..=most).contains(&looks), "{looks} looks in {time} ms");
    }
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
    // Before the one that asked has looked, somebody else takes it and keeps passing it on.
    let grant = acquire(&third).await;
    assert!(!third.peek(&key("a")).await.unwrap().waited_for);
    let grant = marked(&memory, &third, grant).await;
    assert_eq!(turns(&third, grant, 100).await, 16);
    memory.pass(2 * SECOND).await;
    granted(theirs.await.unwrap());
}

#[tokio::test]
async fn whoever_polls_next_in_a_process_keeps_to_the_interval_that_its_mark_has_promised() {
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
async fn a_hand_over_that_nobody_took_in_time_is_not_returned_as_a_grant() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let (name, asked) = (key("a"), request());
    let mut waiting = Box::pin(leases.acquire_within(&name, &asked, LONG));
    assert!(poll_once(&mut waiting).await.is_none());
    leases.release(&mine).await.unwrap();
    memory.clock.advance(30 * SECOND);
    assert!(poll_once(&mut waiting).await.is_none(), "it was handed over too long ago");
    let waiting = async {
        loop {
            if let Some(done) = poll_once(&mut waiting).await {
                return done;
            }
            memory.pass(SECOND).await;
        }
    };
    let grant = granted(waiting.await);
    assert!(grant.is_valid());
    assert!(grant.time_left() > 28 * SECOND, "{:?}", grant.time_left());
}

/// Like the one above, but the hand-over overtakes a waiter that was about to look for itself.
#[tokio::test]
async fn a_hand_over_that_overtook_a_look_and_then_sat_for_too_long_is_not_returned_as_a_grant() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let theirs = acquire(&others).await;
    // Releasing what this process has not seen begins with a read.
    memory.store.faults().script(Rule::once(Op::Get, Fault::Delay(SECOND)));
    let releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&theirs).await }
    });
    calm().await;
    let (name, asked) = (key("a"), request());
    let mut waiting = Box::pin(leases.acquire_within(&name, &asked, LONG));
    assert!(poll_once(&mut waiting).await.is_none());
    memory.pass(SECOND).await;
    releasing.await.unwrap().unwrap();
    assert!(leases.peek(&key("a")).await.unwrap().holder.is_some(), "it was handed over");
    memory.clock.advance(30 * SECOND);
    if let Some(done) = poll_once(&mut waiting).await {
        let grant = granted(done);
        assert!(grant.is_valid(), "it was handed over too long ago");
    }
}

#[tokio::test]
async fn a_lease_handed_to_a_waiter_that_gave_up_at_that_moment_is_freed_again() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let (name, asked) = (key("a"), request());
    let mut waiting = Box::pin(leases.acquire_within(&name, &asked, LONG));
    assert!(poll_once(&mut waiting).await.is_none());
    leases.release(&mine).await.unwrap();
    assert!(leases.peek(&key("a")).await.unwrap().holder.is_some());
    drop(waiting);
    calm().await;
    assert_eq!(leases.peek(&key("a")).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_waiter_that_gives_up_while_the_lease_is_on_its_way_to_it_leaves_it_to_the_next() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let first = wait(&leases, request(), LONG);
    calm().await;
    let second = wait(&leases, request(), LONG);
    calm().await;
    memory.store.faults().script(Rule::once(Op::Put, Fault::Delay(SECOND)));
    let releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&mine).await }
    });
    calm().await;
    first.abort();
    memory.pass(SECOND).await;
    releasing.await.unwrap().unwrap();
    calm().await;
    assert!(second.is_finished());
    granted(second.await.unwrap());
}

#[tokio::test]
async fn a_lease_handed_to_a_waiter_with_a_request_id_that_gave_up_is_left_to_be_asked_for_again() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let (name, asked) = (key("a"), request().request_id("job-7").unwrap());
    let mut waiting = Box::pin(leases.acquire_within(&name, &asked, LONG));
    assert!(poll_once(&mut waiting).await.is_none());
    leases.release(&mine).await.unwrap();
    drop(waiting);
    calm().await;
    let theirs = leases.peek(&name).await.unwrap().holder.expect("kept");
    let again = granted(leases.acquire(&name, &asked).await);
    assert_eq!(again.lease_id(), theirs.lease_id);
}

#[tokio::test]
async fn waiting_with_the_request_id_of_a_live_lease_returns_that_lease_at_once() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let asked = request().request_id("job-7").unwrap();
    let mine = granted(leases.acquire(&key("a"), &asked).await);
    let queue = wait(&leases, request(), LONG);
    calm().await;
    for process in [&leases, &others] {
        let again = wait(process, asked.clone(), LONG);
        calm().await;
        assert!(again.is_finished(), "it waits for itself");
        let again = granted(again.await.unwrap());
        assert_eq!((again.lease_id(), again.fence()), (mine.lease_id(), mine.fence()));
    }
    leases.release(&mine).await.unwrap();
    granted(queue.await.unwrap());
}

#[tokio::test]
async fn waiting_over_a_store_that_is_down_for_a_while_ends_well() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let theirs = acquire(&others).await;
    let waiting = wait(&leases, request(), LONG);
    memory.pass(SECOND).await;
    others.release(&theirs).await.unwrap();
    for op in [Op::Get, Op::Put] {
        memory.store.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(503))));
    }
    memory.pass(120 * SECOND).await;
    assert!(!waiting.is_finished());
    memory.store.faults().clear();
    memory.pass(10 * SECOND).await;
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn whoever_waits_in_vain_hears_who_holds_the_key_wherever_it_stood_in_line() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    for holder in [&others, &leases] {
        let theirs = acquire(holder).await;
        let first = wait(&leases, request(), 5 * SECOND);
        calm().await;
        let second = wait(&leases, request(), 4 * SECOND);
        memory.pass(5 * SECOND).await;
        for waiting in [first, second] {
            assert!(waiting.is_finished(), "its time is up");
            let told = held(waiting.await.unwrap());
            let by = told.by.expect("somebody holds it");
            assert_eq!((by.lease_id, by.fence), (theirs.lease_id(), theirs.fence()));
            assert!(told.retry_after > Duration::ZERO);
        }
        holder.release(&theirs).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_survives_a_hand_over_whose_fate_was_never_found_out() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let theirs = acquire(&others).await;
    memory.store.faults().script(Rule::once(Op::Get, Fault::Delay(SECOND)));
    let releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&theirs).await }
    });
    calm().await;
    // About to look for itself when the release takes it out of the line.
    let waiting = wait(&leases, request(), LONG);
    calm().await;
    memory.store.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(403))).times(2));
    memory.store.faults().script(Rule::once(Op::Get, Fault::Refuse(Answer::Status(403))).after(1).times(1));
    memory.pass(SECOND).await;
    releasing.await.unwrap().unwrap_err();
    memory.store.faults().clear();
    memory.pass(60 * SECOND).await;
    granted(waiting.await.unwrap());
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
    let asked = request().request_id("job-7").unwrap();
    assert_eq!(held(leases.acquire(&key("a"), &asked).await).by, None, "a new request stays back as well");
    let elsewhere = granted(others.acquire(&key("a"), &asked).await);
    let again = granted(leases.acquire(&key("a"), &asked).await);
    assert_eq!(again.lease_id(), elsewhere.lease_id());
}

#[tokio::test]
async fn a_release_of_a_guard_that_is_not_waited_for_is_carried_out_all_the_same() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let guard = leases.guard(acquire(&leases).await, None);
    // Another operation of the process is at work on the key, so that the release has to wait.
    memory.store.faults().script(Rule::once(Op::Get, Fault::Delay(SECOND)));
    let getting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.get(&key("a")).await }
    });
    calm().await;
    let mut releasing = Box::pin(guard.release());
    assert!(poll_once(&mut releasing).await.is_none());
    drop(releasing);
    memory.pass(SECOND).await;
    getting.await.unwrap().unwrap();
    assert_eq!(leases.peek(&key("a")).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_release_that_is_dropped_before_it_wrote_gives_the_waiter_its_place_back() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    // Into another hour, so that an index entry has to be written first.
    let first = wait(&leases, Request::new(Duration::from_secs(3000)).unwrap(), LONG);
    calm().await;
    let second = wait(&leases, request(), LONG);
    calm().await;
    memory.store.faults().script(Rule::once(Op::Put, Fault::Delay(SECOND)).on(".lease-index"));
    let mut releasing = Box::pin(leases.release(&mine));
    assert!(poll_once(&mut releasing).await.is_none());
    drop(releasing);
    calm().await;
    leases.release(&mine).await.unwrap();
    calm().await;
    assert!(first.is_finished() && !second.is_finished(), "out of turn");
    second.abort();
}
