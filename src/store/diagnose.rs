//! Finding out what works and what does not, one thing after another, where opening would stop at the first.

use super::{SharedSettings, StoreBuilder};
use crate::{
    Error, ErrorKind, Result, WriteId,
    duration::millis,
    shared::Rules,
    storage::{
        Backend, Interval, Name, backend::TimeSource, blames_credentials, cas::Slot, layout::PROBE, probe,
        store_json::StoreSlot,
    },
    timing::{self, LONGEST_SPREAD},
};
use bytes::Bytes;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use std::{sync::Arc, time::Duration};

/// How many reads and writes are timed.
const TIMED: usize = 20;

/// One thing that was tried. For programs (serde): its name, `ok` (`null` where it was not tried) and the `error`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Check {
    /// `credentials` (over HTTP only), `reach`, `get`, `put`, `list`, `delete`, `conditions` or `clock`.
    pub name: &'static str,
    /// Why it failed; or `None` where it was not tried, because something before it failed.
    pub result: Option<Result<()>>,
}

impl Check {
    /// Whether it was tried and worked.
    pub fn is_ok(&self) -> bool {
        matches!(self.result, Some(Ok(())))
    }

    /// Why it did not work.
    pub fn error(&self) -> Option<&Error> {
        self.result.as_ref()?.as_ref().err()
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.name)?;
        map.serialize_entry("ok", &self.result.as_ref().map(Result::is_ok))?;
        if let Some(error) = self.error() {
            map.serialize_entry("error", &error.to_string())?;
        }
        map.end()
    }
}

/// How long many things of one kind took; for programs (serde) in milliseconds, with two decimals.
///
/// ```
/// use leasehold::store::Percentiles;
/// use std::time::Duration;
///
/// let times = (1..=100).map(Duration::from_millis).collect();
/// let percentiles = Percentiles::of(times).unwrap();
/// assert_eq!((percentiles.p50.as_millis(), percentiles.p99.as_millis()), (50, 99));
/// assert_eq!(Percentiles::of(Vec::new()), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Half of them took no longer.
    #[serde(rename = "p50_ms", serialize_with = "hundredths")]
    pub p50: Duration,
    /// 90 of 100 took no longer.
    #[serde(rename = "p90_ms", serialize_with = "hundredths")]
    pub p90: Duration,
    /// 99 of 100 took no longer.
    #[serde(rename = "p99_ms", serialize_with = "hundredths")]
    pub p99: Duration,
}

fn hundredths<S: Serializer>(time: &Duration, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 100_000.).round() / 100.)
}

fn optional_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    match time {
        Some(time) => millis::serialize(time, serializer),
        None => serializer.serialize_none(),
    }
}

impl Percentiles {
    /// Of these times, in any order; `None` if there are none.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(Self { p50: at(50)?, p90: at(90)?, p99: at(99)? })
    }
}

/// What may be done with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Everything.
    Safe,
    /// Leases are safe, and nothing is tidied: listing or deleting is not allowed.
    Untidy,
    /// Nothing is granted by this machine until its clock is corrected.
    WrongClock,
    /// It breaks its conditions: never use it.
    Unsafe,
    /// Reading or writing is not allowed, or something else keeps leases from working.
    Unusable,
    /// It does not answer.
    Unreachable,
}

/// What was found out about a store.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Which store.
    #[serde(rename = "store")]
    pub place: String,
    /// What was tried, in order.
    pub checks: Vec<Check>,
    /// How far this machine's clock and the store's are apart; the store counts whole seconds.
    #[serde(rename = "skew_ms", serialize_with = "optional_millis")]
    pub skew: Option<Duration>,
    /// How far they may be: what is in the store, or what would be agreed.
    #[serde(rename = "max_clock_skew_ms", serialize_with = "millis::serialize")]
    pub max_clock_skew: Duration,
    /// How long reads took.
    pub reads: Option<Percentiles>,
    /// How long writes took.
    pub writes: Option<Percentiles>,
    /// How many requests were made to find out.
    pub requests: u64,
    /// How far apart the stamps of the store's own clocks were found: leases end later by as much.
    #[serde(rename = "spread_ms", serialize_with = "millis::serialize")]
    pub spread: Duration,
    /// What an operator should know although nothing failed.
    pub remarks: Vec<String>,
}

