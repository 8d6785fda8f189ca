//! What is in `store.json`, and how an operator changes the shared settings in it.

use super::{SharedSettings, SharedSettingsChange, repair::Logged};
use crate::{
    Error, Result,
    clock::Timestamp,
    shared::Rules,
    storage::{
        Backend, Repair,
        cas::{self, Cas, Outcome, Record as _},
        store_json::{Passed, StoreRecord, StoreSlot},
    },
    ttl::in_words,
};
use std::{sync::Arc, time::Duration};

/// What is in `store.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The version of its format.
    pub format: u32,
    /// How often it was written.
    pub revision: u64,
    /// What all processes have alike.
    pub shared_settings: SharedSettings,
    /// When the store was last found to be safe, by its own clock.
    pub probed_at: Option<Timestamp>,
    /// By which version of this library.
    pub probed_by: Option<String>,
    /// How far apart the stamps of the store's own clocks were found: leases end later by as much.
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

/// Changes the shared settings, by a swap on what was read: of two operators who change it at once, one is told.
pub(super) async fn change(
    backend: &Arc<Backend>,
    rules: &Arc<[&'static Rules]>,
    change: &SharedSettingsChange,
    by: &str,
) -> Result<SharedSettings> {
    const TRIES: u32 = 5;
    let gone = || Error::config(format!("there are no settings in {}: open the store first", backend.place));
    let mut known = cas::read(backend, &StoreSlot).await?.ok_or_else(gone)?;
    let old = SharedSettings::read(rules, known.record())?;
    let new = old.after(change)?;
    let said = |shared: &SharedSettings| {
        let values: Vec<String> = shared.values().map(|(name, value)| format!("{name} {}", in_words(value))).collect();
        values.join(", ")
    };
    let what = format!("{} instead of {}", said(&new), said(&old));
    let at = Repair { what: "settings_changed", namespace: None, key: None, reason: &what, by, aside: None };
    at.record_with(backend, &Logged::of(&new)).await?;
    for _ in 0..TRIES {
        let mut cas = Cas::new(Arc::clone(backend), StoreSlot, Some(known));
        let mut tries = 0;
        let there = loop {
            let outcome = cas.attempt((), |base, stamp| match base {
                Some(base) => base.changed(stamp, new.epoch, new.in_file()),
                None => StoreRecord::new(stamp, new.epoch, new.in_file(), None),
            });
            match outcome.await {
                Outcome::Won(..) => {
                    tracing::warn!(store = %backend.place, epoch = new.epoch, by, "the settings were changed");
                    return Ok(new);
                }
                Outcome::Lost(there) => break there.ok_or_else(gone)?,
                Outcome::Unknown(error) if error.is_retryable() && tries < TRIES => {
                    backend.pause(tries).await;
                    tries += 1;
                }
                Outcome::Unknown(error) => return Err(error),
            }
        };
        // Most likely another process has noted a probe. A change of the settings comes from another operator.
        if SharedSettings::read(rules, there.record())? != old {
            return Err(Error::config(
                "another process has changed the settings at the same time: look at them, and change them again if needed",
            ));
        }
        known = there;
    }
    Err(Error::unavailable(format!("the settings in {} change too fast: try again", backend.place)))
}
