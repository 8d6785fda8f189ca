//! What users do: ask, wait, hold, renew, give up in the middle, decide, sweep.

use crate::{
    auditor::{Auditor, Place},
    beliefs::{Asked, Hold},
    plan::{Plan, dice},
    profile::Profile,
    run::Maker,
    world::{NodeClock, World},
};
use leasehold::{
    Clock, Decisions, Key, Leases, Store,
    decision::TxnId,
    lease::{Acquired, Grant, Locked, Renewed, Request},
    sweep::SweepOptions,
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// All clients use the first one unless there are several.
const NAMESPACES: [&str; 3] = ["default", "other", "a.third-one"];

/// What all clients of a run know of each other.
#[derive(Debug, Default)]
pub struct Common {
    /// Transactions, the newest last.
    pub txns: Mutex<Vec<TxnId>>,
}

/// One client of one process.
pub struct Client {
    pub plan: Arc<Plan>,
    pub world: World,
    pub auditor: Auditor,
    pub common: Arc<Common>,
    pub machine: usize,
    pub clock: NodeClock,
    pub store: Store,
    pub decisions: Decisions,
    pub dice: StdRng,
    pub name: String,
    pub number: u64,
    pub asked: u64,
    /// Whether it has anything to do with transactions.
    pub decides: bool,
    /// Opens the store once more on this machine, and how often that was done.
    pub maker: Maker,
    pub opened: u64,
    /// When clients are at work, in true time.
    pub stretches: Arc<Vec<(i64, i64)>>,
}

pub fn millis(dice: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(dice.random_range(range))
}

impl Client {
    /// Works until the last stretch has ended.
    pub async fn run(mut self) {
        loop {
            let now = self.world.now();
            let Some((begin, _)) = self.stretches.iter().find(|(_, end)| now < *end).copied() else { return };
            if now < begin {
                self.clock.sleep(Duration::from_micros((begin - now).unsigned_abs())).await;
                continue;
            }
            Box::pin(self.step()).await;
            let pause = millis(&mut self.dice, 1..400);
            self.clock.sleep(pause).await;
        }
    }

    async fn step(&mut self) {
        if self.plan.profile == Profile::Semaphore {
            return Box::pin(self.semaphore()).await;
        }
        if self.plan.profile == Profile::Session && self.dice.random_range(0..2) == 0 {
            return self.session().await;
        }
        if self.plan.profile == Profile::Operated && self.dice.random_range(0..3) == 0 {
            return Box::pin(self.operate()).await;
        }
        if self.plan.has("one_shot") && self.dice.random_range(0..5) == 0 {
            return Box::pin(self.one_shot()).await;
        }
        match self.dice.random_range(0..20) {
            0..=4 => Box::pin(self.lease(Duration::ZERO)).await,
            5..=8 => {
                let mut wait = millis(&mut self.dice, 100..8000);
                if self.plan.has("wrong") && self.dice.random_range(0..3) == 0 {
                    // Long enough to watch a lease do nothing.
                    wait *= 4;
                }
                Box::pin(self.lease(wait)).await;
            }
            9..=11 if self.plan.has("guard") => Box::pin(self.guard()).await,
            12 => Box::pin(self.look()).await,
            13 if self.plan.has("sweep") => Box::pin(self.sweep()).await,
            14..=17 if self.decides => Box::pin(self.transaction()).await,
            18 if self.decides => Box::pin(self.at_the_edge()).await,
            _ => Box::pin(self.lease(Duration::ZERO)).await,
        }
    }

    pub fn place(&mut self) -> Place {
        let number = self.dice.random_range(0..self.plan.keys);
        let mut name = format!("key-{number}");
        if self.plan.has("long") && self.dice.random_range(0..3) == 0 {
            // Beyond what an object may be called, and as long as a key may be.
            name = "long/".repeat(60) + &name;
        }
        let namespace = if self.plan.has("namespaces") { self.dice.random_range(0..3) } else { 0 };
        Place { namespace: NAMESPACES[namespace], key: key_of(&name) }
    }

    pub fn leases(&self, place: &Place) -> Leases {
        self.store.leases(place.namespace).expect("a good name")
    }

    /// Gives up after a while, now and then. Calls are boxed: unoptimised, the futures of all of them would not fit a
    /// thread's stack.
    pub async fn patience<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let mut call = Box::pin(call);
        let gives_up = self.dice.random_range(0..7) == 0;
        let after = Duration::from_micros(self.dice.random_range(0..300_000) << self.dice.random_range(0..4));
        if !gives_up || !self.plan.has("cancel") {
            return Some(call.await);
        }
        tokio::select! {
            biased;
            done = &mut call => Some(done),
            () = self.clock.sleep(after) => {
                self.world.note(format_args!("{} gives up", self.name));
                None
            }
        }
    }

    pub fn request(&mut self) -> (Request, String) {
        let ttl = *[1000, 1500, 3000, 6000, 12_000, 25_000, 60_000].choose(&mut self.dice).unwrap_or(&3000);
        self.asked += 1;
        let request = Request::new(Duration::from_millis(ttl));
        let shared = self.plan.profile == Profile::Shared;
        let repeats = self.dice.random_range(0..5) < if shared { 4 } else { 1 };
        let request = match self.plan.has("new_key") && self.dice.random_range(0..5) == 0 {
            true => request.new_key(),
            false => request,
        };
        if repeats && self.plan.has("request_id") {
            // Shared by all: any client may repeat the request of any other.
            let id = format!("request-{}", self.dice.random_range(0..if shared { 1 } else { 3 }));
            let request = request.owner("shared").request_id(id);
            return (request, String::new());
        }
        let owner = format!("{}-{}", self.name, self.asked);
        (request.owner(&owner), owner)
    }

    /// What a command does that is run once: a process that knows nothing takes what it can, and ends.
    async fn one_shot(&mut self) {
        self.opened += 1;
        let Ok(store) = self.maker.again(self.opened * 64 + self.number).builder().open().await else { return };
        let before = std::mem::replace(&mut self.store, store);
        Box::pin(self.lease(Duration::ZERO)).await;
        self.store = before;
    }

    async fn lease(&mut self, wait: Duration) {
        let place = self.place();
        let (request, owner) = self.request();
        let asked = self.auditor.asked(&place);
        let (leases, name) = (self.leases(&place), place.key.clone());
        let leases_too = leases.clone();
        self.world.note(format_args!("{} asks for {}, waits {} ms", self.name, place.id(), wait.as_millis()));
        let call = async move {
            match wait.is_zero() {
                true => leases.acquire(&name, &request).await,
                false => leases.acquire_within(&name, &request, wait).await,
            }
        };
        match self.patience(call).await {
            Some(Ok(Acquired::Granted(grant))) => Box::pin(self.hold(leases_too, asked, grant)).await,
            Some(Ok(Acquired::Held(held))) => self.auditor.held(&owner, &held),
            Some(Err(error)) => self.world.note(format_args!("{}: {:?}", self.name, error.kind())),
            None => {}
        }
    }

    /// Holds a lease for a while, writing and renewing, and then gives it back, or not.
    async fn hold(&mut self, leases: Leases, asked: Asked, mut grant: Grant) {
        let belief = self.auditor.granted(self.machine, &asked, &grant, Hold::Grant(grant.clone()), None);
        for _ in 0..self.dice.random_range(0..4) {
            let pause = grant.ttl().mul_f64(self.dice.random_range(0.01..0.6)).min(Duration::from_secs(8));
            self.clock.sleep(pause).await;
            self.auditor.write(belief);
            if self.dice.random_range(0..3) == 0 {
                continue;
            }
            self.auditor.renewing(belief);
            let (leases, held) = (leases.clone(), grant.clone());
            let by_id = self.plan.has("by_id") && self.dice.random_range(0..2) == 0;
            let renewing = async move {
                match by_id {
                    true => leases.renew_by_id(held.key(), held.lease_id(), None).await,
                    false => leases.renew(&held).await,
                }
            };
            let renewed = self.patience(renewing).await;
            match renewed {
                Some(Ok(Renewed::Renewed(renewed))) => {
                    self.auditor.renewed(belief, Some(renewed.clone()));
                    grant = renewed;
                }
                Some(Ok(Renewed::Lost(_))) => break,
                Some(Err(_)) | None => self.auditor.renewed(belief, None),
            }
            self.auditor.write(belief);
        }
        // What others have as well is seldom given back: that would be the end of it for all.
        let runs_out = if self.plan.profile == Profile::Shared { 8 } else { 3 };
        match self.dice.random_range(0..10) < runs_out {
            // Holds on to it for as long as it may, and lets it run out.
            true => {
                for _ in 0..20 {
                    let rest = self.world.watching(|| grant.time_left());
                    if rest.is_zero() {
                        break;
                    }
                    let pause = millis(&mut self.dice, 50..2000);
                    self.clock.sleep(rest.min(pause)).await;
                    self.auditor.write(belief);
                }
                self.auditor.forget(belief);
            }
            false => {
                self.auditor.releasing(grant.lease_id());
                self.auditor.forget(belief);
                let by_id = self.plan.has("by_id") && self.dice.random_range(0..2) == 0;
                let releasing = async move {
                    match by_id {
                        true => leases.release_by_id(grant.key(), grant.lease_id()).await,
                        false => leases.release(&grant).await,
                    }
                };
                let released = self.patience(releasing).await;
                if let Some(Err(error)) = released {
                    self.world.note(format_args!("{}: release {:?}", self.name, error.kind()));
                }
            }
        }
    }

    async fn guard(&mut self) {
        let place = self.place();
        let (request, owner) = self.request();
        let max_hold = (self.plan.has("max_hold") && self.dice.random_range(0..3) == 0)
            .then(|| millis(&mut self.dice, 500..12_000));
        let request = match max_hold {
            Some(longest) => request.max_hold(longest),
            None => request,
        };
        let asked = self.auditor.asked(&place);
        let wait = if self.dice.random_range(0..2) == 0 { Duration::ZERO } else { millis(&mut self.dice, 10..6000) };
        let (leases, name) = (self.leases(&place), place.key.clone());
        self.world.note(format_args!("{} locks {}, waits {} ms", self.name, place.id(), wait.as_millis()));
        let guard = match self.patience(async move { leases.lock_within(&name, &request, wait).await }).await {
            Some(Ok(Locked::Granted(guard))) => guard,
            Some(Ok(Locked::Held(held))) => return self.auditor.held(&owner, &held),
            Some(Err(_)) | None => return,
        };
        let grant = guard.grant();
        let lost = guard.cancellation();
        let shared = Arc::new(Mutex::new(Some(guard)));
        let belief = self.auditor.granted(self.machine, &asked, &grant, Hold::Guard(Arc::clone(&shared)), max_hold);
        for _ in 0..self.dice.random_range(1..5) {
            let pause = millis(&mut self.dice, 50..5000);
            tokio::select! {
                biased;
                () = lost.cancelled() => break,
                () = self.clock.sleep(pause) => self.auditor.write(belief),
            }
        }
        self.auditor.releasing(grant.lease_id());
        let guard = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.auditor.forget(belief);
        let Some(guard) = guard else { return };
        if self.dice.random_range(0..4) > 0 {
            // A failed release goes on in the background.
            let _ = self.patience(guard.release()).await;
        }
    }

    async fn look(&mut self) {
        let place = self.place();
        let (leases, key) = (self.leases(&place), place.key);
        // Whatever it says: it must not break anything.
        match self.dice.random_range(0..3) {
            0 => drop(self.patience(async move { leases.get(&key).await.map(drop) }).await),
            1 => drop(self.patience(async move { leases.peek(&key).await.map(drop) }).await),
            _ => drop(self.patience(async move { leases.list(b"key", None, 10).await.map(drop) }).await),
        }
    }

    pub async fn sweep(&mut self) {
        let store = self.store.clone();
        let mut options = SweepOptions::new().op_delay(Duration::ZERO);
        match self.dice.random_range(0..4) {
            0 => options = options.max_ops(self.dice.random_range(1..6)),
            1..=2 => options = options.heed_activity(true),
            _ => {}
        }
        let swept = self.patience(async move { store.sweeper().run_once(options).await }).await;
        if let Some(Ok(report)) = swept {
            if report.failures == 0 && report.entries_seen != report.entries_kept + report.entries_deleted {
                self.auditor.accuse(format!("what was judged was not deleted: {report:?}"));
            }
            self.world.note(format_args!("{} swept {} entries", self.name, report.entries_seen));
        }
    }
}

pub fn key_of(name: &str) -> Key {
    Key::new(name).expect("a short name is a key")
}

/// The dice of one client of one life of a machine.
pub fn client_dice(plan: &Plan, machine: usize, life: u64, client: usize) -> StdRng {
    dice(plan.seed, "client", (life * 64 + machine as u64) * 64 + client as u64)
}
