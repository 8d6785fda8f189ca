//! Giving a lease back, or on: a release with a waiter in this process is a grant to it, in one write. Also what
//! is done about writes of dropped operations, which may have granted a lease that has no caller any more.

use super::{
    engine::Engine,
    keys::{HandOver, KeyEntry},
    late::{free_late, is_late},
    operation::{Doubt, Intent, Operation, Swapped},
    plan::{self, Now, Wanted},
    record::{KeySlot, Record},
    state::KeyState,
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
    release_locked(operation, id).await
}

async fn release_locked(operation: Operation, id: LeaseId) -> Result<()> {
    let known = operation.known();
    let marked = known.record().is_some_and(|record| record.waiting.is_some());
    let clock = operation.engine.check_clock(operation.engine.now().wall);
    let may_hand_over = clock.is_ok() && !(marked && known.turns >= MAX_TURNS);
    release_to(operation, id, may_hand_over).await
}

async fn release_to(mut operation: Operation, id: LeaseId, may_hand_over: bool) -> Result<()> {
    let (engine, entry) = (Arc::clone(&operation.engine), Arc::clone(&operation.entry));
    let next = LeaseId::random(&*engine.backend.generator);
    let next = match may_hand_over.then(|| HandOver::to_next(&entry, next)).flatten() {
        Some(to) => {
            let wanted = to.wanted().map(|(request, id)| (request.clone(), id));
            operation.intent = Intent::HandOver { from: id, to };
            wanted
        }
        None => None,
    };
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
        plan::release(view, id, Some(Wanted { request, ttl, id: *id_of_next }))
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
        release_soon(&operation.engine, &operation.entry, grant.id);
    }
    operation.entry.queue.wake();
}

/// Releases in a task of its own, for those who cannot wait for it.
pub(super) fn release_soon(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, id: LeaseId) {
    let (releasing, released) = (Arc::clone(engine), Arc::clone(entry));
    engine.retry_soon(entry, move || {
        let (engine, entry) = (Arc::clone(&releasing), Arc::clone(&released));
        async move { release(&engine, &entry, id).await }
    });
}

/// Settles a write whose caller has gone away, and releases a lease without a caller. The key stays locked meanwhile.
pub(super) fn resolve_doubt(doubt: Doubt) -> BoxFuture<'static, ()> {
    async move {
        let Doubt { engine, entry, mut state, mut writes, intent } = doubt;
        match settle_writes(&engine, &entry.slot, &mut state, &mut writes).await {
            Some(landed) => {
                let operation = Operation::new(&engine, &entry, state);
                if let Err(error) = act_on(operation, intent, landed).await {
                    tracing::warn!(key = %entry.slot.key, %error, "a lease that nobody wants could not be released: it will expire");
                }
            }
            None => drop(intent),
        }
        // Those who wait may have been waiting for what turned out not to be there.
        entry.queue.wake();
    }
    .boxed()
}

/// The clocks of the write that landed, if one did. `None` if that was not found out.
async fn settle_writes(
    engine: &Engine,
    slot: &KeySlot,
    state: &mut KeyState,
    writes: &mut InFlight<KeySlot, Now>,
) -> Option<Option<Now>> {
    match settle(&engine.backend, writes, &AsItIs(engine)).await {
        Ok(Settled::Landed(seen, now)) => {
            let beat = seen.record().lease.as_ref().map(|lease| lease.beat);
            let sent = beat.and_then(|beat| Some((beat, writes.ticket(beat)?.moment)));
            state.wrote(sent, seen.record().revision);
            state.learn(Some(seen)).is_ok().then_some(Some(now))
        }
        Ok(Settled::Lost(there)) => state.learn(there).is_ok().then_some(None),
        Err(error) => {
            tracing::warn!(key = %slot.key, %error, "what became of a write was not found out: its lease, if there is one, will expire");
            state.forget();
            None
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
        free_late(&operation.engine, &operation.entry, lease.id, lease.beat);
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
        Some(id) => release_locked(operation.intends(Intent::Release(id), resolve_doubt), id).await,
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
