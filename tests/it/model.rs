//! Random histories: without faults they agree with a model of a lease that fits on a page; with faults, with clients
//! that give up in the middle and with clocks that differ, no promise is broken.
//!
//! Everything follows from one seed. A failure prints it, and what it was shrunk to; `LEASEHOLD_SEED` replays it,
//! `LEASEHOLD_CASES` asks for more.

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

// The model, and histories without faults.

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        client: usize,
        key: usize,
        ttl_ms: u64,
        asked: Option<Asked>,
    },
    Renew {
        client: usize,
        key: usize,
    },
    RenewById {
        client: usize,
        key: usize,
        ttl_ms: Option<u64>,
    },
    Release {
        client: usize,
        key: usize,
    },
    ReleaseById {
        client: usize,
        key: usize,
    },
    Get {
        client: usize,
        key: usize,
    },
    Peek {
        client: usize,
        key: usize,
    },
    Pass {
        micros: u64,
    },
    /// To the edge of the lease on a key, by the clock of a client.
    PassTo {
        client: usize,
        key: usize,
        with_skew: bool,
        micros: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = || select(&[1u64, 1000, 1500, 5000, 30_000, 3_600_000, 7_200_000][..]);
    let at = || (0..CLIENTS, 0..KEYS);
    let passing = prop_oneof![
        select(&[1u64, 999, 1000, 250_000, 1_000_000, 10_000_000, 3_600_000_000, 7_200_000_000][..]),
        0..3_000_000u64,
        0..4_000_000_000u64,
    ];
    let step = prop_oneof![
        6 => (at(), ttl(), asked())
            .prop_map(|((client, key), ttl_ms, asked)| Step::Acquire { client, key, ttl_ms, asked }),
        4 => at().prop_map(|(client, key)| Step::Renew { client, key }),
        1 => (at(), option::of(ttl())).prop_map(|((client, key), ttl_ms)| Step::RenewById { client, key, ttl_ms }),
        3 => at().prop_map(|(client, key)| Step::Release { client, key }),
        1 => at().prop_map(|(client, key)| Step::ReleaseById { client, key }),
        2 => at().prop_map(|(client, key)| Step::Get { client, key }),
        2 => at().prop_map(|(client, key)| Step::Peek { client, key }),
        2 => passing.prop_map(|micros| Step::Pass { micros }),
        4 => (at(), any::<bool>(), select(&[-1000i64, -1, 0, 1, 1000][..]))
            .prop_map(|((client, key), with_skew, micros)| Step::PassTo { client, key, with_skew, micros }),
    ];
    vec(step, 1..60)
}

#[derive(Debug, Clone)]
struct ModelLease {
    id: LeaseId,
    fence: u64,
    expires: Timestamp,
    ttl: Duration,
    asked: Option<Asked>,
}

#[derive(Debug, Clone, Default)]
struct ModelKey {
    lease: Option<ModelLease>,
    last_fence: Option<u64>,
}

#[derive(Debug, Clone)]
struct ModelBelief {
    grant: Grant,
    expires: Timestamp,
    deadline: Moment,
    ttl: Duration,
}

struct Agreement {
    memory: Memory,
    watch: Arc<Mutex<Watch>>,
    clients: Vec<(Arc<Skewed>, Leases)>,
    keys: Vec<ModelKey>,
    beliefs: BTreeMap<(usize, usize), ModelBelief>,
}

/// Whether the limits of the store allow it.
fn is_allowed(ttl_ms: u64) -> bool {
    (1000..=3_600_000).contains(&ttl_ms)
}

fn expiry(ttl: Duration, now: Timestamp) -> Timestamp {
    Ttl::new(ttl).unwrap().expiry(now).unwrap()
}

impl Agreement {
    async fn new() -> Self {
        let memory = Memory::new();
        let clients = clients(&memory, 0).await;
        let watch = Watch::over(&memory);
        Self { memory, watch, clients, keys: vec![ModelKey::default(); KEYS], beliefs: BTreeMap::new() }
    }

    fn now(&self, client: usize) -> (Moment, Timestamp) {
        (self.clients[client].0.monotonic(), self.clients[client].0.wall())
    }

    /// The lease that others must respect at this time.
    fn standing(&self, key: usize, wall: Timestamp) -> Option<&ModelLease> {
        self.keys[key].lease.as_ref().filter(|lease| wall < lease.expires.plus(SKEW).plus(Duration::from_millis(1)))
    }

