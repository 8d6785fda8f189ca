//! Redriving and purging dead letters.
//!
//! A redrive writes the jobs to an object of `seg/` and names it in the commit that takes them out of the dead letters, so
//! each of them is put back once, whoever else redrives, and whatever answer is lost. It uses what it has read of the
//! dead letters for at most 30 s: for longer than that the ledger remembers what was taken.

use super::{
    apply::{Op, Outcome, Redrive, TakeLetters},
    core::Core,
    dead::{DeadFilter, DeadLetter, Walk, Whole, parts, read_table, read_whole},
    id::{Class, JobId},
    inbox::Age,
    layout::LettersName,
    ledger::Letters,
    segment::{NewJob, Table},
};
use crate::{Error, Result, WriteId, clock::Timestamp, storage::Name};
use futures_util::future::BoxFuture;
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// Jobs that one commit puts back at the most.
const BATCH: usize = 1000;
/// How often one batch is written again because its object may be gone.
const TRIES: u32 = 4;
/// Names that one request deletes at the most.
const BULK: usize = 1000;

/// What a redrive has put back, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[must_use = "a redrive may leave something"]
#[non_exhaustive]
pub struct Redriven {
    /// Jobs that were put back.
    pub jobs: u64,
    /// Jobs that were meant and stay dead: their unique key is taken, they cannot be read, they are still being written,
    /// or somebody else was faster.
    pub left: u64,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// Puts dead letters back into the queue; done when it is awaited.
#[must_use = "nothing is redriven until it is awaited"]
#[derive(Debug)]
pub struct Redriving {
    core: Arc<Core>,
    filter: DeadFilter,
    per_second: Option<u32>,
    most: u64,
    dry_run: bool,
}

impl Redriving {
    pub(super) fn new(core: Arc<Core>, filter: DeadFilter) -> Self {
        Self { core, filter, per_second: None, most: u64::MAX, dry_run: false }
    }

    /// So many are due in each second; all at once if nothing is said. The queue keeps to it, also if this process ends.
    pub fn per_second(mut self, jobs: u32) -> Self {
        self.per_second = Some(jobs.max(1));
        self
    }

    /// So many at the most.
    pub fn limit(mut self, most: u64) -> Self {
        self.most = most;
        self
    }

    /// Only says how many there are.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

impl IntoFuture for Redriving {
    type Output = Result<Redriven>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let core = Arc::clone(&self.core);
            core.shared.activity.touch(&*core.backend().clock);
            Run { now: now(&core), core: &core, redriving: &self, done: Redriven::default() }.all().await
        })
    }
}

fn now(core: &Core) -> Timestamp {
    core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall())
}

/// One redrive under way.
struct Run<'a> {
    core: &'a Arc<Core>,
    redriving: &'a Redriving,
    now: Timestamp,
    done: Redriven,
}

