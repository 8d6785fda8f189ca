//! Waiting for a key: first in, first out inside of a process, behind one poller; politely between processes.

use super::{
    cell::{Cell, Core},
    ended::{State, Watched},
    engine::{Engine, repeats},
    flight::{Flight, Intent},
    record::{Mark, Record},
    types::{Acquired, Grant, Held, Request},
};
use crate::record::Right;
use crate::{Error, Fence, LeaseId, Result, clock::Moment, generator::GeneratorExt, storage::cas::Outcome};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// How often a poller must have seen the key go from hand to hand before it asks for a turn.
const PATIENT_FOR: u32 = 2;

/// How often it tries to at once. The next look tries again.
const MARK_TRIES: u32 = 4;

/// Who of this process waits for a key.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    /// By seat, which is the order of coming: any of very many may leave at any time.
    line: BTreeMap<u64, Waiter>,
    seats: u64,
}

/// One who waits. Whoever takes it out of the line may grant it the lease.
pub(super) struct Waiter {
    seat: u64,
    /// The lease that it will have, if it is handed over to now.
    pub(super) id: LeaseId,
    tried: Tried,
    pub(super) request: Request,
    pub(super) grant: oneshot::Sender<Grant>,
    wake: Arc<Notify>,
}

/// The leases that were last tried for one who waits. Each attempt has an id of its own, so that no lease is granted
/// twice; whichever of them turns up in the store is no other's.
#[derive(Debug, Clone, Default)]
struct Tried(Arc<Mutex<VecDeque<LeaseId>>>);

impl Tried {
    /// Of more than these one will hardly turn up.
    const MOST: usize = 16;

    fn lock(&self) -> MutexGuard<'_, VecDeque<LeaseId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: LeaseId) {
        let mut ids = self.lock();
        ids.push_back(id);
        if ids.len() > Self::MOST {
            ids.pop_front();
        }
    }

    /// It was never sent.
    fn remove(&self, id: LeaseId) {
        self.lock().retain(|tried| *tried != id);
    }

    fn has(&self, id: LeaseId) -> bool {
        self.lock().contains(&id)
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first who still waits, to be handed the lease with this id.
    pub(super) fn pop(&self, id: LeaseId) -> Option<Waiter> {
        let mut waiters = self.lock();
        loop {
            let (_, waiter) = waiters.line.pop_first()?;
            if !waiter.grant.is_closed() {
                waiter.tried.add(id);
                return Some(Waiter { id, ..waiter });
            }
        }
    }

    /// Back to where it was: it was not its turn after all.
    pub(super) fn put_back(&self, waiter: Waiter) {
        let mut waiters = self.lock();
        // One that gave up meanwhile has already left: nobody would take it out of the line again, and whoever is behind
        // it would never be woken.
        if !waiter.grant.is_closed() {
            waiter.wake.notify_one();
            waiters.line.insert(waiter.seat, waiter);
        }
    }

    /// Tells the first in line to look around.
    pub(super) fn wake(&self) {
        if let Some(first) = self.lock().line.values().next() {
            first.wake.notify_one();
        }
    }
}

/// A place in the line. Leaving it leaves no trace.
struct Seat<'a> {
    engine: &'a Arc<Engine>,
    cell: &'a Arc<Cell>,
    seat: u64,
    keep: bool,
    grant: oneshot::Receiver<Grant>,
    wake: Arc<Notify>,
    tried: Tried,
}

impl<'a> Seat<'a> {
    fn take(engine: &'a Arc<Engine>, cell: &'a Arc<Cell>, request: &Request) -> Self {
        Self::take_with(engine, cell, request, Tried::default())
    }

    fn take_with(engine: &'a Arc<Engine>, cell: &'a Arc<Cell>, request: &Request, tried: Tried) -> Self {
        let (sender, grant) = oneshot::channel();
        let wake = Arc::new(Notify::new());
        let id = LeaseId::random(&*engine.backend.generator);
        let mut waiters = cell.queue.lock();
        waiters.seats += 1;
        let seat = waiters.seats;
        let (request, keep) = (request.clone(), request.request_id.is_some());
        let waiter = Waiter { seat, id, tried: tried.clone(), request, grant: sender, wake: Arc::clone(&wake) };
        waiters.line.insert(seat, waiter);
        Self { engine, cell, seat, keep, grant, wake, tried }
    }

