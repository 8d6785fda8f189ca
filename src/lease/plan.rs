//! What may be written for a key: rules without requests, locks or waiting, for operations, models and tests alike.
//!
//! A rule gets a [`View`]: what is known of the key, the readings of all clocks, and what this process goes by. It answers
//! with a [`Plan`]: the change that is to be written, or that there is nothing to write. Granting needs a wall clock that
//! was checked against the store's; that is done by the caller, with every attempt.

pub(crate) mod session;

use super::{
    alive::Under,
    ended::{self, Bounds, State},
    loss::{Loss, LossReason},
    record::{Asked, Boot, ForcedAway, Lease, Mark, Record, SessionName},
    types::{Grant, Request},
};
use crate::{
    BootId, Error, ErrorKind, Fence, Hour, LeaseId, Result, Ttl, WriteId,
    clock::{Moment, Timestamp},
    id::ProcessId,
    storage::cas::Stamp,
    ttl::in_words,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// The two clocks, read one after the other: the monotonic one first, so that a stall in between shortens belief.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) moment: Moment,
    pub(crate) wall: Timestamp,
}

/// What one process goes by in all its plans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) process: ProcessId,
    /// Which start of the machine this process's monotonic clock counts from, where leases end by that clock.
    pub(crate) boot: Option<BootId>,
    /// Whether leases end by the clock of the host, as in a local directory.
    pub(crate) host: bool,
    pub(crate) epoch: u64,
    pub(crate) max_clock_skew: Duration,
    pub(crate) max_ttl: Duration,
}

/// What all clocks say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readings {
    pub(crate) now: Now,
    /// It is not later than this by the store's clock, if that is known.
    pub(crate) store_upper: Option<Timestamp>,
    /// What stamps of the store may be apart; `None` where they end nothing.
    pub(crate) stamp_slack: Option<Duration>,
}

/// What is known of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) record: Option<&'a Record>,
    /// When the store received the record, if it was read.
    pub(crate) modified: Option<Timestamp>,
    /// The stamp of a time object that was written before the record was read.
    pub(crate) time: Option<Timestamp>,
    /// The highest fence that this process has seen.
    pub(crate) fence: Option<Fence>,
    /// What this process believes of the lease that it was last given or renewed.
    pub(crate) belief: Option<&'a Belief>,
    /// The last beat that this process wrote, and its monotonic clock before it was sent.
    pub(crate) own: Option<(WriteId, Moment)>,
    /// Whether the record is no newer than the one in which that beat was seen.
    pub(crate) is_older_than_own: bool,
    /// A beat whose process was found to have ended.
    pub(crate) gone: Option<WriteId>,
    /// A session whose end was proven.
    pub(crate) session_over: Option<SessionName>,
}

impl Facts<'_> {
    /// A record that was just read, by a process that knows nothing else.
    pub(crate) fn read(record: Option<&Record>, modified: Option<Timestamp>, time: Option<Timestamp>) -> Facts<'_> {
        Facts {
            record,
            modified,
            time,
            fence: None,
            belief: None,
            own: None,
            is_older_than_own: true,
            gone: None,
            session_over: None,
        }
    }
}

/// How long a lease may be believed in by the monotonic clock, and the expiry that this goes with.
#[derive(Debug, Clone)]
pub(crate) struct Belief {
    pub(crate) id: LeaseId,
    pub(crate) deadline: Moment,
    pub(crate) expires: Timestamp,
    /// Set when it was found to be over, for all grants of the lease.
    pub(crate) over: Arc<AtomicBool>,
}

impl Belief {
    /// Whether it was found to be over.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// When it ends by the monotonic clock if its expiry has moved to this: it never moves further than the expiry did.
    pub(crate) fn deadline_at(&self, expires: Timestamp) -> Moment {
        self.deadline.plus(expires.since(self.expires))
    }
}

