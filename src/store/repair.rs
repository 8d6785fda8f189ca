//! `.leasehold/store.json` that was removed or damaged: how that is noticed, and how it is written again.
//!
//! # What could go wrong
//! - *It is made anew with the defaults* while processes run that go by other bounds: two could believe in one lease. So a
//!   store that has records and no settings is refused, and a repair writes nothing that an operator has not confirmed.
//! - *It is there after all*, and only one read was damaged: it is read twice, over two connections.
//! - *Another process writes it meanwhile.* The repair is a compare-and-swap on what was read: one of the two fails with an
//!   error.
//! - *What is left of it is wrong.* A value of a damaged file, or of the log of changes, is a proposal, which
//!   an operator must confirm.

use super::{
    SharedSettings, SharedSettingsChange, StoreBuilder,
    open::{CONFLICTS, no_store},
    records::is_used,
};
use crate::{
    Error, ErrorKind, Result, WriteId,
    record::{Change, Patience, Plan},
    shared::{Rules, SharedSetting, declared},
    storage::{
        Backend, Name, Repair,
        cas::{self, Record, Seen, Slot},
        in_a_name,
        layout::REPAIRS,
        store_json::{StoreRecord, StoreSlot},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// How many of the last ones are looked at for a change of the settings.
const LOOKED_AT: usize = 200;

/// Where a value comes from that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundIn {
    /// The operator has named it.
    Named,
    /// What is left of the damaged file.
    File,
    /// The last change that an operator made.
    Log,
    /// Nothing is known of it: this is the value of a new store.
    Default,
}

impl fmt::Display for FoundIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "as you say",
            Self::File => "from what is left of the damaged file",
            Self::Log => "from the last change of the settings",
            Self::Default => "the default: nothing is known of it",
        })
    }
}

/// Settings that are to be written in the place of those that were lost or damaged. Nothing is, before [`write`](Self::write).
#[derive(Debug)]
#[must_use = "nothing is repaired before it is written"]
pub struct SharedSettingsRepair {
    backend: Arc<Backend>,
    rules: Arc<[&'static Rules]>,
    there: Option<Seen<Found>>,
    shared: SharedSettings,
    /// In the order of the values.
    sources: Vec<FoundIn>,
    contradicted: Vec<&'static str>,
}

impl StoreBuilder {
    /// Finds out what can be written in the place of settings that were lost or damaged: what is named in `values`, else what
    /// is left of them, else what the last change of the settings says, else the default.
    ///
    /// Fails if there is nothing to repair.
    pub async fn repair_shared_settings(self, values: &SharedSettingsChange) -> Result<SharedSettingsRepair> {
        let kinds = self.declarations();
        let rules: Arc<[&'static Rules]> = kinds.iter().map(|kind| &kind.shared).collect();
        let defaults = SharedSettings::propose(&rules, &self.named())?;
        let (backend, _) = self.connect().await?;
        let backend = Arc::new(backend);
        let there = cas::read_twice(&backend, &MendSlot(Arc::clone(&rules))).await?;
        let found = match there.as_ref().map(Seen::record) {
            Some(Found { settings: Some(_), .. }) => {
                return Err(Error::config(format!(
                    "the settings of {} can be read, so there is nothing to repair: leasehold store set changes them",
                    backend.place
                )));
            }
            Some(found) => found.remains(&rules),
            None if !is_used(&backend, &kinds).await? => return Err(no_store(&backend.place)),
            None => Remains::default(),
        };
        let log = logged(&backend, &rules).await?;
        let (mut chosen, mut sources, mut contradicted) = (Vec::new(), Vec::new(), Vec::new());
        for (name, default) in defaults.values() {
            let known = found.get(name).map(|value| (value, FoundIn::File));
            let known = known.or(log.get(name).map(|value| (value, FoundIn::Log)));
            let named = values.get(name).map(|value| (value, FoundIn::Named));
            let (value, source) = named.or(known).unwrap_or((default, FoundIn::Default));
            if known.is_some_and(|(known, _)| known != value) {
                contradicted.push(name);
            }
            chosen.push(value);
            sources.push(source);
        }
        let epoch = found.epoch.into_iter().chain(log.epoch).max().unwrap_or(1).saturating_add(1);
        let shared = SharedSettings::of_values(&rules, epoch, chosen)?;
        Ok(SharedSettingsRepair { backend, rules, there, shared, sources, contradicted })
    }
}

impl SharedSettingsRepair {
    /// What would be written. Its epoch is above every one that is known.
    pub fn shared_settings(&self) -> &SharedSettings {
        &self.shared
    }

