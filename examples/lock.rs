//! A lock that two workers of one machine share through a folder: `cargo run --example lock`.
//!
//! With `s3://bucket` in place of the folder the same code works between machines.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{Clock, ErrorKind, Store, SystemClock};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());

    // Each opens the store for itself, as two processes would.
    let (one, two) = tokio::join!(work(&url, "one"), work(&url, "two"));
    one?;
    two?;
    Ok(())
}

async fn work(url: &str, name: &str) -> leasehold::Result<()> {
    let store = Store::open(url).await?;
    for round in 1..=3 {
        // The lease ends by itself ten seconds after its holder has died. Until then it is renewed for us.
        let lock = store.lock("reports/monthly").ttl(Duration::from_secs(10)).owner(name).note("building the report");
        let guard = match lock.within(Duration::from_secs(30)).await {
            Err(error) if error.kind() == ErrorKind::Held => {
                println!("{name}: gave up, {error}");
                return Ok(());
            }
            locked => locked?,
        };
        println!("{name}: has the lock for round {round}, with fence {}", guard.fence());

        // Until it is done or the lease is lost: the network may be down for longer than the lease lasts.
        guard.run(SystemClock::new().sleep(Duration::from_millis(200))).await?;
        println!("{name}: done");

        // Dropping the guard would do as well; this says whether it worked.
        guard.release().await?;
    }
    Ok(())
}
