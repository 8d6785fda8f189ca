//! A slot that is kept alive, and that says when it is lost.

use super::{
    cell::{Cell, Op},
    engine::Engine,
    rules::Believed,
    types::{Slot, lost},
};
use crate::{
    Fence, Key, Result,
    clock::{Moment, Timestamp},
    lease::{Failing, Loss, LossReason},
    sync::Locked as _,
};
use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A slot that is renewed at a third of its time to live until it is released, dropped or lost.
///
/// What is true of a lock's [`Guard`](crate::lease::Guard) is true of it: let [`run`](Self::run) stop the work with the slot, and
/// ask [`check`](Self::check) before each effect on the outside. Dropping it gives the slot back in the background, as well as
/// that can be done.
#[must_use = "dropping a permit gives its slot back"]
pub struct Permit {
    kept: Arc<Kept>,
}

/// The part of a permit that its keeper sees.
pub(super) struct Kept {
    engine: Arc<Engine>,
    cell: Arc<Cell>,
    state: Mutex<State>,
    lost: OnceLock<CancellationToken>,
    hold_until: Option<Moment>,
}

struct State {
    slot: Slot,
    renew_at: Moment,
    loss: Option<Box<Loss>>,
    failing: Option<Failing>,
    closed: bool,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    pub(super) fn slot(&self) -> Slot {
        self.lock().slot.clone()
    }

    pub(super) fn believed(&self) -> Believed {
        believed(&self.lock().slot)
    }

    /// When to renew it, counted from before the last renewal was sent.
    pub(super) fn renew_at(&self) -> Moment {
        self.lock().renew_at
    }

    /// How long it may still be believed in.
    pub(super) fn time_left(&self) -> Duration {
        self.left(&self.lock())
    }

    fn left(&self, state: &State) -> Duration {
        let left = state.slot.time_left();
        self.hold_until.map_or(left, |until| left.min(until.since(self.engine.terms.now().0)))
    }

    pub(super) fn renewed(&self, slot: Slot) {
        let soonest = self.engine.terms.now().0.plus((slot.ttl() / 12).min(slot.time_left() / 3));
        let mut state = self.lock();
        state.renew_at = renew_at(&self.engine, &slot).max(soonest);
        state.slot = slot;
        state.failing = None;
    }

    /// A renewal has failed, which is not the end yet.
    pub(super) fn failed(&self, began: Timestamp, error: &dyn fmt::Display) {
        let now = self.engine.terms.now().0;
        let mut state = self.lock();
        let since = state.failing.as_ref().map_or(began, |failing| failing.since);
        state.failing = Some(Failing { since, error: error.to_string() });
        let pause = (state.slot.ttl() / 12).min(Duration::from_secs(1));
        state.renew_at = now.plus(pause.min(state.slot.time_left()));
    }

    pub(super) fn lose(&self, mut loss: Loss) {
        let mut state = self.lock();
        if state.closed || state.loss.is_some() {
            return;
        }
        if let LossReason::Expired { failing } = &mut loss.reason
            && failing.is_none()
        {
            *failing = state.failing.take();
        }
        state.loss = Some(Box::new(loss.clone()));
        let slot = state.slot.clone();
        drop(state);
        if let Some(token) = self.lost.get() {
            token.cancel();
        }
        self.engine.counters.lost(1);
        tracing::warn!(
            namespace = %slot.namespace(),
            semaphore = %slot.name(),
            owner = slot.owner(),
            fence = slot.fence().get(),
            lease = %slot.lease_id(),
            reason = %loss,
            "a slot was lost"
        );
    }

    /// Marks it as lost if its time is over.
    pub(super) fn is_lost(&self) -> bool {
        let (reason, fence) = {
            let state = self.lock();
            if state.loss.is_some() {
                return true;
            }
            if state.closed || !self.left(&state).is_zero() {
                return false;
            }
            let now = self.engine.terms.now().0;
            let held_out = self.hold_until.is_some_and(|until| until <= now) && state.slot.is_valid();
            let reason = if held_out { LossReason::MaxHold } else { LossReason::Expired { failing: None } };
            (reason, state.slot.fence())
        };
        self.lose(Loss { taken_by: None, fence: Some(fence), reason });
        true
    }

    /// Whether there is nothing left to look after.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed || state.loss.is_some()
    }

    fn token(&self) -> &CancellationToken {
        let token = self.lost.get_or_init(CancellationToken::new);
        if self.lock().loss.is_some() {
            token.cancel();
        }
        token
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.slot(), f)
    }
}

/// What is believed of a slot.
pub(super) fn believed(slot: &Slot) -> Believed {
    let grant = &slot.grant;
    Believed { deadline: grant.deadline, expires: grant.expires, over: grant.over.load(Relaxed) }
}

