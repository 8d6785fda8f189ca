//! What is left for later: index entries that a sweep reads and deletes once their hour is over.
//!
//! Nobody wants to wait for that hour. Leases are made three hours ago by a clock that stands there, and swept by the real
//! one. Decisions are kept for a day, and the store's own clock counts for them too, so theirs goes on ahead.

use crate::{Result, TTL, Task, ready, wall};
use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Clock, Key, Store, SystemClock,
    decision::Decision,
    lease::{Acquired, Request},
    sweep::SweepOptions,
};
use leasehold_testkit::TestClock;
use serde_json::json;
use std::{sync::Arc, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn run(task: &Task) -> Result<serde_json::Value> {
    let store = if task.workload == "forgotten" { decided(task).await? } else { leased(task).await? };
    ready();
    let began = SystemClock::new().monotonic();
    let report = store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await?;
    Ok(json!({
        "operations": report.entries_deleted,
        "errors": report.failures,
        "seconds": SystemClock::new().monotonic().since(began).as_secs_f64(),
        "cleared": report.of("lease").cleared,
        "markers": report.of("decision").deleted,
    }))
}

/// Below a folder of its own: a sweep goes over everything that there is.
fn folder(task: &Task) -> String {
    format!("swept-{}-{}", task.workload, task.prefix)
}

/// The store with a clock that is moved by hand.
async fn at(task: &Task, clock: &TestClock) -> Result<Store> {
    let bare = task.handle(false)?;
    let store = Store::builder().object_store(bare).prefix(folder(task)).lists_in_order().shares_our_clock();
    Ok(store.clock(Arc::new(clock.clone())).open().await?)
}

async fn leased(task: &Task) -> Result<Store> {
    let then = at(task, &TestClock::at(wall().minus(3 * HOUR))).await?.leases("default")?;
    let request = Request::new(TTL).owner("bench").new_key();
    let names = (0..task.keys).map(|number| task.key(0, number));
    let made = stream::iter(names).map(|name| {
        let (then, request) = (&then, &request);
        async move {
            match then.acquire(&Key::new(&name)?, request).await? {
                Acquired::Granted(grant) if task.workload == "stale" => Ok(then.release(&grant).await?),
                Acquired::Granted(_) => Ok(()),
                Acquired::Held(_) => Err(format!("{name} is held").into()),
            }
        }
    });
    made.buffer_unordered(task.concurrency).collect::<Vec<Result<()>>>().await.into_iter().collect::<Result<()>>()?;
    let url = format!("s3://{}/{}?endpoint={}&region=us-east-1", task.bucket, folder(task), task.endpoint);
    Ok(Store::open(url).await?)
}

async fn decided(task: &Task) -> Result<Store> {
    let clock = TestClock::at(wall());
    let store = at(task, &clock).await?;
    let decisions = store.decisions().by("bench");
    let made = stream::iter(0..task.keys).map(|_| decisions.decide(decisions.begin(), Decision::Commit));
    made.buffer_unordered(task.concurrency).try_collect::<Vec<_>>().await?;
    clock.advance(27 * HOUR);
    Ok(store)
}
