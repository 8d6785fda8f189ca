//! Schedules: jobs that a queue makes by itself, at the times of a cron expression or an interval.
//!
//! A schedule stands in the ledger of one shard, with its last slot. The commit that moves the slot inserts the job in the
//! same compare-and-swap: each slot runs once, nobody leads, and it costs no request beside the cycle. Slots are inserted
//! by whoever claims jobs from the queue.

mod due;
mod spec;

pub(crate) use due::due;
pub(crate) use spec::Spec;

use super::{
    apply::{Backfill, LONGEST_INLINE, Op, Outcome},
    committer::Shard,
    core::Core,
    id::{Class, SegmentId, hash},
    ledger::{Ledger, Millis, Schedule},
    new::NewJob,
    segment::{Head, LONGEST_TEXT, encode},
};
use crate::{Error, Result, WriteId, clock::Timestamp};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// How late a slot may be inserted, if nothing else is said.
const LOOK_BACK: Duration = Duration::from_secs(60);
/// Slots that one commit backfills.
const AT_ONCE: usize = 64;
/// Slots that a listing shows.
const SHOWN: usize = 5;

/// A schedule to be added: when its slots are, and the job that each of them makes.
///
/// ```
/// use leasehold::job::{NewJob, NewSchedule};
/// use std::time::Duration;
///
/// let report = NewSchedule::cron("0 3 * * MON-FRI", "Europe/Berlin", NewJob::new("all").kind("report"))
///     .look_back(Duration::from_secs(3600)) // a slot that is found an hour late still runs
///     .no_overlap();
/// let beat = NewSchedule::every(Duration::from_secs(30), NewJob::empty().kind("heartbeat"));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct NewSchedule {
    when: When,
    job: NewJob,
    look_back: Duration,
    single: bool,
    at_start: bool,
}

#[derive(Debug, Clone)]
enum When {
    Cron(String, String),
    Every(Duration),
}

impl NewSchedule {
    fn new(when: When, job: NewJob) -> Self {
        Self { when, job, look_back: LOOK_BACK, single: false, at_start: false }
    }

    /// Slots by a cron expression of five fields (six with seconds in front), read in a time zone such as `Europe/Berlin`
    /// or `UTC`. Of an hour that is left out or comes twice when clocks are changed, a daily slot runs once.
    pub fn cron(expression: impl Into<String>, zone: impl Into<String>, job: impl Into<NewJob>) -> Self {
        Self::new(When::Cron(expression.into(), zone.into()), job.into())
    }

    /// A slot every so often, the first one so long after it was added; at least a second.
    pub fn every(interval: Duration, job: impl Into<NewJob>) -> Self {
        Self::new(When::Every(interval), job.into())
    }

    /// How late a slot may still be run (1 minute): older ones are missed, and run only if they are
    /// [backfilled](Schedules::backfill). [`Duration::MAX`] runs all of them.
    pub fn look_back(mut self, window: Duration) -> Self {
        self.look_back = window;
        self
    }

    /// Leaves a slot out while the job of an earlier one has not ended.
    pub fn no_overlap(mut self) -> Self {
        self.single = true;
        self
    }

    /// Runs once when it is added, beside its slots.
    pub fn run_at_start(mut self) -> Self {
        self.at_start = true;
        self
    }
}

/// What is known of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// Its cron expression, if it goes by one.
    pub cron: Option<String>,
    /// The time zone of its cron expression.
    pub zone: Option<String>,
    /// Its interval, in milliseconds, if it goes by one.
    pub every_ms: Option<u64>,
    /// Whether it inserts nothing.
    pub paused: bool,
    /// How late a slot may still be run, in milliseconds.
    pub look_back_ms: u64,
    /// Whether a slot is left out while the job of an earlier one has not ended.
    pub no_overlap: bool,
    /// The last slot that was run or passed over; when it was added, before there was one.
    #[serde(rename = "last_ms")]
    pub last: Timestamp,
    /// The next slots.
    #[serde(rename = "next_ms")]
    pub next: Vec<Timestamp>,
    /// Stretches of time, from and to, whose slots were missed and not backfilled.
    #[serde(rename = "missed_ms")]
    pub missed: Vec<(Timestamp, Timestamp)>,
}

/// What became of a schedule that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScheduleChange {
    /// It was added, or is other than before.
    Written,
    /// It was there as it was asked for.
    Unchanged,
}

/// The schedules of a queue.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::{NewJob, NewSchedule};
///
/// let store = leasehold::Store::open("memory://").await?;
/// let queue = store.queue("reports")?;
/// let nightly = NewSchedule::cron("0 3 * * *", "Europe/Berlin", NewJob::new("all").kind("report"));
/// queue.schedules().add("nightly", nightly).await?;
/// assert_eq!(queue.schedules().list().await?[0].next.len(), 5);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Schedules {
    core: Arc<Core>,
}

