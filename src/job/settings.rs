//! `queue.json`: what a queue is set to, for every process that uses it.

use super::{
    layout::Layout,
    ledger::{Backoff, JobEvents, KindPolicy, Policy},
};
use crate::{
    Error, Result, WriteId,
    clock::Timestamp,
    duration::{optional, text},
    storage::{
        Name,
        cas::{Record, Slot, Stamp},
        seal::{seal, unseal},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The format that this version writes; it reads no later one.
const FORMAT: u32 = 1;
/// The shard is 8 bits of a job's id.
const MOST_SHARDS: u16 = 256;
/// A session must fit two renewals and the spread of the store's stamps.
const SHORTEST_SESSION: Duration = Duration::from_secs(10);
/// They stand in every ledger.
const MOST_KINDS: usize = 128;
/// No segment may be longer than an object may; what is beside the parts needs room too.
const MOST_SEGMENT_BYTES: u64 = 12 << 20;

/// Where a kind of job differs from its queue. What is not set is as the queue has it; what a job was enqueued with comes
/// before both.
///
/// ```
/// # use leasehold::job::{Backoff, KindSettings, QueueSettings};
/// # use std::time::Duration;
/// let mut settings = QueueSettings::default();
/// let mail = KindSettings { max_attempts: Some(3), backoff: Some(Backoff::fixed(Duration::from_secs(60))), ..KindSettings::default() };
/// settings.kinds.insert("mail".to_owned(), mail);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KindSettings {
    /// Attempts that may fail before a job is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long a job waits after it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// How long one attempt may take.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional")]
    pub timeout: Option<Duration>,
    /// From when on a running job is reported as stuck.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional")]
    pub stuck_after: Option<Duration>,
    /// How long dead letters are kept.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional")]
    pub dead_retention: Option<Duration>,
}

/// What a queue is set to. Stands in `queue.json` and holds for every process: what decides about a job's next run is
/// copied into each shard's ledger, so no process goes by older values than another.
///
/// ```
/// let settings = leasehold::job::QueueSettings::default();
/// assert_eq!((settings.max_attempts, settings.max_stalls), (25, 3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// Into how many shards new jobs without a key go. More shards allow more commits a second; between shards there is no
    /// order.
    pub shards: u16,
    /// Nothing is handed out.
    pub paused: bool,
    /// When a pause ends by itself, by the store's clock; none for one that lasts until it is taken back.
    #[serde(rename = "paused_until_ms")]
    pub paused_until: Option<Timestamp>,
    /// Attempts that may fail before a job is dead.
    pub max_attempts: u32,
    /// How often in a row a job may be alone with a process that dies, before it is dead.
    pub max_stalls: u8,
    /// How long a job waits after it has failed.
    pub backoff: Backoff,
    /// Where kinds of jobs differ from the queue.
    pub kinds: BTreeMap<String, KindSettings>,
    /// How long one attempt may take; none for as long as it likes. Enforced by the worker that runs it.
    #[serde(with = "optional")]
    pub timeout: Option<Duration>,
    /// How long a worker waits for a handler that was told that its time is over, before it gives the job up.
    #[serde(with = "text")]
    pub timeout_grace: Duration,
    /// From when on a running job is reported as stuck. It only tells.
    #[serde(with = "text")]
    pub stuck_after: Duration,
    /// How long dead letters are kept.
    #[serde(with = "text")]
    pub dead_retention: Duration,
    /// Dead letters that are kept at the most: above it the oldest go.
    pub dead_jobs: u64,
    /// Bytes of dead letters that are kept at the most: above it the oldest go.
    pub dead_bytes: u64,
    /// Jobs in one segment at the most.
    pub segment_jobs: u16,
    /// About so many bytes go into one segment; a job that is larger has one of its own.
    pub segment_bytes: u64,
    /// Jobs that may wait or run before the queue is full; none for any number. What is due later and dead letters do not
    /// count.
    pub capacity: Option<u64>,
    /// How often a process that enqueues counts what is there, if the queue has a capacity.
    #[serde(with = "text")]
    pub capacity_check: Duration,
    /// The queue of the same namespace that takes the jobs when this one is full.
    pub overflow: Option<String>,
    /// How many jobs of one key may run at once.
    pub key_limit: Option<u32>,
    /// With a limit of 1, whether a job that waits for its retry lets the next one of its key pass.
    pub skip_waiting: bool,
    /// Jobs that may start in a second, over all shards.
    pub rate: Option<u32>,
    /// For how long after its job has ended a unique key stays taken.
    #[serde(with = "text")]
    pub unique_period: Duration,
    /// For how long after its jobs have ended a request id is still recognised.
    #[serde(with = "text")]
    pub request_window: Duration,
    /// Which events of its jobs are published to streams.
    pub events: JobEvents,
    /// How long a process that has jobs in hand may be silent before others take them. At least 10 s.
    #[serde(with = "text")]
    pub session_ttl: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            shards: 2,
            paused: false,
            paused_until: None,
            max_attempts: policy.max_attempts,
            max_stalls: policy.max_stalls,
            backoff: policy.backoff,
            kinds: BTreeMap::new(),
            timeout: None,
            timeout_grace: Duration::from_secs(10),
            stuck_after: Duration::from_secs(300),
            dead_retention: policy.dead_retention,
            dead_jobs: 100_000,
            dead_bytes: 1 << 30,
            segment_jobs: 2000,
            segment_bytes: 4 << 20,
            capacity: None,
            capacity_check: Duration::from_secs(5),
            overflow: None,
            key_limit: None,
            skip_waiting: false,
            rate: None,
            unique_period: policy.unique_period,
            request_window: policy.request_window,
            events: policy.events,
            session_ttl: policy.session_ttl,
        }
    }
}

