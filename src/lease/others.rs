//! Whether the session of another process has ended: found out when a lease is met that is held under it.
//!
//! Three things are an end, and final: the session's record carries no lease, or another one, or is missing and was made by
//! us. One that only looks expired is cleared first, by compare-and-swap, so that a renewal on its way cannot revive it.

use super::{
    ended::{State, Watched},
    engine::Engine,
    layout,
    operation::{Operation, Swapped, file},
    plan::{
        self, Facts,
        session::{Standing, standing},
    },
    record::{KeySlot, Record, SessionName},
};
use crate::{
    Error, ErrorKind, Hour, Namespace, Result, WriteId,
    clock::Timestamp,
    storage::{cas, layout::OURS},
};
use futures_util::{FutureExt, future::BoxFuture};
use std::sync::Arc;

/// How often a session's record may change under us.
const TRIES: u32 = 4;

/// Asks whatever can say more where a lease may have ended: its session, or the second witness.
pub(super) async fn second_look(operation: &mut Operation, watched: Option<WriteId>) -> Result<()> {
    let Some(session) = operation.known().lease().and_then(|lease| lease.session) else {
        return operation.second_look(watched).await;
    };
    let engine = Arc::clone(&operation.engine);
    if operation.known().session_over != Some(session) && has_ended(&engine, session).await? {
        operation.state().session_over = Some(session);
    }
    Ok(())
}

/// Whether a session has ended, beyond doubt. Clears its record if it looks so.
pub(super) fn has_ended(engine: &Arc<Engine>, session: SessionName) -> BoxFuture<'_, Result<bool>> {
    async move {
        if engine.sessions.is_ended(session) {
            return Ok(true);
        }
        let asked = engine.now().moment;
        let seen = engine.sessions.seen(session);
        if engine.sessions.is_live(session) || seen.is_some_and(|seen| asked < seen.until) {
            return Ok(false);
        }
        let slot = KeySlot { namespace: Namespace::trusted(OURS), key: session.key()? };
        let entry = engine.keys.get(&slot.namespace, &slot.key);
        let state = engine.lock_key(&entry).await?;
        let mut operation = Operation::new(engine, &entry, state);
        let watched = seen.and_then(|seen| seen.watched.long_enough(engine.now().moment));
        operation.read().await.map_err(|error| unreadable(error, session))?;
        prove_end(&mut operation, session, watched).await
    }
    .boxed()
}

async fn prove_end(operation: &mut Operation, session: SessionName, watched: Option<WriteId>) -> Result<bool> {
    let engine = Arc::clone(&operation.engine);
    for _ in 0..TRIES {
        match standing(operation.known().record(), session) {
            Standing::Ended => {
                engine.sessions.ended(session);
                return Ok(true);
            }
            Standing::Missing => make_record(operation).await?,
            Standing::Alive => {
                operation.second_look(watched).await?;
                if operation.clear(watched, false).await? {
                    engine.counters.cleared_by_operation(1);
                    continue;
                }
                let view = operation.view_now();
                if let Some(lease) = view.lease().filter(|lease| lease.id == session.lease) {
                    let there = Watched::new(lease, view.readings.now.moment, &view.bounds());
                    let pause = engine.free_in(&view).min(engine.settings.max_poll_interval);
                    engine.sessions.alive(session, view.readings.now.moment.plus(pause), there);
                    return Ok(false);
                }
            }
        }
    }
    Ok(false)
}

/// Makes a record without a lease where there is none, filed for the sweeper: what may still be on its way cannot land.
async fn make_record(operation: &mut Operation) -> Result<()> {
    let engine = Arc::clone(&operation.engine);
    let now = engine.now().wall;
    file(&engine, &operation.entry.slot, Hour::of(now)?, now).await?;
    let swapped = operation.swap(None, |view| {
        engine.check_clock(view.readings.now.wall)?;
        plan::make_free(view)
    });
    match swapped.await? {
        Swapped::Won(_) | Swapped::Stopped(()) => Ok(()),
    }
}

/// A record that cannot be read means held, and says so.
fn unreadable(error: Error, session: SessionName) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::corrupt(format!(
            "what is held under the session {} counts as held, as its own record cannot be read: {error}",
            session.id
        )),
        _ => error,
    }
}

/// What a reader is told of a session, who changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Alive,
    /// Only a write would tell.
    MayHaveEnded,
    Ended,
}

/// Looks at a session without writing anything.
pub(super) async fn look(engine: &Engine, session: SessionName) -> Result<Look> {
    if engine.sessions.is_ended(session) {
        return Ok(Look::Ended);
    }
    let now = engine.now().moment;
    if engine.sessions.is_live(session) || engine.sessions.seen(session).is_some_and(|seen| now < seen.until) {
        return Ok(Look::Alive);
    }
    let time = engine.backend.latest_stamp();
    let slot = KeySlot { namespace: Namespace::trusted(OURS), key: session.key()? };
    let seen = match cas::read(&engine.backend, &slot).await {
        Ok(seen) => seen,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::warn!(session = %session.id, %error, "what is held under a session counts as held, as its record cannot be read");
            return Ok(Look::Alive);
        }
        Err(error) => return Err(error),
    };
    let record = seen.as_ref().map(cas::Seen::record);
    Ok(match standing(record, session) {
        Standing::Ended => {
            engine.sessions.ended(session);
            Look::Ended
        }
        Standing::Missing => Look::MayHaveEnded,
        Standing::Alive => {
            let facts = Facts::read(record, seen.as_ref().and_then(cas::Seen::modified), time);
            let view = engine.view(facts, engine.now());
            match view.state(None) {
                State::Held(lease) => {
                    let there = Watched::new(lease, view.readings.now.moment, &view.bounds());
                    let pause = engine.free_in(&view).min(engine.settings.max_poll_interval);
                    engine.sessions.alive(session, view.readings.now.moment.plus(pause), there);
                    Look::Alive
                }
                _ => Look::MayHaveEnded,
            }
        }
    })
}

/// What a record means that was read outside of all changes, with what its session says.
pub(super) async fn judge_read<'a>(
    engine: &'a Engine,
    record: Option<&'a Record>,
    modified: Option<Timestamp>,
    time: Option<Timestamp>,
    watched: Option<WriteId>,
) -> Result<State<'a>> {
    let state = engine.judge_read(record, modified, time, watched);
    let (State::Held(lease), Some(session)) = (state, state.held().and_then(|lease| lease.session)) else {
        return Ok(state);
    };
    Ok(match look(engine, session).await? {
        Look::Alive => State::Held(lease),
        Look::MayHaveEnded => State::MayHaveEnded(lease),
        Look::Ended => State::Ended(lease),
    })
}

/// The sessions in whose folders there is an entry of a key, and that have not ended as far as is known: somebody may hold
/// the key although its record does not say so.
pub(super) async fn may_hold(engine: &Arc<Engine>, slot: &KeySlot) -> Result<bool> {
    let index = layout::session_index(slot.namespace.as_str());
    for folder in engine.backend.folders(&index).await? {
        let Ok(id) = folder.parse() else { continue };
        let entry = layout::session_entry(&slot.namespace, &slot.key, id);
        if engine.backend.get(&entry).await?.is_none() {
            continue;
        }
        let own = KeySlot { namespace: Namespace::trusted(OURS), key: layout::session_key(id)? };
        let seen = cas::read(&engine.backend, &own).await?;
        if seen.is_some_and(|seen| seen.record().lease.is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}