impl Run<'_> {
    async fn all(mut self) -> Result<Redriven> {
        let filter = &self.redriving.filter;
        let mut walk = Walk::new(self.core, None);
        let (mut found, mut emptied) = (HashSet::new(), Emptied::default());
        while let Some((path, name)) = walk.next().await? {
            if self.done.jobs >= self.redriving.most || !filter.ids_left(&found) {
                break;
            }
            if !filter.looks_at(name.shard) {
                continue;
            }
            let age = Age::now(self.core.backend());
            // Tables are small: whole objects are read only if something of them is meant.
            let Some(table) = read_table(self.core, &path, name).await? else { continue };
            let taken = walk.taken(name).await?;
            let mut meant = table.letters(taken.as_ref());
            meant.retain(|(_, letter)| filter.redrives(letter));
            let room = usize::try_from(self.redriving.most - self.done.jobs).unwrap_or(usize::MAX);
            meant.truncate(room);
            found.extend(meant.iter().filter_map(|(_, letter)| letter.id));
            if meant.is_empty() {
                continue;
            }
            if self.redriving.dry_run {
                self.done.jobs += meant.iter().map(|(_, letter)| u64::from(letter.jobs)).sum::<u64>();
                continue;
            }
            let Some(whole) = read_whole(self.core, &path, name).await? else { continue };
            if self.object(&whole, name, &meant, age).await? {
                emptied.add(self.core, name, path).await;
            }
        }
        emptied.tell(self.core).await;
        self.done.dry_run = self.redriving.dry_run;
        self.core.news.notify_waiters();
        Ok(self.done)
    }

    /// Puts back what is meant of one object; whether nothing is left in it.
    async fn object(
        &mut self,
        whole: &Whole,
        name: LettersName,
        meant: &[(u16, DeadLetter)],
        age: Age,
    ) -> Result<bool> {
        let Some(segment) = &whole.segment else {
            self.done.left += meant.iter().map(|(_, letter)| u64::from(letter.jobs)).sum::<u64>();
            return Ok(false);
        };
        let mut by_class: BTreeMap<Class, Vec<u16>> = BTreeMap::new();
        for (index, letter) in meant {
            by_class.entry(Class::of(letter.priority)).or_default().push(*index);
        }
        let mut empty = false;
        for (class, indexes) in by_class {
            for batch in indexes.chunks(BATCH) {
                let mut jobs = Vec::with_capacity(batch.len());
                for index in batch {
                    jobs.push(self.again(segment, *index, self.done.jobs + jobs.len() as u64)?);
                }
                empty = self.batch(name, class, batch, &jobs, age).await?;
            }
        }
        Ok(empty)
    }

    /// The job as it was recorded, as if it had never been tried: only its fence goes on.
    fn again(&self, segment: &super::segment::Segment, index: u16, place: u64) -> Result<NewJob> {
        let gone = || Error::corrupt(format!("job {index} is not in its object of dead letters"));
        let entry = segment.table.jobs.get(usize::from(index)).ok_or_else(gone)?;
        let mut job = NewJob::again(entry, parts(segment, index)?);
        job.history.id = segment.table.id(index);
        (job.history.attempts, job.history.stalls, job.history.group) = (0, 0, 0);
        job.history.reason = None;
        let wait = self.redriving.per_second.map_or(0, |rate| place.saturating_mul(1000) / u64::from(rate));
        job.due = self.now.plus(Duration::from_millis(wait));
        Ok(job)
    }

    /// Puts one batch back by one commit; whether nothing is left in its object.
    async fn batch(
        &mut self,
        name: LettersName,
        class: Class,
        indexes: &[u16],
        jobs: &[NewJob],
        age: Age,
    ) -> Result<bool> {
        let shard = self.core.shard(name.shard);
        for _ in 0..TRIES {
            let epoch = shard.look().await?.record().gc_epoch;
            let (_, encoded) = shard.put_seg(class, jobs).await?;
            let facts = Table::decode(&encoded.body).map_err(|why| Error::corrupt(why.to_string()))?.facts();
            if !age.is_usable(self.core.backend()) {
                return Err(Error::unavailable("the dead letters were read too long ago by now: call again"));
            }
            let take = TakeLetters {
                plan: name.plan,
                hour: name.hour,
                jobs: name.jobs,
                indexes: indexes.iter().copied().zip(encoded.indexes.iter().copied()).collect(),
                into: Some(Redrive { facts: Arc::new(facts), epoch }),
            };
            let outcomes = shard.ask(vec![Op::TakeLetters(Arc::new(take))]).await?;
            match outcomes.first() {
                Some(Outcome::LettersTaken { taken, left }) => {
                    self.done.jobs += taken.len() as u64;
                    self.done.left += (indexes.len() - taken.len().min(indexes.len())) as u64;
                    return Ok(*left == 0);
                }
                Some(Outcome::WriteAgain) => {}
                Some(Outcome::NotFound | Outcome::NotYet) => {
                    self.done.left += indexes.len() as u64;
                    return Ok(false);
                }
                outcome => return Err(refused(outcome)),
            }
        }
        Err(Error::unavailable("what is redriven was cleaned up before it could be named: try again"))
    }
}

fn refused(outcome: Option<&Outcome>) -> Error {
    match outcome {
        Some(Outcome::Full(full)) => Error::unavailable(format!(
            "the ledger of this shard has no room for what is redriven ({full:?}): let workers take jobs from it first"
        )),
        _ => Error::unknown("whether dead letters were taken is not known: list them"),
    }
}

/// Objects of which nothing is left: deleted, and their ledgers told.
#[derive(Default)]
struct Emptied {
    names: Vec<(LettersName, Name)>,
    gone: BTreeMap<u8, Vec<WriteId>>,
}

impl Emptied {
    async fn add(&mut self, core: &Core, name: LettersName, path: Name) {
        self.names.push((name, path));
        if self.names.len() >= BULK {
            self.delete(core).await;
        }
    }

