//! Giving a lease back, or on: a release with somebody waiting in this process is a grant to them, in one write.

use super::{
    cell::{Cell, Core},
    engine::{Change, Engine, Now, Plan, Swapped},
    flight::{Flight, Intent},
    wait::Waiter,
};
use crate::{ErrorKind, LeaseId, Result, Ttl};
use std::{sync::Arc, time::Duration};

/// Of local hand-overs while another process's mark stands.
const MAX_TURNS: u32 = 16;

/// The longest that a process stays back for another one's mark.
const LONGEST_STAY_BACK: Duration = Duration::from_secs(10);

impl Engine {
    /// Frees a lease, or hands it to whoever of this process waits longest. Done when the record does not carry it.
    pub(super) async fn release(self: &Arc<Self>, cell: &Arc<Cell>, id: LeaseId) -> Result<()> {
        let core = self.hold_first(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Release(id));
        let mine =
            |core: &Core| core.record().and_then(|record| record.lease.as_ref()).is_some_and(|lease| lease.id == id);
        if !mine(flight.core()) {
            self.read(cell, flight.core()).await?;
        }
        self.release_held(flight, id).await
    }

    pub(super) async fn release_held(self: &Arc<Self>, mut flight: Flight, id: LeaseId) -> Result<()> {
        let marked = flight.core().record().is_some_and(|record| record.waiting.is_some());
        let may_hand_over = self.believe(self.now().wall).is_ok() && !(marked && flight.core().turns >= MAX_TURNS);
        self.release_to(flight, id, may_hand_over).await
    }

    async fn release_to(self: &Arc<Self>, mut flight: Flight, id: LeaseId, may_hand_over: bool) -> Result<()> {
        let cell = Arc::clone(&flight.cell);
        let next = LeaseId::random(&*self.backend.generator);
        if let Some(waiter) = may_hand_over.then(|| cell.queue.pop(next)).flatten() {
            flight.intent = Intent::HandOver { from: id, waiter: Some(waiter) };
        }
        let ttl = match flight.intent.waiter() {
            Some(waiter) => self.clamp(waiter.request.ttl_or_default()?)?,
            None => Ttl::new(self.shared.max_ttl)?,
        };
        let mut removed = None;
        let next = flight.intent.waiter().map(|waiter| (waiter.request.clone(), waiter.id));
        let swapped = self.swap(&mut flight, None, |core, now| {
            let record = core.record();
            let Some(lease) = record.and_then(|record| record.lease.as_ref()).filter(|lease| lease.id == id) else {
                return Ok(Plan::Stop(()));
            };
            // Renewed by a clone of this machine, which believes in it: not ours to give back any more.
            if lease.request_id.is_none() && lease.process == self.process && !core.is_own(lease) {
                return Ok(Plan::Stop(()));
            }
            let waiting = record.and_then(|record| record.waiting);
            if let Some((request, next)) = &next {
                // Asked again with every try: the clock may have been set meanwhile, and what is handed over is granted.
                self.believe(now.wall)?;
                let lease = self.new_lease(core, now, request, ttl, *next)?;
                let last_fence = Some(lease.fence);
                return Ok(Plan::write(Change { beats: true, lease: Some(lease), waiting, last_fence, forced: None }));
            }
            removed = waiting;
            Ok(Plan::write(Change::free(record)))
        });
        let swapped = swapped.await;
        match (swapped, flight.take_waiter()) {
            (Ok(Swapped::Won(now)), Some(waiter)) => {
                if flight.core().record().is_some_and(|record| record.waiting.is_some()) {
                    flight.core().turns += 1;
                }
                self.counters.released(1);
                self.counters.handed_over(1);
                self.counters.granted(1);
                self.deliver(&mut flight, waiter, now, ttl);
            }
            (Ok(Swapped::Won(now)), None) => {
                self.counters.released(1);
                if let Some(mark) = removed.filter(|mark| mark.process != self.process) {
                    let pause = (2 * mark.interval).min(LONGEST_STAY_BACK);
                    flight.core().stay_back = Some(now.moment.plus(pause));
                }
                flight.core().turns = 0;
                cell.queue.wake();
            }
            (Ok(Swapped::Stopped(())), waiter) => {
                waiter.into_iter().for_each(|waiter| cell.queue.put_back(waiter));
                cell.queue.wake();
            }
            (Err(error), waiter) => {
                // In doubt the flight finds out, and the waiter goes with it; else the flight puts it back in line.
                if waiter.is_some() {
                    flight.intent = Intent::HandOver { from: id, waiter };
                }
                if error.kind() != ErrorKind::Clock || flight.is_in_doubt() {
                    return Err(error);
                }
                // Nothing is handed over by a wrong clock, but giving back goes on.
                flight.take_waiter().into_iter().for_each(|waiter| cell.queue.put_back(waiter));
                flight.intent = Intent::Release(id);
                return Box::pin(self.release_to(flight, id, false)).await;
            }
        }
        Ok(())
    }

    /// Gives a waiter what was won for it; a lease that nobody takes is freed again.
    pub(super) fn deliver(self: &Arc<Self>, flight: &mut Flight, waiter: Waiter, now: Now, ttl: Ttl) {
        let cell = Arc::clone(&flight.cell);
        let keep = waiter.request.request_id.is_some();
        let Some(lease) = flight.core().record().and_then(|record| record.lease.clone()) else { return };
        let grant = self.grant(&cell, flight.core(), &lease, now.moment, ttl, None);
        if let Err(grant) = waiter.grant.send(grant)
            && !keep
        {
            self.release_soon(&cell, grant.id);
        }
        cell.queue.wake();
    }

    /// Releases in a task of its own, for whoever cannot wait for it.
    pub(super) fn release_soon(self: &Arc<Self>, cell: &Arc<Cell>, id: LeaseId) {
        let (engine, released) = (Arc::clone(self), Arc::clone(cell));
        self.retry_soon(cell, move || {
            let (engine, released) = (Arc::clone(&engine), Arc::clone(&released));
            async move { engine.release(&released, id).await }
        });
    }

    /// Frees a lease in a task of its own, again and again until that has worked.
    pub(super) fn retry_soon<F>(self: &Arc<Self>, cell: &Arc<Cell>, free: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<()>> + Send,
    {
        let (engine, cell) = (Arc::clone(self), Arc::clone(cell));
        let freeing = async move {
            // For as long as the longest lease could still be there.
            let give_up = engine.now().moment.plus(engine.shared.max_ttl);
            let mut retries = 0;
            while let Err(error) = free().await {
                if !error.is_retryable() || engine.now().moment >= give_up {
                    tracing::warn!(key = %cell.slot.key, %error, "a lease that nobody wants could not be released: it will expire");
                    return;
                }
                retries += 1;
                engine.backend.pause(retries).await;
            }
        };
        self.leftovers.spawn_on(freeing, &self.runtime);
    }
}
