//! What the promises of queues need: processes on one store that fails as it is told to.

use crate::common::Memory;
use leasehold::{
    Clock, Queue, Store,
    job::{Job, NewJob},
};
use leasehold_testkit::{Rule, TestClock};
use std::{sync::Arc, time::Duration};

pub(super) struct World(pub(super) Memory);

impl World {
    pub(super) fn new() -> Self {
        Self(Memory::new())
    }

    /// One process: a store opened of its own. No two may have the same seed.
    pub(super) async fn process(&self, seed: u64) -> Store {
        let mut settings = leasehold::Settings::default();
        settings.jobs.owner = Some(format!("process-{seed}"));
        settings.jobs.shards = 1;
        self.0.builder(seed).settings(settings).open().await.unwrap()
    }

    /// A process that stands still until its own clock is moved: its session is not renewed, and it does not know.
    pub(super) async fn paused(&self, seed: u64) -> (Queue, TestClock) {
        let clock = TestClock::at(self.0.clock.wall());
        let mut settings = leasehold::Settings::default();
        settings.jobs.owner = Some(format!("process-{seed}"));
        settings.jobs.shards = 1;
        let builder = self.0.builder(seed).settings(settings).clock(Arc::new(clock.clone()));
        (builder.open().await.unwrap().queue("emails").unwrap(), clock)
    }

    pub(super) fn fault(&self, rule: Rule) {
        self.0.store.faults().script(rule);
    }

    pub(super) async fn queue(&self, seed: u64) -> Queue {
        self.process(seed).await.queue("emails").unwrap()
    }

    pub(super) async fn pass(&self, time: Duration) {
        self.0.pass(time).await;
    }

    /// The names in the store that contain this.
    pub(super) fn names(&self, part: &str) -> Vec<String> {
        self.0.store.names().into_iter().filter(|name| name.contains(part)).collect()
    }
}

pub(super) fn jobs(count: usize) -> Vec<NewJob> {
    (0..count).map(|number| NewJob::new(format!("job {number}"))).collect()
}

/// The only job that a claim gets.
pub(super) async fn one(queue: &Queue) -> Job {
    let mut claimed = queue.claim(1).await.unwrap();
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}

/// Claims and finishes until nothing is left; the arguments of what was run.
pub(super) async fn work_down(queue: &Queue) -> Vec<String> {
    let mut run = Vec::new();
    loop {
        let claimed = queue.claim(100).await.unwrap();
        if claimed.is_empty() {
            return run;
        }
        run.extend(claimed.iter().map(|job| String::from_utf8(job.args().to_vec()).unwrap()));
        for end in queue.finish_all(claimed).await.unwrap() {
            assert!(end.is_accepted(), "{end:?}");
        }
    }
}
