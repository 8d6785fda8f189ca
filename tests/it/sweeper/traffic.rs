//! The sweeper among four clients that do as they please.

use super::{PAST, at_once, entries, seeded};
use crate::common::{calm, key};
use crate::processes::World;
use leasehold::{
    Generator, Hour, Leases, Settings, Store,
    clock::Clock,
    lease::{Acquired, Grant, Renewed, Request},
};
use leasehold_testkit::{Fault, Rates, SeededGenerator, TestClock};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const KEYS: u64 = 300;
const HOURS: u64 = 14;
const STEP: Duration = Duration::from_secs(3);

/// What all clients have seen.
#[derive(Default)]
struct Seen {
    fences: Mutex<BTreeSet<(String, u64)>>,
    /// Looks at a lease while it was valid.
    looks: AtomicU64,
    renewals: AtomicU64,
    stop: AtomicBool,
}

struct Client {
    leases: Leases,
    clock: TestClock,
    chance: SeededGenerator,
    held: Vec<Grant>,
    seen: Arc<Seen>,
}

impl Client {
    fn roll(&self, below: u64) -> u64 {
        let mut bytes = [0; 8];
        self.chance.fill(&mut bytes);
        u64::from_le_bytes(bytes) % below
    }

    async fn run(mut self) {
        while !self.seen.stop.load(Relaxed) {
            self.held.retain(Grant::is_valid);
            match self.roll(10) {
                0..4 => self.acquire().await,
                4..6 => self.renew().await,
                6 => self.release().await,
                // Forgotten: only the sweeper or another client will meet it again.
                7 | 8 if !self.held.is_empty() => drop(self.held.swap_remove(0)),
                _ => self.look().await,
            }
            self.clock.sleep(Duration::from_secs(self.roll(15))).await;
        }
    }

    async fn acquire(&mut self) {
        let name = format!("k-{}", self.roll(KEYS));
        let request = Request::new(Duration::from_secs(60 + self.roll(2400)));
        if let Acquired::Granted(grant) = self.leases.acquire(&key(&name), &request).await.unwrap() {
            let new = self.seen.fences.lock().unwrap().insert((name, grant.fence().get()));
            assert!(new, "a fence repeats: {grant:?}");
            self.held.push(grant);
        }
    }

    async fn renew(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let grant = self.held.swap_remove(0);
        match self.leases.renew(&grant).await.unwrap() {
            Renewed::Renewed(grant) => {
                self.seen.renewals.fetch_add(1, Relaxed);
                self.held.push(grant);
            }
            Renewed::Lost(loss) => assert!(!grant.is_valid(), "a live lease was lost: {grant:?}, {loss:?}"),
        }
    }

    async fn release(&mut self) {
        if !self.held.is_empty() {
            let grant = self.held.swap_remove(0);
            self.leases.release(&grant).await.unwrap();
        }
    }

    async fn look(&mut self) {
        for grant in &self.held {
            let holder = self.leases.peek(grant.key()).await.unwrap().holder;
            // Valid after the answer, so it was when the store gave it.
            if grant.is_valid() {
                self.seen.looks.fetch_add(1, Relaxed);
                let holder = holder.map(|holder| holder.lease_id);
                assert_eq!(holder, Some(grant.lease_id()), "a live lease was cleared: {grant:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_sweeper_that_never_rests_clears_no_live_lease_and_leaves_nothing_behind() {
    let world = World::new();
    let (objects, clock) = (&world.objects, &world.clock);
    let slow = Rates::none().with(Fault::Delay(Duration::from_millis(10)), 300);
    objects.faults().roll(SeededGenerator::new(5), slow);
    let seen = Arc::new(Seen::default());
    let mut clients = Vec::new();
    let sweeping: Store = start(&world, 100).await;
    for seed in 0..4 {
        let leases = start(&world, seed).await.leases("default").unwrap();
        let chance = SeededGenerator::new(1000 + seed);
        let client = Client { leases, clock: clock.clone(), chance, held: Vec::new(), seen: Arc::clone(&seen) };
        clients.push(tokio::spawn(client.run()));
    }
    let sweeper = tokio::spawn({
        let (store, seen) = (sweeping.clone(), Arc::clone(&seen));
        async move {
            while !seen.stop.load(Relaxed) {
                let report = store.sweeper().run_once(at_once()).await.unwrap();
                assert_eq!(report.failures, 0, "{report:?}");
                tokio::task::yield_now().await;
            }
        }
    });
    for _ in 0..HOURS * 3600 / STEP.as_secs() {
        clock.advance(STEP);
        calm().await;
        assert!(!sweeper.is_finished() && !clients.iter().any(|client| client.is_finished()), "see above");
    }
    let swept = sweeping.stats();
    seen.stop.store(true, Relaxed);
    while !(sweeper.is_finished() && clients.iter().all(|client| client.is_finished())) {
        clock.advance(STEP);
        calm().await;
    }
    sweeper.await.unwrap();
    for client in clients {
        client.await.unwrap();
    }
    let (granted, looks) = (seen.fences.lock().unwrap().len(), seen.looks.load(Relaxed));
    let renewals = seen.renewals.load(Relaxed);
    println!(
        "{} entries swept, {} leases cleared, {} kept; {granted} grants, {renewals} renewals, {looks} looks",
        swept.entries_deleted, swept.leases_cleared_by_sweeper, swept.entries_kept
    );
    assert!(swept.entries_deleted >= 1000 && swept.leases_cleared_by_sweeper >= 100, "{swept:?}");
    assert!(granted > 1000 && renewals > 500 && looks > 500, "{granted} {renewals} {looks}");

    objects.faults().clear();
    clock.advance(PAST + Duration::from_secs(3600));
    sweeping.sweeper().run_once(at_once()).await.unwrap();
    let now = Hour::of(clock.wall()).unwrap().to_string();
    let past: Vec<String> =
        entries(objects).into_iter().filter(|name| *name.split('/').nth(2).unwrap() < *now).collect();
    assert_eq!(past, Vec::<String>::new());
    let leases = start(&world, 200).await.leases("default").unwrap();
    for number in 0..KEYS {
        let status = leases.peek(&key(&format!("k-{number}"))).await.unwrap();
        assert!(status.holder.is_none(), "{status:?}");
    }
}

/// A process; opening it takes time like everything else.
async fn start(world: &World, seed: u64) -> Store {
    let (objects, clock) = (world.objects.clone(), world.clock.clone());
    let opening = tokio::spawn(async move { seeded(&objects, &clock, seed, Settings::default()).await });
    while !opening.is_finished() {
        world.clock.advance(Duration::from_millis(10));
        calm().await;
    }
    opening.await.unwrap()
}
