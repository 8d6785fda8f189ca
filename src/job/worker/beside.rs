//! What all workers of an opened store have in hand together: a job that runs alone runs alone in its process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

/// How many jobs workers have in hand, and whether one of them runs alone.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    jobs: AtomicUsize,
    alone: AtomicBool,
}

impl Beside {
    /// One more job is in hand, until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> InHand {
        self.jobs.fetch_add(1, SeqCst);
        InHand { beside: Arc::clone(self), alone: false }
    }

    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(SeqCst)
    }

    pub(crate) fn runs_alone(&self) -> bool {
        self.alone.load(SeqCst)
    }
}

/// A job in hand.
#[derive(Debug)]
pub(crate) struct InHand {
    beside: Arc<Beside>,
    alone: bool,
}

impl InHand {
    /// Lets nothing else be started from now on; false if something else is in hand.
    pub(crate) fn be_alone(&mut self) -> bool {
        if self.beside.jobs() > 1 || self.beside.alone.swap(true, SeqCst) {
            return false;
        }
        self.alone = true;
        true
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        if self.alone {
            self.beside.alone.store(false, SeqCst);
        }
        self.beside.jobs.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_alone_only_with_nothing_else_in_hand_and_until_it_is_answered() {
        let beside = Arc::new(Beside::default());
        let other = beside.hold();
        let mut lone = beside.hold();
        assert!(!lone.be_alone() && !beside.runs_alone());
        drop(other);
        assert!(lone.be_alone() && beside.runs_alone());
        assert!(!beside.hold().be_alone(), "one at a time");
        drop(lone);
        assert!(!beside.runs_alone());
        assert_eq!(beside.jobs(), 0);
    }
}