impl Diagnosis {
    /// One of the checks.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// What all of it comes to.
    pub fn verdict(&self) -> Verdict {
        let failed = |name: &str| self.check(name).is_some_and(|check| check.error().is_some());
        let unreachable = |check: &Check| check.error().is_some_and(|error| error.kind() == ErrorKind::Unavailable);
        if self.check("reach").is_some_and(unreachable) {
            Verdict::Unreachable
        } else if failed("credentials") || failed("reach") || failed("get") || failed("put") {
            Verdict::Unusable
        } else if failed("conditions") {
            let unsafe_store = |check: &Check| check.error().is_some_and(|error| error.kind() == ErrorKind::Config);
            if self.check("conditions").is_some_and(unsafe_store) { Verdict::Unsafe } else { Verdict::Unusable }
        } else if failed("clock") {
            Verdict::WrongClock
        } else if failed("list") || failed("delete") {
            Verdict::Untidy
        } else {
            Verdict::Safe
        }
    }
}

impl StoreBuilder {
    /// Tries everything that the library needs of a store, and says what works and what does not. Leaves nothing behind
    /// where it may delete but a time object (`.leasehold/time-…`), and a few small objects under `.leasehold/probe/` where it may
    /// not.
    pub async fn diagnose(self) -> Result<Diagnosis> {
        let rules: Arc<[&'static Rules]> = self.declarations().iter().map(|kind| &kind.shared).collect();
        let proposed = SharedSettings::propose(&rules, &self.named())?;
        let (backend, _) = self.connect().await?;
        let backend = Arc::new(backend);
        let mut diagnosis = Diagnosis {
            place: backend.place.clone(),
            checks: Vec::new(),
            skew: None,
            max_clock_skew: proposed.max_clock_skew,
            reads: None,
            writes: None,
            requests: 0,
            spread: Duration::ZERO,
            remarks: Vec::new(),
        };
        diagnose(&backend, &rules, proposed.max_clock_skew, &mut diagnosis).await;
        diagnosis.requests = backend.requests().total();
        Ok(diagnosis)
    }
}

/// Denied is an answer: the store is there.
fn was_answered<T>(result: &Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), ErrorKind::Denied | ErrorKind::Corrupt),
    }
}

