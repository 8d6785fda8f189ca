//! Claiming jobs: shard after shard, and waiting for some if there are none.

use super::{
    attempt::{Attempt, Job},
    committer::{Given, Granted, Shard},
    core::Core,
    fetch::{self, Loaded, Read},
    ledger::Millis,
};
use crate::{Error, Result, storage::Name};
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What has waited for so long is taken also from a shard that another process owns.
const PATIENCE: Duration = Duration::from_secs(1);

/// A claim that is made when it is awaited.
///
/// Dropped before it is answered, it takes nothing: what it was given meanwhile goes back at once, and uses no attempt.
/// Several may be under way at the same time: claim the next jobs while the last ones run, and what has become of those
/// goes along with the same commit.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # use std::time::Duration;
/// # let store = leasehold::Store::open("memory://").await?;
/// # let queue = store.queue("emails")?;
/// # queue.enqueue("x").await?;
/// // Up to 100, waiting for the first for at most ten seconds; without their parts.
/// let jobs = queue.claim(100).within(Duration::from_secs(10)).without_parts().await?;
/// let args = jobs[0].part("args").await?; // fetched now
/// # assert_eq!(args.as_deref(), Some(&b"x"[..]));
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is claimed until it is awaited"]
#[derive(Debug)]
pub struct Claim {
    core: Arc<Core>,
    most: u32,
    within: Duration,
    parts: Parts,
}

/// Which parts of its jobs a claim brings.
#[derive(Debug, Clone)]
pub(crate) enum Parts {
    All,
    Named(Vec<String>),
}

impl Claim {
    pub(crate) fn new(core: Arc<Core>, most: u32) -> Self {
        Self { core, most, within: Duration::ZERO, parts: Parts::All }
    }

    /// Waits for the first job for so long.
    pub fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// Brings no parts: [`Job::part`] fetches one when it is needed.
    pub fn without_parts(mut self) -> Self {
        self.parts = Parts::Named(Vec::new());
        self
    }

    /// Brings only these parts.
    pub fn parts<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.parts = Parts::Named(names.into_iter().map(Into::into).collect());
        self
    }
}

impl IntoFuture for Claim {
    type Output = Result<Vec<Job>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(claim(self))
    }
}

async fn claim(claim: Claim) -> Result<Vec<Job>> {
    let Claim { core, most, within, parts } = claim;
    if most == 0 {
        return Ok(Vec::new());
    }
    let shared = &core.shared;
    shared.activity.touch(&*core.backend().clock);
    let began = shared.now();
    let deadline = began.plus(within);
    let mut pause = shared.options.poll_interval;
    loop {
        let news = core.news.notified();
        // With time to spare it leaves to a shard's owner what is young; at last it takes what there is.
        let patient = shared.now().plus(PATIENCE) < deadline;
        let wakes = match round(&core, most, &parts, patient).await? {
            Round::Jobs(jobs) => return Ok(jobs),
            Round::Again => continue,
            Round::Nothing { wakes } => wakes,
        };
        let now = shared.now();
        if now >= deadline {
            return Ok(Vec::new());
        }
        let wait = until_next(&core, wakes, pause, deadline.since(now)).await;
        let clock = Arc::clone(&core.backend().clock);
        tokio::select! {
            () = news => {}
            () = clock.sleep(wait) => pause = (pause * 2).min(shared.options.max_poll_interval),
        }
    }
}

/// What one look at all shards has brought.
#[derive(Debug)]
pub(crate) enum Round {
    Jobs(Vec<Job>),
    /// What is due later has become due meanwhile: look again at once.
    Again,
    /// Nothing can be claimed now; when a ledger says that there will be, by the store's time.
    Nothing {
        wakes: Option<Millis>,
    },
}

/// Claims from the first shard that has something. One that is `patient` leaves to a shard's owner what is young.
pub(crate) async fn round(core: &Arc<Core>, most: u32, parts: &Parts, patient: bool) -> Result<Round> {
    let since = core.inbox.looks();
    let shards = usize::from(core.settings().await?.record().shards_ever);
    let turn = core.next_turn();
    let mut wakes: Option<Millis> = None;
    for at in 0..shards {
        let shard = core.shard(u8::try_from((turn + at) % shards).unwrap_or(0));
        match shard.claim(most, since, patient).await? {
            Given::Jobs(granted) => return load(&shard, granted, parts).await.map(Round::Jobs),
            Given::Nothing { wakes_at } => wakes = [wakes, wakes_at].into_iter().flatten().min(),
        }
    }
    // Nothing is due: is something of what is due later?
    let ever = u16::try_from(shards).unwrap_or(u16::MAX);
    if core.inbox.look_at_later(core.backend(), &core.layout, ever).await? {
        return Ok(Round::Again);
    }
    Ok(Round::Nothing { wakes })
}

