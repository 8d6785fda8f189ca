//! What a whole pass does: fairness between namespaces, dry runs, markers, faulty listings, two sweepers.

use super::*;

#[tokio::test]
async fn no_namespace_starves_beside_a_huge_one_even_with_restarts_after_every_run() {
    const SMALL: usize = 49;
    for series in 0..5 {
        let world = World::new();
        for number in 0..SMALL {
            file_stale(&world.objects, &format!("n-{number:02}"), 4);
        }
        file_stale(&world.objects, "n-24-huge", 10_000);
        world.clock.advance(PAST);
        let small_ones = || entries(&world.objects).iter().filter(|name| !name.contains("huge")).count();
        let mut runs = 0;
        while small_ones() > 0 {
            let store = seeded(&world.objects, &world.clock, 100 * series + runs, Settings::default()).await;
            let report = store.sweeper().run_once(at_once().max_ops(250)).await.unwrap();
            assert_eq!(report.entries_seen, 250, "{report:?}");
            runs += 1;
            assert!(runs <= 15, "starved: {} are left", small_ones());
        }
        println!("all small namespaces were served after {runs} runs");
    }
}

#[tokio::test]
async fn in_one_process_each_namespace_has_a_turn_before_a_huge_one_has_its_second() {
    let world = World::new();
    for number in 0..49 {
        file_stale(&world.objects, &format!("n-{number:02}"), 4);
    }
    file_stale(&world.objects, "n-24-huge", 10_000);
    world.clock.advance(PAST);
    let process = world.process().await;
    let small = Arc::new(Mutex::new(Vec::new()));
    let (objects, noted) = (world.objects.clone(), Arc::clone(&small));
    let count = move |report: &Report| {
        if report.entries_seen == 250 + 49 * 4 + 1 {
            *noted.lock().unwrap() = entries(&objects);
        }
    };
    process.store.sweeper().run_once(at_once().progress(count)).await.unwrap();
    let left = small.lock().unwrap();
    assert!(left.len() == 9750 && left.iter().all(|name| name.contains("huge")), "{}", left.len());
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_done_and_writes_nothing() {
    let world = World::new();
    let process = world.process().await;
    let decisions = process.store.decisions();
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    world.clock.advance(DAY - Duration::from_secs(1800));
    take(&process.leases, "a").await;
    let grant = take(&process.leases, "b").await;
    process.leases.release(&grant).await.unwrap();
    world.clock.advance(Duration::from_secs(2 * 3600));
    let (names, changes) = (world.objects.names(), changes(&world.objects));
    let dry = process.store.sweeper().run_once(at_once().dry_run(true)).await.unwrap();
    assert_eq!(named(&changes), []);
    assert_eq!(world.objects.names(), names);
    assert_eq!((dry.of("lease").cleared, dry.of("decision").deleted, dry.entries_deleted), (1, 1, 3), "{dry:?}");
    assert_eq!(process.store.stats().sweeps_complete, 0, "and counts nothing");
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(figures(&report), figures(&dry));
    assert_eq!(report.of("decision").deleted, dry.of("decision").deleted);
}

#[tokio::test]
async fn a_pass_over_one_namespace_leaves_all_others_alone() {
    let world = World::new();
    let process = world.process().await;
    for namespace in ["a", "b", "c"] {
        file_stale(&world.objects, namespace, 2);
    }
    world.objects.put_object(&format!(".txn-decisions/e/{HOUR}/019b76da-a800-7000-8000-000000000001"), "{}");
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once().namespace(Namespace::new("b").unwrap())).await.unwrap();
    assert_eq!(figures(&report), (2, 0, 2, 0, 0), "{report:?}");
    let left = entries(&world.objects);
    assert!(left.len() == 5 && !left.iter().any(|name| name.starts_with("b/")), "{left:?}");
}

#[tokio::test]
async fn progress_is_told_after_every_entry() {
    let world = World::new();
    file_stale(&world.objects, "default", 5);
    let process = world.process().await;
    world.clock.advance(PAST);
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&told);
    let options = at_once().progress(move |report| noted.lock().unwrap().push(report.entries_seen));
    process.store.sweeper().run_once(options).await.unwrap();
    // It is told after the chore of streams as well, which may come at any time.
    let mut told = told.lock().unwrap().clone();
    told.dedup();
    told.retain(|seen| *seen > 0);
    assert_eq!(told, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_marker_is_deleted_before_its_entry() {
    let world = World::new();
    let process = world.process().await;
    let txn = process.store.decisions().begin();
    let _ = process.store.decisions().decide(txn, Decision::Abort).await.unwrap();
    let entry = entries(&world.objects).remove(0);
    world.clock.advance(DAY + PAST - Duration::from_secs(3600));
    let early = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!(early.entries_seen, 0, "{early:?}");
    world.clock.advance(Duration::from_secs(3600));
    let changes = changes(&world.objects);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (1, 1, 0), "{report:?}");
    assert_eq!(named(&changes), [(Op::Delete, format!(".txn-decisions/m/{txn}")), (Op::Delete, entry)]);
    assert_eq!(process.store.decisions().get(txn).await.unwrap(), Told::Forgotten);
}

