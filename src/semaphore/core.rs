//! What this process knows of a semaphore, and how it finds out more.

use super::{
    record::{Record, SemaphoreSlot},
    rules::{Ending, Facts, view},
};
use crate::{
    Error, ErrorKind, Fence, Hour, LeaseId, ProcessId, Result, WriteId,
    clock::{Moment, Timestamp},
    lease::{
        Terms,
        ended::{self, Second, Watched},
    },
    storage::cas::{self, Seen},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// By so much longer than a slot lasts the wall clock must be past its expiry before the store is asked for a stamp although
/// its dates say that it is too early.
const LATE: Duration = Duration::from_secs(10);

/// The last that was seen of a record.
#[derive(Debug, Default, Clone)]
pub(super) enum Base {
    #[default]
    Unknown,
    Absent,
    Record(Arc<Seen<Record>>),
}

/// What this process knows of a semaphore.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) base: Base,
    /// The highest fence and revision that this process has seen.
    fence: Option<Fence>,
    revision: u64,
    /// The stamp of a time object that was written before the base was read.
    time: Option<Timestamp>,
    /// The last beats that this process wrote, with its monotonic clock before each was sent.
    pub(super) own: BTreeMap<LeaseId, (WriteId, Moment)>,
    /// Since when beats are watched, and those that were found again after long enough.
    watching: BTreeMap<LeaseId, Watched>,
    watched: BTreeSet<(LeaseId, WriteId)>,
    gone: BTreeSet<WriteId>,
    asked: Option<Moment>,
    /// Hours in which the semaphore is known to have an entry.
    pub(super) indexed: BTreeSet<Hour>,
    /// Who could have had a slot since when, and has not taken it.
    served: Option<(Vec<ProcessId>, Moment)>,
    absent: BTreeSet<ProcessId>,
}

impl Core {
    pub(super) fn record(&self) -> Option<&Record> {
        match &self.base {
            Base::Record(seen) => Some(seen.record()),
            Base::Unknown | Base::Absent => None,
        }
    }

    pub(super) fn seen(&self) -> Option<Arc<Seen<Record>>> {
        match &self.base {
            Base::Record(seen) => Some(Arc::clone(seen)),
            Base::Unknown | Base::Absent => None,
        }
    }

    fn modified(&self) -> Option<Timestamp> {
        self.seen().and_then(|seen| seen.modified())
    }

    /// What is known is not good for anything any more; fences are.
    pub(super) fn forget(&mut self) {
        self.base = Base::Unknown;
        self.revision = 0;
        self.indexed.clear();
    }

