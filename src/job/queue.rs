//! A queue, as producers and consumers use it.

use super::{
    answer::{AttemptEnd, answer_all},
    attempt::Job,
    claiming::Claim,
    core::{Core, Shared},
    dead::DeadLetters,
    enqueue::{Enqueue, EnqueueOne},
    id::JobId,
    info::JobState,
    list::JobList,
    manage::{self, JobChange, Purge, Verb},
    new::NewJob,
    settings::QueueSettings,
};
use crate::{Error, Namespace, Result, clock::Timestamp};
use std::{fmt, sync::Arc};

/// A queue of jobs. Cheap to clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::{AttemptEnd, NewJob};
///
/// let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("emails")?;
///
/// let id = queue.enqueue(NewJob::new("ann@example.org").kind("welcome")).await?;
///
/// for job in queue.claim(10).await? {
///     assert_eq!((job.id(), job.attempt()), (id, 1));
///     println!("to {:?}, fence {}", job.args(), job.fence());
///     match job.finish().await? {
///         AttemptEnd::Finished { .. } => {}
///         other => println!("somebody else was faster: {other:?}"),
///     }
/// }
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Queue {
    shared: Arc<Shared>,
    namespace: Namespace,
    pub(crate) core: Arc<Core>,
}

/// The queue of this name, made or not.
pub(crate) fn open(shared: &Arc<Shared>, namespace: Namespace, name: &str) -> Result<Queue> {
    let core = shared.core(&namespace, name)?;
    Ok(Queue { shared: Arc::clone(shared), namespace, core })
}

impl Queue {
    /// The queue of this name in another namespace.
    pub fn namespace<N>(&self, namespace: N) -> Result<Self>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        open(&self.shared, namespace.try_into().map_err(Into::into)?, &self.core.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Enqueues one job: durable when this is answered. One request.
    pub fn enqueue(&self, job: impl Into<NewJob>) -> EnqueueOne {
        EnqueueOne::new(Arc::clone(&self.core), job.into())
    }

    /// Enqueues any number of jobs; their ids come in their order. None for no jobs.
    ///
    /// They go into segments of up to 2,000 jobs or about 4 MiB, by shard, class and due hour, one request each and side by
    /// side. Each segment is there whole or not at all; the call as a whole is not.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// let queue = store.queue("thumbnails")?;
    /// let ids = queue.enqueue_many((0..5).map(|n| format!("image-{n}"))).await?;
    /// assert_eq!(ids.len(), 5);
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enqueue_many<J: Into<NewJob>>(&self, jobs: impl IntoIterator<Item = J>) -> Enqueue {
        Enqueue::new(Arc::clone(&self.core), jobs.into_iter().map(Into::into).collect())
    }

    /// Claims up to `most` jobs that are due; none if there are none. [`Claim`] says what else can be asked for.
    pub fn claim(&self, most: u32) -> Claim {
        Claim::new(Arc::clone(&self.core), most)
    }

    /// A worker for this queue: handlers that are run for its jobs. [`WorkerBuilder`](super::WorkerBuilder) says what else
    /// can be set.
    pub fn worker(&self) -> super::WorkerBuilder {
        super::WorkerBuilder::new(&self.core)
    }

    /// Finishes many jobs in one commit for each shard. What became of each comes in their order.
    pub async fn finish_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<AttemptEnd>> {
        answer_all(jobs.into_iter().map(Job::into_finished).collect()).await
    }

    /// What the queue is set to; makes it if there is none.
    pub async fn settings(&self) -> Result<QueueSettings> {
        Ok(self.core.settings().await?.record().settings.clone())
    }

    /// Changes what the queue is set to, for everybody: other processes go by it when they meet it in a ledger, and within
    /// a minute at the latest.
    pub async fn change_settings(&self, settings: QueueSettings) -> Result<()> {
        manage::change_settings(&self.core, |_| settings.clone()).await.map(drop)
    }

    /// Changes some settings, whatever the others are meanwhile; what they are then. `change` may be called more than once.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// # let queue = store.queue("emails")?;
    /// let settings = queue.update_settings(|settings| settings.max_attempts = 5).await?;
    /// assert_eq!(settings.max_attempts, 5);
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn update_settings(&self, change: impl Fn(&mut QueueSettings)) -> Result<QueueSettings> {
        let changed = |settings: &QueueSettings| {
            let mut settings = settings.clone();
            change(&mut settings);
            settings
        };
        manage::change_settings(&self.core, changed).await
    }

    /// Hands out nothing more, in any process, until [`resume`](Self::resume). What runs goes on.
    pub async fn pause(&self) -> Result<()> {
        manage::pause(&self.core, true, None).await
    }

    /// Hands out nothing more until this time, by the store's clock.
    pub async fn pause_until(&self, until: Timestamp) -> Result<()> {
        manage::pause(&self.core, true, Some(until)).await
    }

    /// Hands out jobs again.
    pub async fn resume(&self) -> Result<()> {
        manage::pause(&self.core, false, None).await
    }

    /// Holds one job back that waits. Costs its ledger a place until it is [resumed](Self::resume_job).
    pub async fn pause_job(&self, id: JobId) -> Result<JobChange> {
        manage::change_job(&self.core, id, Verb::Pause).await
    }

    /// Holds a job back no longer.
    pub async fn resume_job(&self, id: JobId) -> Result<JobChange> {
        manage::change_job(&self.core, id, Verb::Resume).await
    }

    /// A job that waits for its time or its next attempt is due now; one that is dead is [redriven](DeadLetters::redrive).
    pub async fn retry(&self, id: JobId) -> Result<JobChange> {
        manage::retry(self, id).await
    }

    /// Ends everything that waits, and says how many.
    pub fn purge(&self) -> Purge {
        Purge::new(Arc::clone(&self.core))
    }

    /// Its dead letters.
    pub fn dead(&self) -> DeadLetters {
        DeadLetters { core: Arc::clone(&self.core) }
    }

    /// The jobs in a state, a page at a time; those that run with their owner, since when, and their fence.
    pub fn list(&self, state: JobState) -> JobList {
        JobList::new(Arc::clone(&self.core), state)
    }

    /// Its keys: limits, and who has a unique key.
    pub fn keys(&self) -> super::Keys {
        super::Keys::new(Arc::clone(&self.core))
    }

    /// Its schedules: jobs that it makes by itself.
    pub fn schedules(&self) -> super::Schedules {
        super::Schedules::new(Arc::clone(&self.core))
    }

    /// What is known of a job; `None` if neither a ledger nor the inbox has it: it ended a while ago, or never was.
    pub async fn get(&self, id: JobId) -> Result<Option<super::JobInfo>> {
        super::info::get(&self.core, id).await
    }

    /// Cancels a job. One that waits ends at once; one that runs is marked, and ends as cancelled unless it is finished.
    pub async fn cancel(&self, id: JobId) -> Result<super::Cancelled> {
        super::info::cancel(&self.core, id).await
    }

    /// How many jobs there are: three listings, and one read for each shard.
    pub async fn depth(&self) -> Result<super::QueueDepth> {
        let depth = super::depth::depth(&self.core).await?;
        super::counters::show_depth(&self.core.name, &depth);
        Ok(depth)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("namespace", &self.namespace)
            .field("name", &self.core.name)
            .finish_non_exhaustive()
    }
}