fn id_of(name: &str) -> [u8; 16] {
    hash(&[b"schedule", name.as_bytes()])
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

impl Schedules {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    async fn shard(&self, name: &str) -> Result<Arc<Shard>> {
        let known = self.core.settings().await?;
        let shard = known.shard_of(name.as_bytes());
        Ok(self.core.shard(shard))
    }

    async fn now(&self) -> Result<Millis> {
        let backend = self.core.backend();
        if backend.store_time().is_none() {
            backend.ask_time().await?;
        }
        Ok(backend.store_time().unwrap_or_else(|| backend.clock.wall()).as_millis())
    }

    async fn ask(&self, name: &str, op: Op) -> Result<Outcome> {
        let outcomes = self.shard(name).await?.ask(vec![op]).await?;
        outcomes.into_iter().next().ok_or_else(|| Error::unknown(format!("nothing is known of schedule {name:?}")))
    }

    /// Adds a schedule, or changes the one of this name. Safe to repeat, for instance by every process that starts: one
    /// that is as it is asked for stays as it is, and so do its slots.
    pub async fn add(&self, name: impl AsRef<str>, schedule: NewSchedule) -> Result<ScheduleChange> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > LONGEST_TEXT {
            return Err(Error::invalid(format!("a schedule's name has 1 to {LONGEST_TEXT} bytes")));
        }
        let now = self.now().await?;
        let NewSchedule { when, job, look_back, single, at_start } = schedule;
        let id = id_of(name);
        let spec = match when {
            When::Cron(expression, zone) => Spec::cron(&expression, &zone)?,
            When::Every(every) => {
                let seen = self.shard(name).await?.look().await?;
                let known = seen.record().schedules.iter().find(|known| known.id == id);
                self.interval(every, known, now)?
            }
        };
        let next = spec.after(now);
        if next.is_none() {
            return Err(Error::invalid(format!("schedule {name:?} would never run: it has no slot after now")));
        }
        let (priority, job) = self.template(name, job)?;
        let schedule = Schedule {
            id,
            slot: now,
            next,
            name: name.into(),
            spec: spec.to_string().into(),
            look_back: millis(look_back),
            single,
            priority,
            job,
            ..Schedule::default()
        };
        let outcome = self.ask(name, Op::PutSchedule { schedule: Arc::new(schedule), at_start }).await?;
        self.core.news.notify_waiters();
        match outcome {
            Outcome::Done => Ok(ScheduleChange::Written),
            Outcome::Nothing => Ok(ScheduleChange::Unchanged),
            Outcome::Full(_) => Err(Error::unavailable(format!(
                "there is no room for schedule {name:?}: 256 schedules of a shard are allowed, and a ledger has a limit"
            ))),
            _ => Err(Error::unknown(format!("whether schedule {name:?} was added is not known: look at the list"))),
        }
    }

    /// One that is added again with the same interval goes on counting from where it did.
    fn interval(&self, every: Duration, known: Option<&Schedule>, now: Millis) -> Result<Spec> {
        let wanted = Spec::every(every, now.saturating_add(millis(every)))?;
        let Some(Ok(Spec::Every { every: old, from })) = known.map(|known| Spec::read(&known.spec)) else {
            return Ok(wanted);
        };
        if old == millis(every) { Spec::every(every, from) } else { Ok(wanted) }
    }

    /// The job of a schedule, as each of its slots inserts it.
    fn template(&self, name: &str, job: NewJob) -> Result<(i16, bytes::Bytes)> {
        let mut row = job.into_row(Timestamp::from_millis(0));
        if row.key.is_some() || row.unique_key.is_some() {
            return Err(Error::invalid("the job of a schedule has neither key nor unique key: use no_overlap()"));
        }
        row.caller_id.get_or_insert_with(|| name.into());
        let priority = row.priority;
        // All of it follows from the job: adding it again writes the same.
        let head = Head {
            segment: SegmentId::of_slot(&id_of(name), Timestamp::from_millis(0), 0, Class::of(priority)),
            write_id: WriteId::from(id_of(name)),
            made: Timestamp::from_millis(0),
            txn: None,
            request: false,
            source: None,
            pack: self.core.shared.options.pack,
        };
        let body = encode(&head, &[row])?.body;
        if body.len() > LONGEST_INLINE {
            return Err(Error::invalid(format!(
                "the job of a schedule may have about 1 KiB (got {} bytes with its names): put the rest into an object and \
                 name it",
                body.len()
            )));
        }
        Ok((priority, body))
    }

    /// All schedules of the queue, by name, with their next slots. One read for each shard.
    pub async fn list(&self) -> Result<Vec<ScheduleInfo>> {
        let shards = self.core.settings().await?.record().key_shards;
        let mut all = Vec::new();
        for number in 0..shards {
            let seen = self.core.shard(u8::try_from(number).unwrap_or(u8::MAX)).look().await?;
            all.extend(seen.record().schedules.iter().map(info));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Inserts nothing until it is resumed: slots that pass meanwhile are missed. Whether there is such a schedule.
    pub async fn pause(&self, name: impl AsRef<str>) -> Result<bool> {
        let (name, paused, next) = (name.as_ref(), true, None);
        let outcome = self.ask(name, Op::PauseSchedule { schedule: id_of(name), paused, next }).await?;
        Ok(outcome != Outcome::NotFound)
    }

    /// Goes on with the next slot. Whether there is such a schedule.
    pub async fn resume(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = name.as_ref();
        let seen = self.shard(name).await?.look().await?;
        let Some(known) = find(seen.record(), name) else { return Ok(false) };
        let next = Spec::read(&known.spec)?.after(self.now().await?);
        let outcome = self.ask(name, Op::PauseSchedule { schedule: known.id, paused: false, next }).await?;
        self.core.news.notify_waiters();
        Ok(outcome != Outcome::NotFound)
    }

    /// Takes a schedule away. Jobs that it has made stay. Whether there was one.
    pub async fn remove(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = name.as_ref();
        Ok(self.ask(name, Op::RemoveSchedule { schedule: id_of(name) }).await? == Outcome::Done)
    }

    /// Runs slots that were missed between these times, each once however often this is called. How many; none if there
    /// is no such schedule.
    pub async fn backfill(&self, name: impl AsRef<str>, from: Timestamp, to: Timestamp) -> Result<Option<u32>> {
        let (name, shard) = (name.as_ref(), self.shard(name.as_ref()).await?);
        let mut inserted = 0;
        loop {
            let seen = shard.look().await?;
            let Some(known) = find(seen.record(), name) else { return Ok(None) };
            let Some(wanted) = next_backfill(known, from.as_millis(), to.as_millis())? else { break };
            match self.ask(name, Op::Backfill(Arc::new(wanted))).await? {
                Outcome::Backfilled { inserted: more } => inserted += more,
                // It was changed meanwhile.
                Outcome::Nothing => {}
                Outcome::NotFound => return Ok(None),
                Outcome::Full(_) => {
                    return Err(Error::unavailable(format!(
                        "{inserted} slots were backfilled, and there is no room for more: let workers take jobs first, then \
                         call it again"
                    )));
                }
                _ => return Err(Error::unknown(format!("whether slots of {name:?} were backfilled is not known"))),
            }
        }
        self.core.news.notify_waiters();
        Ok(Some(inserted))
    }
}

fn find<'a>(ledger: &'a Ledger, name: &str) -> Option<&'a Schedule> {
    let id = id_of(name);
    ledger.schedules.iter().find(|known| known.id == id)
}

