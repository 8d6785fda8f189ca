//! Jobs that another system runs, tracked so that none is lost with its process: `cargo run --example tracker`.
//!
//! A list stands for the other system: Sidekiq's Redis, a table of cron jobs, a spool folder.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    CancellationToken, Clock, Store, SystemClock,
    job::{NewTracked, RecoveredJob},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

/// An id, a payload, and how often the job was interrupted.
type Spool = Arc<Mutex<VecDeque<(String, String, u32)>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = Store::open(&format!("file://{}", folder.path().display())).await?;
    let tracker = store.queue("imports")?.tracker();
    let spool: Spool = Arc::default();
    let take = || spool.lock().map_or(None, |mut spool| spool.pop_front());
    for number in 1..=3 {
        if let Ok(mut spool) = spool.lock() {
            spool.push_back((format!("import:{number}"), format!("file-{number}.csv"), 0));
        }
    }

    // Somewhere in the fleet, always: what the dead had in hand goes back to the other system.
    let (stop, target) = (CancellationToken::new(), Arc::clone(&spool));
    let duty =
        tracker.recovery().max_age(Duration::from_secs(86_400)).shutdown(stop.clone()).run(move |job: RecoveredJob| {
            let payload = String::from_utf8_lossy(&job.payload()).into_owned();
            println!("{} was interrupted: back it goes", job.id());
            if let Ok(mut spool) = target.lock() {
                spool.push_back((job.id().to_owned(), payload, job.interruptions()));
            }
            std::future::ready(())
        });

    // A process that takes two jobs, finishes one, and has to go while the other one runs.
    let mut begun = Vec::new();
    for _ in 0..2 {
        let Some((id, payload, before)) = take() else { continue };
        begun.extend(tracker.begin_many([NewTracked::new(id, payload).interruptions(before)]).await?);
    }
    for shown in tracker.in_flight(10).await? {
        println!("{} is in the hands of {} since {}, fence {}", shown.id, shown.owner, shown.since, shown.fence);
    }
    if let Some(tracked) = begun.pop() {
        println!("{} is done: {:?}", tracked.id().to_owned(), tracked.finish().await?);
    }
    drop(begun); // handed back, as a shutdown does; after a crash it would take the session's time to live

    // The next one finishes everything.
    let mut done = 1;
    while done < 3 {
        let Some((id, payload, before)) = take() else {
            SystemClock::new().sleep(Duration::from_millis(100)).await;
            continue;
        };
        let tracked = tracker.begin_many([NewTracked::new(id, payload).interruptions(before)]).await?;
        for tracked in tracked {
            println!("{} is done, interrupted {before} times", tracked.id());
            let _ = tracked.finish().await?;
            done += 1;
        }
    }
    stop.cancel();
    duty.await;
    Ok(())
}
