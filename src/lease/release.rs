//! Giving a lease back, or on: a release with a waiter in this process is a grant to it, in one write. Also what
//! is done about writes of dropped operations, which may have granted a lease that has no caller any more.

use super::{
    engine::Engine,
    keys::{HandOver, KeyEntry},
    late::{free_late, is_late},
    living::Unsettled,
    loss::{Loss, LossReason},
    operation::{Doubt, Intent, Operation, Swapped},
    plan::{self, Now, Wanted},
    record::{KeySlot, Record, SessionName},
    state::KeyState,
    types::Request,
};
use crate::{
    ErrorKind, LeaseId, Result, Ttl,
    record::{InFlight, Settled, Unchanged, settle},
    storage::cas::{Seen, Stamp},
};
use futures_util::{FutureExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

/// How many local hand-overs in a row are allowed while another process waits.
const MAX_TURNS: u32 = 16;

/// The longest that a process stays back for another one's mark.
const LONGEST_STAY_BACK: Duration = Duration::from_secs(10);

/// Frees a lease, or hands it to the one of this process that waits longest. Done when the record does not carry it.
pub(super) async fn release(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, id: LeaseId) -> Result<()> {
    let state = engine.lock_key_first(entry).await?;
    let mut operation = Operation::new(engine, entry, state).intends(Intent::Release(id), resolve_doubt);
    if operation.known().lease().is_none_or(|lease| lease.id != id) {
        operation.read().await?;
    }
    if let Some(lease) = operation.known().lease().filter(|lease| lease.id == id) {
        // Whoever holds it here is told before it is given back.
        let (session, fence) = (lease.session, lease.fence);
        if let Some(living) = session.and_then(|session| engine.sessions.of(session)) {
            living.let_go(id, Some(Loss::new(LossReason::Released, Some(fence))));
        }
        operation.under = [None, session];
    }
    release_locked(operation, id).await
}

async fn release_locked(operation: Operation, id: LeaseId) -> Result<()> {
    let known = operation.known();
    let marked = known.record().is_some_and(|record| record.waiting.is_some());
    let clock = operation.engine.check_clock(operation.engine.now().wall);
    let may_hand_over = clock.is_ok() && !(marked && known.turns >= MAX_TURNS);
    release_to(operation, id, may_hand_over).await
}

/// Takes the first who waits out of the queue, to be handed the lease over: what it asked for, and the lease that it will have.
fn take_next(operation: &mut Operation, from: LeaseId) -> Option<(Request, LeaseId)> {
    let next = LeaseId::random(&*operation.engine.backend.generator);
    let to = HandOver::to_next(&operation.entry, next)?;
    let wanted = to.wanted().map(|(request, id)| (request.clone(), id));
    operation.under[0] = wanted.as_ref().and_then(|(request, _)| request.under()).map(|under| under.name);
    operation.intent = Intent::HandOver { from, to };
    wanted
}

async fn release_to(mut operation: Operation, id: LeaseId, may_hand_over: bool) -> Result<()> {
    let (engine, entry) = (Arc::clone(&operation.engine), Arc::clone(&operation.entry));
    let next = if may_hand_over { take_next(&mut operation, id) } else { None };
    let ttl = match &next {
        Some((request, _)) => engine.limits.clamp(request.ttl_or_default()?)?,
        None => Ttl::new(engine.rules.max_ttl)?,
    };
    let mut removed = None;
    let swapped = operation.swap(None, |view| {
        let Some((request, id_of_next)) = &next else {
            removed = view.facts.record.and_then(|record| record.waiting);
            return plan::release(view, id, None);
        };
        // With every attempt: the clock may have been set meanwhile, and what is handed over is granted.
        engine.check_clock(view.readings.now.wall)?;
        plan::release(view, id, Some(Wanted { request, ttl, id: *id_of_next, under: request.under() }))
    });
    match swapped.await {
        Ok(Swapped::Won(now)) => {
            engine.counters.released(1);
            match operation.hand_over() {
                Some(to) => {
                    if operation.known().record().is_some_and(|record| record.waiting.is_some()) {
                        operation.state().turns += 1;
                    }
                    engine.counters.handed_over(1);
                    engine.counters.granted(1);
                    deliver(&mut operation, to, now, ttl);
                }
                None => {
                    if let Some(mark) = removed.filter(|mark| mark.process != engine.rules.process) {
                        let pause = (2 * mark.interval).min(LONGEST_STAY_BACK);
                        operation.state().stay_back = Some(now.moment.plus(pause));
                    }
                    operation.state().turns = 0;
                    entry.queue.wake();
                }
            }
            Ok(())
        }
        Ok(Swapped::Stopped(())) => {
            drop(operation.hand_over());
            operation.intent = Intent::Release(id);
            entry.queue.wake();
            Ok(())
        }
        // Nothing is handed over by a wrong clock, but giving back goes on.
        Err(error) if error.kind() == ErrorKind::Clock && !operation.is_in_doubt() => {
            operation.intent = Intent::Release(id);
            Box::pin(release_to(operation, id, false)).await
        }
        // In doubt, the hand-over is settled in the background; else the waiter is put back when the operation is dropped.
        Err(error) => Err(error),
    }
}

/// Gives a waiter what was won for it; a lease that it does not take any more is freed again.
fn deliver(operation: &mut Operation, to: HandOver, now: Now, ttl: Ttl) {
    let keep = to.wanted().is_some_and(|(request, _)| request.request_id.is_some());
    let Some(lease) = operation.known().lease().cloned() else { return };
    let grant = operation.make_grant(&lease, now.moment, ttl, None);
    if let Some(grant) = to.deliver(grant)
        && !keep
    {
        release_soon(&operation.engine, &operation.entry, grant.id, lease.session);
    }
    operation.entry.queue.wake();
}

/// Releases in a task of its own, for those who cannot wait for it. `under` is the session that the lease is held under.
pub(super) fn release_soon(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, id: LeaseId, under: Option<SessionName>) {
    let (releasing, released) = (Arc::clone(engine), Arc::clone(entry));
    engine.retry_soon(entry, under, move || {
        let (engine, entry) = (Arc::clone(&releasing), Arc::clone(&released));
        async move { release(&engine, &entry, id).await }
    });
}

/// Settles a write whose caller has gone away, and releases a lease without a caller. The key stays locked meanwhile.
pub(super) fn resolve_doubt(doubt: Doubt) -> BoxFuture<'static, ()> {
    async move {
        let Doubt { under, engine, entry, mut state, mut writes, intent } = doubt;
        let living = |session: SessionName| engine.sessions.of(session).and_then(Unsettled::of);
        let unsettled = under.map(|session| session.and_then(living));
        let goes_on = || unsettled.iter().flatten().any(Unsettled::goes_on);
        let mut settled = settle_writes(&engine, &entry.slot, &mut state, &mut writes, goes_on()).await;
        while matches!(settled, Settling::Open) && goes_on() {
            engine.backend.pause(6).await;
            settled = settle_writes(&engine, &entry.slot, &mut state, &mut writes, goes_on()).await;
        }
        match settled.landed() {
            Some(landed) => {
                let mut operation = Operation::new(&engine, &entry, state);
                operation.under = under;
                if let Err(error) = act_on(operation, intent, landed).await {
                    tracing::warn!(key = %entry.slot.key, %error, "a lease that nobody wants could not be released: it will expire");
                }
            }
            None => {
                drop(state);
                release_unsettled(&engine, &entry, intent, under);
            }
        }
        // Those who wait may have been waiting for what turned out not to be there.
        entry.queue.wake();
    }
    .boxed()
}

