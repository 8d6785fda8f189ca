//! When it runs, how fast, for how long, and what makes it stop.

use super::{HOUR, PAST, entries, file_stale, seeded, take};
use crate::{
    common::key,
    memory::{MILLI, SECOND, settle},
    processes::World,
    said::Said,
};
use leasehold::{
    Settings, Store,
    clock::Clock,
    store::RequestKind::{Get, List},
    sweep::{StoppedBy, SweepOptions, SweepSettings},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{sync::Arc, time::Duration};

const TENTH: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);
const IDLE_GRACE: Duration = Duration::from_secs(300);

/// The defaults, but for chance.
fn settings(change: impl FnOnce(&mut SweepSettings)) -> Settings {
    let mut settings = Settings::default();
    settings.sweep.rest_spread = Duration::ZERO;
    change(&mut settings.sweep);
    settings
}

/// Entries of an hour that can be swept, and a process that has just been started.
async fn with_entries(count: usize, change: impl FnOnce(&mut SweepSettings)) -> (World, Store) {
    let world = World::new();
    file_stale(&world.objects, "default", count);
    world.clock.advance(PAST);
    let store = seeded(&world.objects, &world.clock, 1, settings(change)).await;
    (world, store)
}

/// Time passes in steps, and after each one all tasks run until they wait.
async fn pass(world: &World, time: Duration, step: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(step);
        world.clock.advance(step);
        settle().await;
        left -= step;
    }
}

/// How many runs have ended, however.
fn runs(store: &Store) -> u64 {
    let stats = store.stats();
    stats.sweeps_complete
        + stats.sweeps_ended_by_ops
        + stats.sweeps_ended_by_time
        + stats.sweeps_ended_by_activity
        + stats.sweeps_stopped
        + stats.sweeps_failed
}

fn reads(store: &Store) -> u64 {
    store.requests().of(Get)
}

/// Until a run has looked at its first entry: before that it lists, at the same pace.
async fn first_read(world: &World, store: &Store) {
    let before = reads(store);
    for _ in 0..20 {
        if reads(store) > before {
            return;
        }
        pass(world, TENTH / 2, TENTH / 2).await;
    }
    panic!("nothing was looked at");
}

