//! How decisions are checked for damage.

use super::{MarkerSlot, Shared, TxnId};
use crate::{
    ErrorKind, Result,
    fsck::{Checkable, Content, Damage, Finding, Folder},
    index,
    store::{
        Name,
        cas::{self, Slot},
    },
};
use async_trait::async_trait;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct DecisionCheck(pub(crate) Arc<Shared>);

#[async_trait]
impl Checkable for DecisionCheck {
    fn folders(&self, top: &str) -> Vec<Folder> {
        if top != ".txn-decisions" {
            return Vec::new();
        }
        let folder = |path: &str, content| Folder { label: top.to_owned(), path: path.to_owned(), content };
        vec![folder(".txn-decisions/m/", Content::Markers), folder(index::DECISION_FOLDER, Content::Entries)]
    }

    async fn check(&self, folder: &Folder, name: &Name, repair: Option<&str>) -> Result<Option<Finding>> {
        match folder.content {
            Content::Markers => self.check_marker(folder, name, repair).await,
            _ => self.check_entry(name).await,
        }
    }
}

impl DecisionCheck {
    async fn check_marker(&self, folder: &Folder, name: &Name, repair: Option<&str>) -> Result<Option<Finding>> {
        let txn = name.as_str().strip_prefix(&folder.path).and_then(|txn| txn.parse::<TxnId>().ok());
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

    async fn check_entry(&self, name: &Name) -> Result<Option<Finding>> {
        let parsed = index::parse_entry(index::DECISION_FOLDER, name);
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
