//! Who works through this service, what they have in hand, and what becomes of it when they fall silent.
//!
//! A worker counts its time from before it sends a renewal, the service from when that arrives and with a margin: so a
//! worker stops believing in its jobs before they are given to others.

use super::{super::App, QueueName};
use crate::{
    view::printable,
    wire::{AttemptName, AttemptResult, Problem},
};
use leasehold::{
    Clock, LeaseId, OsGenerator,
    clock::Moment,
    job::{Job, JobId},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How many workers there may be at once.
const WORKERS: usize = 10_000;

/// How many of its last answers are remembered of a worker, so that it can repeat them.
const REMEMBERED: usize = 4000;

/// For how long a worker with nothing in hand is known after its last word.
const IDLE: Duration = Duration::from_secs(600);

/// How often silent workers are looked for.
const TICK: Duration = Duration::from_millis(250);

/// A job of a queue.
pub(super) type Which = (QueueName, JobId);

/// A job in the hands of a worker.
#[derive(Debug)]
struct Hand {
    job: Job,
    since: Moment,
}

#[derive(Debug)]
struct Known {
    name: String,
    ttl: Duration,
    /// Its last renewal.
    renewed: Moment,
    hand: HashMap<Which, Hand>,
    answered: HashMap<(QueueName, AttemptName), AttemptResult>,
    order: VecDeque<(QueueName, AttemptName)>,
}

/// Everybody who works through this service.
#[derive(Debug, Default)]
pub(in super::super) struct Registry(Mutex<HashMap<String, Known>>);

/// What a worker has, as it is told.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) name: String,
    pub(super) ttl: Duration,
    /// How long the service itself may believe in them, if the store does not answer.
    pub(super) believed: Duration,
    pub(super) jobs: Vec<(QueueName, AttemptName, bool)>,
}

/// An attempt that a worker answers for.
#[derive(Debug)]
pub(super) enum Asked {
    /// It has it.
    Job(Box<Job>),
    /// It has answered for it before.
    Repeated(AttemptResult),
    /// It does not have it.
    Unknown,
}

/// A worker that has not been heard of for too long.
#[derive(Debug)]
struct Silent {
    name: String,
    ttl: Duration,
    jobs: Vec<Job>,
}

fn attempt(job: &Job) -> AttemptName {
    AttemptName { id: job.id().to_string(), fence: job.fence() }
}

/// How long the service waits for a worker: longer than the worker itself, by what their clocks may differ in speed.
fn patience(ttl: Duration) -> Duration {
    ttl + ttl / 20 + Duration::from_millis(500)
}

pub(super) fn unknown_worker() -> Problem {
    Problem::new(
        "unknown_worker",
        "there is no such worker here: it was silent for too long, or the service was started anew; register, and stop \
         what it had in hand",
    )
}

impl Known {
    fn take(&mut self, queue: &QueueName, name: &AttemptName) -> Option<Job> {
        let which = (queue.clone(), name.id.parse().ok()?);
        self.hand.get(&which).filter(|hand| hand.job.fence() == name.fence)?;
        self.hand.remove(&which).map(|hand| hand.job)
    }

    fn remember(&mut self, queue: &QueueName, name: &AttemptName, result: AttemptResult) {
        let key = (queue.clone(), name.clone());
        if self.answered.insert(key.clone(), result).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.answered.remove(&oldest);
        }
    }
}

