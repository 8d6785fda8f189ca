//! A look at a ledger by a process that asks nothing of it.

use super::{Pending, Shard, Waits, guest::LEDGER_LASTS};
use crate::{Result, job::ledger::Millis};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// A ledger that was seen by a commit just before the last look is not read much later than it should be.
const SLACK: Duration = Duration::from_secs(1);

/// Reads the ledger if it was not seen for a while, and has done what it wants to have done.
pub(crate) async fn patrol(shard: &Arc<Shard>) -> Result<()> {
    let backend = shard.queue.backend();
    if shard.known().is_none_or(|known| known.at.of(backend) >= LEDGER_LASTS.saturating_sub(SLACK)) {
        shard.look().await?;
    }
    let Some(known) = shard.known() else { return Ok(()) };
    let (ledger, now) = (known.seen.record(), shard.now());
    let looks = ledger.to_look_at(None, now).next().is_some();
    let undone = ledger.dead_to_write(now).next().is_some()
        || ledger.moves_to_write(now).next().is_some()
        || !ledger.to_delete(now).is_empty();
    if looks || undone {
        shard.submit(Pending::new(Vec::new(), Waits::Duty));
    }
    Ok(())
}

/// When somebody's session, found alive, has to be looked at again.
pub(super) fn next_look(shard: &Shard) -> Option<Millis> {
    *shard.next_look.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When the session of somebody who has something in hand here could end next.
pub(crate) fn next_end(shard: &Shard, now: Millis) -> Option<Millis> {
    let known = shard.known()?;
    let ledger = known.seen.record();
    let holds = |id| ledger.claims.iter().any(|claim| claim.session == id);
    let ends = ledger.sessions.iter().filter(|session| session.until > now && holds(session.id));
    ends.map(|session| session.until).chain(next_look(shard).filter(|at| *at > now)).min()
}
