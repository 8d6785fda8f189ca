//! Jobs that a queue makes by itself: a schedule by an interval and one by a cron expression. Ends by itself after three
//! slots.
//!
//! ```sh
//! cargo run --example periodic
//! ```

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    Store,
    job::{NewJob, NewSchedule},
};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open("memory://").await?;
    let queue = store.queue("reports")?;
    let schedules = queue.schedules();

    // Every process may add them when it starts: what is there stays as it is, and each slot runs once.
    let beat = NewSchedule::every(Duration::from_secs(1), NewJob::new("still here").kind("beat"));
    schedules.add("beat", beat).await?;
    let nightly = NewSchedule::cron("0 3 * * *", "Europe/Berlin", NewJob::new("all").kind("report")).no_overlap();
    schedules.add("nightly", nightly).await?;
    for schedule in schedules.list().await? {
        println!("{}: next at {}", schedule.name, schedule.next[0]);
    }

    let mut beats = 0;
    while beats < 3 {
        for job in queue.claim(10).within(Duration::from_secs(5)).await? {
            println!("slot {:?}, made by {:?}", job.due_at(), job.caller_id());
            if job.finish().await?.is_accepted() {
                beats += 1;
            }
        }
    }
    schedules.remove("beat").await?;
    Ok(())
}
