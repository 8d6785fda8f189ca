//! One operation on a key: the locked key, and the write that may be under way. Dropped or given up in doubt, it leaves
//! a task behind that finds out what became of the write, so that no lease is left granted without a caller.

use super::{
    ended::{self, Second, State},
    engine::Engine,
    keys::{HandOver, KeyEntry},
    layout,
    plan::{self, Belief, Change, Now, Plan, View},
    record::{KeySlot, Lease, Record, SESSION_FORMAT, SessionName},
    state::KeyState,
    types::Grant,
};
use crate::{
    Error, ErrorKind, Hour, LeaseId, Result, Ttl, WriteId,
    clock::{Moment, Timestamp},
    record::{Attempted, Attempts, Changed, InFlight, Patience, Right, repeat},
    storage::cas::{self, Outcome, Seen, Stamp},
};
use futures_util::future::BoxFuture;
use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

/// How many writes in a row may come too late before an operation gives up.
const MAX_CONFLICTS: u32 = 32;

/// By so much longer than a lease lasts the wall clock must be past its expiry before the store is asked for a stamp
/// although its dates say that it is too early: they may be those of a proxy whose clock is behind.
const LATE: Duration = Duration::from_secs(10);

/// What an operation is for; decides what is to be done about a write of it that nothing waits for.
#[derive(Debug)]
pub(super) enum Intent {
    /// Any outcome is right: a renewal, a clearing, a mark.
    Nothing,
    /// A grant. Released if its caller has gone away, unless the caller can repeat the request by its request id.
    Grant { id: LeaseId, keep: bool },
    /// Done when the record does not carry this lease any more.
    Release(LeaseId),
    /// Both: a release of one lease that is a grant to a waiter.
    HandOver { from: LeaseId, to: HandOver },
}

/// What is left of an operation that was dropped in doubt. The key stays locked.
pub(super) struct Doubt {
    /// The sessions that it was about.
    pub(super) under: Under,
    pub(super) engine: Arc<Engine>,
    pub(super) entry: Arc<KeyEntry>,
    pub(super) state: Right<KeyState>,
    pub(super) writes: InFlight<KeySlot, Now>,
    pub(super) intent: Intent,
}

/// Finds out what became of an operation's writes, and does what its intent asks for.
pub(super) type Resolve = fn(Doubt) -> BoxFuture<'static, ()>;

/// How a swap ended.
pub(super) enum Swapped<O> {
    /// The change is in the store; the clocks are those of the attempt that landed.
    Won(Now),
    Stopped(O),
}

pub(super) struct Operation {
    pub(super) engine: Arc<Engine>,
    pub(super) entry: Arc<KeyEntry>,
    state: Option<Right<KeyState>>,
    writes: InFlight<KeySlot, Now>,
    pub(super) intent: Intent,
    /// The sessions of the lease that is granted, and of the one that is given back.
    pub(super) under: Under,
    resolve: Option<Resolve>,
}

/// The sessions that an operation is about: of the lease that it grants, and of the one that it gives back.
pub(super) type Under = [Option<SessionName>; 2];

impl Operation {
    /// An operation whose writes may land or not, whatever becomes of it.
    pub(super) fn new(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, state: Right<KeyState>) -> Self {
        Self {
            engine: Arc::clone(engine),
            entry: Arc::clone(entry),
            state: Some(state),
            writes: InFlight::default(),
            intent: Intent::Nothing,
            under: [None; 2],
            resolve: None,
        }
    }

    /// What is to be done about a write of it that nothing waits for.
    pub(super) fn intends(mut self, intent: Intent, resolve: Resolve) -> Self {
        (self.intent, self.resolve) = (intent, Some(resolve));
        self
    }

    #[allow(clippy::expect_used, reason = "the state is there until the operation is dropped")]
    pub(super) fn known(&self) -> &KeyState {
        self.state.as_ref().expect("an operation has its key's state until it ends")
    }

    #[allow(clippy::expect_used, reason = "the state is there until the operation is dropped")]
    pub(super) fn state(&mut self) -> &mut KeyState {
        self.state.as_mut().expect("an operation has its key's state until it ends")
    }

