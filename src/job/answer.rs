//! How an attempt ends: what its process said, and what the queue made of it.

use super::{
    apply::{Op, Outcome, Stale},
    committer::Shard,
    ledger::SessionId,
};
use crate::{Error, Fence, Result, clock::Timestamp};
use futures_util::future::{BoxFuture, try_join_all};
use serde::Serialize;
use std::{collections::BTreeMap, fmt, sync::Arc};
use tokio::sync::oneshot;

/// What has become of an attempt that its process has answered for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
#[must_use = "an attempt that is stale has changed nothing"]
#[non_exhaustive]
pub enum AttemptEnd {
    /// The job has ended. `late`: the attempt had been taken away, and nobody had claimed the job since.
    Finished {
        /// It had been taken away.
        late: bool,
    },
    /// The job waits and will run again.
    Waits {
        /// Not before this, by the store's clock.
        #[serde(rename = "due_ms")]
        until: Timestamp,
    },
    /// The job goes to the dead letters.
    Dead,
    /// A cancel came before: the job has ended as cancelled.
    Cancelled,
    /// This attempt has been answered for before; that stands.
    AnsweredBefore,
    /// The attempt is over, and what was said changes nothing.
    Stale(StaleAttempt),
}

/// Who has a job whose attempt is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StaleAttempt {
    /// Another attempt runs.
    Running {
        /// How its process calls itself.
        owner: String,
        /// Since when, by the store's clock.
        #[serde(rename = "since_ms")]
        since: Timestamp,
        /// Its fence, higher than the one of this attempt.
        fence: Fence,
    },
    /// It waits to be claimed again.
    Waiting,
    /// It has ended, is being buried or moved, or was set aside: look it up.
    Gone,
}

impl fmt::Display for StaleAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { owner, since, fence } => write!(f, "{owner} runs it since {since} (fence {fence})"),
            Self::Waiting => f.write_str("it waits to be claimed again"),
            Self::Gone => f.write_str("it has ended or moved on"),
        }
    }
}

impl From<&Stale> for StaleAttempt {
    fn from(stale: &Stale) -> Self {
        match stale {
            Stale::Held { owner, since, fence, session } => {
                Self::Running { owner: name(owner, *session), since: *since, fence: *fence }
            }
            Stale::Waiting => Self::Waiting,
            Stale::Gone => Self::Gone,
        }
    }
}

fn name(owner: &str, session: SessionId) -> String {
    if owner.is_empty() { format!("{session:?}") } else { owner.to_owned() }
}

/// What an outcome means to whoever answered.
fn end(outcome: &Outcome) -> Result<AttemptEnd> {
    Ok(match outcome {
        Outcome::Ended { late } => AttemptEnd::Finished { late: *late },
        Outcome::Waits { due } => AttemptEnd::Waits { until: Timestamp::from_millis(*due) },
        Outcome::Buried => AttemptEnd::Dead,
        Outcome::CancelledInstead => AttemptEnd::Cancelled,
        Outcome::AnsweredBefore => AttemptEnd::AnsweredBefore,
        Outcome::StaleAttempt(stale) => AttemptEnd::Stale(stale.into()),
        Outcome::Done => AttemptEnd::Finished { late: false },
        other => {
            return Err(Error::unavailable(format!("the ledger cannot take this answer now ({other:?}): try again")));
        }
    })
}

/// An answer that is on its way. Dropping it changes nothing: the answer stays queued.
#[must_use = "await it to know whether the answer was accepted"]
pub struct Answering {
    shard: Arc<Shard>,
    told: oneshot::Receiver<Result<Vec<Outcome>>>,
}

impl Answering {
    pub(crate) fn new(shard: Arc<Shard>, told: oneshot::Receiver<Result<Vec<Outcome>>>) -> Self {
        Self { shard, told }
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

impl IntoFuture for Answering {
    type Output = Result<AttemptEnd>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let outcomes = self.shard.wait_for(self.told, "answered").await?;
            outcomes.first().map_or_else(|| Err(Error::unknown("the answer got no outcome: look at the job")), end)
        })
    }
}

/// One answer among many.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) shard: Arc<Shard>,
    pub(crate) op: Op,
}

/// Answers for jobs of one shard, and their places among all.
type OfShard = (Arc<Shard>, Vec<Op>, Vec<usize>);

/// Queues many answers, one commit for each shard, and waits for all of them.
pub(crate) async fn answer_all(all: Vec<Asked>) -> Result<Vec<AttemptEnd>> {
    let count = all.len();
    let mut by_shard: BTreeMap<usize, OfShard> = BTreeMap::new();
    for (place, Asked { shard, op }) in all.into_iter().enumerate() {
        let key = Arc::as_ptr(&shard) as usize;
        let (_, ops, places) = by_shard.entry(key).or_insert_with(|| (shard, Vec::new(), Vec::new()));
        ops.push(op);
        places.push(place);
    }
    let told = by_shard.into_values().map(|(shard, ops, places)| {
        // Queued before anything is awaited.
        let told = shard.answer(ops, Vec::new());
        async move { shard.wait_for(told, "answered").await.map(|outcomes| (places, outcomes)) }
    });
    let told: Vec<_> = told.collect();
    let mut ends: Vec<Option<AttemptEnd>> = vec![None; count];
    for (places, outcomes) in try_join_all(told).await? {
        for (place, outcome) in places.into_iter().zip(&outcomes) {
            ends[place] = Some(end(outcome)?);
        }
    }
    let missing = || Error::unknown("an answer got no outcome: look at the job");
    ends.into_iter().map(|end| end.ok_or_else(missing)).collect()
}
