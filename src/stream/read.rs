//! Reading a log from some place on: one request for each segment, and at the end of the log that request is the poll.

use super::{
    Message,
    look::{self, Known, Look},
    partition::{Partition, Received},
    records::Cursor,
};
use crate::{Error, Result, clock::Timestamp};

/// Where to begin reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Position {
    /// At the first message that is kept.
    #[default]
    Earliest,
    /// After the last message: only what is published from now on.
    Latest,
    /// At the first message that was appended at this time or later, give or take the messages of one segment.
    Time(Timestamp),
    /// At the message with this offset.
    Offset(u64),
}

/// Some messages of one partition, in order.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch {
    /// The messages: at least one.
    pub messages: Vec<Message>,
    /// So many messages before these were trimmed before they could be read.
    pub missed: u64,
    pub(crate) end: Cursor,
}

/// Reads one partition.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::{Store, stream::Position};
///
/// let store = Store::open("memory://").await?;
/// let events = store.stream("events")?;
/// events.publish("events.login", "alice").await?;
/// let mut reader = events.read(Position::Earliest).await?;
/// let batch = reader.next().await?.expect("a batch");
/// assert_eq!(batch.messages[0].payload, "alice");
/// assert!(reader.next().await?.is_none(), "nothing more for now: poll again later");
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    partition: Partition,
    at: Cursor,
    /// Where the log began, and when that was read.
    boundary: Option<(u64, Timestamp)>,
    /// When the store received the segment before `at`.
    before: Option<Timestamp>,
    /// When `at` was missing.
    missing: Option<Look>,
    missed: u64,
}

impl Reader {
    /// At a place that is known to exist or to be the end.
    pub(crate) fn at(partition: Partition, at: Cursor) -> Self {
        Self { partition, at, boundary: None, before: None, missing: None, missed: 0 }
    }

    pub(crate) async fn open(partition: Partition, from: Position) -> Result<Self> {
        let mut reader = Self::at(partition, Cursor::default());
        match from {
            Position::Earliest => {
                reader.look_at_the_boundary().await?;
                reader.missed = 0;
            }
            Position::Latest => {
                let tail = reader.partition.tail().await?;
                (reader.at, reader.missing) = (tail.next, Some(tail.look));
            }
            Position::Time(time) => reader.seek(None, |segment| segment.appended >= time).await?,
            Position::Offset(offset) => reader.seek(Some(offset), |segment| segment.end() > offset).await?,
        }
        Ok(reader)
    }

    async fn seek(&mut self, wanted: Option<u64>, is_late: impl Fn(&super::segment::Segment) -> bool) -> Result<()> {
        let (meta, tail, found) = self.partition.search(is_late).await?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted > tail.next.offset) {
            let end = tail.next.offset;
            return Err(Error::invalid(format!(
                "offset {wanted} is beyond the end of {}: {end}",
                self.partition.path.stream
            )));
        }
        match found {
            Some(segment) => {
                let offset = wanted.unwrap_or(segment.base).max(segment.base);
                self.at = Cursor { offset, number: segment.number };
                self.missed = wanted.map_or(0, |wanted| meta.first.offset.saturating_sub(wanted));
            }
            None => (self.at, self.missing) = (tail.next, Some(tail.look)),
        }
        Ok(())
    }

    /// The offset of the next message.
    pub fn offset(&self) -> u64 {
        self.at.offset
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.at
    }

    /// Nothing from here on can have been trimmed before this time.
    pub(crate) fn held_since(&mut self, look: Look) {
        let slack = self.partition.shared.backend.stamp_slack();
        self.boundary = look.store_time().zip(slack).map(|(time, slack)| (self.at.number, time.minus(slack)));
    }

    /// The next batch says that so many messages were trimmed.
    pub(crate) fn missed_before(&mut self, missed: u64) {
        self.missed += missed;
    }

    /// The next messages: those of one segment. `None` at the end of the log, for now.
    ///
    /// One request, and one more where the log may have been trimmed under a reader that was slow or paused.
    pub async fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            let asked = Look::now(&self.partition.shared.backend);
            let found = self.partition.segment(self.at.number).await?;
            let known = self.known();
            let believed = match &found {
                Some(Received { at, .. }) => look::is_genuine(self.at.number, *at, &known),
                None => look::is_the_end(self.latest_time(), &known),
            };
            if !believed && self.look_at_the_boundary().await? {
                continue;
            }
            let Some(received) = found else {
                self.missing = Some(asked);
                return Ok(None);
            };
            return Ok(Some(self.deliver(received)));
        }
    }

    fn known(&self) -> Known {
        let backend = &self.partition.shared.backend;
        let missing_for = self.missing.map(|missing| missing.age(backend));
        Known { boundary: self.boundary, before: self.before, missing_for }
    }

    /// What time it is by the store's clock, at the most.
    fn latest_time(&self) -> Option<Timestamp> {
        let backend = &self.partition.shared.backend;
        if backend.must_be_asked_for_the_time() {
            return None;
        }
        Some(backend.latest_store_time()?.plus(backend.stamp_slack()?))
    }

    /// Reads where the log begins. Goes there if that is further on, and says so.
    async fn look_at_the_boundary(&mut self) -> Result<bool> {
        let backend = &self.partition.shared.backend;
        let asked = Look::now(backend);
        let slack = backend.stamp_slack();
        let first = self.partition.beginning().await?.first;
        self.boundary = asked.store_time().zip(slack).map(|(time, slack)| (first.number, time.minus(slack)));
        if first.number <= self.at.number {
            return Ok(false);
        }
        let missed = first.offset.saturating_sub(self.at.offset);
        self.partition.shared.counters.missed(missed);
        self.missed += missed;
        (self.at, self.before, self.missing) = (first, None, None);
        Ok(true)
    }

    fn deliver(&mut self, received: Received) -> Batch {
        let Received { segment, at, .. } = received;
        let (begin, end) = (self.at, Cursor { offset: segment.end(), number: segment.number + 1 });
        let messages: Vec<Message> =
            segment.messages.into_iter().filter(|message| message.offset >= begin.offset).collect();
        self.partition.shared.counters.read(messages.len() as u64);
        (self.at, self.before, self.missing) = (end, Some(at), None);
        let missed = std::mem::take(&mut self.missed);
        Batch { messages, missed, end }
    }
}
