//! Who waits is served in turn, costs nothing while nothing happens, and leaves no trace when it goes.

use crate::common::{Memory, SECOND, calm, granted, key, request};
use leasehold::{
    Clock, Leases, Settings,
    lease::{Acquired, Grant, Held, Renewed, Request},
    store::RequestKind,
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};
use tokio::task::JoinHandle;

pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) type Waiting = JoinHandle<leasehold::Result<Acquired>>;

/// Waits in a task of its own.
pub(crate) fn wait(leases: &Leases, asked: Request, at_most: Duration) -> Waiting {
    let leases = leases.clone();
    tokio::spawn(async move { leases.acquire_within(&key("a"), &asked, at_most).await })
}

pub(crate) fn held(acquired: leasehold::Result<Acquired>) -> Held {
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

pub(crate) async fn acquire(leases: &Leases) -> Grant {
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
async fn a_waiter_dropped_or_out_of_time_is_passed_over_and_the_next_one_polls() {
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
async fn a_waiter_that_gave_up_during_a_late_release_does_not_stop_the_others() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let mine = acquire(&leases).await;
    let first = wait(&leases, request(), LONG);
    calm().await;
    let second = wait(&leases, request(), LONG);
    calm().await;
    let third = wait(&leases, request(), LONG);
    calm().await;
    // Another process releases it by its id, and takes it.
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
        memory.pass(theirs.ttl() + SECOND).await;
        assert!(!waiting.is_finished(), "the skew is not over");
        assert_eq!(store.requests().since(&before).total(), 0, "it looks only when there is something to see");
        // Not all who wait wake at once: each up to an interval later than it could.
        memory.pass(2 * LONG).await;
        assert!(waiting.is_finished(), "it sleeps too long");
        let grant = granted(waiting.await.unwrap());
        leases.release(&grant).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_goes_by_the_expiry_of_a_lease_that_is_renewed_in_its_own_process() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mut mine = acquire(&leases).await;
    let waiting = wait(&leases, request(), LONG);
    calm().await;
    for _ in 0..10 {
        memory.pass(10 * SECOND).await;
        mine = renew(&leases, &mine).await;
    }
    memory.pass(31 * SECOND).await;
    assert!(!waiting.is_finished());
    memory.pass(10 * SECOND).await;
    assert!(waiting.is_finished(), "it sleeps too long");
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn a_waiter_behind_a_guard_of_its_own_process_sends_no_requests() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    let guard = leases.guard(acquire(&leases).await, None);
    let waiting = wait(&leases, request(), LONG);
    calm().await;
    let before = store.requests();
    memory.pass(100 * SECOND).await;
    assert_eq!(store.requests().since(&before).total(), 10, "renewals only");
    guard.release().await.unwrap();
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn so_does_who_waits_for_what_its_process_has_from_another_by_a_request_id() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let asked = request().request_id("job-7");
    granted(others.acquire(&key("a"), &asked).await);
    let _guard = leases.guard(granted(leases.acquire(&key("a"), &asked).await), None);
    let _waiting = wait(&leases, request(), LONG);
    calm().await;
    let before = store.requests();
    memory.pass(100 * SECOND).await;
    assert_eq!(store.requests().since(&before).total(), 10, "renewals only");
}

#[tokio::test]
async fn a_waiter_sees_a_lease_of_its_process_given_back_through_another() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let mine = granted(leases.acquire(&key("a"), &Request::new(LONG)).await);
    let waiting = wait(&leases, request(), LONG);
    memory.pass(10 * SECOND).await;
    others.release(&mine).await.unwrap();
    memory.pass(2 * SECOND).await;
    assert!(waiting.is_finished(), "it looks at what it knows only");
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn who_waits_for_a_lease_that_a_guard_has_lost_looks_for_itself() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let long = granted(leases.acquire(&key("a"), &Request::new(LONG)).await);
    let guard = leases.guard(long.clone(), Some(5 * SECOND));
    let waiting = wait(&leases, request(), LONG);
    memory.pass(10 * SECOND).await;
    assert!(!guard.is_valid(), "its time is up");
    others.release(&long).await.unwrap();
    // Another operation reads it, and the waiter is told.
    leases.get(&key("a")).await.unwrap();
    memory.pass(2 * SECOND).await;
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn a_hand_over_repeated_elsewhere_is_believed_in_no_longer_than_it_lasts() {
    let memory = Memory::new();
    let (leases, others) = (memory.process(1).await, memory.process(2).await);
    let mine = acquire(&leases).await;
    let asked = request().request_id("job-7");
    let waiting = wait(&leases, asked.clone(), LONG);
    calm().await;
    // It lands, its answer does not come, and the caller that released goes away.
    memory.store.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)).on("meta/a"));
    let releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&mine).await }
    });
    calm().await;
    let again = granted(others.acquire(&key("a"), &asked).await);
    memory.pass(2 * SECOND).await;
    releasing.abort();
    memory.pass(10 * SECOND).await;
    let theirs = granted(waiting.await.unwrap());
    assert_eq!((theirs.lease_id(), theirs.fence()), (again.lease_id(), again.fence()));
    let left = leases.peek(&key("a")).await.unwrap().holder.unwrap().expires_at.since(memory.clock.wall());
    memory.clock.step_wall(-60_000);
    assert!(theirs.time_left() <= left, "{:?} of {left:?}", theirs.time_left());
}

