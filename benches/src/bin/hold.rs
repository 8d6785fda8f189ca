//! What it costs to hold leases, and to hold none: renewals on time, memory, idle processor time and idle requests.
//!
//! ```text
//! hold renew   [--leases 10000] [--seconds 60] [--across-hour] [--dir DIR]   renewals of guards, every 10 s
//! hold memory  [--leases 100000] [--dir DIR]                                 resident memory per held lease
//! hold idle    [--leases 0] [--seconds 60] [--dir DIR]                       processor time of a process that waits
//! hold resting [--hours 24] [--spread 1800]                                  requests of an idle process, time moved by hand
//! ```
//!
//! Prints one line of JSON for each figure.

#![allow(clippy::disallowed_methods, reason = "measures real time")]
#![allow(clippy::print_stdout, reason = "prints figures")]

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Clock, Key, Leases, Settings, Store, SystemClock,
    clock::{Moment, Timestamp},
    lease::{Guard, Locked, Request},
    store::{RequestKind, Requests},
};
use leasehold_benches::{Arguments, Result, some_time};
use leasehold_testkit::TestClock;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How many acquire at once.
const AT_ONCE: usize = 64;

/// A clock whose wall is so far ahead of the machine's, so that an hour ends when it suits us.
#[derive(Debug)]
struct Shifted {
    ahead: Duration,
    system: SystemClock,
}

#[async_trait]
impl Clock for Shifted {
    fn wall(&self) -> Timestamp {
        self.system.wall().plus(self.ahead)
    }

    fn monotonic(&self) -> Moment {
        self.system.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.system.sleep(duration).await;
    }
}

/// An embedded store in a directory that goes away with it.
struct Embedded {
    store: Store,
    folder: TempDir,
}

impl Embedded {
    async fn open(parent: &Path, clock: Arc<dyn Clock>, settings: Settings) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(parent)?;
        let url = format!("file://{}", folder.path().display());
        let store = Store::builder().url(url).clock(clock).settings(settings).open().await?;
        Ok(Self { store, folder })
    }

    fn leases(&self) -> Result<Leases> {
        Ok(self.store.leases("default")?)
    }

    /// How many index entries there are, by hour.
    fn entries(&self) -> Result<Vec<(String, usize)>> {
        let index = self.folder.path().join("default/.lease-index");
        let mut hours = Vec::new();
        for hour in fs::read_dir(index)? {
            let hour = hour?;
            hours.push((hour.file_name().to_string_lossy().into_owned(), fs::read_dir(hour.path())?.count()));
        }
        hours.sort();
        Ok(hours)
    }
}

/// Guards on so many keys that nobody had before.
async fn hold(leases: &Leases, first: usize, count: usize, ttl: Duration) -> Result<Vec<Guard>> {
    let guards = stream::iter(first..first + count).map(|number| async move {
        let request = Request::new(ttl).owner("worker-7").new_key();
        match leases.lock_within(&Key::new(format!("orders/{number}"))?, &request, Duration::ZERO).await? {
            Locked::Granted(guard) => Ok(guard),
            Locked::Held(held) => Err(format!("held: {held:?}").into()),
        }
    });
    guards.buffer_unordered(AT_ONCE).try_collect().await
}

async fn release(guards: Vec<Guard>) -> Result<()> {
    let releases = stream::iter(guards).map(|guard| async move { Ok(guard.release().await?) });
    releases.buffer_unordered(AT_ONCE).try_collect().await
}

fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.).round() / 1000.
}

fn puts_and_rest(requests: &Requests) -> (u64, u64) {
    let puts = requests.of(RequestKind::Put);
    (puts, requests.total() - puts)
}

