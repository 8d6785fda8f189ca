//! A panic in a store, clock or generator that was handed in ends an entry or a run, and never the sweeping.

use super::{PAST, at_once, entries, file_stale};
use crate::{
    common::noon,
    memory::{SECOND, settle},
    said::Said,
};
use async_trait::async_trait;
use leasehold::{
    Generator, Settings, Store,
    clock::{Clock, Moment, Timestamp},
    store::Probing,
    sweep::StoppedBy,
};
use leasehold_testkit::{Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

/// A clock whose sleep panics: so does every request that the store is told to delay.
#[derive(Debug)]
struct Sleepless(TestClock);

#[async_trait]
impl Clock for Sleepless {
    fn wall(&self) -> Timestamp {
        self.0.wall()
    }

    fn monotonic(&self) -> Moment {
        self.0.monotonic()
    }

    async fn sleep(&self, _: Duration) {
        panic!("the store panics");
    }
}

/// A clock that panics when it is told to.
#[derive(Debug, Clone)]
struct Fickle {
    clock: TestClock,
    readings: Arc<AtomicBool>,
    sleeps: Arc<AtomicU32>,
}

#[async_trait]
impl Clock for Fickle {
    fn wall(&self) -> Timestamp {
        assert!(!self.readings.swap(false, SeqCst), "the clock panics");
        self.clock.wall()
    }

    fn monotonic(&self) -> Moment {
        self.clock.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
        let left = self.sleeps.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "the clock panics after a sleep");
    }
}

/// A generator that panics when it is told to.
#[derive(Debug)]
struct Moody(SeededGenerator, Arc<AtomicBool>);

impl Generator for Moody {
    fn fill(&self, bytes: &mut [u8]) {
        assert!(!self.1.swap(false, SeqCst), "the generator panics");
        self.0.fill(bytes);
    }
}

struct Scene {
    clock: TestClock,
    fickle: Fickle,
    moody: Arc<AtomicBool>,
    objects: FaultStore,
    store: Store,
}

impl Scene {
    /// Entries of an hour that can be swept.
    async fn new(count: usize) -> Self {
        let clock = TestClock::at(noon());
        let objects = FaultStore::new(Arc::new(Sleepless(clock.clone())), Arc::new(SeededGenerator::new(1)));
        file_stale(&objects, "default", count);
        clock.advance(PAST);
        let fickle = Fickle { clock: clock.clone(), readings: Arc::default(), sleeps: Arc::default() };
        let moody = Arc::new(AtomicBool::new(false));
        let mut settings = Settings::default();
        settings.sweep.rest_spread = Duration::ZERO;
        let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().lists_in_order();
        let builder = builder.generator(Arc::new(Moody(SeededGenerator::new(7), Arc::clone(&moody))));
        let builder = builder.probing(Probing::Never).settings(settings).clock(Arc::new(fickle.clone()));
        let store = builder.open().await.unwrap();
        Self { clock, fickle, moody, objects, store }
    }

    fn panics_once(&self, op: Op, on: &str) {
        self.objects.faults().script(Rule::once(op, Fault::Delay(SECOND)).on(on));
    }

    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.clock.advance(SECOND);
            settle().await;
        }
    }
}

#[tokio::test]
async fn a_panic_in_the_store_leaves_one_entry_alone_and_the_rest_is_swept() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let scene = Scene::new(10).await;
    scene.panics_once(Op::Get, "meta/k-00003");
    let report = scene.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_deleted, report.entries_kept, report.failures), (9, 1, 1), "{report:?}");
    assert_eq!(report.stopped_by, Some(StoppedBy::Complete));
    assert!(report.last_error.is_some_and(|error| error.contains("the store panics")));
    assert_eq!(said.count(&["settling an entry panicked"]), 1);
    let report = scene.store.sweeper().run_once(at_once()).await.unwrap();
    assert_eq!((report.entries_deleted, report.failures), (1, 0), "{report:?}");
}

#[tokio::test]
async fn a_panic_while_listing_or_deleting_ends_one_run_and_a_later_one_works() {
    for (op, on) in [(Op::List, ""), (Op::List, "lease-index"), (Op::Delete, "lease-index")] {
        let scene = Scene::new(5).await;
        let _sweeper = scene.store.sweeper().start();
        settle().await;
        scene.panics_once(op, on);
        scene.pass(6 * 60 * SECOND).await;
        let stats = scene.store.stats();
        assert_eq!((stats.sweeps_failed, stats.sweep_failures), (1, 1), "{op:?} {on}");
        scene.pass(10 * 60 * SECOND).await;
        assert_eq!(entries(&scene.objects), [""; 0], "{op:?} {on}");
        assert_eq!(scene.store.stats().sweeps_complete, 1);
    }
}

#[tokio::test]
async fn a_panic_in_the_generator_ends_one_run() {
    let scene = Scene::new(5).await;
    file_stale(&scene.objects, "other", 5);
    let _sweeper = scene.store.sweeper().start();
    settle().await;
    scene.moody.store(true, SeqCst);
    scene.pass(20 * 60 * SECOND).await;
    let stats = scene.store.stats();
    assert_eq!((stats.sweeps_failed, stats.sweeps_complete, stats.entries_deleted), (1, 1, 10));
}

#[tokio::test]
async fn a_panic_in_the_clock_ends_one_run_or_one_round() {
    let scene = Scene::new(5).await;
    let _sweeper = scene.store.sweeper().start();
    settle().await;
    scene.fickle.readings.store(true, SeqCst);
    scene.pass(20 * 60 * SECOND).await;
    assert_eq!((scene.store.stats().sweeps_failed, scene.store.stats().entries_deleted), (1, 5));
    // No run is under way: it is the wait for the next tick that panics.
    let scene = Scene::new(5).await;
    let _sweeper = scene.store.sweeper().start();
    settle().await;
    scene.fickle.sleeps.store(2, SeqCst);
    scene.pass(20 * 60 * SECOND).await;
    assert_eq!(scene.fickle.sleeps.load(SeqCst), 0);
    assert_eq!(scene.store.stats().entries_deleted, 5);
}
