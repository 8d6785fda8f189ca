//! Jobs a second: enqueued by segments of 1,000, and worked down by one process with 500 handlers that do nothing.
//!
//! ```text
//! queue --url s3://bucket?endpoint=http://127.0.0.1:9000&region=us-east-1 | file:///some/folder | memory://
//!   --jobs 100000     how many in each round
//!   --each 1000       jobs of one call, and so of one segment
//!   --payload 200     bytes of arguments
//!   --handlers 500    tasks that run jobs
//!   --claims 4        claims that are under way at once, each of up to --most jobs
//!   --most 2000
//!   --shards 2
//!   --rounds 5
//! ```
//!
//! Prints one line of JSON for each round, and the medians. A round has a queue of its own. It is over when the end of the
//! last job is acknowledged by the store.

#![allow(clippy::disallowed_methods, reason = "measures real time")]
#![allow(clippy::print_stdout, reason = "prints figures")]

use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Queue, Settings, Store,
    job::{Job, NewJob},
};
use leasehold_benches::{Arguments, Result};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::mpsc;

/// Calls of a producer that are under way at once.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy)]
struct Load {
    jobs: usize,
    each: usize,
    payload: usize,
    handlers: usize,
    claims: usize,
    most: u32,
}

fn payload(length: usize, number: usize) -> String {
    let mut state = number as u64 | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state % 26) as u8)
    })
    .take(length)
    .collect()
}

async fn enqueue(queue: &Queue, load: Load) -> Result<Duration> {
    let calls: Vec<Vec<NewJob>> = (0..load.jobs / load.each)
        .map(|call| (0..load.each).map(|at| NewJob::new(payload(load.payload, call * load.each + at))).collect())
        .collect();
    let began = Instant::now();
    let sent = stream::iter(calls).map(|jobs| queue.enqueue_many(jobs).into_future()).buffer_unordered(AT_ONCE);
    let ids: Vec<_> = sent.try_collect().await?;
    let took = began.elapsed();
    match ids.iter().map(Vec::len).sum::<usize>() == load.jobs {
        true => Ok(took),
        false => Err("not all were enqueued".into()),
    }
}

/// Does nothing with each job, and says that it is done.
async fn handler(mut jobs: mpsc::Receiver<Job>, done: mpsc::UnboundedSender<leasehold::job::Answering>) {
    while let Some(job) = jobs.recv().await {
        std::hint::black_box(job.args());
        // Queued at once: it goes along with the next commit.
        let _ = done.send(job.finish());
    }
}

async fn claimer(
    queue: Queue,
    handlers: Arc<Vec<mpsc::Sender<Job>>>,
    load: Load,
    claimed: Arc<AtomicUsize>,
) -> Result<()> {
    let mut turn = 0;
    while claimed.load(Relaxed) < load.jobs {
        let jobs = queue.claim(load.most).within(Duration::from_millis(200)).await?;
        claimed.fetch_add(jobs.len(), Relaxed);
        for job in jobs {
            turn = (turn + 1) % handlers.len();
            handlers[turn].send(job).await.map_err(|_| "a handler is gone")?;
        }
    }
    Ok(())
}

async fn work_down(queue: &Queue, load: Load) -> Result<Duration> {
    let began = Instant::now();
    let (done, mut ends) = mpsc::unbounded_channel();
    let mut senders = Vec::new();
    for _ in 0..load.handlers {
        let (sender, jobs) = mpsc::channel(4);
        senders.push(sender);
        tokio::spawn(handler(jobs, done.clone()));
    }
    drop(done);
    let (handlers, claimed) = (Arc::new(senders), Arc::new(AtomicUsize::new(0)));
    let claimers: Vec<_> = (0..load.claims)
        .map(|_| tokio::spawn(claimer(queue.clone(), Arc::clone(&handlers), load, Arc::clone(&claimed))))
        .collect();
    drop(handlers);
    let mut finished = 0;
    while let Some(end) = ends.recv().await {
        if !end.await?.is_accepted() {
            return Err("an end was not accepted".into());
        }
        finished += 1;
    }
    for claimer in claimers {
        claimer.await??;
    }
    match finished == load.jobs {
        true => Ok(began.elapsed()),
        false => Err(format!("{finished} of {} jobs were finished", load.jobs).into()),
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    let load = Load {
        jobs: arguments.number("jobs", 100_000)?,
        each: arguments.number("each", 1000)?,
        payload: arguments.number("payload", 200)?,
        handlers: arguments.number("handlers", 500)?,
        claims: arguments.number("claims", 4)?,
        most: arguments.number("most", 2000)?,
    };
    let url = arguments.text("url").ok_or("--url says which store")?;
    let mut settings = Settings::default();
    settings.jobs.shards = arguments.number("shards", 2)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    for round in 0..arguments.number("rounds", 5)? {
        let store = Store::builder().url(url).settings(settings.clone()).open().await?;
        let queue = store.queue(format!("bench-{since}-{round}"))?;
        queue.settings().await?;
        let before = store.requests();
        let enqueuing = enqueue(&queue, load).await?;
        let enqueued = store.requests();
        let working = work_down(&queue, load).await?;
        let rate = |took: Duration| (load.jobs as f64 / took.as_secs_f64()).round();
        let made = store.requests().since(&enqueued);
        println!(
            "{}",
            json!({"round": round, "enqueued_per_second": rate(enqueuing), "worked_per_second": rate(working),
                "requests_to_enqueue": enqueued.since(&before).total(), "requests_to_work": made.total(),
                "kinds": format!("{made:?}")})
        );
        ins.push(rate(enqueuing));
        outs.push(rate(working));
        store.drain().await;
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.)
    };
    let (ins, outs) = (median(&mut ins), median(&mut outs));
    println!("{}", json!({"figure": "queue", "enqueued_per_second": ins, "worked_per_second": outs}));
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(&arguments))
}
