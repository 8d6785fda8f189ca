//! What a handler is, and what it may say of its job.

use super::context::JobContext;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use std::{fmt, sync::Arc, time::Duration};

/// What a handler says of its job. The queue decides what follows: when and whether it runs again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOutcome {
    /// It is done.
    Done,
    /// This attempt has failed.
    Failed(String),
    /// It has failed, and another attempt is of no use: it goes to the dead letters.
    FailForGood(String),
    /// It runs again so much later, and no attempt is used.
    Snooze(Duration),
    /// It has stopped because it was cancelled.
    Cancelled,
}

impl From<()> for JobOutcome {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// What a handler may return: nothing, a [`JobOutcome`], or a `Result` of either. An error is a failed attempt; its text,
/// with all its causes where the type shows them by `{:#}`, is what the queue keeps.
pub trait IntoOutcome {
    /// As an outcome.
    fn into_outcome(self) -> JobOutcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> JobOutcome {
        JobOutcome::Done
    }
}

impl IntoOutcome for JobOutcome {
    fn into_outcome(self) -> JobOutcome {
        self
    }
}

impl<T: Into<JobOutcome>, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> JobOutcome {
        match self {
            Ok(outcome) => outcome.into(),
            Err(error) => JobOutcome::Failed(format!("{error:#}")),
        }
    }
}

/// A handler, whatever it was made of.
pub(super) type Handler = Arc<dyn Fn(JobContext) -> BoxFuture<'static, JobOutcome> + Send + Sync>;

/// Any async function over a job.
pub(super) fn handler<H, F>(run: H) -> Handler
where
    H: Fn(JobContext) -> F + Send + Sync + 'static,
    F: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |job| {
        let run = run(job);
        Box::pin(async move { run.await.into_outcome() })
    })
}

/// A handler whose second argument is the job's arguments, read from JSON. Arguments that cannot be read are a failed
/// attempt: the next version of the program may know them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::{JobContext, NewJob, typed};
///
/// #[derive(serde::Deserialize)]
/// struct Welcome {
///     to: String,
/// }
///
/// async fn welcome(job: JobContext, args: Welcome) -> Result<(), String> {
///     println!("to {} with fence {}", args.to, job.fence());
///     job.shut_down_worker();
///     Ok(())
/// }
///
/// let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("emails")?;
/// queue.enqueue(NewJob::new(r#"{"to":"ann@example.org"}"#).kind("welcome")).await?;
/// queue.worker().on("welcome", typed(welcome)).start().await;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn typed<T, H, F>(run: H) -> impl Fn(JobContext) -> BoxFuture<'static, JobOutcome> + Send + Sync + 'static
where
    T: DeserializeOwned,
    H: Fn(JobContext, T) -> F + Send + Sync + 'static,
    F: Future<Output: IntoOutcome> + Send + 'static,
{
    move |job| match serde_json::from_slice(&job.args()) {
        Ok(args) => {
            let run = run(job, args);
            Box::pin(async move { run.await.into_outcome() })
        }
        Err(error) => {
            let said = format!("the arguments are not those of {}: {error}", std::any::type_name::<T>());
            Box::pin(async move { JobOutcome::Failed(said) })
        }
    }
}

/// A handler whose second argument is shared by all jobs: a pool of connections, a client, settings.
///
/// ```
/// # use leasehold::job::{JobContext, with_state};
/// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// # fn shown(queue: leasehold::Queue) {
/// let counted = Arc::new(AtomicU32::new(0));
/// let worker = queue.worker().run(with_state(counted, |_job: JobContext, counted: Arc<AtomicU32>| async move {
///     counted.fetch_add(1, Ordering::Relaxed);
/// }));
/// # }
/// ```
pub fn with_state<S, H, F>(
    state: Arc<S>,
    run: H,
) -> impl Fn(JobContext) -> BoxFuture<'static, JobOutcome> + Send + Sync + 'static
where
    S: Send + Sync + 'static,
    H: Fn(JobContext, Arc<S>) -> F + Send + Sync + 'static,
    F: Future<Output: IntoOutcome> + Send + 'static,
{
    move |job| {
        let run = run(job, Arc::clone(&state));
        Box::pin(async move { run.await.into_outcome() })
    }
}
