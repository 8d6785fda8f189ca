//! How fast the sweeper goes: `governor` on our clock, slower while the store asks for patience.

use crate::{Clock, clock::Moment};
use governor::{
    Quota, RateLimiter,
    clock::Clock as GovernorClock,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use std::{sync::Arc, time::Duration};

/// The slowest is so many times the asked-for delay.
const SLOWEST: u32 = 64;

/// So many entries without a complaint before it goes faster again.
const PATIENCE: u32 = 16;

/// The least delay that throttling makes of none.
const LEAST_DELAY: Duration = Duration::from_millis(10);

/// Our monotonic clock, as `governor` wants it.
#[derive(Debug, Clone)]
struct Ours(Arc<dyn Clock>);

impl GovernorClock for Ours {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.monotonic().since(Moment::default()))
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, Ours, NoOpMiddleware<Nanos>>;

/// Lets one entry through at a time.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Ours,
    delay: Duration,
    slowdown: u32,
    calm: u32,
    limiter: Option<Limiter>,
}

impl Pace {
    pub(super) fn new(clock: Arc<dyn Clock>, delay: Duration) -> Self {
        let mut pace = Self { clock: Ours(clock), delay, slowdown: 1, calm: 0, limiter: None };
        pace.limiter = pace.limiter_for(delay);
        pace
    }

    fn limiter_for(&self, delay: Duration) -> Option<Limiter> {
        let quota = Quota::with_period(delay)?;
        Some(RateLimiter::direct_with_clock(quota, self.clock.clone()))
    }

    /// From now on there is so long between two entries, or more while the store asks for patience.
    pub(super) fn set_delay(&mut self, delay: Duration) {
        if self.delay != delay {
            self.delay = delay;
            self.limiter = self.limiter_for(self.delay());
        }
    }

    /// How long there is between two entries now.
    pub(super) fn delay(&self) -> Duration {
        match self.slowdown {
            1 => self.delay,
            slowdown => self.delay.max(LEAST_DELAY) * slowdown,
        }
    }

    /// Waits until the next entry may be looked at, or the next page be listed.
    pub(super) async fn next(&self) {
        let Some(limiter) = &self.limiter else { return };
        while let Err(not_until) = limiter.check() {
            let wait = not_until.wait_time_from(self.clock.now());
            self.clock.0.sleep(wait).await;
        }
    }

    /// Goes slower when the store asked for patience, and back to its pace when it has not for a while.
    pub(super) fn heard(&mut self, throttled: bool) {
        let before = self.slowdown;
        if throttled {
            self.calm = 0;
            self.slowdown = (self.slowdown * 2).min(SLOWEST);
        } else if self.slowdown > 1 {
            self.calm += 1;
            if self.calm >= PATIENCE {
                self.calm = 0;
                self.slowdown /= 2;
            }
        }
        if self.slowdown != before {
            self.limiter = self.limiter_for(self.delay());
            // A new limiter has a token to spare; the entry that was just looked at has used it.
            if let Some(limiter) = &self.limiter {
                let _ = limiter.check();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Timestamp, testkit::TestClock};

    #[tokio::test]
    async fn the_pace_is_never_faster_than_asked() {
        let clock = TestClock::at(Timestamp::default());
        let pace = Arc::new(Pace::new(Arc::new(clock.clone()), Duration::from_millis(100)));
        pace.next().await;
        for _ in 0..5 {
            let waiting = tokio::spawn({
                let pace = Arc::clone(&pace);
                async move { pace.next().await }
            });
            clock.wait_for_sleepers(1).await;
            clock.advance(Duration::from_millis(99));
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            clock.advance(Duration::from_millis(1));
            waiting.await.unwrap();
        }
    }

    #[test]
    fn throttling_slows_it_down_and_calm_brings_it_back() {
        let clock = TestClock::at(Timestamp::default());
        let mut pace = Pace::new(Arc::new(clock), Duration::from_millis(100));
        pace.heard(true);
        pace.heard(true);
        assert_eq!(pace.delay(), Duration::from_millis(400));
        for _ in 0..2 * PATIENCE {
            pace.heard(false);
        }
        assert_eq!(pace.delay(), Duration::from_millis(100));
        for _ in 0..20 {
            pace.heard(true);
        }
        assert_eq!(pace.delay(), Duration::from_millis(6400));
    }

    #[tokio::test]
    async fn no_delay_is_no_limit_until_the_store_complains() {
        let clock = TestClock::at(Timestamp::default());
        let mut pace = Pace::new(Arc::new(clock), Duration::ZERO);
        for _ in 0..100 {
            pace.next().await;
        }
        pace.heard(true);
        assert_eq!(pace.delay(), Duration::from_millis(20));
    }
}