    /// A place at the end, for one whose grant sat in the hand-over for too long: that is no use to anybody, and the key
    /// has to be waited for again.
    fn again(self, late: Grant, request: &Request) -> Self {
        // With a request id it may have been asked for again, from elsewhere, and be alive.
        if !self.keep {
            self.engine.release_soon(self.cell, late.id);
        }
        Self::take_with(self.engine, self.cell, request, self.tried.clone())
    }

    /// What it was granted just now, if that is of any use.
    fn handed_over(&mut self, received: Option<Grant>) -> Option<Grant> {
        let grant = received.or_else(|| self.grant.try_recv().ok())?;
        if grant.is_valid() {
            return Some(grant);
        }
        if !self.keep {
            self.engine.release_soon(self.cell, grant.id);
        }
        None
    }

    /// The same, and by nobody if it is a lease of its own that came too late.
    fn by_others(&self, held: Held) -> Held {
        let own = |id: LeaseId| self.tried.has(id);
        Held { by: held.by.filter(|by| !own(by.lease_id)), ..held }
    }

    /// False while a release has it in hand.
    fn is_in_line(&self) -> bool {
        self.cell.queue.lock().line.contains_key(&self.seat)
    }

    /// Whether it is for this one to look after the key. Nobody is ahead, or whoever is has gone.
    fn leads(&self) -> bool {
        self.cell
            .queue
            .lock()
            .line
            .values()
            .find(|waiter| !waiter.grant.is_closed())
            .is_some_and(|first| first.seat == self.seat)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.grant.close();
        self.cell.queue.lock().line.remove(&self.seat);
        // It may have been granted the lease just as it gave up.
        if let Ok(grant) = self.grant.try_recv()
            && !self.keep
        {
            self.engine.release_soon(self.cell, grant.id);
        }
        self.cell.queue.wake();
    }
}

/// What a poller has seen so far.
struct Polling {
    interval: Duration,
    /// The fence of the last holder that was seen, and how often it has changed.
    fence: Option<Fence>,
    changes: u32,
    /// The last beat that was seen, and since when the lease has done nothing.
    watched: Option<Watched>,
}

enum Polled {
    Granted(Grant),
    Again(Held),
    /// Somebody else has it in hand: it will be granted the lease, or told.
    Overtaken,
}

impl Engine {
    /// Waits until the key can be had or the deadline has passed.
    pub(super) async fn acquire_within(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        request: &Request,
        deadline: Moment,
    ) -> Result<Acquired> {
        let clock = &self.backend.clock;
        let mut seat = Seat::take(self, cell, request);
        let interval = self.settings.poll_interval;
        let mut polling = Polling { interval, fence: None, changes: 0, watched: None };
        let mut retries = 0;
        // What was granted before is not to be stood in line for. If that cannot be found out now, there is time.
        if request.request_id.is_some()
            && !seat.leads()
            && let Ok(core) = self.hold(cell).await
            && let id = LeaseId::random(&*self.backend.generator)
            && let mut flight = self.granting(core, cell, request, id)
            && let Ok(Some(grant)) = self.grant_again(&mut flight, request).await
        {
            return Ok(Acquired::Granted(grant));
        }
        let mut last: Option<Result<Held>> = None;
        loop {
            let mut pause = Duration::MAX;
            if seat.leads() {
                // One look may outlast the deadline, or nobody could wait for less than the store takes; two may not.
                let longest = deadline.since(clock.monotonic()).max(self.settings.request_timeout);
                let polled = tokio::select! {
                    biased;
                    polled = self.poll(&mut seat, request, &mut polling) => polled,
                    () = clock.sleep(longest) => Err(Error::unavailable(format!(
                        "nothing could be found out about {} in time",
                        cell.slot.key
                    ))),
                };
                // What was just given up may be finding out what became of a write, which nobody frees.
                let doubtful = seat.keep && !cell.core.is_free();
                let polled = polled.map_err(|error| error.in_doubt(doubtful, &cell.slot.key, "granted"));
                match polled {
                    Ok(Polled::Granted(grant)) => return Ok(Acquired::Granted(grant)),
                    Ok(Polled::Again(held)) => {
                        retries = 0;
                        pause = held.retry_after;
                        last = Some(Ok(held));
                    }
                    Ok(Polled::Overtaken) => {}
                    // A store that is down for a while is one more reason to wait.
                    Err(error) if error.is_retryable() => {
                        retries += 1;
                        pause = self.settings.poll_interval * 2u32.pow(retries.min(5));
                        last = Some(Err(error));
                    }
                    Err(error) => return self.dismiss(&mut seat, Err(error)).await,
                }
            }
            let left = deadline.since(clock.monotonic());
            if left.is_zero() {
                let held = match last {
                    Some(last) => last,
                    None => self.seen_held(cell).await,
                };
                return self.dismiss(&mut seat, held).await;
            }
            tokio::select! {
                biased;
                grant = &mut seat.grant => match grant {
                    Ok(grant) if grant.is_valid() => {
                        return Ok(Acquired::Granted(grant));
                    }
                    Ok(grant) => seat = seat.again(grant, request),
                    Err(_) => seat = Seat::take(self, cell, request),
                },
                () = seat.wake.notified() => {}
                () = clock.sleep(pause.min(left)) => {}
            }
        }
    }

