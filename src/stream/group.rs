//! Groups: consumers that share a place in a stream, one at a time for each partition.
//!
//! Who consumes is decided by a lease. Its fence is written into the group's record before the first message is read, and
//! every acknowledgement demands it there: a consumer that was paused cannot move the cursor under the next one.
//!
//! A group keeps what it has not acknowledged from being trimmed. Making one, reviving one and moving its cursor back are
//! three steps, so that no trimmer that has looked around before can take what it was promised: the record is written as
//! *not settled*, which holds everything; the partition's record is touched, which makes older trimmers lose; and the record
//! is settled from where the log began at that moment.

use super::{
    Draft, GroupName, Message, Position, Reader, Stream,
    look::Look,
    partition::Partition,
    read::Batch,
    records::{Cursor, GroupBody},
};
use crate::{
    Error, ErrorKind, Leases, Namespace, Result,
    clock::{Moment, Timestamp},
    lease::Guard,
    record::{
        Plan,
        sealed::{self, Base, Ended, body},
    },
    storage::layout::OURS,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a consumer may be silent before another one takes its place.
const CONSUMER_TTL: Duration = Duration::from_secs(30);

/// A group of consumers of one stream. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Group {
    stream: Stream,
    name: GroupName,
    start: Position,
}

/// How far a group is behind, in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupLag {
    /// The offset of the next message that it has not acknowledged.
    pub offset: u64,
    /// How many messages it has not acknowledged.
    pub messages: u64,
    /// When it stopped keeping messages from being trimmed, if it did.
    pub expired: Option<Timestamp>,
}

impl Group {
    pub(crate) fn new(stream: Stream, name: GroupName) -> Self {
        Self { stream, name, start: Position::Earliest }
    }

    /// Where it begins when it is made: at the first message that is kept, unless told otherwise. A group that is there goes
    /// on where it is.
    #[must_use]
    pub fn start(mut self, from: Position) -> Self {
        self.start = from;
        self
    }

    /// Its name.
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// Becomes the consumer of a partition; `None` while another process is. Makes the group if it is not there.
    pub async fn consume(&self, partition: u16) -> Result<Option<Consumer>> {
        let partition = self.stream.partition(partition).await?;
        let leases = Leases::new(partition.shared.engine.clone(), Namespace::trusted(OURS));
        let path = partition.path.group(&self.name);
        let Some(guard) = leases.try_lock(path.as_str()).ttl(CONSUMER_TTL).await? else { return Ok(None) };
        let fence = guard.fence().get();
        let look = Look::now(&partition.shared.backend);
        let (base, missed) = match self.take(&partition, fence).await {
            Ok(taken) => taken,
            Err(error) => {
                if let Err(error) = guard.release().await {
                    tracing::debug!(%error, group = %self.name, "its lease could not be released: it ends by itself");
                }
                return Err(error);
            }
        };
        let mut reader = Reader::at(partition.clone(), body(&base).cursor);
        reader.missed_before(missed);
        reader.held_since(look);
        let beat = partition.shared.backend.clock.monotonic();
        let expiry = self.stream.settings().await?.group_expiry;
        Ok(Some(Consumer { group: self.clone(), partition, guard, fence, base: Some(base), reader, beat, expiry }))
    }

    /// Writes our fence into the record, which is made or revived if need be. Returns how many messages are gone.
    async fn take(&self, partition: &Partition, fence: u64) -> Result<(Base<GroupBody>, u64)> {
        let (backend, name) = (&partition.shared.backend, partition.path.group(&self.name));
        let mut base = sealed::read::<GroupBody>(backend, &name).await?;
        let is_sound = |group: &GroupBody| group.settled && group.expired_ms.is_none();
        if !base.as_ref().is_some_and(|base| is_sound(body(base))) {
            let start = match &base {
                Some(base) => body(base).cursor,
                None => Reader::open(partition.clone(), self.start).await?.cursor(),
            };
            base = Some(self.unsettle(partition, base, |_| start, None).await?);
        }
        self.settle(partition, base, fence).await
    }

