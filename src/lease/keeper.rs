//! Keeps the leases of all guards alive, from one task: a timer for each process and not for each lease.

use super::{engine::Engine, guard::Tended};
use crate::clock::{self, Moment};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    any::Any,
    collections::BTreeMap,
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// Renewals under way at once. Whoever has to wait for its turn still learns of its loss in time.
const AT_ONCE: usize = 256;

/// Panics of the keeper itself, one after the other, before it gives up: its clock does not work.
const MOST_PANICS: u32 = 16;

/// When something is due. The number tells apart what is due at the same moment.
pub(super) type Due = (Moment, u64);

#[derive(Debug)]
pub(super) struct Keeper {
    state: Mutex<State>,
    changed: Arc<Notify>,
    turns: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<Due, Arc<Tended>>,
    number: u64,
    running: bool,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Arc::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Keeper {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the task see that there is nothing left to keep.
    pub(super) fn stop(&self) {
        self.changed.notify_one();
    }

    fn schedule(&self, at: Moment, tended: Arc<Tended>) {
        let mut state = self.lock();
        state.number += 1;
        let number = state.number;
        let first = state.due.keys().next().is_none_or(|(next, _)| at < *next);
        tended.set_due((at, number));
        state.due.insert((at, number), tended);
        if first {
            self.changed.notify_one();
        }
    }

    /// Lets go of what nobody wants to be kept: it may be long until it is due.
    pub(super) fn forget(&self, due: Due) {
        self.lock().due.remove(&due);
    }
}

impl Engine {
    /// Looks after a lease from now on.
    pub(super) fn tend(self: &Arc<Self>, tended: Arc<Tended>) {
        self.keeper.schedule(tended.next(), tended);
        let start = !std::mem::replace(&mut self.keeper.lock().running, true);
        if start {
            // The task must not keep the store open for ever: it ends when nobody else has it.
            self.runtime.spawn(keep(
                Arc::downgrade(self),
                Arc::clone(&self.keeper.changed),
                Arc::clone(&self.backend.clock),
            ));
        }
    }

    /// Looks after one lease. A store, a clock or a generator that was handed in may panic: that is one renewal that
    /// failed, and neither the end of the others nor of this one.
    async fn tend_guarded(self: Arc<Self>, tended: Arc<Tended>, due: Moment) {
        let mut under_way = UnderWay(Some(tended));
        let Some(tended) = under_way.0.clone() else { return };
        let tending = AssertUnwindSafe(Arc::clone(&self).tend_once(Arc::clone(&tended))).catch_unwind().await;
        if let Err(panic) = tending {
            let error = what_panicked(&*panic);
            tracing::error!(key = %tended.cell().slot.key, error, "a renewal panicked; trying again while there is time");
            // By when it was last known to be well, if the clock is what panics.
            let wall = std::panic::catch_unwind(AssertUnwindSafe(|| self.now().wall));
            tended.failed(wall.unwrap_or_else(|_| tended.grant().expires_at()), Some(&error));
            // Reckoned from when it was due: it may be the clock that panics.
            self.keeper.schedule(due.plus(pause_after_failure(tended.grant().ttl())), Arc::clone(&tended));
        }
        under_way.0 = None;
    }

    async fn tend_once(self: Arc<Self>, tended: Arc<Tended>) {
        // Whatever is over is lost, whether or not it could be renewed.
        if tended.is_lost() {
            return;
        }
        let (grant, left, began) = (tended.grant(), tended.time_left(), self.now().wall);
        let renewing = async {
            let _turn = self.keeper.turns.acquire().await;
            self.try_renew(tended.cell(), grant.lease_id(), None, Some(&grant)).await
        };
        // However long the store takes, belief ends when it must.
        let renewed = clock::within(&*self.backend.clock, left, renewing).await;
        let retry = match renewed {
            Some(Ok(Ok(grant))) => {
                tended.renewed(grant);
                tended.next()
            }
            Some(Ok(Err(lost))) => return tended.lose(lost.loss),
            None => {
                tended.failed(began, None);
                self.backend.clock.monotonic()
            }
            Some(Err(error)) => {
                tracing::debug!(key = %grant.key(), %error, "a renewal failed; trying again while there is time");
                tended.failed(began, Some(&error));
                let pause = pause_after_failure(grant.ttl()).min(tended.time_left());
                self.backend.clock.monotonic().plus(pause)
            }
        };
        if !tended.is_over() {
            self.keeper.schedule(retry, tended);
        }
    }
}

/// One that is looked after just now. If that ends before it should, nobody does any more.
struct UnderWay(Option<Arc<Tended>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(tended) = self.0.take() {
            tended.abandon();
        }
    }
}

/// Before a renewal that failed is tried again.
fn pause_after_failure(ttl: Duration) -> Duration {
    (ttl / 12).min(Duration::from_secs(1))
}

/// What a panic says, if it says it in words.
fn what_panicked(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

type Renewals = FuturesUnordered<BoxFuture<'static, ()>>;

/// Goes on whatever panics in between. If nothing else happens any more, all is reported lost: nobody could renew it.
async fn keep(engine: Weak<Engine>, changed: Arc<Notify>, clock: Arc<dyn crate::Clock>) {
    let mut renewals = Renewals::new();
    let mut panics = 0;
    while panics < MOST_PANICS {
        let round = AssertUnwindSafe(keep_once(&engine, &changed, &*clock, &mut renewals)).catch_unwind();
        match round.await {
            Ok(ControlFlow::Continue(())) => panics = 0,
            Ok(ControlFlow::Break(())) => return,
            Err(panic) => {
                tracing::error!(error = what_panicked(&*panic), "keeping leases alive panicked; going on");
                panics += 1;
            }
        }
    }
    let Some(engine) = engine.upgrade() else { return };
    let kept = {
        let mut state = engine.keeper.lock();
        state.running = false;
        std::mem::take(&mut state.due)
    };
    kept.into_values().for_each(|tended| tended.abandon());
}

/// Begins what is due, and waits until something has happened.
async fn keep_once(
    engine: &Weak<Engine>,
    changed: &Notify,
    clock: &dyn crate::Clock,
    renewals: &mut Renewals,
) -> ControlFlow<()> {
    let Some(strong) = engine.upgrade() else { return ControlFlow::Break(()) };
    let now = clock.monotonic();
    let pause = {
        let mut state = strong.keeper.lock();
        while let Some(first) = state.due.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), tended) = first.remove_entry();
            if !tended.is_over() {
                renewals.push(Box::pin(Arc::clone(&strong).tend_guarded(tended, due)));
            }
        }
        state.due.keys().next().map(|(at, _)| at.since(now))
    };
    drop(strong);
    tokio::select! {
        biased;
        Some(()) = renewals.next() => {}
        () = changed.notified() => {}
        () = clock.sleep(pause.unwrap_or(Duration::MAX)) => {}
    }
    ControlFlow::Continue(())
}