    /// What the rules go by, for these readings of the two clocks.
    pub(super) fn view(&self, now: Now) -> View<'_> {
        self.engine.view(self.known().facts(), now)
    }

    /// What the rules go by now.
    pub(super) fn view_now(&self) -> View<'_> {
        self.view(self.engine.now())
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.writes.is_in_doubt()
    }

    /// Reads the record.
    pub(super) async fn read(&mut self) -> Result<()> {
        // Before the read is sent: a time object that is written later cannot speak for what this read shows.
        let time = self.engine.backend.latest_stamp();
        let there = cas::read(&self.engine.backend, &self.entry.slot).await?;
        self.state().learn(there)?;
        self.state().time = time;
        Ok(())
    }

    /// Plans and writes until a change is in, or the plan says that there is nothing to do.
    ///
    /// `first` are clock readings from before the index entry was written, if that was done already.
    pub(super) async fn swap<O>(
        &mut self,
        first: Option<Now>,
        plan: impl FnMut(&View<'_>) -> Result<Plan<O>>,
    ) -> Result<Swapped<O>> {
        let patience = Patience { within: self.engine.operation_timeout(), conflicts: MAX_CONFLICTS };
        self.swap_within(patience, first, plan).await
    }

    /// A swap with another patience than usual.
    pub(super) async fn swap_within<O>(
        &mut self,
        patience: Patience,
        first: Option<Now>,
        plan: impl FnMut(&View<'_>) -> Result<Plan<O>>,
    ) -> Result<Swapped<O>> {
        let engine = Arc::clone(&self.engine);
        let mut swap = Swap { operation: self, first, time: None, plan, outcome: PhantomData };
        match repeat(&engine.backend, patience, &mut swap).await {
            Ok(Changed::Won(seen, now)) => {
                self.won(seen)?;
                Ok(Swapped::Won(now))
            }
            Ok(Changed::Stopped(outcome)) => Ok(Swapped::Stopped(outcome)),
            Err(error) => {
                if error.kind() == ErrorKind::Regressed {
                    // Still in doubt: where the answer was an old one, the write may be there.
                    self.state().forget();
                }
                Err(error)
            }
        }
    }

    /// Writes the index entry where it is not known to be there, then the record with exactly the expiry that it was filed
    /// by.
    async fn send(&mut self, now: Now, change: Box<Change>) -> Result<Outcome<Record, Now>> {
        let mut filed = self.known().record().and_then(|record| record.hour);
        let mut limit = self.engine.settings.request_timeout;
        if let Some(lease) = change.lease.as_ref().filter(|_| change.beats) {
            if let Some(session) = lease.session {
                self.file_under(session, lease.expires).await?;
            } else {
                let hour = Hour::of(lease.expires)?;
                if filed != Some(hour) && self.known().indexed != Some(hour) {
                    file(&self.engine, &self.entry.slot, hour, lease.expires).await?;
                    self.state().indexed = Some(hour);
                }
                filed = Some(hour);
            }
            // Far below the time to live.
            limit = limit.min(lease.ttl.as_duration() / 4);
            if let Some(why) = plan::too_late(&self.view_now(), lease, now) {
                return Err(Error::unavailable(format!("the lease on {} {why}", self.entry.slot.key)));
            }
        }
        let epoch = self.engine.rules.epoch;
        let build = move |base: Option<&Seen<Record>>, stamp: Stamp| {
            change.record(base.map(Seen::record), stamp, now, epoch, filed)
        };
        Ok(self.attempt(limit, now, build).await)
    }

    /// Writes the entry of a lease that is to be held under a session, where it is not known to be there. The session must
    /// be believed in afterwards: nothing is granted under one that is over.
    async fn file_under(&mut self, session: SessionName, expires: Timestamp) -> Result<()> {
        self.engine.must_allow(SESSION_FORMAT)?;
        if self.known().indexed_under != Some(session.id) {
            file_under(&self.engine, &self.entry.slot, session, expires).await?;
            self.state().indexed_under = Some(session.id);
        }
        if self.engine.sessions.is_live(session) {
            return Ok(());
        }
        Err(session_over(&self.entry.slot))
    }

    /// Sends one write on what is known of the record.
    pub(super) async fn attempt(
        &mut self,
        limit: Duration,
        now: Now,
        build: impl FnOnce(Option<&Seen<Record>>, Stamp) -> Record,
    ) -> Outcome<Record, Now> {
        if !self.writes.has_base() {
            let base = self.known().cached.base();
            self.writes = InFlight::on(&self.engine.backend, self.entry.slot.clone(), base);
        }
        let sent = self.writes.attempt(Some(limit), now, build).await;
        sent.unwrap_or_else(|| Outcome::Unknown(Error::unknown("nothing was sent")))
    }

    /// A write has landed; this is there now.
    pub(super) fn won(&mut self, seen: Seen<Record>) -> Result<()> {
        let beat = seen.record().lease.as_ref().map(|lease| lease.beat);
        let sent = beat.and_then(|beat| Some((beat, self.writes.ticket(beat)?.moment)));
        self.settled();
        self.state().wrote(sent, seen.record().revision);
        self.state().learn(Some(seen))
    }

    /// The last write is won or lost; nothing of it can land any more.
    pub(super) fn settled(&mut self) {
        self.writes.settled();
    }

    /// What its holder may believe: for as long as the lease was asked for, from before the request was `sent`, and never
    /// further than the expiry moved since it was believed in before. A wall clock that was set back must not lengthen
    /// belief. A shorter time to live does not shorten it either: there may be copies of the earlier grant.
    pub(super) fn make_grant(&mut self, lease: &Lease, sent: Moment, ttl: Ttl, old: Option<&Grant>) -> Grant {
        let session = lease.session.map(|session| self.engine.sessions.alive_or_gone(session));
        let latest = sent.plus(ttl.as_duration());
        let belief = self.known().belief.as_ref().filter(|belief| belief.id == lease.id).cloned();
        let belief = belief.or_else(|| old.map(Belief::from)).filter(|belief| !belief.is_over());
        let deadline = match &belief {
            Some(belief) => latest.min(belief.deadline_at(lease.expires)).max(belief.deadline),
            None => latest,
        };
        let over = belief.map_or_else(Arc::default, |belief| belief.over);
        self.state().belief = Some(Belief { id: lease.id, deadline, expires: lease.expires, over: Arc::clone(&over) });
        Grant {
            namespace: self.entry.slot.namespace.clone(),
            key: self.entry.slot.key.clone(),
            id: lease.id,
            fence: lease.fence,
            owner: lease.owner.clone(),
            ttl: lease.ttl,
            expires: lease.expires,
            deadline,
            repeatable: lease.request_id.is_some(),
            over,
            clock: Arc::clone(&self.engine.backend.clock),
            session,
        }
    }

    /// Asks for the second witness where the first has said that a lease is over and it may be: by a time object that is
    /// written before the lease is read again, or by the lock that the holder's process keeps.
    pub(super) async fn second_look(&mut self, watched: Option<WriteId>) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let now = engine.now();
        let view = self.view(now);
        let State::MayHaveEnded(lease) = view.state(watched) else { return Ok(()) };
        let (beat, process) = (lease.beat, lease.process);
        let Some(record) = view.facts.record else { return Ok(()) };
        if engine.rules.host {
            // Where no clock will ever speak.
            let [_, other] = view.known().seconds(record, lease);
            if other == Second::Missing && engine.backend.has_ended(process).await {
                self.state().gone = Some(beat);
            }
            return Ok(());
        }
        if !self.is_worth_asking(&view, record, lease) {
            return Ok(());
        }
        self.state().asked = Some(now.moment);
        engine.backend.write_time().await?;
        self.read().await
    }

    /// Whether a time object would end a lease now, as far as the dates of answers say.
    fn is_worth_asking(&self, view: &View<'_>, record: &Record, lease: &Lease) -> bool {
        let (bounds, now) = (view.bounds(), view.readings.now);
        let long_over = lease.expires.plus(ended::longest_belief(lease, &bounds)).plus(LATE) < now.wall;
        // Not with every look: it may be the holder's clock that is behind, and the lease be renewed all the time.
        let asked = self.known().asked;
        let rarely = asked.is_none_or(|asked| now.moment.since(asked) >= lease.lasts(bounds.max_ttl) / 2);
        long_over && rarely && bounds.stamp_slack.is_some()
            || self.engine.second_waits(view, record, lease) == Some(Duration::ZERO)
    }

    /// Clears an ended lease; anything else is left alone. True if this operation did. `once`: a conflict, or an answer
    /// that leaves doubt, is not followed by another attempt.
    pub(super) async fn clear(&mut self, watched: Option<WriteId>, once: bool) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        let within = if once { Duration::ZERO } else { engine.operation_timeout() };
        let mut planned = false;
        let swapped = self.swap_within(Patience { within, conflicts: MAX_CONFLICTS }, None, |view| {
            if once && std::mem::replace(&mut planned, true) || engine.check_clock(view.readings.now.wall).is_err() {
                return Ok(Plan::Stop(()));
            }
            Ok(plan::clear(view, watched))
        });
        Ok(matches!(swapped.await?, Swapped::Won(_)))
    }

    /// The waiter that the lease is to be handed over to, if there is one. Dropped, it is back in the queue.
    pub(super) fn hand_over(&mut self) -> Option<HandOver> {
        match std::mem::replace(&mut self.intent, Intent::Nothing) {
            Intent::HandOver { to, .. } => Some(to),
            other => {
                self.intent = other;
                None
            }
        }
    }
}