#[tokio::test]
async fn a_waiter_for_another_process_looks_once_or_twice_in_a_growing_interval() {
    let memory = Memory::new();
    let mut settings = Settings::default();
    (settings.poll_interval, settings.max_poll_interval) = (SECOND, 10 * SECOND);
    let store = memory.builder(2).settings(settings).open().await.unwrap();
    granted(memory.process(1).await.acquire(&key("a"), &Request::new(LONG)).await);
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
async fn a_hand_over_that_overtook_a_read_and_sat_too_long_is_not_a_grant() {
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
async fn a_waiter_that_gives_up_during_its_hand_over_leaves_the_lease_to_the_next() {
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
async fn a_lease_handed_to_a_gone_waiter_with_a_request_id_can_be_asked_for_again() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let (name, asked) = (key("a"), request().request_id("job-7"));
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
    let asked = request().request_id("job-7");
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
async fn waiting_with_a_request_id_that_was_not_granted_takes_over_nobodys_lease() {
    let asked = request().request_id("job-7");
    let others_asked = [request(), request().request_id("job-8"), asked.clone().owner("somebody else")];
    for (theirs, elsewhere) in others_asked.into_iter().flat_map(|theirs| [(theirs.clone(), true), (theirs, false)]) {
        let memory = Memory::new();
        let (leases, others) = (memory.process(1).await, memory.process(2).await);
        let holder = if elsewhere { &others } else { &leases };
        let grant = granted(holder.acquire(&key("a"), &theirs).await);
        let leading = wait(&leases, request(), LONG);
        calm().await;
        let waiting = wait(&leases, asked.clone(), LONG);
        calm().await;
        assert!(!leading.is_finished() && !waiting.is_finished(), "{theirs:?}");
        renew(holder, &grant).await;
        assert_eq!(leases.peek(&key("a")).await.unwrap().holder.unwrap().lease_id, grant.lease_id());
    }
}

#[tokio::test]
async fn waiting_over_a_store_that_is_down_for_a_while_ends_well() {
    let memory = Memory::new();
    let (store, others) = (memory.builder(1).open().await.unwrap(), memory.process(2).await);
    let leases = store.leases("default").unwrap();
    let theirs = acquire(&others).await;
    let waiting = wait(&leases, request(), LONG);
    memory.pass(SECOND).await;
    others.release(&theirs).await.unwrap();
    for op in [Op::Get, Op::Put] {
        memory.store.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(503))));
    }
    let before = store.requests();
    memory.pass(120 * SECOND).await;
    let looks = store.requests().since(&before).total();
    assert!(!waiting.is_finished());
    assert!(looks < 200, "{looks} requests to a store that is down");
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
    let first = wait(&leases, Request::new(Duration::from_secs(3000)), LONG);
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

#[tokio::test]
async fn a_waiter_whose_time_is_up_while_the_lease_is_on_its_way_to_it_gets_it() {
    for asked in [request(), request().request_id("job-7")] {
        let memory = Memory::new();
        let leases = memory.process(1).await;
        let mine = acquire(&leases).await;
        let waiting = wait(&leases, asked, 2 * SECOND);
        memory.pass(SECOND).await;
        memory.store.faults().script(Rule::once(Op::Put, Fault::Slow(2 * SECOND)).on("meta/a"));
        let releasing = tokio::spawn({
            let leases = leases.clone();
            async move { leases.release(&mine).await }
        });
        memory.pass(3 * SECOND).await;
        releasing.await.unwrap().unwrap();
        assert!(waiting.is_finished());
        let theirs = granted(waiting.await.unwrap());
        assert_eq!(leases.peek(&key("a")).await.unwrap().holder.unwrap().lease_id, theirs.lease_id());
    }
}

#[tokio::test]
async fn a_waiter_whose_time_is_up_is_not_handed_what_has_ended_on_its_way() {
    for (asked, given_back) in [(request(), 1), (request().request_id("job-7"), 0)] {
        let memory = Memory::new();
        let store = memory.builder(1).open().await.unwrap();
        let leases = store.leases("default").unwrap();
        let mine = acquire(&leases).await;
        let name = key("a");
        let mut waiting = Box::pin(leases.acquire_within(&name, &asked, 2 * SECOND));
        assert!(poll_once(&mut waiting).await.is_none());
        memory.store.faults().script(Rule::once(Op::Put, Fault::Slow(3 * SECOND)).on("meta/a"));
        let releasing = tokio::spawn({
            let leases = leases.clone();
            async move { leases.release(&mine).await }
        });
        memory.pass(2 * SECOND).await;
        assert!(poll_once(&mut waiting).await.is_none(), "it is on its way");
        // The machine stands still for longer than the lease lasts.
        memory.clock.advance(30 * SECOND);
        calm().await;
        releasing.await.unwrap().unwrap();
        let before = store.requests().of(RequestKind::Put);
        held(poll_once(&mut waiting).await.expect("its time is up"));
        calm().await;
        assert_eq!(store.requests().of(RequestKind::Put) - before, given_back, "{asked:?}");
    }
}

#[tokio::test]
async fn a_waiter_whose_time_is_up_while_a_release_does_not_come_to_an_end_hears_so() {
    let memory = Memory::new();
    let leases = memory.process(1).await;
    let mine = acquire(&leases).await;
    let waiting = wait(&leases, request(), 2 * SECOND);
    memory.pass(SECOND).await;
    memory.store.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Hang)).on("meta/a"));
    let _releasing = tokio::spawn({
        let leases = leases.clone();
        async move { leases.release(&mine).await }
    });
    memory.pass(40 * SECOND).await;
    assert!(waiting.is_finished());
    assert!(!matches!(waiting.await.unwrap(), Ok(Acquired::Granted(_))));
}
