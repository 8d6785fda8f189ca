//! Keeps the leases of all guards alive, from one task: a timer for each process and not for each lease.

use crate::{clock::Moment, sync::Locked as _};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Renewals under way at once. One that has to wait for its turn still learns of its loss in time.
const AT_ONCE: usize = 256;

/// Panics of the keeper itself, one after the other, before it gives up: its clock does not work.
const MOST_PANICS: u32 = 16;

/// When something is due. The number tells apart what is due at the same moment.
pub(super) type TimerKey = (Moment, u64);

/// Something that has to be renewed again and again.
pub(super) trait Kept: fmt::Debug + Send + Sync {
    /// Takes note of where the keeper has it.
    fn set_due(&self, due: TimerKey);

    /// Whether there is nothing left to look after.
    fn is_over(&self) -> bool;

    /// Nothing looks after it any more, so that its time will be over. Reads no clock.
    fn abandon(&self);

    /// Renews it, which was due at this moment, and has it scheduled again; see [`guarded`].
    fn renew(self: Arc<Self>, due: Moment) -> BoxFuture<'static, ()>;
}

#[derive(Debug)]
pub(super) struct Keeper {
    state: Mutex<State>,
    changed: Arc<Notify>,
    turns: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<TimerKey, Arc<dyn Kept>>,
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
        self.state.locked()
    }

    /// Looks after something from this moment on.
    pub(super) fn keep(
        self: &Arc<Self>,
        at: Moment,
        kept: Arc<dyn Kept>,
        runtime: &tokio::runtime::Handle,
        clock: &Arc<dyn crate::Clock>,
    ) {
        self.schedule(at, kept);
        let start = !std::mem::replace(&mut self.lock().running, true);
        if start {
            // The task must not keep the store open for ever: it ends with the keeper.
            runtime.spawn(run(Arc::downgrade(self), Arc::clone(&self.changed), Arc::clone(clock)));
        }
    }

    pub(super) fn schedule(&self, at: Moment, kept: Arc<dyn Kept>) {
        let mut state = self.lock();
        state.number += 1;
        let number = state.number;
        let first = state.due.keys().next().is_none_or(|(next, _)| at < *next);
        kept.set_due((at, number));
        state.due.insert((at, number), kept);
        if first {
            self.changed.notify_one();
        }
    }

    /// Removes what need not be kept any more: it may be long until it is due.
    pub(super) fn forget(&self, due: TimerKey) {
        self.lock().due.remove(&due);
    }

    /// The turn of a renewal: only so many are under way at once.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Begins what is due, and says how long it is until the next.
    fn begin_due(&self, now: Moment, renewals: &mut Renewals) -> Option<Duration> {
        let mut state = self.lock();
        while let Some(first) = state.due.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), kept) = first.remove_entry();
            if !kept.is_over() {
                renewals.push(kept.renew(due));
            }
        }
        state.due.keys().next().map(|(at, _)| at.since(now))
    }
}

impl Drop for Keeper {
    /// Lets the task see that there is nothing left to keep.
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// Runs one renewal. A store, a clock or a generator that was handed in may panic: that is one renewal that failed, and
/// neither the end of the others nor of this one. `failed` is told what the panic said.
pub(super) async fn guarded<K: Kept + ?Sized>(
    kept: &Arc<K>,
    renewal: impl Future<Output = ()>,
    failed: impl FnOnce(&str),
) {
    let mut under_way = UnderWay(Some(&**kept));
    if let Err(panic) = AssertUnwindSafe(renewal).catch_unwind().await {
        failed(what_panicked(&*panic));
    }
    under_way.0 = None;
}

/// One that is renewed just now. If that ends before it should, nothing looks after it any more.
struct UnderWay<'a, K: Kept + ?Sized>(Option<&'a K>);

impl<K: Kept + ?Sized> Drop for UnderWay<'_, K> {
    fn drop(&mut self) {
        if let Some(kept) = self.0.take() {
            kept.abandon();
        }
    }
}

/// Before a renewal that failed is tried again.
pub(super) fn pause_after_failure(ttl: Duration) -> Duration {
    (ttl / 12).min(Duration::from_secs(1))
}

/// What a panic says, if it says it in words.
fn what_panicked(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

type Renewals = FuturesUnordered<BoxFuture<'static, ()>>;

/// Goes on whatever panics in between. If nothing else happens any more, all is reported lost: nothing could renew it.
async fn run(keeper: Weak<Keeper>, changed: Arc<Notify>, clock: Arc<dyn crate::Clock>) {
    let mut renewals = Renewals::new();
    let mut panics = 0;
    while panics < MOST_PANICS {
        let round = AssertUnwindSafe(run_once(&keeper, &changed, &*clock, &mut renewals)).catch_unwind();
        match round.await {
            Ok(ControlFlow::Continue(())) => panics = 0,
            Ok(ControlFlow::Break(())) => return,
            Err(panic) => {
                tracing::error!(error = what_panicked(&*panic), "keeping leases alive panicked; going on");
                panics += 1;
            }
        }
    }
    let Some(keeper) = keeper.upgrade() else { return };
    let kept = {
        let mut state = keeper.lock();
        state.running = false;
        std::mem::take(&mut state.due)
    };
    kept.into_values().for_each(|kept| kept.abandon());
}

/// Begins what is due, and waits until something has happened.
async fn run_once(
    keeper: &Weak<Keeper>,
    changed: &Notify,
    clock: &dyn crate::Clock,
    renewals: &mut Renewals,
) -> ControlFlow<()> {
    let Some(strong) = keeper.upgrade() else { return ControlFlow::Break(()) };
    let pause = strong.begin_due(clock.monotonic(), renewals);
    drop(strong);
    tokio::select! {
        biased;
        Some(()) = renewals.next() => {}
        () = changed.notified() => {}
        () = clock.sleep(pause.unwrap_or(Duration::MAX)) => {}
    }
    ControlFlow::Continue(())
}
