//! A lease of a service that is kept alive, and that says when it is lost.

use super::{Refused, Remote};
use crate::{view::Holder, wire};
use leasehold::{Clock, Key, SystemClock, clock::Moment};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Renewed at a third of its time to live until it is released, dropped or lost.
#[derive(Debug)]
pub(crate) struct RemoteGuard {
    tended: Arc<Tended>,
    keeper: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Tended {
    remote: Remote,
    key: Key,
    lease_id: String,
    fence: u64,
    ttl: Duration,
    clock: SystemClock,
    state: Mutex<State>,
    lost: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// Counted from before the request was sent.
    deadline: Moment,
    taken_by: Option<Holder>,
}

impl RemoteGuard {
    pub(crate) fn new(remote: Remote, key: Key, lease: &wire::Lease, sent: Moment) -> Self {
        let deadline = sent.plus(lease.lasts());
        let tended = Arc::new(Tended {
            remote,
            key,
            lease_id: lease.lease_id.clone(),
            fence: lease.fence,
            ttl: Duration::from_millis(lease.ttl_ms),
            clock: SystemClock::new(),
            state: Mutex::new(State { deadline, taken_by: None }),
            lost: CancellationToken::new(),
        });
        let keeper = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&tended).keep()));
        Self { tended, keeper }
    }

    pub(crate) fn lease_id(&self) -> String {
        self.tended.lease_id.clone()
    }

    pub(crate) fn fence(&self) -> u64 {
        self.tended.fence
    }

    /// Looks at the clock, not at the network.
    pub(crate) fn is_valid(&self) -> bool {
        !self.tended.lost.is_cancelled() && !self.tended.left().is_zero()
    }

    /// Resolves when it is lost, with who has it now if that is known.
    pub(crate) async fn lost(&self) -> Option<Holder> {
        self.tended.lost.cancelled().await;
        self.tended.state.lock().unwrap_or_else(PoisonError::into_inner).taken_by.clone()
    }

    /// Gives it back. A renewal that is under way must not come after that.
    pub(crate) async fn release(self) -> Result<(), Refused> {
        self.keeper.abort();
        // It only ends by itself, or by this.
        let _ = self.keeper.await;
        self.tended.remote.release(&self.tended.key, &self.tended.lease_id).await
    }
}

impl Tended {
    fn left(&self) -> Duration {
        let deadline = self.state.lock().unwrap_or_else(PoisonError::into_inner).deadline;
        deadline.since(self.clock.monotonic())
    }

    async fn keep(self: Arc<Self>) {
        // The answer may have been long under way.
        let mut pause = (self.ttl / 3).min(self.left() / 2);
        loop {
            self.clock.sleep(pause.min(self.left())).await;
            if self.left().is_zero() {
                return self.lost.cancel();
            }
            let sent = self.clock.monotonic();
            let within = self.left().min(self.ttl / 3);
            match self.remote.renew(&self.key, &self.lease_id, None, Some(within)).await {
                Ok(lease) => {
                    let deadline = sent.plus(lease.lasts());
                    self.state.lock().unwrap_or_else(PoisonError::into_inner).deadline = deadline;
                    pause = self.ttl / 3;
                }
                Err(Refused::Problem(problem)) if problem.code == "lost" => {
                    let taken_by = problem.holder.as_deref().map(Holder::from);
                    self.state.lock().unwrap_or_else(PoisonError::into_inner).taken_by = taken_by;
                    return self.lost.cancel();
                }
                // The old deadline stands; ask again soon.
                Err(refused) => {
                    tracing::warn!(key = %self.key, ?refused, "the lease could not be renewed");
                    pause = self.ttl / 12;
                }
            }
        }
    }
}
