//! A network that goes wrong all the time, between us and a real server.

use crate::place::{self, Kind, Place, key, settings};
use futures_util::future::join_all;
use leasehold::{
    Generator, Key, Leases, SystemClock,
    lease::{Acquired, Renewed, Request},
};
use leasehold_testkit::{Answer, Fault, Proxy, Rates, SeededGenerator};
use std::{
    collections::BTreeSet,
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

const CLIENTS: usize = 8;
const KEYS: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// Of a thousand requests: 50 carried out and their answers lost, 50 refused with 503, and the rest of what networks do.
fn rates() -> Rates {
    Rates::none()
        .with(Fault::Lose(Answer::Drop), 25)
        .with(Fault::Lose(Answer::Status(503)), 25)
        .with(Fault::Refuse(Answer::Status(503)), 50)
        .with(Fault::Truncate, 10)
        .with(Fault::Duplicate, 10)
        .with(Fault::Delay(Duration::from_millis(5)), 100)
        .with(Fault::Delay(Duration::from_millis(50)), 30)
        .with(Fault::Delay(Duration::from_millis(300)), 5)
}

#[derive(Default)]
struct Counts {
    granted: AtomicU64,
    /// Of those, what a look at the store found there.
    seen: AtomicU64,
    renewed: AtomicU64,
    failed: AtomicU64,
}

struct Client {
    name: String,
    leases: Leases,
    /// The store without the proxy.
    direct: Leases,
    chance: SeededGenerator,
    /// Keys whose last request failed: what became of it is not this client's to know.
    in_doubt: BTreeSet<Key>,
}

impl Client {
    fn pick(&self, below: u32) -> u32 {
        let mut bytes = [0; 4];
        self.chance.fill(&mut bytes);
        u32::from_le_bytes(bytes) % below
    }

    async fn cycle(&mut self, counts: &Counts) {
        let key = key(&format!("k-{}", self.pick(KEYS)));
        let request = Request::new(Duration::from_secs(15)).owner(&self.name);
        let grant = match self.leases.acquire_within(&key, &request, PATIENCE).await {
            Ok(Acquired::Granted(grant)) => grant,
            Ok(Acquired::Held(held)) => {
                let own = held.by.as_ref().is_some_and(|by| by.owner == self.name);
                assert!(
                    !own || self.in_doubt.contains(&key),
                    "{} was told that another holds its own {key}",
                    self.name
                );
                return;
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                counts.failed.fetch_add(1, SeqCst);
                self.in_doubt.insert(key);
                return;
            }
        };
        self.in_doubt.remove(&key);
        let there = self.direct.peek(&key).await.unwrap().holder.map(|there| (there.lease_id, there.fence));
        let ours = Some((grant.lease_id(), grant.fence()));
        // Asked after the look: a lease that ends meanwhile, because everything stood still, may be gone by rights.
        assert!(there == ours || !grant.is_valid(), "{} was granted {key} as {ours:?}, there is {there:?}", self.name);
        counts.granted.fetch_add(1, SeqCst);
        counts.seen.fetch_add(u64::from(there == ours), SeqCst);
        if self.pick(4) == 0 {
            match self.leases.renew(&grant).await {
                Ok(Renewed::Renewed(_)) => drop(counts.renewed.fetch_add(1, SeqCst)),
                Ok(Renewed::Lost(loss)) => {
                    assert!(!grant.is_valid(), "{} lost {key}, which it holds: {loss:?}", self.name)
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
        if let Err(error) = self.leases.release(&grant).await {
            assert!(error.is_retryable(), "{error}");
            counts.failed.fetch_add(1, SeqCst);
            self.in_doubt.insert(key);
        }
    }
}

async fn a_bad_network_costs_time_and_nothing_else(place: Arc<Place>) {
    let cycles = env::var("LEASEHOLD_TEST_CYCLES").map_or(300, |cycles| cycles.parse().unwrap());
    let endpoint = place.endpoint().expect("a server");
    let proxy = Proxy::start(endpoint.as_str(), Arc::new(SystemClock::new())).await.unwrap();
    proxy.faults().roll(SeededGenerator::new(7), rates());
    let url = place.through(&proxy);
    let direct = place.open().await.leases("default").unwrap();
    let mut tuned = settings();
    (tuned.poll_interval, tuned.max_poll_interval) = (Duration::from_millis(20), Duration::from_millis(200));
    let counts = Arc::new(Counts::default());
    let clients = (0..CLIENTS).map(|number| {
        let (place, url, tuned, direct) = (Arc::clone(&place), url.clone(), tuned.clone(), direct.clone());
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            let mut tries = 0;
            let store = loop {
                match place.builder_at(&url).settings(tuned.clone()).open().await {
                    Ok(store) => break store,
                    Err(error) => assert!(error.is_retryable() && tries < 20, "{error}"),
                }
                tries += 1;
            };
            let (name, chance) = (format!("client-{number}"), SeededGenerator::new(number as u64));
            let leases = store.leases("default").unwrap();
            let mut client = Client { name, leases, direct, chance, in_doubt: BTreeSet::new() };
            while counts.granted.load(SeqCst) < cycles {
                client.cycle(&counts).await;
            }
        })
    });
    for ended in join_all(clients).await {
        ended.unwrap();
    }
    let injected = proxy.faults().injected();
    let granted = counts.granted.load(SeqCst);
    let (renewed, failed, requests) = (counts.renewed.load(SeqCst), counts.failed.load(SeqCst), proxy.requests());
    println!("{granted} grants, {renewed} renewals, {failed} calls failed, {requests} requests, {injected:?}");
    assert!(counts.seen.load(SeqCst) > granted / 2, "most leases ended before they could be looked at");
    assert!(injected["lose"] > 0 && injected["refuse_503"] > 0, "nothing went wrong");
    // No key is stuck: what no caller kept has been freed, or frees itself.
    proxy.faults().clear();
    for number in 0..KEYS {
        let request = Request::new(Duration::from_secs(15));
        let acquired = direct.acquire_within(&key(&format!("k-{number}")), &request, PATIENCE).await.unwrap();
        direct.release(&acquired.granted().expect("stuck")).await.unwrap();
    }
}

#[test]
fn on_the_testkits_server() {
    place::run(Kind::testkit, a_bad_network_costs_time_and_nothing_else);
}

#[test]
#[ignore = "needs LEASEHOLD_TEST_STORE: see tests/servers/run"]
fn on_the_given_server() {
    place::run(Kind::given, a_bad_network_costs_time_and_nothing_else);
}
