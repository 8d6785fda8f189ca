//! What the requests of a queue cost on a store, before there is a queue: LIST of a folder with few live names from which
//! many have been deleted, a conditional write of a ledger, and the create of a segment.
//!
//! ```text
//! inbox --directory PATH                          the embedded store
//! inbox --bucket NAME --endpoint URL              an S3 server; credentials from the environment
//!   --name minio          what the line is called
//!   --deletes 100000      how many names are created and deleted in the folder before it is listed
//!   --patience 300        after so many seconds of it, fewer will do
//!   --rounds 30           how often each request is measured
//! ```
//!
//! Prints one line of JSON and the same as a row of a table. Medians, with the worst of the rounds; one request at a time,
//! except for "at once".

#![allow(clippy::disallowed_methods, reason = "measures real time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints figures")]

use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold_benches::{Arguments, Result};
use leasehold_testkit::LocalDirectory;
use object_store::{
    ClientOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion, aws::AmazonS3Builder, path::Path,
};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How many creates are under way at once, while the folder gets its past and where it is said.
const AT_ONCE: usize = 8;

/// How many names are in the folder before they are deleted together: what a bulk request takes.
const BATCH: usize = 1000;

struct Spike {
    store: Arc<dyn ObjectStore>,
    /// Of this run alone.
    folder: String,
    rounds: usize,
}

/// The median and the worst, in milliseconds.
fn times(mut took: Vec<Duration>) -> Value {
    took.sort_unstable();
    let millis = |at: usize| took.get(at).map_or(0., |time| (time.as_secs_f64() * 1e5).round() / 100.);
    json!({"median": millis(took.len() / 2), "worst": millis(took.len().saturating_sub(1))})
}

fn body(length: usize) -> PutPayload {
    // Nothing that a server could compress.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    PutPayload::from(bytes.take(length).collect::<Vec<u8>>())
}

impl Spike {
    /// As segments are named: by time, then at random, with their number of jobs.
    fn name(&self, number: usize) -> Path {
        let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Path::from(format!("{}/in/00/1/{:012x}{mixed:016x}0000-1000", self.folder, 0x0198_0000_0000 + number))
    }

    async fn create(&self, number: usize, body: PutPayload) -> Result<()> {
        self.store.put_opts(&self.name(number), body, PutOptions::from(PutMode::Create)).await?;
        Ok(())
    }

    async fn create_many(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        stream::iter(numbers).map(Ok).try_for_each_concurrent(AT_ONCE, |number| self.create(number, body(100))).await
    }

