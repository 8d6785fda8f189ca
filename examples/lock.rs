//! A lock that two workers of one machine share through a folder: `cargo run --example lock`.
//!
//! With `s3://bucket` in place of the folder the same code works between machines.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    Clock, Key, Leases, Store, SystemClock,
    lease::{Locked, Request},
};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());

    // Each opens the store for itself, as two processes would.
    let one = Store::open(&url).await?.leases("default")?;
    let two = Store::open(&url).await?.leases("default")?;
    let (one, two) = tokio::join!(work(one, "one"), work(two, "two"));
    one?;
    two?;
    Ok(())
}

async fn work(leases: Leases, name: &str) -> leasehold::Result<()> {
    let clock = SystemClock::new();
    let key = Key::new("reports/monthly")?;
    // The lease ends by itself ten seconds after its holder has died. Until then it is renewed for us.
    let request = Request::new(Duration::from_secs(10))?.owner(name)?.note("building the report")?;

    for round in 1..=3 {
        let guard = match leases.lock(&key, &request, Duration::from_secs(30)).await? {
            Locked::Granted(guard) => guard,
            Locked::Held(held) => {
                println!("{name}: gave up, it is held by {:?}", held.by.map(|holder| holder.owner));
                return Ok(());
            }
        };
        println!("{name}: has the lock for round {round}, with fence {}", guard.fence());

        // Work until it is done or the lease is lost: the network may be down for longer than the lease lasts.
        tokio::select! {
            () = clock.sleep(Duration::from_millis(200)) => println!("{name}: done"),
            loss = guard.lost() => {
                println!("{name}: stopped, the lock was lost to {:?}", loss.taken_by.map(|holder| holder.owner));
                return Ok(());
            }
        }

        // Dropping the guard would do as well; this says whether it worked.
        guard.release().await?;
    }
    Ok(())
}