impl From<&Grant> for Belief {
    fn from(grant: &Grant) -> Self {
        Self { id: grant.id, deadline: grant.deadline, expires: grant.expires, over: Arc::clone(&grant.over) }
    }
}

/// What an operation wants to do about a record.
#[derive(Debug)]
pub(crate) enum Plan<O> {
    /// Nothing: this is the outcome.
    Stop(O),
    /// To write this.
    Write(Box<Change>),
}

impl<O> Plan<O> {
    pub(crate) fn write(change: Change) -> Self {
        Self::Write(Box::new(change))
    }
}

/// The parts of a record that an operation changes. What it leaves out stays.
#[derive(Debug)]
pub(crate) struct Change {
    /// A grant or a renewal carries its own write id as its beat.
    pub(crate) beats: bool,
    pub(crate) lease: Option<Lease>,
    pub(crate) waiting: Option<Mark>,
    pub(crate) last_fence: Option<Fence>,
    /// The lease that is there is taken away by an operator.
    pub(crate) forced: Option<Box<ForcedAway>>,
    /// Leases under the session that this record is of, which its process is asked to give back.
    pub(crate) asked: Vec<Asked>,
}

impl Change {
    /// The lease goes, and with it any mark.
    pub(crate) fn free(record: Option<&Record>) -> Self {
        Self {
            beats: false,
            lease: None,
            waiting: None,
            last_fence: record.and_then(|record| record.last_fence),
            forced: None,
            asked: Vec::new(),
        }
    }

    /// A grant, with its fence.
    fn grant(lease: Lease, waiting: Option<Mark>) -> Self {
        let last_fence = Some(lease.fence);
        Self { beats: true, lease: Some(lease), waiting, last_fence, ..Self::free(None) }
    }

    /// The record that is written, filed under this hour.
    pub(crate) fn record(
        self,
        base: Option<&Record>,
        stamp: Stamp,
        now: Now,
        epoch: u64,
        filed: Option<Hour>,
    ) -> Record {
        let mut record = Record { lease: self.lease, epoch, ..Record::without_lease(base, stamp, now.wall) };
        record.forced = self.forced.or(record.forced).filter(|_| record.lease.is_none());
        if let Some(lease) = record.lease.as_mut().filter(|_| self.beats) {
            lease.beat = stamp.write_id;
        }
        record.waiting = self.waiting;
        record.last_fence = self.last_fence;
        record.hour = filed;
        record.asked = self.asked;
        record.with_its_format()
    }
}

/// What a new lease is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) request: &'a Request,
    pub(crate) ttl: Ttl,
    pub(crate) id: LeaseId,
    pub(crate) under: Option<Under>,
}

/// Everything that a rule goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) facts: Facts<'a>,
    pub(crate) readings: Readings,
    pub(crate) rules: &'a Rules,
}

