//! How the sweeper settles decisions.

use super::{Ages, MarkerSlot, Shared, TxnId};
use crate::{
    Bucket, Error, Result, index,
    store::cas::{self, Slot},
    sweep::{Entry, Shelf, Sweepable, Verdict},
};
use async_trait::async_trait;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct DecisionSweep(pub(crate) Arc<Shared>);

#[async_trait]
impl Sweepable for DecisionSweep {
    fn kind(&self) -> &'static str {
        "decision"
    }

    fn shelves(&self, folders: &[String]) -> Vec<Shelf> {
        let ours = |folder: &&String| index::DECISION_FOLDER.split('/').next() == Some(folder);
        let shelf = |_: &String| Shelf { label: String::new(), folder: index::DECISION_FOLDER.to_owned() };
        folders.iter().filter(ours).map(shelf).collect()
    }

    async fn settle(&self, entry: &Entry<'_>, _dry_run: bool) -> Result<Verdict> {
        let shared = &self.0;
        let txn: TxnId =
            entry.name.parse().map_err(|_| Error::corrupt(format!("{:?} is no transaction", entry.name)))?;
        let slot = MarkerSlot(txn);
        let Some(seen) = cas::read(&shared.backend, &slot).await? else { return Ok(Verdict::Stale) };
        let ages = Ages::of(txn, &shared.agreement);
        // A void marker is nobody's answer, and nobody may write another one.
        let clocks = shared.backend.clocks();
        if ages.is_void(seen.modified()) && ages.are_over(&clocks) {
            return Ok(Verdict::Over(slot.name()));
        }
        // By its own expiry, and never by its entry's: another decider may have filed it under this hour and lost.
        let expires = seen.record().expires();
        if Bucket::of(expires)? > entry.bucket {
            return Ok(Verdict::Stale);
        }
        if clocks.are_past(expires) && ages.are_over(&clocks) {
            return Ok(Verdict::Over(slot.name()));
        }
        Ok(Verdict::Kept)
    }
}
