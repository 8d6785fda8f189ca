//! What users do: ask, wait, hold, renew, give up in the middle, decide, sweep.

use crate::{
    auditor::{Asked, Auditor, Hold},
    plan::{Plan, dice},
    world::{NodeClock, SECOND, World},
};
use leasehold::{
    Clock, Decisions, Key, Leases, Store,
    decision::{Decided, Decision, TxnId},
    lease::{Acquired, Grant, Locked, Renewed, Request},
    sweep::SweepOptions,
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

pub const MAX_TXN_AGE: i64 = 30 * SECOND;
const MARGIN: i64 = 183 * SECOND;

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
    pub leases: Leases,
    pub decisions: Decisions,
    pub dice: StdRng,
    pub name: String,
    pub asked: u64,
    /// When clients are at work, in true time.
    pub stretches: Arc<Vec<(i64, i64)>>,
}

fn millis(dice: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
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
            self.step().await;
            let pause = millis(&mut self.dice, 1..400);
            self.clock.sleep(pause).await;
        }
    }

    async fn step(&mut self) {
        match self.dice.random_range(0..20) {
            0..=4 => self.lease(Duration::ZERO).await,
            5..=8 => {
                let wait = millis(&mut self.dice, 100..8000);
                self.lease(wait).await;
            }
            9..=11 if self.plan.has("guard") => self.guard().await,
            12 => self.look().await,
            13 if self.plan.has("sweep") => self.sweep().await,
            14..=17 if self.plan.has("txn") => self.transaction().await,
            18 if self.plan.has("txn") => self.at_the_edge().await,
            _ => self.lease(Duration::ZERO).await,
        }
    }

    fn key(&mut self) -> String {
        format!("key-{}", self.dice.random_range(0..self.plan.keys))
    }

    /// Gives up after a while, now and then.
    async fn patience<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let gives_up = self.dice.random_range(0..7) == 0;
        let after = Duration::from_micros(self.dice.random_range(0..300_000) << self.dice.random_range(0..4));
        if !gives_up || !self.plan.has("cancel") {
            return Some(call.await);
        }
        tokio::select! {
            biased;
            done = call => Some(done),
            () = self.clock.sleep(after) => {
                self.world.note(format_args!("{} gives up", self.name));
                None
            }
        }
    }

    fn request(&mut self) -> (Request, String) {
        let ttl = *[1000, 1500, 3000, 6000, 12_000, 25_000, 60_000].choose(&mut self.dice).unwrap_or(&3000);
        self.asked += 1;
        let request = Request::new(Duration::from_millis(ttl)).expect("a good time to live");
        let repeats = self.dice.random_range(0..5) == 0;
        if repeats && self.plan.has("request_id") {
            // Shared by all: any client may repeat the request of any other.
            let id = format!("request-{}", self.dice.random_range(0..3));
            let request = request.owner("shared").and_then(|request| request.request_id(id)).expect("short names");
            return (request, String::new());
        }
        let owner = format!("{}-{}", self.name, self.asked);
        (request.owner(&owner).expect("a short name"), owner)
    }

    async fn lease(&mut self, wait: Duration) {
        let key = self.key();
        let (request, owner) = self.request();
        let asked = self.auditor.asked(&key);
        let (leases, name) = (self.leases.clone(), key_of(&key));
        self.world.note(format_args!("{} asks for {key}, waits {} ms", self.name, wait.as_millis()));
        let call = async move {
            match wait.is_zero() {
                true => leases.acquire(&name, &request).await,
                false => leases.acquire_within(&name, &request, wait).await,
            }
        };
        match self.patience(call).await {
            Some(Ok(Acquired::Granted(grant))) => self.hold(asked, grant).await,
            Some(Ok(Acquired::Held(held))) => self.auditor.held(&owner, &held),
            Some(Err(error)) => self.world.note(format_args!("{}: {:?}", self.name, error.kind())),
            None => {}
        }
    }

    /// Holds a lease for a while, writing and renewing, and then gives it back, or not.
    async fn hold(&mut self, asked: Asked, mut grant: Grant) {
        let belief = self.auditor.granted(self.machine, &asked, &grant, Hold::Grant(grant.clone()));
        for _ in 0..self.dice.random_range(0..4) {
            let pause = grant.ttl().mul_f64(self.dice.random_range(0.01..0.6)).min(Duration::from_secs(8));
            self.clock.sleep(pause).await;
            self.auditor.write(belief);
            if self.dice.random_range(0..3) == 0 {
                continue;
            }
            self.auditor.renewing(belief);
            let (leases, held) = (self.leases.clone(), grant.clone());
            let renewed = self.patience(async move { leases.renew(&held).await }).await;
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
        match self.dice.random_range(0..10) {
            // Holds on to it for as long as it may, and lets it run out.
            0..=2 => {
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
                self.auditor.releasing(grant.lease_id());
            }
            _ => {
                self.auditor.releasing(grant.lease_id());
                self.auditor.forget(belief);
                let leases = self.leases.clone();
                let released = self.patience(async move { leases.release(&grant).await }).await;
                if let Some(Err(error)) = released {
                    self.world.note(format_args!("{}: release {:?}", self.name, error.kind()));
                }
            }
        }
    }

    async fn guard(&mut self) {
        let key = self.key();
        let (request, owner) = self.request();
        let asked = self.auditor.asked(&key);
        let wait = if self.dice.random_range(0..2) == 0 { Duration::ZERO } else { millis(&mut self.dice, 10..6000) };
        let (leases, name) = (self.leases.clone(), key_of(&key));
        self.world.note(format_args!("{} locks {key}, waits {} ms", self.name, wait.as_millis()));
        let guard = match self.patience(async move { leases.lock(&name, &request, wait).await }).await {
            Some(Ok(Locked::Granted(guard))) => guard,
            Some(Ok(Locked::Held(held))) => return self.auditor.held(&owner, &held),
            Some(Err(_)) | None => return,
        };
        let grant = guard.grant();
        let lost = guard.cancellation();
        let shared = Arc::new(Mutex::new(Some(guard)));
        let belief = self.auditor.granted(self.machine, &asked, &grant, Hold::Guard(Arc::clone(&shared)));
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
        let key = key_of(&self.key());
        let leases = self.leases.clone();
        // Whatever it says: it must not break anything.
        match self.dice.random_range(0..3) {
            0 => drop(self.patience(async move { leases.get(&key).await.map(drop) }).await),
            1 => drop(self.patience(async move { leases.peek(&key).await.map(drop) }).await),
            _ => drop(self.patience(async move { leases.list(b"key", None, 10).await.map(drop) }).await),
        }
    }

    async fn sweep(&mut self) {
        let store = self.store.clone();
        let mut options = SweepOptions::new().op_delay(Duration::ZERO);
        match self.dice.random_range(0..4) {
            0 => options = options.max_ops(self.dice.random_range(1..6)),
            1..=2 => options = options.heed_activity(),
            _ => {}
        }
        let swept = self.patience(async move { store.sweep_once(options).await }).await;
        if let Some(Ok(report)) = swept {
            if report.failures == 0 && report.entries_seen != report.entries_kept + report.entries_deleted {
                self.auditor.accuse(format!("what was judged was not deleted: {report:?}"));
            }
            self.world.note(format_args!("{} swept {} entries", self.name, report.entries_seen));
        }
    }

    async fn transaction(&mut self) {
        let newest = |dice: &mut StdRng, txns: &[TxnId]| {
            let back = dice.random_range(0..8usize) << dice.random_range(0..3);
            txns.len().checked_sub(1 + back).map(|at| txns[at])
        };
        let chosen = {
            let txns = self.common.txns.lock().unwrap_or_else(PoisonError::into_inner);
            newest(&mut self.dice, &txns)
        };
        let txn = match chosen {
            Some(txn) if self.dice.random_range(0..3) > 0 => txn,
            _ => {
                let txn = self.decisions.begin();
                self.common.txns.lock().unwrap_or_else(PoisonError::into_inner).push(txn);
                txn
            }
        };
        match self.dice.random_range(0..10) {
            0..=4 => self.decide(txn).await,
            5..=8 => self.read(txn).await,
            _ => {
                self.auditor.register(|register, _| {
                    register.may_forget(txn);
                    Ok(())
                });
                let decisions = self.decisions.clone();
                let _ = self.patience(async move { decisions.forget(txn).await }).await;
            }
        }
    }

    /// Decides and reads where it matters to the second: when it becomes too old, or when it is forgotten.
    async fn at_the_edge(&mut self) {
        let edges: Vec<(TxnId, i64)> = {
            let now = self.world.now();
            let txns = self.common.txns.lock().unwrap_or_else(PoisonError::into_inner);
            let edges = txns.iter().flat_map(|txn| {
                let closes = txn.begun().as_micros() + MAX_TXN_AGE;
                [(*txn, closes), (*txn, closes + MARGIN)]
            });
            edges.filter(|(_, at)| (now..now + 25 * SECOND).contains(at)).collect()
        };
        let Some((txn, edge)) = edges.choose(&mut self.dice).copied() else { return self.transaction().await };
        let at = edge + self.dice.random_range(-2 * SECOND..2 * SECOND);
        let left = at - self.world.now();
        if left > 0 {
            self.clock.sleep(Duration::from_micros(left.unsigned_abs())).await;
        }
        match self.dice.random_range(0..2) {
            0 => self.decide(txn).await,
            _ => self.read(txn).await,
        }
    }

    async fn decide(&mut self, txn: TxnId) {
        let decision = if self.dice.random_range(0..2) == 0 { Decision::Commit } else { Decision::Abort };
        let known = self.is_told(txn);
        let decisions = self.decisions.clone();
        self.world.note(format_args!("{} decides {txn}: {decision}", self.name));
        match self.patience(async move { decisions.decide(txn, decision).await }).await {
            Some(Ok(Decided::Decision(decision))) => {
                self.auditor.register(|register, _| register.told(txn, decision));
            }
            Some(Ok(Decided::TooOld)) => {
                self.auditor.register(|register, now| register.too_old(txn, known, now));
            }
            Some(Err(_)) | None => {}
        }
    }

    async fn read(&mut self, txn: TxnId) {
        let known = self.is_told(txn) && self.world.has_a_clock(self.machine);
        let decisions = self.decisions.clone();
        if let Some(Ok(answer)) = self.patience(async move { decisions.decision(txn).await }).await {
            self.world.note(format_args!("{} reads {txn}: {answer:?}", self.name));
            self.auditor.register(|register, now| register.answered(txn, answer, known, now));
        }
    }

    fn is_told(&self, txn: TxnId) -> bool {
        self.auditor.register(|register, _| Ok(register.is_told(txn))).unwrap_or(false)
    }
}

pub fn key_of(name: &str) -> Key {
    Key::new(name).expect("a short name is a key")
}

/// The dice of one client of one life of a machine.
pub fn client_dice(plan: &Plan, machine: usize, life: u64, client: usize) -> StdRng {
    dice(plan.seed, "client", (life * 64 + machine as u64) * 64 + client as u64)
}
