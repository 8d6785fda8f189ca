//! One contender of `benches/compare`, on one workload, in a process of its own.
//!
//! It opens its store, makes what has to be there before, says `ready`, waits for a line, works for so long, and prints what
//! it did as one line of JSON. So whoever counts requests at the server can look at the right moments.

mod deferred;
mod locks;
mod shape;
mod transactions;

use leasehold::{Clock, SystemClock, clock::Moment};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3Builder};
use serde_json::json;
use std::{collections::BTreeMap, env, error::Error, io, process::ExitCode, sync::Arc, time::Duration};

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How long a lease would last if it were not released.
pub(crate) const TTL: Duration = Duration::from_secs(60);

const USAGE: &str = "contend CONTENDER WORKLOAD --endpoint URL --bucket NAME --prefix TEXT
  CONTENDER  raw, ours, new (ours, with keys that are said to be new), naive or lockd
  WORKLOAD   private, fresh, keys, one or decisions; ours only: stale, abandoned or forgotten, which is swept
  --concurrency 8   how many work at once
  --seconds 5       for how long
  --keys 1000       how many keys the workload of that name goes round, and how many entries are swept";

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) contender: String,
    pub(crate) workload: String,
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    /// Tells this run from all others; as long in each of them.
    pub(crate) prefix: String,
    pub(crate) concurrency: usize,
    pub(crate) seconds: f64,
    pub(crate) keys: usize,
}

impl Task {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (contender, workload) = arguments.next().zip(arguments.next()).ok_or(USAGE)?;
        let mut options = BTreeMap::new();
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            options.insert(option, value);
        }
        let mut take = |name: &str, default: &str| options.remove(name).unwrap_or_else(|| default.to_owned());
        let task = Self {
            contender,
            workload,
            endpoint: take("--endpoint", "http://127.0.0.1:9000"),
            bucket: take("--bucket", "leasehold-test"),
            prefix: take("--prefix", "by-hand"),
            concurrency: take("--concurrency", "8").parse()?,
            seconds: take("--seconds", "5").parse()?,
            keys: take("--keys", "1000").parse()?,
        };
        if let Some(unknown) = options.keys().next() {
            return Err(format!("{unknown} is no option\n{USAGE}").into());
        }
        Ok(task)
    }

    /// The key of a worker's turn; no other worker has it.
    pub(crate) fn key(&self, worker: usize, turn: usize) -> String {
        let turn = match self.workload.as_str() {
            "private" => 0,
            "keys" => turn % (self.keys / self.concurrency).max(1),
            _ => turn,
        };
        match self.workload.as_str() {
            "one" => format!("{}-one-000000", self.prefix),
            _ => format!("{}-{worker:03}-{turn:06}", self.prefix),
        }
    }

    /// How many turns of a worker go by before a key comes again; none for keys that never do.
    pub(crate) fn turns(&self) -> usize {
        match self.workload.as_str() {
            "private" | "one" => 1,
            "keys" => (self.keys / self.concurrency).max(1),
            _ => 0,
        }
    }

    /// The store as `object_store` has it: one attempt for each request, and the deadline that the library gives it.
    pub(crate) fn raw(&self) -> Result<Raw> {
        // A pattern that deletes one object sends a plain DELETE.
        self.handle(true)
    }

    pub(crate) fn handle(&self, plain_deletes: bool) -> Result<Raw> {
        let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, ..RetryConfig::default() };
        let store = AmazonS3Builder::from_env()
            .with_endpoint(&self.endpoint)
            .with_region("us-east-1")
            .with_bucket_name(&self.bucket)
            .with_client_options(ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(5)))
            .with_disable_bulk_delete(plain_deletes)
            .with_retry(retry)
            .build()?;
        Ok(Arc::new(store))
    }

    /// The library's own way to it. All runs share one store, as processes would.
    pub(crate) async fn store(&self) -> Result<leasehold::Store> {
        let url = format!("s3://{}/ours?endpoint={}&region=us-east-1", self.bucket, self.endpoint);
        Ok(leasehold::Store::open(url).await?)
    }

    /// Below what a contender has its objects.
    pub(crate) fn folder(&self) -> &str {
        &self.contender
    }
}

/// What one worker, or all of them, came to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    times: Vec<Duration>,
    errors: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, began: Moment, done: Result<bool>) {
        match done {
            Ok(true) => self.times.push(SystemClock::new().monotonic().since(began)),
            // It was still waiting when the time was up.
            Ok(false) => {}
            Err(error) => {
                if self.errors == 0 {
                    eprintln!("{error}");
                }
                self.errors += 1;
            }
        }
    }

    fn report(mut self, took: Duration) -> serde_json::Value {
        self.times.sort_unstable();
        let at = |part: f64| {
            let last = self.times.len().saturating_sub(1);
            let index = (part * last as f64) as usize;
            self.times.get(index).map_or(0., |time| (time.as_secs_f64() * 1e6).round() / 1e3)
        };
        json!({
            "operations": self.times.len(),
            "errors": self.errors,
            "seconds": took.as_secs_f64(),
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
        })
    }
}

/// Lets workers run side by side until the time is up, each a task of its own, as in a program.
pub(crate) async fn work<W, F>(workers: Vec<W>, run: impl Fn(W, Moment) -> F, task: &Task) -> Result<serde_json::Value>
where
    F: Future<Output = Tally> + Send + 'static,
{
    ready();
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let end = began.plus(Duration::from_secs_f64(task.seconds));
    let tasks: Vec<_> = workers.into_iter().map(|worker| tokio::spawn(run(worker, end))).collect();
    let tallies = futures_util::future::try_join_all(tasks).await?;
    let took = clock.monotonic().since(began);
    let mut sum = Tally::default();
    for tally in tallies {
        sum.times.extend(tally.times);
        sum.errors += tally.errors;
    }
    Ok(sum.report(took))
}

/// Nothing is left to be done before the time runs.
pub(crate) fn ready() {
    println!("ready");
    let mut line = String::new();
    // Whoever closes our input does not want to wait.
    let _ = io::stdin().read_line(&mut line);
}

pub(crate) fn wall() -> leasehold::clock::Timestamp {
    SystemClock::new().wall()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let ran = async {
        let task = Arc::new(Task::parse(env::args().skip(1))?);
        match task.workload.as_str() {
            "private" | "fresh" | "keys" | "one" => locks::run(&task).await,
            "decisions" => transactions::run(&task).await,
            "stale" | "abandoned" | "forgotten" => deferred::run(&task).await,
            other => Err(format!("{other} is no workload\n{USAGE}").into()),
        }
    };
    match ran.await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What the contenders without a library share.
pub(crate) type Raw = Arc<dyn ObjectStore>;