    /// What one hears who goes.
    ///
    /// A release may have taken it out of the line, and its write be under way: whoever were told now that it waited in
    /// vain would have a lease, and with a request id nobody would free that. So it stays until it is granted the lease,
    /// is in line again, or is out of patience.
    async fn dismiss(&self, seat: &mut Seat<'_>, told: Result<Held>) -> Result<Acquired> {
        let clock = &self.backend.clock;
        let until = clock.monotonic().plus(self.patience());
        let (mut grant, mut in_hand) = (None, false);
        while !seat.is_in_line() && !in_hand {
            tokio::select! {
                biased;
                handed_over = &mut seat.grant => {
                    grant = handed_over.ok();
                    in_hand = grant.is_none();
                    break;
                }
                () = seat.wake.notified() => {}
                () = clock.sleep(until.since(clock.monotonic())) => in_hand = true,
            }
        }
        // It may have been handed over while we found out: then what was found is our own lease.
        match seat.handed_over(grant) {
            Some(grant) => Ok(Acquired::Granted(grant)),
            None if in_hand && seat.keep => Err(Error::unknown(format!(
                "whether {} was granted is not known: repeat the request",
                seat.cell.slot.key
            ))),
            None => told.map(|held| Acquired::Held(seat.by_others(held))),
        }
    }

    /// Who holds the key, as far as this process knows: for those whose time was up before it was their turn to look.
    async fn seen_held(&self, cell: &Cell) -> Result<Held> {
        let core = self.hold(cell).await?;
        let now = self.now();
        Ok(match self.judge(&core, now, None) {
            State::Held(_) | State::MayHaveEnded(_) => self.held(&core, now),
            State::Free | State::Ended(_) => Held { by: None, retry_after: self.settings.poll_interval },
        })
    }

