//! A lease that is kept alive, and that says when it is lost.

use super::{
    alive::Alive,
    engine::Engine,
    keeper::{Kept, TimerKey, guarded, pause_after_failure},
    keys::KeyEntry,
    loss::{Failing, Loss, LossReason, Lost},
    release::{release, release_soon},
    renew::try_renew,
    types::Grant,
    under::HeldUnder,
};
use crate::{
    Fence, Key, Result,
    clock::{self, Moment, Timestamp},
    sync::Locked as _,
};
use futures_util::{FutureExt, future::BoxFuture};
use std::{
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// A lease that is renewed at a third of its time to live until it is released, dropped or lost.
///
/// Losing it cannot be prevented: the network may be down for longer than the lease lasts, and the process may be
/// paused. So let [`run`](Self::run) stop the work with the lease, ask [`check`](Self::check) before each effect on the
/// outside, and hand the [`fence`](Self::fence) to what is protected.
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
    held: Held,
}

/// How a guard holds its lease.
enum Held {
    /// By renewing it.
    Kept(Arc<GuardState>),
    /// Under a session, which is renewed for all of them.
    Under(Arc<HeldUnder>),
}

/// The part of a guard that its keeper sees, and that outlives it while a renewal is under way.
struct GuardState {
    engine: Arc<Engine>,
    entry: Arc<KeyEntry>,
    inner: Mutex<Inner>,
    /// Cancelled when the lease is lost; made on demand, which for most guards is never.
    lost: OnceLock<CancellationToken>,
    /// Not to be renewed, nor believed in, beyond this.
    hold_until: Option<Moment>,
}

struct Inner {
    grant: Grant,
    /// Counted from before the last renewal was sent.
    renew_at: Moment,
    /// Where the keeper has it, while it waits there.
    due: Option<TimerKey>,
    loss: Option<Box<Loss>>,
    /// Since when and how its renewals fail.
    failing: Option<Box<Failing>>,
    /// The guard is closed: it is not renewed any more, and cannot be lost.
    closed: bool,
    /// It was given back, or that was found to be needless.
    released: bool,
}

