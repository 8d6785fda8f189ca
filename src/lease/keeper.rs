//! Keeps the leases of all guards alive, from one task: a timer for each process and not for each lease.

use super::{
    engine::Engine,
    guard::Tended,
    types::{Loss, Renewed},
};
use crate::clock::Moment;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::Notify;

/// Renewals under way at once.
const AT_ONCE: usize = 256;

/// What is due when. The number tells apart what is due at the same moment.
type Due = BTreeMap<(Moment, u64), Arc<Tended>>;

#[derive(Debug, Default)]
pub(super) struct Keeper {
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    due: Due,
    number: u64,
    running: bool,
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
        state.due.insert((at, number), tended);
        if first {
            self.changed.notify_one();
        }
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
        if !grant.is_valid() {
            tended.lose(Loss { taken_by: None, fence: Some(grant.fence()) });
            return;
        }
        if tended.is_held_too_long() {
            tended.lose(Loss { taken_by: None, fence: Some(grant.fence()) });
            return;
        }
        let renewing = self.renew(tended.cell(), grant.lease_id(), None, Some(&grant));
        // However long the store takes, belief ends when it must.
        let renewed = tokio::select! {
            biased;
            renewed = renewing => Some(renewed),
            () = self.backend.clock.sleep(grant.time_left()) => None,
        };
        let retry = match renewed {
            Some(Ok(Renewed::Renewed(grant))) => {
                tended.renewed(grant);
                tended.next()
            }
            Some(Ok(Renewed::Lost(loss))) => return tended.lose(loss),
            None => return tended.lose(Loss { taken_by: None, fence: Some(grant.fence()) }),
            Some(Err(error)) => {
                tracing::debug!(key = %grant.key(), %error, "a renewal failed; trying again while there is time");
                let pause = (grant.ttl() / 12).min(Duration::from_secs(1)).min(grant.time_left());
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
            while renewals.len() < AT_ONCE
                && let Some(first) = state.due.first_entry()
                && first.key().0 <= now
            {
                let tended = first.remove();
                if !tended.is_over() {
                    renewals.push(Box::pin(Arc::clone(&strong).tend_once(tended)));
                }
            }
            state.due.keys().next().map(|(at, _)| at.since(now)).filter(|_| renewals.len() < AT_ONCE)
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
