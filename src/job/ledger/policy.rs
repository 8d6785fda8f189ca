//! What must hold at once for every process: written to each ledger with the revision of `queue.json` that it comes from.

use super::Millis;
use crate::duration::text;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the pause before the next attempt grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// `base × attempt ^ power`.
    Polynomial,
    /// `base × power ^ (attempt - 1)`.
    Exponential,
    /// `base`.
    Fixed,
}

/// How long a job waits after it has failed: data, so that every process means the same.
///
/// ```
/// use leasehold::job::Backoff;
/// use std::time::Duration;
///
/// // 1 s, 16 s, 81 s … up to six hours, each a tenth more or less.
/// assert_eq!(Backoff::default(), Backoff::polynomial(Duration::from_secs(1), 4, Duration::from_secs(6 * 3600)));
/// // 5 s, 10 s, 20 s … up to ten minutes, and never at the same time as others.
/// let backoff = Backoff::exponential(Duration::from_secs(5), 2, Duration::from_secs(600)).jitter(50);
/// # let _ = backoff;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Backoff {
    /// How it grows.
    pub shape: Shape,
    /// The pause after the first failure.
    #[serde(with = "text")]
    pub base: Duration,
    /// The exponent of a polynomial, the factor of an exponential one.
    pub power: u32,
    /// No pause is longer, but for the jitter.
    #[serde(with = "text")]
    pub cap: Duration,
    /// Up and down at random, in percent.
    #[serde(rename = "jitter_percent")]
    pub jitter: u32,
}

impl Default for Backoff {
    /// `min(attempt⁴ s, 6 h)` ± 10 %.
    fn default() -> Self {
        Self {
            shape: Shape::Polynomial,
            base: Duration::from_secs(1),
            power: 4,
            cap: Duration::from_secs(6 * 3600),
            jitter: 10,
        }
    }
}

impl Backoff {
    /// `base × attempt ^ power`, up to `cap`.
    pub fn polynomial(base: Duration, power: u32, cap: Duration) -> Self {
        Self { shape: Shape::Polynomial, base, power, cap, ..Self::default() }
    }

    /// `base × factor ^ (attempt - 1)`, up to `cap`.
    pub fn exponential(base: Duration, factor: u32, cap: Duration) -> Self {
        Self { shape: Shape::Exponential, base, power: factor, cap, ..Self::default() }
    }

    /// Always the same pause.
    pub fn fixed(pause: Duration) -> Self {
        Self { shape: Shape::Fixed, base: pause, power: 1, cap: pause, ..Self::default() }
    }

    /// Up and down at random, in percent (10).
    #[must_use]
    pub fn jitter(mut self, percent: u32) -> Self {
        self.jitter = percent;
        self
    }

    /// The pause after the `attempt`-th attempt failed, in milliseconds; `random` decides within the jitter.
    pub(crate) fn pause(&self, attempt: u32, random: u64) -> Millis {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let times = match self.shape {
            Shape::Polynomial => u64::from(attempt).saturating_pow(self.power),
            Shape::Exponential => u64::from(self.power).saturating_pow(attempt.saturating_sub(1)),
            Shape::Fixed => 1,
        };
        // A century at most, so that no sum with it overflows.
        let pause = millis(self.base).saturating_mul(times).min(millis(self.cap)).min(100 * 366 * 86_400_000);
        let spread = pause / 100 * u64::from(self.jitter.min(100));
        let low = pause - spread;
        let pause = low.saturating_add(if spread == 0 { 0 } else { random % (2 * spread + 1) });
        Millis::try_from(pause).unwrap_or(Millis::MAX)
    }
}

/// Where a kind of job differs from its queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KindPolicy {
    pub(crate) kind: String,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) dead_retention: Option<Duration>,
}