impl QueueSettings {
    /// How long one attempt of this kind may take.
    pub fn timeout_of(&self, kind: Option<&str>) -> Option<Duration> {
        kind.and_then(|kind| self.kinds.get(kind)?.timeout).or(self.timeout)
    }

    /// From when on a running job of this kind is reported as stuck.
    pub fn stuck_after_of(&self, kind: Option<&str>) -> Duration {
        kind.and_then(|kind| self.kinds.get(kind)?.stuck_after).unwrap_or(self.stuck_after)
    }

    /// What no queue can work with.
    pub(crate) fn validate(&self) -> Result<()> {
        let own = || self.kinds.values();
        let no_attempts = self.max_attempts == 0 || own().any(|kind| kind.max_attempts == Some(0));
        let wrong = if self.shards == 0 || self.shards > MOST_SHARDS {
            format!("shards is {}: 1 to {MOST_SHARDS} are allowed", self.shards)
        } else if no_attempts || self.max_stalls == 0 {
            "max_attempts and max_stalls are at least 1".to_owned()
        } else if self.session_ttl < SHORTEST_SESSION {
            format!("session_ttl is {:?}: at least 10 s are needed", self.session_ttl)
        } else if self.key_limit == Some(0) || self.rate == Some(0) || self.capacity == Some(0) {
            "a limit is at least 1: pause the queue to stop it".to_owned()
        } else if self.kinds.len() > MOST_KINDS {
            format!("{} kinds have values of their own: at most {MOST_KINDS} may", self.kinds.len())
        } else if self.timeout.is_some_and(|timeout| timeout.is_zero())
            || own().any(|kind| kind.timeout.is_some_and(|timeout| timeout.is_zero()))
        {
            "a timeout of 0 lets nothing run: leave it out for none".to_owned()
        } else if !(1..=16_384).contains(&self.segment_jobs) {
            format!("segment_jobs is {}: 1 to 16384 are allowed", self.segment_jobs)
        } else if !(1..=MOST_SEGMENT_BYTES).contains(&self.segment_bytes) {
            format!("segment_bytes is {}: 1 to {MOST_SEGMENT_BYTES} are allowed", self.segment_bytes)
        } else if self.overflow.is_some() && self.capacity.is_none() {
            "overflow is of use only with a capacity".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("these settings of a queue cannot be used: {wrong}")))
    }

    pub(crate) fn policy(&self) -> Policy {
        let kinds = self.kinds.iter().map(|(kind, own)| KindPolicy {
            kind: kind.clone(),
            max_attempts: own.max_attempts,
            backoff: own.backoff,
            dead_retention: own.dead_retention,
        });
        Policy {
            paused: self.paused,
            paused_until: self.paused_until.map(Timestamp::as_millis),
            max_attempts: self.max_attempts,
            backoff: self.backoff,
            kinds: kinds.collect(),
            max_stalls: self.max_stalls,
            session_ttl: self.session_ttl,
            dead_retention: self.dead_retention,
            key_limit: self.key_limit,
            skip_waiting: self.skip_waiting,
            // Each shard has its share, lent by no one.
            rate_milli: self.rate.map(|rate| (u64::from(rate) * 1000 / u64::from(self.shards)).max(1)),
            unique_period: self.unique_period,
            request_window: self.request_window,
            events: self.events,
        }
    }
}

