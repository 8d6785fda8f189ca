//! How many jobs ten processes track in a minute, and what that costs.

#![allow(clippy::disallowed_methods, reason = "measures real time")]

use crate::place::{self, Kind, Place};
use leasehold::{Store, job::Tracker};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

const PROCESSES: usize = 10;
/// Jobs that each of them has in hand at once.
const AT_ONCE: usize = 100;

#[test]
#[ignore = "measures: LEASEHOLD_TRACKED_SECONDS says for how long"]
fn on_a_server() {
    place::run(Kind::given, measure);
}

#[test]
#[ignore = "measures: LEASEHOLD_TRACKED_SECONDS says for how long"]
fn on_a_directory() {
    place::run(Kind::directory, measure);
}

async fn measure(place: Arc<Place>) {
    let seconds: u64 = std::env::var("LEASEHOLD_TRACKED_SECONDS").map_or(20, |text| text.parse().unwrap());
    let mut stores: Vec<Store> = Vec::new();
    for _ in 0..PROCESSES {
        stores.push(place.open().await);
    }
    let before: u64 = stores.iter().map(|store| store.requests().total()).sum();
    let (done, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + Duration::from_secs(seconds));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for (process, store) in stores.iter().enumerate() {
        for place in 0..AT_ONCE {
            let (tracker, done) = (store.queue("tracked").unwrap().tracker(), Arc::clone(&done));
            tasks.push(tokio::spawn(track(tracker, format!("{process}-{place}"), end, done)));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let took = began.elapsed().as_secs_f64();
    let jobs = done.load(SeqCst) as f64;
    let made = stores.iter().map(|store| store.requests().total()).sum::<u64>() - before;
    println!(
        "{jobs} jobs tracked by {PROCESSES} in {took:.1} s: {:.0} a minute, {:.3} requests for each",
        jobs * 60.0 / took,
        made as f64 / jobs
    );
    assert!(jobs > 0.0);
    assert!(stores[0].queue("tracked").unwrap().tracker().in_flight(10).await.unwrap().is_empty());
}

/// One job after the other: begun, run for no time at all, finished.
async fn track(tracker: Tracker, name: String, end: Instant, done: Arc<AtomicU64>) {
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        let tracked = tracker.begin(format!("{name}-{number}"), vec![b'x'; 500]).await.unwrap();
        assert!(tracked.finish().await.unwrap().is_accepted());
        done.fetch_add(1, SeqCst);
    }
}
