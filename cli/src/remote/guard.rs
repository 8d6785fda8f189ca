//! A lease of a service that is kept alive, and that says when it is lost.

use super::{Refused, Remote};
use crate::{view::printable, wire};
use leasehold::{
    Clock, Key, SystemClock,
    clock::{Moment, Timestamp},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// Since when the service fails the renewals, and how.
    failing: Option<(Timestamp, String)>,
    /// Why it is lost.
    lost: Option<String>,
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
            state: Mutex::new(State { deadline, failing: None, lost: None }),
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

    /// Resolves when it is lost, with why.
    pub(crate) async fn lost(&self) -> String {
        self.tended.lost.cancelled().await;
        self.tended.state().lost.clone().unwrap_or_default()
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> Duration {
        let deadline = self.state().deadline;
        deadline.since(self.clock.monotonic())
    }

    fn lose(&self, why: String) {
        self.state().lost = Some(why);
        self.lost.cancel();
    }

    /// Why it is over without anybody having taken it.
    fn why_over(&self) -> String {
        match &self.state().failing {
            Some((since, why)) => format!("its time was over: the service failed since {since} ({why})"),
            None => "its time was over before it was renewed".to_owned(),
        }
    }

    async fn keep(self: Arc<Self>) {
        // The answer may have been long under way.
        let mut pause = (self.ttl / 3).min(self.left() / 2);
        loop {
            self.clock.sleep(pause.min(self.left())).await;
            if self.left().is_zero() {
                return self.lose(self.why_over());
            }
            let sent = self.clock.monotonic();
            let within = self.left().min(self.ttl / 3);
            match self.remote.renew(&self.key, &self.lease_id, None, Some(within)).await {
                Ok(lease) => {
                    let mut state = self.state();
                    (state.deadline, state.failing) = (sent.plus(lease.lasts()), None);
                    pause = self.ttl / 3;
                }
                Err(Refused::Problem(problem)) if problem.code == "lost" => {
                    return self.lose(printable(problem.why()));
                }
                // The old deadline stands; ask again soon.
                Err(refused) => {
                    tracing::warn!(key = %self.key, %refused, "the lease could not be renewed: trying again while there is time");
                    let since = self.state().failing.take().map_or_else(|| self.clock.wall(), |(since, _)| since);
                    self.state().failing = Some((since, refused.to_string()));
                    pause = self.ttl / 12;
                }
            }
        }
    }
}
