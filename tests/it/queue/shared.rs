//! What the promises of queues need: processes on one store that fails as it is told to.

use crate::common::Memory;
use leasehold::{Queue, Store, job::NewJob};
use std::time::Duration;

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
