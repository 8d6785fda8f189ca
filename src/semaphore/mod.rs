//! Semaphores: up to n holders at once, each with a fence of its own.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! # async fn train(_: u32) {}
//! let store = leasehold::Store::open("memory://").await?; // s3://bucket/prefix, gs://…, az://…, file:///folder
//!
//! let permit = store.semaphore("gpu", 3).acquire().await?; // waits for one of three slots, and keeps it alive
//! permit.run(train(permit.number())).await?; // stops the work with an error when the slot is lost
//! permit.release().await?;
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - **Never more than n.** Each slot is held as a lease is: its holder stops believing in it by its own clocks, and others take
//!   it only after it has ended by the same rules, never earlier. A process that dies keeps its slot until then.
//! - **Rising fences.** Each grant has a higher fence than all before it, of any slot. Several holders are right at the same
//!   time, so a resource that all of them share cannot refuse the lower of two fences; one for each slot can: no two holders
//!   have the same [number](Permit::number) at once, and the next holder of the number has a higher fence.
//! - **One n.** The first to ask writes down how many slots there are. A process that asks with another number is refused, with
//!   both numbers named; [`resize`](Semaphore::resize) changes it for everybody. Made smaller, it takes effect as holders leave.
//! - **First come, first served.** Processes that wait stand in a line in the record, and those of one process in the order of
//!   their asking. A process that died in line is passed over after a few seconds.
//!
//! # What it costs
//!
//! One record for each semaphore: all its holders and waiters write to it, so it is for tens of holders, not thousands. A slot is
//! one read and one write the first time, then one write; standing in line is one write more, and a look is one read. All permits of
//! a process on one semaphore are renewed in one write.

mod actor;
mod cell;
mod core;
mod counters;
mod engine;
mod kind;
mod layout;
mod permit;
mod record;
mod rules;
mod turn;
mod types;
mod wire;

pub(crate) use counters::Counts;
pub(crate) use engine::Engine;
pub(crate) use kind::{DECLARATION, SemaphoreKind};
pub use permit::Permit;
pub use types::{Full, Slot, SlotAcquired, SlotHolder, SlotRenewed, Status};

use self::{record::SemaphoreSlot, turn::held_by};
use crate::{
    Error, Key, LeaseId, Namespace, Result, Ttl,
    lease::{Request, default_owner},
    storage::cas::Seen,
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

/// The most slots that a semaphore can have.
pub const MAX_SIZE: u32 = 128;

/// The most processes that stand in line. Others look now and then.
const MAX_WAITING: usize = 128;

/// The semaphores of one namespace, one step at a time: for callers that keep nothing but ids. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Semaphores {
    engine: Arc<Engine>,
    namespace: Namespace,
}

fn allow(size: u32) -> Result<()> {
    match (1..=MAX_SIZE).contains(&size) {
        true => Ok(()),
        false => Err(Error::invalid(format!("a semaphore must have between 1 and {MAX_SIZE} slots (got {size})"))),
    }
}

impl Semaphores {
    pub(crate) fn new(engine: &Arc<Engine>, namespace: Namespace) -> Self {
        Self { engine: Arc::clone(engine), namespace }
    }

    /// Asks for a slot of a semaphore with `size` slots: once if `wait` is zero, for as long as that otherwise.
    ///
    /// # Cancellation
    /// Dropped, it leaves no slot behind.
    pub async fn acquire(&self, name: &Key, size: u32, request: &Request, wait: Duration) -> Result<SlotAcquired> {
        allow(size)?;
        self.engine.acquire(&self.engine.cell(&self.namespace, name), request, size, wait).await
    }

    /// Renews a slot for its time to live from now. One that has ended is lost, even if it is still free.
    pub async fn renew(&self, slot: &Slot) -> Result<SlotRenewed> {
        let cell = self.engine.cell(slot.namespace(), slot.name());
        self.engine.renew(&cell, slot.lease_id(), None, Some(slot.grant.clone())).await
    }

    /// Renews a slot by its id; `ttl` replaces its time to live.
    pub async fn renew_by_id(&self, name: &Key, id: LeaseId, ttl: Option<Ttl>) -> Result<SlotRenewed> {
        self.engine.renew(&self.engine.cell(&self.namespace, name), id, ttl, None).await
    }

    /// Gives a slot back by its id. Giving back what one does not have is fine.
    pub async fn release_by_id(&self, name: &Key, id: LeaseId) -> Result<()> {
        self.engine.release(&self.engine.cell(&self.namespace, name), id).await
    }

    /// Changes how many slots there are, for all processes. If there are fewer than holders, the holders keep theirs until they
    /// give them back.
    pub async fn resize(&self, name: &Key, size: u32) -> Result<u32> {
        allow(size)?;
        self.engine.resize(&self.engine.cell(&self.namespace, name), size).await
    }

