//! Streams: messages in order, groups that remember how far they have read, and what is old is trimmed.
//!
//! A stream is a log of numbered segments in one or more partitions. Appending is one create of the next number, for all
//! messages that a process has at hand; reading is one request for each segment, and at the end of the log that request is the
//! poll. Offsets have no gaps. There is no server and no leader: whoever appends, reads, trims or archives needs nothing but
//! the store.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! use leasehold::{Store, stream::{Draft, Position, Retention, StreamSettings}};
//! use std::time::Duration;
//!
//! let store = Store::open("memory://").await?;
//! let week = Retention::of_age(Duration::from_secs(7 * 24 * 3600));
//! let audit = store.stream("events.audit")?;
//! audit.configure(StreamSettings::default().retention(week)).await?;
//!
//! let published = audit.publish("events.audit.login", r#"{"user":"alice"}"#).await?;
//! assert_eq!(published.offset, 0);
//! audit.publish_many(["bob", "carol"].map(|user| Draft::new("events.audit.login", user).key(user))).await?;
//!
//! let mut reader = audit.read(Position::Offset(1)).await?;
//! assert_eq!(reader.next().await?.unwrap().messages.len(), 2);
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! - A message that was acknowledged by [`publish`](Stream::publish) stays readable until its retention is over *and* every
//!   group and the archiver have read it. An error of kind [`Unknown`](crate::ErrorKind::Unknown) says that it may or may not
//!   have been appended: publish it again with the same id, and let readers drop the second.
//! - Messages of one key are read in the order in which they were appended.
//! - A reader that comes too late is told how many messages it has missed.
//! - A group's messages are delivered at least once, to one consumer at a time.
//!
//! Work that many processes share is a queue and not a group: a group has one consumer for each partition.

mod append;
mod counters;
mod group;
mod kind;
pub(crate) mod layout;
mod look;
mod message;
mod name;
pub(crate) mod partition;
mod pattern;
mod read;
pub(crate) mod records;
pub(crate) mod segment;
mod settings;
mod trim;
mod wire;

pub(crate) use counters::{Counters, Counts};
pub use group::{Consumer, Group, GroupLag};
pub(crate) use kind::{DECLARATION, StreamKind};
pub(crate) use look::Look;
pub use message::{Draft, MAX_PAYLOAD, Message, MessageId};
pub use name::{GroupName, StreamName};
pub use pattern::{Pattern, Patterns};
pub use read::{Batch, Position, Reader};
pub(crate) use settings::check_domain;
pub use settings::{Retention, StreamRules, StreamSettings};
pub use trim::{ExpiredGroup, Trimmed};

use self::{
    append::{Appender, MOST_BYTES, MOST_MESSAGES},
    layout::PartitionPath,
    partition::Partition,
    records::StreamBody,
};
use crate::{
    Error, Namespace, Result,
    generator::GeneratorExt,
    hex::hex,
    lease::Engine,
    record::{
        Plan,
        sealed::{self, Base, Ended, body},
    },
    storage::Backend,
    sweep::Activity,
    sync::Locked as _,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};
use tokio::sync::OnceCell;

/// What everything about streams in one opened store shares.
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) counters: Counters,
    /// The streams that were asked for: all handles of one share its appenders.
    open: Mutex<BTreeMap<(Namespace, StreamName), Arc<Opened>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(backend: Arc<Backend>, engine: Arc<Engine>, activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self { backend, engine, activity, counters: Counters::new(), open: Mutex::default() })
    }
}

/// A stream that this process uses.
#[derive(Debug)]
struct Opened {
    namespace: Namespace,
    name: StreamName,
    parts: OnceCell<Parts>,
}

/// What of a stream never changes.
#[derive(Debug)]
struct Parts {
    incarnation: String,
    appenders: Vec<Appender>,
    /// Where messages without a key go: the same for all of a process, so that processes seldom race.
    sticky: usize,
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Its id.
    pub id: MessageId,
    /// Its partition.
    pub partition: u16,
    /// Its place there.
    pub offset: u64,
}

/// The streams of one namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Streams {
    shared: Arc<Shared>,
    namespace: Namespace,
}

impl Streams {
    pub(crate) fn new(shared: Arc<Shared>, namespace: Namespace) -> Self {
        Self { shared, namespace }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// A stream by its name. Asks for nothing yet; it is made when it is first written to or configured.
    pub fn stream<N>(&self, name: N) -> Result<Stream>
    where
        N: TryInto<StreamName>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let mut open = self.shared.open.locked();
        let opened = open
            .entry((self.namespace.clone(), name.clone()))
            .or_insert_with(|| Arc::new(Opened { namespace: self.namespace.clone(), name, parts: OnceCell::new() }));
        Ok(Stream { shared: Arc::clone(&self.shared), opened: Arc::clone(opened) })
    }

