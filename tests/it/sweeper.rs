//! The sweeper tidies what nobody touches again, and nothing else.

use crate::common::{Bed, key, request};
use leasehold::{
    store::RequestKind::{Delete, Get, List, Put},
    sweep::{StoppedBy, SweepOptions},
};
use std::time::Duration;

fn now() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

#[tokio::test]
async fn an_ended_lease_is_cleared_and_its_entry_deleted_within_the_budget() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    for number in 0..10 {
        leases.acquire(&key(&format!("k-{number}")), &request()).await.unwrap().granted().unwrap();
    }
    bed.clock.advance(Duration::from_secs(3600 + 900));
    let (report, made) = bed.counting(bed.store.sweep_once(now())).await;
    let report = report.unwrap();
    assert_eq!((report.leases_cleared, report.entries_deleted, report.failures), (10, 10, 0), "{report:?}");
    assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
    // One listing for the namespaces and one for each index: that of the leases, our own, and that of decisions.
    assert_eq!((made.of(Get), made.of(Put), made.of(Delete)), (10, 10, 1));
    assert_eq!(made.of(List), 4, "{made:?}");
    assert!(!bed.server.names().iter().any(|name| name.contains(".lease-index")));
    let report = bed.store.sweep_once(now()).await.unwrap();
    assert_eq!(report.entries_seen, 0);
}

#[tokio::test]
async fn a_lease_of_the_current_hour_is_never_touched() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    leases.acquire(&key("a"), &request()).await.unwrap().granted().unwrap();
    bed.clock.advance(Duration::from_secs(1800 + 899));
    let report = bed.store.sweep_once(now()).await.unwrap();
    assert_eq!((report.entries_seen, report.leases_cleared), (0, 0), "{report:?}");
    bed.clock.advance(Duration::from_secs(1));
    let report = bed.store.sweep_once(now()).await.unwrap();
    assert_eq!((report.entries_seen, report.leases_cleared), (1, 1), "{report:?}");
}