/// What became of writes in doubt.
enum Settling {
    /// The clocks of the one that landed, if one did.
    Settled(Option<Now>),
    /// It was not found out, and can be tried again.
    Open,
    /// The store went back: they cannot land any more, and what is there must be read.
    Gone,
}

impl Settling {
    fn landed(self) -> Option<Option<Now>> {
        match self {
            Self::Settled(landed) => Some(landed),
            Self::Open | Self::Gone => None,
        }
    }
}

/// What is done where it was not found out what became of a lease under a session that lives: it is released by what is there.
fn release_unsettled(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, intent: Intent, under: [Option<SessionName>; 2]) {
    let ids = match intent {
        Intent::Nothing => [None, None],
        Intent::Grant { id, .. } => [Some(id), None],
        Intent::Release(id) => [None, Some(id)],
        Intent::HandOver { from, to } => [to.wanted().map(|(_, id)| id), Some(from)],
    };
    for (session, id) in under.into_iter().zip(ids) {
        if let (Some(session), Some(id)) = (session, id) {
            release_soon(engine, entry, id, Some(session));
        }
    }
}

/// Finds out what became of writes. `again` says that it will be tried again if that fails.
async fn settle_writes(
    engine: &Engine,
    slot: &KeySlot,
    state: &mut KeyState,
    writes: &mut InFlight<KeySlot, Now>,
    again: bool,
) -> Settling {
    let known = |learnt: Result<()>, landed| match learnt {
        Ok(()) => Settling::Settled(landed),
        Err(_) => Settling::Gone,
    };
    match settle(&engine.backend, writes, &AsItIs(engine)).await {
        Ok(Settled::Landed(seen, now)) => {
            let beat = seen.record().lease.as_ref().map(|lease| lease.beat);
            let sent = beat.and_then(|beat| Some((beat, writes.ticket(beat)?.moment)));
            state.wrote(sent, seen.record().revision);
            known(state.learn(Some(seen)), Some(now))
        }
        Ok(Settled::Lost(there)) => known(state.learn(there), None),
        Err(error) if again && error.kind() != ErrorKind::Regressed => {
            tracing::debug!(key = %slot.key, %error, "what became of a write is not known yet");
            Settling::Open
        }
        Err(error) => {
            tracing::warn!(key = %slot.key, %error, "what became of a write was not found out: its lease, if there is one, will expire");
            state.forget();
            Settling::Gone
        }
    }
}

