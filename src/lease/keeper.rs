//! Keeps the leases of all guards alive, from one task: a timer for each process and not for each lease.

use super::{
    engine::Engine,
    guard::Tended,
    types::{Loss, Renewed},
};
use crate::clock::{self, Moment};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// Renewals under way at once. Whoever has to wait for its turn still learns of its loss in time.
const AT_ONCE: usize = 256;

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

    async fn tend_once(self: Arc<Self>, tended: Arc<Tended>) {
        let grant = tended.grant();
        let ended = Loss { taken_by: None, fence: Some(grant.fence()) };
        let left = tended.time_left();
        if left.is_zero() {
            return tended.lose(ended);
        }
        let renewing = async {
            let _turn = self.keeper.turns.acquire().await;
            self.renew(tended.cell(), grant.lease_id(), None, Some(&grant)).await
        };
        // However long the store takes, belief ends when it must.
        let renewed = clock::within(&*self.backend.clock, left, renewing).await;
        let retry = match renewed {
            Some(Ok(Renewed::Renewed(grant))) => {
                tended.renewed(grant);
                tended.next()
            }
            Some(Ok(Renewed::Lost(loss))) => return tended.lose(loss),
            None => return tended.lose(ended),
            Some(Err(error)) => {
                tracing::debug!(key = %grant.key(), %error, "a renewal failed; trying again while there is time");
                let pause = (grant.ttl() / 12).min(Duration::from_secs(1)).min(tended.time_left());
                self.backend.clock.monotonic().plus(pause)
            }
        };
        if !tended.is_over() {
            self.keeper.schedule(retry, tended);
        }
    }
}

async fn keep(engine: Weak<Engine>, changed: Arc<Notify>, clock: Arc<dyn crate::Clock>) {
    let mut renewals: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let now = clock.monotonic();
        let pause = {
            let mut state = strong.keeper.lock();
            while let Some(first) = state.due.first_entry()
                && first.key().0 <= now
            {
                let tended = first.remove();
                if !tended.is_over() {
                    renewals.push(Box::pin(Arc::clone(&strong).tend_once(tended)));
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
    }
}
