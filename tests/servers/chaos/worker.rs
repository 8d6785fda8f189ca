//! One process of the workload: locks, fenced writes, decisions, and a sweeper with no delay, until it is killed or told
//! to stop.

use super::{
    TTL,
    history::{Answer, Event, Line},
    hot, micros, old,
    resource::{Applied, Connection},
};
use crate::place::key;
use leasehold::{
    Clock, Generator, Settings, Store, SystemClock,
    decision::{Decision, TxnId},
    lease::{Guard, Leases, Locked, Request},
    sweep::SweepOptions,
};
use leasehold_testkit::SeededGenerator;
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    net::SocketAddr,
    os::unix::process::parent_id,
    path::PathBuf,
    time::Duration,
};

/// What the driver tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) name: String,
    /// Which of its lives this is; its choices follow from it.
    pub(super) life: u64,
    pub(super) url: String,
    pub(super) options: Vec<(String, String)>,
    pub(super) resource: SocketAddr,
    pub(super) history: PathBuf,
    /// It ends when this file is there.
    pub(super) stop: PathBuf,
}

pub(super) const ORDERS: &str = "LEASEHOLD_CHAOS_ORDERS";

#[test]
#[ignore = "started by the driver"]
fn a_process() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut worker = Worker::new(orders);
        let Some(store) = worker.open().await else { return };
        while !worker.must_stop() {
            worker.step(&store).await;
            if std::mem::take(&mut worker.tired) {
                SystemClock::new().sleep(Duration::from_millis(50)).await;
            }
        }
    });
}

struct Worker {
    orders: Orders,
    parent: u32,
    chance: SeededGenerator,
    resource: Connection,
    history: File,
    writes: u64,
    /// Something has failed: a moment's rest is due.
    tired: bool,
}

impl Worker {
    fn new(orders: Orders) -> Self {
        let seed = orders.name.bytes().fold(orders.life, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let history = OpenOptions::new().append(true).create(true).open(&orders.history).unwrap();
        let resource = Connection::new(orders.resource);
        Self {
            parent: parent_id(),
            chance: SeededGenerator::new(seed),
            resource,
            history,
            writes: 0,
            tired: false,
            orders,
        }
    }

    fn must_stop(&self) -> bool {
        parent_id() != self.parent || self.orders.stop.exists()
    }

    fn pick(&self, below: u32) -> u32 {
        let mut bytes = [0; 4];
        self.chance.fill(&mut bytes);
        u32::from_le_bytes(bytes) % below
    }

    /// In one piece: half a line of one life would swallow the first of the next.
    fn say(&mut self, began: u64, event: Event) {
        let line = Line { worker: self.orders.name.clone(), began, ended: micros(), event };
        let text = serde_json::to_string(&line).unwrap() + "\n";
        self.history.write_all(text.as_bytes()).unwrap();
    }

    fn failed(&mut self, began: u64, call: &str, error: &leasehold::Error) {
        let (kind, message) = (format!("{:?}", error.kind()), error.to_string());
        self.say(began, Event::Failed { call: call.into(), kind, message });
        self.tired = true;
    }

    async fn open(&mut self) -> Option<Store> {
        let mut settings = Settings::default();
        settings.request_timeout = Duration::from_secs(2);
        (settings.poll_interval, settings.max_poll_interval) = (Duration::from_millis(20), Duration::from_millis(200));
        while !self.must_stop() {
            let builder = Store::builder().url(&self.orders.url).settings(settings.clone());
            let options = self.orders.options.iter();
            let began = micros();
            match options.fold(builder, |builder, (key, value)| builder.option(key, value)).open().await {
                Ok(store) => return Some(store),
                Err(error) => self.failed(began, "open", &error),
            }
            SystemClock::new().sleep(Duration::from_millis(100)).await;
        }
        None
    }

    async fn step(&mut self, store: &Store) {
        let leases = store.leases("default").unwrap();
        match self.pick(100) {
            0..65 => self.work(&leases, &hot(self.pick(u32::MAX))).await,
            65..75 => self.work(&leases, &old(self.pick(u32::MAX))).await,
            75..97 => self.decide(store).await,
            _ => self.sweep(store).await,
        }
    }

    /// A lock, some fenced writes under it, and the end of it.
    async fn work(&mut self, leases: &Leases, name: &str) {
        let request = Request::new(TTL).owner(&self.orders.name);
        let began = micros();
        let guard = match leases.lock_within(&key(name), &request, 3 * TTL).await {
            Ok(Locked::Granted(guard)) => guard,
            Ok(Locked::Held(_)) => return,
            Err(error) => return self.failed(began, "lock", &error),
        };
        let (fence, lease) = (guard.fence().get(), guard.grant().lease_id().to_string());
        self.say(began, Event::Granted { key: name.into(), fence, lease: lease.clone() });
        for _ in 0..1 + self.pick(3) {
            if !guard.is_valid() {
                break;
            }
            self.write(name, &guard, fence, &lease).await;
        }
        let began = micros();
        match self.pick(10) {
            // Released in the background, if there is time for that.
            0 => drop(guard),
            _ => {
                if let Err(error) = guard.release().await {
                    self.failed(began, "release", &error);
                }
            }
        }
    }

    /// Reads a number and writes the next one. It believes in its lease when it starts to; then anything may happen.
    async fn write(&mut self, name: &str, guard: &Guard, fence: u64, lease: &str) {
        let began = micros();
        let Some(count) = self.resource.enter(name, fence) else {
            return self.say(began, Event::Refused { key: name.into(), fence });
        };
        let pause = [0, 0, 2, 10, 50, 400][self.pick(6) as usize];
        SystemClock::new().sleep(Duration::from_millis(pause)).await;
        if !guard.is_valid() {
            return;
        }
        self.writes += 1;
        let id = format!("{}-{}-{}", self.orders.name, self.orders.life, self.writes);
        let write = Applied { key: name.into(), fence, lease: lease.into(), count: count + 1, id: id.clone() };
        match self.resource.write(write) {
            true => self.say(began, Event::Wrote { key: name.into(), fence, id }),
            false => self.say(began, Event::Refused { key: name.into(), fence }),
        }
    }

    /// Decides a transaction of its own or of another worker, or asks for it.
    async fn decide(&mut self, store: &Store) {
        let decisions = store.decisions().by(&self.orders.name);
        let others = if self.pick(3) == 0 { None } else { self.resource.pick(self.pick(u32::MAX)) };
        let txn: TxnId = match others {
            Some(txn) => txn.parse().unwrap(),
            None => {
                let txn = decisions.begin();
                self.resource.offer(txn.to_string());
                txn
            }
        };
        let began = micros();
        let answer = match self.pick(3) {
            0 => decisions.get(txn).await.map(Answer::from),
            1 => decisions.decide(txn, Decision::Commit).await.map(Answer::from),
            _ => decisions.decide(txn, Decision::Abort).await.map(Answer::from),
        };
        match answer {
            Ok(answer) => self.say(began, Event::Answered { txn: txn.to_string(), answer }),
            Err(error) => self.failed(began, "decide", &error),
        }
    }

    async fn sweep(&mut self, store: &Store) {
        let began = micros();
        let options = SweepOptions::new().op_delay(Duration::ZERO).max_ops(20);
        match store.sweeper().run_once(options).await {
            Ok(report) => {
                let (cleared, deleted) = (report.of("lease").cleared, report.entries_deleted);
                let (kept, failures) = (report.entries_kept, report.failures);
                self.say(began, Event::Swept { cleared, deleted, kept, failures });
            }
            Err(error) => self.failed(began, "sweep", &error),
        }
    }
}