    /// The first step: from here on it holds everything.
    async fn unsettle(
        &self,
        partition: &Partition,
        base: Option<Base<GroupBody>>,
        to: impl Fn(&GroupBody) -> Cursor,
        fence: Option<u64>,
    ) -> Result<Base<GroupBody>> {
        let name = partition.path.group(&self.name);
        let changed = sealed::change(&partition.shared.backend, &name, base, |group| {
            let mut group = group.map(|group| group.body.clone()).unwrap_or_default();
            if fence.is_some_and(|fence| group.fence != fence) {
                return Ok(Plan::Stop(group));
            }
            (group.cursor, group.settled, group.expired_ms) = (to(&group), false, None);
            Ok(Plan::Write(group))
        });
        match changed.await? {
            Ended::Won(base) => Ok(base),
            Ended::Stopped(now) => Err(self.fenced(&now)),
        }
    }

    /// The other two steps, and the fence. Returns how many messages were trimmed before it held them.
    async fn settle(
        &self,
        partition: &Partition,
        base: Option<Base<GroupBody>>,
        fence: u64,
    ) -> Result<(Base<GroupBody>, u64)> {
        let must_touch = base.as_ref().is_none_or(|base| !body(base).settled);
        let first = if must_touch { partition.touch().await? } else { Cursor::default() };
        let name = partition.path.group(&self.name);
        let mut missed = 0;
        let changed = sealed::change(&partition.shared.backend, &name, base, |group| {
            let mut group = group.map(|group| group.body.clone()).unwrap_or_default();
            let touched_since = must_touch || group.settled;
            if group.fence > fence || !touched_since {
                return Ok(Plan::Stop(group));
            }
            missed = 0;
            if group.cursor.number < first.number {
                missed = first.offset.saturating_sub(group.cursor.offset);
                group.cursor = first;
            }
            (group.fence, group.settled) = (fence, true);
            Ok(Plan::Write(group))
        });
        match changed.await? {
            Ended::Won(base) => Ok((base, missed)),
            Ended::Stopped(now) => Err(self.fenced(&now)),
        }
    }

    fn fenced(&self, now: &GroupBody) -> Error {
        let (group, stream, fence) = (&self.name, self.stream.name(), now.fence);
        Error::new(
            ErrorKind::Lost,
            format!(
                "another consumer of group {group} has taken over {stream} (fence {fence}): stop, and consume again"
            ),
        )
    }

    /// How far it is behind in a partition; `None` if there is no such group. Two requests or a few more.
    pub async fn lag(&self, partition: u16) -> Result<Option<GroupLag>> {
        let partition = self.stream.partition(partition).await?;
        let name = partition.path.group(&self.name);
        let Some(base) = sealed::read::<GroupBody>(&partition.shared.backend, &name).await? else { return Ok(None) };
        let end = partition.tail().await?.next.offset;
        let GroupBody { cursor, expired_ms, .. } = body(&base);
        let expired = expired_ms.map(Timestamp::from_millis);
        Ok(Some(GroupLag { offset: cursor.offset, messages: end.saturating_sub(cursor.offset), expired }))
    }

    /// Lets it expire at once, in all partitions: it keeps nothing from being trimmed any more. A consumer that comes back
    /// goes on where it was, as far as that is still there.
    pub async fn remove(&self) -> Result<()> {
        for number in 0..self.stream.settings().await?.partitions {
            let partition = self.stream.partition(number).await?;
            expire(&partition, &self.name, |_| true).await?;
        }
        Ok(())
    }
}

/// Marks a group as expired, if `is_due` still says so of the record that is there. Returns what it had then.
pub(crate) async fn expire(
    partition: &Partition,
    group: &GroupName,
    is_due: impl Fn(&GroupBody) -> bool,
) -> Result<Option<GroupBody>> {
    let (backend, name) = (&partition.shared.backend, partition.path.group(group));
    let Some(base) = sealed::read::<GroupBody>(backend, &name).await? else { return Ok(None) };
    let now = backend.clocks().latest().as_millis();
    let expired = sealed::change(backend, &name, Some(base), |group| match group {
        Some(group) if group.body.expired_ms.is_none() && is_due(&group.body) => {
            Ok(Plan::Write(GroupBody { expired_ms: Some(now), ..group.body.clone() }))
        }
        _ => Ok(Plan::Stop(())),
    });
    match expired.await? {
        Ended::Won(base) => {
            partition.shared.counters.groups_expired(1);
            Ok(Some(body(&base).clone()))
        }
        Ended::Stopped(()) => Ok(None),
    }
}

