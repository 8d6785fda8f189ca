//! What another kind of record needs that is held for a time as a lease is: one process id, one set of bounds, one way to
//! reckon an expiry. Nothing of it knows a key.

use super::{
    ended::Bounds,
    engine::Engine,
    plan::{Facts, Now, View},
    record::Boot,
    settings::{LeaseSettings, Shared},
    types::Request,
};
use crate::{
    BootId, ProcessId, Result, Ttl,
    clock::{Moment, Timestamp},
    storage::Backend,
    sweep::Activity,
};
use std::sync::Arc;

/// The terms on which anything is held in an opened store.
#[derive(Debug, Clone)]
pub(crate) struct Terms(Arc<Engine>);

impl Terms {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self(Arc::clone(engine))
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.0.backend
    }

    pub(crate) fn shared(&self) -> Shared {
        let rules = &self.0.rules;
        Shared {
            epoch: rules.epoch,
            max_clock_skew: rules.max_clock_skew,
            max_ttl: rules.max_ttl,
            record_format: self.0.record_format(),
        }
    }

    pub(crate) fn settings(&self) -> &LeaseSettings {
        &self.0.settings
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.0.activity
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.runtime
    }

    /// What dropped operations have left behind is waited for when the store is drained.
    pub(crate) fn leftovers(&self) -> &tokio_util::task::TaskTracker {
        &self.0.leftovers
    }

    /// The one that the process announces in a local directory.
    pub(crate) fn process(&self) -> ProcessId {
        self.0.rules.process
    }

    pub(crate) fn boot(&self) -> Option<BootId> {
        self.0.rules.boot
    }

    /// What the rules of leases go by at these readings of the two clocks, for a record that they know nothing of.
    fn at(&self, moment: Moment, wall: Timestamp) -> View<'_> {
        self.0.view(Facts::read(None, None, None), Now { moment, wall })
    }

    pub(crate) fn boot_at(&self, moment: Moment) -> Option<Boot> {
        self.at(moment, Timestamp::default()).boot()
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.0.bounds()
    }

    /// The monotonic clock first, so that a stall in between shortens belief.
    pub(crate) fn now(&self) -> (Moment, Timestamp) {
        let Now { moment, wall } = self.0.now();
        (moment, wall)
    }

    pub(crate) fn announce(&self) -> Result<()> {
        self.0.backend.announce(self.0.rules.process)
    }

    pub(crate) async fn trust_clock(&self) -> Result<()> {
        self.0.trust_clock().await
    }

    pub(crate) fn believe(&self, wall: Timestamp) -> Result<()> {
        self.0.check_clock(wall)
    }

    pub(crate) fn expiry(&self, moment: Moment, wall: Timestamp, ttl: Ttl) -> Result<Timestamp> {
        self.at(moment, wall).expiry(ttl)
    }

    pub(crate) fn store_upper(&self, wall: Timestamp) -> Timestamp {
        self.at(Moment::default(), wall).store_upper()
    }

    /// The time to live that is asked for, if this store allows it.
    pub(crate) fn ttl_of(&self, request: &Request) -> Result<Ttl> {
        self.0.limits.allow_request(request)?;
        self.0.limits.clamp(request.ttl_or_default()?)
    }

    /// A time to live that replaces the one that was asked for, if this store allows it.
    pub(crate) fn allow(&self, ttl: Ttl) -> Result<Ttl> {
        self.0.limits.allow(ttl)?;
        Ok(ttl)
    }
}