    fn believe(&mut self, client: usize, key: usize, grant: Grant, deadline: Moment) -> Result<(), TestCaseError> {
        let lease = self.keys[key].lease.clone().unwrap();
        prop_assert_eq!(grant.lease_id(), lease.id);
        prop_assert_eq!(grant.fence().get(), lease.fence);
        prop_assert_eq!(grant.expires_at(), lease.expires);
        prop_assert_eq!(grant.ttl(), lease.ttl);
        prop_assert!(grant.is_valid());
        let belief = ModelBelief { grant, expires: lease.expires, deadline, ttl: lease.ttl };
        self.beliefs.insert((client, key), belief);
        Ok(())
    }

    /// A renewal with a shorter time to live ends no belief before its time.
    fn not_before(&self, client: usize, key: usize, id: LeaseId, deadline: Moment) -> Moment {
        let before = self.beliefs.get(&(client, key)).filter(|belief| belief.grant.lease_id() == id);
        before.map_or(deadline, |before| before.deadline.max(deadline))
    }

    async fn acquire(&mut self, client: usize, key: usize, ttl_ms: u64, asked: Option<Asked>) -> TestResult {
        let (moment, wall) = self.now(client);
        let ttl = Duration::from_millis(ttl_ms);
        let answer = self.clients[client].1.acquire(&name(key), &asking(ttl_ms, asked)).await;
        if !is_allowed(ttl_ms) {
            prop_assert_eq!(answer.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
            return Ok(());
        }
        let answer = answer.unwrap();
        let standing = self.standing(key, wall).cloned();
        match (answer, standing) {
            (Acquired::Held(held), Some(lease)) => {
                prop_assert!(asked.is_none() || lease.asked != asked || wall >= lease.expires, "it is its own lease");
                prop_assert_eq!(held.by.map(|by| by.lease_id), Some(lease.id));
                prop_assert!(held.retry_after >= lease.expires.plus(SKEW).since(wall));
                Ok(())
            }
            (Acquired::Granted(grant), Some(lease)) => {
                prop_assert!(asked.is_some() && lease.asked == asked && wall < lease.expires, "it is held: {lease:?}");
                let expires = expiry(ttl, wall).max(lease.expires);
                self.keys[key].lease = Some(ModelLease { expires, ttl, ..lease });
                let deadline = self.not_before(client, key, grant.lease_id(), moment.plus(ttl));
                self.believe(client, key, grant, deadline)
            }
            (Acquired::Granted(grant), None) => {
                let micros = u64::try_from(wall.as_micros()).unwrap();
                let fence = match self.keys[key].last_fence {
                    Some(last) => micros.max(last + 1),
                    None => micros + 26_000_000,
                };
                let lease = ModelLease { id: grant.lease_id(), fence, expires: expiry(ttl, wall), ttl, asked };
                self.keys[key] = ModelKey { lease: Some(lease), last_fence: Some(fence) };
                self.believe(client, key, grant, moment.plus(ttl))
            }
            // Over by the wall clock: the second witness may still have to say so.
            (Acquired::Held(held), None) => {
                prop_assert_eq!(held.by.map(|by| by.lease_id), self.keys[key].lease.as_ref().map(|lease| lease.id));
                Ok(())
            }
        }
    }

    /// `old` is what the client believed so far, if it goes by that.
    fn renewed(
        &mut self,
        at: (usize, usize),
        now: (Moment, Timestamp),
        asked: (LeaseId, Duration, Option<ModelBelief>),
        answer: Renewed,
    ) -> TestResult {
        let ((client, key), (moment, wall), (id, ttl, old)) = (at, now, asked);
        let lease = self.keys[key].lease.clone();
        let alive = lease.as_ref().filter(|lease| lease.id == id && wall < lease.expires);
        let alive = alive.filter(|_| old.as_ref().is_none_or(|old| moment < old.deadline)).cloned();
        match (answer, alive) {
            (Renewed::Renewed(grant), Some(lease)) => {
                let expires = expiry(ttl, wall).max(lease.expires);
                self.keys[key].lease = Some(ModelLease { expires, ttl, ..lease });
                let deadline = old.map_or(moment.plus(ttl), |old| {
                    moment.plus(ttl).min(old.deadline.plus(expires.since(old.expires)))
                });
                let deadline = self.not_before(client, key, id, deadline);
                self.believe(client, key, grant, deadline)
            }
            (Renewed::Lost(loss), None) => {
                let other = lease.filter(|lease| lease.id != id);
                prop_assert_eq!(loss.taken_by.map(|by| by.lease_id), other.map(|lease| lease.id));
                prop_assert_eq!(loss.fence.map(|fence| fence.get()), self.keys[key].last_fence);
                Ok(())
            }
            (answer, alive) => Err(TestCaseError::fail(format!("{answer:?}, of {alive:?}"))),
        }
    }

    fn seen(&self, key: usize, wall: Timestamp, status: &Status) -> TestResult {
        let holder = status.holder.as_ref().map(|holder| (holder.lease_id, holder.fence.get(), holder.expires_at));
        let whole = |lease: &ModelLease| (lease.id, lease.fence, lease.expires);
        let standing = self.standing(key, wall).map(whole);
        // Over by the wall clock: the second witness may still have to say so.
        let late = self.keys[key].lease.as_ref().map(whole).filter(|_| status.may_have_ended);
        prop_assert!(holder == standing || standing.is_none() && holder == late, "{holder:?}, of {standing:?}");
        prop_assert_eq!(status.last_fence.map(|fence| fence.get()), self.keys[key].last_fence);
        prop_assert!(!status.waited_for);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> TestResult {
        match *step {
            Step::Acquire { client, key, ttl_ms, asked } => self.acquire(client, key, ttl_ms, asked).await?,
            Step::Renew { client, key } => {
                let Some(old) = self.beliefs.get(&(client, key)).cloned() else { return Ok(()) };
                let now = self.now(client);
                let answer = self.clients[client].1.renew(&old.grant).await.unwrap();
                self.renewed((client, key), now, (old.grant.lease_id(), old.ttl, Some(old)), answer)?;
            }
            Step::RenewById { client, key, ttl_ms } => {
                let Some(lease) = self.keys[key].lease.clone() else { return Ok(()) };
                let now = self.now(client);
                let ttl = ttl_ms.map(Duration::from_millis);
                let answer = self.clients[client].1.renew_by_id(&name(key), lease.id, ttl).await;
                if !ttl_ms.is_none_or(is_allowed) {
                    prop_assert_eq!(answer.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
                    return Ok(());
                }
                let ttl = ttl.unwrap_or(lease.ttl);
                self.renewed((client, key), now, (lease.id, ttl, None), answer.unwrap())?;
            }
            Step::Release { client, key } => {
                let Some(belief) = self.beliefs.get(&(client, key)) else { return Ok(()) };
                self.clients[client].1.release(&belief.grant).await.unwrap();
                let id = belief.grant.lease_id();
                let lease = &mut self.keys[key].lease;
                *lease = lease.take().filter(|lease| lease.id != id);
            }
            Step::ReleaseById { client, key } => {
                let Some(lease) = self.keys[key].lease.take() else { return Ok(()) };
                self.clients[client].1.release_by_id(&name(key), lease.id).await.unwrap();
            }
            Step::Get { client, key } => {
                let status = self.clients[client].1.get(&name(key)).await.unwrap();
                let wall = self.now(client).1;
                self.seen(key, wall, &status)?;
                // What has ended is cleared.
                let lease = self.keys[key].lease.take();
                self.keys[key].lease = lease.filter(|_| status.holder.is_some());
            }
            Step::Peek { client, key } => {
                let status = self.clients[client].1.peek(&name(key)).await.unwrap();
                self.seen(key, self.now(client).1, &status)?;
            }
            Step::Pass { micros } => self.memory.clock.advance(Duration::from_micros(micros)),
            Step::PassTo { client, key, with_skew, micros } => {
                let Some(lease) = &self.keys[key].lease else { return Ok(()) };
                let edge = lease.expires.plus(if with_skew { SKEW } else { Duration::ZERO });
                let target = Timestamp::from_micros(edge.as_micros() + micros);
                self.memory.clock.advance(target.since(self.now(client).1));
            }
        }
        for ((client, key), belief) in &self.beliefs {
            let (moment, wall) = self.now(*client);
            let valid = moment < belief.deadline && wall < belief.expires;
            prop_assert_eq!(belief.grant.is_valid(), valid, "client {} of {}: {:?}", client, key, belief);
        }
        self.watch.lock().unwrap().verdict()
    }
}

type TestResult = Result<(), TestCaseError>;

fn on_one_thread<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run)
}

#[test]
fn without_faults_every_answer_is_that_of_the_model() {
    check(256, &steps(), |steps| {
        on_one_thread(async {
            let mut agreement = Agreement::new().await;
            for step in &steps {
                agreement.step(step).await?;
            }
            Ok(())
        })
    });
}

// Histories with faults.

#[derive(Debug, Clone)]
enum Turn {
    Acquire {
        client: usize,
        key: usize,
        ttl_ms: u64,
        asked: Option<Asked>,
        wait_ms: u64,
    },
    Renew {
        client: usize,
        key: usize,
    },
    Release {
        client: usize,
        key: usize,
    },
    Get {
        client: usize,
        key: usize,
    },
    Pass {
        millis: u64,
    },
    /// Drops one of the operations under way.
    Cancel {
        number: usize,
    },
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let ttl = select(&[1000u64, 2000, 5000, 10_000, 60_000][..]);
    let wait = select(&[0u64, 0, 500, 5000, 60_000][..]);
    let at = || (0..CLIENTS, 0..KEYS);
    let turn = prop_oneof![
        6 => (at(), ttl, asked(), wait).prop_map(|((client, key), ttl_ms, asked, wait_ms)| {
            Turn::Acquire { client, key, ttl_ms, asked, wait_ms }
        }),
        4 => at().prop_map(|(client, key)| Turn::Renew { client, key }),
        4 => at().prop_map(|(client, key)| Turn::Release { client, key }),
        1 => at().prop_map(|(client, key)| Turn::Get { client, key }),
        6 => select(&[1u64, 10, 50, 250, 1000, 3000][..]).prop_map(|millis| Turn::Pass { millis }),
        1 => (0..8usize).prop_map(|number| Turn::Cancel { number }),
    ];
    vec(turn, 1..50)
}

fn rates(seed: u64) -> Rates {
    let often = [10, 40, 100][(seed % 3) as usize];
    let mut rates = Rates::none().with(Fault::Duplicate, often);
    for status in [409, 412, 500, 503] {
        rates = rates
            .with(Fault::Refuse(Answer::Status(status)), often / 2)
            .with(Fault::Lose(Answer::Status(status)), often / 2);
    }
    rates
        .with(Fault::Lose(Answer::Drop), often)
        .with(Fault::Lose(Answer::Hang), often / 4)
        .with(Fault::Refuse(Answer::Hang), often / 4)
        .with(Fault::Late(Duration::from_millis(700), Answer::Status(500)), often / 2)
        .with(Fault::Late(Duration::from_secs(4), Answer::Drop), often / 4)
        .with(Fault::Delay(Duration::from_millis(150)), often)
        .with(Fault::Delay(Duration::from_millis(1200)), often / 4)
}

#[derive(Debug)]
struct Belief {
    client: usize,
    key: usize,
    grant: Grant,
    asked: Option<Asked>,
}

#[derive(Debug, Default)]
struct Beliefs {
    held: Vec<Belief>,
    /// Leases that their holder gave back, or tried to.
    given_back: BTreeSet<[u8; 16]>,
    /// Leases whose release was not begun, as far as their holder knows.
    stuck: BTreeSet<[u8; 16]>,
    fences: BTreeMap<usize, u64>,
    problems: Vec<String>,
}

impl Beliefs {
    fn check(&mut self) {
        // One problem is enough: what comes after follows from it.
        if !self.problems.is_empty() {
            return;
        }
        for key in 0..KEYS {
            let valid = self.held.iter().filter(|belief| belief.key == key && belief.grant.is_valid());
            let ids: BTreeSet<_> = valid.map(|belief| *belief.grant.lease_id().as_bytes()).collect();
            if ids.len() > 1 {
                self.problems.push(format!("two holders of {key} at once: {:?}", self.held));
            }
        }
    }

