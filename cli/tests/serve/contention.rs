//! Many clients on few keys, and a service that dies in the middle of it.
//!
//! `LEASEHOLD_LOAD_SECONDS=60` makes the first one long enough to see memory grow, if it did.

use crate::common::{Answer, Service};
use leasehold::SystemClock;
use leasehold_testkit::{Fault, Op, Rule, S3Server};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const CLIENTS: usize = 500;
const KEYS: usize = 200;

/// What the clients have seen of one key.
#[derive(Debug, Default)]
struct Seen {
    fence: u64,
    holder: Option<usize>,
}

/// What a client was doing when it was last heard of.
#[derive(Debug, Clone)]
enum Doing {
    Nothing,
    /// The idempotency key, and the key.
    Acquiring(String, usize),
    Holding(String, usize, Answer, Instant),
    Releasing,
}

struct Load {
    base: String,
    client: Client,
    keys: Vec<Mutex<Seen>>,
    doing: Vec<Mutex<Doing>>,
    answers: Mutex<BTreeMap<String, u64>>,
    grants: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    fn new(base: &str) -> Arc<Self> {
        Arc::new(Self {
            base: base.to_owned(),
            client: Client::builder().pool_max_idle_per_host(CLIENTS).build().unwrap(),
            keys: (0..KEYS).map(|_| Mutex::default()).collect(),
            doing: (0..CLIENTS).map(|_| Mutex::new(Doing::Nothing)).collect(),
            answers: Mutex::default(),
            grants: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    fn run(self: &Arc<Self>) -> Vec<tokio::task::JoinHandle<()>> {
        (0..CLIENTS).map(|number| tokio::spawn(Arc::clone(self).client(number))).collect()
    }

    fn count(&self, answer: String) {
        *self.answers.lock().unwrap().entry(answer).or_default() += 1;
    }

    /// `None` when there is no answer.
    async fn send(&self, path: &str, id: &str, body: &Value) -> Option<Answer> {
        let request = self.client.request(Method::POST, format!("{}{path}", self.base));
        let request = request.header("content-type", "application/json").header("idempotency-key", id);
        let response = request.body(body.to_string()).send().await.ok()?;
        let status = response.status().as_u16();
        Some(Answer { status, body: serde_json::from_str(&response.text().await.ok()?).ok()? })
    }

    /// Takes leases on keys that others want too, holds each for a moment, and gives it back.
    async fn client(self: Arc<Self>, number: usize) {
        // A stride of its own over the keys, so that all of them are wanted by many and no two clients march together.
        let (mut key, mut round) = (number, 0_u64);
        while !self.stop.load(Relaxed) {
            round += 1;
            key = (key + 7 + number % 13) % KEYS;
            let id = format!("client-{number}-round-{round}");
            *self.doing[number].lock().unwrap() = Doing::Acquiring(id.clone(), key);
            let began = Instant::now();
            let Some(answer) = self.send("/v1/acquire", &id, &wanted(number, key, 2000)).await else { return };
            if answer.status != 200 {
                self.count(format!("{} {}", answer.status, answer.code()));
                continue;
            }
            {
                let mut seen = self.keys[key].lock().unwrap();
                let late = began + Duration::from_millis(answer.body["ttl_ms"].as_u64().unwrap());
                assert!(Instant::now() < late, "the driver is too slow to judge");
                assert_eq!(seen.holder, None, "{key} has two holders: {answer:?}");
                assert!(answer.fence() > seen.fence, "the fence of {key} fell from {} to {answer:?}", seen.fence);
                *seen = Seen { fence: answer.fence(), holder: Some(number) };
                *self.doing[number].lock().unwrap() = Doing::Holding(id.clone(), key, answer.clone(), late);
            }
            self.grants.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_millis((number % 30) as u64)).await;
            if self.stop.load(Relaxed) {
                return;
            }
            self.keys[key].lock().unwrap().holder = None;
            *self.doing[number].lock().unwrap() = Doing::Releasing;
            let body = json!({ "key": format!("key-{key}"), "lease_id": answer.text("lease_id") });
            let Some(released) = self.send("/v1/release", &id, &body).await else { return };
            if released.status != 200 {
                self.count(format!("release {} {}", released.status, released.code()));
            }
        }
    }
}

fn wanted(number: usize, key: usize, wait_ms: u64) -> Value {
    json!({ "key": format!("key-{key}"), "owner": format!("client-{number}"), "ttl_ms": 30_000, "wait_ms": wait_ms })
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_on_few_keys_never_see_two_holders() {
    let asked = std::env::var("LEASEHOLD_LOAD_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let seconds: u64 = asked.unwrap_or(6);
    let service = Service::start(&[]);
    let load = Load::new(&service.base);
    let clients = load.run();
    let began = Instant::now();
    let pause = async |seconds| tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    pause(seconds as f64 / 3.).await;
    let early = resident_kib(service.pid());
    pause(seconds as f64 * 2. / 3.).await;
    let late = resident_kib(service.pid());
    load.stop.store(true, Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    // A machine that stands still for longer than requests may take makes the store look as if it was down.
    let stood_still = began.elapsed() > Duration::from_secs(seconds + 4);
    let (grants, answers) = (load.grants.load(Relaxed), load.answers.lock().unwrap().clone());
    eprintln!(
        "{CLIENTS} clients, {KEYS} keys, {seconds} s: {grants} grants, no two holders; other answers {answers:?}; \
         resident {early} KiB after a third, {late} KiB at the end ({:.2} times)",
        late as f64 / early as f64
    );
    let fine = |answer: &String| match answer.as_str() {
        "409 held" | "409 timed_out" => true,
        "503 store_unavailable" | "503 unknown_outcome" | "release 503 unknown_outcome" => stood_still,
        _ => false,
    };
    assert!(answers.keys().all(fine), "{answers:?}");
    assert!(grants > CLIENTS as u64, "{grants}");
    if seconds >= 60 {
        assert!(late as f64 <= 1.1 * early as f64, "{early} KiB became {late} KiB");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_killed_under_load_leaves_every_lease_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start_on(folder.path(), &[]);
    let load = Load::new(&service.base);
    let clients = load.run();
    let deadline = Instant::now() + crate::common::PATIENCE;
    while load.grants.load(Relaxed) < 1000 {
        assert!(Instant::now() < deadline, "{} grants", load.grants.load(Relaxed));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    load.stop.store(true, Relaxed);
    service.kill();
    for client in clients {
        client.await.unwrap();
    }

    let next = Service::start_on(folder.path(), &[]);
    let (mut held, mut gone, mut asked_again) = (0, 0, 0);
    let mut holders: BTreeMap<usize, (usize, Answer)> = BTreeMap::new();
    for number in 0..CLIENTS {
        let doing = load.doing[number].lock().unwrap().clone();
        if let Doing::Holding(id, key, lease, until) = doing {
            let there = next.holder(&format!("key-{key}")).await;
            if there.is_null() {
                assert!(Instant::now() > until, "the lease of client {number} on {key} is gone: {lease:?}");
                gone += 1;
                continue;
            }
            assert_eq!((&there["lease_id"], &there["fence"]), (&lease.body["lease_id"], &lease.body["fence"]), "{key}");
            // Its own lease, not a new one.
            let again = next.acquire_again(&id, wanted(number, key, 0)).await.granted();
            assert_eq!((again.text("lease_id"), again.fence()), (lease.text("lease_id"), lease.fence()));
            assert!(holders.insert(key, (number, again)).is_none(), "{key} has two holders");
            held += 1;
        }
    }
    for number in 0..CLIENTS {
        let doing = load.doing[number].lock().unwrap().clone();
        if let Doing::Acquiring(id, key) = doing {
            let again = next.acquire_again(&id, wanted(number, key, 0)).await;
            assert!(again.status == 200 || again.code() == "held", "{again:?}");
            if again.status == 200 {
                asked_again += 1;
                assert!(again.fence() > load.keys[key].lock().unwrap().fence, "{key}");
                let other = holders.insert(key, (number, again.clone()));
                assert!(other.is_none(), "{key} has two holders: {other:?} and {number} {again:?}");
            }
        }
    }
    // Those that were being given back are free, or still there until they end: nobody else was told that they are.
    eprintln!(
        "killed after {} grants: {held} leases where they were and given to their own again, {gone} ended, \
         {asked_again} of those who were asking got one by asking again",
        load.grants.load(Relaxed)
    );
    assert!(held > 0 && asked_again > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_poll_a_key_do_not_cost_its_holder_the_lease() {
    const POLLING: usize = 400;
    let server = S3Server::start(Arc::new(SystemClock::new())).await.unwrap();
    let environment = server.options().into_iter().map(|(name, value)| (name.to_uppercase(), value)).collect();
    let service = Arc::new(Service::start_at("s3://bucket/some/prefix", environment, &[]));
    for op in [Op::Get, Op::Put] {
        server.faults().script(Rule::always(op, Fault::Delay(Duration::from_millis(20))));
    }
    let body = json!({ "key": "key", "owner": "holder", "ttl_ms": 6000 });
    let lease = service.post("/v1/acquire", body).await.granted();
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let polling: Vec<_> = (0..POLLING)
        .map(|number| {
            let (service, stop, refused) = (Arc::clone(&service), Arc::clone(&stop), Arc::clone(&refused));
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let answer = service.acquire("key", &format!("client-{number}")).await;
                    assert_ne!(answer.status, 200, "{answer:?}");
                    refused.fetch_add(u64::from(answer.code() == "held"), Relaxed);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            })
        })
        .collect();
    // One after the other the tries would take 8 s: longer than the lease lasts.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let body = json!({ "key": "key", "lease_id": lease.text("lease_id") });
        let renewed = service.post("/v1/renew", body).await;
        assert_eq!(renewed.status, 200, "{renewed:?}");
    }
    stop.store(true, Relaxed);
    for client in polling {
        client.await.unwrap();
    }
    let refused = refused.load(Relaxed);
    assert!(refused > 2 * POLLING as u64, "{refused} tries were answered");
    assert_eq!(service.metric("leasehold_leases_lost_total").await, 0.);
}
