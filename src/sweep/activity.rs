//! When an operation was last called.

use crate::clock::{Clock, Moment};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// When an operation that a user asked for last ran. Keep-alive, a waiter's polls, listing and sweeping are none.
#[derive(Debug, Default)]
pub(crate) struct Activity(AtomicU64);

impl Activity {
    pub(crate) fn touch(&self, clock: &dyn Clock) {
        let since_origin = clock.monotonic().since(Moment::default());
        self.0.store(u64::try_from(since_origin.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn last(&self) -> Moment {
        Moment::from_origin(Duration::from_micros(self.0.load(Relaxed)))
    }
}