    async fn delete(&mut self, core: &Core) {
        if self.names.is_empty() {
            return;
        }
        let names = std::mem::take(&mut self.names);
        let paths: Vec<Name> = names.iter().map(|(_, path)| path.clone()).collect();
        let deleted = core.backend().delete(&paths).await;
        if let Some(error) = deleted.error {
            tracing::warn!(%error, "empty objects of dead letters could not be deleted: they go when they expire");
        }
        for (name, path) in names {
            if deleted.gone.contains(&path) {
                self.gone.entry(name.shard).or_default().push(name.plan);
            }
        }
    }

    /// Only what a ledger has an entry of has to be told.
    async fn tell(mut self, core: &Arc<Core>) {
        self.delete(core).await;
        for (shard, plans) in self.gone {
            let shard = core.shard(shard);
            let known: Vec<Letters> = match shard.look().await {
                Ok(seen) => seen.record().letters.clone(),
                Err(_) => Vec::new(),
            };
            let is_known = |plan: &WriteId| known.iter().any(|letters| letters.plan == *plan);
            let ops: Vec<Op> = plans.into_iter().filter(is_known).map(|plan| Op::LettersGone { plan }).collect();
            if ops.is_empty() {
                continue;
            }
            if let Err(error) = shard.ask(ops).await {
                tracing::debug!(%error, "the ledger keeps what it knows of deleted dead letters until they expire");
            }
        }
    }
}

/// Gives dead letters up; done when it is awaited.
#[must_use = "nothing is purged until it is awaited"]
#[derive(Debug)]
pub struct DeadPurge {
    core: Arc<Core>,
    filter: DeadFilter,
    dry_run: bool,
}

impl DeadPurge {
    pub(super) fn new(core: Arc<Core>, filter: DeadFilter) -> Self {
        Self { core, filter, dry_run: false }
    }

    /// Only says how many there are.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

impl IntoFuture for DeadPurge {
    type Output = Result<super::Purged>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(purge(self))
    }
}

async fn purge(purge: DeadPurge) -> Result<super::Purged> {
    let DeadPurge { core, filter, dry_run } = purge;
    let mut walk = Walk::new(&core, None);
    let (mut purged, mut found, mut emptied) = (super::Purged::default(), HashSet::<JobId>::new(), Emptied::default());
    while let Some((path, name)) = walk.next().await? {
        if !filter.ids_left(&found) {
            break;
        }
        if !filter.looks_at(name.shard) {
            continue;
        }
        let taken = walk.taken(name).await?;
        if filter.is_all() {
            purged.jobs += u64::from(taken.map_or(name.jobs, |letters| letters.left()));
            if !dry_run {
                emptied.add(&core, name, path).await;
            }
            continue;
        }
        let Some(table) = read_table(&core, &path, name).await? else { continue };
        let mut meant = table.letters(taken.as_ref());
        meant.retain(|(_, letter)| filter.means(letter));
        found.extend(meant.iter().filter_map(|(_, letter)| letter.id));
        let jobs: u64 = meant.iter().map(|(_, letter)| u64::from(letter.jobs)).sum();
        if jobs == 0 {
            continue;
        }
        if dry_run {
            purged.jobs += jobs;
        } else if jobs == u64::from(name.jobs) {
            purged.jobs += jobs;
            emptied.add(&core, name, path).await;
        } else if take_out(&core, name, &meant, &mut purged).await? {
            emptied.add(&core, name, path).await;
        }
    }
    emptied.tell(&core).await;
    purged.dry_run = dry_run;
    Ok(purged)
}

/// Takes some out of an object; whether nothing is left in it.
async fn take_out(
    core: &Arc<Core>,
    name: LettersName,
    meant: &[(u16, DeadLetter)],
    purged: &mut super::Purged,
) -> Result<bool> {
    let indexes = meant.iter().map(|(index, _)| (*index, 0)).collect();
    let take = TakeLetters { plan: name.plan, hour: name.hour, jobs: name.jobs, indexes, into: None };
    let outcomes = core.shard(name.shard).ask(vec![Op::TakeLetters(Arc::new(take))]).await?;
    match outcomes.first() {
        Some(Outcome::LettersTaken { taken, left }) => {
            purged.jobs += taken.len() as u64;
            Ok(*left == 0)
        }
        Some(Outcome::NotYet) => {
            purged.more = true;
            Ok(false)
        }
        Some(Outcome::NotFound) => Ok(false),
        outcome => Err(refused(outcome)),
    }
}