#[tokio::test]
async fn nothing_runs_before_the_grace_is_over() {
    let (world, store) = with_entries(3, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    let before = store.requests();
    pass(&world, IDLE_GRACE - SECOND, SECOND).await;
    assert_eq!(store.requests().since(&before).total(), 0);
    pass(&world, SECOND, SECOND).await;
    assert_eq!(store.requests().since(&before).of(List), 1);
    pass(&world, SECOND, TENTH).await;
    assert_eq!((store.stats().entries_deleted, store.stats().sweeps_complete), (3, 1));
}

#[tokio::test]
async fn whoever_looks_sees_what_it_is_doing_and_how_its_runs_ended() {
    let (world, store) = with_entries(3, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    assert_eq!(
        (store.sweeper().state().running, store.sweeper().state().rests_until, store.sweeper().state().runs.len()),
        (false, None, 0)
    );
    pass(&world, IDLE_GRACE, SECOND).await;
    assert!(store.sweeper().state().running);
    pass(&world, SECOND, TENTH).await;
    let seen = store.sweeper().state();
    assert!(!seen.running && seen.rests_until > Some(world.clock.wall()), "{seen:?}");
    assert_eq!((seen.runs[0].report.entries_deleted, seen.runs[0].by_hand), (3, false));
    store.sweeper().run_once(super::at_once().dry_run(true)).await.unwrap();
    assert_eq!(store.sweeper().state().runs.len(), 1, "a dry run has done nothing");
    store.sweeper().run_once(super::at_once()).await.unwrap();
    let seen = store.sweeper().state();
    assert_eq!((seen.runs.len(), seen.runs[0].by_hand, seen.runs[0].ended_at), (2, true, world.clock.wall()));
}

#[tokio::test]
async fn an_operation_before_the_grace_is_over_makes_it_begin_anew() {
    let (world, store) = with_entries(1, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE - SECOND, SECOND).await;
    store.leases("default").unwrap().get(&key("x")).await.unwrap();
    pass(&world, IDLE_GRACE - SECOND, SECOND).await;
    assert_eq!(store.stats().entries_deleted, 0);
    // The next tick after that.
    pass(&world, 31 * SECOND, SECOND).await;
    assert_eq!(store.stats().entries_deleted, 1);
}

#[tokio::test]
async fn one_operation_stops_a_run_before_the_next_entry_and_it_resumes_there() {
    let (world, store) = with_entries(10, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    let before = reads(&store);
    pass(&world, IDLE_GRACE, SECOND).await;
    first_read(&world, &store).await;
    pass(&world, 2 * TENTH + TENTH / 4, TENTH / 4).await;
    assert_eq!(reads(&store) - before, 3);
    assert_eq!(entries(&world.objects).len(), 10, "in the middle of a page");
    store.leases("default").unwrap().get(&key("k-00003")).await.unwrap();
    assert_eq!(reads(&store) - before, 4, "the operation's own");
    pass(&world, SECOND, TENTH / 2).await;
    assert_eq!(reads(&store) - before, 4);
    assert_eq!(store.stats().sweeps_ended_by_activity, 1);
    assert_eq!(entries(&world.objects)[0], format!("default/.lease-index/{HOUR}/k-00003"), "what it judged is deleted");
    assert_eq!(entries(&world.objects).len(), 7);
    pass(&world, IDLE_GRACE + 31 * SECOND, SECOND).await;
    assert_eq!(entries(&world.objects), Vec::<String>::new());
    assert_eq!(reads(&store) - before, 11, "no entry was looked at twice");
    assert_eq!((runs(&store), store.stats().sweeps_complete), (2, 1));
}

#[tokio::test]
async fn a_pass_by_hand_heeds_activity_only_when_asked_to() {
    for heeds in [false, true] {
        let (world, store) = with_entries(10, |_| {}).await;
        let options = SweepOptions::new();
        let options = if heeds { options.heed_activity(true) } else { options };
        let sweep = tokio::spawn({
            let store = store.clone();
            async move { store.sweeper().run_once(options).await.unwrap() }
        });
        settle().await;
        first_read(&world, &store).await;
        pass(&world, 3 * TENTH, TENTH).await;
        store.mark_activity();
        pass(&world, SECOND, TENTH).await;
        let report = sweep.await.unwrap();
        let expected = if heeds { (4, StoppedBy::Activity) } else { (10, StoppedBy::Complete) };
        assert_eq!((report.entries_deleted, report.stopped_by.unwrap()), expected, "{report:?}");
    }
}

#[tokio::test]
async fn a_tick_that_finds_a_run_under_way_skips_and_the_pace_holds() {
    let longest = |sweep: &mut SweepSettings| {
        (sweep.max_ops_per_run, sweep.max_runtime_per_run, sweep.page_size) = (2000, 10 * MINUTE, 1000);
    };
    let (world, store) = with_entries(1000, longest).await;
    let (_one, _other) = (store.sweeper().start(), store.sweeper().start());
    settle().await;
    let before = reads(&store);
    pass(&world, IDLE_GRACE, SECOND).await;
    first_read(&world, &store).await;
    assert_eq!(reads(&store) - before, 1);
    for tenths in 1..1000 {
        pass(&world, TENTH, TENTH / 2).await;
        assert_eq!(reads(&store) - before, 1 + tenths, "one each tenth of a second, whoever else ticks");
        assert!(tenths == 999 || runs(&store) == 0);
    }
    pass(&world, SECOND, TENTH).await;
    assert_eq!(store.stats().sweeps_complete, 1);
    assert_eq!(store.stats().entries_deleted, 1000);
}

#[tokio::test]
async fn a_run_does_no_more_than_it_may_and_listings_count() {
    let (world, store) = with_entries(20, |sweep| sweep.max_ops_per_run = 7).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE, SECOND).await;
    // Four listings (the namespaces, ours, theirs, their semaphores) and twenty entries; then the chore of streams.
    for (ops, ended) in [(7, StoppedBy::Ops), (7, StoppedBy::Ops), (7, StoppedBy::Ops), (3, StoppedBy::Complete)] {
        pass(&world, 2 * SECOND, TENTH).await;
        let last = store.sweeper().state().runs[0].report.clone();
        assert_eq!((last.entries_seen + last.lists, last.stopped_by), (ops, Some(ended)), "{last:?}");
        pass(&world, 28 * SECOND + 6 * TENTH, SECOND).await;
    }
    assert_eq!((store.stats().entries_deleted, store.stats().sweeps_ended_by_ops), (20, 3));
}

#[tokio::test]
async fn a_run_takes_no_longer_than_it_may() {
    let slow = |sweep: &mut SweepSettings| (sweep.op_delay, sweep.max_runtime_per_run) = (SECOND, 10 * SECOND);
    let (world, store) = with_entries(30, slow).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE, SECOND).await;
    pass(&world, 10 * SECOND - MILLI, SECOND).await;
    assert_eq!(runs(&store), 0);
    pass(&world, MILLI, MILLI).await;
    assert_eq!(store.stats().sweeps_ended_by_time, 1);
    let last = store.sweeper().state().runs[0].report.clone();
    assert_eq!(last.entries_seen + last.lists, 10, "{last:?}");
    assert_eq!(store.stats().entries_deleted, last.entries_seen);
}

#[tokio::test]
async fn listings_go_at_the_same_pace_as_entries() {
    let world = World::new();
    for number in 0..50 {
        file_stale(&world.objects, &format!("n-{number:02}"), 1);
    }
    world.clock.advance(PAST);
    let store = seeded(&world.objects, &world.clock, 1, settings(|_| {})).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    let before = store.requests();
    pass(&world, IDLE_GRACE, SECOND).await;
    for tenths in 1..=60 {
        pass(&world, TENTH, TENTH).await;
        let made = store.requests().since(&before);
        assert_eq!(made.of(List) + made.of(Get), 1 + tenths, "one listing finds all namespaces: {made:?}");
    }
}

#[tokio::test]
async fn stopping_does_not_wait_for_the_pace_and_deletes_what_was_judged() {
    let (world, store) = with_entries(10, |_| {}).await;
    let sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE, SECOND).await;
    first_read(&world, &store).await;
    pass(&world, 2 * TENTH, TENTH).await;
    assert_eq!(store.stats().entries_deleted, 0);
    // The clock stands still.
    sweeper.stop().await;
    assert_eq!((store.stats().entries_deleted, store.stats().sweeps_stopped), (3, 1));
    assert_eq!(entries(&world.objects).len(), 7);
}

