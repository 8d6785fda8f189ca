//! Mutexes that stay usable after a panic: what ours protect is consistent at every point where a holder can panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also one whose holder has panicked.
pub(crate) trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_mutex_whose_holder_panicked_can_be_locked() {
        let mutex = Mutex::new(1);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                *mutex.locked() = 2;
                let _held = mutex.locked();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned());
        assert_eq!(*mutex.locked(), 2);
    }
}