    fn believe(&mut self, belief: Belief) {
        let (client, id) = (belief.client, belief.grant.lease_id());
        self.held.retain(|old| old.client != client || old.grant.lease_id() != id);
        self.held.push(belief);
        self.check();
    }
}

struct World {
    clients: Vec<(Arc<Skewed>, Leases)>,
    beliefs: Mutex<Beliefs>,
}

impl World {
    fn with<T>(&self, look: impl FnOnce(&mut Beliefs) -> T) -> T {
        look(&mut self.beliefs.lock().unwrap())
    }

    fn problem(&self, what: String) {
        self.with(|beliefs| beliefs.problems.push(what));
    }

    fn excuse(&self, doing: &str, error: &leasehold::Error) {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
            self.problem(format!("{doing}: {:?}: {error}", error.kind()));
        }
    }

    async fn acquire(&self, client: usize, key: usize, request: Request, asked: Option<Asked>, wait: Duration) {
        let leases = &self.clients[client].1;
        let floor = self.with(|beliefs| beliefs.fences.get(&key).copied());
        let own = |beliefs: &mut Beliefs| -> BTreeSet<[u8; 16]> {
            let own = beliefs.held.iter().filter(|old| asked.is_some() && old.key == key && old.asked == asked);
            // By the clock of the one who asks.
            let alive =
                own.filter(|old| old.grant.is_valid() && old.grant.expires_at() > self.clients[client].0.wall());
            alive.map(|old| *old.grant.lease_id().as_bytes()).collect()
        };
        let before = self.with(own);
        let answer = match wait.is_zero() {
            true => leases.acquire(&name(key), &request).await,
            false => leases.acquire_within(&name(key), &request, wait).await,
        };
        match answer {
            Ok(Acquired::Granted(grant)) => self.with(|beliefs| {
                if !grant.is_valid() {
                    beliefs.problems.push(format!("{grant:?} was over when it was granted"));
                }
                let fence = grant.fence().get();
                if floor.is_some_and(|floor| fence <= floor) && asked.is_none() {
                    beliefs.problems.push(format!("{grant:?} is not above {floor:?}"));
                }
                let highest = beliefs.fences.entry(key).or_default();
                *highest = fence.max(*highest);
                // Shared by a request id, and given back by another process while this answer was on its way.
                if !beliefs.given_back.contains(grant.lease_id().as_bytes()) {
                    beliefs.believe(Belief { client, key, grant, asked });
                }
            }),
            Ok(Acquired::Held(held)) => {
                let own: BTreeSet<_> = before.intersection(&self.with(own)).copied().collect();
                if let Some(by) = held.by.filter(|by| own.contains(by.lease_id.as_bytes())) {
                    self.problem(format!("client {client} was refused its own lease {by:?}"));
                }
            }
            Err(error) => self.excuse("acquire", &error),
        }
    }

