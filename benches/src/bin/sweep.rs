//! What it costs to sweep 10,000 ended leases beside more and more live ones, by the library and by somebody who reads
//! everything. Requests are counted outside of the library; time is moved by hand.
//!
//! ```text
//! sweep [--expired 10000] [--live 1000,10000,100000,1000000] [--page-size 250]
//! ```
//!
//! Prints one line of JSON for each number of live keys, and one that compares them.

#![allow(clippy::disallowed_methods, reason = "measures real time")]
#![allow(clippy::print_stdout, reason = "prints figures")]

use futures_util::TryStreamExt;
use leasehold::{Clock, Key, Settings, Store, internals::bench::Sample, lease::Request, sweep::SweepOptions};
use leasehold_benches::{
    Arguments, Result, acquired,
    counted::{Counted, Counts},
    some_time,
};
use leasehold_testkit::TestClock;
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion, memory::InMemory, path::Path,
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Long enough for the hour of the ended ones to be over and past its grace.
const LATER: Duration = Duration::from_secs(3 * 3600);

fn builder(store: Arc<dyn ObjectStore>, clock: &TestClock, page_size: usize) -> leasehold::StoreBuilder {
    let mut settings = Settings::default();
    settings.sweep.page_size = page_size;
    Store::builder()
        .object_store(store)
        .lists_in_order()
        .shares_our_clock()
        .clock(Arc::new(clock.clone()))
        .settings(settings)
}

/// A store with so many ended leases, made by acquiring them, and so many live ones, written as acquiring writes them.
async fn populate(clock: &TestClock, expired: usize, live: usize) -> Result<InMemory> {
    let objects = Arc::new(InMemory::new());
    let store = builder(objects.clone(), clock, 250).open().await?;
    let leases = store.leases("default")?;
    let request = Request::new(Duration::from_secs(60)).owner("worker-7").new_key();
    for number in 0..expired {
        acquired(leases.acquire(&Key::new(format!("orders/ended-{number}"))?, &request).await?)?;
    }
    clock.advance(LATER);
    let now = clock.wall();
    for number in 0..live {
        let key = Key::new(format!("orders/{number}"))?;
        let sample = Sample::held(key, "worker-7", now, Duration::from_secs(3600))?;
        let (entry, body) = sample.entry()?;
        objects.put(&Path::from(entry), PutPayload::from_bytes(body)).await?;
        objects.put(&Path::from(sample.name()), PutPayload::from_bytes(sample.encode()?)).await?;
    }
    Ok(objects.fork())
}

fn figures(counts: &Counts, expired: usize, began: Instant) -> Value {
    json!({
        "requests": counts.total(), "requests_per_swept": counts.total() as f64 / expired as f64,
        "lists": counts.lists.load(Relaxed), "gets": counts.gets.load(Relaxed),
        "puts": counts.puts.load(Relaxed), "deletes": counts.deletes.load(Relaxed),
        "wall_s": (began.elapsed().as_secs_f64() * 1000.).round() / 1000.,
    })
}

async fn ours(objects: InMemory, clock: &TestClock, expired: usize, page_size: usize) -> Result<Value> {
    let (store, counts) = Counted::new(objects);
    let store = builder(store, clock, page_size).open().await?;
    let opening = counts.total();
    [&counts.puts, &counts.gets, &counts.lists, &counts.deletes].iter().for_each(|count| count.store(0, Relaxed));
    let began = Instant::now();
    let report = store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await?;
    if report.of("lease").cleared != expired as u64 || report.entries_deleted != expired as u64 {
        return Err(format!("not everything was swept: {report:?}").into());
    }
    if report.requests != counts.total() {
        return Err(format!("{} requests by our own count, {} outside", report.requests, counts.total()).into());
    }
    let mut figures = figures(&counts, expired, began);
    figures["opening"] = opening.into();
    Ok(figures)
}

/// Lists every record, reads each, and clears what has ended.
async fn naive(objects: InMemory, clock: &TestClock, expired: usize) -> Result<Value> {
    let (store, counts) = Counted::new(objects);
    let began = Instant::now();
    let (mut names, mut cleared) = (store.list(Some(&Path::from("default/meta"))), 0);
    while let Some(object) = names.try_next().await? {
        let found = store.get(&object.location).await?;
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let record = Sample::read(found.bytes().await?)?;
        if record.is_expired(clock.wall())? {
            let body = PutPayload::from_bytes(record.cleared(clock.wall()).encode()?);
            store.put_opts(&object.location, body, PutOptions::from(PutMode::Update(version))).await?;
            cleared += 1;
        }
    }
    if cleared != expired {
        return Err(format!("{cleared} were cleared").into());
    }
    Ok(figures(&counts, expired, began))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let expired = arguments.number("expired", 10_000)?;
    let page_size = arguments.number("page-size", 250)?;
    let live = arguments.text("live").unwrap_or("1000,10000,100000,1000000");
    let live = live.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut each = Vec::new();
    leasehold_benches::runtime()?.block_on(async {
        for live in live {
            let clock = TestClock::at(some_time());
            let objects = populate(&clock, expired, live).await?;
            let naive = naive(objects.fork(), &clock, expired).await?;
            let ours = ours(objects, &clock, expired, page_size).await?;
            each.extend(ours["requests_per_swept"].as_f64());
            println!(
                "{}",
                json!({"figure": "sweep", "expired": expired, "live": live, "page_size": page_size, "ours": ours, "full_scan": naive})
            );
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    let most = each.iter().copied().fold(0., f64::max);
    let spread = most / least - 1.;
    println!("{}", json!({"figure": "sweep_spread", "least": least, "most": most, "spread_percent": spread * 100.}));
    match spread <= 0.02 {
        true => Ok(()),
        false => Err("requests per swept entry depend on the live keys".into()),
    }
}
