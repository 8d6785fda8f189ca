//! Every request costs money and latency. Each row of the budget, counted in HTTP attempts at both ends.

use crate::common::{Bed, granted, key, request, s3};
use leasehold::{
    Store,
    lease::{Acquired, Leases, Renewed},
    store::{
        Probing,
        RequestKind::{Get, Put},
        Requests,
    },
};
use leasehold_testkit::{Fault, Op, Rule};
use std::time::Duration;

/// Writes, reads.
fn puts_and_gets(made: &Requests) -> (u64, u64) {
    assert_eq!(made.total(), made.of(Put) + made.of(Get), "{made:?}");
    (made.of(Put), made.of(Get))
}

fn held(acquired: leasehold::Result<Acquired>) {
    assert!(matches!(acquired, Ok(Acquired::Held(_))), "{acquired:?}");
}

/// Another process on the same store.
async fn other(bed: &Bed) -> (Store, Leases) {
    let store = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    (store, leases)
}

impl Bed {
    fn leases(&self) -> Leases {
        self.store.leases("default").unwrap()
    }
}

/// Counts what one store made, when several are on the server.
async fn counting<T>(store: &Store, run: impl Future<Output = T>) -> (T, (u64, u64)) {
    let before = store.requests();
    let result = run.await;
    (result, puts_and_gets(&store.requests().since(&before)))
}

#[tokio::test]
async fn acquire_of_an_unknown_key_is_a_read_an_entry_and_a_swap() {
    let bed = Bed::new().await;
    let (grant, made) = bed.counting(bed.leases().acquire(&key("a"), &request())).await;
    granted(grant);
    assert_eq!(puts_and_gets(&made), (2, 1));
}

#[tokio::test]
async fn the_read_and_the_entry_of_an_unknown_key_go_side_by_side() {
    for slow in [Op::Put, Op::Get] {
        let bed = Bed::new().await;
        bed.server.faults().script(Rule::once(slow, Fault::Delay(Duration::from_secs(1))));
        let acquiring = tokio::spawn({
            let leases = bed.leases();
            async move { leases.acquire(&key("a"), &request()).await }
        });
        // The other one is answered while the slow one is under way: two round trips for three requests.
        let answered = |fast: bool| {
            let seen = bed.server.requests();
            seen.iter().find(|seen| (seen.op != slow) == fast).map(|seen| seen.status.is_some())
        };
        while (answered(true), answered(false)) != (Some(true), Some(false)) {
            tokio::task::yield_now().await;
        }
        assert_eq!(bed.server.requests().len(), 2, "and the swap waits for both");
        bed.clock.advance(Duration::from_secs(1));
        granted(acquiring.await.unwrap());
        assert_eq!(bed.server.requests().len(), 3);
    }
}

#[tokio::test]
async fn acquire_of_a_key_that_the_caller_says_is_new_is_an_entry_and_a_swap() {
    let bed = Bed::new().await;
    let (grant, made) = bed.counting(bed.leases().acquire(&key("a"), &request().new_key())).await;
    granted(grant);
    assert_eq!(puts_and_gets(&made), (2, 0));
}

#[tokio::test]
async fn acquire_of_a_key_last_seen_free_and_indexed_is_one_swap() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let grant = granted(leases.acquire(&key("a"), &request()).await);
    leases.release(&grant).await.unwrap();
    let (grant, made) = bed.counting(leases.acquire(&key("a"), &request())).await;
    granted(grant);
    assert_eq!(puts_and_gets(&made), (1, 0));
}

#[tokio::test]
async fn acquire_of_a_key_last_seen_free_in_another_hour_is_an_entry_and_a_swap() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let grant = granted(leases.acquire(&key("a"), &request()).await);
    leases.release(&grant).await.unwrap();
    bed.clock.advance(Duration::from_secs(3600));
    let (grant, made) = bed.counting(leases.acquire(&key("a"), &request())).await;
    granted(grant);
    assert_eq!(puts_and_gets(&made), (2, 0));
}

#[tokio::test]
async fn a_try_at_a_key_that_was_seen_held_is_one_read_and_when_free_one_swap_more() {
    let bed = Bed::new().await;
    let (_other_store, others) = other(&bed).await;
    let theirs = granted(others.acquire(&key("a"), &request()).await);
    let leases = bed.leases();
    held(leases.acquire(&key("a"), &request()).await);
    let (still, made) = counting(&bed.store, leases.acquire(&key("a"), &request())).await;
    held(still);
    assert_eq!(made, (0, 1));
    others.release(&theirs).await.unwrap();
    let (grant, made) = counting(&bed.store, leases.acquire(&key("a"), &request())).await;
    granted(grant);
    assert_eq!(made, (1, 1), "the record itself knows its entry");
}

