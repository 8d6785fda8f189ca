//! Random histories: without faults they agree with a model of a lease that fits on a page; with faults, with clients
//! that give up in the middle and with clocks that differ, no promise is broken.
//!
//! Everything follows from one seed. A failure prints it, and what it was shrunk to; `LEASEHOLD_SEED` replays it,
//! `LEASEHOLD_CASES` asks for more.

mod agreement;
mod faults;

use crate::common::{Memory, calm, key};
use async_trait::async_trait;
use leasehold::{
    Clock, ErrorKind, Hour, Key, LeaseId, Leases, Ttl,
    clock::{Moment, Timestamp},
    lease::{Acquired, Grant, Renewed, Request, Status},
};
use leasehold_testkit::{Answer, Applied, Fault, Rates, SeededGenerator, TestClock};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;

const CLIENTS: usize = 3;
const KEYS: usize = 2;
const SKEW: Duration = Duration::from_secs(1);
/// How far the clock of each client is from true time, in milliseconds: within the skew of each other.
const OFFSETS: [i64; CLIENTS] = [0, 450, -500];

fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let number = |name: &str, default: u64| env::var(name).map_or(default, |text| text.parse().unwrap());
    let seed = number("LEASEHOLD_SEED", 1);
    let cases = u32::try_from(number("LEASEHOLD_CASES", cases.into())).unwrap();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(failure) = runner.run(strategy, test) {
        panic!("replay with LEASEHOLD_SEED={seed} LEASEHOLD_CASES={cases}\n{failure}");
    }
}

/// A clock that is a little ahead or behind.
#[derive(Debug)]
struct Skewed {
    clock: TestClock,
    millis: i64,
}

#[async_trait]
impl Clock for Skewed {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall().as_micros() + self.millis * 1000)
    }

    fn monotonic(&self) -> Moment {
        self.clock.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }
}

async fn clients(memory: &Memory, seed: u64) -> Vec<(Arc<Skewed>, Leases)> {
    let mut clients = Vec::new();
    for (number, millis) in OFFSETS.into_iter().enumerate() {
        let clock = Arc::new(Skewed { clock: memory.clock.clone(), millis });
        let builder = memory.builder(seed.wrapping_mul(8) + number as u64 + 1).clock(clock.clone());
        let store = builder.open().await.unwrap();
        clients.push((clock, store.leases("default").unwrap()));
    }
    clients
}

fn name(number: usize) -> Key {
    key(["a", "b"][number])
}

fn asking(ttl_ms: u64, asked: Option<Asked>) -> Request {
    let request = Request::new(Duration::from_millis(ttl_ms));
    match asked {
        None => request.owner("plain"),
        Some((id, owner)) => request.owner(format!("owner-{owner}")).request_id(format!("request-{id}")),
    }
}

/// Request id and owner.
type Asked = (u8, u8);

fn asked() -> impl Strategy<Value = Option<Asked>> {
    option::weighted(0.4, (0..2u8, 0..2u8))
}

// What stands in the store, as another tool would read it.

#[derive(Clone, PartialEq, Message)]
struct WireRecord {
    #[prost(uint64, tag = "4")]
    revision: u64,
    #[prost(uint64, tag = "5")]
    last_fence: u64,
    #[prost(message, optional, tag = "6")]
    lease: Option<WireLease>,
    #[prost(uint64, tag = "9")]
    hour: u64,
}

#[derive(Clone, PartialEq, Message)]
struct WireLease {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(string, optional, tag = "2")]
    request_id: Option<String>,
    #[prost(uint64, tag = "6")]
    fence: u64,
    #[prost(int64, tag = "8")]
    expires_ms: i64,
}

/// Looks at every write as it lands.
#[derive(Debug, Default)]
struct Watch {
    records: BTreeMap<String, WireRecord>,
    entries: BTreeSet<String>,
    fences: BTreeMap<String, BTreeSet<u64>>,
    problems: Vec<String>,
}

impl Watch {
    fn over(memory: &Memory) -> Arc<Mutex<Self>> {
        let watch = Arc::new(Mutex::new(Self::default()));
        let shared = Arc::clone(&watch);
        memory.store.set_observer(Box::new(move |applied| shared.lock().unwrap().see(applied)));
        watch
    }

    fn see(&mut self, applied: &Applied) {
        let name = &applied.name;
        let Some(body) = &applied.body else {
            return self.problems.push(format!("{name} was deleted"));
        };
        if name.contains("/.lease-index/") {
            self.entries.insert(name.clone());
        }
        let Some(key) = name.strip_prefix("default/meta/").and_then(|name| name.strip_suffix(".pb")) else { return };
        let record = WireRecord::decode(body.clone()).unwrap();
        let before = self.records.insert(key.to_owned(), record.clone()).unwrap_or_default();
        let mut must = |is_so: bool, what: &str| {
            if !is_so {
                self.problems.push(format!("{what}: {before:?}, then {record:?}"));
            }
        };
        must(record.revision == before.revision + 1, "revisions rise one by one");
        must(record.last_fence >= before.last_fence, "fences do not fall");
        let Some(lease) = &record.lease else { return };
        match before.lease.as_ref().filter(|old| old.id == lease.id) {
            Some(old) => {
                must(old.fence == lease.fence, "a lease keeps its fence");
                must(old.expires_ms <= lease.expires_ms, "an expiry does not move back");
            }
            None => {
                must(lease.fence > before.last_fence && lease.fence == record.last_fence, "a grant has a new fence");
                must(self.fences.entry(key.to_owned()).or_default().insert(lease.fence), "a fence is used once");
            }
        }
        let hour = Hour::of(Timestamp::from_millis(lease.expires_ms)).unwrap().to_string();
        must(record.hour.to_string() == hour, "the record knows its hour");
        must(self.entries.contains(&format!("default/.lease-index/{hour}/{key}")), "no lease without an entry");
    }

    fn verdict(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.problems.is_empty(), "{:#?}", self.problems);
        Ok(())
    }
}

type TestResult = Result<(), TestCaseError>;

fn on_one_thread<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run)
}
