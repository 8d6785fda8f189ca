//! Places in the line that outlive a request.
//!
//! A client that waits for long asks again and again, for proxies cut long requests off. Without its place it would go to the
//! end of the line each time. So one who says that more requests will follow, and names itself by an idempotency key, goes
//! on waiting for a moment in between.

use super::App;
use leasehold::{
    Clock, Key, Leases, Namespace, Result,
    lease::{Acquired, Request},
};
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::AbortOnDropHandle;

/// For how long a place is kept: the way to the client and back.
const KEPT: Duration = Duration::from_secs(5);

/// Longer than anybody waits. Whoever gives up drops the place.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Who waits, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) namespace: Namespace,
    pub(super) key: Key,
    pub(super) owner: String,
    pub(super) id: String,
}

/// Somebody who waits, whether or not a request is here for them. Dropped, they leave the line.
#[derive(Debug)]
pub(super) struct Waiting {
    task: AbortOnDropHandle<Result<Acquired>>,
    leases: Leases,
    _seat: OwnedSemaphorePermit,
    /// Which time it is that a place is kept, of all: whoever gives one up must mean this one.
    time: u64,
}

/// The places that are kept while their clients are on their way back.
#[derive(Debug, Default)]
pub(super) struct Places {
    kept: Mutex<HashMap<Place, Waiting>>,
    times: AtomicU64,
}

impl Waiting {
    /// Takes a place at the end of the line.
    pub(super) fn new(leases: &Leases, key: &Key, request: Request, seat: OwnedSemaphorePermit) -> Self {
        let (leases, key) = (leases.clone(), key.clone());
        let waiting = leases.clone();
        let task = tokio::spawn(async move { waiting.acquire_within(&key, &request, FOREVER).await });
        Self { task: AbortOnDropHandle::new(task), leases, _seat: seat, time: 0 }
    }

    /// What came of it, if it comes in time.
    pub(super) async fn within(&mut self, app: &App, wait: Duration) -> Option<Result<Acquired>> {
        tokio::select! {
            biased;
            // It is neither aborted while somebody waits for it, nor does it panic.
            done = &mut self.task => done.ok(),
            () = app.clock.sleep(wait) => None,
        }
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Waiting>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of one who is back.
    pub(super) fn take(&self, place: &Place) -> Option<Waiting> {
        self.lock().remove(place)
    }

    /// Keeps a place for one who will be back. Who does not come leaves the line, and a lease that came meanwhile is given back.
    pub(super) fn keep(&self, app: &App, place: Place, mut waiting: Waiting) {
        let time = self.times.fetch_add(1, Ordering::Relaxed);
        waiting.time = time;
        // A second request under the same key has taken a place of its own: one of them is enough.
        self.lock().insert(place.clone(), waiting);
        let here = app.clone();
        app.tasks.spawn(async move {
            tokio::select! {
                () = here.clock.sleep(KEPT) => {}
                () = here.draining.cancelled() => {}
            }
            let left = {
                let mut places = here.places.lock();
                let mine = places.get(&place).is_some_and(|waiting| waiting.time == time);
                if mine { places.remove(&place) } else { None }
            };
            let Some(left) = left else { return };
            if !left.task.is_finished() {
                return;
            }
            let Waiting { task, leases, .. } = left;
            if let Ok(Ok(Acquired::Granted(grant))) = task.await
                && let Err(error) = leases.release(&grant).await
            {
                tracing::warn!(key = %grant.key(), %error, "a lease whose client did not come back could not be given back: it will expire");
            }
        });
    }
}