    /// One look by the first in line.
    async fn poll(self: &Arc<Self>, seat: &mut Seat<'_>, request: &Request, polling: &mut Polling) -> Result<Polled> {
        self.trust_clock().await?;
        let core = self.hold(seat.cell).await?;
        // A release may have taken it out of the line while it waited for the core.
        if !seat.leads() {
            return Ok(Polled::Overtaken);
        }
        let now = self.now();
        if let State::Held(lease) = self.judge(&core, now, None)
            && lease.process == self.process
            && !repeats(&core, request, lease, now)
        {
            // What a guard of this process keeps will be handed over, or is found to be lost by the guard; no read can say
            // more. Anything else may be given back through another process.
            polling.watch(&core, self);
            let fresh = match seat.cell.kept.load(Relaxed) {
                0 => polling
                    .watched
                    .map_or(Duration::ZERO, |watched| polling.interval.saturating_sub(now.moment.since(watched.since))),
                _ => Duration::MAX,
            };
            if !fresh.is_zero() {
                let held = self.held(&core, now);
                let retry_after = held.retry_after.min(fresh);
                return Ok(Polled::Again(seat.by_others(Held { retry_after, ..held })));
            }
        }
        let watched = polling.watched.and_then(|watched| watched.long_enough(now.moment));
        let id = LeaseId::random(&*self.backend.generator);
        seat.tried.add(id);
        let acquired = self.acquire_held(core, seat.cell, request, id, watched).await?;
        let held = match acquired {
            Acquired::Granted(grant) => return Ok(Polled::Granted(grant)),
            Acquired::Held(held) => seat.by_others(held),
        };
        seat.tried.remove(id);
        let Some(holder) = &held.by else { return Ok(Polled::Again(held)) };
        if polling.fence.replace(holder.fence).is_some_and(|before| before != holder.fence) {
            polling.changes += 1;
        }
        let core = self.hold(seat.cell).await?;
        polling.watch(&core, self);
        match core.record().and_then(|record| record.waiting) {
            // Put there by this one, or by who polled for this process before: others count on what it says.
            Some(mark) if mark.process == self.process => polling.interval = mark.interval,
            // Also where a mark was there before, and the turn went to somebody else.
            None if polling.changes >= PATIENT_FOR => self.mark(core, seat.cell, polling.interval).await?,
            Some(_) if polling.changes >= PATIENT_FOR => {}
            _ => polling.interval = (polling.interval * 3 / 2).min(self.settings.max_poll_interval),
        }
        let jittered = self.backend.generator.between(polling.interval / 2, polling.interval);
        Ok(Polled::Again(Held { retry_after: held.retry_after.min(jittered), ..held }))
    }

    /// Asks the holder's process for a turn, by a write that leaves the lease as it is. A key that is handed over without
    /// a pause changes between nearly every read and the write after it, so one try would seldom do. Each try goes by what
    /// the one before has read: to wait in between would only make that old again.
    async fn mark(self: &Arc<Self>, core: Right<Core>, cell: &Arc<Cell>, interval: Duration) -> Result<()> {
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        let give_up = self.now().moment.plus(self.settings.request_timeout);
        for _ in 0..MARK_TRIES {
            let record = flight.core().record().filter(|record| record.waiting.is_none());
            if record.and_then(|record| record.lease.as_ref()).is_none_or(|lease| lease.process == self.process) {
                return Ok(());
            }
            let now = self.now();
            // Others of this process may be waiting for the core.
            if now.moment >= give_up {
                return Ok(());
            }
            let (process, since) = (self.process, now.wall);
            // Without the stamp of the base the mark would make the lease look younger than it is: it is read first.
            if flight.core().modified().is_none()
                && flight.core().record().is_some_and(|record| record.beat_stamp.is_none())
            {
                self.read(cell, flight.core()).await?;
                continue;
            }
            let modified = flight.core().modified();
            let build = move |base: Option<&Record>, stamp| {
                let mut record = Record::after(base, modified, stamp, since);
                record.waiting = Some(Mark { process, since, interval });
                record
            };
            let time = self.backend.latest_stamp();
            let outcome = flight.attempt(self.settings.request_timeout, now, build).await;
            flight.settled();
            match outcome {
                Outcome::Won(seen, _) => return flight.core().learn(Some(seen)),
                Outcome::Lost(there) => {
                    flight.core().learn(there)?;
                    flight.core().time = time;
                }
                // Let go: if it lands, the next write on the key meets it.
                Outcome::Unknown(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

impl Polling {
    /// Takes note of the beat that is there. It was seen just now: the answer that shows it has arrived.
    fn watch(&mut self, core: &Core, engine: &Engine) {
        let lease = core.record().and_then(|record| record.lease.as_ref());
        let there = lease.map(|lease| Watched::new(lease, engine.now().moment, &engine.bounds()));
        self.watched = there.map(|there| there.or_since(self.watched));
    }
}
