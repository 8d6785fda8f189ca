//! A session of this process, as the operations on leases see it.

use super::{
    alive::Alive,
    loss::Loss,
    record::{Asked, SessionName},
};
use crate::LeaseId;
use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, Weak},
};
use tokio_util::sync::CancellationToken;

/// A session of this process.
pub(crate) trait Living: Alive {
    /// Which one it is.
    fn name(&self) -> SessionName;

    /// Why it is over, once it is.
    fn loss(&self) -> Loss;

    /// Cancelled when it is over.
    fn lost(&self) -> &CancellationToken;

    /// Takes note of a lease that is held under it.
    fn hold(&self, id: LeaseId, held: Weak<dyn Losable>);

    /// Whether a guard of this process holds this lease.
    fn holds(&self, id: LeaseId) -> bool;

    /// A lease under it is given back, or not there any more: whoever still holds it is told.
    fn let_go(&self, id: LeaseId, loss: Option<Loss>);

    /// Its process is asked to give these back: their holders are told, and they are released.
    fn meet(self: Arc<Self>, asked: &[Asked]);

    /// The requests that were met, and need not stand in its record any more.
    fn met(&self) -> BTreeSet<LeaseId>;

    /// One more write under it must be settled. False if there are so many that the session is given up instead.
    fn one_more(&self) -> bool;

    /// One of them is settled.
    fn one_less(&self);

    /// Ends it: nothing that is held under it is believed in any more.
    fn give_up(self: Arc<Self>, why: &str);
}

/// A lease that can be lost while its session goes on.
pub(crate) trait Losable: Debug + Send + Sync {
    fn lose(&self, loss: Loss);
}

/// A write under a session that must be settled: nothing expires by itself there. It does not keep the session alive.
#[derive(Debug)]
pub(super) struct Unsettled(Weak<dyn Living>);

impl Unsettled {
    /// Remembers one more, or gives the session up that has too many.
    pub(super) fn of(living: Arc<dyn Living>) -> Option<Self> {
        if living.one_more() {
            return Some(Self(Arc::downgrade(&living)));
        }
        living.one_less();
        living.give_up("too many writes under it could not be settled");
        None
    }

    /// Whether it must still be settled: once the session is over, everything under it is free.
    pub(super) fn goes_on(&self) -> bool {
        self.0.upgrade().is_some_and(|living| !living.time_left().is_zero())
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(living) = self.0.upgrade() {
            living.one_less();
        }
    }
}
