//! Reading what there is on a key, and clearing on the way what has ended.

use super::{
    engine::{Engine, status},
    keys::KeyEntry,
    operation::Operation,
    others,
    tell::{before, fail_others, tell_others, turn},
    tries::{Asked, Turn},
    types::Status,
};
use crate::Result;
use std::sync::Arc;

/// What there is, after clearing what has ended.
pub(super) async fn get(engine: &Arc<Engine>, entry: &Arc<KeyEntry>) -> Result<Status> {
    let state = match turn(engine, entry, Asked::Look).await? {
        Turn::Told(status) => return Ok(status),
        Turn::Ours(state) => state,
    };
    let mut operation = Operation::new(engine, entry, state);
    let before = before(&operation);
    if let Err(error) = operation.read().await {
        fail_others(&operation, before, &error);
        return Err(error);
    }
    let key = &entry.slot.key;
    // A record of a later format is shown, and left for a later version to clear.
    let ours = operation.known().record().is_none_or(|record| record.must_be_ours(key).is_ok());
    // What is there is known, whether or not it can be cleared.
    if ours && let Err(error) = clear(&mut operation).await {
        tracing::warn!(%key, %error, "an ended lease could not be cleared: the next access will try again");
    }
    entry.queue.wake();
    tell_others(&operation, before);
    let view = operation.view_now();
    Ok(status(key, view.facts.record, view.state(None)))
}

async fn clear(operation: &mut Operation) -> Result<()> {
    others::second_look(operation, None).await?;
    if operation.clear(None, false).await? {
        operation.engine.counters.cleared_by_operation(1);
    }
    Ok(())
}
