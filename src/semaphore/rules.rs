//! What one write makes of a record: a pure function of what is there, what is wanted, and what the clocks say.

use super::{
    MAX_WAITING,
    record::{FORMAT, Holding, Record, Waiting},
};
use crate::{
    Error, ErrorKind, Fence, Hour, LeaseId, ProcessId, Result, Ttl, WriteId,
    clock::{Moment, Timestamp},
    lease::{
        LossReason, Request, Terms,
        ended::{self, Bounds, Known, State},
        record::{Lease, Record as LeaseRecord},
    },
    storage::cas::Stamp,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// For how long a process that says that it waits is believed; it says so again at half of that.
pub(super) const LINE_LASTS: Duration = Duration::from_secs(60);

/// What a holder believed so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Believed {
    pub(super) deadline: Moment,
    pub(super) expires: Timestamp,
    /// It was found to be over.
    pub(super) over: bool,
}

impl Believed {
    /// When belief ends if the expiry has moved to this: it never moves further than the expiry did.
    fn deadline_at(&self, expires: Timestamp) -> Moment {
        self.deadline.plus(expires.since(self.expires))
    }

    /// What is believed after a renewal that was sent then.
    pub(super) fn renewed(before: Option<Self>, sent: Moment, ttl: Duration, expires: Timestamp) -> Moment {
        let latest = sent.plus(ttl);
        before.map_or(latest, |before| latest.min(before.deadline_at(expires)).max(before.deadline))
    }
}

/// A slot that is to be renewed.
#[derive(Debug, Clone)]
pub(super) struct Renewal {
    pub(super) id: LeaseId,
    pub(super) ttl: Option<Ttl>,
    pub(super) believed: Option<Believed>,
    /// A permit of this process keeps it: no other process writes its beats.
    pub(super) kept: bool,
}

/// A slot that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) id: LeaseId,
    pub(super) request: Request,
    pub(super) ttl: Ttl,
    pub(super) size: u32,
    pub(super) waits: bool,
}

/// Everything that one write is to do.
#[derive(Debug, Clone, Default)]
pub(super) struct Wishes {
    pub(super) renewals: Vec<Renewal>,
    pub(super) releases: Vec<LeaseId>,
    pub(super) resize: Option<u32>,
    /// How many slots were last asked for: a create in doubt is settled by another one with as many.
    pub(super) size: Option<u32>,
    /// In the order in which they are to be served: those who wait first.
    pub(super) grants: Vec<Wish>,
    /// Ended holders are reason enough to write.
    pub(super) clear: bool,
    /// This process waits although nobody of it is among the grants, or does not any more.
    pub(super) in_line: bool,
}

/// What became of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Granted,
    Full,
    /// The semaphore has another size than was asked for.
    WrongSize(u32),
    Renewed,
    Lost(LossReason),
}

/// What is known beside the record.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) process: ProcessId,
    pub(super) moment: Moment,
    pub(super) wall: Timestamp,
    /// When the store received the record, if it was read; and the stamp of a time object written before that.
    pub(super) modified: Option<Timestamp>,
    pub(super) time: Option<Timestamp>,
    /// The last beats that this process wrote, with its monotonic clock before each was sent.
    pub(super) own: &'a BTreeMap<LeaseId, (WriteId, Moment)>,
    /// Whose beats were watched for long enough, and beats whose process has ended. Several holders can have one beat, that of
    /// the write that renewed them all, and do not last equally long.
    pub(super) watched: &'a BTreeSet<(LeaseId, WriteId)>,
    pub(super) gone: &'a BTreeSet<WriteId>,
    /// Processes that were given their turn and did not take it.
    pub(super) absent: &'a BTreeSet<ProcessId>,
    /// The highest fence that this process knows of.
    pub(super) fence: Option<Fence>,
    /// How often this process looks at the least.
    pub(super) interval: Duration,
    pub(super) host: bool,
    pub(super) bounds: Bounds,
}

/// Whether other processes may treat a holder as ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Held,
    MayHaveEnded,
    Ended,
}

impl Facts<'_> {
    /// What the rules of leases are told about one holder. The record's own stamp is that of its last write, which may be
    /// anybody's: it counts only for a holder whose beat has no stamp of its own, and is not before that beat.
    pub(super) fn known(&self, holding: &Holding, terms: &Terms) -> Known {
        Known {
            modified: holding.beat_stamp.or(self.modified),
            time: self.time,
            own: self.own.get(&holding.lease.id).copied(),
            gone: self.gone.contains(&holding.lease.beat).then_some(holding.lease.beat),
            now: self.moment,
            host: self.host,
            boot: terms.boot(),
            session_over: None,
        }
    }

    pub(super) fn ending(&self, holding: &Holding, terms: &Terms) -> Ending {
        let (id, beat) = (holding.lease.id, holding.lease.beat);
        let watched = self.watched.contains(&(id, beat)).then_some(beat);
        let view = view(holding);
        match ended::judge(Some(&view), self.wall, &self.known(holding, terms), watched, &self.bounds) {
            State::Ended(_) | State::Free => Ending::Ended,
            State::MayHaveEnded(_) => Ending::MayHaveEnded,
            State::Held(_) => Ending::Held,
        }
    }

    /// Whether a process that says that it waits is to be waited for.
    fn counts(&self, waiting: &Waiting) -> bool {
        let latest = self.wall.plus(2 * LINE_LASTS);
        self.wall < waiting.until && waiting.until <= latest && !self.absent.contains(&waiting.process)
    }
}