#[tokio::test]
async fn a_try_at_a_held_key_that_is_new_to_the_process_is_two_requests_side_by_side() {
    let bed = Bed::new().await;
    let (_other_store, others) = other(&bed).await;
    granted(others.acquire(&key("a"), &request()).await);
    let leases = bed.leases();
    let (still, made) = counting(&bed.store, leases.acquire(&key("a"), &request())).await;
    held(still);
    assert_eq!(made, (1, 1));
}

#[tokio::test]
async fn an_acquire_repeated_by_another_process_is_a_read_and_a_renewal() {
    let bed = Bed::new().await;
    let (_other_store, others) = other(&bed).await;
    let asked = request().request_id("job-7");
    let theirs = granted(others.acquire(&key("a"), &asked).await);
    let (again, made) = counting(&bed.store, bed.leases().acquire(&key("a"), &asked)).await;
    let again = granted(again);
    assert_eq!((again.lease_id(), again.fence()), (theirs.lease_id(), theirs.fence()));
    assert_eq!(made, (1, 1));
}

#[tokio::test]
async fn renew_is_one_swap_and_into_a_new_hour_an_entry_more() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let grant = granted(leases.acquire(&key("a"), &request()).await);
    bed.clock.advance(Duration::from_secs(10));
    let (renewed, made) = bed.counting(leases.renew(&grant)).await;
    let Renewed::Renewed(mut grant) = renewed.unwrap() else { panic!("lost") };
    assert_eq!(puts_and_gets(&made), (1, 0));
    // It is half past now: renew until the expiry falls into the next hour.
    for _ in 0..200 {
        bed.clock.advance(Duration::from_secs(10));
        let before = grant.expires_at();
        let (renewed, made) = bed.counting(leases.renew(&grant)).await;
        let Renewed::Renewed(renewed) = renewed.unwrap() else { panic!("lost") };
        grant = renewed;
        let hour = |at: leasehold::clock::Timestamp| at.as_millis() / 3_600_000;
        let crossed = hour(before) != hour(grant.expires_at());
        assert_eq!(puts_and_gets(&made), (if crossed { 2 } else { 1 }, 0));
    }
}

#[tokio::test]
async fn release_is_one_swap() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let grant = granted(leases.acquire(&key("a"), &request()).await);
    let (released, made) = bed.counting(leases.release(&grant)).await;
    released.unwrap();
    assert_eq!(puts_and_gets(&made), (1, 0));
}

#[tokio::test]
async fn a_lock_cycle_in_one_process_is_two_swaps() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let first = granted(leases.acquire(&key("a"), &request()).await);
    leases.release(&first).await.unwrap();
    for _ in 0..5 {
        let cycle = async {
            let grant = granted(leases.acquire(&key("a"), &request()).await);
            leases.release(&grant).await.unwrap();
        };
        let ((), made) = bed.counting(cycle).await;
        assert_eq!(puts_and_gets(&made), (2, 0));
    }
}

#[tokio::test]
async fn a_hand_over_to_a_waiter_of_the_process_is_one_swap() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let first = granted(leases.acquire(&key("a"), &request()).await);
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire_within(&key("a"), &request(), Duration::from_secs(600)).await }
    });
    bed.clock.wait_for_sleepers(1).await;
    let handed = async {
        leases.release(&first).await.unwrap();
        granted(waiting.await.unwrap())
    };
    let (second, made) = bed.counting(handed).await;
    assert!(second.fence() > first.fence());
    assert_eq!(puts_and_gets(&made), (1, 0));
}

#[tokio::test]
async fn a_hand_over_into_another_hour_is_an_entry_more() {
    let bed = Bed::new().await;
    let leases = bed.leases();
    let first = granted(leases.acquire(&key("a"), &request()).await);
    let long = leasehold::lease::Request::new(Duration::from_secs(3000));
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire_within(&key("a"), &long, Duration::from_secs(600)).await }
    });
    bed.clock.wait_for_sleepers(1).await;
    let handed = async {
        leases.release(&first).await.unwrap();
        granted(waiting.await.unwrap())
    };
    let (_, made) = bed.counting(handed).await;
    assert_eq!(puts_and_gets(&made), (2, 0));
}