impl GuardState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    fn grant(&self) -> Grant {
        self.lock().grant.clone()
    }

    /// When to look after it next.
    fn next(&self) -> Moment {
        let at = self.lock().renew_at;
        self.hold_until.map_or(at, |until| at.min(until))
    }

    fn renewed(&self, grant: Grant) {
        // While a wall clock that was set back catches up, renewing does not move the deadline, and must not become a
        // loop.
        let soonest = self.engine.now().moment.plus((grant.ttl() / 12).min(grant.time_left() / 3));
        let mut state = self.lock();
        state.renew_at = renew_at(&grant).max(soonest);
        state.grant = grant;
        state.failing = None;
    }

    /// A renewal that began then has failed, which is not the end yet. Nothing new is learnt of why if there was no answer.
    fn failed(&self, began: Timestamp, error: Option<&dyn fmt::Display>) {
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

    /// How long it may still be believed in.
    fn time_left(&self) -> Duration {
        self.left(&self.lock())
    }

    fn left(&self, state: &Inner) -> Duration {
        let left = state.grant.time_left();
        self.hold_until.map_or(left, |until| left.min(until.since(self.engine.now().moment)))
    }

    fn lose(&self, mut loss: Loss) {
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
        self.entry.guards.fetch_sub(1, Relaxed);
        drop(state);
        if let Some(token) = self.lost.get() {
            token.cancel();
        }
        self.engine.tell_loss(&self.entry.slot, &Lost { loss, id, owner, fence });
    }

    /// Whether it is lost; finding that its time is over loses it.
    fn is_lost(&self) -> bool {
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
        // Lost before there was a token; a loss from here on finds the token.
        if self.lock().loss.is_some() {
            token.cancel();
        }
        token
    }

    /// Renews the lease once, and says when to renew it next. `None` if it is over.
    async fn renew_once(self: &Arc<Self>) -> Option<Moment> {
        // What is over is lost, whether or not it could be renewed.
        if self.is_lost() {
            return None;
        }
        let engine = &self.engine;
        let (grant, left, began) = (self.grant(), self.time_left(), engine.now().wall);
        let renewing = async {
            let _turn = engine.keeper.turn().await;
            try_renew(engine, &self.entry, grant.lease_id(), None, Some(&grant)).await
        };
        // However long the store takes, belief ends when it must.
        let renewed = clock::within(&*engine.backend.clock, left, renewing).await;
        let next = match renewed {
            Some(Ok(Ok(grant))) => {
                self.renewed(grant);
                self.next()
            }
            Some(Ok(Err(lost))) => {
                self.lose(lost.loss);
                return None;
            }
            None => {
                self.failed(began, None);
                engine.backend.clock.monotonic()
            }
            Some(Err(error)) => {
                tracing::debug!(key = %grant.key(), %error, "a renewal failed; trying again while there is time");
                self.failed(began, Some(&error));
                let pause = pause_after_failure(grant.ttl()).min(self.time_left());
                engine.backend.clock.monotonic().plus(pause)
            }
        };
        (!self.is_over()).then_some(next)
    }

    /// A renewal that was due then has panicked.
    fn panicked(self: &Arc<Self>, due: Moment, error: &str) {
        tracing::error!(key = %self.entry.slot.key, error, "a renewal panicked; trying again while there is time");
        // By when it was last known to be well, if the clock is what panics.
        let wall = catch_unwind(AssertUnwindSafe(|| self.engine.now().wall));
        self.failed(wall.unwrap_or_else(|_| self.grant().expires_at()), Some(&error));
        // Counted from when it was due: it may be the clock that panics.
        let next = due.plus(pause_after_failure(self.grant().ttl()));
        self.engine.keeper.schedule(next, Arc::clone(self) as Arc<dyn Kept>);
    }

    /// Stops renewals. Counts as activity.
    fn close(&self) {
        self.is_lost();
        let due = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            if state.loss.is_none() {
                self.entry.guards.fetch_sub(1, Relaxed);
            }
            state.due.take()
        };
        self.engine.activity.touch(&*self.engine.backend.clock);
        if let Some(due) = due {
            self.engine.keeper.forget(due);
        }
    }
}

impl Kept for GuardState {
    fn set_due(&self, due: TimerKey) {
        self.lock().due = Some(due);
    }

    fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed || state.loss.is_some()
    }

    fn abandon(&self) {
        let fence = self.lock().grant.fence;
        self.lose(Loss::expired(None, Some(fence)));
    }

    fn renew(self: Arc<Self>, due: Moment) -> BoxFuture<'static, ()> {
        async move {
            let renewal = async {
                if let Some(next) = self.renew_once().await {
                    self.engine.keeper.schedule(next, Arc::clone(&self) as Arc<dyn Kept>);
                }
            };
            guarded(&self, renewal, |panic| self.panicked(due, panic)).await;
        }
        .boxed()
    }
}

impl fmt::Debug for GuardState {
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
    pub(super) fn new(engine: &Arc<Engine>, entry: &Arc<KeyEntry>, grant: Grant, max_hold: Option<Duration>) -> Self {
        let living = |session: &Weak<dyn Alive>| Some(session.upgrade()?.under().name);
        if let Some(session) = &grant.session {
            let living = living(session).and_then(|session| engine.sessions.of(session));
            return Self { held: Held::Under(HeldUnder::new(engine, entry, living, &grant)) };
        }
        let hold_until = max_hold.map(|longest| engine.now().moment.plus(longest));
        let renew_at = renew_at(&grant);
        let inner = Inner { grant, renew_at, due: None, loss: None, failing: None, closed: false, released: false };
        let state = Arc::new(GuardState {
            engine: Arc::clone(engine),
            entry: Arc::clone(entry),
            inner: Mutex::new(inner),
            lost: OnceLock::new(),
            hold_until,
        });
        entry.guards.fetch_add(1, Relaxed);
        engine.keeper.keep(state.next(), Arc::clone(&state) as Arc<dyn Kept>, &engine.runtime, &engine.backend.clock);
        Self { held: Held::Kept(state) }
    }

