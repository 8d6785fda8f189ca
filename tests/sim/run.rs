//! One run of one plan: machines, their clients, what happens to them, and the end, when everything must be tidy.

use crate::{
    auditor::Auditor,
    client::{Client, Common, client_dice, key_of},
    node::Machine,
    plan::{Event, Plan},
    wire::Wire,
    world::{SECOND, STORE, World},
};
use leasehold::{
    Bucket, Clock, Result, Store,
    clock::Timestamp,
    decision::{Answer, TxnId},
    lease::{Acquired, Request},
    store::Probing,
    sweep::{StoppedBy, SweepOptions},
    testkit::{Answer as Status, Fault, FaultStore, Op, Rule, SeededGenerator},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// So long after the last stretch every call must have come back: waits, patience, and what a machine slept through.
const ALL_BACK: i64 = 2 * 3600 * SECOND;

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Ran {
    pub violations: Vec<String>,
    pub hash: u64,
    pub operations: u64,
    pub grants: u64,
    pub stalls: u64,
    pub events: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    pub lines: Vec<String>,
}

/// Machines are numbered from 1; the store is 0, and the last one is the inspector, which comes when all is over.
struct Run {
    plan: Arc<Plan>,
    world: World,
    auditor: Auditor,
    store: FaultStore,
    store_machine: Machine,
    machines: Vec<Option<Machine>>,
    lives: Vec<u64>,
    common: Arc<Common>,
    stretches: Arc<Vec<(i64, i64)>>,
    requests: Arc<AtomicU64>,
    busy: Arc<AtomicU64>,
    counts: BTreeMap<&'static str, u64>,
    /// What is to be done to whom, and when.
    agenda: BTreeMap<(i64, u64), Todo>,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
enum Todo {
    Event(Event),
    Boot(usize),
    Calm,
}

/// Runs a plan to its end, or to the first broken promise.
pub fn run(plan: &Plan, traced: bool) -> Ran {
    let world = World::new(plan.start(), plan.nodes + 2, plan.seed, plan.stalls(), traced);
    let auditor = Auditor::new(world.clone());
    auditor.register(|register, _| {
        register.store_offset = plan.store_offset() * 1000;
        Ok(())
    });
    let store_clock = Arc::new(world.clock(STORE));
    let store = FaultStore::new(store_clock, Arc::new(SeededGenerator::new(plan.seed)));
    store.set_offset_millis(plan.store_offset());
    let observer = auditor.clone();
    store.set_observer(Box::new(move |applied| observer.observe(applied)));
    let start = plan.start().as_micros();
    let stretches = plan.stretches().into_iter().map(|(begin, end)| (start + begin, start + end)).collect();
    let mut run = Run {
        plan: Arc::new(plan.clone()),
        world,
        auditor,
        store,
        store_machine: Machine::boot(),
        machines: (0..plan.nodes + 2).map(|_| None).collect(),
        lives: vec![0; plan.nodes + 2],
        common: Arc::default(),
        stretches: Arc::new(stretches),
        requests: Arc::default(),
        busy: Arc::default(),
        counts: BTreeMap::new(),
        agenda: BTreeMap::new(),
        number: 0,
    };
    run.live();
    run.finish();
    Ran {
        violations: run.auditor.violations(),
        hash: run.world.hash(),
        operations: run.requests.load(Ordering::Relaxed),
        grants: run.auditor.grants(),
        stalls: run.world.stalled(),
        faults: run.store.faults().injected(),
        events: run.counts,
        lines: run.world.lines(),
    }
}

impl Run {
    fn plan_for(&mut self, at: i64, todo: Todo) {
        self.number += 1;
        self.agenda.insert((at, self.number), todo);
    }

    fn builder(&self, machine: usize) -> leasehold::StoreBuilder {
        let wire = Wire {
            machine,
            world: self.world.clone(),
            store: self.store.clone(),
            runtime: self.store_machine.handle().clone(),
            auditor: self.auditor.clone(),
            requests: Arc::clone(&self.requests),
            latency: self.plan.latency(),
        };
        let life = self.lives[machine];
        let seed = self.plan.seed.wrapping_mul(1_000_003) ^ (life * 64 + machine as u64);
        let builder = Store::builder().object_store(Arc::new(wire)).settings(self.plan.settings());
        let builder = if self.plan.lists_in_order() { builder.lists_in_order() } else { builder };
        builder
            .probing(Probing::Never)
            .clock(Arc::new(self.world.clock(machine)))
            .generator(Arc::new(SeededGenerator::new(seed)))
    }

    /// A machine starts, knowing nothing but where the store is.
    fn boot(&mut self, machine: usize) {
        self.lives[machine] += 1;
        self.world.note(format_args!("machine {machine} boots"));
        let booted = Machine::boot();
        let (plan, world, auditor) = (Arc::clone(&self.plan), self.world.clone(), self.auditor.clone());
        let (common, stretches, busy) = (Arc::clone(&self.common), Arc::clone(&self.stretches), Arc::clone(&self.busy));
        let life = self.lives[machine];
        let clock = world.clock(machine);
        let first = self.builder(machine);
        let again: Vec<_> = (0..200).map(|_| self.builder(machine)).collect();
        booted.handle().spawn(async move {
            let Some(store) = open(first, again, &clock).await else { return };
            for number in 0..plan.clients {
                let client = Client {
                    plan: Arc::clone(&plan),
                    world: world.clone(),
                    auditor: auditor.clone(),
                    common: Arc::clone(&common),
                    machine,
                    clock: clock.clone(),
                    leases: store.leases("default").expect("a good name"),
                    decisions: store.decisions().by(format!("machine-{machine}")),
                    store: store.clone(),
                    dice: client_dice(&plan, machine, life, number),
                    name: format!("m{machine}l{life}c{number}"),
                    asked: 0,
                    stretches: Arc::clone(&stretches),
                };
                let at_work = AtWork::new(&busy);
                tokio::spawn(async move {
                    client.run().await;
                    drop(at_work);
                });
            }
        });
        self.machines[machine] = Some(booted);
        self.world.touch(machine);
    }

    fn crash(&mut self, machine: usize) {
        // All its tasks go at once; the requests that it sent are on their way.
        self.machines[machine] = None;
        self.auditor.crashed(machine);
    }

    fn live(&mut self) {
        let start = self.plan.start().as_micros();
        self.store.faults().roll(SeededGenerator::new(self.plan.seed ^ 0x5eed), self.plan.rates());
        for (at, event) in self.plan.events() {
            self.plan_for(start + at, Todo::Event(event));
        }
        for machine in 1..=self.plan.nodes {
            self.boot(machine);
        }
        let Some((_, end)) = self.stretches.last().copied() else { return };
        self.step_until(end, |_| false);
    }

    /// Goes from one thing that is due to the next.
    fn step_until(&mut self, end: i64, done: impl Fn(&Self) -> bool) {
        loop {
            self.run_machines();
            if !self.auditor.is_content() || done(self) {
                return;
            }
            let planned = self.agenda.keys().next().map(|(at, _)| *at);
            let timer = self.world.next_timer();
            let Some(next) = planned.into_iter().chain(timer).min().filter(|next| *next <= end) else {
                return self.world.advance_to(end);
            };
            self.world.advance_to(next);
            let now = self.world.now();
            while let Some(first) = self.agenda.first_entry()
                && first.key().0 <= now
            {
                let todo = first.remove();
                self.act(todo);
            }
        }
    }

    /// The store hands out its answers, the machines act on them, the store takes what they send.
    fn run_machines(&mut self) {
        if self.world.take_dirty(STORE) {
            self.store_machine.run();
        }
        for machine in 1..self.machines.len() {
            if let Some(running) = &self.machines[machine]
                && self.world.take_dirty(machine)
            {
                running.run();
            }
        }
        if self.world.take_dirty(STORE) {
            self.store_machine.run();
        }
    }

    fn act(&mut self, todo: Todo) {
        self.world.note(format_args!("{todo:?}"));
        let now = self.world.now();
        match todo {
            Todo::Boot(machine) => self.boot(machine),
            Todo::Calm => {
                self.store.faults().clear();
                self.store.faults().roll(SeededGenerator::new(self.plan.seed ^ now.unsigned_abs()), self.plan.rates());
            }
            Todo::Event(event) => self.happen(event, now),
        }
    }

    fn happen(&mut self, event: Event, now: i64) {
        let (name, machine) = match event {
            Event::Crash(machine, _) => ("crash", machine),
            Event::Sleep { node, still: false, .. } => ("pause", node),
            Event::Sleep { node, still: true, .. } => ("suspend", node),
            Event::Clock { node, sound: true, .. } => ("clock set", node),
            Event::Clock { node, sound: false, .. } => ("clock broken", node),
            Event::Outage(_) => ("outage", STORE),
        };
        // Down or asleep already: nothing more can happen to it.
        if machine != STORE && (self.machines[machine].is_none() || self.world.is_asleep(machine)) {
            return;
        }
        *self.counts.entry(name).or_default() += 1;
        match event {
            Event::Crash(machine, down) => {
                self.crash(machine);
                self.plan_for(now + down, Todo::Boot(machine));
            }
            Event::Sleep { node, lasts, still, trap: None } => self.world.put_to_sleep(node, lasts, still),
            Event::Sleep { node, lasts, still, trap: Some(trap) } => self.world.set_trap(node, trap, lasts, still),
            Event::Clock { node, offset, drift, sound } => self.world.set_clock(node, offset, drift, sound),
            Event::Outage(lasts) => {
                for op in [Op::Put, Op::Get, Op::List, Op::Delete] {
                    self.store.faults().script(Rule::always(op, Fault::Refuse(Status::Status(503))));
                }
                self.plan_for(now + lasts, Todo::Calm);
            }
        }
    }

    /// With nothing going wrong any more, everybody comes back, and everything that has ended is tidied.
    fn finish(&mut self) {
        if !self.auditor.is_content() {
            return;
        }
        self.world.note(format_args!("no more faults"));
        self.store.faults().clear();
        self.world.run_smoothly();
        self.agenda.retain(|_, todo| matches!(todo, Todo::Boot(_)));
        for machine in 1..=self.plan.nodes {
            self.world.set_clock(machine, 0, 0, true);
        }
        let end = self.world.now() + ALL_BACK;
        let busy = Arc::clone(&self.busy);
        self.step_until(end, |run| run.agenda.is_empty() && busy.load(Ordering::Relaxed) == 0);
        let waiting = self.busy.load(Ordering::Relaxed);
        if self.auditor.is_content() && waiting > 0 {
            self.auditor.accuse(format!("I10: {waiting} clients wait for ever"));
        }
        // The last hour ends, and with it everything that is in the store.
        let then = self.world.now() + 2 * 3600 * SECOND;
        self.step_until(then, |_| false);
        if self.auditor.is_content() {
            self.inspect();
        }
    }

    /// One process tidies everything, in a bounded number of requests, and then every key can be had.
    fn inspect(&mut self) {
        let before = self.auditor.left();
        let (entries, keys) = (before.entries.len() as u64, before.highest);
        self.ask(move |store| tidied(store, entries, keys));
        let left = self.auditor.left();
        let hour = Bucket::of(Timestamp::from_micros(self.world.now())).ok();
        let past = left.entries.iter().filter(|entry| {
            let bucket = entry.rsplit('/').nth(1).and_then(|bucket| bucket.parse().ok());
            bucket.is_some_and(|bucket: Bucket| hour.is_some_and(|hour| bucket < hour))
        });
        let past: Vec<_> = past.collect();
        let counted = left.markers.iter().filter(|(_, void)| !void).count();
        if !past.is_empty() || counted > 0 {
            self.auditor.accuse(format!("I10: left behind: {past:?} and {counted} decisions"));
        }
        // What came too late for the sweeper goes when somebody asks for it.
        let late: Vec<TxnId> = left.markers.into_iter().map(|(txn, _)| txn).collect();
        self.ask(move |store| forgotten(store, late));
        let left = self.auditor.left().markers;
        if self.auditor.is_content() && !left.is_empty() {
            self.auditor.accuse(format!("I10: decisions that came too late are there for ever: {left:?}"));
        }
    }

    /// Has a fresh process do something, with nothing going wrong.
    fn ask<F>(&mut self, work: impl FnOnce(Store) -> F + Send + 'static)
    where
        F: Future<Output = Result<Vec<String>>> + Send,
    {
        let inspector = self.plan.nodes + 1;
        self.lives[inspector] += 1;
        let machine = Machine::boot();
        let builder = self.builder(inspector);
        let found: Arc<Mutex<Option<Result<Vec<String>>>>> = Arc::default();
        let answer = Arc::clone(&found);
        machine.handle().spawn(async move {
            let worked = async { work(builder.open().await?).await };
            let worked = worked.await;
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(worked);
        });
        self.machines[inspector] = Some(machine);
        self.world.touch(inspector);
        let is_there = || found.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.step_until(self.world.now() + 600 * SECOND, |_| is_there());
        let worked = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        match worked {
            None => self.auditor.accuse("I10: tidying does not come to an end"),
            Some(Err(error)) => self.auditor.accuse(format!("I10: {error}")),
            Some(Ok(problems)) => problems.into_iter().for_each(|problem| self.auditor.accuse(problem)),
        }
    }
}

/// Sweeps in small bites, as often as it may take and no oftener; then takes every key.
async fn tidied(store: Store, entries: u64, keys: BTreeMap<String, u64>) -> Result<Vec<String>> {
    const BITE: u64 = 20;
    let mut problems = Vec::new();
    let (mut requests, mut bites) = (0, 0);
    loop {
        let options = SweepOptions::new().op_delay(Duration::ZERO).max_ops(u32::try_from(BITE).unwrap_or(20));
        let report = store.sweep_once(options).await?;
        requests += report.requests;
        bites += 1;
        if report.failures > 0 {
            problems.push(format!("I10: with no fault anywhere the sweeper failed: {report:?}"));
        }
        if report.stopped_by == Some(StoppedBy::Complete) {
            break;
        }
        if bites > entries / BITE + 2 {
            problems.push(format!("I10: {bites} runs of {BITE} did not tidy {entries} entries"));
            return Ok(problems);
        }
    }
    if requests > 4 * entries + 40 * bites {
        problems.push(format!("I10: {requests} requests were made for {entries} entries"));
    }
    let leases = store.leases("default")?;
    for (key, highest) in keys {
        let status = leases.peek(&key_of(&key)).await?;
        if status.holder.is_some() {
            problems.push(format!("I10: {key} is still held: {status:?}"));
        }
        let request = Request::new(Duration::from_secs(5))?;
        match leases.acquire(&key_of(&key), &request).await? {
            Acquired::Granted(grant) if grant.fence().get() <= highest => {
                problems.push(format!("I1: {key} was granted with {} after {highest}", grant.fence()));
            }
            Acquired::Granted(grant) => leases.release(&grant).await?,
            Acquired::Held(held) => problems.push(format!("I10: {key} is stuck: {held:?}")),
        }
    }
    Ok(problems)
}

async fn forgotten(store: Store, txns: Vec<TxnId>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for txn in txns {
        let answer = store.decisions().decision(txn).await?;
        if answer != Answer::Forgotten {
            problems.push(format!("I5: {txn} came too late, and is {answer:?}"));
        }
    }
    Ok(problems)
}

/// Tries until the store lets it.
async fn open(first: leasehold::StoreBuilder, again: Vec<leasehold::StoreBuilder>, clock: &dyn Clock) -> Option<Store> {
    for builder in std::iter::once(first).chain(again) {
        match builder.open().await {
            Ok(store) => return Some(store),
            Err(_) => clock.sleep(Duration::from_millis(300)).await,
        }
    }
    None
}

/// Counts a client that is at work; one that dies with its machine is not.
struct AtWork(Arc<AtomicU64>);

impl AtWork {
    fn new(busy: &Arc<AtomicU64>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(busy))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
