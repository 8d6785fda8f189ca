//! The operations on one key: each holds the key's core, plans a change on what is known of it, and swaps.

use super::{
    cell::{Belief, Cell, Cells, Core, Known},
    flight::{Flight, Intent},
    keeper::Keeper,
    record::{self, Lease, Mark, Record, State},
    types::{Acquired, Grant, Held, Holder, Loss, Renewed, Request, Status},
};
use crate::{
    Bucket, Error, ErrorKind, Fence, LeaseId, Result, Settings, Ttl, WriteId,
    clock::{self, Moment, Timestamp},
    id::ProcessId,
    index,
    planted::{Planted, planted},
    store::{
        Agreement, Backend,
        cas::{self, Outcome, Stamp},
    },
    sweep::Activity,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::OwnedMutexGuard;
use tokio_util::task::TaskTracker;

/// How often a write is tried again because somebody else's came first, before we say that there is too much of that.
const MAX_CONFLICTS: u32 = 32;

/// The two clocks, read one after the other: the monotonic one first, so that a stall in between shortens belief.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) moment: Moment,
    pub(super) wall: Timestamp,
}

/// What an operation wants to do about a record.
pub(super) enum Plan<O> {
    /// Nothing: this is the outcome.
    Stop(O),
    /// To write this.
    Write(Box<Change>),
}

impl<O> Plan<O> {
    pub(super) fn write(change: Change) -> Self {
        Self::Write(Box::new(change))
    }
}

/// The parts of a record that an operation changes. Whatever it leaves out stays.
pub(super) struct Change {
    /// A grant or a renewal carries its own write id as its beat.
    pub(super) beats: bool,
    pub(super) lease: Option<Lease>,
    pub(super) waiting: Option<Mark>,
    pub(super) last_fence: Option<Fence>,
}

/// How a swap ended.
pub(super) enum Swapped<O> {
    /// The change is in the store; the clocks are those of the attempt that landed.
    Won(Now),
    Stopped(O),
}