    /// Every value by its name, and where it comes from.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, Duration, FoundIn)> {
        self.shared.values().zip(&self.sources).map(|((name, value), source)| (name, value, *source))
    }

    /// Which values differ from what is left of the old ones. Only if every process has been stopped for
    /// `max_ttl + margin` may they be written.
    pub fn contradicted(&self) -> &[&'static str] {
        &self.contradicted
    }

    /// Writes them, and who did it and why. A damaged file is kept beside that.
    ///
    /// **Every process that runs must go by these values**, or all must have been stopped for `max_ttl + margin`: two that go
    /// by different bounds could both believe in one lease.
    pub async fn write(self, reason: &str, by: &str) -> Result<SharedSettings> {
        if reason.trim().is_empty() {
            return Err(Error::invalid("settings are repaired for a reason: say which"));
        }
        let (backend, shared) = (self.backend, self.shared);
        let aside = match self.there.as_ref().map(Seen::record) {
            Some(damaged) => Some(damaged.keep(&backend).await?),
            None => None,
        };
        let aside = aside.as_ref().map(Name::as_str);
        let repair = Repair { what: "settings_repaired", namespace: None, key: None, reason, by, aside };
        repair.record_with(&backend, &Logged::of(&shared)).await?;
        let there = self.there.map(Arc::new);
        let id = |seen: Option<&Seen<Found>>| seen.map(|seen| seen.record().write_id());
        let based_on = id(there.as_deref());
        let patience = Patience { within: 3 * backend.request_timeout, conflicts: CONFLICTS };
        let mut change = Change::new(&backend, MendSlot(self.rules), there, patience);
        let changed = change.run(|there, stamp| {
            if id(there) != based_on {
                return Err(Error::config(format!(
                    "another process has written the settings of {} at the same time: look at them",
                    backend.place
                )));
            }
            let settings = Some(StoreRecord::new(stamp, shared.epoch, shared.in_file(), None));
            Ok(((), Plan::<_, ()>::Write(Found { settings, body: Bytes::new() })))
        });
        changed.await?;
        tracing::warn!(store = %backend.place, epoch = shared.epoch, reason, by, "the settings were repaired");
        Ok(shared)
    }
}

/// What can still be known of settings that are lost.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    epoch: Option<u64>,
    values: BTreeMap<&'static str, Duration>,
}

impl Remains {
    fn of(rules: &[&'static Rules], epoch: Option<u64>, millis: impl Fn(&str) -> Option<u64>) -> Self {
        let value = |setting: &'static SharedSetting| {
            millis(&setting.in_file()).map(|millis| (setting.name, Duration::from_millis(millis)))
        };
        Self { epoch, values: declared(rules).filter_map(value).collect() }
    }

    fn get(&self, name: &str) -> Option<Duration> {
        self.values.get(name).copied()
    }
}

/// What a change of the settings leaves in the log, so that they can be found again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Logged {
    epoch: u64,
    settings: Map<String, Value>,
}

impl Logged {
    pub(super) fn of(shared: &SharedSettings) -> Self {
        Self { epoch: shared.epoch, settings: shared.in_file() }
    }
}

/// The last change of the settings that the log has.
async fn logged(backend: &Backend, rules: &[&'static Rules]) -> Result<Remains> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = match backend.page(REPAIRS, after.as_ref(), 1000).await {
            Ok(page) => page,
            // Without it there are fewer proposals, and the operator is asked in any case.
            Err(error) if error.kind() == ErrorKind::Denied => return Ok(Remains::default()),
            Err(error) => return Err(error),
        };
        after = page.names.last().cloned();
        names.extend(page.names);
        if !page.more || after.is_none() {
            break;
        }
    }
    // Their names begin with the time.
    for name in names.iter().rev().take(LOOKED_AT) {
        let Some(fetched) = backend.get(name).await? else { continue };
        let Ok(Logged { epoch, settings }) = serde_json::from_slice(&fetched.body) else { continue };
        return Ok(Remains::of(rules, Some(epoch), |name| settings.get(name).and_then(Value::as_u64)));
    }
    Ok(Remains::default())
}

