//! A grant that landed too late to be of use. Its writer was suspended between the index entry and the record, say, and
//! the sweeper has deleted the entry of that hour meanwhile: no sweep would find the lease any more.

use super::{
    engine::Engine,
    keys::KeyEntry,
    operation::Operation,
    plan::{self, Now},
    record::Lease,
};
use crate::{LeaseId, Result, WriteId};
use std::sync::Arc;

/// Whether a lease that this process was just granted is over already, as far as its own clocks and the store's say.
pub(super) fn is_late(engine: &Engine, lease: &Lease, granted: Now) -> bool {
    let now = engine.now();
    now.moment >= granted.moment.plus(lease.ttl.as_duration())
        || now.wall >= lease.expires
        || engine.backend.store_interval().is_some_and(|store| store.lower >= lease.expires)
}

/// Frees a lease of this process that came too late, in a task of its own. One that was asked for again by its request id
/// meanwhile, from whatever process, has another beat: its holder believes in it, and it is left alone.
pub(super) fn free_late(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, late: &Lease) {
    let (freeing, freed) = (Arc::clone(engine), Arc::clone(entry));
    let (id, beat) = (late.id, late.beat);
    engine.retry_soon(entry, late.session, move || {
        let (engine, entry) = (Arc::clone(&freeing), Arc::clone(&freed));
        async move { free_unchanged(&engine, &entry, id, beat).await }
    });
}

async fn free_unchanged(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, id: LeaseId, beat: WriteId) -> Result<()> {
    let state = engine.lock_key_first(entry).await?;
    let mut operation = Operation::new(engine, entry, state);
    operation.read().await?;
    operation.swap(None, |view| Ok(plan::free_unchanged(view, id, beat))).await?;
    entry.queue.wake();
    Ok(())
}