    /// The names of all streams: one listing.
    pub async fn names(&self) -> Result<Vec<StreamName>> {
        let folders = self.shared.backend.folders(&layout::folder(self.namespace.as_str())).await?;
        Ok(folders.iter().filter_map(|folder| folder.parse().ok()).collect())
    }

    /// Gives every stream that fits a rule the settings of the best one. Returns those that were changed.
    pub async fn apply(&self, rules: &StreamRules) -> Result<Vec<StreamName>> {
        let mut changed = Vec::new();
        for name in self.names().await? {
            let stream = self.stream(name.as_str())?;
            let Some(settings) = rules.best(name.as_str()) else { continue };
            let wanted = settings.clone().partitions(stream.settings().await?.partitions);
            if stream.settings().await? != wanted {
                stream.configure(wanted).await?;
                changed.push(name);
            }
        }
        Ok(changed)
    }
}

/// One stream. Cheap to clone; all clones in a process append together.
#[derive(Debug, Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    opened: Arc<Opened>,
}

impl Stream {
    /// Its name.
    pub fn name(&self) -> &StreamName {
        &self.opened.name
    }

    /// Appends a message, and returns when it is stored. One request, together with whatever else this process appends to
    /// the partition at the time.
    ///
    /// # Cancellation
    /// Dropping the future leaves the message appended or not; publish it again with an id of your own if that matters.
    pub async fn publish(&self, subject: impl Into<String>, payload: impl Into<bytes::Bytes>) -> Result<Published> {
        self.publish_draft(Draft::new(subject, payload)).await
    }

    /// Appends a message that has a key, an id, or a time of its own.
    pub async fn publish_draft(&self, draft: Draft) -> Result<Published> {
        let published = self.publish_many([draft]).await?;
        published.into_iter().next().ok_or_else(|| Error::unknown("a message was appended without a place"))
    }

    /// Appends messages, in as few segments as they fit into, and returns where they are, in the order in which they were
    /// given. Messages of one partition stay in order.
    ///
    /// If it fails, some of them may have been appended.
    pub async fn publish_many(&self, drafts: impl IntoIterator<Item = Draft>) -> Result<Vec<Published>> {
        let (backend, parts) = (&self.shared.backend, self.parts().await?);
        self.shared.activity.touch(&*backend.clock);
        let now = backend.clock.wall();
        let mut placed: BTreeMap<usize, Vec<(usize, Message)>> = BTreeMap::new();
        let mut published = Vec::new();
        for (at, draft) in drafts.into_iter().enumerate() {
            let message = draft.into_message(now, &*backend.generator)?;
            let partition = place(message.key.as_deref(), parts);
            published.push(Published { id: message.id, partition: partition as u16, offset: 0 });
            placed.entry(partition).or_default().push((at, message));
        }
        let appends = placed.into_iter().map(async |(partition, messages)| {
            let mut offsets = Vec::with_capacity(messages.len());
            for part in in_parts(messages) {
                let (places, messages): (Vec<usize>, Vec<Message>) = part.into_iter().unzip();
                let first = parts.appenders[partition].append(messages).await?;
                offsets.extend(places.into_iter().zip(first..));
            }
            Ok::<_, Error>(offsets)
        });
        for offsets in futures_util::future::try_join_all(appends).await? {
            offsets.into_iter().for_each(|(at, offset)| published[at].offset = offset);
        }
        Ok(published)
    }

    /// Reads the first partition, which for most streams is the only one.
    pub async fn read(&self, from: Position) -> Result<Reader> {
        self.read_partition(0, from).await
    }

    /// Reads one partition.
    pub async fn read_partition(&self, partition: u16, from: Position) -> Result<Reader> {
        Reader::open(self.partition(partition).await?, from).await
    }

    /// A group of consumers.
    pub fn group<N>(&self, name: N) -> Result<Group>
    where
        N: TryInto<GroupName>,
        N::Error: Into<Error>,
    {
        Ok(Group::new(self.clone(), name.try_into().map_err(Into::into)?))
    }

    /// The names of the groups that a partition has.
    pub async fn groups(&self, partition: u16) -> Result<Vec<GroupName>> {
        Ok(self.partition(partition).await?.groups().await?.into_iter().map(|(name, _)| name).collect())
    }

    /// The offset that the next message of a partition will have.
    pub async fn end(&self, partition: u16) -> Result<u64> {
        Ok(self.partition(partition).await?.tail().await?.next.offset)
    }

