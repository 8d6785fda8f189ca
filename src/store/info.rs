//! What is in `store.json`, and how an operator changes the shared settings in it.

use super::{SharedSettings, SharedSettingsChange, open::CONFLICTS, repair::Logged};
use crate::{
    Error, Result,
    clock::Timestamp,
    duration::millis,
    record::{Change, Changed, Patience, Plan},
    session::RECORD_FORMAT,
    shared::Rules,
    storage::{
        Backend, Repair,
        cas::{self, Record as _},
        store_json::{FIRST_FORMAT, Passed, StoreRecord, StoreSlot},
    },
    ttl::in_words,
};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// What is in `store.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The version of its format.
    pub format: u32,
    /// How often it was written.
    pub revision: u64,
    /// What all processes have alike.
    pub shared_settings: SharedSettings,
    /// When the store was last found to be safe, by its own clock.
    #[serde(rename = "probed_ms")]
    pub probed_at: Option<Timestamp>,
    /// By which version of this library.
    pub probed_by: Option<String>,
    /// How far apart the stamps of the store's own clocks were found: leases end later by as much.
    #[serde(rename = "spread_ms", serialize_with = "millis::serialize")]
    pub spread: Duration,
}

impl StoreInfo {
    pub(super) fn of(record: &StoreRecord, rules: &Arc<[&'static Rules]>) -> Result<Self> {
        Ok(Self {
            format: record.format(),
            revision: record.revision(),
            shared_settings: SharedSettings::read(rules, record)?,
            probed_at: record.probe.as_ref().map(Passed::at),
            probed_by: record.probe.as_ref().map(|probe| probe.version().to_owned()),
            spread: record.spread(None),
        })
    }
}

/// The highest record format that may be written, as it stands now.
pub(super) async fn record_format(backend: &Arc<Backend>) -> Result<u32> {
    let gone = || Error::config(format!("there are no settings in {}: open the store first", backend.place));
    cas::read(backend, &StoreSlot).await?.ok_or_else(gone)?.record().record_format()
}

/// Allows a higher record format. The epoch stays: what is allowed changes nothing about what is there.
pub(super) async fn allow_record_format(backend: &Arc<Backend>, format: u32, by: &str) -> Result<()> {
    if !(FIRST_FORMAT..=RECORD_FORMAT).contains(&format) {
        return Err(Error::invalid(format!(
            "record format {format} is none that this version writes: {FIRST_FORMAT} to {RECORD_FORMAT}"
        )));
    }
    let gone = || Error::config(format!("there are no settings in {}: open the store first", backend.place));
    let known = cas::read(backend, &StoreSlot).await?.ok_or_else(gone)?;
    let allowed = known.record().record_format()?;
    if allowed == format {
        return Ok(());
    }
    if allowed > format {
        return Err(Error::invalid(format!(
            "the store allows record format {allowed} already, and there may be records of it: it cannot be lowered to {format}"
        )));
    }
    let what = format!("record_format {format} instead of {allowed}");
    let log = Repair { what: "record_format_allowed", namespace: None, key: None, reason: &what, by, aside: None };
    log.record(backend).await?;
    let patience = Patience { within: 3 * backend.request_timeout, conflicts: CONFLICTS };
    let mut change = Change::new(backend, StoreSlot, Some(Arc::new(known)), patience);
    let changed = change.run(|there, stamp| {
        let there = there.ok_or_else(gone)?.record();
        let plan = match there.record_format()? >= format {
            true => Plan::Stop(()),
            false => Plan::Write(there.allowing(stamp, format)),
        };
        Ok(((), plan))
    });
    match changed.await? {
        Changed::Won(..) | Changed::Stopped(()) => {}
    }
    tracing::warn!(store = %backend.place, format, by, "a higher record format was allowed");
    Ok(())
}

/// Changes the shared settings, by a swap on what was read: of two operators who change it at once, one is told.
pub(super) async fn change(
    backend: &Arc<Backend>,
    rules: &Arc<[&'static Rules]>,
    change: &SharedSettingsChange,
    by: &str,
) -> Result<SharedSettings> {
    let gone = || Error::config(format!("there are no settings in {}: open the store first", backend.place));
    let known = cas::read(backend, &StoreSlot).await?.ok_or_else(gone)?;
    let old = SharedSettings::read(rules, known.record())?;
    let new = old.after(change)?;
    let said = |shared: &SharedSettings| {
        let values: Vec<String> = shared.values().map(|(name, value)| format!("{name} {}", in_words(value))).collect();
        values.join(", ")
    };
    let what = format!("{} instead of {}", said(&new), said(&old));
    let at = Repair { what: "settings_changed", namespace: None, key: None, reason: &what, by, aside: None };
    at.record_with(backend, &Logged::of(&new)).await?;
    let patience = Patience { within: 3 * backend.request_timeout, conflicts: CONFLICTS };
    let changed = Change::new(backend, StoreSlot, Some(Arc::new(known)), patience).run(|there, stamp| {
        let there = there.ok_or_else(gone)?.record();
        // A conflict is most likely the note of a probe. Another change is another operator's, who must be talked to.
        if SharedSettings::read(rules, there)? != old {
            return Err(Error::config(
                "another process has changed the settings at the same time: look at them, and change them again if needed",
            ));
        }
        Ok(((), Plan::<_, SharedSettings>::Write(there.changed(stamp, new.epoch, new.in_file()))))
    })
    .await?;
    match changed {
        Changed::Won(..) => {
            tracing::warn!(store = %backend.place, epoch = new.epoch, by, "the settings were changed");
            Ok(new)
        }
        Changed::Stopped(there) => Ok(there),
    }
}
