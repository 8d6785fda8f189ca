//! What is done about an entry, one rule a test.

mod passes;

use super::{HOUR, PAST, at_once, entries, file_stale, seeded, take};
use crate::{
    common::{Bed, key, request},
    processes::World,
};
use leasehold::{
    ErrorKind, Namespace, Settings,
    clock::Clock,
    decision::{Answer as Told, Decision},
    lease::{Renewed, Request},
    store::RequestKind::{Get, Put},
    sweep::{Report, StoppedBy},
};
use leasehold_testkit::{Answer, Applied, Fault, FaultStore, Op, Rates, Rule, SeededGenerator, TestClock};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Entries seen, leases cleared, entries deleted, entries kept, failures.
fn figures(report: &Report) -> (u64, u64, u64, u64, u64) {
    (report.entries_seen, report.of("lease").cleared, report.entries_deleted, report.entries_kept, report.failures)
}

/// Every change from now on, in order.
fn changes(objects: &FaultStore) -> Arc<Mutex<Vec<Applied>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    objects.set_observer(Box::new(move |applied| noted.lock().unwrap().push(applied.clone())));
    seen
}

fn named(changes: &Mutex<Vec<Applied>>) -> Vec<(Op, String)> {
    changes.lock().unwrap().iter().map(|applied| (applied.op, applied.name.clone())).collect()
}

#[tokio::test]
async fn an_entry_whose_record_is_missing_is_deleted() {
    let world = World::new();
    file_stale(&world.objects, "default", 3);
    let process = world.process().await;
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (3, 0, 3, 0, 0), "{report:?}");
    assert_eq!(report.oldest_hour.as_deref(), Some(HOUR));
    assert_eq!(entries(&world.objects), Vec::<String>::new());
}

#[tokio::test]
async fn the_oldest_hour_of_a_report_is_that_of_all_namespaces() {
    let world = World::new();
    for (namespace, hour) in [("a", "2025123122"), ("b", "2025123120"), ("c", "2025123121")] {
        world.objects.put_object(&format!("{namespace}/.lease-index/{hour}/x"), "{}");
    }
    let report = world.process().await.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(report.oldest_hour.as_deref(), Some("2025123120"));
    assert_eq!(report.stopped_by.unwrap().to_string(), "complete");
}

#[tokio::test]
async fn what_the_store_files_for_itself_is_swept_too() {
    let world = World::new();
    file_stale(&world.objects, ".leasehold", 2);
    let process = world.process().await;
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (2, 0, 2, 0, 0), "{report:?}");
}

#[tokio::test]
async fn a_key_too_long_for_its_name_is_known_from_its_record_and_only_from_its_own() {
    let world = World::new();
    let process = world.process().await;
    let (one, other) = ("1".repeat(900), "2".repeat(900));
    take(&process.leases, &one).await;
    take(&process.leases, &other).await;
    world.clock.advance(PAST);
    let records: Vec<_> = world.objects.names().into_iter().filter(|name| name.contains("/meta/")).collect();
    let [first, second] = records.as_slice() else { panic!("{records:?}") };
    world.objects.put_object(second, world.objects.object(first).unwrap().0);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (2, 1, 1, 1, 1), "{report:?}");
    assert!(report.last_error.as_ref().unwrap().contains("another key"), "{report:?}");
    let left = second.trim_start_matches("default/meta/").trim_end_matches(".pb");
    assert_eq!(entries(&world.objects), [format!("default/.lease-index/{HOUR}/{left}")]);
}

#[tokio::test]
async fn an_entry_of_a_released_lease_is_deleted_and_its_record_left_as_it_is() {
    let world = World::new();
    let process = world.process().await;
    let grant = take(&process.leases, "a").await;
    process.leases.release(&grant).await.unwrap();
    let record = world.objects.object("default/meta/a.pb");
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (1, 0, 1, 0, 0), "{report:?}");
    assert_eq!(world.objects.object("default/meta/a.pb"), record);
    assert_eq!(entries(&world.objects), Vec::<String>::new());
}