/// `queue.json` itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QueueRecord {
    format: u32,
    write_id: WriteId,
    revision: u64,
    pub(crate) queue: String,
    /// As many shards as there ever were: a dropped one takes no new jobs, and is never forgotten.
    pub(crate) shards_ever: u16,
    /// Over so many shards everything is placed that goes by a hash. Never changed.
    pub(crate) key_shards: u16,
    pub(crate) settings: QueueSettings,
    /// Settings that a later version has added stay.
    #[serde(skip)]
    later: Map<String, Value>,
    /// Whatever else a later version has added stays.
    #[serde(flatten)]
    more: Map<String, Value>,
}

/// The name of the settings in the record.
const SETTINGS: &str = "settings";

/// The settings that this version does not know.
fn later(settings: &Map<String, Value>) -> Result<Map<String, Value>, serde_json::Error> {
    let known: Map<String, Value> = serde_json::from_value(serde_json::to_value(QueueSettings::default())?)?;
    Ok(settings.iter().filter(|(name, _)| !known.contains_key(*name)).map(|(n, v)| (n.clone(), v.clone())).collect())
}

fn read(body: &[u8]) -> Result<QueueRecord, serde_json::Error> {
    let fields: Map<String, Value> = unseal(body)?;
    let later = fields.get(SETTINGS).and_then(Value::as_object).map(later).transpose()?.unwrap_or_default();
    let record: QueueRecord = serde_json::from_value(Value::Object(fields))?;
    Ok(QueueRecord { later, ..record })
}

fn write(record: &QueueRecord) -> Result<Vec<u8>, serde_json::Error> {
    let mut fields: Map<String, Value> = serde_json::from_value(serde_json::to_value(record)?)?;
    if let Some(settings) = fields.get_mut(SETTINGS).and_then(Value::as_object_mut) {
        settings.extend(record.later.clone());
    }
    seal(&fields)
}

impl QueueRecord {
    pub(crate) fn new(stamp: Stamp, queue: &str, settings: QueueSettings) -> Self {
        let Stamp { write_id, revision } = stamp;
        let (shards_ever, key_shards) = (settings.shards, settings.shards);
        let queue = queue.to_owned();
        let (later, more) = (Map::new(), Map::new());
        Self { format: FORMAT, write_id, revision, queue, shards_ever, key_shards, settings, later, more }
    }

    /// Other settings, and everything else as it was. `revision` is above every ledger's.
    pub(crate) fn changed(&self, stamp: Stamp, settings: QueueSettings) -> Self {
        let shards_ever = self.shards_ever.max(settings.shards);
        Self { write_id: stamp.write_id, revision: stamp.revision, shards_ever, settings, ..self.clone() }
    }
}

impl Record for QueueRecord {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

/// The place of one `queue.json`.
#[derive(Debug, Clone)]
pub(crate) struct QueueSlot {
    pub(crate) layout: Arc<Layout>,
    pub(crate) queue: Arc<str>,
}

impl Slot for QueueSlot {
    type Record = QueueRecord;

    fn name(&self) -> Name {
        Name::new(self.layout.settings())
    }

    fn encode(&self, record: &QueueRecord) -> Result<Bytes> {
        let sealed = write(record);
        Ok(sealed.map_err(|error| Error::corrupt(format!("{} cannot be written: {error}", self.name())))?.into())
    }