/// Does what a dropped operation was for, by what is there now.
async fn act_on(mut operation: Operation, intent: Intent, landed: Option<Now>) -> Result<()> {
    let lease = operation.known().lease();
    let carried = lease.map(|lease| (lease.id, lease.ttl));
    // It is of no use to anybody, so it is freed although it could be asked for again.
    if let (Intent::Grant { id, keep: true }, Some(lease), Some(now)) = (&intent, lease, landed)
        && lease.id == *id
        && is_late(&operation.engine, lease, now)
    {
        free_late(&operation.engine, &operation.entry, lease);
    }
    let unwanted = match (intent, carried, landed) {
        (Intent::Grant { id, keep: false } | Intent::Release(id), Some((there, _)), _) if there == id => Some(id),
        (Intent::HandOver { to, .. }, Some((there, ttl)), Some(now))
            if to.wanted().is_some_and(|(_, id)| id == there) =>
        {
            deliver(&mut operation, to, now, ttl);
            None
        }
        // Also a lease of the waiter's that was asked for again by its request id, and so changed: which attempt it came
        // from is not known, and with it how long it may be believed in. The waiter's own read will tell.
        (Intent::HandOver { from, to }, carried, _) => {
            drop(to);
            carried.map(|(there, _)| there).filter(|there| *there == from)
        }
        _ => None,
    };
    match unwanted {
        Some(id) => {
            let (engine, entry, under) = (Arc::clone(&operation.engine), Arc::clone(&operation.entry), operation.under);
            let released = release_locked(operation.intends(Intent::Release(id), resolve_doubt), id).await;
            // Under a session nothing expires by itself.
            if let (Err(_), Some(session)) = (&released, under.into_iter().flatten().next()) {
                release_soon(&engine, &entry, id, Some(session));
                return Ok(());
            }
            released
        }
        None => Ok(()),
    }
}

/// A write that leaves a record as it is.
struct AsItIs<'a>(&'a Engine);

impl Unchanged<KeySlot, Now> for AsItIs<'_> {
    fn ticket(&self) -> Now {
        self.0.now()
    }

    fn record(&self, now: &Now, base: Option<&Seen<Record>>, stamp: Stamp) -> Record {
        Record::after(base.map(Seen::record), base.and_then(Seen::modified), stamp, now.wall)
    }
}
