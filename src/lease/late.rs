//! A grant that landed too late to be of use. Its writer was suspended between the index entry and the record, say, and
//! the sweeper has deleted the entry of that hour meanwhile: no sweep would find the lease any more.

use super::{
    cell::Cell,
    engine::{Change, Engine, Now, Plan},
    flight::{Flight, Intent},
    record::Lease,
};
use crate::{LeaseId, Result, WriteId};
use std::sync::Arc;

impl Engine {
    /// Whether a lease that this process was just granted is over already, as far as its own clocks and the store's say.
    pub(super) fn is_late(&self, lease: &Lease, granted: Now) -> bool {
        let now = self.now();
        now.moment >= granted.moment.plus(lease.ttl.as_duration())
            || now.wall >= lease.expires
            || self.backend.store_interval().is_some_and(|store| store.lower >= lease.expires)
    }

    /// Frees a lease of this process that came too late, in a task of its own. One that was asked for again by its request
    /// id meanwhile, from wherever, has another beat: somebody believes in it, and it is left alone.
    pub(super) fn free_late(self: &Arc<Self>, cell: &Arc<Cell>, id: LeaseId, beat: WriteId) {
        let (engine, freed) = (Arc::clone(self), Arc::clone(cell));
        self.retry_soon(cell, move || {
            let (engine, freed) = (Arc::clone(&engine), Arc::clone(&freed));
            async move { engine.free_unchanged(&freed, id, beat).await }
        });
    }

    async fn free_unchanged(self: &Arc<Self>, cell: &Arc<Cell>, id: LeaseId, beat: WriteId) -> Result<()> {
        let core = self.hold_first(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        self.read(cell, flight.core()).await?;
        self.swap(&mut flight, None, |core, _| {
            let record = core.record();
            match record.and_then(|record| record.lease.as_ref()) {
                Some(lease) if (lease.id, lease.beat) == (id, beat) => Ok(Plan::write(Change::free(record))),
                _ => Ok(Plan::Stop(())),
            }
        })
        .await?;
        cell.queue.wake();
        Ok(())
    }
}
