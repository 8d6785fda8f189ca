//! Trackers: for jobs that another system runs.
//!
//! Sidekiq, cron or a script takes a job from somewhere and runs it; if its process dies, the job is gone. A tracker makes
//! it durable who has which job in hand *before* it runs. If the process dies, the payload is handed to whoever
//! [recovers](Tracker::recovery), by one process at a time and at least once.
//!
//! A tracked job is a claimed job from birth: one object in `seg/` and one commit for any number that is begun together.

mod in_flight;
mod recovery;

pub use in_flight::InFlight;
pub use recovery::{Recovered, RecoveredJob, Recovery};

use super::{
    AttemptEnd, Job, NewJob, Queue,
    answer::Answering,
    attempt::{Attempt, lost},
    claiming::Content,
    committer::{Granted, MOST_BYTES, MOST_JOBS, Shard, ToBegin, begin},
    id::hash,
};
use crate::{Error, Fence, Result, clock::Timestamp};
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::Arc,
};
use tokio_util::sync::CancellationToken;

/// The longest id.
const LONGEST_ID: usize = 128;

/// Jobs that another system runs, and that this queue knows of: see [`Queue::tracker`]. Cheap to clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = leasehold::Store::open("memory://").await?;
/// let tracker = store.queue("sidekiq")?.tracker();
///
/// let tracked = tracker.begin("jid-4711", r#"{"class":"Import"}"#).await?; // before it runs
/// assert!(tracked.is_ours());
/// // … the job runs …
/// assert!(tracked.finish().await?.is_accepted());
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tracker {
    queue: Queue,
}

/// A job to be tracked.
#[derive(Debug, Clone)]
#[must_use]
pub struct NewTracked {
    id: String,
    job: NewJob,
}

impl NewTracked {
    /// A job by its id in the other system (up to 128 bytes), with what it takes to run it again.
    pub fn new(id: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        let id = id.into();
        Self { job: NewJob::new(payload).caller_id(&id), id }
    }

    /// What kind of job it is.
    pub fn kind(mut self, kind: impl AsRef<str>) -> Self {
        self.job = self.job.kind(kind);
        self
    }

    /// How often it was interrupted before, as [`Recovered::interruptions`] has said: what kills every process that runs it
    /// is not recovered for ever.
    pub fn interruptions(mut self, before: u32) -> Self {
        self.job.row.history.attempts = before;
        self
    }
}

impl<I: Into<String>, P: Into<Bytes>> From<(I, P)> for NewTracked {
    fn from((id, payload): (I, P)) -> Self {
        Self::new(id, payload)
    }
}

impl Queue {
    /// A tracker on this queue. What it tracks is shown, counted and buried as the queue's own jobs are: give it a queue
    /// of its own.
    pub fn tracker(&self) -> Tracker {
        Tracker { queue: self.clone() }
    }
}

impl Tracker {
    /// Makes it durable that this process has the job in hand: to be awaited before it runs. An error means that it is not
    /// known to be tracked. One create and one commit, for all that are begun at the same time.
    ///
    /// An id that is in hand already, here or elsewhere, is taken over with a higher fence.
    pub async fn begin(&self, id: impl Into<String>, payload: impl Into<Bytes>) -> Result<Tracked> {
        let mut begun = self.begin_many([NewTracked::new(id, payload)]).await?;
        begun.pop().ok_or_else(|| Error::unknown("what was begun got no answer: begin it again"))
    }

    /// Makes it durable that this process has these jobs in hand, in their order. Two of one id are an error.
    pub async fn begin_many<J: Into<NewTracked>>(&self, jobs: impl IntoIterator<Item = J>) -> Result<Vec<Tracked>> {
        let core = &self.queue.core;
        core.shared.activity.touch(&*core.backend().clock);
        let jobs: Vec<NewTracked> = jobs.into_iter().map(Into::into).collect();
        validate(&jobs)?;
        let settings = core.settings().await?;
        if core.backend().store_time().is_none() {
            core.backend().ask_time().await?;
        }
        let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
        let batches = batches(jobs, settings.record().key_shards.max(1), now);
        let sends = batches.into_iter().map(|(shard, batch)| batch.send(core.shard(shard)));
        let mut tracked: Vec<(usize, Tracked)> = try_join_all(sends).await?.into_iter().flatten().collect();
        tracked.sort_by_key(|(place, _)| *place);
        Ok(tracked.into_iter().map(|(_, tracked)| tracked).collect())
    }

