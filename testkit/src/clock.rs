//! A clock that is moved by hand.

use async_trait::async_trait;
use leasehold::{
    BootId,
    clock::{Clock, Moment, Timestamp},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// A clock that stands still until it is moved. Clones share their time.
///
/// [`advance`](Self::advance) moves both clocks, as time does; [`step_wall`](Self::step_wall) moves the wall clock
/// alone, as an operator or NTP does; [`suspend`](Self::suspend) moves the wall clock past a monotonic clock that stood
/// still, as a suspended machine does where the system cannot count suspended time.
#[derive(Debug, Clone)]
pub struct TestClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    moved: Notify,
    slept: Notify,
}

#[derive(Debug)]
struct State {
    wall_micros: i64,
    monotonic: Duration,
    sleepers: usize,
    boot: Option<BootId>,
}

impl TestClock {
    /// Stands at `wall`; the monotonic clock stands at an arbitrary moment.
    pub fn at(wall: Timestamp) -> Self {
        let state =
            State { wall_micros: wall.as_micros(), monotonic: Duration::from_secs(1000), sleepers: 0, boot: None };
        Self(Arc::new(Shared { state: Mutex::new(state), moved: Notify::new(), slept: Notify::new() }))
    }

    /// Sets the boot id: which start of a machine the monotonic clock counts from.
    #[must_use]
    pub fn booted(self, boot: BootId) -> Self {
        self.change(|state| state.boot = Some(boot));
        self
    }

    /// Moves both clocks forward and wakes the tasks whose sleep is over.
    pub fn advance(&self, by: Duration) {
        self.change(|state| {
            state.wall_micros += i64::try_from(by.as_micros()).unwrap_or(i64::MAX / 4);
            state.monotonic += by;
        });
    }

    /// Sets the wall clock forward or back by `millis`; no time passes.
    pub fn step_wall(&self, millis: i64) {
        self.change(|state| state.wall_micros += millis * 1000);
    }

    /// Suspends the machine: wall time passes, and the monotonic clock does not count it.
    pub fn suspend(&self, by: Duration) {
        self.change(|state| state.wall_micros += i64::try_from(by.as_micros()).unwrap_or(i64::MAX / 4));
    }

    /// Returns once at least `count` tasks sleep on this clock, so that a test moves time only when they are there.
    pub async fn wait_for_sleepers(&self, count: usize) {
        loop {
            let slept = self.0.slept.notified();
            if self.lock().sleepers >= count {
                return;
            }
            slept.await;
        }
    }

    /// How many tasks sleep on this clock now.
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.0.moved.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.lock().wall_micros)
    }

    fn monotonic(&self) -> Moment {
        Moment::from_origin(self.lock().monotonic)
    }

    fn boot(&self) -> Option<BootId> {
        self.lock().boot
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.monotonic().plus(duration);
        let _sleeper = Sleeper::new(self);
        loop {
            let moved = self.0.moved.notified();
            if self.monotonic() >= until {
                return;
            }
            moved.await;
        }
    }
}

/// Counts a sleeping task, also when its sleep is dropped.
struct Sleeper<'a>(&'a TestClock);

impl<'a> Sleeper<'a> {
    fn new(clock: &'a TestClock) -> Self {
        clock.lock().sleepers += 1;
        clock.0.slept.notify_waiters();
        Self(clock)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.lock().sleepers -= 1;
    }
}
