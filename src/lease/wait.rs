//! Waiting for a key: first in, first out inside of a process, behind one poller that leaves turns to other processes.

use super::{
    acquire::{acquire_locked, regrant, start_grant},
    ended::{State, Watched},
    engine::Engine,
    keys::KeyEntry,
    mark::mark,
    queue::{AttemptedIds, Waiter},
    record::SessionName,
    release::release_soon,
    state::KeyState,
    types::{Acquired, Grant, Held, Request},
};
use crate::{Error, Fence, LeaseId, Result, clock::Moment, generator::GeneratorExt};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// How often a poller must have seen the key change hands before it asks for a turn.
const PATIENT_FOR: u32 = 2;

/// After so many failed looks in a row a waiter logs that the store is unavailable: once, until it answers again.
const WORTH_A_WARNING: u32 = 3;

/// A place in the queue. Dropping it leaves no trace.
struct QueuePosition<'a> {
    engine: &'a Arc<Engine>,
    entry: &'a Arc<KeyEntry>,
    position: u64,
    keep: bool,
    /// The session that the lease is to be held under.
    under: Option<SessionName>,
    grant: oneshot::Receiver<Grant>,
    wake: Arc<Notify>,
    tried: AttemptedIds,
}

impl<'a> QueuePosition<'a> {
    fn take(engine: &'a Arc<Engine>, entry: &'a Arc<KeyEntry>, request: &Request) -> Self {
        Self::take_with(engine, entry, request, AttemptedIds::default())
    }

    fn take_with(engine: &'a Arc<Engine>, entry: &'a Arc<KeyEntry>, request: &Request, tried: AttemptedIds) -> Self {
        let (sender, grant) = oneshot::channel();
        let wake = Arc::new(Notify::new());
        let id = LeaseId::random(&*engine.backend.generator);
        let under = request.under().map(|under| under.name);
        let (request, keep) = (request.clone(), request.request_id.is_some());
        let position = entry.queue.join(|position| Waiter {
            position,
            id,
            tried: tried.clone(),
            request,
            grant: sender,
            wake: Arc::clone(&wake),
        });
        Self { engine, entry, position, keep, under, grant, wake, tried }
    }

    /// A place at the end, for one whose grant was handed over too late to be of use: the key has to be waited for again.
    fn again(self, late: Grant, request: &Request) -> Self {
        // With a request id it may have been asked for again, from elsewhere, and be alive.
        if !self.keep {
            release_soon(self.engine, self.entry, late.id, self.under);
        }
        Self::take_with(self.engine, self.entry, request, self.tried.clone())
    }

    /// What it was granted just now, if that is of any use.
    fn handed_over(&mut self, received: Option<Grant>) -> Option<Grant> {
        let grant = received.or_else(|| self.grant.try_recv().ok())?;
        if grant.is_valid() {
            return Some(grant);
        }
        if !self.keep {
            release_soon(self.engine, self.entry, grant.id, self.under);
        }
        None
    }

    /// Who holds the key, but not if that is a lease of its own that came too late.
    fn by_others(&self, held: Held) -> Held {
        let own = |id: LeaseId| self.tried.has(id);
        Held { by: held.by.filter(|by| !own(by.lease_id)), ..held }
    }

    /// False while a release has it in hand.
    fn is_in_line(&self) -> bool {
        self.entry.queue.has(self.position)
    }

    /// Whether it is for this one to look after the key: all that were ahead have gone.
    fn leads(&self) -> bool {
        self.entry.queue.is_first(self.position)
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.grant.close();
        self.entry.queue.leave(self.position);
        // It may have been granted the lease just as it gave up.
        if let Ok(grant) = self.grant.try_recv()
            && !self.keep
        {
            release_soon(self.engine, self.entry, grant.id, self.under);
        }
        self.entry.queue.wake();
    }
}

/// Waits until the key can be had or the deadline has passed.
pub(super) async fn acquire_within(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    request: &Request,
    deadline: Moment,
) -> Result<Acquired> {
    let place = QueuePosition::take(engine, entry, request);
    let interval = engine.settings.poll_interval;
    let polling = Polling { interval, fence: None, changes: 0, watched: None };
    let waiting = Waiting { engine, entry, request, deadline, place, polling, retries: 0, last: None };
    // What was granted before is not to be waited for. If that cannot be found out now, there is time.
    if let Some(grant) = waiting.granted_before().await {
        return Ok(Acquired::Granted(grant));
    }
    waiting.run().await
}

