//! bench: what a store can do, and what that costs.

use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
};
use clap::{Args, ValueEnum};
use futures_util::future::try_join_all;
use leasehold::{
    Clock, Key, Namespace, SystemClock,
    clock::Moment,
    lease::{Acquired, Grant, Renewed, Request},
    store::{Percentiles, RequestKind, Requests},
    sweep::SweepOptions,
};
use serde::Serialize;
use std::time::Duration;

/// US dollars for a million requests, as Amazon lists them for S3 Standard in us-east-1: the one table of prices here.
/// Deletes are free. Storage and traffic are not counted.
const PRICES: [(RequestKind, f64); 4] =
    [(RequestKind::Put, 5.0), (RequestKind::List, 5.0), (RequestKind::Get, 0.4), (RequestKind::Delete, 0.0)];

/// What it locks, in a namespace of its own, so that nobody else is in its way and it is in nobody's.
const NAMESPACE: &str = "leasehold-bench";

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to do over and over [default: all of it]
    #[arg(value_enum)]
    work: Vec<Work>,
    /// How many do it at once
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    concurrency: usize,
    /// For how long each
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "5s")]
    duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Acquire and release, everybody a key of their own
    Cycle,
    /// Renew a lease, everybody their own
    Renew,
    /// Everybody waits for the same key, and hands it on
    Handover,
    /// Look at what is to be swept, without sweeping
    Sweep,
}

#[derive(Debug, Serialize)]
struct Measured {
    work: &'static str,
    operations: usize,
    per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    requests_per_operation: f64,
    usd_per_million_operations: f64,
}

impl Bench {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        if self.concurrency == 0 || self.duration.is_zero() {
            return Err(Failure::usage("--concurrency and --duration must be more than nothing"));
        }
        let mut opened = Embedded::open_any(config).await?;
        opened.leases = opened.store.leases(NAMESPACE)?;
        let all = [Work::Cycle, Work::Renew, Work::Handover, Work::Sweep];
        let bar = output::spinner();
        let mut measured = Vec::new();
        for work in if self.work.is_empty() { &all } else { &self.work[..] } {
            bar.set_message(work.name().to_owned());
            measured.push(self.measure(*work, &opened).await?);
        }
        bar.finish_and_clear();
        match config.output.value {
            Format::Json => output::json(&measured)?,
            Format::Table => {
                let header = ["WORK", "OPS", "OPS/S", "P50 MS", "P90 MS", "P99 MS", "REQUESTS/OP", "USD/MILLION OPS"];
                output::table(header, measured.iter().map(Measured::line))?;
                output::say("prices: requests only, as Amazon lists them for S3 Standard in us-east-1");
            }
        }
        Ok(0)
    }

    async fn measure(&self, work: Work, opened: &Embedded) -> Result<Measured, Failure> {
        let clock = SystemClock::new();
        let before = opened.store.requests();
        let began = clock.monotonic();
        let end = began.plus(self.duration);
        let workers = if work == Work::Sweep { 1 } else { self.concurrency };
        let times = try_join_all((0..workers).map(|number| work.repeat(opened, number, end))).await?;
        let took = clock.monotonic().since(began);
        let requests = opened.store.requests().since(&before);
        Ok(Measured::new(work, times.concat(), took, &requests))
    }
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Renew => "renew",
            Self::Handover => "handover",
            Self::Sweep => "sweep",
        }
    }

    /// Does it until the end, and says how long each time took.
    async fn repeat(self, opened: &Embedded, number: usize, end: Moment) -> Result<Vec<Duration>, Failure> {
        let clock = SystemClock::new();
        let leases = &opened.leases;
        let key = match self {
            Self::Handover => Key::new("handover")?,
            // The same in each run: a record stays for ever, so new ones would pile up.
            _ => Key::new(format!("{}-{number}", self.name()))?,
        };
        let request = Request::new(Duration::from_secs(60)).owner("bench");
        let mut held = match self {
            Self::Renew => Some(granted(&key, leases.acquire(&key, &request).await?)?),
            _ => None,
        };
        let mut times = Vec::new();
        while clock.monotonic() < end {
            let before = clock.monotonic();
            match (self, &held) {
                (Self::Renew, Some(grant)) => match leases.renew(grant).await? {
                    Renewed::Renewed(again) => held = Some(again),
                    Renewed::Lost(_) => {
                        return Err(Failure::failed(format!("the lease on {key} was lost while it was renewed")));
                    }
                },
                (Self::Handover, _) => {
                    let wait = duration::FOREVER;
                    let grant = granted(&key, leases.acquire_within(&key, &request, wait).await?)?;
                    leases.release(&grant).await?;
                }
                (Self::Sweep, _) => {
                    let options = SweepOptions::new().dry_run(true).op_delay(Duration::ZERO);
                    opened.store.sweeper().run_once(options.namespace(Namespace::new(NAMESPACE)?)).await?;
                }
                (Self::Cycle | Self::Renew, _) => {
                    let grant = granted(&key, leases.acquire(&key, &request).await?)?;
                    leases.release(&grant).await?;
                }
            }
            times.push(clock.monotonic().since(before));
        }
        if let Some(grant) = held {
            leases.release(&grant).await?;
        }
        Ok(times)
    }
}

fn granted(key: &Key, acquired: Acquired) -> Result<Grant, Failure> {
    acquired.granted().ok_or_else(|| Failure::failed(format!(
            "{key} in the namespace {NAMESPACE} is held: another bench runs on this store, or one was killed less than a \
             minute ago"
        )))
}

impl Measured {
    fn new(work: Work, times: Vec<Duration>, took: Duration, requests: &Requests) -> Self {
        let count = times.len();
        let percentiles = Percentiles::of(times);
        let millis =
            |at: fn(Percentiles) -> Duration| rounded(percentiles.map_or(0., |all| at(all).as_secs_f64() * 1000.));
        let operations = count.max(1) as f64;
        let dollars: f64 = PRICES.iter().map(|(kind, price)| requests.of(*kind) as f64 * price).sum();
        Self {
            work: work.name(),
            operations: count,
            per_second: rounded(count as f64 / took.as_secs_f64().max(f64::EPSILON)),
            p50_ms: millis(|all| all.p50),
            p90_ms: millis(|all| all.p90),
            p99_ms: millis(|all| all.p99),
            requests_per_operation: rounded(requests.total() as f64 / operations),
            usd_per_million_operations: rounded(dollars / operations),
        }
    }

    fn line(&self) -> [String; 8] {
        [
            self.work.to_owned(),
            self.operations.to_string(),
            self.per_second.to_string(),
            self.p50_ms.to_string(),
            self.p90_ms.to_string(),
            self.p99_ms.to_string(),
            self.requests_per_operation.to_string(),
            self.usd_per_million_operations.to_string(),
        ]
    }
}

fn rounded(number: f64) -> f64 {
    (number * 100.).round() / 100.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_of_two_writes_costs_ten_dollars_a_million() {
        let (_, put) = PRICES[0];
        assert_eq!(PRICES[0].0, RequestKind::Put);
        assert!((2. * put - 10.).abs() < f64::EPSILON);
        let measured =
            Measured::new(Work::Cycle, vec![Duration::from_millis(3); 4], Duration::from_secs(2), &Requests::default());
        assert_eq!((measured.operations, measured.per_second, measured.p99_ms), (4, 2., 3.));
    }
}
