//! Leases, between processes as far as several opened stores are that.

use crate::place::{Place, granted, key, now, request};
use futures_util::future::join_all;
use leasehold::{
    Clock, Store, SystemClock,
    lease::{Acquired, Leases, Locked, Renewed, Request},
};
use std::{sync::Arc, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);

async fn processes(place: &Place, count: usize) -> Vec<(Store, Leases)> {
    join_all((0..count).map(|_| async {
        let store = place.open().await;
        let leases = store.leases("default").unwrap();
        (store, leases)
    }))
    .await
}

pub(crate) async fn a_lease_is_granted_renewed_and_released_and_fences_rise(place: Arc<Place>) {
    let [(_a, ours), (_b, theirs)] = &processes(&place, 2).await[..] else { unreachable!() };
    let mut last = None;
    for _ in 0..5 {
        for (leases, others) in [(ours, theirs), (theirs, ours)] {
            let grant = granted(leases.acquire(&key("a"), &request()).await);
            assert!(last < Some(grant.fence()) && grant.is_valid());
            last = Some(grant.fence());
            let Acquired::Held(held) = others.acquire(&key("a"), &request()).await.unwrap() else { panic!("granted") };
            assert_eq!(held.by.unwrap().fence, grant.fence());
            let Renewed::Renewed(renewed) = leases.renew(&grant).await.unwrap() else { panic!("lost") };
            assert_eq!((renewed.fence(), renewed.lease_id()), (grant.fence(), grant.lease_id()));
            leases.release(&renewed).await.unwrap();
            leases.release(&renewed).await.unwrap();
            assert_eq!(others.get(&key("a")).await.unwrap().holder, None);
        }
    }
}

pub(crate) async fn of_many_processes_exactly_one_gets_the_lease(place: Arc<Place>) {
    let processes = processes(&place, 8).await;
    for round in 0..5 {
        let (key, request) = (key(&format!("round-{round}")), request());
        let tries = processes.iter().map(|(_, leases)| leases.acquire_within(&key, &request, Duration::ZERO));
        let granted: Vec<_> = join_all(tries).await.into_iter().filter_map(|tried| tried.unwrap().granted()).collect();
        assert_eq!(granted.len(), 1, "{granted:?}");
        let there = processes[0].1.peek(&key).await.unwrap().holder.unwrap();
        assert_eq!((there.lease_id, there.fence), (granted[0].lease_id(), granted[0].fence()));
    }
}

pub(crate) async fn a_waiter_of_another_process_gets_the_lease_when_it_is_released(place: Arc<Place>) {
    let [(_a, ours), (_b, theirs)] = &processes(&place, 2).await[..] else { unreachable!() };
    let first = granted(ours.acquire(&key("a"), &request()).await);
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { granted(theirs.acquire_within(&key("a"), &request(), PATIENCE).await) }
    });
    ours.release(&first).await.unwrap();
    assert!(waiting.await.unwrap().fence() > first.fence());
}

pub(crate) async fn a_lease_that_ended_is_taken_over_and_its_holder_is_told(place: Arc<Place>) {
    let [(_a, ours), (_b, theirs)] = &processes(&place, 2).await[..] else { unreachable!() };
    let short = Request::new(Duration::from_secs(1));
    // Patiently: a store that takes longer than that grants it too late to be of use.
    let first = granted(ours.acquire_within(&key("a"), &short, PATIENCE).await);
    let second = granted(theirs.acquire_within(&key("a"), &request(), PATIENCE).await);
    assert!(now() > first.expires_at() && !first.is_valid(), "taken over before it ended");
    let Renewed::Lost(loss) = ours.renew(&first).await.unwrap() else { panic!("renewed") };
    assert!(loss.taken_by.is_none_or(|by| by.fence == second.fence()));
    ours.release(&first).await.unwrap();
    assert_eq!(theirs.get(&key("a")).await.unwrap().holder.unwrap().lease_id, second.lease_id());
}

/// A store that stands still for longer than a lease lasts ends it by rights; then a longer one is tried.
pub(crate) async fn a_guard_keeps_a_lease_alive(place: Arc<Place>) {
    let [(_a, ours), (_b, theirs)] = &processes(&place, 2).await[..] else { unreachable!() };
    for seconds in [3, 12, 48] {
        let request = Request::new(Duration::from_secs(seconds));
        let Locked::Granted(guard) = ours.lock_within(&key("a"), &request, PATIENCE).await.unwrap() else {
            panic!("held")
        };
        let first = guard.grant();
        let beyond = first.expires_at().plus(first.ttl());
        let kept = loop {
            let there = theirs.peek(&key("a")).await.unwrap().holder;
            if !guard.is_valid() {
                break false;
            }
            let there = there.expect("the guard believes in a lease that is not there");
            assert_eq!(there.fence, first.fence(), "the guard believes in a lease that is another's");
            if there.expires_at >= beyond {
                break true;
            }
            SystemClock::new().sleep(Duration::from_millis(100)).await;
        };
        println!("a lease of {seconds} s was {}", if kept { "kept alive" } else { "lost" });
        guard.release().await.unwrap();
        assert_eq!(theirs.get(&key("a")).await.unwrap().holder, None);
        if kept {
            return;
        }
    }
    panic!("every guard lost its lease");
}

pub(crate) async fn a_request_repeated_by_another_process_gets_its_lease_again(place: Arc<Place>) {
    let [(_a, ours), (_b, theirs)] = &processes(&place, 2).await[..] else { unreachable!() };
    let asked = request().request_id("job-7");
    let first = granted(ours.acquire(&key("a"), &asked).await);
    let again = granted(theirs.acquire(&key("a"), &asked).await);
    assert_eq!((first.lease_id(), first.fence()), (again.lease_id(), again.fence()));
}

/// Read, wait for a moment, write: without mutual exclusion a count is lost.
pub(crate) async fn nobody_counts_twice_under_the_lock(place: Arc<Place>) {
    let count = Arc::new(tokio::sync::Mutex::new(0));
    let workers = processes(&place, 4).await.into_iter().map(|(_store, leases)| {
        let count = Arc::clone(&count);
        async move {
            for _ in 0..10 {
                let grant = granted(leases.acquire_within(&key("a"), &request(), PATIENCE).await);
                let before = *count.lock().await;
                tokio::task::yield_now().await;
                *count.lock().await = before + 1;
                leases.release(&grant).await.unwrap();
            }
        }
    });
    join_all(workers).await;
    assert_eq!(*count.lock().await, 40);
}