    fn latest(&self, client: usize, key: usize) -> Option<(Grant, Option<Asked>)> {
        self.with(|beliefs| {
            let latest = beliefs.held.iter().rev().find(|belief| belief.client == client && belief.key == key);
            latest.map(|belief| (belief.grant.clone(), belief.asked))
        })
    }

    async fn renew(&self, client: usize, key: usize) {
        let Some((old, asked)) = self.latest(client, key) else { return };
        match self.clients[client].1.renew(&old).await {
            Ok(Renewed::Renewed(grant)) => self.with(|beliefs| {
                if !grant.is_valid() {
                    beliefs.problems.push(format!("{grant:?} was over when it was renewed"));
                }
                if grant.lease_id() != old.lease_id() || grant.fence() != old.fence() {
                    beliefs.problems.push(format!("{old:?} was renewed as {grant:?}"));
                }
                // Given back while it was being renewed: then no process believes in it any more.
                if !beliefs.given_back.contains(grant.lease_id().as_bytes()) {
                    beliefs.believe(Belief { client, key, grant, asked });
                }
            }),
            Ok(Renewed::Lost(loss)) => self.with(|beliefs| {
                let given_back = beliefs.given_back.contains(old.lease_id().as_bytes());
                if old.is_valid() && !given_back {
                    beliefs.problems.push(format!("{old:?} was lost before its time: {loss:?}"));
                }
                beliefs.held.retain(|belief| belief.client != client || belief.grant.lease_id() != old.lease_id());
            }),
            Err(error) => self.excuse("renew", &error),
        }
    }

