//! How many jobs a queue has, by state: from listings and ledgers, and no job is read for it.

use super::{
    apply::HOUR,
    core::Core,
    inbox::unknown,
    layout::{Listed, Place, SegmentName},
    ledger::Ledger,
};
use crate::{Result, clock::Timestamp, duration::millis, storage::Name};
use serde::Serialize;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// Names in one page of a listing.
const PAGE: usize = 1000;

/// How many jobs there are.
///
/// What stands in the inbox is counted by the names of its segments, so a count is *at least* what it says where the
/// listing has more than one page. Jobs of one segment that nobody has opened yet are counted by the due time of the first
/// of them ([`estimated`](Self::estimated)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct QueueDepth {
    /// Due, and not running.
    pub available: u64,
    /// Due later.
    pub scheduled: u64,
    /// Of what is due later, how many within the next hour.
    pub scheduled_next_hour: u64,
    /// Waiting for their next attempt.
    pub retrying: u64,
    /// Held back one by one.
    pub paused: u64,
    /// In the hands of processes.
    pub running: u64,
    /// On their way to the dead letters.
    pub burying: u64,
    /// Dead letters.
    pub dead: u64,
    /// Bytes of dead letters.
    pub dead_bytes: u64,
    /// The inbox has more than was listed: there are at least so many available.
    pub at_least: bool,
    /// There are at least so many scheduled.
    pub scheduled_at_least: bool,
    /// There are at least so many dead letters.
    pub dead_at_least: bool,
    /// Some jobs were counted by the due time of the first job of their segment.
    pub estimated: bool,
    /// The queue hands out nothing.
    pub queue_paused: bool,
    /// When the one that waits longest was or will be due.
    #[serde(rename = "oldest_due_ms")]
    pub oldest_due: Option<Timestamp>,
    /// For how long the one that waits longest has been due.
    #[serde(rename = "oldest_age_ms", serialize_with = "millis::serialize")]
    pub oldest_age: Duration,
    /// When something is due next that is not due now.
    #[serde(rename = "next_due_ms")]
    pub next_due: Option<Timestamp>,
}

impl QueueDepth {
    /// Whether every count is exact.
    pub fn is_exact(&self) -> bool {
        !(self.at_least || self.scheduled_at_least || self.dead_at_least || self.estimated)
    }

    /// What counts against the queue's capacity: what is due or waits for its retry, and what runs.
    pub fn load(&self) -> u64 {
        self.available + self.retrying + self.paused + self.running
    }

    fn add(&mut self, ledger: &Ledger, now: Timestamp) {
        let known = ledger.depth(now.as_millis());
        self.available += known.ready;
        self.scheduled += known.scheduled;
        self.scheduled_next_hour += known.next_hour;
        self.retrying += known.retrying;
        self.paused += known.paused;
        self.running += known.running;
        self.burying += known.burying;
        self.estimated |= known.estimated;
        self.queue_paused |= ledger.policy.is_paused(now.as_millis());
        self.waits(known.oldest.map(Timestamp::from_millis), known.next.map(Timestamp::from_millis));
    }

    /// A segment that no ledger knows.
    fn add_segment(&mut self, name: &SegmentName, now: Timestamp) {
        let jobs = u64::from(name.jobs);
        match name.place {
            Place::At(minute) if minute.start() > now => {
                self.scheduled += jobs;
                let soon = minute.start().as_millis() <= now.as_millis() + HOUR;
                self.scheduled_next_hour += if soon { jobs } else { 0 };
                self.estimated |= soon && jobs > 1;
                self.waits(None, Some(minute.start()));
            }
            place => {
                self.available += jobs;
                let since = match place {
                    Place::At(minute) => minute.start(),
                    // The id of a request has no time.
                    _ => name.id.time().min(now),
                };
                self.estimated |= matches!(place, Place::At(_)) && jobs > 1;
                self.waits(Some(since), None);
            }
        }
    }

    fn waits(&mut self, oldest: Option<Timestamp>, next: Option<Timestamp>) {
        self.oldest_due = [self.oldest_due, oldest].into_iter().flatten().min();
        self.next_due = [self.next_due, next].into_iter().flatten().min();
    }
}

/// The segments in a folder, and whether there are more.
async fn segments(core: &Core, folder: &str) -> Result<(Vec<SegmentName>, bool)> {
    let page = core.backend().page(folder, None, PAGE).await?;
    let segment = |name: &Name| match core.layout.parse(name.as_str()) {
        Listed::Segment(segment) => Some(segment),
        Listed::Foreign => None,
    };
    Ok((page.names.iter().filter_map(segment).collect(), page.more))
}

/// The dead letters: how many jobs of each plan, and their bytes.
async fn dead(core: &Core, depth: &mut QueueDepth) -> Result<HashMap<crate::WriteId, u16>> {
    let (objects, more) = core.backend().objects(&core.layout.dead(), None, PAGE).await?;
    depth.dead_at_least = more;
    let mut plans = HashMap::new();
    for object in &objects {
        let Some(letters) = core.layout.parse_letters(object.name.as_str()) else { continue };
        depth.dead_bytes += object.size;
        plans.insert(letters.plan, letters.jobs);
    }
    Ok(plans)
}

pub(crate) async fn depth(core: &Arc<Core>) -> Result<QueueDepth> {
    let backend = core.backend();
    let ever = core.settings().await?.record().shards_ever;
    let mut depth = QueueDepth::default();
    // The listings first: what is absorbed in between is counted by the ledger alone.
    let (mut names, more) = segments(core, &core.layout.inbox()).await?;
    depth.at_least = more;
    let (later, more) = segments(core, &core.layout.later_all()).await?;
    depth.scheduled_at_least = more;
    names.extend(later);
    let mut plans = dead(core, &mut depth).await?;
    let now = backend.store_time().unwrap_or_else(|| backend.clock.wall());
    for number in 0..ever {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let seen = core.shard(number).look().await?;
        let ledger = seen.record();
        depth.add(ledger, now);
        for letters in &ledger.letters {
            plans.entry(letters.plan).and_modify(|jobs| *jobs = (*jobs).min(letters.left()));
        }
        // An object that is there while its plan is, too, is counted as what is on its way.
        for plan in &ledger.dead {
            plans.remove(&plan.id);
        }
        let mine: Vec<SegmentName> = names.iter().filter(|name| name.id.shard() == number).copied().collect();
        for name in unknown(ledger, &mine, u64::MAX) {
            depth.add_segment(&name, now);
        }
    }
    depth.dead = plans.values().map(|jobs| u64::from(*jobs)).sum();
    depth.oldest_age = depth.oldest_due.map(|due| now.since(due)).unwrap_or_default();
    Ok(depth)
}