/// One holder as the rules of leases see it: alone in a record.
pub(super) fn view(holding: &Holding) -> LeaseRecord {
    let stamp = Stamp { write_id: holding.lease.beat, revision: 1 };
    LeaseRecord { lease: Some(holding.lease.clone()), ..LeaseRecord::without_lease(None, stamp, holding.lease.granted) }
}

/// What is to be written, and what callers are told if it lands.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) record: Record,
    /// Whether there is any reason to write it.
    pub(super) changed: bool,
    pub(super) renewals: Vec<Told>,
    pub(super) grants: Vec<Told>,
    pub(super) cleared: u64,
}

/// What follows the record that is there.
pub(super) fn plan(
    base: Option<&Record>,
    wishes: &Wishes,
    facts: &Facts<'_>,
    terms: &Terms,
    stamp: Stamp,
) -> Result<Planned> {
    let asked = wishes.grants.first().map(|wish| wish.size).or(wishes.size);
    let size = base.map(|base| base.size).or(asked);
    let mut next = Planned {
        record: Record {
            format: FORMAT,
            write_id: stamp.write_id,
            revision: stamp.revision,
            size: size.unwrap_or(1),
            last_fence: base.and_then(|base| base.last_fence),
            holders: base.map(|base| base.holders.clone()).unwrap_or_default(),
            waiting: base.map(|base| base.waiting.clone()).unwrap_or_default(),
            written: facts.wall,
            hour: base.and_then(|base| base.hour),
            epoch: terms.shared().epoch,
        },
        changed: false,
        renewals: Vec::new(),
        grants: Vec::new(),
        cleared: 0,
    };
    // A holder whose beat this write leaves alone keeps the stamp of that beat.
    next.record.holders.iter_mut().for_each(|holding| holding.beat_stamp = holding.beat_stamp.or(facts.modified));
    for renewal in &wishes.renewals {
        let told = next.renew(renewal, facts, terms, stamp)?;
        next.renewals.push(told);
    }
    let before = next.record.holders.len();
    next.record.holders.retain(|holding| !wishes.releases.contains(&holding.lease.id));
    next.changed |= next.record.holders.len() < before;
    next.clear(base, wishes, facts, terms);
    if let (Some(size), Some(base)) = (wishes.resize, base) {
        next.changed |= base.size != size;
        next.record.size = size;
    }
    next.grant_all(wishes, facts, terms, stamp)?;
    Ok(next)
}

impl Planned {
    fn renew(&mut self, renewal: &Renewal, facts: &Facts<'_>, terms: &Terms, stamp: Stamp) -> Result<Told> {
        let Some(holding) = self.record.holders.iter_mut().find(|holding| holding.lease.id == renewal.id) else {
            return Ok(Told::Lost(LossReason::Released));
        };
        let lease = &holding.lease;
        let over = |believed: Believed| believed.over || facts.moment >= believed.deadline_at(lease.expires);
        if facts.wall >= lease.expires || renewal.believed.is_some_and(over) {
            return Ok(Told::Lost(LossReason::Expired { failing: None }));
        }
        let own = facts.own.get(&lease.id).copied();
        let cloned = lease.process == facts.process && own.is_some_and(|(beat, _)| beat != lease.beat);
        if renewal.kept && cloned {
            return Ok(Told::Lost(LossReason::Cloned));
        }
        let ttl = renewal.ttl.unwrap_or(lease.ttl);
        let lasts = ended::lasts_after_renewal(lease, ttl.as_duration(), own, facts.moment, facts.bounds.max_ttl);
        let expires = match terms.expiry(facts.moment, facts.wall, ttl) {
            Ok(expires) => expires.max(lease.expires),
            // Renewing goes on however wrong the clock is; what is believed of the slot is another matter.
            Err(error) if error.kind() == ErrorKind::Clock => lease.expires,
            Err(error) => return Err(error),
        };
        holding.lease = Lease {
            expires,
            ttl,
            process: facts.process,
            lasts: Some(lasts),
            boot: terms.boot_at(facts.moment),
            beat: stamp.write_id,
            ..lease.clone()
        };
        holding.beat_stamp = None;
        self.file(expires)?;
        self.changed = true;
        Ok(Told::Renewed)
    }

