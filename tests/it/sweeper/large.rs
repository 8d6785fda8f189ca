//! A listing may take longer than any single request.

use super::{PAST, at_once, entries, file_stale};
use crate::{
    common::noon,
    memory::{SECOND, settle},
};
use leasehold::{
    Store,
    clock::Clock,
    fsck::FsckOptions,
    store::{Probing, RequestKind::List},
    sweep::StoppedBy,
};
use leasehold_testkit::{Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
use std::{pin::pin, sync::Arc};

/// More than the half minute that a request for a page may take, at a second for each thousand.
const COUNT: usize = 35_000;

/// What comes of it as time passes.
async fn answer<T>(clock: &TestClock, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = settle() => clock.advance(SECOND),
        }
    }
}

#[tokio::test]
async fn a_store_that_lists_in_no_order_and_slowly_is_listed_checked_and_swept() {
    let clock = TestClock::at(noon());
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    file_stale(&objects, "default", COUNT);
    clock.advance(PAST);
    let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock();
    let store = builder.clock(Arc::new(clock.clone())).probing(Probing::Never).open().await.unwrap();
    objects.faults().script(Rule::always(Op::List, Fault::Delay(SECOND)).on(".lease-index"));

    let before = clock.monotonic();
    let leases = store.leases("default").unwrap();
    let filed = answer(&clock, leases.filed(10)).await.unwrap();
    assert_eq!((filed.keys.len(), filed.more), (0, false), "the hour is over");
    assert!(clock.monotonic().since(before) > 30 * SECOND, "longer than one request may take");

    let report = answer(&clock, store.fsck(FsckOptions::new())).await.unwrap();
    assert_eq!((report.entries, report.failures), (COUNT as u64, 0), "{report:?}");

    let before = store.requests();
    let report = answer(&clock, store.sweeper().run_once(at_once())).await.unwrap();
    assert_eq!((report.entries_deleted, report.stopped_by), (COUNT as u64, Some(StoppedBy::Complete)), "{report:?}");
    assert_eq!(entries(&objects), [""; 0]);
    // The namespaces and one listing for the pass; our own index; semaphores and streams.
    assert_eq!(store.requests().since(&before).of(List), 5);
}
