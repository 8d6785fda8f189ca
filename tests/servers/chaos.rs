//! Real processes that die: killed, paused past the end of their leases, with clocks that are set under them, on a
//! server that is killed too and behind a network that is cut. Afterwards a checker reads every history and the store.

#![allow(clippy::disallowed_methods, reason = "drives real processes")]

mod checker;
mod driver;
mod history;
mod jobs;
mod resource;
mod worker;

use self::{
    checker::{Evidence, check},
    driver::Driver,
    history::{Answer, Event, Line},
    resource::Resource,
};
use crate::place::{self, Kind, Place, brief, granted, key, long_ago, now, settings, sweep};
use leasehold::{SystemClock, decision::TxnId};
use leasehold_testkit::TestClock;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Arc,
    time::Duration,
};

/// How long leases last: the shortest that there is, so that a pause is soon past it.
const TTL: Duration = Duration::from_secs(1);
/// The keys that all workers compete for.
const HOT: u32 = 4;
/// Leases that ended hours ago, for sweepers and lockers to meet on.
const OLD: u32 = 200;

fn hot(number: u32) -> String {
    format!("hot-{}", number % HOT)
}

fn old(number: u32) -> String {
    format!("old-{:03}", number % OLD)
}

/// A few seconds of it, on a directory, run with all other tests; the rest is run by `tests/servers/run --chaos`.
#[test]
fn a_little_on_a_directory() {
    place::run(Kind::directory, |place| on(place, 10));
}

#[test]
#[ignore = "takes as long as LEASEHOLD_CHAOS_SECONDS says: see tests/servers/run"]
fn on_a_directory() {
    place::run(Kind::directory, |place| on(place, seconds()));
}

#[test]
#[ignore = "needs a server: see tests/servers/run"]
fn on_a_server() {
    place::run(Kind::given, |place| on(place, seconds()));
}

fn seconds() -> u64 {
    env::var("LEASEHOLD_CHAOS_SECONDS").expect("LEASEHOLD_CHAOS_SECONDS").parse().unwrap()
}

async fn on(place: Arc<Place>, seconds: u64) {
    // The first one to open the store settles it for all: with so short a limit, a lease by a clock that is half a minute
    // ahead is known to come from a broken clock, and no process waits for its end.
    let mut settings = settings();
    settings.max_ttl = Some(5 * TTL);
    let then = place.builder_on(&long_ago()).settings(settings).open().await.unwrap().leases("default").unwrap();
    for number in 0..OLD {
        granted(then.acquire(&key(&old(number)), &brief()).await);
    }
    let resource = Resource::start();
    let mut driver = Driver::start(&place, resource.address()).await;
    driver.run(Duration::from_secs(seconds)).await;
    let lines = driver.stop().await;
    println!("{driver}\n{}", summary(&lines));
    let evidence = gather(&place, lines, resource).await;
    let violations = check(&evidence);
    assert!(violations.is_empty(), "{} promises were broken: {violations:#?}", violations.len());
    // A machine that is too busy proves nothing.
    let wrote = evidence.lines.iter().filter(|line| matches!(line.event, Event::Wrote { .. })).count();
    assert!(wrote as u64 > seconds, "only {wrote} writes in {seconds} s");
}

/// What is in the store now, and what a sweep leaves of it.
async fn gather(place: &Place, lines: Vec<Line>, resource: Resource) -> Evidence {
    let store = place.open().await;
    // Some began by clocks that were ahead: at this time they all have.
    let clock = TestClock::at(now().plus(Duration::from_secs(20 * 60)));
    let decisions = place.open_at(&clock).await.decisions();
    let mut decided = BTreeMap::new();
    for line in &lines {
        if let Event::Answered { txn, .. } = &line.event
            && !decided.contains_key(txn)
        {
            let answer = decisions.get(txn.parse::<TxnId>().unwrap()).await.unwrap();
            decided.insert(txn.clone(), Answer::from(answer));
        }
    }
    let keys: Vec<String> = (0..HOT).map(hot).chain((0..OLD).map(old)).collect();
    let mut stuck = BTreeSet::new();
    let leases = store.leases("default").unwrap();
    for name in (0..HOT).map(hot) {
        match leases.acquire_within(&key(&name), &brief(), 60 * TTL).await.unwrap().granted() {
            Some(grant) => leases.release(&grant).await.unwrap(),
            None => drop(stuck.insert(name)),
        }
    }
    // Three hours on, every lease has ended and every hour is past; in thirty, every decision is over.
    let clock = TestClock::at(now().plus(Duration::from_secs(3 * 3600)));
    let later = place.open_at(&clock).await;
    sweep(&later).await;
    let entries = |names: Vec<String>| names.into_iter().filter(|name| name.contains("/.lease-index/"));
    let mut left: BTreeSet<String> = entries(place.names().await).collect();
    // Nothing looks ended to a clock that stands before it all: what it sees held is in the record.
    let before = place.open_at(&long_ago()).await.leases("default").unwrap();
    for name in &keys {
        if before.peek(&key(name)).await.unwrap().holder.is_some() {
            left.insert(format!("the lease of {name}"));
        }
    }
    clock.advance(Duration::from_secs(27 * 3600));
    sweep(&later).await;
    left.extend(place.names().await.into_iter().filter(|name| name.starts_with(".txn-decisions/")));
    Evidence { lines, journal: resource.journal(), decided, stuck, left }
}

fn summary(lines: &[Line]) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines {
        *counts.entry(line.event.name()).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Micros of a clock that all processes of this machine share and that cannot be set.
fn micros() -> u64 {
    use leasehold::{Clock, clock::Moment};
    u64::try_from(SystemClock::new().monotonic().since(Moment::default()).as_micros()).unwrap()
}
