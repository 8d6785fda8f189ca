//! Randomness, as a component: ids and jitter come from one [`Generator`] given to the builder.

use std::{fmt::Debug, time::Duration};

/// Where random bytes come from.
///
/// # Contract
/// In production no two calls, in whatever process or cloned machine, may return the same sequence: the ids made from
/// it are what tells one writer from another. Seeded generators are for tests.
pub trait Generator: Debug + Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's generator; the default. Keeps no state, so that a cloned machine does not repeat ids.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct OsGenerator;

impl OsGenerator {
    /// The operating system's generator.
    pub fn new() -> Self {
        Self
    }
}

impl Generator for OsGenerator {
    #[allow(clippy::disallowed_methods, reason = "this is the real generator that everything else is sent to")]
    #[allow(clippy::expect_used, reason = "with no randomness every promise is void: stop instead of going on")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system's random generator must work");
    }
}

pub(crate) trait GeneratorExt {
    fn bytes<const N: usize>(&self) -> [u8; N];
    fn between(&self, low: Duration, high: Duration) -> Duration;
}

impl GeneratorExt for dyn Generator {
    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    /// Evenly spread between `low` and `high`.
    fn between(&self, low: Duration, high: Duration) -> Duration {
        let spread = high.saturating_sub(low);
        let share = f64::from(u32::from_le_bytes(self.bytes())) / f64::from(u32::MAX);
        low + spread.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_generator_does_not_repeat_itself() {
        let os: &dyn Generator = &OsGenerator::new();
        assert_ne!(os.bytes::<16>(), os.bytes::<16>());
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        let os: &dyn Generator = &OsGenerator::new();
        let (low, high) = (Duration::from_millis(10), Duration::from_millis(20));
        for _ in 0..1000 {
            let jitter = os.between(low, high);
            assert!((low..=high).contains(&jitter), "{jitter:?}");
        }
        assert_eq!(os.between(high, low), high);
    }
}