impl Registry {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, name: String, ttl: Duration, now: Moment) -> Result<String, Problem> {
        let mut all = self.all();
        if all.len() >= WORKERS {
            let problem = Problem::new("too_many_workers", format!("{WORKERS} workers are known already: try later"));
            return Err(Problem { retry_after_ms: Some(10_000), ..problem });
        }
        let id = LeaseId::random(&OsGenerator::new()).to_string();
        let known =
            Known { name, ttl, renewed: now, hand: HashMap::new(), answered: HashMap::new(), order: VecDeque::new() };
        all.insert(id.clone(), known);
        Ok(id)
    }

    /// A worker says that it is alive, and perhaps which jobs it knows of. What has never reached it comes back as well.
    pub(super) fn renew(&self, id: &str, now: Moment, has: Option<&[AttemptName]>) -> Option<(Holding, Vec<Job>)> {
        let mut all = self.all();
        let known = all.get_mut(id)?;
        let mut strange = Vec::new();
        if let Some(has) = has {
            // An answer may be on its way: only what is older than the last renewal can be missed.
            let last = known.renewed;
            let missed: Vec<Which> = known
                .hand
                .iter()
                .filter(|(_, hand)| hand.since < last && !has.contains(&attempt(&hand.job)))
                .map(|(which, _)| which.clone())
                .collect();
            strange = missed.iter().filter_map(|which| known.hand.remove(which)).map(|hand| hand.job).collect();
        }
        known.renewed = now;
        let jobs = known.hand.iter().map(|((queue, _), hand)| {
            let lost = !hand.job.is_ours();
            (queue.clone(), attempt(&hand.job), lost)
        });
        let (name, ttl, jobs) = (known.name.clone(), known.ttl, jobs.collect());
        let believed = known.hand.values().map(|hand| hand.job.time_left()).min().unwrap_or(ttl);
        Some((Holding { name, ttl, believed, jobs }, strange))
    }

    /// How long a worker may be silent; none, if there is no such worker.
    pub(super) fn ttl(&self, id: &str) -> Option<Duration> {
        self.all().get(id).map(|known| known.ttl)
    }

    /// Puts jobs into the hands of a worker, which has asked for them: it is alive. They come back if it is not known any more.
    pub(super) fn give(&self, id: &str, queue: &QueueName, jobs: Vec<Job>, now: Moment) -> Result<(), Vec<Job>> {
        let mut all = self.all();
        let Some(known) = all.get_mut(id) else { return Err(jobs) };
        known.renewed = now;
        for job in jobs {
            known.hand.insert((queue.clone(), job.id()), Hand { job, since: now });
        }
        Ok(())
    }

    /// Takes what a worker answers for out of its hands.
    pub(super) fn take(&self, id: &str, queue: &QueueName, names: &[AttemptName]) -> Option<Vec<Asked>> {
        let mut all = self.all();
        let known = all.get_mut(id)?;
        let take = |name: &AttemptName| match known.take(queue, name) {
            Some(job) => {
                // Whoever asks again before it has landed is not told that it is over.
                known.remember(queue, name, AttemptResult::under_way(name));
                Asked::Job(Box::new(job))
            }
            None => {
                let before = known.answered.get(&(queue.clone(), name.clone()));
                before.map_or(Asked::Unknown, |result| Asked::Repeated(result.clone()))
            }
        };
        Some(names.iter().map(take).collect())
    }

    /// Takes back what has never reached a worker.
    pub(super) fn take_back(&self, id: &str, queue: &QueueName, names: &[AttemptName]) -> Vec<Job> {
        let mut all = self.all();
        let Some(known) = all.get_mut(id) else { return Vec::new() };
        names.iter().filter_map(|name| known.take(queue, name)).collect()
    }

    /// Remembers what has become of an attempt, for a worker that did not hear of it.
    pub(super) fn remember(&self, id: &str, queue: &QueueName, name: &AttemptName, result: &AttemptResult) {
        if let Some(known) = self.all().get_mut(id) {
            known.remember(queue, name, result.clone());
        }
    }

    /// A worker goes, and leaves its jobs.
    pub(super) fn leave(&self, id: &str) -> Option<Vec<Job>> {
        let known = self.all().remove(id)?;
        Some(known.hand.into_values().map(|hand| hand.job).collect())
    }

    /// Everybody goes: the service ends.
    pub(in super::super) fn leave_all(&self) -> Vec<Job> {
        let all = std::mem::take(&mut *self.all());
        all.into_values().flat_map(|known| known.hand.into_values().map(|hand| hand.job)).collect()
    }

    /// How many jobs are in hand.
    pub(in super::super) fn in_hand(&self) -> usize {
        self.all().values().map(|known| known.hand.len()).sum()
    }

    /// How many workers there are.
    pub(in super::super) fn count(&self) -> usize {
        self.all().len()
    }

    /// Who has a job.
    pub(super) fn who(&self, queue: &QueueName, job: JobId) -> Option<String> {
        let (all, which) = (self.all(), (queue.clone(), job));
        all.values().find(|known| known.hand.contains_key(&which)).map(|known| known.name.clone())
    }

    fn silent(&self, now: Moment) -> Vec<Silent> {
        let mut all = self.all();
        let over = |known: &Known| {
            let limit = if known.hand.is_empty() { IDLE.max(patience(known.ttl)) } else { patience(known.ttl) };
            now.since(known.renewed) > limit
        };
        let ids: Vec<String> = all.iter().filter(|(_, known)| over(known)).map(|(id, _)| id.clone()).collect();
        let gone = ids.iter().filter_map(|id| all.remove(id));
        gone.map(|known| {
            let jobs = known.hand.into_values().map(|hand| hand.job).collect();
            Silent { name: known.name, ttl: known.ttl, jobs }
        })
        .collect()
    }
}

/// Takes the jobs of silent workers away, for as long as the service runs.
///
/// Each has failed: it uses an attempt, and the queue decides when it runs again. A job that ends its workers would else be
/// handed out for ever.
pub(in super::super) async fn reap(app: App) {
    loop {
        app.clock.sleep(TICK).await;
        for silent in app.work.workers.silent(app.clock.monotonic()) {
            let Silent { name, ttl, jobs } = silent;
            if jobs.is_empty() {
                continue;
            }
            let name = printable(&name);
            tracing::warn!(
                worker = name,
                jobs = jobs.len(),
                "a worker has been silent for too long: its jobs have failed"
            );
            let error = format!("its worker {name:?} was not heard of for {ttl:?}");
            // Queued at once, whether or not anybody waits for it.
            let answers: Vec<_> = jobs.into_iter().map(|job| job.fail(&error).into_future()).collect();
            app.tasks.spawn(async move {
                for answered in futures_util::future::join_all(answers).await {
                    if let Err(error) = answered {
                        tracing::warn!(%error, "whether a job of a silent worker has failed is not known yet");
                    }
                }
            });
        }
    }
}