#[tokio::test]
async fn stopping_finishes_the_entry_in_hand() {
    let world = World::new();
    let leases = world.process().await.leases;
    for name in ["a", "b", "c"] {
        take(&leases, name).await;
    }
    world.clock.advance(PAST);
    let store = seeded(&world.objects, &world.clock, 1, settings(|_| {})).await;
    let sweeper = store.sweeper().start();
    settle().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(SECOND)).on("meta/a"));
    pass(&world, IDLE_GRACE, SECOND).await;
    first_read(&world, &store).await;
    let stopping = tokio::spawn(sweeper.stop());
    settle().await;
    assert!(!stopping.is_finished(), "a swap is under way");
    pass(&world, SECOND, SECOND).await;
    stopping.await.unwrap();
    let stats = store.stats();
    assert_eq!((stats.leases_cleared_by_sweeper, stats.entries_deleted, stats.sweeps_stopped), (1, 1, 1));
    assert_eq!(entries(&world.objects).len(), 2);
}

#[tokio::test]
async fn a_store_that_fails_in_the_middle_of_a_pass_keeps_nothing_that_was_judged() {
    let (world, store) = with_entries(1500, |_| {}).await;
    let failing = Rule::always(Op::List, Fault::Refuse(Answer::Status(500))).on("default/.lease-index");
    world.objects.faults().script(failing.after(1));
    let report = store.sweeper().run_once(super::at_once()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Error), "{report:?}");
    assert_eq!(report.entries_deleted, report.entries_seen);
    assert!(report.entries_deleted >= 750, "{report:?}");
    world.objects.faults().clear();
    let report = store.sweeper().run_once(super::at_once()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
    assert_eq!(entries(&world.objects), Vec::<String>::new());
}