/// A third of the time to live after the request was sent: two more renewals may fail before the slot ends.
fn renew_at(engine: &Engine, slot: &Slot) -> Moment {
    let third = slot.ttl() / 3;
    engine.terms.now().0.plus(slot.time_left().saturating_sub(2 * third))
}

impl Permit {
    pub(super) fn new(engine: &Arc<Engine>, cell: &Arc<Cell>, slot: Slot, max_hold: Option<Duration>) -> Self {
        let hold_until = max_hold.map(|longest| engine.terms.now().0.plus(longest));
        let renew_at = renew_at(engine, &slot);
        let state = State { slot, renew_at, loss: None, failing: None, closed: false };
        let kept = Arc::new(Kept {
            engine: Arc::clone(engine),
            cell: Arc::clone(cell),
            state: Mutex::new(state),
            lost: OnceLock::new(),
            hold_until,
        });
        cell.with(|state| state.kept.push(Arc::clone(&kept)));
        Self { kept }
    }

    /// The slot as it stands, with its current expiry.
    pub fn slot(&self) -> Slot {
        self.kept.slot()
    }

    /// The name of the semaphore.
    pub fn name(&self) -> Key {
        self.kept.cell.slot.key.clone()
    }

    /// Which slot it is: a number from 0 on that no other holder has at the same time.
    pub fn number(&self) -> u32 {
        self.kept.lock().slot.number
    }

    /// The fence, the same for as long as the slot is held.
    pub fn fence(&self) -> Fence {
        self.kept.lock().slot.fence()
    }

    /// Whether this process may still believe in the slot. Looks at the clocks, not at the network.
    pub fn is_valid(&self) -> bool {
        !self.kept.is_lost()
    }

    /// The fence, if this process may still believe in the slot; otherwise an error of the kind
    /// [`Lost`](crate::ErrorKind::Lost). Sends no request.
    pub fn check(&self) -> Result<Fence> {
        match self.is_valid() {
            true => Ok(self.fence()),
            false => Err(lost(self.loss(), &self.name())),
        }
    }

    /// Runs `work` for as long as the slot is held. When it is lost, `work` is dropped where it stands, and the error is of
    /// the kind [`Lost`](crate::ErrorKind::Lost).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// let permit = store.semaphore("gpu", 3).acquire().await?;
    /// let total = permit.run(async { 2 + 2 }).await?;
    /// assert_eq!(total, 4);
    /// permit.release().await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let (mut work, mut told) = (pin!(work), pin!(self.kept.token().cancelled()));
        let done = poll_fn(|context| {
            // By the clocks as well: after a pause this may be polled before the keeper has seen what time it is.
            if told.as_mut().poll(context).is_ready() || !self.is_valid() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await;
        self.check()?;
        done.ok_or_else(|| lost(self.loss(), &self.name()))
    }

    /// Resolves when the slot is lost, with what is known about it.
    pub async fn lost(&self) -> Loss {
        self.kept.token().cancelled().await;
        self.loss()
    }

    fn loss(&self) -> Loss {
        let state = self.kept.lock();
        state.loss.as_deref().cloned().unwrap_or_else(|| Loss {
            taken_by: None,
            fence: Some(state.slot.fence()),
            reason: LossReason::Expired { failing: None },
        })
    }

    /// Cancelled when the slot is lost: for code that stops by a token.
    pub fn cancellation(&self) -> CancellationToken {
        self.kept.token().child_token()
    }

    /// Gives the slot back, or to whoever has waited longest for it. A slot that was lost has nothing to give back: that is
    /// not an error. On an error it is given back in the background if that is possible, and expires if not.
    pub async fn release(self) -> Result<()> {
        let answer = self.close(true);
        match answer {
            Some(answer) => answer.await.unwrap_or_else(|_| Err(super::engine::gone(&self.name()))),
            None => Ok(()),
        }
    }

    /// Ends the keeping, and gives back what may be there: also a lost slot, whose last renewal may have landed.
    fn close(&self, answered: bool) -> Option<oneshot::Receiver<Result<()>>> {
        self.kept.is_lost();
        let id = {
            let mut state = self.kept.lock();
            if std::mem::replace(&mut state.closed, true) {
                return None;
            }
            state.slot.lease_id()
        };
        self.kept.engine.touch();
        let (sender, answer) = oneshot::channel();
        // A store that is drained waits for it.
        let token = Some(self.kept.engine.terms.leftovers().token());
        self.kept.cell.submit(Op::Release { id, reply: answered.then_some(sender), token });
        Some(answer)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        drop(self.close(false));
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.slot()).finish()
    }
}