    async fn release(&self, client: usize, key: usize) {
        let Some((old, _)) = self.latest(client, key) else { return };
        let id = *old.lease_id().as_bytes();
        self.with(|beliefs| {
            beliefs.held.retain(|belief| belief.grant.lease_id() != old.lease_id());
            beliefs.given_back.insert(id);
            // Until it is known otherwise: this may be dropped anywhere.
            beliefs.stuck.insert(id);
        });
        match self.clients[client].1.release(&old).await {
            // In doubt it is finished in the background.
            Err(error) if error.kind() != ErrorKind::Unknown => self.excuse("release", &error),
            _ => self.with(|beliefs| {
                beliefs.stuck.remove(&id);
            }),
        }
    }

    async fn take(self: Arc<Self>, turn: Turn) {
        match turn {
            Turn::Acquire { client, key, ttl_ms, asked, wait_ms } => {
                self.acquire(client, key, asking(ttl_ms, asked), asked, Duration::from_millis(wait_ms)).await;
            }
            Turn::Renew { client, key } => self.renew(client, key).await,
            Turn::Release { client, key } => self.release(client, key).await,
            Turn::Get { client, key } => {
                if let Err(error) = self.clients[client].1.get(&name(key)).await {
                    self.excuse("get", &error);
                }
            }
            Turn::Pass { .. } | Turn::Cancel { .. } => {}
        }
    }