impl<'a> View<'a> {
    pub(crate) fn lease(&self) -> Option<&'a Lease> {
        self.facts.record.and_then(|record| record.lease.as_ref())
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let Rules { max_clock_skew, max_ttl, .. } = *self.rules;
        Bounds { max_clock_skew, max_ttl, stamp_slack: self.readings.stamp_slack }
    }

    pub(crate) fn known(&self) -> ended::Known {
        let Facts { modified, time, own, gone, session_over, .. } = self.facts;
        let Rules { host, boot, .. } = *self.rules;
        ended::Known { modified, time, own, gone, session_over, now: self.readings.now.moment, host, boot }
    }

    /// What the record means to all but its holder. `watched` is a beat that was watched for long enough.
    pub(crate) fn state(&self, watched: Option<WriteId>) -> State<'a> {
        ended::judge(self.facts.record, self.readings.now.wall, &self.known(), watched, &self.bounds())
    }

    /// Whether its own holder has stopped believing in a lease, as far as is known here.
    pub(crate) fn has_ended(&self, lease: &Lease) -> bool {
        let now = self.readings.now;
        let over = |belief: &Belief| {
            // Another process may have renewed it since: a caller that is granted it again begins to believe anew.
            let found_over = belief.is_over() && belief.expires == lease.expires;
            found_over || now.moment >= belief.deadline_at(lease.expires)
        };
        now.wall >= lease.expires || self.facts.belief.filter(|belief| belief.id == lease.id).is_some_and(over)
    }

    /// Whether a request is one that was granted already, and the lease is still alive.
    pub(crate) fn repeats(&self, request: &Request, lease: &Lease) -> bool {
        request.request_id.is_some()
            && request.request_id == lease.request_id
            && request.owner == lease.owner
            && !self.has_ended(lease)
    }

    /// Whether this process wrote the last beat of its own lease. Where it remembers none of its own it cannot tell.
    fn is_own(&self, lease: &Lease) -> bool {
        self.facts.is_older_than_own || self.facts.own.is_none_or(|(own, _)| own == lease.beat)
    }

    /// When a new lease ends by the wall clock: not much later than by the store's, or a dead holder whose clock was ahead
    /// would keep a key closed for as long.
    pub(crate) fn expiry(&self, ttl: Ttl) -> Result<Timestamp> {
        let wall = self.readings.now.wall;
        let latest = self.readings.store_upper.map(|upper| upper.plus(self.rules.max_clock_skew));
        let expires = ttl.expiry(latest.map_or(wall, |latest| wall.min(latest)))?;
        if expires <= wall {
            return Err(Error::new(
                ErrorKind::Clock,
                format!(
                    "this machine's clock says {wall}, which is so far ahead of the store's that a lease of {} would be \
                     over before it is granted: set the clock, for instance by NTP",
                    in_words(ttl.as_duration())
                ),
            ));
        }
        Ok(expires)
    }

    /// It is not later than this, by the store's clock as far as that is known.
    pub(crate) fn store_upper(&self) -> Timestamp {
        self.readings.store_upper.unwrap_or(self.readings.now.wall)
    }

    pub(crate) fn boot(&self) -> Option<Boot> {
        self.rules.boot.map(|id| Boot { id, at: self.readings.now.moment.since(Moment::default()) })
    }

    /// A lease for a new holder, with a fence above all others.
    fn new_lease(&self, wanted: Wanted<'_>) -> Result<Lease> {
        let Wanted { request, ttl, id, under } = wanted;
        let (wall, skew) = (self.readings.now.wall, self.rules.max_clock_skew);
        // A record without a fence is as good as none: it was made where there was none, and granted nothing yet.
        let fence = match self.facts.record.and_then(|record| record.last_fence) {
            Some(last) => Fence::next(self.facts.fence.max(Some(last)), wall, skew)?,
            None => Fence::first(self.facts.fence, self.store_upper(), skew)?,
        };
        Ok(Lease {
            id,
            request_id: request.request_id.clone(),
            owner: request.owner.clone(),
            process: self.rules.process,
            note: request.note.clone(),
            fence,
            granted: wall,
            expires: under.map_or_else(|| self.expiry(ttl), |under| Ok(under.expires))?,
            ttl: under.map_or(ttl, |under| under.ttl),
            // Replaced by the write id of the attempt.
            beat: WriteId::from([0; 16]),
            lasts: Some(ttl.as_duration()),
            boot: self.boot(),
            session: under.map(|under| under.name),
        })
    }

    /// The lease that is there for longer, held by this process. Its expiry never moves back, and a mark stays.
    fn extended(&self, lease: &Lease, ttl: Ttl) -> Result<Change> {
        let (record, now) = (self.facts.record, self.readings.now);
        let max_ttl = self.rules.max_ttl;
        let lasts = ended::lasts_after_renewal(lease, ttl.as_duration(), self.facts.own, now.moment, max_ttl);
        let expires = match self.expiry(ttl) {
            Ok(expires) => expires.max(lease.expires),
            // Renewing goes on however wrong the clock is; what is believed of the lease is another matter.
            Err(error) if error.kind() == ErrorKind::Clock => lease.expires,
            Err(error) => return Err(error),
        };
        let renewed =
            Lease { expires, ttl, process: self.rules.process, lasts: Some(lasts), boot: self.boot(), ..lease.clone() };
        Ok(Change {
            beats: true,
            lease: Some(renewed),
            waiting: record.and_then(|record| record.waiting),
            asked: record.map_or_else(Vec::new, |record| record.asked.clone()),
            ..Change::free(record)
        })
    }

    /// Above every fence that a record which cannot be read, or is not there, can have had: another machine may have made
    /// a record where there was none, by what it knew of the store's time.
    pub(crate) fn fence_above_all(&self, known: Option<Fence>) -> Result<Fence> {
        let skew = self.rules.max_clock_skew;
        let above = Fence::first(known, self.store_upper(), skew)?;
        Fence::first(Some(above), self.readings.now.wall, skew)
    }
}