#[tokio::test]
async fn a_lease_renewed_into_a_later_hour_loses_only_its_stale_entry() {
    let world = World::new();
    let process = world.process().await;
    let long = Request::new(Duration::from_secs(3000));
    let mut grant = process.leases.acquire(&key("a"), &long).await.unwrap().granted().unwrap();
    for _ in 0..2 {
        world.clock.advance(Duration::from_secs(2400));
        let Renewed::Renewed(renewed) = process.leases.renew(&grant).await.unwrap() else { panic!("lost") };
        grant = renewed;
    }
    // It is ten to two. The lease began in the hour of one and stands in that of two now.
    assert_eq!(entries(&world.objects).len(), 2);
    world.clock.advance(Duration::from_secs(26 * 60));
    let record = world.objects.object("default/meta/a.pb");
    let another = world.process().await;
    let report = another.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (1, 0, 1, 0, 0), "{report:?}");
    assert_eq!(entries(&world.objects), ["default/.lease-index/2026010102/a"]);
    assert_eq!(world.objects.object("default/meta/a.pb"), record);
    assert!(grant.is_valid());
    assert!(matches!(process.leases.renew(&grant).await.unwrap(), Renewed::Renewed(_)));
}

#[tokio::test]
async fn an_ended_lease_is_cleared_first_and_then_its_entry_deleted() {
    let world = World::new();
    let process = world.process().await;
    let ended = take(&process.leases, "a").await;
    world.clock.advance(PAST);
    let sweeping = world.process().await;
    let changes = changes(&world.objects);
    let report = sweeping.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (1, 1, 1, 0, 0), "{report:?}");
    let expected = [(Op::Put, "default/meta/a.pb".to_owned()), (Op::Delete, format!("default/.lease-index/{HOUR}/a"))];
    assert_eq!(named(&changes), expected);
    assert!(process.leases.peek(&key("a")).await.unwrap().holder.is_none());
    assert_eq!(sweeping.store.stats().leases_cleared_by_sweeper, 1);
    assert_eq!(sweeping.store.stats().leases_cleared_by_operation, 0);
    // The record is kept for the sake of its fence.
    assert!(take(&world.process().await.leases, "a").await.fence() > ended.fence());
}

#[tokio::test]
async fn a_takeover_faster_than_the_sweeper_keeps_its_lease_and_its_entry() {
    let world = World::new();
    let process = world.process().await;
    take(&process.leases, "a").await;
    world.clock.advance(PAST);
    let (sweeping, taking) = (world.process().await, world.process().await);
    // Judged as ended; and before the swap arrives, another process has the lease.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(1))).on("meta/"));
    let store = sweeping.store.clone();
    let sweep = tokio::spawn(async move { store.sweeper().run_once(at_once()).await.unwrap() });
    world.clock.wait_for_sleepers(2).await;
    let grant = take(&taking.leases, "a").await;
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(figures(&sweep.await.unwrap()), (1, 0, 0, 1, 0));
    assert_eq!(entries(&world.objects).len(), 2);
    assert!(matches!(taking.leases.renew(&grant).await.unwrap(), Renewed::Renewed(_)));
    let report = sweeping.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (1, 0, 1, 0, 0), "now it is filed under a later hour: {report:?}");
}