/// One call that waits.
struct Waiting<'a> {
    engine: &'a Arc<Engine>,
    entry: &'a Arc<KeyEntry>,
    request: &'a Request,
    deadline: Moment,
    place: QueuePosition<'a>,
    polling: Polling,
    /// Polls in a row that failed.
    retries: u32,
    /// What the last poll found.
    last: Option<Result<Held>>,
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
    /// A release has this one in hand: it will be granted the lease, or put back.
    Overtaken,
}

impl Waiting<'_> {
    /// The lease that this request was granted before, for one that does not poll at once.
    async fn granted_before(&self) -> Option<Grant> {
        if self.request.request_id.is_none() || self.place.leads() {
            return None;
        }
        let state = self.engine.lock_key(self.entry).await.ok()?;
        let id = LeaseId::random(&*self.engine.backend.generator);
        let mut operation = start_grant(self.engine, state, self.entry, self.request, id);
        regrant(&mut operation, self.request).await.ok()?
    }

    async fn run(mut self) -> Result<Acquired> {
        let clock = &self.engine.backend.clock;
        loop {
            let mut pause = Duration::MAX;
            if self.place.leads() {
                match self.look().await {
                    Ok(Polled::Granted(grant)) => return Ok(Acquired::Granted(grant)),
                    Ok(Polled::Again(held)) => {
                        self.retries = 0;
                        pause = held.retry_after;
                        self.last = Some(Ok(held));
                    }
                    Ok(Polled::Overtaken) => {}
                    // A store that is down for a while is one more reason to wait.
                    Err(error) if error.is_retryable() => {
                        self.retries += 1;
                        if self.retries == WORTH_A_WARNING {
                            let slot = &self.entry.slot;
                            tracing::warn!(
                                namespace = %slot.namespace,
                                key = %slot.key,
                                %error,
                                "the store is unavailable: still waiting for the lease, and retrying"
                            );
                        }
                        pause = self.engine.settings.poll_interval * 2u32.pow(self.retries.min(5));
                        self.last = Some(Err(error));
                    }
                    Err(error) => return self.give_up(Err(error)).await,
                }
            }
            let left = self.deadline.since(clock.monotonic());
            if left.is_zero() {
                let held = match self.last.take() {
                    Some(last) => last,
                    None => self.seen_held().await,
                };
                return self.give_up(held).await;
            }
            tokio::select! {
                biased;
                grant = &mut self.place.grant => match grant {
                    Ok(grant) if grant.is_valid() => {
                        return Ok(Acquired::Granted(grant));
                    }
                    Ok(grant) => self.place = self.place.again(grant, self.request),
                    Err(_) => self.place = QueuePosition::take(self.engine, self.entry, self.request),
                },
                () = self.place.wake.notified() => {}
                () = clock.sleep(pause.min(left)) => {}
            }
        }
    }

    /// One poll, which ends with the deadline.
    async fn look(&mut self) -> Result<Polled> {
        let clock = &self.engine.backend.clock;
        // One poll may outlast the deadline, or a wait could not be shorter than the store takes; two may not.
        let longest = self.deadline.since(clock.monotonic()).max(self.engine.settings.request_timeout);
        let key = &self.entry.slot.key;
        let polled = tokio::select! {
            biased;
            polled = poll(self.engine, &self.place, self.request, &mut self.polling) => polled,
            () = clock.sleep(longest) => {
                Err(Error::unavailable(format!("nothing could be found out about {key} in time")))
            }
        };
        // What was just given up may be finding out what became of a write, which nothing frees.
        let doubtful = self.place.keep && !self.entry.state.is_free();
        polled.map_err(|error| error.in_doubt(doubtful, key, "granted"))
    }

    /// Leaves the queue.
    ///
    /// A release may have taken it out of the queue, and its write be under way: told now that it waited in vain, it would
    /// have a lease, which with a request id nothing would free. So it stays until it is granted the lease, is in the
    /// queue again, or the time of an operation is over.
    async fn give_up(mut self, told: Result<Held>) -> Result<Acquired> {
        let clock = &self.engine.backend.clock;
        let until = clock.monotonic().plus(self.engine.operation_timeout());
        let (mut grant, mut in_hand) = (None, false);
        while !self.place.is_in_line() && !in_hand {
            tokio::select! {
                biased;
                handed_over = &mut self.place.grant => {
                    grant = handed_over.ok();
                    in_hand = grant.is_none();
                    break;
                }
                () = self.place.wake.notified() => {}
                () = clock.sleep(until.since(clock.monotonic())) => in_hand = true,
            }
        }
        // It may have been handed over while we found out: then what was found is our own lease.
        match self.place.handed_over(grant) {
            Some(grant) => Ok(Acquired::Granted(grant)),
            None if in_hand && self.place.keep => {
                let key = &self.entry.slot.key;
                Err(Error::unknown(format!("whether {key} was granted is not known: repeat the request")))
            }
            None => told.map(|held| Acquired::Held(self.place.by_others(held))),
        }
    }

    /// Who holds the key, as far as this process knows: for those whose time was up before it was their turn to poll.
    async fn seen_held(&self) -> Result<Held> {
        let state = self.engine.lock_key(self.entry).await?;
        let view = self.engine.view(state.facts(), self.engine.now());
        Ok(match view.state(None) {
            State::Held(_) | State::MayHaveEnded(_) => self.engine.held_by(&view),
            State::Free | State::Ended(_) => Held { by: None, retry_after: self.engine.settings.poll_interval },
        })
    }
}

