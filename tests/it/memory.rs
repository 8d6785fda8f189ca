//! Processes on one store in memory, all on a clock that is moved by hand and with nothing else that takes time.

pub(crate) use crate::common::{MILLI, SECOND, settle};
use crate::common::{key, noon};
use leasehold::{
    Leases, Store,
    lease::{Guard, Locked, Request},
    store::{Probing, RequestKind},
};
use leasehold_testkit::{FaultStore, SeededGenerator, TestClock};
use std::{sync::Arc, time::Duration};

/// A store, and a process that uses it.
pub(crate) struct Memory {
    pub(crate) clock: TestClock,
    pub(crate) objects: FaultStore,
    pub(crate) store: Store,
    pub(crate) leases: Leases,
}

impl Memory {
    pub(crate) async fn new() -> Self {
        let clock = TestClock::at(noon());
        let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
        let (store, leases) = process(&objects, &clock).await;
        Self { clock, objects, store, leases }
    }

    /// Another process, by the same clock.
    pub(crate) async fn other(&self) -> Leases {
        process(&self.objects, &self.clock).await.1
    }

    /// Time passes in steps, with whatever happens meanwhile.
    pub(crate) async fn pass(&self, steps: u32, step: Duration) {
        for _ in 0..steps {
            self.clock.advance(step);
            settle().await;
        }
    }

    /// How many reads were made so far.
    pub(crate) fn gets(&self) -> u64 {
        self.store.requests().of(RequestKind::Get)
    }

    /// How many writes were made so far.
    pub(crate) fn puts(&self) -> u64 {
        self.store.requests().of(RequestKind::Put)
    }

    pub(crate) async fn lock(&self, name: &str, request: &Request) -> Guard {
        lock(&self.leases, name, request).await
    }
}

pub(crate) async fn process(objects: &FaultStore, clock: &TestClock) -> (Store, Leases) {
    let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().lists_in_order();
    let store = builder.clock(Arc::new(clock.clone())).probing(Probing::Never).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    (store, leases)
}

pub(crate) async fn lock(leases: &Leases, name: &str, request: &Request) -> Guard {
    match leases.lock_within(&key(name), request, Duration::ZERO).await.unwrap() {
        Locked::Granted(guard) => guard,
        Locked::Held(held) => panic!("{held:?}"),
    }
}
