//! How many messages one process appends, reads and archives in a second: batches of 100 messages of 1 KB.
//!
//! `cargo run --release --example throughput -- file:///some/folder 100000`; into memory, and few, without arguments.

#![allow(clippy::print_stdout, reason = "an example tells what it does")]

use leasehold::{
    Clock as _, Result, Store, SystemClock,
    archive::ArchiveSettings,
    clock::Moment,
    stream::{Draft, Position, StreamSettings},
};

const BATCH: usize = 100;

fn say(what: &str, count: usize, began: Moment, store: &Store, before: u64) {
    let seconds = SystemClock::new().monotonic().since(began).as_secs_f64().max(1e-6);
    let requests = store.requests().total() - before;
    println!("{what}: {count} messages in {seconds:.2} s, {:.0} a second, {requests} requests", count as f64 / seconds);
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory://".to_owned());
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(2000);
    let store = Store::open(url).await?;
    let name = format!("throughput.{}", std::process::id());
    let stream = store.stream(name.as_str())?;
    stream.configure(StreamSettings::default().archive("throughput")).await?;
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(1013));

    let (began, before) = (SystemClock::new().monotonic(), store.requests().total());
    for _ in 0..count / BATCH {
        stream.publish_many((0..BATCH).map(|_| Draft::new("throughput.test", payload.clone()))).await?;
    }
    say("appended", count, began, &store, before);

    let (began, before, mut read) = (SystemClock::new().monotonic(), store.requests().total(), 0);
    let mut reader = stream.read(Position::Earliest).await?;
    while let Some(batch) = reader.next().await? {
        read += batch.messages.len();
    }
    say("read", read, began, &store, before);

    let (began, before) = (SystemClock::new().monotonic(), store.requests().total());
    let mut archiver = store.archiver("throughput", ArchiveSettings::default())?;
    let report = archiver.flush().await?;
    say("archived", report.files.iter().map(|file| file.count as usize).sum(), began, &store, before);
    Ok(())
}