/// What the leases of one opened store share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) backend: Arc<Backend>,
    pub(super) agreement: Agreement,
    pub(super) settings: Settings,
    pub(super) process: ProcessId,
    pub(super) cells: Cells,
    pub(super) activity: Arc<Activity>,
    pub(super) runtime: tokio::runtime::Handle,
    /// What dropped operations have left behind.
    pub(crate) leftovers: TaskTracker,
    pub(super) keeper: Keeper,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<Backend>,
        agreement: Agreement,
        settings: Settings,
        activity: Arc<Activity>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process: ProcessId::random(&*backend.generator),
            cells: Cells::new(settings.cached_keys),
            keeper: Keeper::default(),
            runtime: tokio::runtime::Handle::current(),
            leftovers: TaskTracker::new(),
            backend,
            agreement,
            settings,
            activity,
        })
    }

    pub(super) fn now(&self) -> Now {
        if planted(Planted::WallBeforeMonotonic) {
            let wall = self.backend.clock.wall();
            return Now { wall, moment: self.backend.clock.monotonic() };
        }
        let moment = self.backend.clock.monotonic();
        Now { moment, wall: self.backend.clock.wall() }
    }

    pub(super) fn judge<'a>(&self, lease: Option<&'a Lease>, now: Timestamp) -> State<'a> {
        let skew = if planted(Planted::NoSkewMargin) { Duration::ZERO } else { self.agreement.max_clock_skew };
        record::judge(lease, now, skew, self.agreement.max_ttl)
    }

    pub(super) fn clamp(&self, ttl: Ttl) -> Result<Ttl> {
        Ok(ttl.clamp(Ttl::new(self.settings.min_ttl)?, Ttl::new(self.agreement.max_ttl)?))
    }

    /// Granting and taking over need clocks that can be believed.
    pub(super) async fn trust_clock(&self) -> Result<()> {
        self.backend.trust_clock(&self.agreement).await
    }

    /// The same for one reading of the wall clock, by what is known. Asked again for the reading that a grant is made
    /// by: the clock may have been set while the operation waited.
    pub(super) fn believe(&self, wall: Timestamp) -> Result<()> {
        self.backend.believe(&self.agreement, wall)
    }

    /// How long an operation goes on trying.
    pub(super) fn patience(&self) -> Duration {
        3 * self.settings.request_timeout
    }

    /// The right to change a key, for which other operations of this process may have to be waited for.
    pub(super) async fn hold(&self, cell: &Cell) -> Result<OwnedMutexGuard<Core>> {
        let held = clock::within(&*self.backend.clock, self.patience(), Arc::clone(&cell.core).lock_owned()).await;
        held.ok_or_else(|| {
            Error::unavailable(format!(
                "another operation of this process on {} does not come to an end: the store may be down, try again later",
                cell.slot.key
            ))
        })
    }

    pub(super) async fn read(&self, cell: &Cell, core: &mut Core) -> Result<()> {
        let there = cas::read(&self.backend, &cell.slot).await?;
        core.learn(there)
    }

    /// Plans and writes until a change is in, or the plan says that there is nothing to do.
    ///
    /// `first` are clock readings from before the index entry was written, if that was done already.
    pub(super) async fn swap<O>(
        &self,
        flight: &mut Flight,
        mut first: Option<Now>,
        mut plan: impl FnMut(&Core, Now) -> Result<Plan<O>>,
    ) -> Result<Swapped<O>> {
        let give_up = self.now().moment.plus(self.patience());
        let (mut conflicts, mut retries) = (0, 0);
        let cell = Arc::clone(&flight.cell);
        // Whether an attempt may have landed. One that was refused has not, whatever it was refused for.
        let mut doubtful = false;
        loop {
            let now = first.take().unwrap_or_else(|| self.now());
            let change =
                match plan(flight.core(), now).map_err(|error| error.in_doubt(doubtful, &cell.slot.key, "changed"))? {
                    Plan::Stop(outcome) => return Ok(Swapped::Stopped(outcome)),
                    Plan::Write(change) => change,
                };
            if let Some(record) = flight.core().record() {
                record.must_be_ours(&cell.slot.key)?;
            }
            let error = match self.send(flight, now, change).await {
                Ok(Outcome::Won(seen, now)) => {
                    flight.settled();
                    flight.core().learn(Some(seen))?;
                    return Ok(Swapped::Won(now));
                }
                Ok(Outcome::Lost(there)) => {
                    flight.settled();
                    doubtful = false;
                    flight.core().learn(there)?;
                    conflicts += 1;
                    if conflicts == MAX_CONFLICTS {
                        return Err(Error::unavailable(format!(
                            "{} changes too fast: {MAX_CONFLICTS} writes in a row came too late",
                            cell.slot.key
                        )));
                    }
                    self.backend.pause(conflicts / 4).await;
                    continue;
                }
                Ok(Outcome::Unknown(error)) => {
                    doubtful |= error.is_retryable();
                    error
                }
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Regressed {
                // Still in doubt: where the answer was an old one, the write may be there.
                flight.core().forget();
                return Err(error);
            }
            if !error.is_retryable() || self.now().moment >= give_up {
                return Err(error.in_doubt(doubtful, &cell.slot.key, "changed"));
            }
            self.backend.pause(retries).await;
            retries += 1;
        }
    }

    /// The index entry where it is not known to be there, then the record with exactly the expiry that it was filed by.
    async fn send(&self, flight: &mut Flight, now: Now, change: Box<Change>) -> Result<Outcome<Record, Now>> {
        let mut bucket = flight.core().record().and_then(|record| record.bucket);
        let mut limit = self.settings.request_timeout;
        if let Some(lease) = change.lease.as_ref().filter(|_| change.beats) {
            let hour = Bucket::of(lease.expires)?;
            if bucket != Some(hour) && flight.core().indexed != Some(hour) && !planted(Planted::IndexAfterRecord) {
                self.file(flight, hour, lease.expires).await?;
            }
            bucket = Some(hour);
            // Far below the time to live.
            limit = limit.min(lease.ttl.as_duration() / 4);
            // Writing the entry took time, and so may whatever was before: a lease that is over is not worth sending.
            let current = self.now();
            if current.moment >= now.moment.plus(lease.ttl.as_duration()) || current.wall >= lease.expires {
                return Err(Error::unavailable(format!(
                    "the lease on {} would have been over before it was written",
                    flight.cell.slot.key
                )));
            }
            // So may the lease be that is to go on: it ended meanwhile, and what has ended is not renewed.
            let core = flight.core();
            let goes_on = core.record().and_then(|record| record.lease.as_ref()).filter(|old| old.id == lease.id);
            let ended = goes_on.is_some_and(|old| has_ended(core, old, current));
            if ended && !planted(Planted::RenewedAfterExpiry) {
                return Err(Error::unavailable(format!(
                    "the lease on {} was over before its renewal was sent",
                    flight.cell.slot.key
                )));
            }
        }
        let build = move |base: Option<&Record>, stamp: Stamp| {
            let mut record = Record { lease: change.lease, ..Record::without_lease(base, stamp, now.wall) };
            if let Some(lease) = record.lease.as_mut().filter(|_| change.beats) {
                lease.beat = stamp.write_id;
            }
            record.waiting = change.waiting;
            let kept = record.lease.is_some() || !planted(Planted::FenceInLeaseOnly);
            record.last_fence = change.last_fence.filter(|_| kept);
            record.bucket = bucket;
            record
        };
        Ok(flight.attempt(limit, now, build).await)
    }

    /// Writes the index entry of an hour. Only an Ok counts.
    pub(super) async fn file(&self, flight: &mut Flight, hour: Bucket, expires: Timestamp) -> Result<()> {
        let slot = &flight.cell.slot;
        let name = index::lease_entry(&slot.namespace, &slot.key, hour);
        self.backend.put_hint(&name, index::lease_entry_body(&slot.key, expires)).await?;
        flight.core().indexed = Some(hour);
        Ok(())
    }

    /// One try. The caller has marked activity.
    pub(super) async fn acquire(self: &Arc<Self>, cell: &Arc<Cell>, request: &Request) -> Result<Acquired> {
        self.trust_clock().await?;
        let core = self.hold(cell).await?;
        let id = LeaseId::random(&*self.backend.generator);
        self.acquire_held(core, cell, request, id, None).await
    }

    /// The same with the core in hand. `watched` is a beat that was watched for long enough to be taken over.
    pub(super) async fn acquire_held(
        self: &Arc<Self>,
        core: OwnedMutexGuard<Core>,
        cell: &Arc<Cell>,
        request: &Request,
        id: LeaseId,
        watched: Option<WriteId>,
    ) -> Result<Acquired> {
        let ttl = self.clamp(request.ttl)?;
        let mut flight = self.granting(core, cell, request, id);
        let now = self.now();
        if let Some(until) = flight.core().stay_back.filter(|until| *until > now.moment) {
            let again = match request.request_id {
                Some(_) => self.grant_again(&mut flight, request).await?,
                None => None,
            };
            let held = Held { by: None, retry_after: until.since(now.moment) };
            return Ok(again.map_or(Acquired::Held(held), Acquired::Granted));
        }
        let first = self.look(&mut flight, request, ttl, now).await?;
        let mut takes_over = false;
        let swapped = self.swap(&mut flight, first, |core, now| {
            let lease = core.record().and_then(|record| record.lease.as_ref());
            takes_over = matches!(self.judge(lease, now.wall), State::Expired(_));
            self.plan_grant(core, now, request, ttl, id, watched)
        });
        match swapped.await? {
            // It may be held by the very write that is in doubt.
            Swapped::Stopped(_) if flight.is_in_doubt() => {
                Err(Error::unknown(format!("whether {} was granted is not known: repeat the request", cell.slot.key)))
            }
            Swapped::Stopped(held) => {
                self.backend.counters.leases_held(1);
                Ok(Acquired::Held(held))
            }
            Swapped::Won(now) => {
                self.backend.counters.leases_cleared_by_operation(u64::from(takes_over));
                let granted = self.granted(&mut flight, now, ttl);
                // Won too late to be of use, by the monotonic clock: to others it is alive.
                if granted.is_err() && request.request_id.is_none() {
                    self.release_soon(cell, id);
                }
                granted.map(Acquired::Granted)
            }
        }
    }

    pub(super) fn granting(
        self: &Arc<Self>,
        core: OwnedMutexGuard<Core>,
        cell: &Arc<Cell>,
        request: &Request,
        id: LeaseId,
    ) -> Flight {
        let keep = request.request_id.is_some() && !planted(Planted::CancelFreesAdopted);
        Flight::new(self, cell, core, Intent::Grant { id, keep })
    }

    /// The lease that this very request was granted before, if it is alive; never a new one.
    pub(super) async fn grant_again(&self, flight: &mut Flight, request: &Request) -> Result<Option<Grant>> {
        let cell = Arc::clone(&flight.cell);
        let ttl = self.clamp(request.ttl)?;
        self.read(&cell, flight.core()).await?;
        let swapped = self.swap(flight, None, |core, now| {
            Ok(match core.record().and_then(|record| record.lease.as_ref()) {
                Some(lease) if repeats(core, request, lease, now) => {
                    Plan::write(again(core, lease, now, ttl, self.process)?)
                }
                _ => Plan::Stop(()),
            })
        });
        match swapped.await? {
            Swapped::Stopped(()) => Ok(None),
            Swapped::Won(now) => self.granted(flight, now, ttl).map(Some),
        }
    }

    /// Finds out what is there, where what is known is not good enough to base a write on. Returns the clock readings
    /// by which the index entry was written, if it was.
    async fn look(&self, flight: &mut Flight, request: &Request, ttl: Ttl, now: Now) -> Result<Option<Now>> {
        let cell = Arc::clone(&flight.cell);
        match &flight.core().known {
            Known::Nothing if request.new_key => flight.core().known = Known::Absent,
            // A repeated request most often finds its own lease, filed already: reading first saves the entry.
            Known::Nothing if request.request_id.is_some() => self.read(&cell, flight.core()).await?,
            Known::Nothing => {
                let expires = ttl.expiry(now.wall)?;
                let hour = Bucket::of(expires)?;
                let name = index::lease_entry(&cell.slot.namespace, &cell.slot.key, hour);
                let body = index::lease_entry_body(&cell.slot.key, expires);
                let (there, filed) = tokio::join!(
                    biased;
                    cas::read(&self.backend, &cell.slot),
                    self.backend.put_hint(&name, body)
                );
                flight.core().learn(there?)?;
                if filed.is_ok() {
                    flight.core().indexed = Some(hour);
                    return Ok(Some(now));
                }
            }
            Known::Record(seen) => {
                // A lease of another process was most likely renewed or released since it was seen. One of our own that
                // has ended was not.
                let ended = match self.judge(seen.record().lease.as_ref(), now.wall) {
                    State::Free => true,
                    State::Expired(lease) => lease.process == self.process,
                    State::Held(_) | State::FarFuture(_) => false,
                };
                if !ended {
                    self.read(&cell, flight.core()).await?;
                }
            }
            Known::Absent => {}
        }
        Ok(None)
    }

    fn plan_grant(
        &self,
        core: &Core,
        now: Now,
        request: &Request,
        ttl: Ttl,
        id: LeaseId,
        watched: Option<WriteId>,
    ) -> Result<Plan<Held>> {
        self.believe(now.wall)?;
        let lease = core.record().and_then(|record| record.lease.as_ref());
        match self.judge(lease, now.wall) {
            State::Held(lease) | State::FarFuture(lease) if repeats(core, request, lease, now) => {
                Ok(Plan::write(again(core, lease, now, ttl, self.process)?))
            }
            State::FarFuture(lease) if watched == Some(lease.beat) => self.plan_new(core, now, request, ttl, id),
            State::Held(lease) | State::FarFuture(lease) => Ok(Plan::Stop(self.held(lease, now))),
            State::Free | State::Expired(_) => self.plan_new(core, now, request, ttl, id),
        }
    }

    pub(super) fn held(&self, lease: &Lease, now: Now) -> Held {
        let free = lease.expires.plus(self.agreement.max_clock_skew);
        Held { by: Some(Holder::from(lease)), retry_after: free.since(now.wall) + Duration::from_millis(1) }
    }

    /// A grant to somebody new, over whatever lease has ended. Nobody's mark survives it: the next one to wait may ask.
    fn plan_new<O>(&self, core: &Core, now: Now, request: &Request, ttl: Ttl, id: LeaseId) -> Result<Plan<O>> {
        // An earlier attempt of this very operation landed, and ended before that was known. Somebody else may have been
        // given it by its request id, so the id is used up.
        if core.record().and_then(|record| record.lease.as_ref()).is_some_and(|lease| lease.id == id) {
            return Err(Error::unavailable(format!(
                "a lease was granted too late to be of use: it ended at {}",
                now.wall
            )));
        }
        let lease = self.new_lease(core, now, request, ttl, id)?;
        Ok(Plan::write(Change { beats: true, last_fence: Some(lease.fence), lease: Some(lease), waiting: None }))
    }

    pub(super) fn new_lease(&self, core: &Core, now: Now, request: &Request, ttl: Ttl, id: LeaseId) -> Result<Lease> {
        let skew = self.agreement.max_clock_skew;
        // A record without a fence is as good as none: it was made where there was none, and granted nothing yet.
        let fence = match core.record().and_then(|record| record.last_fence) {
            Some(last) if planted(Planted::TakeoverKeepsFence) => last,
            Some(last) => Fence::next(core.fence.max(Some(last)), now.wall, skew)?,
            None => Fence::first(core.fence, now.wall, skew)?,
        };
        Ok(Lease {
            id,
            request_id: request.request_id.clone(),
            owner: request.owner.clone(),
            process: self.process,
            note: request.note.clone(),
            fence,
            granted: now.wall,
            expires: ttl.expiry(now.wall)?,
            ttl,
            // Replaced by the write id of the attempt.
            beat: WriteId::from([0; 16]),
        })
    }

    /// What was won, if it is still worth anything.
    fn granted(&self, flight: &mut Flight, now: Now, ttl: Ttl) -> Result<Grant> {
        let cell = Arc::clone(&flight.cell);
        let Some(lease) = flight.core().record().and_then(|record| record.lease.as_ref()) else {
            return Err(Error::unavailable(format!(
                "the lease on {} was freed as soon as it was granted",
                cell.slot.key
            )));
        };
        let lease = lease.clone();
        let grant = self.grant(&cell, flight.core(), &lease, now.moment.plus(ttl.as_duration()), None);
        if grant.is_valid() {
            self.backend.counters.leases_granted(1);
            return Ok(grant);
        }
        Err(Error::unavailable(format!(
            "the lease on {} was granted too late to be of use: it ended at {}",
            cell.slot.key, grant.expires
        )))
    }

    /// What its holder may believe: for as long as the lease lasts from when the request was made, and never further
    /// than the expiry moved since it was believed in before. A wall clock that was set back must not lengthen belief.
    pub(super) fn grant(
        &self,
        cell: &Cell,
        core: &mut Core,
        lease: &Lease,
        latest: Moment,
        old: Option<&Grant>,
    ) -> Grant {
        let longest = old.map(|old| old.deadline.plus(lease.expires.since(old.expires)));
        let longest = core.belief_in(lease).or(longest).filter(|_| !planted(Planted::BeliefBeyondExpiry));
        let mut deadline = longest.map_or(latest, |longest| latest.min(longest));
        // Asked now: the answer to the very write may have told that this machine stood still, with all its clocks.
        let now = self.now();
        if self.backend.is_behind(&self.agreement, now.wall) {
            deadline = deadline.min(now.moment);
        }
        core.belief = Some(Belief { id: lease.id, deadline, expires: lease.expires });
        Grant {
            namespace: cell.slot.namespace.clone(),
            key: cell.slot.key.clone(),
            id: lease.id,
            fence: lease.fence,
            owner: lease.owner.clone(),
            ttl: lease.ttl,
            expires: lease.expires,
            deadline,
            repeatable: lease.request_id.is_some(),
            clock: Arc::clone(&self.backend.clock),
        }
    }

    /// Renews a lease. `old` is what this process believed of it so far; without it, the record must do.
    pub(super) async fn renew(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        id: LeaseId,
        ttl: Option<Ttl>,
        old: Option<&Grant>,
    ) -> Result<Renewed> {
        let core = self.hold(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        let wall = self.now().wall;
        let known = flight.core().record().and_then(|record| record.lease.as_ref());
        // What is known may have ended in the cache alone: another process can renew it by its id.
        let alive = known.is_some_and(|lease| lease.id == id && wall < lease.expires);
        if !alive || old.is_some_and(|old| !old.is_valid()) {
            self.read(cell, flight.core()).await?;
        }
        let ttl = ttl.or_else(|| old.map(|old| old.ttl)).map(|ttl| self.clamp(ttl)).transpose()?;
        if planted(Planted::CacheTrusted)
            && let Some(lease) = flight.core().record().and_then(|record| record.lease.clone())
            && lease.id == id
        {
            let now = self.now();
            let lease = Lease { expires: lease.ttl.expiry(now.wall)?, ..lease };
            let latest = now.moment.plus(lease.ttl.as_duration());
            return Ok(Renewed::Renewed(self.grant(cell, flight.core(), &lease, latest, None)));
        }
        let swapped = self.swap(&mut flight, None, |core, now| {
            let record = core.record();
            match record.and_then(|record| record.lease.as_ref()) {
                Some(lease) if lease.id == id => {
                    let ended = has_ended(core, lease, now) || old.is_some_and(|old| now.moment >= old.deadline);
                    if ended && !planted(Planted::RenewedAfterExpiry) {
                        return Ok(Plan::Stop(Loss { taken_by: None, fence: core.fence }));
                    }
                    // The time to live that it has in the store, which another process may have changed.
                    Ok(Plan::write(again(core, lease, now, ttl.unwrap_or(lease.ttl), self.process)?))
                }
                other => Ok(Plan::Stop(Loss { taken_by: other.map(Holder::from), fence: core.fence })),
            }
        });
        let now = match swapped.await? {
            Swapped::Stopped(loss) => {
                // Those who wait here may be waiting for this process to hand it over.
                cell.queue.wake();
                self.backend.counters.leases_lost(1);
                return Ok(Renewed::Lost(loss));
            }
            Swapped::Won(now) => now,
        };
        let core = flight.core();
        if let Some(lease) = core.record().and_then(|record| record.lease.clone()) {
            let grant = self.grant(cell, core, &lease, now.moment.plus(lease.ttl.as_duration()), old);
            if grant.is_valid() {
                self.backend.counters.leases_renewed(1);
                return Ok(Renewed::Renewed(grant));
            }
        }
        // It landed, and finding that out took longer than it lasts.
        self.backend.counters.leases_lost(1);
        Ok(Renewed::Lost(Loss { taken_by: None, fence: core.fence }))
    }

    /// What there is, after clearing what has ended.
    pub(super) async fn get(self: &Arc<Self>, cell: &Arc<Cell>) -> Result<Status> {
        let core = self.hold(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        self.read(cell, flight.core()).await?;
        // A record of a later format is shown, and left for a later version to clear.
        let ours = flight.core().record().is_none_or(|record| record.must_be_ours(&cell.slot.key).is_ok());
        // What is there is known, whether or not it can be cleared.
        if ours && let Err(error) = self.clear(&mut flight).await {
            tracing::warn!(key = %cell.slot.key, %error, "an ended lease could not be cleared: the next access will try again");
        }
        cell.queue.wake();
        Ok(self.status(cell, flight.core().record()))
    }

    /// Settles an ended lease by a swap; anything else is left alone.
    async fn clear(&self, flight: &mut Flight) -> Result<()> {
        let swapped = self.swap(flight, None, |core, now| {
            let record = core.record();
            match self.judge(record.and_then(|record| record.lease.as_ref()), now.wall) {
                State::Expired(_) if self.believe(now.wall).is_ok() => Ok(Plan::write(Change {
                    beats: false,
                    lease: None,
                    waiting: None,
                    last_fence: record.and_then(|record| record.last_fence),
                })),
                _ => Ok(Plan::Stop(())),
            }
        });
        if let Swapped::Won(_) = swapped.await? {
            self.backend.counters.leases_cleared_by_operation(1);
        }
        Ok(())
    }

    pub(super) fn status(&self, cell: &Cell, record: Option<&Record>) -> Status {
        Status {
            key: cell.slot.key.clone(),
            holder: record.and_then(|record| match self.judge(record.lease.as_ref(), self.now().wall) {
                State::Held(lease) | State::FarFuture(lease) => Some(Holder::from(lease)),
                State::Free | State::Expired(_) => None,
            }),
            last_fence: record.and_then(|record| record.last_fence),
            waited_for: record.is_some_and(|record| record.waiting.is_some()),
            written_at: record.map(|record| record.written),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.keeper.stop();
    }
}

/// Whether its own holder has stopped believing in a lease, as far as is known here.
fn has_ended(core: &Core, lease: &Lease, now: Now) -> bool {
    now.wall >= lease.expires || core.belief_in(lease).is_some_and(|deadline| now.moment >= deadline)
}

/// Whether a request is one that was granted already, and the lease is still alive.
pub(super) fn repeats(core: &Core, request: &Request, lease: &Lease, now: Now) -> bool {
    request.request_id.is_some()
        && request.request_id == lease.request_id
        && request.owner == lease.owner
        && !has_ended(core, lease, now)
}

/// The same lease for longer, held by whichever process asks. Its expiry never moves back, and whoever waits goes on
/// waiting.
fn again(core: &Core, lease: &Lease, now: Now, ttl: Ttl, process: ProcessId) -> Result<Change> {
    let record = core.record();
    Ok(Change {
        beats: true,
        lease: Some(Lease { expires: ttl.expiry(now.wall)?.max(lease.expires), ttl, process, ..lease.clone() }),
        waiting: record.and_then(|record| record.waiting),
        last_fence: record.and_then(|record| record.last_fence),
    })
}