    /// Takes ended holders out. Those that were just renewed have not ended.
    fn clear(&mut self, base: Option<&Record>, wishes: &Wishes, facts: &Facts<'_>, terms: &Terms) {
        if terms.believe(facts.wall).is_err() {
            return;
        }
        let beat = |id: LeaseId| base.and_then(|base| base.holder(id)).map(|holding| holding.lease.beat);
        let before = self.record.holders.len();
        self.record.holders.retain(|holding| {
            beat(holding.lease.id) != Some(holding.lease.beat) || facts.ending(holding, terms) != Ending::Ended
        });
        self.cleared = (before - self.record.holders.len()) as u64;
        self.changed |= wishes.clear && self.cleared > 0;
    }

    /// Serves those who ask, as far as there are slots that nobody has been waiting for longer, and stands in line for the
    /// rest.
    fn grant_all(&mut self, wishes: &Wishes, facts: &Facts<'_>, terms: &Terms, stamp: Stamp) -> Result<()> {
        let me = facts.process;
        let line = &mut self.record.waiting;
        let stood = line.len();
        line.retain(|waiting| facts.counts(waiting));
        let gone = line.len() < stood;
        let place = line.iter().position(|waiting| waiting.process == me);
        let size = usize::try_from(self.record.size).unwrap_or(usize::MAX);
        let mut free = size.saturating_sub(self.record.holders.len());
        // One for its turn, and then only what is left when all others in line have had theirs.
        let mut turn = usize::from(place.is_some_and(|place| free > place));
        let others = line.iter().filter(|waiting| waiting.process != me).count();
        let mut served = false;
        let mut left = wishes.in_line;
        for wish in &wishes.grants {
            if wish.size != self.record.size {
                self.grants.push(Told::WrongSize(self.record.size));
                continue;
            }
            let first = wish.waits && turn > 0;
            if free == 0 || !first && free <= others + turn {
                left |= wish.waits;
                self.grants.push(Told::Full);
                continue;
            }
            terms.believe(facts.wall)?;
            self.grant(wish, facts, terms, stamp)?;
            served |= first;
            turn -= usize::from(first);
            free -= 1;
            self.grants.push(Told::Granted);
            self.changed = true;
        }
        self.stand(place.is_some(), served, left, facts);
        // Worth a write only while a caller waits.
        self.changed |= gone && left;
        Ok(())
    }

    fn grant(&mut self, wish: &Wish, facts: &Facts<'_>, terms: &Terms, stamp: Stamp) -> Result<()> {
        if self.record.holder(wish.id).is_some() {
            return Err(Error::unavailable("a slot was granted too late to be of use"));
        }
        let skew = facts.bounds.max_clock_skew;
        let fence = match self.record.last_fence {
            Some(last) => Fence::next(facts.fence.max(Some(last)), facts.wall, skew)?,
            None => Fence::first(facts.fence, terms.store_upper(facts.wall), skew)?,
        };
        let expires = terms.expiry(facts.moment, facts.wall, wish.ttl)?;
        let taken: BTreeSet<u32> = self.record.holders.iter().map(|holding| holding.number).collect();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX);
        let lease = Lease {
            id: wish.id,
            request_id: None,
            owner: wish.request.owner.clone(),
            process: facts.process,
            note: wish.request.note.clone(),
            fence,
            granted: facts.wall,
            expires,
            ttl: wish.ttl,
            beat: stamp.write_id,
            lasts: Some(wish.ttl.as_duration()),
            boot: terms.boot_at(facts.moment),
            session: None,
        };
        self.record.last_fence = Some(fence);
        self.record.holders.push(Holding { number, lease, beat_stamp: None });
        self.file(expires)
    }

    fn file(&mut self, expires: Timestamp) -> Result<()> {
        self.record.hour = self.record.hour.max(Some(Hour::of(expires)?));
        Ok(())
    }

    /// Keeps, renews, moves or gives up this process's place in the line.
    fn stand(&mut self, stood: bool, served: bool, left: bool, facts: &Facts<'_>) {
        let me = facts.process;
        let line = &mut self.record.waiting;
        if served || !left {
            // A process that was served goes to the end of the line if it wants more.
            line.retain(|waiting| waiting.process != me);
            self.changed |= stood;
        }
        if !left {
            return;
        }
        let (until, interval) = (facts.wall.plus(LINE_LASTS), facts.interval);
        let room = line.len() < MAX_WAITING;
        match line.iter_mut().find(|waiting| waiting.process == me) {
            Some(mine) if mine.until.since(facts.wall) < LINE_LASTS / 2 => {
                (mine.until, mine.interval) = (until, interval);
                self.changed = true;
            }
            Some(_) => {}
            None if room => {
                line.push(Waiting { process: me, since: facts.wall, until, interval });
                self.changed = true;
            }
            None => {}
        }
    }
}

/// How many of the first in line could have a slot now.
pub(super) fn could_be_served(record: &Record, facts: &Facts<'_>, terms: &Terms) -> usize {
    let held = record.holders.iter().filter(|holding| facts.ending(holding, terms) != Ending::Ended).count();
    usize::try_from(record.size).unwrap_or(usize::MAX).saturating_sub(held)
}