#[tokio::test]
async fn a_listing_that_breaks_off_between_two_pages_is_taken_up_again() {
    let (world, store) = with_entries(1500, |_| {}).await;
    let failing = Rule::once(Op::List, Fault::Refuse(Answer::Status(500))).on("default/.lease-index");
    world.objects.faults().script(failing.after(1));
    let report = store.sweeper().run_once(super::at_once()).await.unwrap();
    assert_eq!((report.stopped_by, report.entries_deleted), (Some(StoppedBy::Complete), 1500), "{report:?}");
}

#[tokio::test]
async fn after_a_complete_pass_no_request_is_made_until_the_next_hour_is_due() {
    let (world, store) = with_entries(3, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE + SECOND, TENTH).await;
    assert_eq!(store.stats().sweeps_complete, 1);
    // It is a second past ten to two; at a quarter past two the hour of one is due.
    for hour in 0..12 {
        let before = store.requests();
        let due = Duration::from_secs(if hour == 0 { 25 * 60 - 1 } else { 3600 - 1 });
        pass(&world, due - SECOND, 30 * SECOND).await;
        assert_eq!(store.requests().since(&before).total(), 0, "hour {hour}");
        pass(&world, 2 * SECOND, SECOND).await;
        let made = store.requests().since(&before);
        // The namespaces, and our own index: there are no leases or decisions here any more.
        assert_eq!((made.of(List), made.total()), (2, 2), "hour {hour}: {made:?}");
        assert_eq!(store.stats().sweeps_complete, 2 + hour);
    }
}

#[tokio::test]
async fn a_fleet_does_not_wake_at_once() {
    let world = World::new();
    world.clock.advance(PAST);
    let mut stores = Vec::new();
    for seed in 0..20 {
        let store = seeded(&world.objects, &world.clock, seed, Settings::default()).await;
        stores.push((store.sweeper().start(), store));
    }
    settle().await;
    pass(&world, IDLE_GRACE, SECOND).await;
    pass(&world, SECOND, TENTH).await;
    assert!(stores.iter().all(|(_, store)| store.stats().sweeps_complete == 1));
    let awake = |passes| stores.iter().filter(|(_, store)| store.stats().sweeps_complete >= passes).count();
    pass(&world, 25 * MINUTE - 2 * SECOND, 10 * SECOND).await;
    assert_eq!(awake(2), 0, "the hour is not due");
    let mut most = 0;
    for _ in 0..31 {
        let before = awake(2);
        pass(&world, MINUTE, 10 * SECOND).await;
        most = most.max(awake(2) - before);
    }
    assert_eq!(awake(2), 20);
    assert!(most <= 6, "{most} in one minute");
}

#[tokio::test]
async fn where_no_listing_is_allowed_it_says_so_once_and_rests_while_leases_work() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let (world, store) = with_entries(5, |_| {}).await;
    world.objects.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(403))));
    let before = store.requests();
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, 6 * 60 * MINUTE, 10 * SECOND).await;
    assert_eq!(said.count(&["may not list"]), 1);
    let tries = store.requests().since(&before).of(List);
    assert!((2..=7).contains(&tries), "once an hour at the most: {tries}");
    let leases = store.leases("default").unwrap();
    let grant = take(&leases, "a").await;
    leases.release(&grant).await.unwrap();
    // Once it may, it does.
    world.objects.faults().clear();
    pass(&world, 2 * 60 * MINUTE, 10 * SECOND).await;
    assert_eq!(store.stats().entries_deleted, 5 + 1);
}

