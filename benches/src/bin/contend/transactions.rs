//! Transactions: one decides, then three others read what was decided, side by side.

use crate::{Raw, Result, Tally, Task, shape::DecisionShape, work};
use futures_util::future::try_join_all;
use leasehold::{
    Clock, Decisions, SystemClock,
    clock::Moment,
    decision::{Answer, Decided, Decision},
};
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use std::sync::Arc;

const PARTICIPANTS: usize = 3;

/// The coordinator first. Each has connections and a memory of its own, as processes would.
enum Way {
    Ours(Vec<Decisions>),
    /// The same writes and reads of the same bytes, without anything around them.
    Raw(Vec<Raw>, DecisionShape),
}

pub(crate) async fn run(task: &Arc<Task>) -> Result<serde_json::Value> {
    let way = match task.contender.as_str() {
        "ours" => {
            let mut all = Vec::new();
            for _ in 0..=PARTICIPANTS {
                all.push(task.store().await?.decisions().by("bench"));
            }
            Way::Ours(all)
        }
        "raw" => {
            let all = (0..=PARTICIPANTS).map(|_| task.raw()).collect::<Result<_>>()?;
            Way::Raw(all, DecisionShape::of().await?)
        }
        other => return Err(format!("{other} decides nothing").into()),
    };
    let way = Arc::new(way);
    let warm = (0..task.concurrency).map(|worker| way.transaction(format!("{}-warm-{worker:05}", task.prefix)));
    try_join_all(warm).await?;
    let run = |worker: usize, end: Moment| {
        let (task, way) = (Arc::clone(task), Arc::clone(&way));
        async move { way.run(&task, worker, end).await }
    };
    work((0..task.concurrency).collect(), run, task).await
}

impl Way {
    async fn run(&self, task: &Task, worker: usize, end: Moment) -> Tally {
        let clock = SystemClock::new();
        let mut tally = Tally::default();
        let mut turn = 0;
        loop {
            let began = clock.monotonic();
            if began >= end {
                return tally;
            }
            tally.add(began, self.transaction(task.key(worker, turn)).await.map(|()| true));
            turn += 1;
        }
    }

    async fn transaction(&self, name: String) -> Result<()> {
        match self {
            Self::Ours(all) => {
                let txn = all[0].begin();
                if all[0].decide(txn, Decision::Commit).await? != Decided::Decision(Decision::Commit) {
                    return Err(format!("{txn} was decided by somebody else").into());
                }
                let answers = try_join_all(all[1..].iter().map(|participant| participant.get(txn))).await?;
                match answers.iter().all(|answer| *answer == Answer::Committed) {
                    true => Ok(()),
                    false => Err(format!("{txn} was read as {answers:?}").into()),
                }
            }
            Self::Raw(all, shape) => {
                let (marker, entry) = (shape.marker.path("raw", &name), shape.entry.path("raw", &name));
                all[0].put(&entry, shape.entry.body(0)).await?;
                all[0].put_opts(&marker, shape.marker.body(0), PutOptions::from(PutMode::Create)).await?;
                let reads = all[1..].iter().map(async |participant| participant.get(&marker).await?.bytes().await);
                try_join_all(reads).await?;
                Ok(())
            }
        }
    }
}
