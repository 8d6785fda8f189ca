//! Why a lease is not enough, and what a fence is for: `cargo run --example fenced_write`.
//!
//! A holder is paused for longer than its lease lasts (a long collection of garbage, a closed lid, a stopped container).
//! Another one takes over and writes. Then the first wakes up in the middle of its work, with no idea that time has
//! passed. No lock service can stop it from writing. The resource can: it refuses a fence that is lower than one that
//! it has seen.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{Clock, Fence, Key, Store, SystemClock, lease::Request};
use std::time::Duration;

/// What the lease protects. In real life a database: `UPDATE … SET fence = $1 … WHERE fence <= $1`.
#[derive(Default)]
struct Account {
    balance: i64,
    highest: Option<Fence>,
}

impl Account {
    fn set(&mut self, balance: i64, fence: Fence) -> Result<(), String> {
        if let Some(highest) = self.highest.filter(|highest| fence < *highest) {
            return Err(format!("fence {fence} is older than {highest}"));
        }
        self.highest = Some(fence);
        self.balance = balance;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());
    let (clock, key) = (SystemClock::new(), Key::new("account/7")?);
    let mut account = Account::default();

    // The first holder reads the balance and computes. It is paused right after it has checked that it may go on: so
    // its lease is not renewed either, which is why this example takes no guard.
    let first = Store::open(&url).await?.leases("default")?;
    let request = Request::new(Duration::from_secs(1)).owner("first");
    let stale = first.acquire(&key, &request).await?.granted().ok_or("nobody else is here")?;
    let computed = account.balance + 10;
    println!("first:  granted with fence {}, may go on: {}", stale.fence(), stale.is_valid());
    println!("first:  paused …");

    // The second one waits until the lease has ended, and by a second more: clocks may differ.
    let second = Store::open(&url).await?.leases("default")?;
    let request = Request::new(Duration::from_secs(10)).owner("second");
    let waited = clock.monotonic();
    let grant = second.acquire_within(&key, &request, Duration::from_secs(10)).await?;
    let grant = grant.granted().ok_or("the lease did not end")?;
    println!("second: granted with fence {} after {:.1?}", grant.fence(), clock.monotonic().since(waited));
    account.set(account.balance + 500, grant.fence())?;
    println!("second: wrote {}", account.balance);

    // The first one wakes. It checked long ago, and writes what it has computed.
    match account.set(computed, stale.fence()) {
        Ok(()) => return Err("500 are lost: the fence was not checked".into()),
        Err(refused) => println!("first:  … goes on, and is refused: {refused}"),
    }
    println!("first:  had it asked again, it would have known: may go on: {}", stale.is_valid());
    println!("the balance is {}", account.balance);
    second.release(&grant).await?;
    Ok(())
}
