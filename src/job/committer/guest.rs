//! Whose shard it is: who reads before it commits, and who leaves it to its owner.

use super::{Desk, Given, Pending, Shard, Waits, cycle::demand};
use crate::{
    Result,
    clock::Moment,
    job::{
        apply::{Op, WAITS},
        inbox::{Look, unknown},
        ledger::{Ledger, Millis, SessionId},
    },
    storage::cas::Seen,
};
use std::{sync::Arc, time::Duration};

/// A ledger that shows nothing to do is read again after this.
pub(super) const LEDGER_LASTS: Duration = Duration::from_secs(10);
/// A guest that has won leaves the shard to its owner for so long, unless that has committed since.
const YIELD: Duration = Duration::from_secs(1);

/// The ledger to begin with. Whoever has the shard to itself does not read it: a commit finds out if that was wrong.
pub(super) async fn base(shard: &Shard, pending: &[Pending], own: Option<SessionId>) -> Result<Arc<Seen<Ledger>>> {
    // An answer without a session would not be told from others': what is known must be what is there.
    let must_be_fresh = pending.iter().any(|pending| match pending.waits {
        Waits::Asked(_) => !matches!(pending.ops[..], [Op::Close]),
        Waits::Answers(_) => own.is_none(),
        Waits::Claim { .. } | Waits::Begin { .. } | Waits::Nobody | Waits::Duty => false,
    });
    let backend = shard.queue.backend();
    let (demand, now) = (demand(pending), shard.now());
    let asked = pending.iter().any(|pending| !matches!(pending.waits, Waits::Nobody | Waits::Duty));
    let usable = shard.known().filter(|known| {
        let ledger = known.seen.record();
        let owns = own.is_some() && ledger.owner(now).map(|owner| owner.id) == own;
        // Whoever can wait finds out whose shard it is.
        let guest = demand.is_some_and(|demand| demand.patient) && !owns;
        !(must_be_fresh || guest || asked && ledger.is_shared(own, now))
    });
    let Some(known) = usable else { return shard.look().await };
    let ledger = known.seen.record();
    if let Some(demand) = demand
        && known.at.of(backend) >= LEDGER_LASTS
        && ledger.depth(now).ready == 0
    {
        // It may be that others have brought something. If the inbox has, a commit finds that out as well.
        let look = shard.look_for(demand, ledger, now).await?;
        if look.is_none_or(|look| unknown(ledger, &look.names, 1).is_empty()) {
            return shard.look().await;
        }
    }
    Ok(known.seen)
}

/// Until when a guest leaves this shard to its owner: what waits there is young, or it was the last to take something.
pub(super) fn leaves_to_owner(
    shard: &Shard,
    desk: &Desk,
    ledger: &Ledger,
    look: Option<&Look>,
    now: Millis,
) -> Option<Millis> {
    let own = desk.session.as_ref().map(|session| session.id);
    if !ledger.is_owned_by_another(own, now) {
        return None;
    }
    let moment = shard.queue.backend().clock.monotonic();
    let won_last = |(revision, at): (u64, Moment)| revision == ledger.revision && moment.since(at) < YIELD;
    if desk.guest_win.is_some_and(won_last) {
        return Some(now.saturating_add(WAITS));
    }
    let new = look.map(|look| unknown(ledger, &look.names, u64::MAX)).unwrap_or_default();
    ledger.left_to_owner(own, &new, now)
}

/// Claims are given nothing now.
pub(super) fn tell_to_wait(shard: &Shard, pending: &mut Vec<Pending>, until: Millis) {
    let wakes_at = [shard.wakes_at(), Some(until)].into_iter().flatten().min();
    let (claims, rest): (Vec<_>, Vec<_>) =
        std::mem::take(pending).into_iter().partition(|one| matches!(one.waits, Waits::Claim { .. }) && !one.sent);
    *pending = rest;
    for claim in claims {
        if let Waits::Claim { reply, .. } = claim.waits {
            drop(reply.send(Ok(Given::Nothing { wakes_at })));
        }
    }
}
