//! The sweeper cleans up what has expired and is not used again, and nothing else.

mod busy;
mod cost;
mod large;
mod panics;
mod rules;
mod runner;
mod traffic;
mod vanished;

use crate::common::{key, request};
use leasehold::{
    Settings, Store,
    lease::{Grant, Leases},
    store::Probing,
    sweep::SweepOptions,
};
use leasehold_testkit::{FaultStore, SeededGenerator, TestClock};
use std::{sync::Arc, time::Duration};

/// From the middle of an hour until that hour may be swept, and half an hour more.
const PAST: Duration = Duration::from_secs(3600 + 900);

/// The hour in which all tests begin.
const HOUR: &str = "2026010100";

/// A pass that does not wait between entries.
fn at_once() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

/// Every index entry that there is.
fn entries(objects: &FaultStore) -> Vec<String> {
    let is_entry = |name: &String| name.contains("/.lease-index/") || name.starts_with(".txn-decisions/e/");
    objects.names().into_iter().filter(is_entry).collect()
}

/// Entries of the first hour that stand for nothing.
fn file_stale(objects: &FaultStore, namespace: &str, count: usize) {
    for number in 0..count {
        objects.put_object(&format!("{namespace}/.lease-index/{HOUR}/k-{number:05}"), "{}");
    }
}

/// A process whose chance is replayed.
async fn seeded(objects: &FaultStore, clock: &TestClock, seed: u64, settings: Settings) -> Store {
    let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock().lists_in_order();
    let builder = builder.probing(Probing::Never).generator(Arc::new(SeededGenerator::new(seed)));
    builder.settings(settings).clock(Arc::new(clock.clone())).open().await.unwrap()
}

async fn take(leases: &Leases, name: &str) -> Grant {
    leases.acquire(&key(name), &request()).await.unwrap().granted().expect("granted")
}