#[tokio::test]
async fn where_no_deleting_is_allowed_it_says_so_once_and_what_was_judged_waits() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let (world, store) = with_entries(5, |_| {}).await;
    world.objects.faults().script(Rule::always(Op::Delete, Fault::Refuse(Answer::Status(403))));
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, 6 * 60 * MINUTE, 10 * SECOND).await;
    assert!(store.stats().sweep_failures > 1, "it has tried again");
    assert_eq!(said.count(&["may not delete"]), 1);
    assert_eq!(said.count(&["could be deleted"]), 0);
    world.objects.faults().clear();
    pass(&world, 2 * 60 * MINUTE, 10 * SECOND).await;
    assert_eq!(store.stats().entries_deleted, 5);
}

#[tokio::test]
async fn in_a_cluster_with_one_sweeper_only_one_sweeps_at_a_time() {
    let alone = |sweep: &mut SweepSettings| sweep.cluster_singleton = true;
    let (world, one) = with_entries(100, alone).await;
    let other = seeded(&world.objects, &world.clock, 2, settings(alone)).await;
    let (_first, _second) = (one.sweeper().start(), other.sweeper().start());
    settle().await;
    pass(&world, IDLE_GRACE, SECOND).await;
    let swept = || (one.stats().entries_deleted, other.stats().entries_deleted);
    for _ in 0..98 {
        pass(&world, TENTH, TENTH).await;
        assert_eq!(runs(&one) + runs(&other), 0, "one is at it, the other has skipped");
    }
    pass(&world, 8 * TENTH, TENTH).await;
    assert_eq!(swept().0 + swept().1, 100);
    assert!(swept().0 == 0 || swept().1 == 0, "{:?}", swept());
    assert_eq!(runs(&one) + runs(&other), 1);
    // The turn was given back: the other one takes its own.
    pass(&world, MINUTE, SECOND).await;
    assert_eq!((one.stats().sweeps_complete, other.stats().sweeps_complete), (1, 1));
}

#[tokio::test]
async fn taking_turns_is_no_activity() {
    let (world, store) = with_entries(300, |sweep| sweep.cluster_singleton = true).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    pass(&world, IDLE_GRACE + 2 * MINUTE, TENTH).await;
    assert_eq!(store.idle_for(), IDLE_GRACE + 2 * MINUTE);
    let stats = store.stats();
    assert_eq!((stats.sweeps_ended_by_time, stats.sweeps_complete, stats.entries_deleted), (1, 1, 300));
}

#[tokio::test]
async fn an_operation_while_the_turn_is_taken_stops_the_run_before_its_first_entry() {
    let (world, store) = with_entries(3, |sweep| sweep.cluster_singleton = true).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(2 * SECOND)).on(".leasehold/meta/"));
    pass(&world, IDLE_GRACE + SECOND, SECOND).await;
    store.mark_activity();
    pass(&world, 2 * SECOND, TENTH).await;
    assert_eq!((store.stats().sweeps_ended_by_activity, store.stats().entries_deleted), (1, 0));
}

#[tokio::test]
async fn it_slows_down_when_the_store_asks_for_patience_and_recovers() {
    let (world, store) = with_entries(100, |_| {}).await;
    let _sweeper = store.sweeper().start();
    settle().await;
    world.objects.faults().script(Rule::once(Op::Get, Fault::Refuse(Answer::Status(503))).on("meta/"));
    let before = reads(&store);
    pass(&world, IDLE_GRACE, SECOND).await;
    first_read(&world, &store).await;
    assert_eq!(reads(&store) - before, 2, "asked again at once");
    // Two tenths each, for sixteen entries without a complaint.
    for entry in 1..=16 {
        pass(&world, TENTH, TENTH).await;
        assert_eq!(reads(&store) - before, 1 + entry);
        pass(&world, TENTH, TENTH).await;
        assert_eq!(reads(&store) - before, 2 + entry);
    }
    for entry in 17..=30 {
        pass(&world, TENTH, TENTH).await;
        assert_eq!(reads(&store) - before, 2 + entry);
    }
}