/// The first stretch of missed slots between these times, as much of it as one commit takes.
fn next_backfill(schedule: &Schedule, from: Millis, to: Millis) -> Result<Option<Backfill>> {
    let overlap = |range: &(Millis, Millis)| (range.0.max(from), range.1.min(to));
    let Some((first, last)) = schedule.missed.iter().map(overlap).find(|(from, to)| from < to) else {
        return Ok(None);
    };
    let slots = Spec::read(&schedule.spec)?.between(first, last, AT_ONCE);
    let to = match slots.last() {
        Some(slot) if slots.len() == AT_ONCE => slot.saturating_add(1),
        _ => last,
    };
    Ok(Some(Backfill { schedule: schedule.id, version: schedule.version, from: first, to, slots }))
}

fn info(schedule: &Schedule) -> ScheduleInfo {
    let spec = Spec::read(&schedule.spec).ok();
    let (cron, zone, every_ms) = match &spec {
        Some(Spec::Cron { expression, zone, .. }) => (Some(expression.clone()), Some(zone.name().to_owned()), None),
        Some(Spec::Every { every, .. }) => (None, None, u64::try_from(*every).ok()),
        None => (None, None, None),
    };
    let next = std::iter::successors(schedule.next, |slot| spec.as_ref()?.after(*slot));
    let time = |(from, to): &(Millis, Millis)| (Timestamp::from_millis(*from), Timestamp::from_millis(*to));
    ScheduleInfo {
        name: schedule.name.as_ref().to_owned(),
        cron,
        zone,
        every_ms,
        paused: schedule.paused,
        look_back_ms: u64::try_from(schedule.look_back).unwrap_or(0),
        no_overlap: schedule.single,
        last: Timestamp::from_millis(schedule.slot),
        next: next.take(SHOWN).map(Timestamp::from_millis).collect(),
        missed: schedule.missed.iter().map(time).collect(),
    }
}

/// Slots of a ledger's schedules that are due.
pub(crate) fn slots(ledger: &Ledger, now: Millis) -> Vec<Op> {
    let mut ops = Vec::new();
    for schedule in &ledger.schedules {
        if schedule.paused || schedule.next.is_none_or(|next| next > now) {
            continue;
        }
        match Spec::read(&schedule.spec) {
            Ok(spec) => ops.extend(due(schedule, &spec, now).map(|due| Op::Insert(Arc::new(due)))),
            Err(error) => tracing::error!(%error, schedule = %schedule.name, "a schedule cannot be read"),
        }
    }
    ops
}
