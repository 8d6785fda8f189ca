//! A lease that is kept alive, and that says when it is lost.

use super::{
    cell::Cell,
    engine::Engine,
    keeper::Due,
    loss::{Failing, Loss, LossReason, Lost},
    types::Grant,
};
use crate::{
    Fence, Key, Result,
    clock::{Moment, Timestamp},
};
use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// A lease that is renewed at a third of its time to live until it is released, dropped or lost.
///
/// Losing it cannot be prevented: the network may be down for longer than the lease lasts, and the process may be
/// paused. So let [`run`](Self::run) stop the work with the lease, ask [`check`](Self::check) before each effect on the
/// outside, and hand the [`fence`](Self::fence) to whatever is protected.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # async fn next_page() -> Option<u32> { None }
/// # async fn write(_: u32, _: leasehold::Fence) {}
/// let store = leasehold::Store::open("memory://").await?;
/// let guard = store.lock("reports/monthly").await?;
/// let work = async {
///     while let Some(page) = next_page().await {
///         write(page, guard.check()?).await; // the resource refuses a fence lower than one that it has seen
///     }
///     Ok::<_, leasehold::Error>(())
/// };
/// guard.run(work).await??;
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Cancelled when the lease is lost; made when somebody asks for it, which most guards are never asked.
    lost: OnceLock<CancellationToken>,
    /// Not to be renewed, nor believed in, beyond this.
    hold_until: Option<Moment>,
}

