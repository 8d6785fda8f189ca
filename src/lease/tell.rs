//! One read answers all operations of this process that were waiting for the key: see [`super::tries`].

use super::{
    ended::State,
    engine::{Engine, status},
    keys::KeyEntry,
    operation::Operation,
    tries::{Asked, Before, Turn},
    types::Request,
};
use crate::{Error, ErrorKind, Result, record::Known};
use tokio::sync::oneshot;

/// Waits until the key is locked for this operation, or another one has found out what is asked. At once where the key is
/// not locked.
pub(super) async fn turn<A>(
    engine: &Engine,
    entry: &KeyEntry,
    ask: impl FnOnce(oneshot::Sender<Result<A>>) -> Asked,
) -> Result<Turn<A>> {
    if let Some(state) = entry.state.try_take() {
        return Ok(Turn::Ours(state));
    }
    let mut place = entry.tries.join(ask);
    let locked = tokio::select! {
        biased;
        Ok(answer) = &mut place.answer => return answer.map(Turn::Told),
        locked = engine.lock_key(entry) => locked,
    };
    match place.answer.try_recv() {
        Ok(answer) => answer.map(Turn::Told),
        Err(_) => locked.map(Turn::Ours),
    }
}

/// To be taken with the key locked, before anything is sent.
pub(super) fn before(operation: &Operation) -> Before {
    Before { last: operation.entry.tries.last(), learnt: operation.known().cached.learnt() }
}

/// Tells all who were waiting before what the store has answered since, as far as that settles what they ask.
pub(super) fn tell_others(operation: &Operation, before: Before) {
    let (engine, entry, known) = (&operation.engine, &operation.entry, operation.known());
    if known.cached.learnt() == before.learnt || entry.tries.is_empty() {
        return;
    }
    // What was read could not be used.
    if matches!(known.cached.known(), Known::Nothing) {
        return;
    }
    let view = operation.view_now();
    let state = view.state(None);
    let held = |request: Option<&Request>| {
        // An operation that finds it free takes it.
        let lease = state.held()?;
        if request.is_some_and(|request| view.repeats(request, lease)) {
            return None;
        }
        engine.counters.refused(1);
        Some(Ok(engine.held_by(&view)))
    };
    // An operation that reads an ended lease clears it.
    let settled = !matches!(state, State::Ended(_));
    entry.tries.tell(before.last, held, || settled.then(|| Ok(status(&entry.slot.key, known.record(), state))));
}

/// Tells all who were waiting before that the store is unavailable: each of them would find the same, one after the other.
pub(super) fn fail_others(operation: &Operation, before: Before, error: &Error) {
    if operation.known().cached.learnt() == before.learnt && error.kind() == ErrorKind::Unavailable {
        operation.entry.tries.tell(before.last, |_| Some(Err(error.clone())), || Some(Err(error.clone())));
    }
}