#[tokio::test]
async fn a_clock_that_was_a_day_ahead_and_is_mended_costs_the_sweeper_no_day() {
    let world = World::new();
    file_stale(&world.objects, "default", 3);
    world.clock.advance(PAST);
    let clock = leasehold_testkit::TestClock::at(world.clock.wall());
    let store = Store::builder().object_store(Arc::new(world.objects.clone())).lists_in_order();
    let store = store.clock(Arc::new(clock.clone())).settings(settings(|_| {})).open().await.unwrap();
    let _sweeper = store.sweeper().start();
    settle().await;
    clock.step_wall(24 * 3600 * 1000);
    let both = async |time: Duration| {
        for _ in 0..time.as_secs() / 10 {
            world.clock.advance(10 * SECOND);
            clock.advance(10 * SECOND);
            settle().await;
        }
    };
    both(10 * MINUTE).await;
    assert_eq!((store.stats().entries_deleted, store.stats().sweeps_failed), (0, 1));
    clock.step_wall(-24 * 3600 * 1000);
    both(120 * MINUTE).await;
    assert_eq!(store.stats().entries_deleted, 3);
}

#[tokio::test]
async fn a_sweeper_whose_handle_was_dropped_ends_with_its_store() {
    let (world, store) = with_entries(3, |_| {}).await;
    drop(store.sweeper().start());
    settle().await;
    pass(&world, IDLE_GRACE + SECOND, TENTH).await;
    assert_eq!(store.stats().entries_deleted, 3, "it runs on while the store is open");
    file_stale(&world.objects, "default", 3);
    drop(store);
    pass(&world, 120 * MINUTE, 10 * SECOND).await;
    assert_eq!(entries(&world.objects).len(), 3, "nobody sweeps any more");
    assert_eq!(world.clock.sleepers(), 0);
}

#[tokio::test]
async fn a_store_that_is_down_is_asked_less_and_less_often() {
    let (world, store) = with_entries(3, |_| {}).await;
    world.objects.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(503))));
    let _sweeper = store.sweeper().start();
    settle().await;
    let before = store.requests();
    pass(&world, 180 * MINUTE, 10 * SECOND).await;
    // After one minute, two, four and so on, until it is every half an hour.
    let made = store.requests().since(&before).of(List);
    assert!((5..=10).contains(&made), "{made} listings");
    world.objects.faults().clear();
    pass(&world, 60 * MINUTE, 10 * SECOND).await;
    assert_eq!(entries(&world.objects), [""; 0]);
}

#[tokio::test]
async fn a_namespace_that_cannot_be_listed_does_not_keep_the_others_waiting() {
    let world = World::new();
    for namespace in ["a", "b", "c"] {
        file_stale(&world.objects, namespace, 3);
    }
    world.clock.advance(PAST);
    let store = seeded(&world.objects, &world.clock, 1, settings(|_| {})).await;
    for denied in ["a/.lease-index", "c/.lease-index"] {
        world.objects.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(503))).on(denied));
    }
    let report = store.sweeper().run_once(SweepOptions::new().dry_run(true).op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!((report.entries_seen, report.failures, report.stopped_by), (3, 2, Some(StoppedBy::Error)), "{report:?}");
    let _sweeper = store.sweeper().start();
    let left = || entries(&world.objects).into_iter().filter(|name| name.starts_with("b/")).count();
    pass(&world, IDLE_GRACE + MINUTE, SECOND).await;
    assert_eq!((left(), entries(&world.objects).len()), (0, 6));
    // Nor with what ends later.
    world.objects.put_object("b/.lease-index/2026010101/later", "{}");
    pass(&world, 120 * MINUTE, 10 * SECOND).await;
    assert_eq!(left(), 0);
    world.objects.faults().clear();
    pass(&world, 60 * MINUTE, 10 * SECOND).await;
    assert_eq!(entries(&world.objects), [""; 0]);
}
