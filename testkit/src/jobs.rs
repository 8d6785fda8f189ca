//! Queues for tests of your own code: in memory, on a clock that is moved by hand, with nothing that runs by itself.

use crate::{FaultStore, SeededGenerator, TestClock};
use leasehold::{
    Clock, Queue, Result, Store,
    clock::Timestamp,
    job::{Job, JobId, NewJob},
};
use std::{fmt, sync::Arc, time::Duration};

/// A store with queues for one test.
///
/// ```
/// use leasehold_testkit::JobTest;
/// use leasehold::job::NewJob;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let test = JobTest::new().await?;
/// let mails = test.queue("mails")?;
/// // ... the code under test:
/// mails.enqueue(NewJob::new("ann").kind("welcome")).await?;
/// mails.enqueue(NewJob::new("ann").kind("reminder").due_in(Duration::from_secs(86_400))).await?;
///
/// test.assert_enqueued(&mails, "a welcome for ann", |job| job.kind() == Some("welcome") && job.args() == "ann").await?;
/// assert_eq!(test.drain(&mails, async |job| job.finish().await.map(drop)).await?, 1);
/// test.advance(Duration::from_secs(86_400)).await;
/// assert_eq!(test.drain(&mails, async |job| job.finish().await.map(drop)).await?, 1);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct JobTest {
    clock: TestClock,
    objects: FaultStore,
    store: Store,
}

/// Jobs that one drain claims together.
const BATCH: u32 = 100;

impl JobTest {
    /// An empty store, at 2026-01-01T00:00:00Z.
    pub async fn new() -> Result<Self> {
        let clock = TestClock::at(Timestamp::from_millis(1_767_225_600_000));
        let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(0)));
        let mut settings = leasehold::Settings::default();
        settings.jobs.shards = 1;
        let builder = Store::builder().object_store(Arc::new(objects.clone())).shares_our_clock();
        let builder = builder.clock(Arc::new(clock.clone())).generator(Arc::new(SeededGenerator::new(1)));
        Ok(Self { store: builder.settings(settings).open().await?, clock, objects })
    }

    /// The store, for the code under test.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A queue, with one shard: jobs of one priority run in the order of their coming.
    pub fn queue(&self, name: &str) -> Result<Queue> {
        self.store.queue(name)
    }

    /// The clock that everything goes by.
    pub fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// What the store holds, and what is to go wrong with it.
    pub fn objects(&self) -> &FaultStore {
        &self.objects
    }

    /// Moves time, and lets what waits for it run.
    pub async fn advance(&self, time: Duration) {
        self.clock.advance(time);
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    /// Runs everything that is due, and what that enqueues, until nothing is. How many jobs were handed out. A job that the
    /// handler drops goes back uncharged, and would be handed out again: finish it or fail it.
    pub async fn drain(&self, queue: &Queue, mut handler: impl AsyncFnMut(Job) -> Result<()>) -> Result<usize> {
        let mut run = 0;
        loop {
            let jobs = queue.claim(BATCH).await?;
            if jobs.is_empty() {
                return Ok(run);
            }
            for job in jobs {
                run += 1;
                handler(job).await?;
            }
        }
    }

    /// What is due, as a claim would have it; all of it goes back as it was.
    async fn waiting<T>(&self, queue: &Queue, look: impl Fn(&Job) -> T) -> Result<Vec<T>> {
        let (mut seen, mut held) = (Vec::new(), Vec::new());
        loop {
            let jobs = queue.claim(BATCH).await?;
            if jobs.is_empty() {
                break;
            }
            seen.extend(jobs.iter().map(&look));
            held.extend(jobs);
        }
        for job in held {
            let _ = job.release().await?;
        }
        Ok(seen)
    }

    /// Panics unless a job that is due is like this, and says what is there instead.
    #[allow(clippy::panic, reason = "an assertion")]
    pub async fn assert_enqueued(&self, queue: &Queue, what: &str, is: impl Fn(&Job) -> bool) -> Result<()> {
        let seen = self.waiting(queue, |job| (is(job), Seen::of(job))).await?;
        if seen.iter().any(|(is, _)| *is) {
            return Ok(());
        }
        let there: Vec<&Seen> = seen.iter().map(|(_, seen)| seen).collect();
        panic!("queue {:?} has no job that is {what}; what is due: {there:?}", queue.name());
    }

    /// Panics if anything is due.
    #[allow(clippy::panic, reason = "an assertion")]
    pub async fn assert_nothing_enqueued(&self, queue: &Queue) -> Result<()> {
        let there = self.waiting(queue, Seen::of).await?;
        assert!(there.is_empty(), "queue {:?} has jobs that are due: {there:?}", queue.name());
        Ok(())
    }

    /// A queue whose jobs run at once, in the call that enqueues them.
    pub fn inline<H>(&self, name: &str, handler: H) -> Result<InlineQueue<H>>
    where
        H: AsyncFnMut(Job) -> Result<()>,
    {
        Ok(InlineQueue { test: self.clone(), queue: self.queue(name)?, handler })
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }
}

/// What a failed assertion shows of a job.
struct Seen {
    kind: Option<String>,
    args: String,
}

impl Seen {
    fn of(job: &Job) -> Self {
        let args = String::from_utf8_lossy(&job.args()).chars().take(80).collect();
        Self { kind: job.kind().map(str::to_owned), args }
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.as_deref().unwrap_or("(no kind)"), self.args)
    }
}

/// A queue whose jobs run in the call that enqueues them, for tests that want the effect and not the queue.
#[derive(Debug)]
pub struct InlineQueue<H> {
    test: JobTest,
    queue: Queue,
    handler: H,
}

impl<H: AsyncFnMut(Job) -> Result<()>> InlineQueue<H> {
    /// Enqueues a job and runs whatever is due, by the ordinary way: claimed, handled, answered for.
    pub async fn enqueue(&mut self, job: impl Into<NewJob>) -> Result<JobId> {
        let id = self.queue.enqueue(job).await?;
        let _ = self.test.drain(&self.queue, &mut self.handler).await?;
        Ok(id)
    }

    /// The queue itself.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
}
