//! `.leasehold/store.json` that was removed or damaged: how that is noticed, and how it is written again.
//!
//! # What could go wrong
//! - *It is made anew with the defaults* while processes run that go by other bounds: two could believe in one lease. So a
//!   store that has records and no settings is refused, and a repair writes nothing that nobody has looked at.
//! - *It is there after all*, and only one read was damaged: it is read twice, over two connections.
//! - *Somebody else writes it meanwhile.* The repair is a swap on what was judged: of two, one is told.
//! - *What is left of it is wrong.* A value of a damaged file, or of the log of changes, is a proposal. Whoever confirms
//!   it vouches for it.

use super::{
    Agreement, AgreementChange, Backend, Name, Repair, StoreBuilder,
    agreement::{NAMES, StoreRecord, StoreSlot},
    cas::{self, Cas, Outcome, Record, Seen, Slot},
    in_a_name,
};
use crate::{Error, ErrorKind, Key, Namespace, Result, WriteId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{fmt, sync::Arc, time::Duration};

/// Into how many folders that may be namespaces somebody looks.
const LOOKED_INTO: usize = 8;

/// Where the interventions of operators are written down.
const LOG: &str = ".leasehold/repairs/";

/// How many of the last ones are looked at for a change of the settings.
const LOOKED_AT: usize = 200;

/// Whether the store has records, whatever became of its settings: one listing in a place that is empty, and one for each
/// folder that may be a namespace elsewhere.
///
/// Where listing is denied this cannot be known. The store counts as new then, with a warning: refusing would keep those
/// who may not list from ever making one, and most stores do not tell them either that the settings are missing.
pub(super) async fn is_used(backend: &Backend) -> Result<bool> {
    match has_records(backend).await {
        Err(error) if error.kind() == ErrorKind::Denied => {
            tracing::warn!(
                store = %backend.place,
                %error,
                "a new store is made without knowing whether records are there, as listing is denied"
            );
            Ok(false)
        }
        found => found,
    }
}

async fn has_records(backend: &Backend) -> Result<bool> {
    let folders = backend.folders("").await?;
    if folders.iter().any(|folder| folder == ".txn-decisions") {
        return Ok(true);
    }
    let mut namespaces: Vec<&String> =
        folders.iter().filter(|folder| Namespace::new(folder.as_str()).is_ok()).collect();
    // First the one that most use: a bucket may have many folders of others.
    namespaces.sort_by_key(|name| *name != "default");
    for namespace in namespaces.into_iter().take(LOOKED_INTO) {
        let folder = format!("{namespace}/meta/");
        let page = backend.page(&folder, None, 1).await?;
        let is_record = |name: &Name| {
            let short = name.as_str().strip_prefix(&folder).and_then(|name| name.strip_suffix(".pb"));
            short.is_some_and(|short| Key::from_name(short).is_ok())
        };
        if page.names.iter().any(is_record) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is said of a store that has records and no settings.
pub(super) fn settings_lost(place: &str) -> Error {
    Error::corrupt(format!(
        "{place} has records but no .leasehold/store.json, where all processes agree on their bounds: somebody or something \
         has removed it. With other bounds two could hold one lock, so nothing is granted: restore it from a backup, or \
         write it again with the values in use: leasehold store repair"
    ))
}

/// Where a value comes from that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundIn {
    /// Whoever repairs has named it.
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
pub struct SettingsRepair {
    backend: Arc<Backend>,
    there: Option<Seen<Found>>,
    agreement: Agreement,
    sources: [FoundIn; NAMES.len()],
    contradicted: Vec<&'static str>,
}

impl StoreBuilder {
    /// Finds out what can be written in the place of settings that were lost or damaged: what is named in `values`, else what
    /// is left of them, else what the last change of the settings says, else the default.
    ///
    /// Fails if there is nothing to repair.
    pub async fn repair_settings(self, values: &AgreementChange) -> Result<SettingsRepair> {
        let defaults = Agreement::propose(&self.settings)?;
        let (backend, _) = self.connect().await?;
        let backend = Arc::new(backend);
        let there = cas::read_twice(&backend, &MendSlot).await?;
        let found = match there.as_ref().map(Seen::record) {
            Some(Found { settings: Some(_), .. }) => {
                return Err(Error::config(format!(
                    "the settings of {} can be read, so there is nothing to repair: leasehold store set changes them",
                    backend.place
                )));
            }
            Some(found) => found.remains(),
            None if !is_used(&backend).await? => return Err(super::open::no_store(&backend.place)),
            None => Remains::default(),
        };
        let log = logged(&backend).await?;
        let mut chosen = defaults.values().map(|(_, value)| value);
        let mut sources = [FoundIn::Default; NAMES.len()];
        let mut contradicted = Vec::new();
        for (at, named) in values.values().into_iter().enumerate() {
            let known = found.values[at].map(|value| (value, FoundIn::File));
            let known = known.or(log.values[at].map(|value| (value, FoundIn::Log)));
            if let Some((value, source)) = named.map(|value| (value, FoundIn::Named)).or(known) {
                (chosen[at], sources[at]) = (value, source);
            }
            if known.is_some_and(|(value, _)| value != chosen[at]) {
                contradicted.push(NAMES[at]);
            }
        }
        let epoch = found.epoch.into_iter().chain(log.epoch).max().unwrap_or(1).saturating_add(1);
        let agreement = Agreement::of_values(epoch, chosen)?;
        Ok(SettingsRepair { backend, there, agreement, sources, contradicted })
    }
}

impl SettingsRepair {
    /// What would be written. Its epoch is above every one that is known.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Every value by its name, and where it comes from.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, Duration, FoundIn)> {
        self.agreement.values().into_iter().zip(self.sources).map(|((name, value), source)| (name, value, source))
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
    pub async fn write(self, reason: &str, by: &str) -> Result<Agreement> {
        if reason.trim().is_empty() {
            return Err(Error::invalid("settings are repaired for a reason: say which"));
        }
        let (backend, agreement) = (self.backend, self.agreement);
        let aside = match self.there.as_ref().map(Seen::record) {
            Some(damaged) => Some(damaged.keep(&backend).await?),
            None => None,
        };
        let aside = aside.as_ref().map(Name::as_str);
        let repair = Repair { what: "settings_repaired", namespace: None, key: None, reason, by, aside };
        repair.record_with(&backend, &Logged::of(&agreement)).await?;
        const TRIES: u32 = 5;
        let mut cas = Cas::new(Arc::clone(&backend), MendSlot, self.there);
        for tries in 0..TRIES {
            let attempt = cas.attempt((), |_, stamp| Found {
                settings: Some(StoreRecord::new(stamp, &agreement, None)),
                body: Bytes::new(),
            });
            match attempt.await {
                Outcome::Won(..) => {
                    tracing::warn!(store = %backend.place, epoch = agreement.epoch, reason, by, "the settings were repaired");
                    return Ok(agreement);
                }
                Outcome::Lost(_) => {
                    return Err(Error::config(format!(
                        "somebody else has written the settings of {} at the same time: look at them",
                        backend.place
                    )));
                }
                Outcome::Unknown(error) if error.is_retryable() && tries + 1 < TRIES => backend.pause(tries).await,
                Outcome::Unknown(error) => return Err(error),
            }
        }
        Err(Error::unavailable(format!("the settings of {} could not be written: try again", backend.place)))
    }
}

/// What can still be known of settings that are lost.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    epoch: Option<u64>,
    values: [Option<Duration>; NAMES.len()],
}

/// What a change of the settings leaves in the log, so that they can be found again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Logged {
    epoch: u64,
    settings: Map<String, Value>,
}

impl Logged {
    pub(super) fn of(agreement: &Agreement) -> Self {
        let millis = |value: Duration| u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        let settings = agreement.values().into_iter().map(|(name, value)| (in_file(name), millis(value).into()));
        Self { epoch: agreement.epoch, settings: settings.collect() }
    }
}

fn in_file(name: &str) -> String {
    format!("{name}_ms")
}

/// The last change of the settings that the log has.
async fn logged(backend: &Backend) -> Result<Remains> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = match backend.page(LOG, after.as_ref(), 1000).await {
            Ok(page) => page,
            // Without it there is less to go by, and whoever repairs is asked all the same.
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
        let value = |name: &str| settings.get(&in_file(name)).and_then(Value::as_u64).map(Duration::from_millis);
        return Ok(Remains { epoch: Some(epoch), values: NAMES.map(value) });
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
    fn remains(&self) -> Remains {
        let text = String::from_utf8_lossy(&self.body);
        let number = |name: &str| {
            let (_, rest) = text.split_once(&format!("\"{name}\""))?;
            let rest = rest.trim_start().strip_prefix(':')?.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            // One that was cut off may have had more digits.
            rest[end..].starts_with([',', '}', '\n', '\r', ' ']).then(|| rest[..end].parse::<u64>().ok()).flatten()
        };
        let value = |name: &str| number(&in_file(name)).map(Duration::from_millis);
        // A flipped bit must not use up all that are left.
        Remains { epoch: number("epoch").filter(|epoch| *epoch < 1 << 32), values: NAMES.map(value) }
    }

    /// Keeps a copy beside the log.
    async fn keep(&self, backend: &Backend) -> Result<Name> {
        let id = WriteId::random(&*backend.generator);
        let name = Name::new(format!("{LOG}{}-{id}-store.json", in_a_name(backend.clock.wall())));
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
#[derive(Debug)]
struct MendSlot;

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
        match StoreSlot.decode(body.clone()).and_then(|settings| settings.agreement().map(|_| settings)) {
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
        let remains =
            |body: &'static str| Found { settings: None, body: Bytes::from_static(body.as_bytes()) }.remains();
        let whole = "{\n  \"crc32c\": \"0\",\n  \"epoch\": 3,\n  \"margin_ms\": 900000,\n  \"max_clock_skew_ms\": 10000,\n  \"max_ttl_ms\": 36";
        let found = remains(whole);
        let seconds = |count| Some(Duration::from_secs(count));
        assert_eq!(found.epoch, Some(3));
        assert_eq!(found.values, [seconds(10), None, seconds(900), None, None], "in the order of {NAMES:?}");
        assert_eq!(remains(""), Remains::default());
        assert_eq!(remains("{\"epoch\":99999999999999}").epoch, None);
    }
}
