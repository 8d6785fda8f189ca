//! One run of one plan: machines, their clients, what happens to them, and the end, when everything must be tidy.

use crate::{
    auditor::Auditor,
    client::{Client, Common, client_dice},
    events::Event,
    node::Machine,
    plan::Plan,
    profile::Profile,
    queue,
    wire::Wire,
    world::{SECOND, STORE, World},
};
use leasehold::{
    Clock, Result, Store, StoreBuilder,
    store::Probing,
    testkit::{Answer as Status, Dates, Fault, FaultStore, Op, Rule, SeededGenerator},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Handle;

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
    /// What became of jobs.
    pub jobs: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    pub lines: Vec<String>,
}

/// Machines are numbered from 1; the store is 0, and the last one is the inspector, which comes when all is over.
pub struct Run {
    pub plan: Arc<Plan>,
    pub world: World,
    pub auditor: Auditor,
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

/// Opens the store on a machine.
#[derive(Clone)]
pub struct Maker {
    machine: usize,
    life: u64,
    /// Tells processes of one life apart.
    number: u64,
    plan: Arc<Plan>,
    world: World,
    store: FaultStore,
    runtime: Handle,
    auditor: Auditor,
    requests: Arc<AtomicU64>,
}

impl Maker {
    /// Where a process of it runs, and in which life of its machine.
    pub fn place(&self) -> (Arc<Plan>, World, Auditor, usize, u64) {
        (Arc::clone(&self.plan), self.world.clone(), self.auditor.clone(), self.machine, self.life)
    }

    /// For another process on the same machine.
    pub fn again(&self, number: u64) -> Self {
        Self { number, ..self.clone() }
    }

    pub fn builder(&self) -> StoreBuilder {
        let Self { machine, ref plan, .. } = *self;
        let dates = plan.has_dates().then(Dates::new);
        let wire = Wire {
            machine,
            world: self.world.clone(),
            store: self.store.clone(),
            runtime: self.runtime.clone(),
            auditor: self.auditor.clone(),
            requests: Arc::clone(&self.requests),
            latency: plan.latency(),
            dates: dates.clone(),
            proxied: plan.is_proxied(machine),
        };
        let seed = plan.seed.wrapping_mul(1_000_003) ^ (self.life * 64 + machine as u64) ^ self.number << 32;
        let builder = Store::builder().object_store(Arc::new(wire)).settings(plan.settings());
        let builder = if plan.lists_in_order() { builder.lists_in_order() } else { builder };
        let builder = match dates {
            Some(dates) => builder.dated_answers(dates),
            None => builder,
        };
        builder
            .probing(Probing::Never)
            .clock(Arc::new(self.world.clock(machine)))
            .generator(Arc::new(SeededGenerator::new(seed)))
    }
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
    (1..=plan.nodes).for_each(|machine| world.set_rate(machine, plan.rate(machine)));
    let auditor = Auditor::new(world.clone(), plan);
    auditor.register(|register, _| {
        register.store_offset = plan.store_offset() * 1000;
        Ok(())
    });
    let store_clock = Arc::new(world.clock(STORE));
    let store = FaultStore::new(store_clock, Arc::new(SeededGenerator::new(plan.seed)));
    store.set_offset_millis(plan.store_offset());
    store.set_front_ends(plan.front_ends());
    if plan.stamps_whole_seconds() {
        store.stamp_whole_seconds();
    }
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
        jobs: run.auditor.job_counts(),
        lines: run.world.lines(),
    }
}

impl Run {
    fn plan_for(&mut self, at: i64, todo: Todo) {
        self.number += 1;
        self.agenda.insert((at, self.number), todo);
    }

    fn maker(&self, machine: usize) -> Maker {
        Maker {
            machine,
            life: self.lives[machine],
            number: 0,
            plan: Arc::clone(&self.plan),
            world: self.world.clone(),
            store: self.store.clone(),
            runtime: self.store_machine.handle().clone(),
            auditor: self.auditor.clone(),
            requests: Arc::clone(&self.requests),
        }
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
        let maker = self.maker(machine);
        booted.handle().spawn(async move {
            let Some(store) = open(&maker, &clock).await else { return };
            if plan.profile == Profile::Queues {
                for client in queue::clients(&store, &maker, plan.clients) {
                    let (at_work, stretches) = (AtWork::new(&busy), Arc::clone(&stretches));
                    tokio::spawn(async move {
                        client.run(stretches).await;
                        drop(at_work);
                    });
                }
                // The store lives as long as the machine.
                return std::future::pending().await;
            }
            if plan.has_sweepers() {
                drop(store.sweeper().start());
            }
            let decides = plan.decides();
            for number in 0..plan.clients {
                let client = Client {
                    plan: Arc::clone(&plan),
                    world: world.clone(),
                    auditor: auditor.clone(),
                    common: Arc::clone(&common),
                    machine,
                    clock: clock.clone(),
                    decisions: store.decisions().by(format!("machine-{machine}")),
                    store: store.clone(),
                    dice: client_dice(&plan, machine, life, number),
                    name: format!("m{machine}l{life}c{number}"),
                    number: number as u64,
                    maker: maker.clone(),
                    opened: 0,
                    asked: 0,
                    decides,
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
        if self.plan.profile == Profile::Queues {
            self.make_queue();
        }
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
        if self.plan.profile == Profile::Queues {
            return if self.auditor.is_content() {
                self.inspect_queue()
            };
        }
        // The last hour ends, and with it everything that is in the store.
        let then = self.world.now() + 2 * 3600 * SECOND;
        self.step_until(then, |_| false);
        self.auditor.check_late();
        if self.auditor.is_content() {
            self.inspect();
        }
    }

    /// Has a fresh process do something, with nothing going wrong.
    pub fn ask<F>(&mut self, work: impl FnOnce(Store) -> F + Send + 'static)
    where
        F: Future<Output = Result<Vec<String>>> + Send,
    {
        let inspector = self.plan.nodes + 1;
        self.lives[inspector] += 1;
        let machine = Machine::boot();
        let builder = self.maker(inspector).builder();
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
        self.step_until(self.world.now() + 3600 * SECOND, |_| is_there());
        let worked = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        match worked {
            None => self.auditor.accuse("I10: tidying does not come to an end"),
            Some(Err(error)) => self.auditor.accuse(format!("I10: {error}")),
            Some(Ok(problems)) => problems.into_iter().for_each(|problem| self.auditor.accuse(problem)),
        }
    }
}

/// Tries until the store lets it.
async fn open(maker: &Maker, clock: &dyn Clock) -> Option<Store> {
    for _ in 0..=200 {
        match maker.builder().open().await {
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