    /// Time passes a little at a time, and every belief is checked at each step.
    async fn pass(&self, memory: &Memory, time: Duration, step: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(step);
            memory.clock.advance(step);
            calm().await;
            self.with(Beliefs::check);
            left -= step;
        }
    }

    fn verdict(&self, watch: &Mutex<Watch>) -> TestResult {
        watch.lock().unwrap().verdict()?;
        self.with(|beliefs| {
            prop_assert!(beliefs.problems.is_empty(), "{:#?}", beliefs.problems);
            Ok(())
        })
    }
}

#[allow(clippy::too_many_lines, reason = "one random story")]
async fn chaos(seed: u64, turns: Vec<Turn>) -> TestResult {
    let memory = Memory::new();
    let clients = clients(&memory, seed).await;
    let watch = Watch::over(&memory);
    let world = Arc::new(World { clients, beliefs: Mutex::default() });
    memory.store.faults().roll(SeededGenerator::new(seed), rates(seed));
    let mut under_way: Vec<JoinHandle<()>> = Vec::new();
    for turn in turns {
        match turn {
            Turn::Pass { millis } => {
                let time = Duration::from_millis(millis);
                world.pass(&memory, time, Duration::from_millis(25)).await;
            }
            Turn::Cancel { number } => {
                under_way.retain(|task| !task.is_finished());
                if let Some(task) = under_way.get(number) {
                    task.abort();
                }
            }
            turn => under_way.push(tokio::spawn(Arc::clone(&world).take(turn))),
        }
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        world.verdict(&watch)?;
    }
    memory.store.faults().clear();
    // Everything comes to its end, and what was granted to callers that have gone is given back.
    for _ in 0..100 {
        world.pass(&memory, Duration::from_secs(1), Duration::from_millis(100)).await;
        if under_way.iter().all(JoinHandle::is_finished) {
            break;
        }
    }
    for task in under_way {
        prop_assert!(task.is_finished(), "an operation does not end");
        if let Err(error) = task.await {
            prop_assert!(error.is_cancelled(), "{error}");
        }
    }
    world.pass(&memory, Duration::from_secs(10), Duration::from_millis(100)).await;
    world.verdict(&watch)?;
    for key in 0..KEYS {
        let holder = world.clients[0].1.peek(&name(key)).await.unwrap().holder;
        let Some(holder) = holder.filter(|holder| holder.expires_at > memory.clock.wall()) else { continue };
        let record = watch.lock().unwrap().records[["a", "b"][key]].clone();
        let asked = record.lease.is_some_and(|lease| lease.request_id.is_some());
        let id = *holder.lease_id.as_bytes();
        let known = world.with(|beliefs| {
            beliefs.stuck.contains(&id) || beliefs.held.iter().any(|belief| *belief.grant.lease_id().as_bytes() == id)
        });
        prop_assert!(asked || known, "nobody wants {holder:?}, and it was not freed");
    }
    // And everything can be had again.
    let longest = Duration::from_secs(60) + 2 * SKEW;
    for key in 0..KEYS {
        for client in 0..CLIENTS {
            let leases = world.clients[client].1.clone();
            let asked = tokio::spawn(async move {
                let request = asking(1000, None);
                let grant = leases.acquire_within(&name(key), &request, longest).await?.granted();
                if let Some(grant) = &grant {
                    leases.release(grant).await?;
                }
                Ok::<_, leasehold::Error>(grant)
            });
            for _ in 0..700 {
                if asked.is_finished() {
                    break;
                }
                world.pass(&memory, Duration::from_millis(100), Duration::from_millis(100)).await;
            }
            prop_assert!(asked.is_finished(), "client {client} waits for {key} for ever");
            let granted = asked.await.unwrap();
            prop_assert!(matches!(granted, Ok(Some(_))), "client {client} cannot have {key}: {granted:?}");
        }
    }
    world.verdict(&watch)
}

#[test]
fn with_faults_no_promise_is_broken() {
    check(256, &(any::<u64>(), turns()), |(seed, turns)| on_one_thread(chaos(seed, turns)));
}
