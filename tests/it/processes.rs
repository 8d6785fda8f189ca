//! Several processes on one store in memory, each with a clock of its own, and what can be said about them.

pub(crate) use crate::common::{MILLI, granted, settle};
use crate::common::{key, noon};
use leasehold::{
    Hour, Leases, Settings, Store,
    clock::{Clock, Timestamp},
    lease::{Acquired, Grant, Held, Holder, Loss, Renewed},
    store::Probing,
};
use leasehold_testkit::{FaultStore, SeededGenerator, TestClock};
use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

/// How far clocks may differ in these tests: the default.
pub(crate) const SKEW: Duration = Duration::from_secs(1);

/// The time to live of `common::request`.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// When so much has passed since it was written, a lease of `TTL` has ended for everybody: clocks may be slow by 1 in 1,000.
pub(crate) const ENDED: Duration = Duration::from_millis(30_000 + 30 + 1_000 + 1);

/// One store in memory. Its clock is its own; what is late or delayed goes by it.
pub(crate) struct World {
    pub(crate) clock: TestClock,
    pub(crate) objects: FaultStore,
}

/// One opened store: what a process is, as far as leases go.
pub(crate) struct Process {
    pub(crate) clock: TestClock,
    pub(crate) store: Store,
    pub(crate) leases: Leases,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = TestClock::at(noon());
        let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
        Self { clock, objects }
    }

    /// A process that goes by the store's own clock.
    pub(crate) async fn process(&self) -> Process {
        self.process_on(&self.clock).await
    }

    /// A process with a clock of its own, ahead of the store's by so much or behind it. It takes its own for the store's.
    pub(crate) async fn process_off_by(&self, millis: i64) -> Process {
        self.process_on(&TestClock::at(Timestamp::from_millis(self.clock.wall().as_millis() + millis))).await
    }

    pub(crate) async fn process_on(&self, clock: &TestClock) -> Process {
        self.process_with(clock, Settings::default()).await
    }

    pub(crate) async fn process_with(&self, clock: &TestClock, settings: Settings) -> Process {
        let store = Store::builder()
            .object_store(Arc::new(self.objects.clone()))
            .shares_our_clock()
            .lists_in_order()
            .probing(Probing::Never)
            .settings(settings)
            .clock(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        Process::new(clock, store)
    }

    /// A process that reads the store's time off an object, not off its own clock.
    pub(crate) async fn process_that_asks_the_time(&self, clock: &TestClock) -> Process {
        let store = Store::builder()
            .object_store(Arc::new(self.objects.clone()))
            .lists_in_order()
            .probing(Probing::Always)
            .clock(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        Process::new(clock, store)
    }

    /// The record of a key as it is stored.
    pub(crate) fn record(&self, name: &str) -> bytes::Bytes {
        self.objects.object(&record_name(name)).expect("a record").0
    }

    /// The hours in which a key has an entry.
    pub(crate) fn entries(&self, name: &str) -> Vec<String> {
        let end = format!("/{name}");
        let entry =
            |object: String| Some(object.strip_prefix("default/.lease-index/")?.strip_suffix(end.as_str())?.to_owned());
        self.objects.names().into_iter().filter_map(entry).collect()
    }

    /// What stands in the record of a key, by the store's clock.
    pub(crate) async fn holder(&self, name: &str) -> Option<Holder> {
        self.process().await.leases.peek(&key(name)).await.unwrap().holder
    }

    /// The rule that the sweeper depends on: a lease that is in a record has an entry in its hour or an earlier one.
    pub(crate) async fn assert_indexed(&self, name: &str) {
        if let Some(holder) = self.holder(name).await {
            let hour = Hour::of(holder.expires_at).unwrap().to_string();
            let entries = self.entries(name);
            assert!(entries.iter().any(|entry| *entry <= hour), "{holder:?} has entries in {entries:?} only");
        }
    }
}

impl Process {
    pub(crate) fn new(clock: &TestClock, store: Store) -> Self {
        let leases = store.leases("default").unwrap();
        Self { clock: clock.clone(), store, leases }
    }
}

pub(crate) fn record_name(name: &str) -> String {
    format!("default/meta/{name}.pb")
}

pub(crate) fn held(acquired: leasehold::Result<Acquired>) -> Held {
    match acquired {
        Ok(Acquired::Held(held)) => held,
        other => panic!("not held: {other:?}"),
    }
}

pub(crate) fn renewed(renewed: leasehold::Result<Renewed>) -> Grant {
    match renewed {
        Ok(Renewed::Renewed(grant)) => grant,
        other => panic!("not renewed: {other:?}"),
    }
}

pub(crate) fn lost(renewed: leasehold::Result<Renewed>) -> Loss {
    match renewed {
        Ok(Renewed::Lost(loss)) => loss,
        other => panic!("not lost: {other:?}"),
    }
}

/// Moves time on all clocks, in steps, letting everything run in between.
pub(crate) async fn pass(clocks: &[&TestClock], time: Duration, step: Duration) {
    let mut passed = Duration::ZERO;
    while passed < time {
        settle().await;
        let by = step.min(time - passed);
        clocks.iter().for_each(|clock| clock.advance(by));
        passed += by;
    }
    settle().await;
}

/// Runs something to its end, moving time on these clocks by `step` whenever it waits for it.
pub(crate) async fn moving<T>(clocks: &[&TestClock], step: Duration, run: impl Future<Output = T>) -> T {
    let mut run = pin!(run);
    for _ in 0..100_000 {
        for _ in 0..20 {
            if let Poll::Ready(done) = futures_util::poll!(run.as_mut()) {
                return done;
            }
            tokio::task::yield_now().await;
        }
        clocks.iter().for_each(|clock| clock.advance(step));
    }
    panic!("no end in sight");
}

/// Starts something and stops looking at it when it waits for time, as if its caller had been descheduled there.
pub(crate) async fn start<T>(run: &mut (impl Future<Output = T> + Unpin)) {
    for _ in 0..200 {
        assert!(futures_util::poll!(&mut *run).is_pending(), "it came to its end");
        tokio::task::yield_now().await;
    }
}