    /// How long this process may still believe in the lease.
    pub(super) fn time_left(&self) -> Duration {
        match &self.held {
            Held::Kept(state) if state.is_lost() => Duration::ZERO,
            Held::Kept(state) => state.time_left(),
            Held::Under(held) => held.grant().time_left(),
        }
    }

    fn token(&self) -> &CancellationToken {
        match &self.held {
            Held::Kept(state) => state.token(),
            Held::Under(held) => held.token(),
        }
    }

    /// The lease as it stands, with its current expiry.
    pub fn grant(&self) -> Grant {
        match &self.held {
            Held::Kept(state) => state.grant(),
            Held::Under(held) => held.grant(),
        }
    }

    /// The key.
    pub fn key(&self) -> Key {
        match &self.held {
            Held::Kept(state) => state.entry.slot.key.clone(),
            Held::Under(held) => held.key().clone(),
        }
    }

    /// The fence, the same for as long as the lease is held.
    pub fn fence(&self) -> Fence {
        match &self.held {
            Held::Kept(state) => state.lock().grant.fence,
            Held::Under(held) => held.fence(),
        }
    }

    /// Whether this process may still believe in the lease. Looks at the clocks, not at the network: false as soon as
    /// time is up, also right after the process was paused.
    pub fn is_valid(&self) -> bool {
        match &self.held {
            Held::Kept(state) => !state.is_lost(),
            Held::Under(held) => !held.is_lost(),
        }
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
        let (mut work, mut told) = (pin!(work), pin!(self.token().cancelled()));
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
        self.token().cancelled().await;
        self.loss()
    }

    /// How it was lost, once it is.
    pub(super) fn loss(&self) -> Loss {
        let state = match &self.held {
            Held::Kept(state) => state.lock(),
            Held::Under(held) => return held.loss(),
        };
        state.loss.as_deref().cloned().unwrap_or_else(|| Loss::expired(None, Some(state.grant.fence)))
    }

    /// Cancelled when the lease is lost: for code that stops by a token. Cancelling it yourself changes nothing here.
    pub fn cancellation(&self) -> CancellationToken {
        self.token().child_token()
    }

    /// Gives the lease back, or to the one of this process that waits longest for it.
    ///
    /// A lease that was lost has nothing to give back: that is not an error. On an error the lease may still be in the
    /// store; it is released in the background if that is possible, and expires if not. So it is if this is dropped
    /// before it has come to an end.
    pub async fn release(self) -> Result<()> {
        self.release_shared().await
    }

    /// Gives the lease back; the guard is of no use afterwards.
    pub(super) async fn release_shared(&self) -> Result<()> {
        let state = match &self.held {
            Held::Kept(state) => state,
            Held::Under(held) => return held.release().await,
        };
        state.close();
        let id = state.lock().grant.id;
        release(&state.engine, &state.entry, id).await?;
        state.lock().released = true;
        Ok(())
    }
}

impl Guard {
    /// Keeps the lease alive no longer, and leaves it to end by itself: for one that nobody waits for.
    /// One that is held under a session does not end by itself: it is released.
    pub(crate) fn let_end(self) {
        if let Held::Kept(state) = &self.held {
            state.close();
            state.lock().released = true;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let this = match &self.held {
            Held::Kept(state) => state,
            Held::Under(held) => return held.abandon(),
        };
        // First and in any case: what is left in the store is not kept alive any more.
        this.close();
        let (id, left) = {
            let state = this.lock();
            // A renewal whose answer never came may have landed: then the lease is there although it counts as lost. One
            // with a request id may have been asked for again, from elsewhere, and be alive.
            let lost = state.loss.as_ref().is_some_and(|loss| loss.taken_by.is_some());
            let ours = state.grant.is_valid() || !lost && !state.grant.repeatable;
            (state.grant.id, !state.released && ours)
        };
        if left {
            release_soon(&this.engine, &this.entry, id, None);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.grant()).finish()
    }
}
