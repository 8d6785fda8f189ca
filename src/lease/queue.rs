//! Those of one process that wait for a key, first in, first out.

use super::types::{Grant, Request};
use crate::{LeaseId, sync::Locked as _};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, oneshot};

/// Those of this process that wait for a key.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    /// By position, which is the order of arrival: any of very many may leave at any time.
    line: BTreeMap<u64, Waiter>,
    last: u64,
}

/// One who waits. Taken out of the queue, it may be granted the lease.
pub(super) struct Waiter {
    pub(super) position: u64,
    /// The lease that it will have, if it is handed over to now.
    pub(super) id: LeaseId,
    pub(super) tried: AttemptedIds,
    pub(super) request: Request,
    pub(super) grant: oneshot::Sender<Grant>,
    pub(super) wake: Arc<Notify>,
}

/// The ids of the last attempts that were made for one who waits. Each attempt has an id of its own, so that no lease is
/// granted twice; a lease in the store with one of them is the waiter's own.
#[derive(Debug, Clone, Default)]
pub(super) struct AttemptedIds(Arc<Mutex<VecDeque<LeaseId>>>);

impl AttemptedIds {
    /// So many are remembered; older ones cannot realistically turn up.
    const MOST: usize = 16;

    fn lock(&self) -> MutexGuard<'_, VecDeque<LeaseId>> {
        self.0.locked()
    }

    pub(super) fn add(&self, id: LeaseId) {
        let mut ids = self.lock();
        ids.push_back(id);
        if ids.len() > Self::MOST {
            ids.pop_front();
        }
    }

    /// It was never sent.
    pub(super) fn remove(&self, id: LeaseId) {
        self.lock().retain(|tried| *tried != id);
    }

    pub(super) fn has(&self, id: LeaseId) -> bool {
        self.lock().contains(&id)
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.locked()
    }

    /// Adds one to the end.
    pub(super) fn join(&self, waiter: impl FnOnce(u64) -> Waiter) -> u64 {
        let mut waiters = self.lock();
        waiters.last += 1;
        let position = waiters.last;
        waiters.line.insert(position, waiter(position));
        position
    }

    /// Removes one that gave up.
    pub(super) fn leave(&self, position: u64) {
        self.lock().line.remove(&position);
    }

    /// False while a release has taken it out.
    pub(super) fn has(&self, position: u64) -> bool {
        self.lock().line.contains_key(&position)
    }

    /// Whether it is the first that still waits.
    pub(super) fn is_first(&self, position: u64) -> bool {
        let waiters = self.lock();
        let mut waiting = waiters.line.values().filter(|waiter| !waiter.grant.is_closed());
        waiting.next().is_some_and(|first| first.position == position)
    }

    /// The first who still waits, to be handed the lease with this id.
    pub(super) fn pop(&self, id: LeaseId) -> Option<Waiter> {
        let mut waiters = self.lock();
        loop {
            let (_, waiter) = waiters.line.pop_first()?;
            if !waiter.grant.is_closed() {
                waiter.tried.add(id);
                return Some(Waiter { id, ..waiter });
            }
        }
    }

    /// Puts one back to where it was: it was not granted the lease after all.
    pub(super) fn put_back(&self, waiter: Waiter) {
        let mut waiters = self.lock();
        // One that gave up meanwhile has already left: it would never be removed again, and those behind it never be woken.
        if !waiter.grant.is_closed() {
            waiter.wake.notify_one();
            waiters.line.insert(waiter.position, waiter);
        }
    }

    /// Wakes the first, which looks after the key for all.
    pub(super) fn wake(&self) {
        if let Some(first) = self.lock().line.values().next() {
            first.wake.notify_one();
        }
    }
}
