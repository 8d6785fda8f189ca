//! The sweeper. Leases are made three hours ago by a clock that is moved by hand and swept by the real one, on the
//! connection that users have; where the store's own time would have to move, that clock goes on ahead.

use crate::place::{Place, brief, granted, key, long_ago, now, request, until_brief_ones_have_ended};
use leasehold::{
    Namespace,
    decision::{Answer, Decision},
    sweep::{StoppedBy, SweepOptions},
};
use leasehold_testkit::TestClock;
use std::{sync::Arc, time::Duration};

fn at_once() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

pub(crate) async fn what_ended_in_a_past_hour_is_tidied_and_nothing_else(place: Arc<Place>) {
    let then = place.open_at(&long_ago()).await.leases("default").unwrap();
    for number in 0..10 {
        let grant = granted(then.acquire(&key(&format!("old-{number}")), &brief()).await);
        if number % 2 == 0 {
            then.release(&grant).await.unwrap();
        }
    }
    let store = place.open().await;
    let leases = store.leases("default").unwrap();
    let live = granted(leases.acquire(&key("live"), &request()).await);
    until_brief_ones_have_ended().await;
    let report = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Complete), "{report:?}");
    assert_eq!((report.of("lease").cleared, report.entries_deleted, report.failures), (5, 10, 0), "{report:?}");
    assert_eq!(place.entries().await.len(), 1, "that of the live lease");
    assert_eq!(leases.peek(&key("live")).await.unwrap().holder.unwrap().lease_id, live.lease_id());
    let cleared = leases.peek(&key("old-1")).await.unwrap();
    assert_eq!(cleared.holder, None);
    // Its record goes on counting fences.
    let next = granted(leases.acquire(&key("old-1"), &request()).await);
    assert!(Some(next.fence()) > cleared.last_fence && cleared.last_fence.is_some());
}

/// Names that a store which sorts by folder has in another order than by byte.
pub(crate) async fn every_namespace_gets_its_turn(place: Arc<Place>) {
    let then = place.open_at(&long_ago()).await;
    let namespaces = ["a", "a-b", "a.b", "a0", "b"];
    for namespace in namespaces {
        granted(then.leases(namespace).unwrap().acquire(&key("x"), &brief()).await);
    }
    until_brief_ones_have_ended().await;
    let store = place.open().await;
    let only = store.sweeper().run_once(at_once().namespace("a-b".parse::<Namespace>().unwrap())).await.unwrap();
    assert_eq!((only.of("lease").cleared, only.entries_deleted), (1, 1), "{only:?}");
    let rest = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((rest.of("lease").cleared, rest.entries_deleted, rest.failures), (4, 4, 0), "{rest:?}");
    assert_eq!(place.entries().await, [""; 0]);
}

pub(crate) async fn decisions_whose_time_is_over_are_deleted(place: Arc<Place>) {
    let clock = TestClock::at(now());
    let store = place.open_at(&clock).await;
    let decisions = store.decisions();
    let mut txns = Vec::new();
    for _ in 0..10 {
        txns.push(decisions.begin());
        let _ = decisions.decide(txns[txns.len() - 1], Decision::Commit).await.unwrap();
    }
    clock.advance(Duration::from_secs(12 * 3600));
    let early = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((early.of("decision").deleted, early.entries_deleted), (0, 0), "{early:?}");
    clock.advance(Duration::from_secs(14 * 3600));
    let report = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (10, 10, 0), "{report:?}");
    assert_eq!(decisions.get(txns[0]).await.unwrap(), Answer::Forgotten);
    let left: Vec<_> = place.names().await.into_iter().filter(|name| name.starts_with(".txn-decisions/")).collect();
    assert_eq!(left, [""; 0]);
}

pub(crate) async fn a_dry_run_changes_nothing(place: Arc<Place>) {
    let then = place.open_at(&long_ago()).await.leases("default").unwrap();
    granted(then.acquire(&key("a"), &brief()).await);
    until_brief_ones_have_ended().await;
    let store = place.open().await;
    let before = place.names().await;
    let report = store.sweeper().run_once(at_once().dry_run(true)).await.unwrap();
    assert_eq!((report.of("lease").cleared, report.entries_deleted), (1, 1), "{report:?}");
    assert_eq!(place.names().await, before, "not even a time object");
    let done = store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((done.of("lease").cleared, done.entries_deleted), (1, 1), "{done:?}");
}