    /// Where messages go that a consumer gives up.
    pub(crate) fn dead_letters(&self) -> Result<Self> {
        Streams::new(Arc::clone(&self.shared), self.opened.namespace.clone())
            .stream(format!("{}.dead", self.opened.name))
    }

    /// Its settings, as they are in the store now; the defaults if it is not there.
    pub async fn settings(&self) -> Result<StreamSettings> {
        Ok(self.record().await?.map(|record| body(&record).settings.clone()).unwrap_or_default())
    }

    async fn record(&self) -> Result<Option<Base<StreamBody>>> {
        sealed::read(&self.shared.backend, &layout::settings(&self.opened.namespace, &self.opened.name)).await
    }

    /// Changes its settings, and makes it if it is not there. The number of partitions cannot be changed.
    ///
    /// From when this returns on, every trimmer goes by them.
    pub async fn configure(&self, settings: StreamSettings) -> Result<()> {
        settings.validate()?;
        let name = layout::settings(&self.opened.namespace, &self.opened.name);
        let fresh = self.fresh_incarnation();
        let changed = sealed::change(&self.shared.backend, &name, self.record().await?, |there| match there {
            Some(there) if there.body.settings.partitions != settings.partitions => {
                Ok(Plan::Stop(there.body.settings.partitions))
            }
            there => {
                let incarnation = there.map_or(&fresh, |there| &there.body.incarnation).clone();
                Ok(Plan::Write(StreamBody { incarnation, settings: settings.clone() }))
            }
        });
        if let Ended::Stopped(partitions) = changed.await? {
            return Err(Error::config(format!(
                "{} has {partitions} partitions, which cannot be changed to {}: keys would change their places",
                self.opened.name, settings.partitions
            )));
        }
        // A trimmer that has read the old settings must not raise a boundary any more.
        for number in 0..settings.partitions {
            self.in_partition(number).touch().await?;
        }
        Ok(())
    }

    fn fresh_incarnation(&self) -> String {
        let bytes: [u8; 8] = self.shared.backend.generator.bytes();
        hex(&bytes)
    }

    /// What never changes of it; makes it if it is not there.
    async fn parts(&self) -> Result<&Parts> {
        let make = async || {
            let record = match self.record().await? {
                Some(record) => record,
                None => {
                    self.configure(StreamSettings::default()).await?;
                    let gone = || Error::unavailable(format!("{} was removed just now", self.opened.name));
                    self.record().await?.ok_or_else(gone)?
                }
            };
            let StreamBody { incarnation, settings } = body(&record);
            let appenders = (0..settings.partitions).map(|number| Appender::new(self.in_partition(number)));
            let sticky = u32::from_le_bytes(self.shared.backend.generator.bytes()) as usize;
            let sticky = sticky % usize::from(settings.partitions).max(1);
            Ok(Parts { incarnation: incarnation.clone(), appenders: appenders.collect(), sticky })
        };
        self.opened.parts.get_or_try_init(make).await
    }

    /// Tells it from a stream of the same name that was there before.
    pub(crate) async fn incarnation(&self) -> Result<&str> {
        Ok(&self.parts().await?.incarnation)
    }

    fn in_partition(&self, number: u16) -> Partition {
        let Opened { namespace, name, .. } = &*self.opened;
        let path = PartitionPath { namespace: namespace.clone(), stream: name.clone(), number };
        Partition { shared: Arc::clone(&self.shared), path }
    }

    pub(crate) async fn partition(&self, number: u16) -> Result<Partition> {
        let partitions = self.parts().await?.appenders.len();
        match self.parts().await?.appenders.get(usize::from(number)) {
            Some(appender) => Ok(appender.partition().clone()),
            None => {
                Err(Error::invalid(format!("{} has {partitions} partitions, and none is number {number}", self.name())))
            }
        }
    }
}

/// The partition of a key: fixed for ever, as messages of one key must stay together.
fn place(key: Option<&str>, parts: &Parts) -> usize {
    match key {
        Some(key) => crc32c::crc32c(key.as_bytes()) as usize % parts.appenders.len().max(1),
        None => parts.sticky,
    }
}

/// Cuts messages into what fits into one segment each.
fn in_parts(messages: Vec<(usize, Message)>) -> Vec<Vec<(usize, Message)>> {
    let mut parts: Vec<Vec<(usize, Message)>> = Vec::new();
    let mut bytes = 0;
    for (at, message) in messages {
        let size = message.size();
        match parts.last_mut() {
            Some(part) if part.len() < MOST_MESSAGES && bytes + size <= MOST_BYTES => {
                bytes += size;
                part.push((at, message));
            }
            _ => {
                bytes = size;
                parts.push(vec![(at, message)]);
            }
        }
    }
    parts
}
