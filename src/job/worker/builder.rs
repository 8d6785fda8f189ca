//! How a worker is described, and the handle of one that runs.

use super::{
    context::JobContext,
    crew::{Crew, Plan, Source},
    handler::{Handler, IntoOutcome, handler},
    health::{Board, RunningJob, WorkerHealth},
};
use crate::{
    clock::Clock,
    job::{Queue, core::Core},
};
use futures_util::future::BoxFuture;
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// What holds for jobs of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct KindOptions {
    pub(super) timeout: Option<Duration>,
    pub(super) stuck_after: Option<Duration>,
}

impl KindOptions {
    /// What holds for all kinds.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.timeout = Some(longest);
        self
    }

    /// After how long a job that still runs is reported.
    pub fn stuck_after(mut self, longest: Duration) -> Self {
        self.stuck_after = Some(longest);
        self
    }
}

/// A worker that is being described; [`run`](Self::run) or [`start`](Self::start) starts it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::JobContext;
///
/// let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("emails")?;
/// queue.enqueue("ann@example.org").await?;
///
/// let worker = queue.worker().concurrency(64).run(|job: JobContext| async move {
///     println!("to {:?}, attempt {}", job.args(), job.attempt());
///     job.shut_down_worker(); // or by a token, or `worker.shutdown()`
///     Ok::<(), std::io::Error>(()) // an error is a failed attempt: the queue decides when it runs again
/// });
/// worker.await;
/// assert_eq!(queue.depth().await?.running, 0);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a worker that is not started does nothing"]
pub struct WorkerBuilder {
    queues: Vec<(Arc<Core>, u32)>,
    plan: Plan,
    shutdown: CancellationToken,
}

impl WorkerBuilder {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        let plan = Plan {
            concurrency: 16,
            handlers: HashMap::new(),
            fallback: None,
            options: KindOptions::default(),
            kinds: HashMap::new(),
            timeout_grace: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(25),
            cancel_grace: Duration::from_secs(5),
        };
        Self { queues: vec![(Arc::clone(core), 1)], plan, shutdown: CancellationToken::new() }
    }

    /// How many jobs run at once (16).
    pub fn concurrency(mut self, most: u32) -> Self {
        self.plan.concurrency = most.max(1);
        self
    }

    /// How much of the worker the queue gets beside others (1).
    pub fn weight(mut self, weight: u32) -> Self {
        if let Some((_, first)) = self.queues.first_mut() {
            *first = weight.max(1);
        }
        self
    }

    /// Works on another queue of the same opened store as well, with this weight. While one has nothing to do the others
    /// get all of the worker.
    pub fn also(mut self, queue: &Queue, weight: u32) -> Self {
        self.queues.push((Arc::clone(&queue.core), weight.max(1)));
        self
    }

    /// The handler for jobs of one kind.
    pub fn on<H, F>(mut self, kind: impl Into<String>, run: H) -> Self
    where
        H: Fn(JobContext) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.plan.handlers.insert(kind.into(), handler(run));
        self
    }

    /// What holds for jobs of one kind. A job's own timeout comes first.
    pub fn kind(mut self, kind: impl Into<String>, options: KindOptions) -> Self {
        self.plan.kinds.insert(kind.into(), options);
        self
    }

    /// How long one attempt may take, if neither the job nor its kind says so (as long as it likes). Its token is cancelled
    /// then, and after the [grace](Self::timeout_grace) the attempt has failed, whether or not the handler has returned.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.plan.options.timeout = Some(longest);
        self
    }

    /// How long a handler whose time is over may take to stop (10 s).
    pub fn timeout_grace(mut self, grace: Duration) -> Self {
        self.plan.timeout_grace = grace;
        self
    }

    /// After how long a job that still runs is counted, listed as stuck and reported once (5 min). Nothing is done about it.
    pub fn stuck_after(mut self, longest: Duration) -> Self {
        self.plan.options.stuck_after = Some(longest);
        self
    }

    /// Shuts the worker down when it is cancelled.
    pub fn shutdown(mut self, token: CancellationToken) -> Self {
        self.shutdown = token;
        self
    }

    /// How long a shutdown waits for running jobs before it cancels their tokens (25 s), and then for their handlers to stop
    /// (5 s). What still runs after that is given back, and uses no attempt.
    pub fn shutdown_grace(mut self, wait: Duration, stop: Duration) -> Self {
        (self.plan.shutdown_grace, self.plan.cancel_grace) = (wait, stop);
        self
    }

    /// Starts the worker, with this handler for every kind of job that has none of its own.
    pub fn run<H, F>(mut self, run: H) -> Worker
    where
        H: Fn(JobContext) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.plan.fallback = Some(handler(run));
        self.start()
    }

    /// Starts the worker. A job of a kind that has no handler fails, and is tried again by the queue's policy.
    pub fn start(self) -> Worker {
        let shared = Arc::clone(&self.queues[0].0.shared);
        let shutdown = self.shutdown.child_token();
        let board = Arc::new(Board::default());
        let sources = self.queues.into_iter().map(|(core, weight)| Source::new(core, weight)).collect();
        let crew = Crew::new(sources, self.plan, shutdown.clone(), Arc::clone(&board));
        let clock = Arc::clone(&shared.backend.clock);
        let task = shared.runtime.spawn(crew.run());
        Worker { shutdown, board, clock, task: Some(task) }
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<&str> = self.queues.iter().map(|(core, _)| core.name.as_ref()).collect();
        f.debug_struct("WorkerBuilder").field("queues", &queues).finish_non_exhaustive()
    }
}

/// A worker that runs. Await it to wait until it has been shut down; dropped, it is shut down in the background.
#[must_use = "a worker that is dropped is shut down"]
pub struct Worker {
    shutdown: CancellationToken,
    board: Arc<Board>,
    clock: Arc<dyn Clock>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Worker {
    /// How it is, and why; as of at most a second ago while it is well.
    pub fn health(&self) -> WorkerHealth {
        self.board.facts().health(self.clock.wall())
    }

    /// The jobs that it runs, as of at most a second ago.
    pub fn running(&self) -> Vec<RunningJob> {
        self.board.facts().running.clone()
    }

    /// Stops claiming, waits for what runs, then cancels it, and gives the rest back; returns when everything is answered
    /// for.
    pub async fn shutdown(self) {
        self.shutdown.cancel();
        self.await;
    }
}

impl IntoFuture for Worker {
    type Output = ();
    type IntoFuture = BoxFuture<'static, ()>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            if let Some(task) = self.task.take()
                && let Err(error) = task.await
            {
                tracing::error!(%error, "a worker ended before its time: what it had in hand comes back by itself");
            }
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Plan {
    /// The handler for jobs of this kind.
    pub(super) fn handler(&self, kind: Option<&str>) -> Option<&Handler> {
        kind.and_then(|kind| self.handlers.get(kind)).or(self.fallback.as_ref())
    }

    /// How long a job may take, and after how long it is stuck.
    pub(super) fn limits(&self, kind: Option<&str>, own: Option<Duration>) -> (Option<Duration>, Duration) {
        let of_kind = kind.and_then(|kind| self.kinds.get(kind)).copied().unwrap_or_default();
        let timeout = own.or(of_kind.timeout).or(self.options.timeout);
        let stuck_after = of_kind.stuck_after.or(self.options.stuck_after).unwrap_or(STUCK_AFTER);
        (timeout, stuck_after)
    }
}

/// After how long a job is called stuck if nothing else is said.
const STUCK_AFTER: Duration = Duration::from_secs(300);