/// Writes the entry of a key in the folder of a session. Only an Ok counts.
pub(super) async fn file_under(
    engine: &Engine,
    slot: &KeySlot,
    session: SessionName,
    expires: Timestamp,
) -> Result<()> {
    let name = layout::session_entry(&slot.namespace, &slot.key, session.id);
    engine.backend.file(&name, layout::entry_body(&slot.key, expires)).await
}

/// Why nothing is granted any more under a session.
fn session_over(slot: &KeySlot) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!("{} was not granted, as the session that it was to be held under is over: begin a new one", slot.key),
    )
}

/// Writes the index entry of a key for an hour. Only an Ok counts.
pub(super) async fn file(engine: &Engine, slot: &KeySlot, hour: Hour, expires: Timestamp) -> Result<()> {
    let name = layout::entry(&slot.namespace, &slot.key, hour);
    engine.backend.file(&name, layout::entry_body(&slot.key, expires)).await
}

struct Swap<'a, F, O> {
    operation: &'a mut Operation,
    first: Option<Now>,
    /// The latest stamp before the last attempt was sent.
    time: Option<Timestamp>,
    plan: F,
    outcome: PhantomData<fn() -> O>,
}

impl<O, F: FnMut(&View<'_>) -> Result<Plan<O>>> Attempts for Swap<'_, F, O> {
    type Slot = KeySlot;
    type Ticket = Now;
    type Outcome = O;

    async fn attempt(&mut self) -> Result<Attempted<Record, Now, O>> {
        let operation = &mut *self.operation;
        let now = self.first.take().unwrap_or_else(|| operation.engine.now());
        let change = match (self.plan)(&operation.view(now))? {
            Plan::Stop(outcome) => return Ok(Attempted::Stopped(outcome)),
            Plan::Write(change) => change,
        };
        if let Some(record) = operation.known().record() {
            operation.engine.may_change(&operation.entry.slot.key, record)?;
        }
        self.time = operation.engine.backend.latest_stamp();
        Ok(match operation.send(now, change).await {
            Ok(outcome) => Attempted::Sent(outcome),
            Err(error) => Attempted::NotSent(error),
        })
    }

    fn lost(&mut self, there: Option<Seen<Record>>) -> Result<()> {
        self.operation.settled();
        self.operation.state().learn(there)?;
        self.operation.state().time = self.time;
        Ok(())
    }

    fn what(&self) -> (String, &'static str) {
        (self.operation.entry.slot.key.to_string(), "changed")
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.entry.slot.key;
        f.debug_struct("Operation").field("key", key).field("intent", &self.intent).finish_non_exhaustive()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let intent = std::mem::replace(&mut self.intent, Intent::Nothing);
        let Some(mut state) = self.state.take() else { return };
        let writes = std::mem::take(&mut self.writes);
        if !writes.is_in_doubt() {
            // Before the key is unlocked: a waiter that nothing was handed over to goes on waiting where it was.
            drop(intent);
            return;
        }
        match self.resolve.filter(|_| !matches!(intent, Intent::Nothing)) {
            // A renewal that nothing waits for may still land, and must be recognised as our own.
            None => state.doubtful(writes.tickets().map(|(id, now)| (id, now.moment))),
            Some(resolve) => {
                let (engine, entry) = (Arc::clone(&self.engine), Arc::clone(&self.entry));
                let (leftovers, runtime) = (engine.leftovers.clone(), engine.runtime.clone());
                let under = self.under;
                leftovers.spawn_on(resolve(Doubt { under, engine, entry, state, writes, intent }), &runtime);
            }
        }
    }
}
