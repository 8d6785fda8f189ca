//! Reading what is to be archived: from the cursor on, until there is enough.

use super::{file::Row, layout};
use crate::{
    Error, ErrorKind, Result,
    clock::{Moment, Timestamp},
    storage::{Backend, Created},
    stream::{partition::Partition, records::Cursor},
};
use std::{sync::Arc, time::Duration};

/// For how long one object is tried.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that were read and not archived yet.
#[derive(Debug, Clone)]
pub(crate) struct Gathered {
    pub(crate) rows: Vec<Row>,
    pub(crate) bytes: u64,
    /// Segments that cannot be read.
    pub(crate) skipped: Vec<u64>,
    /// The place after the last of them.
    pub(crate) to: Cursor,
    /// When the first of them was read, by our clock.
    pub(crate) since: Option<Moment>,
    /// When the store received the first of them.
    pub(crate) oldest: Option<Timestamp>,
    /// And the last one: what follows is not older.
    pub(crate) newest: Option<Timestamp>,
}

impl Gathered {
    pub(crate) fn from(cursor: Cursor) -> Self {
        Self { rows: Vec::new(), bytes: 0, skipped: Vec::new(), to: cursor, since: None, oldest: None, newest: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.skipped.is_empty()
    }

    /// Splits off the first `count` messages; the rest is kept for the next file.
    pub(crate) fn split(&mut self, count: usize, from: Cursor) -> Self {
        let mut first = std::mem::replace(self, Self::from(self.to));
        if first.rows.len() <= count {
            return first;
        }
        self.rows = first.rows.split_off(count);
        // Approximate from here on: only what comes next goes by it.
        self.bytes = first.bytes * self.rows.len() as u64 / (count + self.rows.len()).max(1) as u64;
        (self.since, self.oldest, self.newest) = (first.since, first.oldest, first.newest);
        let next = self.rows.first().map_or(from.offset, |row| row.message.offset);
        // The segment of the first message that stays is the last one that was read: a file is full as soon as it can be.
        first.to = Cursor { offset: next, number: self.to.number.saturating_sub(1) };
        first
    }
}

/// Reads one more segment; whether there was one.
///
/// Nothing above the archiver's cursor is trimmed, so what is not there has not been written yet.
pub(crate) async fn more(partition: &Partition, target: &Target, gathered: &mut Gathered) -> Result<bool> {
    let (number, clock) = (gathered.to.number, &partition.shared.backend.clock);
    let received = match partition.segment(number).await {
        Ok(None) => return Ok(false),
        Ok(Some(received)) => received,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            return skip(partition, target, gathered, &error).await;
        }
        Err(error) => return Err(error),
    };
    let (segment, begins) = (received.segment, gathered.to.offset);
    gathered.since.get_or_insert_with(|| clock.monotonic());
    gathered.oldest.get_or_insert(received.at);
    gathered.newest = Some(received.at);
    gathered.bytes += received.bytes;
    gathered.to = Cursor { offset: segment.end(), number: number + 1 };
    let appended = segment.appended;
    let wanted = segment.messages.into_iter().filter(|message| message.offset >= begins);
    gathered.rows.extend(wanted.map(|message| Row { message, appended }));
    Ok(true)
}

/// Where files go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) backend: Arc<Backend>,
    pub(crate) domain: String,
    pub(crate) incarnation: String,
}

/// A segment that two reads found damaged is copied as it is beside the archive, and passed: but only once there is one
/// after it, which says how many messages it had.
async fn skip(partition: &Partition, target: &Target, gathered: &mut Gathered, why: &Error) -> Result<bool> {
    let (number, path) = (gathered.to.number, &partition.path);
    let Some(after) = partition.segment(number + 1).await? else { return Ok(false) };
    let name = path.segment(number);
    let Some(raw) = partition.shared.backend.get_large(&name).await? else { return Ok(false) };
    let copy = layout::damaged(&target.domain, &path.stream, path.number, number, &target.incarnation);
    let is_ours = |there: &crate::storage::Fetched| there.body == raw.body;
    // Another copy may have been taken of what was damaged in another way: one is enough.
    let (Created::Won | Created::Taken(_)) = target.backend.create(&copy, &raw.body, is_ours, PATIENCE).await?;
    tracing::error!(%name, %copy, error = %why, "a segment cannot be read: it was copied as it is and passed");
    gathered.skipped.push(number);
    gathered.since.get_or_insert_with(|| partition.shared.backend.clock.monotonic());
    gathered.to = Cursor { offset: after.segment.base, number: number + 1 };
    Ok(true)
}
