//! work: a command for each job of a queue.

mod attempt;
mod codes;
mod health;
mod payload;

use crate::{
    config::{Config, Origin},
    duration,
    exit::{FAILED, Failure, OWN_FAILURE, Outcome, UNAVAILABLE},
    output::{self, Format},
    signals::{Heard, Signal, Signals, stand_still},
    target::{Embedded, GOODBYE},
};
use attempt::{Done, Runner};
use clap::Args;
use codes::Codes;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use leasehold::{
    Clock, Store, SystemClock,
    job::{Job, Queue},
};
use serde::Serialize;
use std::{collections::BTreeMap, ffi::OsString, net::SocketAddr, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How long one claim waits for jobs; then it is made again.
const WAIT: Duration = Duration::from_secs(60);
/// How long to wait before claiming again when the store fails.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Work {
    /// The queue: any text of 1 to 64 bytes
    queue: String,
    /// How many commands may run at once
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: u32,
    /// Work one job if one is due, and end; with 1 if its command failed
    #[arg(long, conflicts_with = "drain")]
    once: bool,
    /// Work until nothing is due, and end; with 1 if a command failed. Jobs that are due later, or wait for their next
    /// attempt, stay
    #[arg(long)]
    drain: bool,
    /// How long a command may run whose job does not say: then it is stopped, and the attempt has failed [default: what the
    /// queue is set to]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How long a command may take to end by itself when it is stopped, before it is killed
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10s")]
    kill_after: Duration,
    /// After what time a job runs again whose command has ended with 75
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1m")]
    again_after: Duration,
    /// With these exit codes the job is dead at once, beside 65: another attempt would fail as well
    #[arg(long, value_name = "CODE", value_delimiter = ',', value_parser = codes::for_good)]
    dead_on: Vec<u8>,
    /// Answer /livez, /readyz and /metrics here: 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The command, with its arguments, run once for each job. The payload comes on standard input, and stands in the file
    /// that LEASEHOLD_JOB_FILE names. LEASEHOLD_JOB, _ATTEMPT, _FENCE and _QUEUE are in its environment, and as far as the
    /// job has them LEASEHOLD_JOB_KIND, _JOB_KEY, _JOB_TENANT and _JOB_CALLER_ID
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What has become of the jobs, counted.
#[derive(Debug, Default, Serialize)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn any_failed(&self) -> bool {
        ["failed", "dead", "lost"].iter().any(|end| self.0.contains_key(end))
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts: Vec<String> =
            self.0.iter().map(|(end, count)| format!("{count} {}", end.replace('_', " "))).collect();
        f.write_str(&counts.join(", "))
    }
}

/// What has happened.
enum Event {
    Claimed(leasehold::Result<Vec<Job>>),
    Ended(Done),
    Heard(Heard),
}

/// The work of one process on one queue.
struct Desk<'a> {
    work: &'a Work,
    config: &'a Config,
    queue: Queue,
    runner: Arc<Runner>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Claimed, and not started: suspected of killing their process, so nothing runs beside one of them.
    alone: Vec<Job>,
    /// One of those runs.
    is_alone: bool,
    counts: Counts,
    started: u32,
    /// Nothing is claimed any more.
    closing: bool,
    /// Told twice to go.
    told: Option<Signal>,
    failing: bool,
    /// What keeps every command from being started.
    failure: Option<Failure>,
    health: health::Health,
}

impl Work {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let own = |failure: Failure| match failure.code {
            crate::exit::USAGE => failure,
            _ => Failure { code: OWN_FAILURE, ..failure },
        };
        let mut signals = Signals::new().map_err(own)?;
        let health = match self.listen {
            Some(address) => health::Health::listen(address).await?,
            None => health::Health::default(),
        };
        let named = with_owner(config);
        let opened = tokio::select! {
            biased;
            opened = Embedded::open(&named) => opened.map_err(own)?,
            signal = signals.next() => return Ok(signal.exit_code()),
        };
        let queue = super::queue(&opened, config, &self.queue).map_err(own)?;
        let runner = Runner::new(self, config, queue.clone(), Codes::new(&self.dead_on))?;
        let mut desk = Desk::new(self, config, queue, Arc::new(runner), health);
        desk.work(&mut signals).await;
        desk.health.close();
        let Desk { counts, told, failure, runner, .. } = desk;
        runner.tidy();
        settle(&opened.store, &mut signals).await;
        self.end(&counts, told, failure)
    }

    fn ends_by_itself(&self) -> bool {
        self.once || self.drain
    }

    fn end(&self, counts: &Counts, told: Option<Signal>, failure: Option<Failure>) -> Outcome {
        if let Some(failure) = failure {
            return Err(failure);
        }
        match (told, self.ends_by_itself()) {
            (Some(signal), _) => Ok(signal.exit_code()),
            (None, true) if counts.0.is_empty() => {
                output::say(format_args!("nothing is due in {}", self.queue));
                Ok(0)
            }
            (None, true) => {
                output::say(counts);
                Ok(if counts.any_failed() { FAILED } else { 0 })
            }
            (None, false) => Ok(0),
        }
    }
}

/// Whoever is named is shown with the jobs in hand, with the process beside: `alice@laptop:4711`.
fn with_owner(config: &Config) -> Config {
    let mut config = config.clone();
    if config.owner.origin != Origin::Default && config.settings.jobs.owner.is_none() {
        config.settings.jobs.owner = Some(format!("{}:{}", config.owner.value, std::process::id()));
    }
    config
}

