//! Three nodes choose a leader, and another one when it steps down: `cargo run --example leader_election`.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use futures_util::StreamExt;
use leasehold::{
    Clock, Key, Leases, Store, SystemClock,
    lease::{Campaign, Election},
};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());

    // Somebody who only wants to know who leads. It reads now and then, and writes nothing.
    let observer = election(&Store::open(&url).await?.leases("default")?, "observer")?;
    let watching = tokio::spawn(async move {
        let mut leaders = observer.observe();
        while let Some(leader) = leaders.next().await {
            match leader {
                Ok(Some(leader)) => println!("      observer: {} leads, fence {}", leader.owner, leader.fence),
                Ok(None) => println!("      observer: nobody leads"),
                Err(error) => println!("      observer: {error}"),
            }
        }
    });

    // Each opens the store for itself, as three processes would.
    let mut nodes = Vec::new();
    for name in ["anna", "bert", "cleo"] {
        let leases = Store::open(&url).await?.leases("default")?;
        nodes.push(tokio::spawn(async move { node(&election(&leases, name)?, name).await }));
    }
    for node in nodes {
        node.await??;
    }
    watching.abort();
    Ok(())
}

fn election(leases: &Leases, candidate: &str) -> leasehold::Result<Election> {
    // A leader that dies is followed by another one after this, and a second for clocks that differ.
    leases.election(&Key::new("scheduler")?, candidate, Duration::from_secs(5))
}

/// Leads once, for a while.
async fn node(election: &Election, name: &str) -> leasehold::Result<()> {
    let clock = SystemClock::new();
    loop {
        match election.campaign(Duration::from_secs(1)).await? {
            Campaign::Leader(leadership) => {
                println!("{name}: I lead");
                // Stop leading when it is lost, and hand the fence to what is led: see the example fenced_write.
                tokio::select! {
                    () = clock.sleep(Duration::from_millis(700)) => {}
                    _ = leadership.lost() => {
                        println!("{name}: I lost it");
                        continue;
                    }
                }
                println!("{name}: I step down");
                return leadership.resign().await;
            }
            Campaign::Follower(Some(leader)) => println!("{name}: I follow {}", leader.owner),
            Campaign::Follower(None) => println!("{name}: nobody leads yet"),
        }
    }
}