#[tokio::test]
async fn waiting_for_a_key_held_elsewhere_is_one_read_a_look_and_one_mark() {
    let bed = Bed::new().await;
    let (other_store, others) = other(&bed).await;
    let mut theirs = granted(others.acquire(&key("a"), &request()).await);
    let leases = bed.leases();
    held(leases.acquire(&key("a"), &request()).await);
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire_within(&key("a"), &request(), Duration::from_secs(600)).await }
    });
    let before = bed.store.requests();
    for looks in [(0, 2), (1, 3)] {
        // The poller sleeps; the lease goes from hand to hand meanwhile.
        bed.clock.wait_for_sleepers(1).await;
        others.release(&theirs).await.unwrap();
        theirs = granted(others.acquire(&key("a"), &request()).await);
        bed.clock.advance(Duration::from_secs(2));
        // A look each, the first before the loop, and one mark after the second change of hands.
        while puts_and_gets(&bed.store.requests().since(&before)) != looks {
            tokio::task::yield_now().await;
        }
    }
    // The holder meets the mark as a conflict: one read, and the swap again.
    let (released, made) = counting(&other_store, others.release(&theirs)).await;
    released.unwrap();
    assert_eq!(made, (2, 1));
    waiting.abort();
}

/// A store on which sessions are allowed, with one that holds a key.
async fn with_session(bed: &Bed) -> (leasehold::session::Session, leasehold::lease::Guard) {
    bed.store.allow_record_format(leasehold::session::RECORD_FORMAT, "test").await.unwrap();
    let session = bed.store.session().await.unwrap();
    let guard = session.lock("a").await.unwrap();
    (session, guard)
}

#[tokio::test]
async fn under_a_session_locking_costs_what_it_always_does() {
    let bed = Bed::new().await;
    let (session, guard) = with_session(&bed).await;
    let (locked, made) = bed.counting(session.lock("b").into_future()).await;
    assert_eq!(puts_and_gets(&made), (2, 1), "read, entry, swap");
    let locked = locked.unwrap();
    let (released, made) = bed.counting(locked.release()).await;
    released.unwrap();
    assert_eq!(puts_and_gets(&made), (1, 0));
    let (locked, made) = bed.counting(session.lock("b").into_future()).await;
    assert_eq!(puts_and_gets(&made), (1, 0), "seen free, and filed already");
    let (released, made) = bed.counting(session.release()).await;
    released.unwrap();
    assert_eq!(puts_and_gets(&made), (1, 0), "all of them");
    assert!(!guard.is_valid() && !locked.unwrap().is_valid());
}

#[tokio::test]
async fn a_living_session_is_read_once_for_all_its_keys() {
    let bed = Bed::new().await;
    let (session, _guard) = with_session(&bed).await;
    let _b = session.lock("b").await.unwrap();
    let (store, leases) = other(&bed).await;
    let (tried, made) = counting(&store, leases.acquire(&key("a"), &request())).await;
    held(tried);
    assert_eq!(made, (1, 2), "the key, its entry, and the session");
    let (tried, made) = counting(&store, leases.acquire(&key("a"), &request())).await;
    held(tried);
    assert_eq!(made, (0, 1), "the key");
    let (tried, made) = counting(&store, leases.acquire(&key("b"), &request())).await;
    held(tried);
    assert_eq!(made, (1, 1), "the key and its entry");
}

#[tokio::test]
async fn taking_a_key_of_a_session_that_was_released_costs_one_read_more() {
    let bed = Bed::new().await;
    let (session, _guard) = with_session(&bed).await;
    session.release().await.unwrap();
    let (store, leases) = other(&bed).await;
    let (taken, made) = counting(&store, leases.acquire(&key("a"), &request())).await;
    granted(taken);
    assert_eq!(made, (2, 2), "the key, its entry, the session, and the swap");
}

#[tokio::test]
async fn a_dead_session_is_cleared_once_for_all_its_keys() {
    let bed = Bed::new().await;
    let (session, guard) = with_session(&bed).await;
    let b = session.lock("b").await.unwrap();
    // Its process is gone: nothing is renewed, and nothing given back.
    std::mem::forget((session, guard, b));
    bed.server
        .faults()
        .script(Rule::always(Op::Put, Fault::Refuse(leasehold_testkit::Answer::Status(503))).on("session!2f"));
    for _ in 0..40 {
        bed.clock.advance(Duration::from_secs(1));
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
    bed.server.faults().clear();
    let (store, leases) = other(&bed).await;
    let (taken, made) = counting(&store, leases.acquire(&key("a"), &request())).await;
    granted(taken);
    println!("first key of a dead session: {made:?}");
    assert_eq!(made, (4, 4), "key, entry, session, time object and back, session again, its clear, the swap");
    let (taken, made) = counting(&store, leases.acquire(&key("b"), &request())).await;
    granted(taken);
    assert_eq!(made, (2, 1), "as any ended lease");
}