/// The settings as they are in the store, whether or not they can be read.
#[derive(Debug)]
struct Found {
    settings: Option<StoreRecord>,
    /// What is there, if it cannot be read.
    body: Bytes,
}

impl Found {
    /// The numbers that still stand behind their names.
    fn remains(&self, rules: &[&'static Rules]) -> Remains {
        let text = String::from_utf8_lossy(&self.body);
        let number = |name: &str| {
            let (_, rest) = text.split_once(&format!("\"{name}\""))?;
            let rest = rest.trim_start().strip_prefix(':')?.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            // One that was cut off may have had more digits.
            rest[end..].starts_with([',', '}', '\n', '\r', ' ']).then(|| rest[..end].parse::<u64>().ok()).flatten()
        };
        // A flipped bit must not use up all that are left.
        Remains::of(rules, number("epoch").filter(|epoch| *epoch < 1 << 32), number)
    }

    /// Keeps a copy beside the log.
    async fn keep(&self, backend: &Backend) -> Result<Name> {
        let id = WriteId::random(&*backend.generator);
        let name = Name::new(format!("{REPAIRS}{}-{id}-store.json", in_a_name(backend.clock.wall())));
        let kept = backend.put_fresh(&name, self.body.clone(), backend.request_timeout).await;
        kept.map_err(|error| error.while_doing("nothing was changed, as the damaged file could not be kept"))?;
        Ok(name)
    }
}

impl Record for Found {
    fn write_id(&self) -> WriteId {
        match &self.settings {
            Some(settings) => settings.write_id(),
            // It has no id of its own that could be trusted.
            None => {
                let mut id = [0; 16];
                id.copy_from_slice(&Sha256::digest(&self.body)[..16]);
                WriteId::from(id)
            }
        }
    }

    fn revision(&self) -> u64 {
        self.settings.as_ref().map_or(0, Record::revision)
    }
}

/// The place of settings that may be damaged. Reading them fails only for a later format.
#[derive(Debug, Clone)]
struct MendSlot(Arc<[&'static Rules]>);

impl Slot for MendSlot {
    type Record = Found;

    fn name(&self) -> Name {
        StoreSlot.name()
    }

    fn encode(&self, found: &Found) -> Result<Bytes> {
        match &found.settings {
            Some(settings) => StoreSlot.encode(settings),
            None => Err(Error::corrupt(format!("{} cannot be written as it is", self.name()))),
        }
    }

    fn decode(&self, body: Bytes) -> Result<Found> {
        match StoreSlot.decode(body.clone()).and_then(|record| SharedSettings::read(&self.0, &record).map(|_| record)) {
            Ok(settings) => Ok(Found { settings: Some(settings), body: Bytes::new() }),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Found { settings: None, body }),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_still_stands_in_a_damaged_file_is_found_and_what_was_cut_is_not() {
        let kinds = StoreBuilder::default().declarations();
        let rules: Vec<&'static Rules> = kinds.iter().map(|kind| &kind.shared).collect();
        let remains =
            |body: &'static str| Found { settings: None, body: Bytes::from_static(body.as_bytes()) }.remains(&rules);
        let whole = "{\n  \"crc32c\": \"0\",\n  \"epoch\": 3,\n  \"margin_ms\": 900000,\n  \"max_clock_skew_ms\": 10000,\n  \"max_ttl_ms\": 36";
        let found = remains(whole);
        let seconds = Duration::from_secs;
        assert_eq!(found.epoch, Some(3));
        assert_eq!(found.values, BTreeMap::from([("max_clock_skew", seconds(10)), ("margin", seconds(900))]));
        assert_eq!(remains(""), Remains::default());
        assert_eq!(remains("{\"epoch\":99999999999999}").epoch, None);
    }
}