#[tokio::test]
async fn an_entry_outlives_a_marker_whose_deletion_was_not_confirmed() {
    for fault in [Fault::Refuse(Answer::Status(500)), Fault::Lose(Answer::Drop)] {
        let world = World::new();
        let process = world.process().await;
        let decisions = process.store.decisions();
        let _ = decisions.decide(decisions.begin(), Decision::Commit).await.unwrap();
        world.clock.advance(DAY + PAST);
        world.objects.faults().script(Rule::once(Op::Delete, fault).on(".txn-decisions/m/"));
        let report = process.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (0, 0, 1), "{report:?}");
        assert_eq!(entries(&world.objects).len(), 1);
        let report = process.store.sweeper().run_once(at_once()).await.unwrap();
        assert_eq!((report.entries_deleted, report.failures), (1, 0), "{report:?}");
        assert!(!world.objects.names().iter().any(|name| name.starts_with(".txn-decisions/")));
    }
}

#[tokio::test]
async fn a_marker_filed_under_a_later_hour_loses_only_this_entry() {
    let world = World::new();
    let process = world.process().await;
    let decisions = process.store.decisions();
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    let own = entries(&world.objects);
    // Another decider filed it, and lost.
    world.objects.put_object(&format!(".txn-decisions/e/{HOUR}/{txn}"), "{}");
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_seen, report.of("decision").deleted, report.entries_deleted), (1, 0, 1), "{report:?}");
    assert_eq!(entries(&world.objects), own);
    assert_eq!(world.process().await.store.decisions().get(txn).await.unwrap(), Told::Committed);
}

#[tokio::test]
async fn an_entry_of_a_transaction_that_was_never_decided_is_deleted() {
    let world = World::new();
    let process = world.process().await;
    let txn = process.store.decisions().begin();
    world.objects.put_object(&format!(".txn-decisions/e/{HOUR}/{txn}"), "{}");
    world.objects.put_object(&format!(".txn-decisions/e/{HOUR}/no-transaction"), "{}");
    world.clock.advance(PAST);
    let report = process.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_deleted, report.entries_kept, report.failures), (1, 1, 1), "{report:?}");
}

#[tokio::test]
async fn an_old_torn_unordered_or_doubled_listing_costs_a_pass_and_no_lease() {
    let world = World::new();
    let old = world.process().await;
    for number in 0..40 {
        take(&old.leases, &format!("k-{number}")).await;
    }
    world.clock.advance(PAST);
    let process = world.process().await;
    let live: Vec<_> = {
        let mut live = Vec::new();
        for number in 0..10 {
            live.push(take(&process.leases, &format!("k-{number}")).await);
        }
        live
    };
    let rates = Rates::none().with(Fault::Gap, 250).with(Fault::Stale, 250).with(Fault::Shuffle, 250);
    world.objects.faults().roll(SeededGenerator::new(11), rates.with(Fault::Duplicate, 250));
    let unordered = leasehold::Store::builder().object_store(Arc::new(world.objects.clone())).shares_our_clock();
    let unordered = unordered.probing(leasehold::store::Probing::Never).clock(Arc::new(world.clock.clone()));
    let sweeping = unordered.open().await.unwrap();
    let past = || entries(&world.objects).iter().filter(|name| name.contains(HOUR)).count();
    let mut passes = 0;
    while past() > 0 {
        sweeping.sweeper().run_once(at_once()).await.unwrap();
        passes += 1;
        assert!(passes < 100, "{} are left", past());
    }
    assert!(world.objects.faults().injected().len() >= 3);
    world.objects.faults().clear();
    assert_eq!(sweeping.stats().leases_cleared_by_sweeper, 30);
    for grant in live {
        assert!(matches!(process.leases.renew(&grant).await.unwrap(), Renewed::Renewed(_)));
    }
}

#[tokio::test]
async fn leases_work_where_listing_is_denied_and_are_cleared_where_deleting_is() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    take(&leases, "a").await;
    bed.clock.advance(PAST);
    bed.server.deny(Op::List);
    let error = bed.store.sweeper().run_once(at_once()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    take(&leases, "b").await;
    bed.server.allow(Op::List);
    bed.server.deny(Op::Delete);
    let report = bed.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.of("lease").cleared, report.entries_deleted, report.failures), (1, 0, 1), "{report:?}");
    assert!(report.last_error.is_some_and(|error| error.contains("AccessDenied") || error.contains("denied")));
    bed.server.allow(Op::Delete);
    let report = bed.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.of("lease").cleared, report.entries_deleted, report.failures), (0, 1, 0), "{report:?}");
}

#[tokio::test]
async fn two_sweepers_at_once_clear_every_lease_exactly_once() {
    let world = World::new();
    let old = world.process().await;
    for number in 0..20 {
        take(&old.leases, &format!("k-{number}")).await;
    }
    world.clock.advance(PAST);
    let (one, other) = (world.process().await, world.process().await);
    // Both have read and judged before either of them swaps.
    world.objects.faults().script(Rule::always(Op::Put, Fault::Delay(Duration::from_millis(1))).on("meta/"));
    let sweep =
        |store: leasehold::Store| tokio::spawn(async move { store.sweeper().run_once(at_once()).await.unwrap() });
    let (first, second) = (sweep(one.store.clone()), sweep(other.store.clone()));
    while !(first.is_finished() && second.is_finished()) {
        world.clock.advance(Duration::from_millis(1));
        crate::common::calm().await;
    }
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(first.of("lease").cleared + second.of("lease").cleared, 20, "{first:?} {second:?}");
    assert!(first.entries_kept + second.entries_kept > 0, "they met: {first:?} {second:?}");
    assert_eq!(first.failures + second.failures, 0);
    assert_eq!(entries(&world.objects), Vec::<String>::new());
}
