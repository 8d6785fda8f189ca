//! `queue.json`: what a queue is set to, for every process that uses it.

use super::{
    layout::Layout,
    ledger::{Backoff, JobEvents, Policy, Shape},
};
use crate::{
    Error, Result, WriteId,
    duration::text,
    storage::{
        Name,
        cas::{Record, Slot, Stamp},
        seal::{seal, unseal},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};

/// The format that this version writes; it reads no later one.
const FORMAT: u32 = 1;
/// The shard is 8 bits of a job's id.
const MOST_SHARDS: u16 = 256;
/// A session must fit two renewals and the spread of the store's stamps.
const SHORTEST_SESSION: Duration = Duration::from_secs(10);

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
    /// Attempts that may fail before a job is dead.
    pub max_attempts: u32,
    /// How often in a row a job may be alone with a process that dies, before it is dead.
    pub max_stalls: u8,
    /// The pause after the first failure. The n-th is `n⁴` times as long.
    #[serde(with = "text")]
    pub retry_base: Duration,
    /// No pause between two attempts is longer, but for a tenth of it at random.
    #[serde(with = "text")]
    pub retry_cap: Duration,
    /// How long dead letters are kept.
    #[serde(with = "text")]
    pub dead_retention: Duration,
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
            max_attempts: policy.max_attempts,
            max_stalls: policy.max_stalls,
            retry_base: policy.backoff.base,
            retry_cap: policy.backoff.cap,
            dead_retention: policy.dead_retention,
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
    /// What no queue can work with.
    pub(crate) fn validate(&self) -> Result<()> {
        let wrong = if self.shards == 0 || self.shards > MOST_SHARDS {
            format!("shards is {}: 1 to {MOST_SHARDS} are allowed", self.shards)
        } else if self.max_attempts == 0 || self.max_stalls == 0 {
            "max_attempts and max_stalls are at least 1".to_owned()
        } else if self.session_ttl < SHORTEST_SESSION {
            format!("session_ttl is {:?}: at least 10 s are needed", self.session_ttl)
        } else if self.key_limit == Some(0) || self.rate == Some(0) {
            "a limit is at least 1: pause the queue to stop it".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("these settings of a queue cannot be used: {wrong}")))
    }

    pub(crate) fn policy(&self) -> Policy {
        let backoff =
            Backoff { shape: Shape::Polynomial, base: self.retry_base, cap: self.retry_cap, ..Backoff::default() };
        Policy {
            paused: self.paused,
            max_attempts: self.max_attempts,
            backoff,
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
            ..Policy::default()
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
    /// Whatever a later version has added stays.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl QueueRecord {
    pub(crate) fn new(stamp: Stamp, queue: &str, settings: QueueSettings) -> Self {
        let Stamp { write_id, revision } = stamp;
        let (shards_ever, key_shards) = (settings.shards, settings.shards);
        let queue = queue.to_owned();
        Self { format: FORMAT, write_id, revision, queue, shards_ever, key_shards, settings, more: Map::new() }
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
        let sealed = seal(record);
        Ok(sealed.map_err(|error| Error::corrupt(format!("{} cannot be written: {error}", self.name())))?.into())
    }

    fn decode(&self, body: Bytes) -> Result<QueueRecord> {
        let name = self.name();
        let record: QueueRecord =
            unseal(&body).map_err(|error| Error::corrupt(format!("{name} cannot be read: {error}; write it again")))?;
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
