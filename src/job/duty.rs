//! What a process owes a queue while it has jobs of it in hand, also when it claims no more for a while: what dead processes
//! held comes back in time, and what was left undone is done.
//!
//! A claim that waits looks at every ledger anyway. Beside that, one task of each queue does while anything is in hand: it
//! reads a ledger that was not seen for ten seconds, which costs next to nothing if it has not changed, and wakes when
//! somebody's session could have ended.

use super::{
    committer::{Shard, next_end, patrol},
    core::Core,
    session::Hold,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// However soon there is something to look at: not sooner.
const SOONEST: Duration = Duration::from_millis(500);

/// Whether a task looks after the queue, and for how many claims.
#[derive(Debug, Default)]
pub(crate) struct Duty {
    claims: AtomicUsize,
    running: AtomicBool,
}

/// A claim in hand: keeps the session, and has somebody look after the queue.
#[derive(Debug)]
pub(crate) struct InHand {
    queue: Arc<Core>,
    _session: Hold,
}

impl InHand {
    pub(crate) fn new(queue: &Arc<Core>) -> Self {
        queue.duty.claims.fetch_add(1, SeqCst);
        if !queue.duty.running.swap(true, SeqCst) {
            let core = Arc::clone(queue);
            queue.shared.runtime.spawn(async move { look_after(&core).await });
        }
        Self { queue: Arc::clone(queue), _session: queue.shared.sessions.hold() }
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.queue.duty.claims.fetch_sub(1, SeqCst);
    }
}

impl Duty {
    /// Whether the task must end. One that is needed again just then starts anew.
    fn is_over(&self) -> bool {
        if self.claims.load(SeqCst) > 0 {
            return false;
        }
        self.running.store(false, SeqCst);
        // Somebody may have come in between and not started one.
        self.claims.load(SeqCst) == 0 || self.running.swap(true, SeqCst)
    }
}

async fn look_after(core: &Arc<Core>) {
    let clock = Arc::clone(&core.backend().clock);
    loop {
        clock.sleep(pause(core)).await;
        if core.duty.is_over() {
            return;
        }
        for shard in shards(core).await {
            if let Err(error) = patrol(&shard).await {
                tracing::warn!(%error, queue = %core.name, shard = shard.number, "a ledger could not be looked at");
            }
        }
    }
}

async fn shards(core: &Arc<Core>) -> Vec<Arc<Shard>> {
    let ever = match core.settings().await {
        Ok(settings) => settings.record().shards_ever,
        Err(error) => {
            tracing::warn!(%error, queue = %core.name, "the settings of a queue could not be read");
            return Vec::new();
        }
    };
    (0..ever).map(|number| core.shard(u8::try_from(number).unwrap_or(u8::MAX))).collect()
}

/// Until the next session may have ended, or a ledger was not seen for long enough.
fn pause(core: &Core) -> Duration {
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall()).as_millis();
    let next = core.known_shards().iter().filter_map(|shard| next_end(shard, now)).min();
    let until = next.and_then(|at| u64::try_from(at - now).ok()).map(Duration::from_millis);
    let longest = core.shared.options.max_poll_interval;
    until.unwrap_or(longest).clamp(SOONEST.min(longest), longest)
}