/// One poll by the first in the queue.
async fn poll(
    engine: &Arc<Engine>,
    place: &QueuePosition<'_>,
    request: &Request,
    polling: &mut Polling,
) -> Result<Polled> {
    engine.trust_clock().await?;
    let state = engine.lock_key(place.entry).await?;
    // A release may have taken it out of the queue while it waited for the key.
    if !place.leads() {
        return Ok(Polled::Overtaken);
    }
    let now = engine.now();
    if let Some(held) = polling.held_here(engine, &state, place, request) {
        return Ok(Polled::Again(place.by_others(held)));
    }
    let watched = polling.watched.and_then(|watched| watched.long_enough(now.moment));
    let id = LeaseId::random(&*engine.backend.generator);
    place.tried.add(id);
    let acquired = acquire_locked(engine, state, place.entry, request, id, watched).await?;
    let held = match acquired {
        Acquired::Granted(grant) => return Ok(Polled::Granted(grant)),
        Acquired::Held(held) => place.by_others(held),
    };
    place.tried.remove(id);
    let Some(holder) = &held.by else { return Ok(Polled::Again(held)) };
    if polling.fence.replace(holder.fence).is_some_and(|before| before != holder.fence) {
        polling.changes += 1;
    }
    let state = engine.lock_key(place.entry).await?;
    polling.watch(&state, engine);
    match state.record().and_then(|record| record.waiting) {
        // Put there by this one, or by the poller of this process before: others rely on what it says.
        Some(mark) if mark.process == engine.rules.process => polling.interval = mark.interval,
        // Also where a mark was there before, and the turn went to another process.
        None if polling.changes >= PATIENT_FOR => mark(engine, state, place.entry, polling.interval).await?,
        Some(_) if polling.changes >= PATIENT_FOR => {}
        _ => polling.interval = (polling.interval * 3 / 2).min(engine.settings.max_poll_interval),
    }
    let jittered = engine.backend.generator.between(polling.interval / 2, polling.interval);
    Ok(Polled::Again(Held { retry_after: held.retry_after.min(jittered), ..held }))
}

impl Polling {
    /// Takes note of the beat that is there. It was seen just now: the answer that shows it has arrived.
    fn watch(&mut self, state: &KeyState, engine: &Engine) {
        let view = engine.view(state.facts(), engine.now());
        let there = view.lease().map(|lease| Watched::new(lease, view.readings.now.moment, &view.bounds()));
        self.watched = there.map(|there| there.or_since(self.watched));
    }

    /// Who holds the key, if that is this process and no read can say more: what a guard keeps will be handed over, or is
    /// found to be lost by the guard. Any other lease may be given back through another process, so it is read now and then.
    fn held_here(
        &mut self,
        engine: &Engine,
        state: &KeyState,
        place: &QueuePosition<'_>,
        request: &Request,
    ) -> Option<Held> {
        let view = engine.view(state.facts(), engine.now());
        let State::Held(lease) = view.state(None) else { return None };
        let over = lease.session.is_some_and(|session| !engine.sessions.is_live(session));
        let living = lease.session.and_then(|session| engine.sessions.of(session));
        let guarded = place.entry.guards.load(Relaxed) > 0 || living.is_some_and(|living| living.holds(lease.id));
        if lease.process != engine.rules.process || over || view.repeats(request, lease) {
            return None;
        }
        self.watch(state, engine);
        let now = view.readings.now.moment;
        let fresh = match guarded {
            false => {
                self.watched.map_or(Duration::ZERO, |watched| self.interval.saturating_sub(now.since(watched.since)))
            }
            true => Duration::MAX,
        };
        if fresh.is_zero() {
            return None;
        }
        let held = engine.held_by(&view);
        Some(Held { retry_after: held.retry_after.min(fresh), ..held })
    }
}
