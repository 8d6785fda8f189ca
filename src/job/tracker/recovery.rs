//! What dead processes had in hand is handed on.

use super::Tracker;
use crate::{
    Fence, JobId, Queue, Result,
    clock::Timestamp,
    job::{
        Job, JobContext, JobOutcome, NewJob, Worker, answer::Answering, attempt::interruptions_before,
        worker::IntoOutcome,
    },
};
use bytes::Bytes;
use std::{fmt, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

impl Tracker {
    /// Recovers now: up to `most` jobs whose process has died or handed them back, none if there are none. Each is in the
    /// hands of the caller alone until it says [`handed_on`](Recovered::handed_on); dropped, it is there for the next one.
    pub async fn recover(&self, most: u32) -> Result<Vec<Recovered>> {
        // What others have handed back since this process last looked is there as well.
        let core = &self.queue.core;
        for shard in 0..core.settings().await?.record().shards_ever {
            core.shard(u8::try_from(shard).unwrap_or(u8::MAX)).look().await?;
        }
        Ok(self.queue.claim(most).await?.into_iter().map(Recovered).collect())
    }

    /// Recovery as a duty: for as long as the process runs.
    pub fn recovery(&self) -> Recovery {
        Recovery {
            tracker: self.clone(),
            max_age: None,
            max_interruptions: 3,
            concurrency: 8,
            shutdown: CancellationToken::new(),
        }
    }
}

/// A job that was in the hands of a process that died, or that handed it back.
#[must_use = "a recovered job that is dropped is there for the next one"]
pub struct Recovered(Job);

impl Recovered {
    /// Its id in the other system.
    pub fn id(&self) -> &str {
        self.0.caller_id().unwrap_or_default()
    }

    /// Its id in the queue.
    pub fn job_id(&self) -> JobId {
        self.0.id()
    }

    /// What it takes to run it again.
    pub fn payload(&self) -> Bytes {
        self.0.args()
    }

    /// How often it was interrupted, this time included. To be handed on with the job, and to
    /// [`NewTracked::interruptions`](super::NewTracked::interruptions) when it begins again.
    pub fn interruptions(&self) -> u32 {
        interruptions_before(&self.0).saturating_add(1)
    }

    /// When it was begun, by the store's clock.
    pub fn begun_at(&self) -> Option<Timestamp> {
        self.0.enqueued_at()
    }

    /// What kind of job it is.
    pub fn kind(&self) -> Option<&str> {
        self.0.kind()
    }

    /// The fence of this recovery.
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// The payload is safe elsewhere: only now is it removed here.
    pub fn handed_on(self) -> Answering {
        self.0.finish()
    }

    /// It is not to be run again: it goes to the dead letters.
    pub fn bury(self, why: impl AsRef<str>) -> Answering {
        self.0.fail_for_good(why)
    }
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered").field("id", &self.id()).field("fence", &self.fence()).finish_non_exhaustive()
    }
}

/// A duty to recover that is being described; [`run`](Self::run) or [`route`](Self::route) starts it.
#[must_use = "a recovery that is not started does nothing"]
#[derive(Debug)]
pub struct Recovery {
    tracker: Tracker,
    max_age: Option<Duration>,
    max_interruptions: u32,
    concurrency: u32,
    shutdown: CancellationToken,
}

impl Recovery {
    /// What was begun longer ago is not run again: it goes to the dead letters, with that reason (as old as it may be).
    pub fn max_age(mut self, longest: Duration) -> Self {
        self.max_age = Some(longest);
        self
    }

    /// What was interrupted more often is not run again: it goes to the dead letters, with that reason (3).
    pub fn max_interruptions(mut self, most: u32) -> Self {
        self.max_interruptions = most;
        self
    }

    /// How many are handed on at once (8).
    pub fn concurrency(mut self, most: u32) -> Self {
        self.concurrency = most;
        self
    }

    /// Stops when it is cancelled.
    pub fn shutdown(mut self, token: CancellationToken) -> Self {
        self.shutdown = token;
        self
    }

    /// Hands each job to `hand_on`, which has to make it safe elsewhere before it returns. An error leaves the job here, to
    /// be handed on later by the queue's policy.
    pub fn run<H, F>(self, hand_on: H) -> Worker
    where
        H: Fn(RecoveredJob) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        let Self { tracker, max_age, max_interruptions, concurrency, shutdown } = self;
        let (hand_on, backend) = (Arc::new(hand_on), Arc::clone(tracker.queue.core.backend()));
        tracker.queue.worker().concurrency(concurrency).shutdown(shutdown).run(move |job: JobContext| {
            let (hand_on, now) = (Arc::clone(&hand_on), backend.store_time().unwrap_or_else(|| backend.clock.wall()));
            let job = RecoveredJob(job);
            async move {
                match refused(&job, now, max_age, max_interruptions) {
                    Some(why) => JobOutcome::FailForGood(why),
                    None => hand_on(job).await.into_outcome(),
                }
            }
        })
    }

    /// Enqueues each job in `target`: under its kind, with its id as the caller's id, and its interruptions as the part
    /// `interruptions`.
    pub fn route(self, target: &Queue) -> Worker {
        let target = target.clone();
        self.run(move |job: RecoveredJob| {
            let interruptions = job.interruptions().to_string();
            let mut new = NewJob::new(job.payload()).caller_id(job.id()).part("interruptions", interruptions);
            if let Some(kind) = job.kind() {
                new = new.kind(kind);
            }
            // Handed on twice, it is one job.
            let enqueue = target.enqueue(new).request_id(format!("recovered {}", job.context().id()));
            async move { enqueue.await.map(drop).map_err(|error| error.to_string()) }
        })
    }
}

/// A job that is being handed on.
#[derive(Debug, Clone)]
pub struct RecoveredJob(JobContext);

impl RecoveredJob {
    /// Its id in the other system.
    pub fn id(&self) -> &str {
        self.0.caller_id().unwrap_or_default()
    }

    /// What it takes to run it again.
    pub fn payload(&self) -> Bytes {
        self.0.args()
    }

    /// What kind of job it is.
    pub fn kind(&self) -> Option<&str> {
        self.0.kind()
    }

    /// How often it was interrupted, this time included.
    pub fn interruptions(&self) -> u32 {
        interruptions_before(&self.0).saturating_add(1)
    }

    /// The job as its handler sees it.
    pub fn context(&self) -> &JobContext {
        &self.0
    }
}

/// Why a job is not run again, if it is not.
fn refused(job: &RecoveredJob, now: Timestamp, max_age: Option<Duration>, most: u32) -> Option<String> {
    let interruptions = job.interruptions();
    if interruptions > most {
        return Some(format!("interrupted {interruptions} times, of at most {most}"));
    }
    let age = now.since(job.0.enqueued_at()?);
    max_age.filter(|most| age > *most).map(|most| format!("begun {age:?} ago, of at most {most:?}"))
}
