//! What an operator does to a queue: pause it or one of its jobs, run a job now, end everything that waits.

use super::{
    apply::{Op, Outcome},
    committer::{Taking, take_in},
    core::Core,
    dead::DeadFilter,
    id::JobId,
    inbox::{Age, unknown},
    info::{Where, locate, read, table},
    layout::{Listed, SegmentName},
    ledger::JobRef,
    settings::QueueSettings,
};
use crate::{Error, Result, clock::Timestamp};
use futures_util::future::BoxFuture;
use serde::Serialize;
use std::sync::Arc;

/// How often a job that moves is looked for.
const TRIES: u32 = 3;
/// Names that one commit discards at the most.
const PAGE: usize = 1000;

/// What became of a change to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[must_use = "a job that runs is not changed"]
#[non_exhaustive]
pub enum JobChange {
    /// It is as was asked.
    Done,
    /// It was so before.
    Unchanged,
    /// It runs: nothing was changed.
    Running,
    /// It has ended before.
    AlreadyEnded,
    /// Neither a ledger, nor the inbox, nor, where that matters, the dead letters have it.
    NotFound,
}

/// Changes the settings of the queue, and returns when every ledger goes by them.
pub(crate) async fn change_settings(
    core: &Arc<Core>,
    change: impl Fn(&QueueSettings) -> QueueSettings,
) -> Result<QueueSettings> {
    let known = core.change_settings(change).await?;
    // What must hold at once is in every ledger before this is answered.
    for shard in 0..known.record().shards_ever {
        core.shard(u8::try_from(shard).unwrap_or(u8::MAX)).ask(Vec::new()).await?;
    }
    Ok(known.record().settings.clone())
}

pub(crate) async fn pause(core: &Arc<Core>, paused: bool, until: Option<Timestamp>) -> Result<()> {
    let change = |settings: &QueueSettings| QueueSettings { paused, paused_until: until, ..settings.clone() };
    change_settings(core, change).await?;
    core.news.notify_waiters();
    Ok(())
}

/// What is done to one job that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Pause,
    Resume,
    RunNow,
}

impl Verb {
    fn op(self, job: JobRef) -> Op {
        match self {
            Self::Pause => Op::Pause { job, paused: true },
            Self::Resume => Op::Pause { job, paused: false },
            Self::RunNow => Op::RunNow { job },
        }
    }
}

pub(crate) async fn change_job(core: &Arc<Core>, id: JobId, verb: Verb) -> Result<JobChange> {
    let shard = core.shard(id.segment().shard());
    for _ in 0..TRIES {
        let (job, opened) = match locate(core, id).await? {
            Where::Nowhere => return Ok(JobChange::NotFound),
            Where::Inbox(name) if id.index() >= name.jobs => return Ok(JobChange::NotFound),
            Where::Inbox(name) => {
                let age = Age::now(core.backend());
                let Some(loaded) = read(core, &name).await? else { continue };
                // It may not be taken in before its transaction is committed.
                if loaded.table.txn.is_some() {
                    return Err(Error::unavailable(format!(
                        "job {id} waits for its transaction to be decided: try again when workers have taken it in"
                    )));
                }
                take_in(&shard, name, age, Taking::Loaded(Arc::clone(&loaded)));
                // Taken in by the first commit: the next one finds it.
                shard.ask(Vec::new()).await?;
                (JobRef::from(id), Some(loaded))
            }
            Where::Ledger(seen, job, found) => match found {
                super::apply::Found::Unread => (job, table(core, seen.record(), job.segment).await?),
                _ => (job, None),
            },
        };
        let open = opened.map(|loaded| Op::OpenOne { index: job.index, facts: Arc::clone(&loaded.facts) });
        let ops: Vec<Op> = open.into_iter().chain([verb.op(job)]).collect();
        let outcomes = shard.ask(ops).await?;
        match outcomes.last() {
            Some(Outcome::Done) => {
                core.news.notify_waiters();
                return Ok(JobChange::Done);
            }
            Some(Outcome::Nothing) => return Ok(JobChange::Unchanged),
            Some(Outcome::NotFound) => {
                let found = match locate(core, id).await? {
                    Where::Ledger(_, _, found) => found,
                    _ => continue,
                };
                match found {
                    super::apply::Found::Running { .. } => return Ok(JobChange::Running),
                    super::apply::Found::Waiting { .. } | super::apply::Found::Unread => {}
                    _ => return Ok(JobChange::AlreadyEnded),
                }
            }
            // It has moved, or was opened by nobody yet.
            Some(Outcome::Elsewhere | Outcome::ReadFirst) => {}
            _ => return Err(Error::unknown(format!("whether job {id} was changed is not known: look at it"))),
        }
    }
    Err(Error::unavailable(format!("job {id} moves too fast, or its shard is full: try again")))
}

