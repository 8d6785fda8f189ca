//! The operations on one key: each holds the key's core, plans a change on what is known of it, and swaps.

use super::{
    cell::{Belief, Cell, Cells, Core, Known},
    counters::{Counters, Counts},
    ended::State,
    flight::{Flight, Intent},
    judge::status,
    keeper::Keeper,
    layout,
    loss::{Loss, LossReason, Losses, Lost},
    record::{ForcedAway, Lease, Mark, Record},
    settings::{LeaseSettings, Shared},
    tries::{Asked, Turn},
    types::{Acquired, Grant, Held, Renewed, Request, Status},
};

use crate::{
    BootId, Error, ErrorKind, Fence, Hour, LeaseId, Result, Ttl, WriteId,
    clock::{self, Moment, Timestamp},
    id::ProcessId,
    record::{Order, Right},
    storage::{
        Backend,
        cas::{self, Outcome, Stamp},
    },
    sweep::Activity,
    ttl::in_words,
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
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
    /// The lease that is there is taken away by an operator.
    pub(super) forced: Option<Box<ForcedAway>>,
}

impl Change {
    /// The lease goes, and with it whoever's mark.
    pub(super) fn free(record: Option<&Record>) -> Self {
        Self {
            beats: false,
            lease: None,
            waiting: None,
            last_fence: record.and_then(|record| record.last_fence),
            forced: None,
        }
    }
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
    pub(super) shared: Shared,
    pub(super) settings: LeaseSettings,
    pub(super) counters: Counters,
    pub(super) process: ProcessId,
    /// Which start of the machine this process's monotonic clock counts from, where leases end by that clock.
    pub(super) boot: Option<BootId>,
    pub(super) cells: Cells,
    pub(super) activity: Arc<Activity>,
    pub(super) runtime: tokio::runtime::Handle,
    /// What dropped operations have left behind.
    pub(crate) leftovers: TaskTracker,
    pub(super) keeper: Keeper,
    pub(super) losses: Losses,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<Backend>,
        shared: Shared,
        settings: LeaseSettings,
        activity: Arc<Activity>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process: ProcessId::random(&*backend.generator),
            boot: backend.clock.boot().filter(|_| backend.is_on_this_host()),
            cells: Cells::new(settings.cached_keys),
            keeper: Keeper::default(),
            losses: Losses::default(),
            runtime: tokio::runtime::Handle::current(),
            leftovers: TaskTracker::new(),
            backend,
            shared,
            settings,
            counters: Counters::new(),
            activity,
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    pub(super) fn now(&self) -> Now {
        let moment = self.backend.clock.monotonic();
        Now { moment, wall: self.backend.clock.wall() }
    }

    /// The shortest and the longest time to live that may be asked for.
    pub(crate) fn ttl_limits(&self) -> (Duration, Duration) {
        let longest = self.shared.max_ttl;
        (self.settings.min_ttl.min(longest), longest)
    }

    /// Refuses a time to live that somebody asks for and that the limits do not allow: a lease that ends long before its
    /// holder expects it to is worse than none.
    /// What is asked for must be possible here: checked once, before anything is sent.
    pub(super) fn allow_request(&self, request: &Request) -> Result<()> {
        request.validate()?;
        request.asked_ttl()?.map_or(Ok(()), |ttl| self.allow(ttl))
    }

    pub(super) fn allow(&self, ttl: Ttl) -> Result<()> {
        let asked = ttl.as_duration();
        let (shortest, longest) = self.ttl_limits();
        let way_out = match asked {
            longer if longer > longest => {
                "an operator can allow longer ones in the store: leasehold store set --max-ttl"
            }
            shorter if shorter < shortest => "the setting min_ttl allows shorter ones",
            _ => return Ok(()),
        };
        let (shortest, longest, asked) = (in_words(shortest), in_words(longest), in_words(asked));
        Err(Error::invalid(format!("TTL must be between {shortest} and {longest} (got {asked}); {way_out}")))
    }

    /// What a lease that is there already, or one of the library's own, may last.
    pub(super) fn clamp(&self, ttl: Ttl) -> Result<Ttl> {
        Ok(ttl.clamp(Ttl::new(self.settings.min_ttl)?, Ttl::new(self.shared.max_ttl)?))
    }

    /// Granting and taking over need clocks that can be believed.
    pub(super) async fn trust_clock(&self) -> Result<()> {
        self.backend.announce(self.process)?;
        self.backend.trust_clock(self.shared.max_clock_skew).await
    }

