//! How decisions are checked for damage.

use super::{DecisionKind, MarkerSlot, TxnId, layout};
use crate::{
    ErrorKind, Result, index,
    kind::{Damage, Finding, Object},
    storage::{
        Name,
        cas::{self, Slot},
    },
};

impl DecisionKind {
    pub(super) async fn check_marker(&self, object: &Object<'_>, repair: Option<&str>) -> Result<Option<Finding>> {
        let name = object.name;
        let txn = name.as_str().strip_prefix(layout::MARKERS).and_then(|txn| txn.parse::<TxnId>().ok());
        let Some(txn) = txn else { return Ok(Some(Finding::unknown(name))) };
        let marker = match cas::read(&self.0.backend, &MarkerSlot(txn)).await {
            Ok(Some(seen)) => seen.record().clone(),
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(Some(Finding::new(Damage::Unreadable, name, error.to_string()).advise(
                    "ask those who took part what was decided; whatever took its place could contradict it, so it is left \
                     where it is",
                )));
            }
            Err(error) if error.kind() == ErrorKind::Config => {
                return Ok(Some(Finding::new(Damage::LaterFormat, name, error.to_string()).harmless()));
            }
            Err(error) => return Err(error),
        };
        let (entry, body) = MarkerSlot(txn).entry(marker.expires())?;
        if self.0.backend.get(&entry).await?.is_some() || self.0.backend.get(&MarkerSlot(txn).name()).await?.is_none() {
            return Ok(None);
        }
        let missing = Finding::new(Damage::MissingEntry, &entry, format!("the decision on {txn} has no entry"));
        if repair.is_none() {
            return Ok(Some(missing.advise("leasehold fsck --repair writes it")));
        }
        self.0.backend.file(&entry, body).await?;
        Ok(Some(missing.repaired("the entry was written")))
    }

    pub(super) async fn check_entry(&self, name: &Name) -> Result<Option<Finding>> {
        let parsed = index::parse_entry(layout::INDEX, name);
        let Some(txn) = parsed.and_then(|(_, txn)| txn.parse::<TxnId>().ok()) else {
            return Ok(Some(Finding::unknown(name)));
        };
        if self.0.backend.get(&MarkerSlot(txn).name()).await?.is_some() {
            return Ok(None);
        }
        // As it should be after a decision was forgotten, or a process died while it decided.
        let missing = Finding::new(Damage::MissingRecord, name, "there is no decision for this entry");
        Ok(Some(missing.advise("a sweep deletes it after its hour").harmless()))
    }
}