/// How long there is nothing to look for.
pub(crate) async fn until_next(core: &Core, wakes: Option<Millis>, pause: Duration, left: Duration) -> Duration {
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let due = core.inbox.next_due().await.map(|due| due.as_millis());
    let next = [wakes, due].into_iter().flatten().min();
    // Not sooner than a millisecond: what is due and cannot be claimed is no reason to look all the time.
    let until = next.filter(|at| *at > now.as_millis()).and_then(|at| u64::try_from(at - now.as_millis()).ok());
    until.map_or(pause, |millis| pause.min(Duration::from_millis(millis.max(1)))).min(left)
}

/// Makes jobs of what was granted, with the parts that are wanted: beside the next cycle.
async fn load(shard: &Arc<Shard>, mut granted: Granted, parts: &Parts) -> Result<Vec<Job>> {
    let attempt = Arc::new(Attempt::new(shard, &granted));
    let mut by_segment: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for taken in granted.jobs.iter().cloned() {
        by_segment.entry(taken.name).or_default().push(taken);
    }
    let reads = by_segment.into_values().map(|taken| async move {
        let indexes: Vec<u16> = taken.iter().flat_map(|taken| taken.range.from..taken.range.to).collect();
        let content = content(shard, &taken[0], &indexes, parts).await;
        (taken, content)
    });
    let (mut jobs, mut failed) = (Vec::new(), None);
    let read = join_all(reads).await;
    // From here on each of them goes back by itself.
    granted.jobs.clear();
    for (taken, content) in read {
        match content {
            Ok(content) => jobs.extend(taken.iter().flat_map(|taken| {
                let (attempt, content) = (&attempt, &content);
                (taken.range.from..taken.range.to)
                    .map(move |index| Job::new(attempt, taken.name, index, taken, content))
            })),
            Err(error) => {
                // What is damaged is no use to anybody; for the rest nobody will answer: it goes back.
                attempt.without_content(&taken, &error);
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(error) if jobs.is_empty() => Err(error),
        _ => {
            jobs.sort_by_key(Job::order);
            Ok(jobs)
        }
    }
}

/// What a segment has for the jobs that were claimed of it.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) loaded: Option<Arc<Loaded>>,
    pub(crate) blocks: BTreeMap<u32, Bytes>,
    pub(crate) inline: Option<Bytes>,
    /// The names that were asked for; `None` for all.
    pub(crate) names: Option<Vec<String>>,
}

async fn content(shard: &Shard, taken: &super::apply::Taken, indexes: &[u16], parts: &Parts) -> Result<Arc<Content>> {
    let core = &shard.queue;
    let names = match parts {
        Parts::All => None,
        Parts::Named(names) => Some(names.clone()),
    };
    let Some(path) = core.layout.segment(&taken.name).map(Name::new) else {
        let inline = taken.inline.clone().unwrap_or_default();
        let (loaded, blocks) = fetch::inline(&taken.name, &inline)?;
        return Ok(Arc::new(Content { loaded: Some(loaded), blocks, inline: Some(inline), names }));
    };
    let loaded = loaded(core, &taken.name, &path).await?;
    let blocks = match &names {
        Some(names) if names.is_empty() => BTreeMap::new(),
        names => {
            let wanted: Option<Vec<&str>> = names.as_ref().map(|names| names.iter().map(String::as_str).collect());
            core.shared.segments.blocks(core.backend(), &path, &loaded, indexes, wanted.as_deref()).await?
        }
    };
    Ok(Arc::new(Content { loaded: Some(loaded), blocks, inline: None, names }))
}

/// The table of a live segment.
pub(crate) async fn loaded(core: &Core, name: &super::layout::SegmentName, path: &Name) -> Result<Arc<Loaded>> {
    match core.shared.segments.read(core.backend(), &core.layout, name).await? {
        Read::Loaded(loaded) => Ok(loaded),
        Read::Missing => Err(Error::corrupt(format!("{path} is gone although its jobs have not ended"))),
        Read::Later(format) => Err(Error::config(format!("{path} has the later format {format}: use a newer version"))),
        Read::Damaged(why) => Err(Error::corrupt(format!("{path} cannot be read: {why}"))),
    }
}