/// A grant: again to the caller that was granted it before by its request id, or to a new holder where the key is free or its lease has
/// ended. Stops where it is held. `watched` is a beat that was watched for long enough to be taken over.
pub(crate) fn grant(view: &View<'_>, wanted: Wanted<'_>, watched: Option<WriteId>) -> Result<Plan<()>> {
    match view.state(watched) {
        State::Held(lease) | State::MayHaveEnded(lease) if view.repeats(wanted.request, lease) => {
            Ok(Plan::write(view.extended(lease, wanted.ttl)?))
        }
        State::Held(_) | State::MayHaveEnded(_) => Ok(Plan::Stop(())),
        State::Free | State::Ended(_) => grant_new(view, wanted),
    }
}

/// A grant to a new holder, over a lease that has ended. No mark survives it: the next one to wait may ask.
fn grant_new(view: &View<'_>, wanted: Wanted<'_>) -> Result<Plan<()>> {
    // An earlier attempt of this very operation landed, and ended before that was known. Another caller may have been
    // given it by its request id, so the id is used up.
    if view.lease().is_some_and(|lease| lease.id == wanted.id) {
        let wall = view.readings.now.wall;
        return Err(Error::unavailable(format!("a lease was granted too late to be of use: it ended at {wall}")));
    }
    Ok(Plan::write(Change::grant(view.new_lease(wanted)?, None)))
}

/// The lease that this very request was granted before, if it is alive; never a new one.
pub(crate) fn regrant(view: &View<'_>, request: &Request, ttl: Ttl) -> Result<Plan<()>> {
    Ok(match view.lease() {
        Some(lease) if view.repeats(request, lease) => Plan::write(view.extended(lease, ttl)?),
        _ => Plan::Stop(()),
    })
}

/// What a holder has believed of its lease so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Believed {
    pub(crate) over: bool,
    pub(crate) deadline: Moment,
}

impl From<&Grant> for Believed {
    fn from(grant: &Grant) -> Self {
        Self { over: grant.over.load(Relaxed), deadline: grant.deadline }
    }
}

/// A renewal, for this time to live or for the one that the lease has in the store, which another process may have changed.
/// Stops with the loss if the lease has ended or is not there any more.
pub(crate) fn renew(view: &View<'_>, id: LeaseId, ttl: Option<Ttl>, old: Option<Believed>) -> Result<Plan<Loss>> {
    let fence = view.facts.fence;
    let Some(lease) = view.lease().filter(|lease| lease.id == id) else {
        return Ok(Plan::Stop(Loss::found(id, view.facts.record, fence)));
    };
    session::may_renew(lease)?;
    let moment = view.readings.now.moment;
    let ended = view.has_ended(lease) || old.is_some_and(|old| old.over || moment >= old.deadline);
    if ended {
        return Ok(Plan::Stop(Loss::expired(None, fence)));
    }
    // The one that renewed it has this process's name and its lease, and no request id to have come by it.
    let cloned = old.is_some() && is_cloned(view, lease);
    if cloned {
        return Ok(Plan::Stop(Loss::new(LossReason::Cloned, fence)));
    }
    Ok(Plan::write(view.extended(lease, ttl.unwrap_or(lease.ttl))?))
}

