//! Renewing a lease, and finding that it is lost.

use super::{
    engine::Engine,
    keys::KeyEntry,
    loss::{Loss, Lost, Renewed},
    operation::{Operation, Swapped},
    plan::{self, Believed, Plan},
    types::Grant,
};
use crate::{ErrorKind, LeaseId, Result, Ttl};
use std::sync::Arc;

/// Renews a lease, and tells of its loss. `old` is what this process believed of it so far; without it, the record must
/// do.
pub(super) async fn renew(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    id: LeaseId,
    ttl: Option<Ttl>,
    old: Option<&Grant>,
) -> Result<Renewed> {
    Ok(match try_renew(engine, entry, id, ttl, old).await? {
        Ok(grant) => Renewed::Renewed(grant),
        Err(lost) => {
            engine.tell_loss(&entry.slot, &lost);
            Renewed::Lost(lost.loss)
        }
    })
}

/// Renews a lease, and leaves it to the caller to tell of its loss.
pub(super) async fn try_renew(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    id: LeaseId,
    ttl: Option<Ttl>,
    old: Option<&Grant>,
) -> Result<std::result::Result<Grant, Box<Lost>>> {
    engine.backend.announce(engine.rules.process)?;
    let state = engine.lock_key_first(entry).await?;
    let mut operation = Operation::new(engine, entry, state);
    let wall = engine.now().wall;
    let known = operation.known().lease().filter(|lease| lease.id == id);
    let owner = known.map(|lease| lease.owner.clone()).or_else(|| old.map(|old| old.owner.clone()));
    let fence = known.map(|lease| lease.fence).or_else(|| old.map(|old| old.fence));
    let lost = |loss| Ok(Err(Box::new(Lost { loss, id, owner, fence })));
    // What is known may have ended in the cache alone: another process can renew it by its id.
    let alive = known.is_some_and(|lease| wall < lease.expires);
    if !alive || old.is_some_and(|old| !old.is_valid()) {
        operation.read().await?;
    }
    let ttl = ttl.or_else(|| old.map(|old| old.ttl)).map(|ttl| engine.limits.clamp(ttl)).transpose()?;
    let met = engine.sessions.met(&entry.slot);
    let swapped = operation.swap(None, |view| {
        let mut plan = plan::renew(view, id, ttl, old.map(Believed::from))?;
        if let Plan::Write(change) = &mut plan {
            plan::session::answered(change, &met);
        }
        Ok(plan)
    });
    let swapped = swapped.await;
    engine.sessions.meet(&entry.slot, operation.known().record());
    if let (Err(error), Some(session)) = (&swapped, engine.sessions.at(&entry.slot))
        && error.kind() == ErrorKind::Regressed
    {
        // What is held under it may have gone back as well, and nothing else would tell.
        session.give_up("the store went back to an older state");
    }
    let now = match swapped? {
        Swapped::Stopped(loss) => {
            // Those who wait here may be waiting for this process to hand it over.
            entry.queue.wake();
            return lost(loss);
        }
        Swapped::Won(now) => now,
    };
    if let Some(lease) = operation.known().lease().cloned() {
        let grant = operation.make_grant(&lease, now.moment, lease.ttl, old);
        if grant.is_valid() {
            engine.counters.renewed(1);
            return Ok(Ok(grant));
        }
    }
    // It landed, and finding that out took longer than it lasts.
    lost(Loss::expired(None, operation.known().fence))
}