    /// What there is now, without writing anything; `None` if no slot was ever asked for. Not activity.
    pub async fn peek(&self, name: &Key) -> Result<Option<Status>> {
        let terms = &self.engine.terms;
        let slot = SemaphoreSlot { namespace: self.namespace.clone(), key: name.clone() };
        let mut core = core::Core::default();
        core.read(&slot, terms).await?;
        let facts = core.facts_now(terms);
        Ok(core.seen().as_deref().map(Seen::record).map(|record| Status {
            name: name.clone(),
            size: record.size,
            held_by: held_by(record, |holding| facts.ending(holding, terms)),
            waiting: record.waiting.len(),
            last_fence: record.last_fence,
            written_at: record.written,
        }))
    }

    /// Keeps a slot alive that was acquired without a permit.
    pub fn permit(&self, slot: Slot, max_hold: Option<Duration>) -> Permit {
        let cell = self.engine.cell(slot.namespace(), slot.name());
        Permit::new(&self.engine, &cell, slot, max_hold)
    }
}

/// A semaphore, and what is asked for when a slot of it is acquired. Made by [`Store::semaphore`](crate::Store::semaphore).
///
/// A slot lasts 30 seconds without being renewed, belongs to `user@host:pid` and is in the namespace `default`, unless something
/// else is said. Nothing said here is checked before it is asked for.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked for until a slot is acquired"]
pub struct Semaphore {
    semaphores: Semaphores,
    name: Result<Key>,
    size: u32,
    namespace: Option<Result<Namespace>>,
    owner: Option<String>,
    request: Request,
}

impl Semaphore {
    pub(crate) fn new<K>(engine: &Arc<Engine>, name: K, size: u32) -> Self
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Self {
            semaphores: Semaphores::new(engine, Namespace::default()),
            name: name.try_into().map_err(Into::into),
            size,
            namespace: None,
            owner: None,
            request: Request::default(),
        }
    }

    /// How long a slot lasts after this process has died (30 s). It is renewed at a third of that.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// Who asks, for people who look (`user@host:pid`); up to 256 bytes.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// A note that others see with the slot; up to 4 KiB.
    pub fn note(mut self, note: impl Into<Bytes>) -> Self {
        self.request = self.request.note(note);
        self
    }

    /// Stops a permit from keeping its slot alive for longer than this.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request = self.request.max_hold(longest);
        self
    }

    /// The namespace that the semaphore is in.
    pub fn namespace<N>(mut self, namespace: N) -> Self
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        self.namespace = Some(namespace.try_into().map_err(Into::into));
        self
    }

    fn checked(&self) -> Result<(Semaphores, Key, Request)> {
        let mut semaphores = self.semaphores.clone();
        if let Some(namespace) = self.namespace.clone() {
            semaphores.namespace = namespace?;
        }
        let owner = self.owner.clone().unwrap_or_else(|| default_owner().to_owned());
        Ok((semaphores, self.name.clone()?, self.request.clone().owner(owner)))
    }

    async fn ask(&self, wait: Duration) -> Result<std::result::Result<Permit, Full>> {
        let (semaphores, name, request) = self.checked()?;
        Ok(match semaphores.acquire(&name, self.size, &request, wait).await? {
            SlotAcquired::Granted(slot) => Ok(semaphores.permit(slot, request.max_hold)),
            SlotAcquired::Full(full) => Err(full),
        })
    }

    /// Waits for a slot, for ever if need be, and keeps it alive until the [`Permit`] is released, dropped or lost.
    ///
    /// While it waits, a store that is unavailable is asked again; any other error ends the waiting. Dropping the future gives
    /// up, and leaves no slot behind.
    pub async fn acquire(&self) -> Result<Permit> {
        self.acquire_within(Duration::MAX).await
    }

    /// Waits for a slot for at most `wait`; a semaphore that is still full is an error of the kind
    /// [`Held`](crate::ErrorKind::Held), and [`Error::full`] says who has the slots.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Permit> {
        match self.ask(wait).await? {
            Ok(permit) => Ok(permit),
            Err(full) => Err(full.into_error(&self.name.clone()?)),
        }
    }

    /// Tries once to get a slot; `None` if all are held, or reserved for processes that wait.
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        Ok(self.ask(Duration::ZERO).await?.ok())
    }

    /// Changes how many slots there are, for everybody. Made smaller, it takes effect as holders leave. From here on this handle
    /// asks with the new number; other processes are refused until they do so too.
    pub async fn resize(&mut self, size: u32) -> Result<()> {
        let (semaphores, name, _) = self.checked()?;
        self.size = semaphores.resize(&name, size).await?;
        Ok(())
    }

    /// What there is now, without writing anything; `None` if no slot was ever asked for.
    pub async fn peek(&self) -> Result<Option<Status>> {
        let (semaphores, name, _) = self.checked()?;
        semaphores.peek(&name).await
    }
}