    /// Finishes many jobs in one commit for each shard. What became of each comes in their order.
    pub async fn finish_all(&self, jobs: impl IntoIterator<Item = Tracked>) -> Result<Vec<AttemptEnd>> {
        self.queue.finish_all(jobs.into_iter().map(|tracked| tracked.job)).await
    }

    /// The queue that it stands on.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
}

fn validate(jobs: &[NewTracked]) -> Result<()> {
    let mut ids = HashSet::new();
    for NewTracked { id, .. } in jobs {
        if id.is_empty() || id.len() > LONGEST_ID {
            let length = id.len();
            return Err(Error::invalid(format!("the id {id:?} has {length} bytes: 1 to {LONGEST_ID} are allowed")));
        }
        if !ids.insert(id.as_str()) {
            return Err(Error::invalid(format!("the id {id:?} is begun twice in one call: name it once")));
        }
    }
    Ok(())
}

/// What goes into one object each, by shard.
fn batches(jobs: Vec<NewTracked>, shards: u16, now: Timestamp) -> Vec<(u8, Batch)> {
    let mut by_shard: BTreeMap<u8, Vec<Batch>> = BTreeMap::new();
    for (place, NewTracked { id, job }) in jobs.into_iter().enumerate() {
        let [a, b, c, d, e, f, g, h, one, two, ..] = hash(&[b"tracked", id.as_bytes()]);
        let shard = u8::try_from(u16::from_le_bytes([one, two]) % shards).unwrap_or(0);
        let job = ToBegin { hash: u64::from_le_bytes([a, b, c, d, e, f, g, h]), job: job.into_row(now) };
        let batches = by_shard.entry(shard).or_default();
        match batches.last_mut() {
            Some(last) if last.has_room(&job) => last.push(place, id, job),
            _ => batches.push(Batch::with(place, id, job)),
        }
    }
    by_shard.into_iter().flat_map(|(shard, batches)| batches.into_iter().map(move |batch| (shard, batch))).collect()
}

/// Jobs that go into one object.
#[derive(Debug)]
struct Batch {
    places: Vec<(usize, String)>,
    jobs: Vec<ToBegin>,
    bytes: usize,
}

impl Batch {
    fn with(place: usize, id: String, job: ToBegin) -> Self {
        let mut batch = Self { places: Vec::new(), jobs: Vec::new(), bytes: 0 };
        batch.push(place, id, job);
        batch
    }

    fn has_room(&self, job: &ToBegin) -> bool {
        self.jobs.len() < MOST_JOBS && self.bytes + job.weight() <= MOST_BYTES
    }

    fn push(&mut self, place: usize, id: String, job: ToBegin) {
        self.bytes += job.weight();
        self.places.push((place, id));
        self.jobs.push(job);
    }

    async fn send(self, shard: Arc<Shard>) -> Result<Vec<(usize, Tracked)>> {
        let mut granted: Granted = begin(&shard, self.jobs).await?;
        let attempt = Arc::new(Attempt::new(&shard, &granted));
        let content = Arc::new(Content { loaded: None, blocks: BTreeMap::new(), inline: None, names: None });
        // From here on each of them goes back by itself.
        let taken = std::mem::take(&mut granted.jobs);
        let jobs = taken.iter().flat_map(|taken| {
            let (attempt, content) = (&attempt, &content);
            (taken.range.from..taken.range.to).map(move |index| Job::new(attempt, taken.name, index, taken, content))
        });
        Ok(self.places.into_iter().zip(jobs).map(|((place, id), job)| (place, Tracked { id, job })).collect())
    }
}

/// A job of another system that this process has in hand. Dropped without a word, it is handed back at once, to be recovered
/// by whoever recovers.
#[must_use = "a tracked job that is dropped is handed back, to be recovered"]
pub struct Tracked {
    id: String,
    job: Job,
}

impl Tracked {
    /// Its id in the other system.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fence of this attempt, higher than that of every process that had it before.
    pub fn fence(&self) -> Fence {
        self.job.fence()
    }

    /// Whether this process may still believe that nobody else has been handed the job. Asks no network.
    pub fn is_ours(&self) -> bool {
        self.job.is_ours()
    }

    /// Cancelled when this process was silent for too long: the job may be recovered elsewhere.
    pub fn cancellation(&self) -> CancellationToken {
        lost(&self.job)
    }

    /// The job has ended, well or not: it needs no tracking any more.
    pub fn finish(self) -> Answering {
        self.job.finish()
    }

    /// Hands the job back, to be recovered at once: for a process that shuts down.
    pub fn hand_back(self) -> Answering {
        self.job.release()
    }
}

impl fmt::Debug for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracked").field("id", &self.id).field("fence", &self.fence()).finish_non_exhaustive()
    }
}
