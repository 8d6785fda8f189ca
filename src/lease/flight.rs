//! One operation in the air: the key's core, and the write that may be under way. Dropped or given up in doubt, it
//! leaves a task behind that finds out, so that no lease is granted that nobody knows of.

use super::{
    cell::{Cell, Core},
    engine::{Engine, Now},
    record::{KeySlot, Record},
    wait::Waiter,
};
use crate::record::Right;
use crate::{
    ErrorKind, LeaseId, Result,
    storage::cas::{Cas, Outcome, Seen, Stamp},
    timing::LONGEST_WRITE,
};
use std::{fmt, sync::Arc, time::Duration};

/// What an operation is after; decides what is to be done about a write of it whose fate nobody waited for.
#[derive(Debug)]
pub(super) enum Intent {
    /// Whatever lands is right: a renewal, a clearing, a mark.
    Nothing,
    /// A grant. Freed if nobody wants it, unless its caller can ask for it again by a request id.
    Grant { id: LeaseId, keep: bool },
    /// Done when the record does not carry this lease any more.
    Release(LeaseId),
    /// Both: a release of one lease that is a grant to a waiter.
    HandOver { from: LeaseId, waiter: Option<Waiter> },
}

impl Intent {
    pub(super) fn waiter(&self) -> Option<&Waiter> {
        match self {
            Self::HandOver { waiter, .. } => waiter.as_ref(),
            _ => None,
        }
    }
}

pub(super) struct Flight {
    engine: Arc<Engine>,
    pub(super) cell: Arc<Cell>,
    core: Option<Right<Core>>,
    cas: Option<Cas<KeySlot, Now>>,
    in_doubt: bool,
    pub(super) intent: Intent,
}

impl Flight {
    pub(super) fn new(engine: &Arc<Engine>, cell: &Arc<Cell>, core: Right<Core>, intent: Intent) -> Self {
        Self {
            engine: Arc::clone(engine),
            cell: Arc::clone(cell),
            core: Some(core),
            cas: None,
            in_doubt: false,
            intent,
        }
    }