    /// The same for one reading of the wall clock, by what is known. Asked again for the reading that a grant is made
    /// by: the clock may have been set while the operation waited.
    pub(super) fn believe(&self, wall: Timestamp) -> Result<()> {
        self.backend.believe(self.shared.max_clock_skew, wall)
    }

    /// How long an operation goes on trying.
    pub(super) fn patience(&self) -> Duration {
        3 * self.settings.request_timeout
    }

    /// The right to change a key, for which other operations of this process may have to be waited for.
    pub(super) async fn hold(&self, cell: &Cell) -> Result<Right<Core>> {
        self.hold_in(cell, Order::InTurn).await
    }

    /// The same, ahead of all who do not keep a lease alive or give one back.
    pub(super) async fn hold_first(&self, cell: &Cell) -> Result<Right<Core>> {
        self.hold_in(cell, Order::First).await
    }

    async fn hold_in(&self, cell: &Cell, order: Order) -> Result<Right<Core>> {
        let patience = self.patience();
        let held = clock::within(&*self.backend.clock, patience, Arc::clone(&cell.core).take(order)).await;
        held.ok_or_else(|| {
            let (key, patience) = (&cell.slot.key, humantime::format_duration(patience));
            Error::unavailable(format!(
                "other operations of this process on {key} did not come to an end within {patience}: try again later"
            ))
        })
    }

