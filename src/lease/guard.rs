//! A lease that is kept alive, and that says when it is lost.

use super::{
    cell::Cell,
    engine::Engine,
    types::{Grant, Loss},
};
use crate::{Error, Fence, Key, Result, clock::Moment};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// A lease that is renewed at a third of its time to live until it is released, dropped or lost.
///
/// Losing it cannot be prevented: the network may be down for longer than the lease lasts, and the process may be
/// paused. So check [`is_valid`](Self::is_valid) before acting, stop when [`lost`](Self::lost) resolves, and hand the
/// [`fence`](Self::fence) to whatever is protected.
///
/// Dropping a guard releases the lease in the background, as well as that can be done; [`release`](Self::release) says
/// whether it worked.
#[must_use = "dropping a guard releases its lease"]
pub struct Guard {
    tended: Arc<Tended>,
}

/// The part of a guard that its keeper sees.
pub(super) struct Tended {
    engine: Arc<Engine>,
    cell: Arc<Cell>,
    state: Mutex<State>,
    /// Cancelled when the lease is lost.
    lost: CancellationToken,
    /// Not to be renewed beyond this.
    hold_until: Option<Moment>,
}

struct State {
    grant: Grant,
    /// Counted from before the last renewal was sent.
    renew_at: Moment,
    loss: Option<Loss>,
    released: bool,
}

impl Tended {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    pub(super) fn grant(&self) -> Grant {
        self.lock().grant.clone()
    }

    /// When to look after it next.
    pub(super) fn next(&self) -> Moment {
        let at = self.lock().renew_at;
        self.hold_until.map_or(at, |until| at.min(until))
    }

    pub(super) fn renewed(&self, grant: Grant) {
        let mut state = self.lock();
        state.renew_at = renew_at(&grant);
        state.grant = grant;
    }

    pub(super) fn is_held_too_long(&self) -> bool {
        self.hold_until.is_some_and(|until| self.engine.now().moment >= until)
    }

    pub(super) fn lose(&self, loss: Loss) {
        let mut state = self.lock();
        if !state.released {
            state.loss.get_or_insert(loss);
            drop(state);
            self.lost.cancel();
        }
    }

    /// Whether there is nothing left to look after.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.released || state.loss.is_some()
    }
}

impl fmt::Debug for Tended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.grant(), f)
    }
}

/// A third of the time to live after the request was sent: two more renewals may fail before the lease ends.
fn renew_at(grant: &Grant) -> Moment {
    let third = grant.ttl() / 3;
    // The deadline lies a whole time to live after the request, or earlier where the wall clock was set back.
    grant.clock.monotonic().plus(grant.time_left().saturating_sub(2 * third))
}

impl Guard {
    pub(super) fn new(
        engine: &Arc<Engine>,
        cell: &Arc<Cell>,
        grant: Grant,
        max_hold: Option<std::time::Duration>,
    ) -> Self {
        let hold_until = max_hold.map(|longest| engine.now().moment.plus(longest));
        let state = State { renew_at: renew_at(&grant), grant, loss: None, released: false };
        let tended = Arc::new(Tended {
            engine: Arc::clone(engine),
            cell: Arc::clone(cell),
            state: Mutex::new(state),
            lost: CancellationToken::new(),
            hold_until,
        });
        engine.tend(Arc::clone(&tended));
        Self { tended }
    }

    /// The lease as it stands, with its current expiry.
    pub fn grant(&self) -> Grant {
        self.tended.grant()
    }

    /// The key.
    pub fn key(&self) -> Key {
        self.tended.lock().grant.key.clone()
    }

    /// The fence, the same for as long as the lease is held.
    pub fn fence(&self) -> Fence {
        self.tended.lock().grant.fence
    }

    /// Whether this process may still believe in the lease. Looks at the clocks, not at the network: false as soon as
    /// time is up, also right after the process was paused.
    pub fn is_valid(&self) -> bool {
        let state = self.tended.lock();
        state.loss.is_none() && state.grant.is_valid()
    }

    /// Resolves when the lease is lost, with what is known about it.
    pub async fn lost(&self) -> Loss {
        self.tended.lost.cancelled().await;
        let state = self.tended.lock();
        state.loss.clone().unwrap_or(Loss { taken_by: None, fence: Some(state.grant.fence) })
    }

    /// Cancelled when the lease is lost: for code that stops by a token.
    pub fn cancellation(&self) -> CancellationToken {
        self.tended.lost.clone()
    }

    /// Gives the lease back, or to whoever of this process waits for it.
    ///
    /// A lease that was lost has nothing to give back: that is not an error. On an error the lease may still be in the
    /// store; it is released in the background if that is possible, and expires if not. Dropping this future does not
    /// stop the release.
    pub async fn release(self) -> Result<()> {
        let id = {
            let mut state = self.tended.lock();
            state.released = true;
            state.grant.id
        };
        // In a task of its own: dropping this future must not leave the lease to its expiry.
        let (engine, cell) = (Arc::clone(&self.tended.engine), Arc::clone(&self.tended.cell));
        let releasing = self.tended.engine.runtime.spawn(async move { engine.release(&cell, id).await });
        let stopped = |error| Error::unknown(format!("releasing was stopped: {error}; the lease will expire"));
        releasing.await.unwrap_or_else(|error| Err(stopped(error)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.tended.lock();
        if !std::mem::replace(&mut state.released, true) && state.grant.is_valid() {
            let id = state.grant.id;
            drop(state);
            self.tended.engine.release_soon(&self.tended.cell, id);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.grant()).finish()
    }
}