    #[allow(clippy::expect_used, reason = "the core is there until the flight is dropped")]
    pub(super) fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("a flight has its core until it ends")
    }

    /// Sends one write on what is known of the record.
    pub(super) async fn attempt(
        &mut self,
        limit: Duration,
        now: Now,
        build: impl FnOnce(Option<&Record>, Stamp) -> Record,
    ) -> Outcome<Record, Now> {
        let cas = match self.cas.take() {
            Some(cas) => cas,
            None => {
                let base = self.core().base();
                Cas::sharing(Arc::clone(&self.engine.backend), self.cell.slot.clone(), base)
            }
        };
        self.in_doubt = true;
        // The swap stays in the flight, so that dropping it in the middle of the request forgets nothing.
        let cas = self.cas.insert(cas);
        cas.set_limit(limit);
        cas.attempt(now, build).await
    }

    /// A write has landed; this is there now.
    pub(super) fn won(&mut self, seen: Seen<Record>) -> Result<()> {
        let beat = seen.record().lease.as_ref().map(|lease| lease.beat);
        let sent = beat.and_then(|beat| Some((beat, self.cas.as_ref()?.ticket(beat)?.moment)));
        self.settled();
        self.core().wrote(sent, seen.record().revision);
        self.core().learn(Some(seen))
    }

    /// The last write is won or lost; nothing of it can land any more.
    pub(super) fn settled(&mut self) {
        self.cas = None;
        self.in_doubt = false;
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(super) fn take_waiter(&mut self) -> Option<Waiter> {
        match &mut self.intent {
            Intent::HandOver { waiter, .. } => waiter.take(),
            _ => None,
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("key", &self.cell.slot.key).field("intent", &self.intent).finish_non_exhaustive()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.in_doubt || matches!(self.intent, Intent::Nothing) {
            // Dropped before the hand-over was sent: its waiter goes on waiting where it stood.
            if let Some(waiter) = self.take_waiter() {
                self.cell.queue.put_back(waiter);
                self.cell.queue.wake();
            }
            // A renewal that nobody waits for may still land, and must be known for our own.
            if let (true, Some(core), Some(cas)) = (self.in_doubt, self.core.as_mut(), self.cas.take()) {
                core.doubtful(cas.tickets().map(|(id, now)| (id, now.moment)));
            }
            return;
        }
        let (Some(core), Some(cas)) = (self.core.take(), self.cas.take()) else { return };
        let intent = std::mem::replace(&mut self.intent, Intent::Nothing);
        let (engine, cell) = (Arc::clone(&self.engine), Arc::clone(&self.cell));
        let (leftovers, runtime) = (engine.leftovers.clone(), engine.runtime.clone());
        leftovers.spawn_on(engine.find_out(cell, core, cas, intent), &runtime);
    }
}

impl Engine {
    /// Settles a write that nobody waits for any more, by writing the same base once more without changing anything:
    /// whichever of the two lands, the other cannot. Holds the key's core meanwhile.
    async fn find_out(
        self: Arc<Self>,
        cell: Arc<Cell>,
        mut core: Right<Core>,
        mut cas: Cas<KeySlot, Now>,
        intent: Intent,
    ) {
        let give_up = self.now().moment.plus(LONGEST_WRITE);
        let mut retries = 0;
        let settled = loop {
            let now = self.now();
            let modified = cas.base_modified();
            let outcome = cas.attempt(now, |base, stamp| Record::after(base, modified, stamp, now.wall)).await;
            match outcome {
                Outcome::Won(seen, now) => {
                    let beat = seen.record().lease.as_ref().map(|lease| lease.beat);
                    let sent = beat.and_then(|beat| Some((beat, cas.ticket(beat)?.moment)));
                    core.wrote(sent, seen.record().revision);
                    let learnt = core.learn(Some(seen));
                    break learnt.is_ok().then_some(Some(now));
                }
                Outcome::Lost(there) => {
                    let learnt = core.learn(there);
                    break learnt.is_ok().then_some(None);
                }
                // This was the second look: if the store still has something older, it was set back, and the write with it.
                Outcome::Unknown(error)
                    if now.moment >= give_up || !error.is_retryable() || error.kind() == ErrorKind::Regressed =>
                {
                    tracing::warn!(key = %cell.slot.key, %error, "the fate of a write was not found out: its lease, if there is one, will expire");
                    core.forget();
                    break None;
                }
                Outcome::Unknown(_) => {
                    self.backend.pause(retries).await;
                    retries += 1;
                }
            }
        };
        let Some(landed) = settled else {
            if let Intent::HandOver { waiter: Some(waiter), .. } = intent {
                cell.queue.put_back(waiter);
            }
            cell.queue.wake();
            return;
        };
        let lease = core.record().and_then(|record| record.lease.as_ref());
        let carried = lease.map(|lease| (lease.id, lease.ttl));
        // Nobody can make use of it, so it is freed although it could be asked for again.
        let late = match (&intent, lease, landed) {
            (Intent::Grant { id, keep: true }, Some(lease), Some(now)) if lease.id == *id => {
                self.is_late(lease, now).then_some(lease.beat)
            }
            _ => None,
        };
        if let (Some(beat), Some((id, _))) = (late, carried) {
            self.free_late(&cell, id, beat);
        }
        let mut flight = Flight::new(&self, &cell, core, Intent::Nothing);
        let unwanted = match (intent, carried, landed) {
            (Intent::Grant { id, keep: false } | Intent::Release(id), Some((there, _)), _) if there == id => Some(id),
            (Intent::HandOver { waiter: Some(waiter), .. }, Some((there, ttl)), Some(now)) if there == waiter.id => {
                self.deliver(&mut flight, waiter, now, ttl);
                None
            }
            // Also a lease of the waiter's that somebody has asked for again by its request id, and so changed: which
            // attempt it came from is not known, and with it how long it may be believed in. Its own look will tell.
            (Intent::HandOver { from, waiter }, carried, _) => {
                waiter.into_iter().for_each(|waiter| cell.queue.put_back(waiter));
                carried.map(|(there, _)| there).filter(|there| *there == from)
            }
            _ => None,
        };
        if let Some(id) = unwanted {
            flight.intent = Intent::Release(id);
            if let Err(error) = self.release_held(flight, id).await {
                tracing::warn!(key = %cell.slot.key, %error, "a lease that nobody wants could not be released: it will expire");
            }
        }
        // Whoever waits may have been waiting for what turned out not to be there.
        cell.queue.wake();
    }
}
