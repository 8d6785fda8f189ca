//! What a Prometheus server scrapes of the sweeper. A process of its own: a process has one recorder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[path = "shared/notes.rs"]
mod notes;

use leasehold::{
    Key, Store,
    clock::{Clock, Timestamp},
    decision::Decision,
    lease::Request,
    store::Probing,
    sweep::{StoppedBy, SweepOptions},
};
use leasehold_testkit::{FaultStore, SeededGenerator, TestClock};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// The value of one series, labels and all, as a scrape shows it.
fn value(scraped: &str, series: &str) -> f64 {
    let line = scraped.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} in:\n{scraped}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[allow(clippy::too_many_lines, reason = "one process has one recorder, and so one test")]
#[tokio::test]
async fn the_sweepers_work_is_scraped_with_the_right_values() {
    let prometheus = PrometheusBuilder::new().install_recorder().unwrap();
    let clock = TestClock::at(Timestamp::from_millis(1_767_227_400_000));
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().lists_in_order();
    let builder = builder.kind(notes::Notes::new(&objects));
    let store = builder.probing(Probing::Never).clock(Arc::new(clock.clone())).open().await.unwrap();
    let (leases, decisions) = (store.leases("default").unwrap(), store.decisions());
    let request = Request::new(Duration::from_secs(30));
    let take = async |name: &str| {
        leases.acquire(&Key::new(name).unwrap(), &request).await.unwrap().granted().expect("granted")
    };

    // Two decisions, and a day later five leases that end, one of which another process takes over; and one given back.
    for _ in 0..2 {
        let _ = decisions.decide(decisions.begin(), Decision::Commit).await.unwrap();
    }
    clock.advance(Duration::from_secs(24 * 3600));
    notes::write(&objects, "default", "old", clock.wall());
    for number in 0..5 {
        take(&format!("ended-{number}")).await;
    }
    let released = take("released").await;
    leases.release(&released).await.unwrap();
    clock.advance(Duration::from_secs(3600 + 900));
    take("ended-0").await;
    objects.put_object("default/meta/bad.pb", "not a record");
    objects.put_object("default/.lease-index/2026010200/bad", "{}");

    // A run that activity interrupts after its first entry; and one that is left alone.
    let seen = Arc::new(AtomicU64::new(0));
    let options = SweepOptions::new().op_delay(Duration::from_millis(500)).heed_activity(true).progress({
        let seen = Arc::clone(&seen);
        move |report| seen.store(report.entries_seen, SeqCst)
    });
    let interrupted = tokio::spawn({
        let store = store.clone();
        async move { store.sweeper().run_once(options).await.unwrap() }
    });
    let began = clock.monotonic();
    while !interrupted.is_finished() {
        clock.wait_for_sleepers(1).await;
        if seen.load(SeqCst) == 1 {
            clock.advance(Duration::from_millis(250));
            store.mark_activity();
            clock.advance(Duration::from_millis(250));
            break;
        }
        clock.advance(Duration::from_millis(500));
        tokio::task::yield_now().await;
    }
    let interrupted = interrupted.await.unwrap();
    let took = clock.monotonic().since(began).as_secs_f64();
    assert_eq!((interrupted.stopped_by, interrupted.entries_seen), (Some(StoppedBy::Activity), 1));
    let complete = store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!(complete.stopped_by, Some(StoppedBy::Complete));

    let scraped = prometheus.render();
    let value = |series: &str| value(&scraped, series);
    assert_eq!(value(r#"leasehold_leases_cleared_total{by="sweeper"}"#), 4.);
    assert_eq!(value(r#"leasehold_leases_cleared_total{by="operation"}"#), 1.);
    assert_eq!(value(r#"leasehold_markers_deleted_total{by="sweeper"}"#), 2.);
    // Five that ended (one has a later entry now), the one given back, two decisions, and a note.
    assert_eq!(value("leasehold_index_entries_deleted_total"), 9.);
    let of_kind =
        |kind, outcome| value(&format!("leasehold_sweep_settled_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"));
    assert_eq!((of_kind("lease", "cleared"), of_kind("lease", "entry_deleted")), (4., 6.));
    assert_eq!((of_kind("decision", "deleted"), of_kind("decision", "entry_deleted")), (2., 2.));
    assert_eq!((of_kind("note", "deleted"), of_kind("note", "entry_deleted"), of_kind("note", "moved")), (1., 1., 0.));
    // Those of two decisions, and of seven grants: one key was taken twice.
    assert_eq!(value("leasehold_index_entries_filed_total"), 9.);
    assert_eq!(value("leasehold_sweep_requests_total"), (interrupted.requests + complete.requests) as f64);
    assert!(scraped.contains("# TYPE leasehold_sweep_request_share gauge"));
    let bad = (interrupted.failures + complete.failures) as f64;
    assert!(bad >= 1.);
    assert_eq!(value("leasehold_sweep_failures_total"), bad);
    assert_eq!(value("leasehold_index_entries_kept_total"), bad);
    assert_eq!(value("leasehold_sweep_aborts_total"), 1.);
    assert_eq!(value(r#"leasehold_sweep_runs_total{ended="activity"}"#), 1.);
    assert_eq!(value(r#"leasehold_sweep_runs_total{ended="complete"}"#), 1.);
    assert_eq!(value("leasehold_sweep_duration_seconds_count"), 2.);
    assert_eq!(value("leasehold_sweep_duration_seconds_sum"), took);
    let now = 1_767_227_400. + 24. * 3600. + 4500. + took;
    assert_eq!(value("leasehold_sweep_last_completed_timestamp_seconds"), now);
    // The beginning of the first hour of the second day.
    assert_eq!(value("leasehold_sweep_oldest_hour_timestamp_seconds"), 1_767_225_600. + 24. * 3600.);
    for name in ["leasehold_leases_cleared_total", "leasehold_sweep_aborts_total", "leasehold_sweep_runs_total"] {
        assert!(scraped.contains(&format!("# TYPE {name} counter")), "{name} in:\n{scraped}");
        assert!(scraped.contains(&format!("# HELP {name} ")), "{name} in:\n{scraped}");
    }
    // A second look changes nothing: a dry run is not counted.
    store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO).dry_run(true)).await.unwrap();
    assert_eq!(self::value(&prometheus.render(), "leasehold_sweep_duration_seconds_count"), 2.);
}