/// The one consumer of a group in a partition, for as long as it lives.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = leasehold::Store::open("memory://").await?;
/// let events = store.stream("events")?;
/// events.publish("events.login", "alice").await?;
///
/// let mut consumer = events.group("mail")?.consume(0).await?.expect("nobody else consumes");
/// while let Some(batch) = consumer.next().await? {
///     for message in &batch.messages {
///         println!("{}: {:?}", message.subject, message.payload);
///     }
///     consumer.ack(&batch).await?; // what is not acknowledged is read again by the next consumer
/// }
/// consumer.close().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consumer {
    group: Group,
    partition: Partition,
    guard: Guard,
    fence: u64,
    /// The group's record as it was won last; `None` after a change whose fate is not known.
    base: Option<Base<GroupBody>>,
    reader: Reader,
    /// When the record was last written.
    beat: Moment,
    expiry: Duration,
}

impl Consumer {
    /// The next messages: those of one segment. `None` at the end of the log, for now.
    ///
    /// Fails with [`ErrorKind::Lost`] when another consumer may have taken over.
    pub async fn next(&mut self) -> Result<Option<Batch>> {
        self.guard.check()?;
        let batch = self.reader.next().await?;
        let silent = self.partition.shared.backend.clock.monotonic().since(self.beat);
        if silent > self.expiry / 8 {
            self.change(|_| {}).await?;
        }
        Ok(batch)
    }

    /// Says that everything up to the end of a batch is done with. One request.
    pub async fn ack(&mut self, batch: &Batch) -> Result<()> {
        let end = batch.end;
        self.change(|group| group.cursor = group.cursor.max(end)).await
    }

    /// Gives a message up: it is published to the stream `<stream>.dead` with the reason, under its own id, and counted.
    /// Acknowledge its batch afterwards.
    pub async fn dead_letter(&mut self, message: &Message, reason: &str) -> Result<()> {
        let dead = self.group.stream.dead_letters()?;
        let mut letter = json!({
            "group": self.group.name,
            "reason": reason,
            "stream": self.partition.path.stream,
            "partition": self.partition.path.number,
            "seq": message.offset,
            "message_id": message.id,
            "subject": message.subject,
            "timestamp": message.time.to_string(),
        });
        match serde_json::from_slice::<Value>(&message.payload) {
            Ok(payload) => letter["payload"] = payload,
            Err(_) => letter["payload_b64"] = BASE64_STANDARD.encode(&message.payload).into(),
        }
        let draft = Draft::new(&message.subject, letter.to_string()).id(message.id).time(message.time);
        dead.publish_draft(draft).await?;
        self.partition.shared.counters.dead_letters(1);
        self.change(|group| group.dead_letters += 1).await
    }

    /// Moves the cursor, forwards or back, and reads on from there.
    pub async fn seek(&mut self, to: Position) -> Result<()> {
        let to = Reader::open(self.partition.clone(), to).await?.cursor();
        let base = self.base.take();
        let base = self.group.unsettle(&self.partition, base, |_| to, Some(self.fence)).await?;
        let (base, missed) = self.group.settle(&self.partition, Some(base), self.fence).await?;
        self.reader = Reader::at(self.partition.clone(), body(&base).cursor);
        self.reader.missed_before(missed);
        self.base = Some(base);
        Ok(())
    }

    /// The fence that acknowledgements carry: hand it to what the messages change.
    pub fn fence(&self) -> crate::Fence {
        self.guard.fence()
    }

    /// Lets another consumer take over at once.
    pub async fn close(self) -> Result<()> {
        self.guard.release().await
    }

    /// Changes the group's record, as long as it carries our fence.
    async fn change(&mut self, edit: impl Fn(&mut GroupBody)) -> Result<()> {
        let (backend, name) = (&self.partition.shared.backend, self.partition.path.group(&self.group.name));
        let base = match self.base.take() {
            Some(base) => Some(base),
            None => sealed::read(backend, &name).await?,
        };
        let fence = self.fence;
        let changed = sealed::change(backend, &name, base, |group| {
            let mut group = group.map(|group| group.body.clone()).unwrap_or_default();
            if group.fence != fence || group.expired_ms.is_some() {
                return Ok(Plan::Stop(group));
            }
            edit(&mut group);
            Ok(Plan::Write(group))
        });
        match changed.await? {
            Ended::Won(base) => {
                self.beat = backend.clock.monotonic();
                self.base = Some(base);
                Ok(())
            }
            Ended::Stopped(now) if now.expired_ms.is_some() => Err(Error::new(
                ErrorKind::Lost,
                format!("group {} has expired: consume again, and be told what is still there", self.group.name),
            )),
            Ended::Stopped(now) => Err(self.group.fenced(&now)),
        }
    }
}
