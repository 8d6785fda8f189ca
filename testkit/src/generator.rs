//! Randomness that can be replayed from a seed.

use leasehold::Generator;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::{Mutex, PoisonError};

/// A pseudo-random generator: equal seeds give equal bytes. Never for production: two processes with one seed would share
/// their ids.
#[derive(Debug)]
pub struct SeededGenerator(Mutex<StdRng>);

impl SeededGenerator {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Generator for SeededGenerator {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }
}

/// So many random bytes.
pub(super) fn bytes<const N: usize>(generator: &dyn Generator) -> [u8; N] {
    let mut bytes = [0; N];
    generator.fill(&mut bytes);
    bytes
}