/// Everything is counted from the first acquire to the last release, so that nothing is under way at either end.
async fn renew(arguments: &Arguments) -> Result<()> {
    let (count, time) = (arguments.number("leases", 10_000)?, Duration::from_secs(arguments.number("seconds", 60)?));
    let (across, parent) = (arguments.flag("across-hour"), directory(arguments));
    let ttl = Duration::from_secs(30);
    let ahead = if across { until_hour_ends(&parent, count, ttl, time / 2).await? } else { Duration::ZERO };
    let clock = Arc::new(Shifted { ahead, system: SystemClock::new() });
    let embedded = Embedded::open(&parent, clock, settings(count)).await?;
    let before = embedded.store.requests();
    let began = Instant::now();
    let guards = hold(&embedded.leases()?, 0, count, ttl).await?;
    let acquired_in = began.elapsed();
    let (began, renewed_before) = (Instant::now(), embedded.store.stats().leases_renewed);
    // A renewal is due when two thirds of the time are left.
    let due = 2 * (ttl / 3);
    let (mut least, mut missed) = (ttl, 0);
    while began.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(250)).await;
        for guard in &guards {
            least = least.min(guard.grant().time_left());
            missed += usize::from(!guard.is_valid());
        }
    }
    let renewed_meanwhile = embedded.store.stats().leases_renewed - renewed_before;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    release(guards).await?;
    let stats = embedded.store.stats();
    let (puts, others) = puts_and_rest(&embedded.store.requests().since(&before));
    let hours = embedded.entries()?;
    let entries: usize = hours.iter().map(|(_, entries)| entries).sum();
    let swaps = stats.leases_granted + stats.leases_renewed + stats.leases_released;
    let exact = puts == swaps + entries as u64 && others == 0;
    println!(
        "{}",
        json!({
            "figure": "renew", "leases": count, "ttl_s": ttl.as_secs(), "across_hour": across,
            "acquired_in_s": seconds(acquired_in), "held_for_s": seconds(began.elapsed()),
            "renewals": stats.leases_renewed, "renewals_per_second": renewed_meanwhile as f64 / time.as_secs_f64(),
            "granted": stats.leases_granted, "released": stats.leases_released, "index_entries": hours,
            "puts": puts, "other_requests": others,
            "requests_per_renewal_beside_entries":
                (puts as f64 - entries as f64 - (stats.leases_granted + stats.leases_released) as f64) / stats.leases_renewed as f64,
            "exactly_one_per_renewal_and_entry": exact,
            "lost": lost, "seen_invalid": missed, "leases_lost": stats.leases_lost,
            "worst_lateness_s": seconds(due.saturating_sub(least)), "spare_s": seconds(least),
        })
    );
    match exact && lost == 0 && missed == 0 && stats.leases_lost == 0 {
        true => Ok(()),
        false => Err("a deadline was missed, or a request was made that a renewal does not need".into()),
    }
}

/// How far ahead a clock must be for an hour to end in the middle of a run, going by how long acquiring takes.
async fn until_hour_ends(parent: &Path, count: usize, ttl: Duration, later: Duration) -> Result<Duration> {
    let tried = count.min(1000);
    let scratch = Embedded::open(parent, Arc::new(SystemClock::new()), settings(tried)).await?;
    let began = Instant::now();
    let guards = hold(&scratch.leases()?, 0, tried, ttl).await?;
    let each = began.elapsed().div_f64(tried as f64);
    release(guards).await?;
    let now = SystemClock::new().wall();
    // Leases are filed by when they end.
    let crossing = now.plus(each.mul_f64(count as f64) + later + ttl);
    let hour = leasehold::Hour::of(crossing)?;
    Ok(hour.end().since(crossing))
}

/// A cache that is large enough for all that is held.
fn settings(count: usize) -> Settings {
    let mut settings = Settings::default();
    settings.cached_keys = settings.cached_keys.max(2 * count);
    settings
}