#[tokio::test]
async fn a_renewal_that_lands_late_beats_the_sweeper_or_is_beaten_and_never_both() {
    // It lands between the sweeper's read and its swap, or after the swap.
    for (late, cleared) in [(1501, 0), (1505, 1)] {
        let world = World::new();
        let process = world.process().await;
        world.clock.advance(Duration::from_secs(20 * 60));
        let grant = take(&process.leases, "a").await;
        world.clock.advance(Duration::from_secs(10));
        let filed = entries(&world.objects);
        // The holder hears nothing and is gone; its renewal is still on the way.
        let fault = Fault::Late(Duration::from_secs(late), Answer::Drop);
        world.objects.faults().script(Rule::once(Op::Put, fault).on("meta/"));
        for op in [Op::Put, Op::Get] {
            world.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Drop)).on("meta/"));
        }
        let renewal = tokio::spawn(async move { process.leases.renew(&grant).await });
        for _ in 0..1500 {
            world.clock.advance(Duration::from_secs(1));
            crate::common::calm().await;
        }
        assert!(!matches!(renewal.await.unwrap(), Ok(Renewed::Renewed(_))));
        world.objects.faults().clear();
        let sweeping = world.process().await;
        world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(3))).on("meta/"));
        let changes = changes(&world.objects);
        let store = sweeping.store.clone();
        let sweep = tokio::spawn(async move { store.sweeper().run_once(at_once()).await.unwrap() });
        crate::common::calm().await;
        for _ in 0..6 {
            world.clock.advance(Duration::from_secs(1));
            crate::common::calm().await;
        }
        let report = sweep.await.unwrap();
        assert_eq!(report.of("lease").cleared, cleared, "{report:?}");
        let writes = named(&changes).into_iter().filter(|(op, name)| *op == Op::Put && name.contains("meta/")).count();
        assert_eq!(writes, 1, "one of the two");
        assert_eq!(entries(&world.objects).contains(&filed[0]), cleared == 0);
        world.clock.advance(PAST);
        sweeping.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!(entries(&world.objects), Vec::<String>::new());
        assert!(sweeping.leases.peek(&key("a")).await.unwrap().holder.is_none());
    }
}

#[tokio::test]
async fn a_clearing_whose_fate_is_unknown_leaves_the_entry_for_the_next_pass() {
    for fault in [Fault::Refuse(Answer::Status(412)), Fault::Refuse(Answer::Drop)] {
        let world = World::new();
        let process = world.process().await;
        take(&process.leases, "a").await;
        world.clock.advance(PAST);
        let sweeping = world.process().await;
        world.objects.faults().script(Rule::once(Op::Put, fault).on("meta/"));
        let report = sweeping.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!(figures(&report), (1, 0, 0, 1, 1), "{fault:?}: {report:?}");
        assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
        let report = sweeping.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!(figures(&report), (1, 1, 1, 0, 0), "{fault:?}: {report:?}");
    }
}

#[tokio::test]
async fn a_clearing_that_landed_unheard_counts_as_cleared() {
    let world = World::new();
    let process = world.process().await;
    take(&process.leases, "a").await;
    world.clock.advance(PAST);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("meta/"));
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), (1, 1, 1, 0, 0), "{report:?}");
}

#[tokio::test]
async fn an_unreadable_record_is_counted_and_left_and_stalls_nothing() {
    let world = World::new();
    let process = world.process().await;
    for name in ["a", "z"] {
        take(&process.leases, name).await;
    }
    let (of_another, _) = world.objects.object("default/meta/a.pb").unwrap();
    world.objects.put_object("default/meta/b.pb", "not a record");
    world.objects.put_object("default/meta/c.pb", of_another);
    for name in ["b", "c"] {
        world.objects.put_object(&format!("default/.lease-index/{HOUR}/{name}"), "{}");
    }
    world.clock.advance(PAST);
    let sweeping = world.process().await;
    for cleared in [2, 0] {
        let report = sweeping.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!(figures(&report), (2 + cleared, cleared, cleared, 2, 2), "{report:?}");
        assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
        assert!(report.last_error.is_some());
    }
    assert_eq!(sweeping.store.stats().sweep_failures, 4);
    assert_eq!(world.objects.object("default/meta/b.pb").unwrap().0, "not a record");
}

#[tokio::test]
async fn a_name_that_is_none_of_ours_is_skipped_and_counted() {
    let world = World::new();
    let foreign = [
        "default/.lease-index/0000-read-me.txt",
        "default/.lease-index/2026019900/a",
        "default/.lease-index/2026010100/a/b",
        "default/.lease-index/202601010/a",
    ];
    for name in foreign {
        world.objects.put_object(name, "somebody else's");
    }
    file_stale(&world.objects, "default", 2);
    let process = world.process().await;
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_seen, report.entries_deleted, report.failures), (3, 2, 4), "{report:?}");
    let left: BTreeSet<String> = entries(&world.objects).into_iter().collect();
    assert_eq!(left, foreign.map(str::to_owned).into());
}