async fn diagnose(
    backend: &Arc<Backend>,
    rules: &Arc<[&'static Rules]>,
    proposed: Duration,
    diagnosis: &mut Diagnosis,
) {
    let mut max_clock_skew = proposed;
    let known = backend.get_once(&StoreSlot.name(), &backend.coordination).await;
    let reached = was_answered(&known);
    let got = match known {
        Ok(known) => known.map_or(Ok(()), |fetched| {
            max_clock_skew = SharedSettings::read(rules, &StoreSlot.decode(fetched.body)?)?.max_clock_skew;
            Ok(())
        }),
        Err(error) => Err(error),
    };
    let mut add = |name, result| diagnosis.checks.push(Check { name, result });
    let over_http = backend.time == TimeSource::Answers;
    let credentials = got.as_ref().err().filter(|error| blames_credentials(error)).cloned();
    if !reached || credentials.is_some() {
        match credentials {
            Some(error) => {
                add("credentials", Some(Err(error)));
                add("reach", None);
            }
            None => add("reach", Some(got)),
        }
        ["get", "put", "list", "delete", "conditions", "clock"].into_iter().for_each(|name| add(name, None));
        return;
    }
    if over_http {
        add("credentials", Some(Ok(())));
    }
    add("reach", Some(Ok(())));
    let name = Name::new(format!("{PROBE}{}", WriteId::random(&*backend.generator)));
    let put = backend.put_hint(&name, Bytes::from_static(b"{}")).await;
    let usable = got.is_ok() && put.is_ok();
    add("get", Some(got));
    add("put", Some(put));
    add("list", Some(backend.page(PROBE, None, 1).await.map(drop)));
    if usable {
        diagnosis.writes = timed(backend, || backend.put_hint(&name, Bytes::from_static(b"{}"))).await;
        diagnosis.reads =
            timed(backend, || async { backend.get_once(&name, &backend.coordination).await.map(drop) }).await;
    }
    let deleted = backend.delete(std::slice::from_ref(&name)).await;
    let mut add = |name, result| diagnosis.checks.push(Check { name, result });
    add("delete", Some(deleted.error.map_or(Ok(()), Err)));
    add("conditions", if usable { Some(probe::probe(backend).await) } else { None });
    let clock = match usable {
        true => check_clock(backend, max_clock_skew, &mut diagnosis.remarks).await,
        false => backend.check_clock(max_clock_skew, backend.clock.wall()),
    };
    diagnosis.checks.push(Check { name: "clock", result: Some(clock) });
    diagnosis.max_clock_skew = max_clock_skew;
    diagnosis.spread = backend.spread();
    diagnosis.skew = backend.store_time().map(|time| backend.clock.wall().distance(time));
}

/// This machine's clock beside the store's, as its answers tell it and as its stamps do.
async fn check_clock(backend: &Arc<Backend>, max_clock_skew: Duration, remarks: &mut Vec<String>) -> Result<()> {
    let asked = backend.clock.monotonic();
    let stamp = backend.write_time().await?;
    backend.trust_clock(max_clock_skew).await?;
    let text = |duration: Duration| humantime::format_duration(Duration::from_millis(millis(duration))).to_string();
    let Some(store) = backend.store_interval() else { return Ok(()) };
    let wall = backend.clock.wall();
    if timing::is_wrong(store.distance(wall), max_clock_skew) {
        return Err(Error::new(
            ErrorKind::Clock,
            format!(
                "this machine's clock says {wall}, that of {} says {}: they are at least {} apart, and may differ by {}; \
                 set the clock, for instance by NTP",
                backend.place,
                store.lower,
                text(store.distance(wall)),
                text(max_clock_skew)
            ),
        ));
    }
    if backend.spread() > LONGEST_SPREAD {
        return Err(Error::new(
            ErrorKind::Clock,
            format!(
                "the clocks of {} itself differ by {}: until they agree, a lease of another process can be taken over \
                 only after it was watched for its whole time to live; set the clocks of the store",
                backend.place,
                text(backend.spread())
            ),
        ));
    }
    if backend.time == TimeSource::Answers {
        let stamped = Interval::told(stamp, backend.clock.monotonic().since(asked));
        let apart = stamped.lower.since(store.upper).max(store.lower.since(stamped.upper));
        if !apart.is_zero() {
            remarks.push(format!(
                "the dates of its answers and the times of its objects are not one clock: they are at least {} apart; \
                 something in between replaces Date, by which no lease ends",
                text(apart)
            ));
        }
        if backend.is_on_loopback {
            remarks.push(
                "the store runs on this machine, so both share one clock: if that is set forwards, leases of other machines \
                 look ended here too early"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Times some requests; `None` as soon as one of them fails.
async fn timed<F: Future<Output = Result<()>>>(backend: &Backend, request: impl Fn() -> F) -> Option<Percentiles> {
    let mut times = Vec::with_capacity(TIMED);
    for _ in 0..TIMED {
        let began = backend.clock.monotonic();
        request().await.ok()?;
        times.push(backend.clock.monotonic().since(began));
    }
    Percentiles::of(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_times() {
        let millis = |count: u64| Duration::from_millis(count);
        let of = |times: Vec<u64>| Percentiles::of(times.into_iter().map(millis).collect());
        assert_eq!(of(Vec::new()), None);
        assert_eq!(of(vec![7]), Some(Percentiles { p50: millis(7), p90: millis(7), p99: millis(7) }));
        assert_eq!(
            of((1..=100).rev().collect()),
            Some(Percentiles { p50: millis(50), p90: millis(90), p99: millis(99) })
        );
        assert_eq!(of(vec![9, 1]), Some(Percentiles { p50: millis(1), p90: millis(9), p99: millis(9) }));
    }
}