/// Which events of its jobs a queue publishes to streams. Each commit in which something happens costs one append more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobEvents {
    /// None.
    #[default]
    Off,
    /// The ends of jobs, to `jobs.<queue>.terminal`: finished, dead, cancelled, dropped as a duplicate.
    Terminal,
    /// Those, and to `jobs.<queue>.retry` what happens before: an attempt failed and is retried, or its process died.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) paused: bool,
    /// A pause that ends by itself.
    pub(crate) paused_until: Option<Millis>,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) kinds: Vec<KindPolicy>,
    /// Stalls in a row, each alone, after which a job is dead.
    pub(crate) max_stalls: u8,
    pub(crate) session_ttl: Duration,
    pub(crate) dead_retention: Duration,
    /// How many jobs of one key run at once.
    pub(crate) key_limit: Option<u32>,
    /// With limit 1 a job that waits for its retry lets the next of its key pass.
    pub(crate) skip_waiting: bool,
    /// Jobs per second that may start from this shard, in thousandths.
    pub(crate) rate_milli: Option<u64>,
    pub(crate) unique_period: Duration,
    pub(crate) request_window: Duration,
    /// What leaves through the outbox.
    pub(crate) events: JobEvents,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            paused: false,
            paused_until: None,
            max_attempts: 25,
            backoff: Backoff::default(),
            kinds: Vec::new(),
            max_stalls: 3,
            session_ttl: Duration::from_secs(30),
            dead_retention: Duration::from_secs(14 * 86_400),
            key_limit: None,
            skip_waiting: false,
            rate_milli: None,
            unique_period: Duration::ZERO,
            request_window: Duration::from_secs(600),
            events: JobEvents::Off,
        }
    }
}

impl Policy {
    /// Whether nothing is claimed now.
    pub(crate) fn is_paused(&self, now: Millis) -> bool {
        self.paused && self.paused_until.is_none_or(|until| now < until)
    }

    fn kind(&self, kind: Option<&str>) -> Option<&KindPolicy> {
        kind.and_then(|kind| self.kinds.iter().find(|known| known.kind == kind))
    }

    /// A job's own value first, then its kind's, then the queue's.
    pub(crate) fn max_attempts(&self, own: Option<u32>, kind: Option<&str>) -> u32 {
        own.or_else(|| self.kind(kind)?.max_attempts).unwrap_or(self.max_attempts)
    }

    pub(crate) fn backoff(&self, kind: Option<&str>) -> Backoff {
        self.kind(kind).and_then(|kind| kind.backoff).unwrap_or(self.backoff)
    }

    pub(crate) fn dead_retention(&self, kind: Option<&str>) -> Duration {
        self.kind(kind).and_then(|kind| kind.dead_retention).unwrap_or(self.dead_retention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_fourth_power_up_to_six_hours_and_ten_percent() {
        let backoff = Backoff::default();
        for (attempt, seconds) in [(1, 1), (2, 16), (3, 81), (12, 20_736), (13, 21_600), (u32::MAX, 21_600)] {
            for random in [0, 1, 77, u64::MAX] {
                let pause = backoff.pause(attempt, random);
                assert!((seconds * 900..=seconds * 1100).contains(&pause), "{attempt}: {pause}");
            }
        }
    }

    #[test]
    fn no_backoff_that_can_be_written_down_overflows() {
        for shape in [Shape::Polynomial, Shape::Exponential, Shape::Fixed] {
            let backoff = Backoff { shape, base: Duration::MAX, power: u32::MAX, cap: Duration::MAX, jitter: u32::MAX };
            assert!(backoff.pause(u32::MAX, u64::MAX) > 0);
            let none = Backoff { base: Duration::ZERO, ..backoff };
            assert_eq!(none.pause(7, 3), 0);
        }
    }

    #[test]
    fn a_jobs_own_value_comes_first_then_its_kinds_then_the_queues() {
        let kinds = vec![KindPolicy { kind: "mail".into(), max_attempts: Some(3), ..KindPolicy::default() }];
        let policy = Policy { kinds, ..Policy::default() };
        assert_eq!(policy.max_attempts(Some(7), Some("mail")), 7);
        assert_eq!(policy.max_attempts(None, Some("mail")), 3);
        assert_eq!(policy.max_attempts(None, Some("other")), 25);
        assert_eq!(policy.max_attempts(None, None), 25);
        assert_eq!(policy.dead_retention(Some("mail")), policy.dead_retention);
    }
}
