//! What sweeping costs, in HTTP attempts at both ends.

use super::{HOUR, PAST, at_once, take};
use crate::{common::Bed, processes::World};
use leasehold::{
    decision::Decision,
    store::{
        RequestKind::{Delete, Get, List, Put},
        Requests,
    },
    sweep::{Report, StoppedBy},
};
use std::time::Duration;

const EACH: usize = 1000;

/// A server with so many stale entries, so many ended leases in two namespaces, and so many live ones beside each.
async fn sweep(live: usize) -> (Report, Requests) {
    // Made in memory, and copied by the operator.
    let world = World::new();
    let process = world.process().await;
    let (stale, ended) = (process.store.leases("stale").unwrap(), process.store.leases("ended").unwrap());
    for number in 0..EACH {
        let name = format!("k-{number}");
        let grant = take(&stale, &name).await;
        stale.release(&grant).await.unwrap();
        take(&ended, &name).await;
    }
    let bed = Bed::new().await;
    for name in world.objects.names().iter().filter(|name| !name.starts_with('.')) {
        bed.server.put_object(&format!("some/prefix/{name}"), world.objects.object(name).unwrap().0);
    }
    let (record, _) = world.objects.object("ended/meta/k-0.pb").unwrap();
    for namespace in ["stale", "ended"] {
        for number in 0..live / 2 {
            // The sweep must not read what these hold.
            bed.server.put_object(&format!("some/prefix/{namespace}/meta/live-{number}.pb"), record.clone());
            bed.server.put_object(&format!("some/prefix/{namespace}/.lease-index/2026010104/live-{number}"), "{}");
        }
    }
    bed.clock.advance(PAST);
    let (report, made) = bed.counting(bed.store.sweeper().run_once(at_once())).await;
    let report = report.unwrap();
    assert!(!bed.server.names().iter().any(|name| name.contains(HOUR)), "nothing is left of that hour");
    (report, made)
}

#[tokio::test]
async fn an_ended_lease_is_cleared_and_its_entry_deleted_within_the_budget() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    for number in 0..10 {
        take(&leases, &format!("k-{number}")).await;
    }
    bed.clock.advance(PAST);
    let (report, made) = bed.counting(bed.store.sweeper().run_once(at_once())).await;
    let report = report.unwrap();
    assert_eq!((report.of("lease").cleared, report.entries_deleted, report.failures), (10, 10, 0), "{report:?}");
    assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
    // One listing for the namespaces and one for each index: that of the leases, that of semaphores, and our own; one for
    // the streams. There are no decisions.
    // And one time object for all of them, written and read back.
    assert_eq!((made.of(Get), made.of(Put), made.of(Delete)), (10 + 1, 10 + 1, 1));
    assert_eq!(made.of(List), 5, "{made:?}");
    assert!(!bed.server.names().iter().any(|name| name.contains(".lease-index")));
    let report = bed.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(report.entries_seen, 0);
}

#[tokio::test]
async fn sweeping_costs_what_the_budget_says_however_many_live_keys_there_are() {
    for live in [2, 100_000] {
        let (report, made) = sweep(live).await;
        println!("{live} live keys: {made:?}, {} requests", report.requests);
        let seen = (report.entries_seen, report.of("lease").cleared, report.entries_deleted, report.failures);
        assert_eq!(seen, (2000, 1000, 2000, 0), "{report:?}");
        // A read for each, a swap for each that had ended, and one time object.
        assert_eq!((made.of(Get), made.of(Put)), (2000 + 1, 1000 + 1), "{live}");
        // Four pages of 250 for each of the two, and the page in which the present begins; for each of the two the
        // semaphores and the streams; the namespaces; our own index.
        assert_eq!(made.of(List), 2 * (4 + 1 + 2) + 1 + 1, "{live}");
        assert_eq!(made.of(Delete), 2 * 4, "one for each page: {live}");
        assert_eq!(report.requests, made.total());
    }
}

#[tokio::test]
async fn decisions_cost_a_read_each_and_two_deletes_a_page() {
    let bed = Bed::new().await;
    let decisions = bed.store.decisions();
    for _ in 0..20 {
        let _ = decisions.decide(decisions.begin(), Decision::Commit).await.unwrap();
    }
    bed.clock.advance(Duration::from_secs(24 * 3600) + PAST);
    let (report, made) = bed.counting(bed.store.sweeper().run_once(at_once())).await;
    let report = report.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (20, 20, 0), "{report:?}");
    // The namespaces, our own index, and that of decisions.
    assert_eq!((made.of(List), made.of(Get), made.of(Put), made.of(Delete)), (3, 20, 0, 2), "{made:?}");
}
