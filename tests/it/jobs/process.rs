//! Processes that share a store in memory and run one at a time: one that is not run is paused, and can die.

use crate::common::{Memory, calm};
use leasehold::{
    Queue, Settings, Store,
    job::{Job, JobOptions, NewJob},
};
use leasehold_testkit::{Fault, Op, Rule};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A session's time to live, what it takes to see that it has ended, and the spread of what comes back.
pub(super) const RECOVERED: Duration = Duration::from_secs(30 + 2 + 4 + 5 + 1);

pub(super) struct World(pub(super) Memory);

/// One process. Nothing of it moves unless it is run.
pub(super) struct Process {
    runtime: Option<Runtime>,
    /// Kept open for as long as the process lives.
    pub(super) store: Store,
    pub(super) queue: Queue,
}

impl World {
    pub(super) fn new() -> Self {
        Self(Memory::new())
    }

    /// Starts a process. No two may have the same seed.
    pub(super) fn process(&self, seed: u64) -> Process {
        self.process_with(seed, |_| {})
    }

    /// Starts a process that works with queues in another way.
    pub(super) fn process_with(&self, seed: u64, change: impl FnOnce(&mut JobOptions)) -> Process {
        let runtime = Builder::new_current_thread().build().unwrap();
        let mut settings = Settings::default();
        settings.jobs.owner = Some(format!("process-{seed}"));
        settings.jobs.shards = 1;
        change(&mut settings.jobs);
        let store = runtime.block_on(self.0.builder(seed).settings(settings).open()).unwrap();
        let queue = store.queue("work").unwrap();
        runtime.block_on(queue.settings()).unwrap();
        Process { runtime: Some(runtime), store, queue }
    }

    pub(super) fn fault(&self, op: Op, on: &str, fault: Fault) {
        self.0.store.faults().script(Rule::once(op, fault).on(on));
    }

    pub(super) fn names(&self, part: &str) -> Vec<String> {
        self.0.store.names().into_iter().filter(|name| name.contains(part)).collect()
    }
}

impl Process {
    /// Runs it until this is done.
    pub(super) fn run<T>(&self, run: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(run)
    }

    /// Runs it until this is done, while time passes: what has a deadline or a pause needs that.
    pub(super) fn run_in_time<T>(&self, world: &World, run: impl Future<Output = T>) -> T {
        self.run(async {
            let mut run = std::pin::pin!(run);
            loop {
                tokio::select! {
                    biased;
                    done = &mut run => return done,
                    () = world.0.pass(Duration::from_millis(100)) => {}
                }
            }
        })
    }

    /// Time passes, and this process does what it has to.
    pub(super) fn pass(&self, world: &World, time: Duration) {
        self.run(world.0.pass(time));
    }

    pub(super) fn enqueue(&self, count: usize) {
        self.run(self.queue.enqueue_many(jobs(count)).into_future()).unwrap();
    }

    pub(super) fn claim(&self, most: u32) -> Vec<Job> {
        self.run(self.queue.claim(most).into_future()).unwrap()
    }

    /// Claims, and dies with what it was given; its fence.
    pub(super) fn dies_with(mut self, jobs: Vec<Job>) -> Option<leasehold::Fence> {
        let fence = jobs.first().map(Job::fence);
        std::mem::forget(jobs);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        std::mem::forget(self);
        fence
    }

    /// Lets everything that is on its way arrive.
    pub(super) fn calm(&self) {
        self.run(calm());
    }
}

pub(super) fn jobs(count: usize) -> Vec<NewJob> {
    (0..count).map(|number| NewJob::new(number.to_string())).collect()
}

pub(super) fn numbers(jobs: &[Job]) -> Vec<usize> {
    let mut numbers: Vec<usize> =
        jobs.iter().map(|job| std::str::from_utf8(&job.args()).unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}
