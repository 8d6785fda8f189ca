//! What can be said of the keys of a queue: limits, what holds them up, and who has a unique key.

use super::{
    apply::{Op, Outcome},
    core::Core,
    id::JobId,
    segment::{LONGEST_TEXT, key_hash, unique_hash},
};
use crate::{Error, Result};
use serde::Serialize;
use std::sync::Arc;

/// The limit of one key, where it is not the queue's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyLimit {
    /// The key.
    pub key: String,
    /// How many of its jobs may run at once; 0 holds all of them back.
    pub most: u32,
}

/// The keys of a queue: how many jobs of one key may run at once, and which job has a unique key.
///
/// All jobs of a key are in one shard, whose ledger counts how many of them run: a limit is exact, also while processes
/// die, and a changed one holds from the commit that changes it. What runs already is not stopped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::NewJob;
///
/// let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("imports")?;
/// queue.keys().set_limit("customer-7", 1).await?;
/// queue.enqueue(NewJob::new("first").key("customer-7")).await?;
/// queue.enqueue(NewJob::new("second").key("customer-7")).await?;
/// let running = queue.claim(10).await?;
/// assert_eq!(running.len(), 1, "one at a time, in order");
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Keys {
    core: Arc<Core>,
}

impl Keys {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    async fn ask(&self, key: &str, op: Op) -> Result<Outcome> {
        if key.is_empty() || key.len() > LONGEST_TEXT {
            return Err(Error::invalid(format!("a key has 1 to {LONGEST_TEXT} bytes")));
        }
        let shard = self.core.settings().await?.shard_of(key.as_bytes());
        let outcomes = self.core.shard(shard).ask(vec![op]).await?;
        // What was held up may run now.
        self.core.news.notify_waiters();
        match outcomes.into_iter().next() {
            Some(Outcome::Full(_)) => {
                Err(Error::unavailable("too many keys of this shard have a limit of their own: clear some first"))
            }
            Some(outcome) => Ok(outcome),
            None => Err(Error::unknown(format!("nothing is known of key {key:?}"))),
        }
    }

    /// How many jobs of this key may run at once, whatever the queue says. One commit, from which on it holds. With 0 none
    /// is started.
    pub async fn set_limit(&self, key: impl AsRef<str>, most: u32) -> Result<()> {
        let key = key.as_ref();
        self.ask(key, Op::Limit { key: key_hash(key), name: key.into(), most: Some(most) }).await.map(drop)
    }

    /// The key goes by the queue's [`key_limit`](super::QueueSettings::key_limit) again.
    pub async fn clear_limit(&self, key: impl AsRef<str>) -> Result<()> {
        let key = key.as_ref();
        self.ask(key, Op::Limit { key: key_hash(key), name: key.into(), most: None }).await.map(drop)
    }

    /// Keys with a limit of their own, by name. One read for each shard.
    pub async fn limits(&self) -> Result<Vec<KeyLimit>> {
        let shards = self.core.settings().await?.record().key_shards;
        let mut all = Vec::new();
        for number in 0..shards {
            let seen = self.core.shard(u8::try_from(number).unwrap_or(u8::MAX)).look().await?;
            let limits = seen.record().limits.iter();
            all.extend(limits.map(|limit| KeyLimit { key: limit.name.as_ref().to_owned(), most: limit.most }));
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// Lets the jobs of a key that wait for their next attempt, or are paused after one, run now: with a limit of 1 they hold up whatever
    /// stands behind them. How many.
    pub async fn unblock(&self, key: impl AsRef<str>) -> Result<u32> {
        let key = key.as_ref();
        match self.ask(key, Op::Unblock { key: key_hash(key) }).await? {
            Outcome::Unblocked { jobs } => Ok(jobs),
            _ => Ok(0),
        }
    }

    /// The job that has a unique key now, so that another one would be dropped; `key` is the key of that job, if it has
    /// one too. One read, and best effort: whether a job is a duplicate is decided when it is taken in.
    pub async fn unique_holder(&self, unique_key: impl AsRef<str>, key: Option<&str>) -> Result<Option<JobId>> {
        let unique = unique_key.as_ref();
        let shard = self.core.settings().await?.shard_of(key.unwrap_or(unique).as_bytes());
        let seen = self.core.shard(shard).look().await?;
        let ledger = seen.record();
        let hash = unique_hash(key, unique);
        let Some(taken) = ledger.unique.iter().find(|taken| taken.hash == hash) else { return Ok(None) };
        let backend = self.core.backend();
        let now = backend.store_time().unwrap_or_else(|| backend.clock.wall()).as_millis();
        let period = i64::try_from(ledger.policy.unique_period.as_millis()).unwrap_or(i64::MAX);
        let held = taken.ended.is_none_or(|ended| now < ended.saturating_add(period));
        let job = taken.first.unwrap_or(taken.job);
        Ok(held.then(|| job.segment.job(job.index)))
    }
}