struct State {
    grant: Grant,
    /// Counted from before the last renewal was sent.
    renew_at: Moment,
    /// Where the keeper has it, while it waits there.
    due: Option<Due>,
    loss: Option<Box<Loss>>,
    /// Since when and how its renewals fail.
    failing: Option<Box<Failing>>,
    /// Nobody wants it any more: it is not renewed, and cannot be lost.
    closed: bool,
    /// It was given back, or that was found to be needless.
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
        // While a wall clock that was set back catches up, renewing does not move the deadline, and must not become a
        // loop.
        let soonest = self.engine.now().moment.plus((grant.ttl() / 12).min(grant.time_left() / 3));
        let mut state = self.lock();
        state.renew_at = renew_at(&grant).max(soonest);
        state.grant = grant;
        state.failing = None;
    }

    /// A renewal that began then has failed, which is not the end yet. Nothing new is learnt of why if there was no answer.
    pub(super) fn failed(&self, began: Timestamp, error: Option<&dyn fmt::Display>) {
        let mut state = self.lock();
        let before = state.failing.take();
        let since = before.as_ref().map_or(began, |failing| failing.since);
        let error = match (error, before) {
            (Some(error), _) => error.to_string(),
            (None, Some(before)) => before.error,
            (None, None) => "no answer came while there was time".to_owned(),
        };
        state.failing = Some(Box::new(Failing { since, error }));
    }

    pub(super) fn set_due(&self, due: Due) {
        self.lock().due = Some(due);
    }

    /// How long it may still be believed in.
    pub(super) fn time_left(&self) -> Duration {
        self.left(&self.lock())
    }

    fn left(&self, state: &State) -> Duration {
        let left = state.grant.time_left();
        self.hold_until.map_or(left, |until| left.min(until.since(self.engine.now().moment)))
    }

    pub(super) fn lose(&self, mut loss: Loss) {
        let mut state = self.lock();
        if state.closed || state.loss.is_some() {
            return;
        }
        if let LossReason::Expired { failing } = &mut loss.reason
            && failing.is_none()
        {
            *failing = state.failing.take().map(|failing| *failing);
        }
        let grant = &state.grant;
        let (id, owner, fence) = (grant.id, Some(grant.owner.clone()), Some(grant.fence));
        state.loss = Some(Box::new(loss.clone()));
        self.cell.kept.fetch_sub(1, Relaxed);
        drop(state);
        if let Some(token) = self.lost.get() {
            token.cancel();
        }
        self.engine.tell_loss(&self.cell, &Lost { loss, id, owner, fence });
    }

    /// Nobody looks after it any more, so that its time will be over. Asks no clock.
    pub(super) fn abandon(&self) {
        let fence = self.lock().grant.fence;
        self.lose(Loss::expired(None, Some(fence)));
    }

    /// Whoever finds that its time is over has found that it is lost.
    pub(super) fn is_lost(&self) -> bool {
        let (reason, fence) = {
            let state = self.lock();
            if state.loss.is_some() {
                return true;
            }
            if state.closed || !self.left(&state).is_zero() {
                return false;
            }
            let now = self.engine.now().moment;
            let held_out = self.hold_until.is_some_and(|until| until <= now && until <= state.grant.deadline);
            let reason = if held_out { LossReason::MaxHold } else { LossReason::Expired { failing: None } };
            (reason, state.grant.fence)
        };
        self.lose(Loss::new(reason, Some(fence)));
        true
    }

    fn token(&self) -> &CancellationToken {
        let token = self.lost.get_or_init(CancellationToken::new);
        // Lost before there was a token; whoever loses it from here on finds the token.
        if self.lock().loss.is_some() {
            token.cancel();
        }
        token
    }

    /// Whether there is nothing left to look after.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed || state.loss.is_some()
    }

    /// Ends the keeping. Whoever closes a guard has asked for something.
    fn close(&self) {
        self.is_lost();
        let due = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            if state.loss.is_none() {
                self.cell.kept.fetch_sub(1, Relaxed);
            }
            state.due.take()
        };
        self.engine.activity.touch(&*self.engine.backend.clock);
        if let Some(due) = due {
            self.engine.keeper.forget(due);
        }
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
    pub(super) fn new(engine: &Arc<Engine>, cell: &Arc<Cell>, grant: Grant, max_hold: Option<Duration>) -> Self {
        let hold_until = max_hold.map(|longest| engine.now().moment.plus(longest));
        let renew_at = renew_at(&grant);
        let state = State { grant, renew_at, due: None, loss: None, failing: None, closed: false, released: false };
        let tended = Arc::new(Tended {
            engine: Arc::clone(engine),
            cell: Arc::clone(cell),
            state: Mutex::new(state),
            lost: OnceLock::new(),
            hold_until,
        });
        cell.kept.fetch_add(1, Relaxed);
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
        !self.tended.is_lost()
    }

    /// The fence, if this process may still believe in the lease; otherwise an error of the kind
    /// [`Lost`](crate::ErrorKind::Lost). To be asked before every effect on the outside. Sends no request.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// let guard = store.lock("orders/42").await?;
    /// assert_eq!(guard.check()?, guard.fence());
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<Fence> {
        match self.is_valid() {
            true => Ok(self.fence()),
            false => Err(self.loss().into_error(&self.key())),
        }
    }

    /// Runs `work` for as long as the lease is held. `Ok` means that it was held from the beginning to the end. When it is
    /// lost, `work` is dropped where it stands, and the error is of the kind [`Lost`](crate::ErrorKind::Lost), with
    /// [`Error::loss`](crate::Error::loss) saying how.
    ///
    /// What the work has begun elsewhere by then (a request that is under way, a task that it has spawned) goes on: the
    /// [`fence`](Self::fence) is what refuses that. Work that blocks its thread cannot be stopped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// let guard = store.lock("orders/42").await?;
    /// let total = guard.run(async { 2 + 2 }).await?;
    /// assert_eq!(total, 4);
    /// guard.release().await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let (mut work, mut told) = (pin!(work), pin!(self.tended.token().cancelled()));
        let done = poll_fn(|context| {
            // By the clocks as well: after a pause this may be polled before the keeper has seen what time it is.
            if told.as_mut().poll(context).is_ready() || !self.is_valid() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await;
        self.check()?;
        done.ok_or_else(|| self.loss().into_error(&self.key()))
    }

    /// Resolves when the lease is lost, with what is known about it.
    pub async fn lost(&self) -> Loss {
        self.tended.token().cancelled().await;
        self.loss()
    }

    /// How it was lost, once it is.
    fn loss(&self) -> Loss {
        let state = self.tended.lock();
        state.loss.as_deref().cloned().unwrap_or_else(|| Loss::expired(None, Some(state.grant.fence)))
    }

    /// Cancelled when the lease is lost: for code that stops by a token. Cancelling it yourself changes nothing here.
    pub fn cancellation(&self) -> CancellationToken {
        self.tended.token().child_token()
    }

    /// Gives the lease back, or to whoever of this process waits for it.
    ///
    /// A lease that was lost has nothing to give back: that is not an error. On an error the lease may still be in the
    /// store; it is released in the background if that is possible, and expires if not. So it is if this is dropped
    /// before it has come to an end.
    pub async fn release(self) -> Result<()> {
        self.tended.close();
        let id = self.tended.lock().grant.id;
        self.tended.engine.release(&self.tended.cell, id).await?;
        self.tended.lock().released = true;
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // First and in any case: whatever is left in the store, nobody keeps it alive any more.
        self.tended.close();
        let (id, left) = {
            let state = self.tended.lock();
            // A renewal whose answer never came may have landed: then the lease is there although it counts as lost. One
            // with a request id may have been asked for again, from elsewhere, and be alive.
            let lost = state.loss.as_ref().is_some_and(|loss| loss.taken_by.is_some());
            let ours = state.grant.is_valid() || !lost && !state.grant.repeatable;
            (state.grant.id, !state.released && ours)
        };
        if left {
            self.tended.engine.release_soon(&self.tended.cell, id);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.grant()).finish()
    }
}
