//! What the semaphores of one opened store share, and the operations on them.

use super::{
    actor::Actor,
    cell::{Asker, Cell, Handed, Op, Start},
    core::Core,
    counters::{Counters, Counts},
    record::SemaphoreSlot,
    rules::Wish,
    types::{Full, Slot, SlotAcquired, SlotRenewed},
};
use crate::{
    Error, Hour, Key, LeaseId, Namespace, Result, Ttl, clock,
    kind::Verdict,
    lease::{Grant, Request, Terms},
    storage::cas::Slot as _,
    sync::Locked as _,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};
use tokio::sync::oneshot;

/// What the semaphores of one opened store share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) terms: Terms,
    pub(super) counters: Counters,
    cells: Mutex<BTreeMap<(Namespace, Key), Arc<Cell>>>,
    this: Weak<Engine>,
}

/// The answer never came: the task of the semaphore has ended.
pub(super) fn gone(name: &Key) -> Error {
    Error::unknown(format!("what became of the request to the semaphore {name} is not known: look at it again"))
}

struct StartActor(Weak<Engine>);

impl fmt::Debug for StartActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartActor")
    }
}

impl Start for StartActor {
    fn start(&self, cell: Arc<Cell>, core: Core) {
        let Some(engine) = self.0.upgrade() else { return };
        let runtime = engine.terms.runtime().clone();
        let actor = Actor::new(Arc::clone(&engine), cell, core);
        runtime.spawn(actor.run());
    }
}

impl Engine {
    pub(crate) fn new(terms: Terms) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { terms, counters: Counters::new(), cells: Mutex::default(), this: this.clone() })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    pub(super) fn touch(&self) {
        self.terms.activity().touch(&*self.terms.backend().clock);
    }

    /// There is one cell for a semaphore at a time.
    pub(super) fn cell(&self, namespace: &Namespace, key: &Key) -> Arc<Cell> {
        let mut cells = self.cells.locked();
        let name = (namespace.clone(), key.clone());
        if let Some(cell) = cells.get(&name) {
            return Arc::clone(cell);
        }
        if cells.len() >= self.terms.settings().cached_keys {
            cells.retain(|_, cell| Arc::strong_count(cell) > 1 || !cell.is_idle());
        }
        let slot = SemaphoreSlot { namespace: namespace.clone(), key: key.clone() };
        let cell = Cell::new(slot, Box::new(StartActor(self.this.clone())));
        cells.insert(name, Arc::clone(&cell));
        cell
    }

    /// Asks for a slot: once, or for as long as `wait`.
    pub(super) async fn acquire(
        &self,
        cell: &Arc<Cell>,
        request: &Request,
        size: u32,
        wait: Duration,
    ) -> Result<SlotAcquired> {
        let ttl = self.terms.ttl_of(request)?;
        if request.request_id.is_some() {
            return Err(Error::invalid("a slot of a semaphore has no request id: ask for it without one"));
        }
        self.touch();
        let waits = !wait.is_zero();
        let id = LeaseId::random(&*self.terms.backend().generator);
        let wish = Wish { id, request: request.clone(), ttl, size, waits };
        let (reply, answer) = oneshot::channel::<Result<Handed>>();
        let asker = Asker { wish, reply };
        cell.with(|state| match waits {
            true => state.waiters.push_back(asker),
            false => state.tries.push(asker),
        });
        let _leaving = Leaving(cell);
        let answer = async { answer.await.unwrap_or_else(|_| Err(gone(&cell.slot.key))) };
        let answered = match waits {
            false => Some(answer.await),
            true => clock::within(&*self.terms.backend().clock, wait, answer).await,
        };
        let handed = match answered {
            Some(handed) => handed?.take(),
            None => None,
        };
        Ok(match handed {
            Some(Ok(slot)) => SlotAcquired::Granted(slot),
            Some(Err(full)) => SlotAcquired::Full(full),
            None => {
                self.counters.refused(1);
                let full = cell.lock().full.clone();
                SlotAcquired::Full(full.unwrap_or_else(|| self.unseen(size)))
            }
        })
    }

    /// The semaphore was never read while a caller waited.
    fn unseen(&self, size: u32) -> Full {
        Full { size, held_by: Vec::new(), waiting: 0, retry_after: self.terms.settings().poll_interval }
    }

    pub(super) async fn renew(
        &self,
        cell: &Cell,
        id: LeaseId,
        ttl: Option<Ttl>,
        old: Option<Grant>,
    ) -> Result<SlotRenewed> {
        let ttl = ttl.map(|ttl| self.terms.allow(ttl)).transpose()?;
        self.touch();
        self.ask(cell, |reply| Op::Renew { id, ttl, old, reply }).await
    }

    pub(super) async fn release(&self, cell: &Cell, id: LeaseId) -> Result<()> {
        self.touch();
        self.ask(cell, |reply| Op::Release { id, reply: Some(reply), token: None }).await
    }

    pub(super) async fn resize(&self, cell: &Cell, size: u32) -> Result<u32> {
        self.touch();
        self.ask(cell, |reply| Op::Resize { size, reply }).await
    }

    /// For the sweeper: not activity.
    pub(super) async fn settle(&self, cell: &Cell, hour: Hour, dry_run: bool) -> Result<Verdict> {
        self.ask(cell, |reply| Op::Settle { hour, dry_run, reply }).await
    }

    async fn ask<T>(&self, cell: &Cell, op: impl FnOnce(oneshot::Sender<Result<T>>) -> Op) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        cell.submit(op(reply));
        answer.await.unwrap_or_else(|_| Err(gone(&cell.slot.key)))
    }

    /// The error of a caller that asks with another size than the semaphore has.
    pub(super) fn wrong_size(cell: &Cell, there: u32, asked: u32) -> Error {
        Error::config(format!(
            "the semaphore {} in {} has {there} slots, and {asked} were asked for: ask for {there}, or change it for everybody \
             with `resize`",
            cell.slot.key,
            cell.slot.name()
        ))
    }

    /// A slot of which this much is known.
    pub(super) fn slot(
        &self,
        cell: &Cell,
        lease: &crate::lease::record::Lease,
        number: u32,
        deadline: clock::Moment,
        old: Option<&Grant>,
    ) -> Slot {
        let grant = Grant {
            namespace: cell.slot.namespace.clone(),
            key: cell.slot.key.clone(),
            id: lease.id,
            fence: lease.fence,
            owner: Arc::clone(&lease.owner),
            ttl: lease.ttl,
            expires: lease.expires,
            deadline,
            repeatable: false,
            over: old.map_or_else(Arc::default, |old| Arc::clone(&old.over)),
            clock: Arc::clone(&self.terms.backend().clock),
            session: None,
        };
        Slot { grant, number }
    }
}

/// A waiting caller may go away at any time: then the task of the semaphore must be told.
struct Leaving<'a>(&'a Arc<Cell>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.changed.notify_one();
    }
}