/// A job that waits for its time, or is dead, runs now.
pub(crate) async fn retry(queue: &super::Queue, id: JobId) -> Result<JobChange> {
    match change_job(&queue.core, id, Verb::RunNow).await? {
        JobChange::NotFound | JobChange::AlreadyEnded => {}
        change => return Ok(change),
    }
    let redriven = queue.dead().redrive(DeadFilter::id(id)).await?;
    Ok(if redriven.jobs > 0 { JobChange::Done } else { JobChange::NotFound })
}

/// What a purge has ended, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[must_use = "a purge may leave something"]
#[non_exhaustive]
pub struct Purged {
    /// Jobs.
    pub jobs: u64,
    /// The ledgers had no room for more at once: call again in a minute or two for the rest.
    pub more: bool,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// Ends everything that waits; made when it is awaited.
///
/// What runs is left to its process, and dead letters are left: [`DeadLetters::purge`](super::DeadLetters::purge).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("emails")?;
/// queue.enqueue_many(["a", "b"]).await?;
/// assert_eq!(queue.purge().dry_run(true).await?.jobs, 2);
/// assert_eq!(queue.purge().await?.jobs, 2);
/// assert!(queue.claim(1).await?.is_empty());
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is purged until it is awaited"]
#[derive(Debug)]
pub struct Purge {
    core: Arc<Core>,
    dry_run: bool,
}

impl Purge {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, dry_run: false }
    }

    /// Only says how many there are; at least so many if the inbox is long.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

impl IntoFuture for Purge {
    type Output = Result<Purged>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(purge(self))
    }
}

async fn purge(purge: Purge) -> Result<Purged> {
    let Purge { core, dry_run } = purge;
    if dry_run {
        let depth = super::depth::depth(&core).await?;
        let jobs = depth.available + depth.scheduled + depth.retrying + depth.paused;
        return Ok(Purged { jobs, more: depth.at_least || depth.scheduled_at_least, dry_run });
    }
    let ever = core.settings().await?.record().shards_ever;
    let mut purged = Purged::default();
    for shard in 0..ever {
        let shard = u8::try_from(shard).unwrap_or(u8::MAX);
        for folder in [core.layout.inbox_of(shard), core.layout.later(shard)] {
            purged.more |= discard(&core, shard, &folder, &mut purged.jobs).await?;
        }
        // After the inbox: what others take in meanwhile is in the ledger.
        for outcome in core.shard(shard).ask(vec![Op::Purge]).await? {
            if let Outcome::Purged { jobs } = outcome {
                purged.jobs += jobs;
            }
        }
    }
    Ok(purged)
}

/// Ends what stands in a folder of the inbox, unread; whether something is left.
async fn discard(core: &Arc<Core>, number: u8, folder: &str, jobs: &mut u64) -> Result<bool> {
    let shard = core.shard(number);
    let mut after = None;
    loop {
        let age = Age::now(core.backend());
        let page = core.backend().page(folder, after.as_ref(), PAGE).await?;
        let parsed = page.names.iter().filter_map(|name| match core.layout.parse(name.as_str()) {
            Listed::Segment(segment) => Some(segment),
            Listed::Foreign => None,
        });
        let listed: Vec<SegmentName> = parsed.collect();
        let seen = shard.look().await?;
        let before = seen.record().counters.cancelled;
        let new = unknown(seen.record(), &listed, u64::MAX);
        for name in &new {
            take_in(&shard, *name, age, Taking::Discarded);
        }
        if !new.is_empty() {
            shard.ask(Vec::new()).await?;
        }
        let seen = shard.look().await?;
        let left = unknown(seen.record(), &new, u64::MAX);
        let ended = new.iter().filter(|name| !left.contains(name)).map(|name| u64::from(name.jobs)).sum::<u64>();
        // Others may have taken some of them in meanwhile: those are ended, and counted, by the ledger.
        *jobs += ended.min(seen.record().counters.cancelled.saturating_sub(before));
        if !left.is_empty() {
            return Ok(true);
        }
        after = page.names.last().cloned();
        if !page.more || after.is_none() {
            return Ok(false);
        }
    }
}
