//! The owner of a shard: the one process that commits to it regularly, and need not read before it does.
//!
//! It stands in the ledger beside its session, so that it costs no request: the first that claims while nobody is the owner
//! becomes it, each of its commits makes it last a little longer, and it is over soon after the last. Others leave the shard
//! to it while what waits there is young. Nothing rests on it: two that both take themselves for the owner meet at the
//! compare-and-swap as any two do.

use super::work::Work;
use crate::job::{
    layout::{Place, SegmentName},
    ledger::{Ledger, Millis, Session, SessionId},
};

/// How long a process is the owner after its last commit.
const OWNS: Millis = 3_000;
/// What has waited for so long may be taken by anybody.
pub(crate) const WAITS: Millis = 1_000;
/// For how long after its lease could have ended the row of a session is kept that has nothing in hand: by then a commit of
/// it that was in doubt is found out about, or nobody asks any more.
const KEPT: Millis = 60_000;

impl Work<'_> {
    /// Until when the session of this commit is the owner from now on; `None` if that stays as it is.
    pub(super) fn owns_until(&self) -> Option<Millis> {
        let ticket = self.context.session.as_ref()?;
        let claims = self.fence.is_some();
        match self.ledger.owner(self.now) {
            Some(owner) if owner.id == ticket.id => Some(self.now.saturating_add(OWNS)),
            Some(_) => None,
            None => claims.then(|| self.now.saturating_add(OWNS)),
        }
    }

    /// Rows of sessions that have nothing in hand go by themselves: nobody has to find out what has become of them.
    pub(super) fn drop_idle_sessions(&mut self) {
        let now = self.now;
        let own = self.context.session.as_ref().map(|ticket| ticket.id);
        if self.ledger.sessions.iter().all(|session| session.until.saturating_add(KEPT) > now) {
            return;
        }
        let claims = &self.ledger.claims;
        self.ledger.sessions.retain(|session| {
            session.until.saturating_add(KEPT) > now
                || Some(session.id) == own
                || claims.iter().any(|claim| claim.session == session.id)
        });
    }
}

impl Ledger {
    /// The shard's owner.
    pub(crate) fn owner(&self, now: Millis) -> Option<&Session> {
        self.sessions.iter().find(|session| session.owns_until > now)
    }

    /// Whether another process than this one is the owner.
    pub(crate) fn is_owned_by_another(&self, own: Option<SessionId>, now: Millis) -> bool {
        self.owner(now).is_some_and(|owner| Some(owner.id) != own)
    }

    /// Whether somebody else may have committed since, so that reading first is cheaper than a write that comes too late.
    pub(crate) fn is_shared(&self, own: Option<SessionId>, now: Millis) -> bool {
        match self.owner(now) {
            Some(owner) => Some(owner.id) != own,
            None => self.sessions.iter().any(|session| Some(session.id) != own && session.until > now),
        }
    }

    /// Until when a guest leaves everything to the owner that can be claimed now; `None` if it may take some.
    ///
    /// `names` are those that the inbox shows and the ledger does not know.
    pub(crate) fn left_to_owner(&self, own: Option<SessionId>, names: &[SegmentName], now: Millis) -> Option<Millis> {
        let owner = self.owner(now).filter(|owner| Some(owner.id) != own)?;
        let runs = self.rows.iter().flat_map(|row| &row.runs).filter(|run| !run.traits.paused);
        let ready = runs.map(|run| run.traits.due).filter(|due| *due <= now).min();
        let listed = names.iter().map(|name| enqueued(name, now)).min();
        let oldest = [ready, listed].into_iter().flatten().min();
        // What has nothing to give is left to it as well.
        let until = oldest.map_or(owner.owns_until, |oldest| oldest.saturating_add(WAITS).min(owner.owns_until));
        (until > now).then_some(until)
    }
}

/// Since when a segment in the inbox waits, by its id. The id of one that a caller has named says nothing: it has waited.
fn enqueued(name: &SegmentName, now: Millis) -> Millis {
    let made = match name.place {
        Place::At(minute) => minute.start().as_millis(),
        _ => name.id.time().as_millis(),
    };
    if made > now.saturating_add(2 * WAITS) { now.saturating_sub(WAITS) } else { made }
}
