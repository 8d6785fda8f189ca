//! A worker with a handler for each kind of job, and a graceful shutdown: `cargo run --example worker`.
//!
//! With `s3://bucket` in place of the folder any number of machines share the work.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    CancellationToken, Store,
    job::{JobContext, JobOutcome, NewJob, typed, with_state},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

#[derive(serde::Deserialize)]
struct Welcome {
    to: String,
}

/// Typed: the arguments are read from JSON. An error is a failed attempt, and the queue decides when the next one is.
async fn welcome(job: JobContext, args: Welcome) -> Result<(), String> {
    if job.attempt() == 1 && args.to.starts_with("ben") {
        return Err("the mail server is busy".to_owned());
    }
    println!("welcome, {} (attempt {}, fence {})", args.to, job.attempt(), job.fence());
    Ok(())
}

/// Raw, with state that all jobs share. What must stop when the worker does listens to the job's token.
async fn report(job: JobContext, reports: Arc<AtomicU32>) -> JobOutcome {
    let pages = tokio::task::spawn_blocking(|| 3);
    tokio::select! {
        pages = pages => println!("a report of {} pages about {:?}", pages.unwrap_or(0), job.args()),
        () = job.cancelled() => return JobOutcome::Cancelled,
    }
    reports.fetch_add(1, SeqCst);
    JobOutcome::Done
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = Store::open(&format!("file://{}", folder.path().display())).await?;
    let (emails, reports) = (store.queue("emails")?, store.queue("reports")?);
    for to in ["ann", "ben", "cleo"] {
        emails.enqueue(NewJob::new(format!(r#"{{"to":"{to}@example.org"}}"#)).kind("welcome")).await?;
    }
    reports.enqueue_many((1..=3).map(|month| NewJob::new(format!("month {month}")).kind("report"))).await?;

    let (stop, written) = (CancellationToken::new(), Arc::new(AtomicU32::new(0)));
    let worker = emails
        .worker()
        .weight(3) // three of four slots, while both have something to do
        .also(&reports, 1)
        .concurrency(4)
        .on("welcome", typed(welcome))
        .on("report", with_state(Arc::clone(&written), report))
        .timeout(Duration::from_secs(30))
        .shutdown(stop.clone()) // usually cancelled by SIGTERM
        .start();

    // Ben's second attempt comes about a second after the first.
    loop {
        let (left, more) = (emails.depth().await?, reports.depth().await?);
        if left == Default::default() && more == Default::default() {
            break;
        }
        println!("{}", worker.health().reason);
        leasehold::Clock::sleep(&leasehold::SystemClock::new(), Duration::from_millis(300)).await;
    }
    stop.cancel();
    worker.await; // everything is answered for
    println!("{} reports were written", written.load(SeqCst));
    Ok(())
}
