//! Workers: handlers that are run for jobs.

mod alone;
mod clocks;
mod running;
mod stopping;

use super::shared::World;
use leasehold::{Clock as _, job::NewJob};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What handlers have done, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// How often each was noted.
    fn counted(&self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        for what in self.all() {
            *counted.entry(what).or_default() += 1;
        }
        counted
    }
}

/// Lets time pass until this holds.
async fn until(world: &World, what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        world.pass(Duration::from_millis(100)).await;
    }
    panic!("not within five minutes: {what}");
}

/// Lets time pass until a task has ended.
async fn ended<T>(world: &World, task: tokio::task::JoinHandle<T>) -> T {
    until(world, "the task ends", || task.is_finished()).await;
    task.await.unwrap()
}

/// A sleep by the world's clock.
fn sleep(world: &World, time: Duration) -> impl Future<Output = ()> + Send + 'static {
    let clock = world.0.clock.clone();
    async move { clock.sleep(time).await }
}

fn text(job: &leasehold::job::Job) -> String {
    String::from_utf8(job.args().to_vec()).unwrap()
}

fn of_kind(kind: &str, args: &str) -> NewJob {
    NewJob::new(args.to_owned()).kind(kind)
}