/// What was said of jobs reaches the store before this process ends, as far as it answers.
async fn settle(store: &Store, signals: &mut Signals) {
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        () = store.drain() => {}
        _ = signals.next() => {}
        () = clock.sleep(GOODBYE) => {}
    }
}

impl<'a> Desk<'a> {
    fn new(work: &'a Work, config: &'a Config, queue: Queue, runner: Arc<Runner>, health: health::Health) -> Self {
        Self {
            work,
            config,
            queue,
            runner,
            running: FuturesUnordered::new(),
            alone: Vec::new(),
            is_alone: false,
            counts: Counts::default(),
            started: 0,
            closing: false,
            told: None,
            failing: false,
            failure: None,
            health,
        }
    }

    /// How many jobs may be claimed now.
    fn room(&self) -> u32 {
        let running = u32::try_from(self.running.len() + self.alone.len()).unwrap_or(u32::MAX);
        match () {
            () if self.closing || self.is_alone || !self.alone.is_empty() => 0,
            () if self.work.once => 1_u32.saturating_sub(self.started),
            () => self.work.concurrency.saturating_sub(running),
        }
    }

    async fn work(&mut self, signals: &mut Signals) {
        let mut claim: Option<BoxFuture<'static, leasehold::Result<Vec<Job>>>> = None;
        loop {
            if claim.is_none() && self.room() > 0 {
                claim = Some(self.claim());
            }
            if claim.is_none() && self.running.is_empty() && self.alone.is_empty() {
                return;
            }
            match self.next(&mut claim, signals).await {
                Event::Claimed(jobs) => {
                    claim = None;
                    self.claimed(jobs);
                }
                Event::Ended(done) => self.ended(done),
                Event::Heard(heard) => self.heard(heard),
            }
            if self.closing {
                // What it was given meanwhile goes back.
                claim = None;
            }
            self.start_alone();
        }
    }

    fn claim(&self) -> BoxFuture<'static, leasehold::Result<Vec<Job>>> {
        let within = if self.work.ends_by_itself() { Duration::ZERO } else { WAIT };
        let claim = self.queue.claim(self.room()).within(within);
        let failing = self.failing;
        Box::pin(async move {
            if failing {
                SystemClock::new().sleep(AGAIN).await;
            }
            claim.await
        })
    }

    async fn next(
        &mut self,
        claim: &mut Option<BoxFuture<'static, leasehold::Result<Vec<Job>>>>,
        signals: &mut Signals,
    ) -> Event {
        let claimed = async {
            match claim {
                Some(claim) => claim.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            heard = signals.heard() => Event::Heard(heard),
            Some(done) = self.running.next() => Event::Ended(done),
            jobs = claimed => Event::Claimed(jobs),
        }
    }

    fn claimed(&mut self, jobs: leasehold::Result<Vec<Job>>) {
        match jobs {
            Ok(jobs) => {
                if std::mem::take(&mut self.failing) {
                    output::say(format_args!("{} can be worked on again", self.work.queue));
                }
                self.health.ready(true);
                if jobs.is_empty() && self.work.ends_by_itself() && self.running.is_empty() {
                    self.closing = true;
                }
                for job in jobs {
                    match job.runs_alone() {
                        true => self.alone.push(job),
                        false => self.start(job),
                    }
                }
            }
            Err(error) => {
                self.health.ready(false);
                let failure = Failure::from(error);
                if failure.code != UNAVAILABLE || self.work.ends_by_itself() {
                    self.closing = true;
                    self.failure = Some(Failure { code: OWN_FAILURE, ..failure });
                } else if !std::mem::replace(&mut self.failing, true) {
                    output::say(format_args!("warning: {failure}; trying again"));
                }
            }
        }
    }

    fn start(&mut self, job: Job) {
        self.started += 1;
        let runner = Arc::clone(&self.runner);
        self.running.push(Box::pin(async move { runner.run(job).await }));
        self.health.running(self.running.len());
    }

    /// A job that may not have company is started when nothing else runs.
    fn start_alone(&mut self) {
        if self.closing {
            // They go back to the queue.
            self.alone.clear();
        }
        if self.running.is_empty()
            && let Some(job) = self.alone.pop()
        {
            self.is_alone = true;
            self.start(job);
        }
    }

    fn ended(&mut self, done: Done) {
        self.is_alone = false;
        self.health.running(self.running.len());
        self.health.ended(done.end);
        *self.counts.0.entry(done.end).or_default() += 1;
        if let Some(failure) = done.cannot_run {
            self.closing = true;
            self.runner.stop.cancel();
            self.failure.get_or_insert(failure);
        } else if self.config.output.value == Format::Json
            && let Err(failure) = output::json(&done)
        {
            self.closing = true;
            self.failure.get_or_insert(failure);
        }
    }

    fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Asked(signal) if !signal.asks_to_end() => {}
            Heard::Asked(signal) if self.closing && !self.running.is_empty() => {
                output::say("stopping the commands that run");
                self.told = Some(signal);
                self.runner.stop.cancel();
            }
            Heard::Asked(_) => {
                self.closing = true;
                self.health.ready(false);
                if !self.running.is_empty() {
                    let count = self.running.len();
                    output::say(format_args!("claiming nothing more; {count} running: tell me again to stop them"));
                }
            }
            Heard::Pause => {
                self.runner.pause();
                stand_still();
            }
            Heard::Resume => self.runner.resume(),
        }
    }
}

/// Tells every command of this process to end.
type Stop = CancellationToken;