    fn decode(&self, body: Bytes) -> Result<QueueRecord> {
        let name = self.name();
        let record: QueueRecord =
            read(&body).map_err(|error| Error::corrupt(format!("{name} cannot be read: {error}; write it again")))?;
        if record.format > FORMAT {
            let format = record.format;
            return Err(Error::config(format!(
                "{name} has format {format}, this version reads {FORMAT}: use a newer version of leasehold"
            )));
        }
        let fits = record.queue == *self.queue
            && (1..=MOST_SHARDS).contains(&record.key_shards)
            && (record.settings.shards..=MOST_SHARDS).contains(&record.shards_ever);
        if !fits || record.settings.validate().is_err() {
            return Err(Error::corrupt(format!("{name} says what no version writes: look at it, and write it again")));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slot() -> QueueSlot {
        QueueSlot { layout: Arc::new(Layout::new("default", "emails").unwrap()), queue: "emails".into() }
    }

    fn stamp(revision: u64) -> Stamp {
        Stamp { write_id: WriteId::from([7; 16]), revision }
    }

    #[test]
    fn settings_of_a_later_version_stay_when_this_one_changes_others() {
        let record = QueueRecord::new(stamp(1), "emails", QueueSettings::default());
        let mut fields: Map<String, Value> = unseal(&slot().encode(&record).unwrap()).unwrap();
        fields.insert("owner_team".into(), json!("mail"));
        fields.get_mut(SETTINGS).unwrap().as_object_mut().unwrap().insert("colour".into(), json!({"of": "night"}));
        let read = slot().decode(seal(&fields).unwrap().into()).unwrap();
        let changed = read.changed(stamp(2), QueueSettings { max_attempts: 3, ..read.settings.clone() });
        let fields: Map<String, Value> = unseal(&slot().encode(&changed).unwrap()).unwrap();
        assert_eq!(fields["owner_team"], json!("mail"));
        assert_eq!(fields[SETTINGS]["colour"], json!({"of": "night"}));
        assert_eq!(fields[SETTINGS]["max_attempts"], json!(3));
    }

    #[test]
    fn the_names_of_settings_are_those_that_are_documented() {
        let mut settings = QueueSettings { timeout: Some(Duration::from_secs(90)), ..QueueSettings::default() };
        settings.kinds.insert("mail".into(), KindSettings { max_attempts: Some(3), ..KindSettings::default() });
        let written = serde_json::to_value(&settings).unwrap();
        assert_eq!(
            written["backoff"],
            json!({"shape": "polynomial", "base": "1s", "power": 4, "cap": "6h", "jitter_percent": 10})
        );
        assert_eq!(written["kinds"], json!({"mail": {"max_attempts": 3}}));
        assert_eq!((&written["timeout"], &written["timeout_grace"]), (&json!("1m 30s"), &json!("10s")));
        assert_eq!((&written["segment_jobs"], &written["dead_jobs"]), (&json!(2000), &json!(100_000)));
        assert_eq!(serde_json::from_value::<QueueSettings>(written).unwrap(), settings);
        assert_eq!(serde_json::from_value::<QueueSettings>(json!({})).unwrap(), QueueSettings::default());
    }

    #[test]
    fn what_no_queue_can_work_with_is_refused() {
        let fine = QueueSettings::default;
        let kind = KindSettings { max_attempts: Some(0), ..KindSettings::default() };
        for wrong in [
            QueueSettings { shards: 0, ..fine() },
            QueueSettings { shards: 257, ..fine() },
            QueueSettings { max_attempts: 0, ..fine() },
            QueueSettings { kinds: [("k".to_owned(), kind)].into(), ..fine() },
            QueueSettings { session_ttl: Duration::from_secs(9), ..fine() },
            QueueSettings { capacity: Some(0), ..fine() },
            QueueSettings { overflow: Some("other".into()), ..fine() },
            QueueSettings { segment_jobs: 0, ..fine() },
            QueueSettings { segment_bytes: 16 << 20, ..fine() },
            QueueSettings { timeout: Some(Duration::ZERO), ..fine() },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
        assert!(fine().validate().is_ok());
    }
}
