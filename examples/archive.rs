//! Writes an archive into a directory: `cargo run --example archive -- /some/folder`, or into memory without one.
//!
//! `tests/archive/duckdb` reads it with DuckDB, as `docs/STREAMS.md` shows.

#![allow(clippy::print_stdout, reason = "an example tells what it does")]

use leasehold::{
    Result, Store,
    archive::{ArchiveSettings, Days},
    stream::{Draft, Retention, StreamSettings},
};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).map_or("memory://".to_owned(), |folder| format!("file://{folder}"));
    let store = Store::open(url).await?;

    // Kept for a week, and copied to the domain `audit` before that.
    let week = Retention::of_age(Duration::from_secs(7 * 24 * 3600));
    let audit = store.stream("events.audit")?;
    audit.configure(StreamSettings::default().retention(week).archive("audit")).await?;
    for batch in 0..25 {
        let event = |n: u32| Draft::new("events.audit.login", format!(r#"{{"user":"user-{n}","batch":{batch}}}"#));
        audit.publish_many((0..100).map(event)).await?;
    }

    let mut settings = ArchiveSettings::default();
    settings.days = Days::Hive;
    let mut archiver = store.archiver("audit", settings)?;
    let report = archiver.flush().await?;
    for file in &report.files {
        println!("{}: {} messages", file.destination, file.count);
    }
    let verified = archiver.verify().await?;
    println!("{} messages in {} files, {} problems", verified.messages, verified.files, verified.problems.len());
    Ok(())
}