    pub(super) async fn read(&self, cell: &Cell, core: &mut Core) -> Result<()> {
        // Before the read is sent: a time object that is written later cannot speak for what this read shows.
        let time = self.backend.latest_stamp();
        let there = cas::read(&self.backend, &cell.slot).await?;
        core.learn(there)?;
        core.time = time;
        Ok(())
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
                self.may_change(&cell.slot.key, record)?;
            }
            let time = self.backend.latest_stamp();
            let error = match self.send(flight, now, change).await {
                Ok(Outcome::Won(seen, now)) => {
                    flight.won(seen)?;
                    return Ok(Swapped::Won(now));
                }
                Ok(Outcome::Lost(there)) => {
                    flight.settled();
                    doubtful = false;
                    flight.core().learn(there)?;
                    flight.core().time = time;
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
                    doubtful |= error.leaves_doubt();
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
        let mut filed = flight.core().record().and_then(|record| record.hour);
        let mut limit = self.settings.request_timeout;
        if let Some(lease) = change.lease.as_ref().filter(|_| change.beats) {
            let hour = Hour::of(lease.expires)?;
            if filed != Some(hour) && flight.core().indexed != Some(hour) {
                self.file(flight, hour, lease.expires).await?;
            }
            filed = Some(hour);
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
            if ended {
                return Err(Error::unavailable(format!(
                    "the lease on {} was over before its renewal was sent",
                    flight.cell.slot.key
                )));
            }
        }
        let epoch = self.shared.epoch;
        let build = move |base: Option<&Record>, stamp: Stamp| {
            let mut record = Record { lease: change.lease, epoch, ..Record::without_lease(base, stamp, now.wall) };
            record.forced = change.forced.or(record.forced).filter(|_| record.lease.is_none());
            if let Some(lease) = record.lease.as_mut().filter(|_| change.beats) {
                lease.beat = stamp.write_id;
            }
            record.waiting = change.waiting;
            record.last_fence = change.last_fence;
            record.hour = filed;
            record
        };
        Ok(flight.attempt(limit, now, build).await)
    }

    /// Writes the index entry of an hour. Only an Ok counts.
    pub(super) async fn file(&self, flight: &mut Flight, hour: Hour, expires: Timestamp) -> Result<()> {
        let slot = &flight.cell.slot;
        let name = layout::entry(&slot.namespace, &slot.key, hour);
        self.backend.file(&name, layout::entry_body(&slot.key, expires)).await?;
        flight.core().indexed = Some(hour);
        Ok(())
    }

    /// One try. The caller has marked activity.
    pub(super) async fn acquire(self: &Arc<Self>, cell: &Arc<Cell>, request: &Request) -> Result<Acquired> {
        self.trust_clock().await?;
        let core = match self.turn(cell, |answer| Asked::to_try(request, answer)).await? {
            Turn::Told(held) => return Ok(Acquired::Held(held)),
            Turn::Ours(core) => core,
        };
        let id = LeaseId::random(&*self.backend.generator);
        self.acquire_held(core, cell, request, id, None).await
    }

    /// The same with the core in hand. `watched` is a beat that was watched for long enough to be taken over.
    pub(super) async fn acquire_held(
        self: &Arc<Self>,
        core: Right<Core>,
        cell: &Arc<Cell>,
        request: &Request,
        id: LeaseId,
        watched: Option<WriteId>,
    ) -> Result<Acquired> {
        let mut flight = self.granting(core, cell, request, id);
        let before = self.before(cell, flight.core());
        let acquired = self.acquire_by(&mut flight, request, id, watched).await;
        match &acquired {
            Err(error) if !flight.is_in_doubt() => self.fail_others(cell, flight.core(), before, error),
            _ => self.tell_others(cell, flight.core(), before),
        }
        acquired
    }

    async fn acquire_by(
        self: &Arc<Self>,
        flight: &mut Flight,
        request: &Request,
        id: LeaseId,
        watched: Option<WriteId>,
    ) -> Result<Acquired> {
        let cell = &Arc::clone(&flight.cell);
        let ttl = self.clamp(request.ttl_or_default()?)?;
        let now = self.now();
        if let Some(until) = flight.core().stay_back.filter(|until| *until > now.moment) {
            let again = match request.request_id {
                Some(_) => self.grant_again(flight, request).await?,
                None => None,
            };
            let held = Held { by: None, retry_after: until.since(now.moment) };
            return Ok(again.map_or(Acquired::Held(held), Acquired::Granted));
        }
        let first = self.look(flight, request, ttl, now).await?;
        self.second_look(flight, watched).await?;
        let mut takes_over = false;
        let swapped = self.swap(flight, first, |core, now| {
            takes_over = matches!(self.judge(core, now, watched), State::Ended(_));
            self.plan_grant(core, now, request, ttl, id, watched)
        });
        match swapped.await? {
            // It may be held by the very write that is in doubt.
            Swapped::Stopped(_) if flight.is_in_doubt() => {
                Err(Error::unknown(format!("whether {} was granted is not known: repeat the request", cell.slot.key)))
            }
            Swapped::Stopped(held) => {
                self.counters.refused(1);
                Ok(Acquired::Held(held))
            }
            Swapped::Won(now) => {
                self.counters.cleared_by_operation(u64::from(takes_over));
                let granted = self.granted(flight, now, ttl);
                // Won too late to be of use. To others it may be alive, or be what no sweep finds any more. A lease that was
                // only asked for again is not ours alone to free.
                let late = flight.core().record().and_then(|record| record.lease.as_ref());
                if let (Err(_), Some(lease)) = (&granted, late.filter(|lease| lease.id == id)) {
                    self.free_late(cell, lease.id, lease.beat);
                }
                granted.map(Acquired::Granted)
            }
        }
    }

    pub(super) fn granting(
        self: &Arc<Self>,
        core: Right<Core>,
        cell: &Arc<Cell>,
        request: &Request,
        id: LeaseId,
    ) -> Flight {
        let keep = request.request_id.is_some();
        Flight::new(self, cell, core, Intent::Grant { id, keep })
    }

    /// The lease that this very request was granted before, if it is alive; never a new one.
    pub(super) async fn grant_again(&self, flight: &mut Flight, request: &Request) -> Result<Option<Grant>> {
        let cell = Arc::clone(&flight.cell);
        let ttl = self.clamp(request.ttl_or_default()?)?;
        self.read(&cell, flight.core()).await?;
        let swapped = self.swap(flight, None, |core, now| {
            Ok(match core.record().and_then(|record| record.lease.as_ref()) {
                Some(lease) if repeats(core, request, lease, now) => Plan::write(self.again(core, lease, now, ttl)?),
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
                let hour = Hour::of(expires)?;
                let name = layout::entry(&cell.slot.namespace, &cell.slot.key, hour);
                let body = layout::entry_body(&cell.slot.key, expires);
                let time = self.backend.latest_stamp();
                let (there, filed) = tokio::join!(
                    biased;
                    cas::read(&self.backend, &cell.slot),
                    self.backend.file(&name, body)
                );
                flight.core().learn(there?)?;
                flight.core().time = time;
                if filed.is_ok() {
                    flight.core().indexed = Some(hour);
                    return Ok(Some(now));
                }
            }
            Known::Record(_) => {
                // A lease of another process was most likely renewed or released since it was seen. One whose last beat is
                // our own and that has ended was not, or the write will find out.
                let core = flight.core();
                let ended = match self.judge(core, now, None) {
                    State::Free => true,
                    State::Ended(lease) => core.own.is_some_and(|(beat, _)| beat == lease.beat),
                    State::Held(_) | State::MayHaveEnded(_) => false,
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
        match self.judge(core, now, watched) {
            State::Held(lease) | State::MayHaveEnded(lease) if repeats(core, request, lease, now) => {
                Ok(Plan::write(self.again(core, lease, now, ttl)?))
            }
            State::Held(_) | State::MayHaveEnded(_) => Ok(Plan::Stop(self.held(core, now))),
            State::Free | State::Ended(_) => self.plan_new(core, now, request, ttl, id),
        }
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
        Ok(Plan::write(Change {
            beats: true,
            last_fence: Some(lease.fence),
            lease: Some(lease),
            waiting: None,
            forced: None,
        }))
    }

    pub(super) fn new_lease(&self, core: &Core, now: Now, request: &Request, ttl: Ttl, id: LeaseId) -> Result<Lease> {
        let skew = self.shared.max_clock_skew;
        // A record without a fence is as good as none: it was made where there was none, and granted nothing yet.
        let fence = match core.record().and_then(|record| record.last_fence) {
            Some(last) => Fence::next(core.fence.max(Some(last)), now.wall, skew)?,
            None => Fence::first(core.fence, self.store_upper(now.wall), skew)?,
        };
        Ok(Lease {
            id,
            request_id: request.request_id.clone(),
            owner: request.owner.clone(),
            process: self.process,
            note: request.note.clone(),
            fence,
            granted: now.wall,
            expires: self.expiry(now, ttl)?,
            ttl,
            // Replaced by the write id of the attempt.
            beat: WriteId::from([0; 16]),
            lasts: Some(ttl.as_duration()),
            boot: self.boot_at(now.moment),
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
        let grant = self.grant(&cell, flight.core(), &lease, now.moment, ttl, None);
        if grant.is_valid() {
            self.counters.granted(1);
            return Ok(grant);
        }
        Err(Error::unavailable(format!(
            "the lease on {} was granted too late to be of use: it ended at {}",
            cell.slot.key, grant.expires
        )))
    }

    /// What its holder may believe: for as long as the lease was asked for, from before the request was `sent`, and never
    /// further than the expiry moved since it was believed in before. A wall clock that was set back must not lengthen
    /// belief. A shorter time to live does not shorten it either: there may be copies of the earlier grant.
    pub(super) fn grant(
        &self,
        cell: &Cell,
        core: &mut Core,
        lease: &Lease,
        sent: Moment,
        ttl: Ttl,
        old: Option<&Grant>,
    ) -> Grant {
        let latest = sent.plus(ttl.as_duration());
        let belief =
            core.belief_in(lease).cloned().or_else(|| old.map(Belief::from)).filter(|belief| !belief.is_over());
        let deadline = match &belief {
            Some(belief) => latest.min(belief.deadline_at(lease.expires)).max(belief.deadline),
            None => latest,
        };
        let over = belief.map_or_else(Arc::default, |belief| belief.over);
        core.belief = Some(Belief { id: lease.id, deadline, expires: lease.expires, over: Arc::clone(&over) });
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
            over,
            clock: Arc::clone(&self.backend.clock),
        }
    }

    /// Renews a lease, and tells of its loss. `old` is what this process believed of it so far; without it, the record
    /// must do.
    pub(super) async fn renew(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        id: LeaseId,
        ttl: Option<Ttl>,
        old: Option<&Grant>,
    ) -> Result<Renewed> {
        Ok(match self.try_renew(cell, id, ttl, old).await? {
            Ok(grant) => Renewed::Renewed(grant),
            Err(lost) => {
                self.tell_loss(cell, &lost);
                Renewed::Lost(lost.loss)
            }
        })
    }

    /// The same, and leaves the telling to the caller.
    pub(super) async fn try_renew(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        id: LeaseId,
        ttl: Option<Ttl>,
        old: Option<&Grant>,
    ) -> Result<std::result::Result<Grant, Box<Lost>>> {
        self.backend.announce(self.process)?;
        let core = self.hold_first(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        let wall = self.now().wall;
        let known = flight.core().record().and_then(|record| record.lease.as_ref());
        let known = known.filter(|lease| lease.id == id);
        let owner = known.map(|lease| lease.owner.clone()).or_else(|| old.map(|old| old.owner.clone()));
        let fence = known.map(|lease| lease.fence).or_else(|| old.map(|old| old.fence));
        let lost = |loss| Ok(Err(Box::new(Lost { loss, id, owner, fence })));
        // What is known may have ended in the cache alone: another process can renew it by its id.
        let alive = known.is_some_and(|lease| wall < lease.expires);
        if !alive || old.is_some_and(|old| !old.is_valid()) {
            self.read(cell, flight.core()).await?;
        }
        let ttl = ttl.or_else(|| old.map(|old| old.ttl)).map(|ttl| self.clamp(ttl)).transpose()?;
        let swapped = self.swap(&mut flight, None, |core, now| {
            let record = core.record();
            match record.and_then(|record| record.lease.as_ref()) {
                Some(lease) if lease.id == id => {
                    let over = |old: &Grant| old.over.load(Relaxed);
                    let ended =
                        has_ended(core, lease, now) || old.is_some_and(|old| over(old) || now.moment >= old.deadline);
                    if ended {
                        return Ok(Plan::Stop(Loss::expired(None, core.fence)));
                    }
                    // Whoever renewed it has this process's name and its lease, and no request id to have come by it.
                    let cloned = old.is_some() && lease.request_id.is_none() && lease.process == self.process;
                    if cloned && !core.is_own(lease) {
                        return Ok(Plan::Stop(Loss::new(LossReason::Cloned, core.fence)));
                    }
                    // The time to live that it has in the store, which another process may have changed.
                    Ok(Plan::write(self.again(core, lease, now, ttl.unwrap_or(lease.ttl))?))
                }
                _ => Ok(Plan::Stop(Loss::found(id, record, core.fence))),
            }
        });
        let now = match swapped.await? {
            Swapped::Stopped(loss) => {
                // Those who wait here may be waiting for this process to hand it over.
                cell.queue.wake();
                return lost(loss);
            }
            Swapped::Won(now) => now,
        };
        let core = flight.core();
        if let Some(lease) = core.record().and_then(|record| record.lease.clone()) {
            let grant = self.grant(cell, core, &lease, now.moment, lease.ttl, old);
            if grant.is_valid() {
                self.counters.renewed(1);
                return Ok(Ok(grant));
            }
        }
        // It landed, and finding that out took longer than it lasts.
        lost(Loss::expired(None, core.fence))
    }

    /// What there is, after clearing what has ended.
    pub(super) async fn get(self: &Arc<Self>, cell: &Arc<Cell>) -> Result<Status> {
        let core = match self.turn(cell, Asked::Look).await? {
            Turn::Told(status) => return Ok(status),
            Turn::Ours(core) => core,
        };
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        let before = self.before(cell, flight.core());
        if let Err(error) = self.read(cell, flight.core()).await {
            self.fail_others(cell, flight.core(), before, &error);
            return Err(error);
        }
        // A record of a later format is shown, and left for a later version to clear.
        let ours = flight.core().record().is_none_or(|record| record.must_be_ours(&cell.slot.key).is_ok());
        // What is there is known, whether or not it can be cleared.
        if ours && let Err(error) = self.settle(&mut flight).await {
            tracing::warn!(key = %cell.slot.key, %error, "an ended lease could not be cleared: the next access will try again");
        }
        cell.queue.wake();
        self.tell_others(cell, flight.core(), before);
        let now = self.now();
        let core = flight.core();
        Ok(status(&cell.slot.key, core.record(), self.judge(core, now, None)))
    }

    /// Settles an ended lease by a swap; anything else is left alone.
    async fn settle(&self, flight: &mut Flight) -> Result<()> {
        self.second_look(flight, None).await?;
        let swapped = self.swap(flight, None, |core, now| match self.judge(core, now, None) {
            State::Ended(_) if self.believe(now.wall).is_ok() => Ok(Plan::write(Change::free(core.record()))),
            _ => Ok(Plan::Stop(())),
        });
        if let Swapped::Won(_) = swapped.await? {
            self.counters.cleared_by_operation(1);
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.keeper.stop();
    }
}

/// Whether its own holder has stopped believing in a lease, as far as is known here.
fn has_ended(core: &Core, lease: &Lease, now: Now) -> bool {
    let over = |belief: &Belief| {
        // Another process may have renewed it since: whoever asks for it again begins to believe anew.
        let found_over = belief.is_over() && belief.expires == lease.expires;
        found_over || now.moment >= belief.deadline_at(lease.expires)
    };
    now.wall >= lease.expires || core.belief_in(lease).is_some_and(over)
}

/// Whether a request is one that was granted already, and the lease is still alive.
pub(super) fn repeats(core: &Core, request: &Request, lease: &Lease, now: Now) -> bool {
    request.request_id.is_some()
        && request.request_id == lease.request_id
        && request.owner == lease.owner
        && !has_ended(core, lease, now)
}

impl From<&Grant> for Belief {
    fn from(grant: &Grant) -> Self {
        Self { id: grant.id, deadline: grant.deadline, expires: grant.expires, over: Arc::clone(&grant.over) }
    }
}