fn directory(arguments: &Arguments) -> PathBuf {
    arguments.text("dir").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Resident memory in KiB.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

async fn memory(arguments: &Arguments) -> Result<()> {
    let count = arguments.number("leases", 100_000)?;
    let ttl = Duration::from_secs(arguments.number("ttl", 3600)?);
    let embedded = Embedded::open(&directory(arguments), Arc::new(SystemClock::new()), Settings::default()).await?;
    let leases = embedded.leases()?;
    // Threads, buffers and what the store remembers of files are there whatever is held.
    release(hold(&leases, count, 20_000, ttl).await?).await?;
    let settle = Duration::from_secs(15);
    tokio::time::sleep(settle).await;
    let before = resident()?;
    let guards = hold(&leases, 0, count, ttl).await?;
    let at_once = resident()?;
    tokio::time::sleep(settle).await;
    let after = resident()?;
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    let added = after.saturating_sub(before);
    println!(
        "{}",
        json!({
            "figure": "memory", "leases": count, "valid": valid, "before_kib": before, "after_kib": after,
            "right_after_acquiring_kib": at_once, "added_mib": added as f64 / 1024.,
            "bytes_per_lease": added * 1024 / count as u64,
        })
    );
    // Not released one by one: they go with their directory.
    guards.into_iter().for_each(std::mem::forget);
    match added < 100 << 10 {
        true => Ok(()),
        false => Err("100 MiB or more".into()),
    }
}

fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

async fn idle(arguments: &Arguments) -> Result<()> {
    let (count, time) = (arguments.number("leases", 0)?, Duration::from_secs(arguments.number("seconds", 60)?));
    let parent = directory(arguments);
    let embedded = Embedded::open(&parent, Arc::new(SystemClock::new()), Settings::default()).await?;
    let ttl = Duration::from_secs(30);
    let guards = hold(&embedded.leases()?, 0, count, ttl).await?;
    let sweeper = embedded.store.sweeper().start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (began, used, before) = (Instant::now(), processor_time(), embedded.store.requests());
    tokio::time::sleep(time).await;
    let used = processor_time().saturating_sub(used);
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
    let requests = embedded.store.requests().since(&before).total();
    println!(
        "{}",
        json!({
            "figure": "idle", "leases": count, "ttl_s": ttl.as_secs(), "seconds": seconds(began.elapsed()),
            "processor_ms": used.as_secs_f64() * 1000., "percent_of_a_core": share * 100., "requests": requests,
        })
    );
    sweeper.stop().await;
    release(guards).await?;
    match count > 0 || share < 0.001 {
        true => Ok(()),
        false => Err("0.1 % of a core or more".into()),
    }
}

/// A process with a sweeper that has nothing to do, for hours of moved time.
async fn resting(arguments: &Arguments) -> Result<()> {
    let hours: u64 = arguments.number("hours", 24)?;
    let step = Duration::from_secs(30);
    let mut quiet = Vec::new();
    let clock = TestClock::at(some_time());
    let mut settings = Settings::default();
    settings.sweep.rest_spread = Duration::from_secs(arguments.number("spread", 1800)?);
    let spread = settings.sweep.rest_spread.as_secs();
    let store = Store::builder().url("memory://").clock(Arc::new(clock.clone())).settings(settings).open().await?;
    let leases = store.leases("default")?;
    let request = Request::new(Duration::from_secs(60));
    drop(leases.acquire(&Key::new("left-behind")?, &request).await?);
    let sweeper = store.sweeper().start();
    let mut last = store.requests();
    let (mut passes, mut since, mut per_pass) = (store.stats().sweeps_complete, None, Vec::new());
    for _ in 0..hours * 3600 / step.as_secs() {
        clock.wait_for_sleepers(1).await;
        clock.advance(step);
        // The sweeper runs on this thread, whenever we wait.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let now = store.requests();
        let made = now.since(&last).total();
        let done = store.stats().sweeps_complete;
        if done > passes {
            quiet.extend(since.map(|since| clock.monotonic().since(since).as_secs()));
            per_pass.push(made);
            (passes, since) = (done, Some(clock.monotonic()));
        } else if made > 0 && since.is_some() {
            return Err(format!("{made} requests although a pass was complete").into());
        }
        last = now;
    }
    sweeper.stop().await;
    println!(
        "{}",
        json!({
            "figure": "resting", "hours": hours, "rest_spread_s": spread, "complete_passes": passes, "requests_of_each_pass": per_pass,
            "requests_between_passes": 0, "seconds_between_passes": quiet,
            "cleared": store.stats().leases_cleared_by_sweeper,
        })
    );
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let runtime = match arguments.what.as_str() {
        "resting" => leasehold_benches::runtime()?,
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
    };
    runtime.block_on(async {
        match arguments.what.as_str() {
            "renew" => renew(&arguments).await,
            "memory" => memory(&arguments).await,
            "idle" => idle(&arguments).await,
            "resting" => resting(&arguments).await,
            other => Err(format!("{other:?} is none of renew, memory, idle, resting").into()),
        }
    })
}