    async fn delete_many(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        let names = numbers.map(|number| Ok(self.name(number))).collect::<Vec<_>>();
        self.store.delete_stream(stream::iter(names).boxed()).try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// LIST of the folder from its start.
    async fn list(&self, live: usize) -> Result<Value> {
        let folder = Path::from(format!("{}/in/00", self.folder));
        let mut took = Vec::new();
        for _ in 0..self.rounds {
            let began = Instant::now();
            let found = self.store.list(Some(&folder)).try_collect::<Vec<_>>().await?.len();
            took.push(began.elapsed());
            if found != live {
                return Err(format!("{found} names are listed, and {live} are there").into());
            }
        }
        Ok(times(took))
    }

    /// LIST of 10, 100 and 1,000 live names, which are gone afterwards.
    async fn lists(&self, from: usize) -> Result<Value> {
        let (mut lists, mut there) = (serde_json::Map::new(), 0);
        for live in [10, 100, 1000] {
            self.create_many(from + there..from + live).await?;
            there = live;
            lists.insert(live.to_string(), self.list(live).await?);
        }
        self.delete_many(from..from + there).await?;
        lists.insert("0".into(), self.list(0).await?);
        Ok(lists.into())
    }

    /// Names come and go. Returns how many, and the rate of creates.
    async fn wear(&self, from: usize, deletes: usize, patience: Duration) -> Result<(usize, f64)> {
        let (began, mut done, mut creating) = (Instant::now(), 0, Duration::ZERO);
        while done < deletes && began.elapsed() < patience {
            let batch = from + done..from + done + BATCH.min(deletes - done);
            let round = Instant::now();
            self.create_many(batch.clone()).await?;
            creating += round.elapsed();
            done += batch.len();
            self.delete_many(batch).await?;
        }
        Ok((done, done as f64 / creating.as_secs_f64().max(f64::EPSILON)))
    }

    /// Conditional writes of one object, one after another, as a ledger's owner makes them.
    async fn swap(&self, length: usize) -> Result<Value> {
        let name = Path::from(format!("{}/ledger/{length}.pb", self.folder));
        let (body, mut took) = (body(length), Vec::new());
        let mut last = self.store.put_opts(&name, body.clone(), PutOptions::from(PutMode::Create)).await?;
        for _ in 0..self.rounds * 5 {
            let version = UpdateVersion { e_tag: last.e_tag.take(), version: last.version.take() };
            let began = Instant::now();
            last = self.store.put_opts(&name, body.clone(), PutOptions::from(PutMode::Update(version))).await?;
            took.push(began.elapsed());
        }
        Ok(times(took))
    }

    /// Creates of segments: one by one, and several at once.
    async fn segments(&self, from: usize, length: usize) -> Result<Value> {
        let (body, mut took) = (body(length), Vec::new());
        for number in from..from + self.rounds {
            let began = Instant::now();
            self.create(number, body.clone()).await?;
            took.push(began.elapsed());
        }
        let (more, began) = (from + self.rounds..from + self.rounds * 6, Instant::now());
        let creates = stream::iter(more.clone()).map(Ok);
        creates.try_for_each_concurrent(AT_ONCE, |number| self.create(number, body.clone())).await?;
        let rate = more.len() as f64 / began.elapsed().as_secs_f64();
        self.delete_many(from..more.end).await?;
        let mut segments = times(took);
        segments["per_second_at_once"] = rate.round().into();
        Ok(segments)
    }

    async fn run(&self, deletes: usize, patience: Duration) -> Result<Value> {
        let fresh = self.lists(0).await?;
        let (deleted, rate) = self.wear(2000, deletes, patience).await?;
        let from = 2000 + deleted;
        Ok(json!({
            "fresh": fresh, "deleted": deleted, "creates_of_100_bytes_per_second_at_once": rate.round(),
            "worn": self.lists(from).await?,
            "swap_64_kib": self.swap(64 << 10).await?,
            "swap_4_kib": self.swap(4 << 10).await?,
            "create_400_kib": self.segments(from + 2000, 400 << 10).await?,
            "create_4_kib": self.segments(from + 4000, 4 << 10).await?,
        }))
    }
}

fn store(arguments: &Arguments) -> Result<Arc<dyn ObjectStore>> {
    if let Some(path) = arguments.text("directory") {
        return Ok(Arc::new(LocalDirectory::open(path)?));
    }
    let (Some(bucket), Some(endpoint)) = (arguments.text("bucket"), arguments.text("endpoint")) else {
        return Err("--directory PATH, or --bucket NAME and --endpoint URL".into());
    };
    let options = ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(30));
    let builder = AmazonS3Builder::from_env().with_endpoint(endpoint).with_region("us-east-1");
    Ok(Arc::new(builder.with_bucket_name(bucket).with_client_options(options).build()?))
}

fn row(name: &str, found: &Value) -> String {
    let cell = |at: &Value| format!("{} ({})", at["median"], at["worst"]);
    let lists = |of: &Value| ["10", "100", "1000"].map(|live| cell(&of[live])).join(" | ");
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} |",
        found["deleted"],
        lists(&found["fresh"]),
        lists(&found["worn"]),
        cell(&found["swap_64_kib"]),
        cell(&found["create_400_kib"]),
        found["create_400_kib"]["per_second_at_once"],
    )
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let name = arguments.text("name").unwrap_or("store").to_owned();
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let spike =
        Spike { store: store(&arguments)?, folder: format!("inbox-{since}"), rounds: arguments.number("rounds", 30)? };
    let (deletes, patience) = (arguments.number("deletes", 100_000)?, arguments.number("patience", 300)?);
    let runtime = leasehold_benches::runtime()?;
    let found = runtime.block_on(spike.run(deletes, Duration::from_secs(patience)))?;
    println!("{}", json!({"figure": "inbox", "store": name, "found": found}));
    println!("{}", row(&name, &found));
    Ok(())
}
