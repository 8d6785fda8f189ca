//! Decisions as a kind of record: what the sweeper, fsck and `store.json` know of them.

use super::{Ages, MarkerSlot, Shared, TxnId, layout};
use crate::{
    Error, Hour, Result,
    kind::{Content, Context, Declaration, Entry, Finding, Kind, Object, Rules, SharedSetting, Stop, Swept, Verdict},
    shared::SharedSettings,
    storage::cas::{self, Slot},
    ttl::in_words,
};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};

/// For how long after it began a transaction may be decided. Shared by all processes.
pub const MAX_TXN_AGE: SharedSetting = SharedSetting {
    required: true,
    ..SharedSetting::new(
        "max_txn_age",
        Duration::from_secs(3600),
        "For how long after it began a transaction may be decided",
    )
};

/// For how long a decision can be read after it was made. Shared by all processes.
pub const MARKER_RETENTION: SharedSetting = SharedSetting {
    required: true,
    ..SharedSetting::new(
        "marker_retention",
        Duration::from_secs(24 * 3600),
        "For how long a decision can be read after it was made",
    )
};

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "decision",
    folders: layout::folders,
    is_record: |below| below.parse::<TxnId>().is_ok(),
    shared: Rules { settings: &[MAX_TXN_AGE, MARKER_RETENTION], may_change, stop },
};

/// A decision that was made late would be judged void by shorter ages, and be deleted long before its time.
fn may_change(old: &SharedSettings, new: &SharedSettings) -> Result<()> {
    let (ends, ended) = (new.of(&MAX_TXN_AGE) + new.margin, old.of(&MAX_TXN_AGE) + old.margin);
    if ends < ended {
        return Err(Error::config(format!(
            "max_txn_age and margin would be {} together: they may become longer than {} but not shorter, or decisions \
             that stand would count as made too late",
            in_words(ends),
            in_words(ended)
        )));
    }
    Ok(())
}

/// With another age for transactions, until none of those that began before can be decided any more: one may have been
/// decided and forgotten.
fn stop(old: &SharedSettings, new: &SharedSettings) -> Stop {
    let age = |shared: &SharedSettings| (shared.of(&MAX_TXN_AGE), shared.margin);
    match age(old) == age(new) {
        true => Stop::default(),
        false => Stop { time: new.of(&MAX_TXN_AGE) + new.margin, why: "the new max_txn_age + margin" },
    }
}

#[derive(Debug)]
pub(crate) struct DecisionKind(pub(crate) Arc<Shared>);

#[async_trait]
impl Kind for DecisionKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn settle(&self, entry: &Entry<'_>, cx: &Context) -> Result<Verdict> {
        let shared = &self.0;
        let txn: TxnId =
            entry.name.parse().map_err(|_| Error::corrupt(format!("{:?} is no transaction", entry.name)))?;
        let slot = MarkerSlot(txn);
        let Some(seen) = cas::read(&shared.backend, &slot).await? else { return Ok(Verdict::Stale) };
        let ages = Ages::of(txn, &shared.bounds);
        // A void marker is nobody's answer, and nobody may write another one.
        let clocks = cx.clocks();
        if ages.is_void(seen.modified()) && ages.are_over(&clocks) {
            return Ok(Verdict::DeleteFirst(vec![slot.name()]));
        }
        // By its own expiry, and never by its entry's: another decider may have filed it under this hour and lost.
        let expires = seen.record().expires();
        if Hour::of(expires)? > entry.hour {
            return Ok(Verdict::Stale);
        }
        if clocks.are_past(expires) && ages.are_over(&clocks) {
            // Workers may be away for longer than it is kept: what they find must be decided.
            if shared.is_waited_for(seen.record()).await? {
                return Ok(Verdict::Kept);
            }
            return Ok(Verdict::DeleteFirst(vec![slot.name()]));
        }
        Ok(Verdict::Kept)
    }

    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
        match object.folder.content {
            Content::Records => self.check_marker(object, cx.repairs()).await,
            _ => self.check_entry(object.name).await,
        }
    }

    fn swept(&self, swept: &Swept) {
        self.0.counters.deleted_by_sweeper(swept.deleted);
    }
}