/// Whether a clone of this machine renewed a lease of this process.
fn is_cloned(view: &View<'_>, lease: &Lease) -> bool {
    lease.request_id.is_none() && lease.process == view.rules.process && !view.is_own(lease)
}

/// Gives a lease back, or on to one who waits in this process: then it is a grant, and the mark of another process stays.
/// Stops where the lease is not there, or is a clone's that believes in it.
pub(crate) fn release(view: &View<'_>, id: LeaseId, next: Option<Wanted<'_>>) -> Result<Plan<()>> {
    let Some(lease) = view.lease().filter(|lease| lease.id == id) else { return Ok(Plan::Stop(())) };
    if is_cloned(view, lease) {
        return Ok(Plan::Stop(()));
    }
    session::may_release(lease, view.rules.process)?;
    let Some(wanted) = next else { return Ok(Plan::write(Change::free(view.facts.record))) };
    let waiting = view.facts.record.and_then(|record| record.waiting);
    Ok(Plan::write(Change::grant(view.new_lease(wanted)?, waiting)))
}

/// Clears a lease that has ended; anything else is left alone.
pub(crate) fn clear(view: &View<'_>, watched: Option<WriteId>) -> Plan<()> {
    match view.state(watched) {
        State::Ended(_) => Plan::write(Change::free(view.facts.record)),
        _ => Plan::Stop(()),
    }
}

/// Frees a lease that nothing was written to since.
pub(crate) fn free_unchanged(view: &View<'_>, id: LeaseId, beat: WriteId) -> Plan<()> {
    match view.lease() {
        Some(lease) if (lease.id, lease.beat) == (id, beat) => Plan::write(Change::free(view.facts.record)),
        _ => Plan::Stop(()),
    }
}

/// Takes a lease away by force. The fence rises, so that what it protects can refuse its holder.
pub(crate) fn force_away(view: &View<'_>, away: ForcedAway) -> Result<Plan<()>> {
    if view.lease().is_none_or(|lease| lease.id != away.lease) {
        return Ok(Plan::Stop(()));
    }
    let record = view.facts.record;
    let last = view.facts.fence.max(record.and_then(|record| record.last_fence));
    let fence = Fence::next(last, view.readings.now.wall, view.rules.max_clock_skew)?;
    Ok(Plan::write(Change { last_fence: Some(fence), forced: Some(Box::new(away)), ..Change::free(record) }))
}

/// A free record where there is none.
pub(crate) fn make_free(view: &View<'_>) -> Result<Plan<()>> {
    if view.facts.record.is_some() {
        return Ok(Plan::Stop(()));
    }
    let fence = view.fence_above_all(view.facts.fence)?;
    Ok(Plan::write(Change { last_fence: Some(fence), ..Change::free(None) }))
}

/// Why a lease that was planned is not worth sending any more, if so: writing its entry took time, and so may what was
/// before. `planned` are the clocks that the lease was made by; the view has those of now.
pub(crate) fn too_late(view: &View<'_>, lease: &Lease, planned: Now) -> Option<&'static str> {
    let now = view.readings.now;
    // Under a session it is the session that has to be believed in, which the caller looks at.
    if lease.session.is_some() {
        return None;
    }
    if now.moment >= planned.moment.plus(lease.ttl.as_duration()) || now.wall >= lease.expires {
        return Some("would have been over before it was written");
    }
    // What has ended is not renewed, also if it ended since the plan was made.
    let ended = view.lease().filter(|old| old.id == lease.id).is_some_and(|old| view.has_ended(old));
    ended.then_some("was over before its renewal was sent")
}

#[cfg(test)]
mod tests;