    pub(super) fn facts<'a>(&'a self, terms: &Terms, modified: Option<Timestamp>) -> Facts<'a> {
        let (moment, wall) = terms.now();
        Facts {
            process: terms.process(),
            moment,
            wall,
            modified,
            time: self.time,
            own: &self.own,
            watched: &self.watched,
            gone: &self.gone,
            absent: &self.absent,
            fence: self.fence,
            interval: terms.settings().max_poll_interval,
            host: terms.backend().is_on_this_host(),
            bounds: terms.bounds(),
        }
    }

    /// The facts about what is known.
    pub(super) fn facts_now<'a>(&'a self, terms: &Terms) -> Facts<'a> {
        self.facts(terms, self.modified())
    }

    /// Takes note of what the store answered, when that arrived.
    pub(super) fn learn(&mut self, there: Option<Seen<Record>>, terms: &Terms) -> Result<()> {
        let arrived = terms.now().0;
        let Some(seen) = there else {
            self.forget();
            self.base = Base::Absent;
            return Ok(());
        };
        let record = seen.record();
        if record.revision < self.revision {
            let error = Error::new(
                ErrorKind::Regressed,
                format!(
                    "a semaphore went back from revision {} to {}: a backup was restored, or something in between answers \
                     from a cache; fences go on rising from what this process has seen",
                    self.revision, record.revision
                ),
            );
            self.forget();
            return Err(error);
        }
        self.revision = record.revision;
        self.fence = self.fence.max(record.last_fence);
        let bounds = terms.bounds();
        let watching = record.holders.iter().map(|holding| {
            let first = self.watching.get(&holding.lease.id).copied();
            (holding.lease.id, Watched::new(&holding.lease, arrived, &bounds).or_since(first))
        });
        self.watching = watching.collect();
        let beats: BTreeSet<WriteId> = record.holders.iter().map(|holding| holding.lease.beat).collect();
        self.watched.retain(|(_, beat)| beats.contains(beat));
        self.gone.retain(|beat| beats.contains(beat));
        self.own.retain(|id, _| record.holder(*id).is_some());
        let in_line: BTreeSet<ProcessId> = record.waiting.iter().map(|waiting| waiting.process).collect();
        self.absent.retain(|process| in_line.contains(process));
        self.base = Base::Record(Arc::new(seen));
        Ok(())
    }

    /// A write of this process has landed: these are its own beats.
    pub(super) fn wrote(&mut self, beat: WriteId, sent: Moment) {
        let ids: Vec<LeaseId> = self
            .record()
            .into_iter()
            .flat_map(|record| record.holders.iter().filter(|holding| holding.lease.beat == beat))
            .map(|holding| holding.lease.id)
            .collect();
        self.own.extend(ids.into_iter().map(|id| (id, (beat, sent))));
    }

    pub(super) async fn read(&mut self, slot: &SemaphoreSlot, terms: &Terms) -> Result<()> {
        // Before the read is sent: whatever is written or has passed later cannot speak for what this read shows.
        let time = terms.backend().latest_stamp();
        let sent = terms.now().0;
        let long_enough = |(id, watched): (&LeaseId, &Watched)| Some((*id, watched.long_enough(sent)?));
        let watched: Vec<_> = self.watching.iter().filter_map(long_enough).collect();
        let there = cas::read(terms.backend(), slot).await?;
        self.watched.extend(watched);
        self.learn(there, terms)?;
        self.time = time;
        self.look_for_absent(terms);
        Ok(())
    }

    /// Who is first in line, could have a slot and does not take it for twice as long as it may take to look, is passed over.
    fn look_for_absent(&mut self, terms: &Terms) {
        let (heads, patience) = {
            let Some(record) = self.record() else { return };
            let facts = self.facts_now(terms);
            let free = super::rules::could_be_served(record, &facts, terms);
            let first: Vec<_> =
                record.waiting.iter().filter(|waiting| !self.absent.contains(&waiting.process)).take(free).collect();
            let patience = first.iter().map(|waiting| 2 * waiting.interval).max().unwrap_or_default();
            let others = first.iter().map(|waiting| waiting.process).filter(|process| *process != facts.process);
            (others.collect::<Vec<_>>(), patience)
        };
        let now = terms.now().0;
        match &self.served {
            Some((before, since)) if *before == heads && !heads.is_empty() => {
                if now.since(*since) >= patience {
                    self.absent.extend(heads);
                    self.served = None;
                }
            }
            _ => self.served = Some((heads, now)),
        }
    }

    /// Asks for the second witness where the first says that a holder's time is over: by a time object that is written before
    /// the record is read again, or by the lock that the holder's process keeps.
    pub(super) async fn second_look(&mut self, slot: &SemaphoreSlot, terms: &Terms) -> Result<()> {
        let (mut gone, mut ask) = (Vec::new(), false);
        {
            let Some(record) = self.record() else { return Ok(()) };
            let facts = self.facts_now(terms);
            for holding in &record.holders {
                if facts.ending(holding, terms) != Ending::MayHaveEnded {
                    continue;
                }
                let (known, view, lease) = (facts.known(holding, terms), view(holding), &holding.lease);
                if facts.host {
                    // Where no clock will ever speak.
                    if known.seconds(&view, lease)[1] == Second::Missing {
                        gone.push((lease.beat, lease.process));
                    }
                    continue;
                }
                let whole = |at: Timestamp| Timestamp::from_millis(at.as_millis().div_euclid(1000) * 1000);
                let time = known.time.max(terms.backend().store_time().map(whole));
                let seconds = ended::Known { time, ..known }.seconds(&view, lease);
                let bounds = &facts.bounds;
                let long_over = lease.expires.plus(ended::longest_belief(lease, bounds)).plus(LATE) < facts.wall;
                let half = lease.lasts(bounds.max_ttl) / 2;
                let rarely = self.asked.is_none_or(|asked| facts.moment.since(asked) >= half);
                ask |= long_over && rarely && bounds.stamp_slack.is_some()
                    || ended::seconds_wait(seconds, lease, bounds) == Some(Duration::ZERO);
            }
        }
        for (beat, process) in gone {
            if terms.backend().has_ended(process).await {
                self.gone.insert(beat);
            }
        }
        if ask {
            self.asked = Some(terms.now().0);
            terms.backend().write_time().await?;
            self.read(slot, terms).await?;
        }
        Ok(())
    }
}