#[tokio::test]
async fn a_lease_of_the_current_hour_is_never_touched() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    take(&leases, "a").await;
    bed.clock.advance(Duration::from_secs(1800 + 899));
    let report = bed.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_seen, report.of("lease").cleared), (0, 0), "{report:?}");
    bed.clock.advance(Duration::from_secs(1));
    let report = bed.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_seen, report.of("lease").cleared), (1, 1), "{report:?}");
}

#[tokio::test]
async fn a_clock_a_day_ahead_deletes_nothing_be_it_ours_or_the_stores() {
    let world = World::new();
    let process = world.process().await;
    take(&process.leases, "a").await;
    let names = world.objects.names();
    let kept = |when: &str| {
        let now: BTreeSet<String> = world.objects.names().into_iter().collect();
        assert!(names.iter().all(|name| now.contains(name)), "{when}: {now:?}");
    };
    let ahead = TestClock::at(world.clock.wall());
    let machine = world.process_that_asks_the_time(&ahead).await;
    ahead.step_wall(DAY.as_millis() as i64);
    let error = machine.store.sweeper().run_once(at_once()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
    kept("this machine is ahead");
    ahead.step_wall(-(DAY.as_millis() as i64));
    world.objects.set_offset_millis(DAY.as_millis() as i64);
    let error = machine.store.sweeper().run_once(at_once()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
    kept("the store is ahead");
    world.objects.set_offset_millis(0);
    let report = machine.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(report.entries_seen, 0, "{report:?}");
    kept("both agree that the hour is not over");
}

#[tokio::test]
async fn neither_a_clock_ahead_on_s3_nor_a_date_ahead_deletes_anything() {
    let bed = Bed::new().await;
    take(&bed.store.leases("default").unwrap(), "a").await;
    let names = bed.server.names();
    for (ours, theirs) in [(DAY.as_millis() as i64, -(DAY.as_millis() as i64)), (0, DAY.as_millis() as i64)] {
        // The server goes by our clock: what moves only ours moves the server's back.
        bed.clock.step_wall(ours);
        bed.server.set_date(theirs);
        let _ = bed.store.sweeper().run_once(at_once()).await;
        assert_eq!(bed.server.names(), names);
        bed.clock.step_wall(-ours);
        bed.server.set_date(0);
    }
}

#[tokio::test]
async fn keeping_alive_polling_looking_listing_and_sweeping_are_no_activity() {
    let world = World::new();
    let process = world.process().await;
    let guard = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap();
    let waiting = tokio::spawn({
        let leases = process.leases.clone();
        async move { leases.acquire_within(&key("a"), &request(), Duration::from_secs(3600)).await }
    });
    crate::common::calm().await;
    let before = process.store.requests();
    for second in 1..=120 {
        world.clock.advance(Duration::from_secs(1));
        crate::common::calm().await;
        assert_eq!(process.store.idle_for(), Duration::from_secs(second));
    }
    let made = process.store.requests().since(&before);
    assert!(made.of(Put) >= 10, "kept alive: {made:?}");
    assert!(made.of(Get) + made.of(Put) > 10, "{made:?}");
    process.leases.peek(&key("a")).await.unwrap();
    process.leases.list(b"", None, 10).await.unwrap();
    process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(process.store.idle_for(), Duration::from_secs(120));
    process.leases.get(&key("b")).await.unwrap();
    assert_eq!(process.store.idle_for(), Duration::ZERO);
    world.clock.advance(Duration::from_secs(1));
    process.store.mark_activity();
    assert_eq!(process.store.idle_for(), Duration::ZERO);
    waiting.abort();
    drop(guard);
}
