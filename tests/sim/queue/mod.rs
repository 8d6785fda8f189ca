//! Queues in the simulated world: producers and workers on machines that die, pause and come back, and somebody who knows
//! what every job was told.

mod audit;
mod client;
mod inspect;
mod rules;

pub use audit::Jobs;
pub use client::{QueueClient, settings};

use crate::{
    Plan, Sum,
    plan::dice,
    profile::Profile,
    run::{Maker, run},
    world::SECOND,
};
use leasehold::{Settings, Store};
use rand::RngExt;

/// The one queue that everybody uses.
pub const QUEUE: &str = "work";

impl Plan {
    /// A run that is about queues.
    pub fn of_queues(seed: u64) -> Self {
        Self { profile: Profile::Queues, stretches: 2, ..Self::new(seed) }
    }

    /// When producers and workers are at work: long enough for sessions to end and their jobs to come back.
    pub fn queue_stretches(&self) -> Vec<(i64, i64)> {
        let mut dice = dice(self.seed, "queue stretches", 0);
        let first = dice.random_range(40 * SECOND..110 * SECOND);
        let pause = SECOND * dice.random_range(30..260);
        let second = dice.random_range(20 * SECOND..90 * SECOND);
        let mut stretches = vec![(0, first), (first + pause, first + pause + second)];
        stretches.truncate(self.stretches);
        stretches
    }

    /// How processes of this run work with queues.
    pub fn job_settings(&self, settings: &mut Settings) {
        settings.jobs.shards = 1 + u16::from(self.seed.is_multiple_of(5));
        settings.jobs.owner = Some("somebody".into());
    }
}

/// Starts the producers and workers of one process.
pub fn clients(store: &Store, maker: &Maker, count: usize) -> Vec<QueueClient> {
    (0..count).map(|number| QueueClient::new(store, maker, number)).collect()
}

/// Runs queue seeds after each other, on as many threads as there are processors.
pub fn simulate(seeds: std::ops::Range<u64>) -> Sum {
    crate::simulate_plans(seeds, |seed| run(&Plan::of_queues(seed), false))
}
