//! How far behind an archiver is.

use super::record::ArchiveBody;
use crate::{
    Result,
    record::sealed::{self, body},
    stream::partition::Partition,
};
use serde::Serialize;
use std::time::Duration;

/// What is not archived yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Lag {
    /// So many messages.
    pub messages: u64,
    /// In so many bytes, as far as one listing shows them.
    pub bytes: u64,
    /// The oldest of them was appended so long ago by the store's clock.
    #[serde(serialize_with = "crate::duration::millis::serialize", rename = "oldest_ms")]
    pub oldest: Duration,
}

impl Lag {
    pub(crate) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
        self.oldest = self.oldest.max(more.oldest);
    }
}

/// Of one partition: the record, the end of the log and one listing.
pub(crate) async fn of(partition: &Partition) -> Result<Lag> {
    let backend = &partition.shared.backend;
    let record = sealed::read::<ArchiveBody>(backend, &partition.path.archive()).await?;
    let cursor = match &record {
        Some(record) if body(record).settled => body(record).cursor,
        _ => partition.beginning().await?.first,
    };
    let end = partition.tail().await?.next.offset;
    let before = cursor.number.checked_sub(1).map(|number| partition.path.segment(number));
    let (listed, _) = backend.objects(&partition.path.log(), before.as_ref(), 1000).await?;
    let now = backend.clocks().latest();
    let oldest = listed.first().map_or(Duration::ZERO, |first| now.since(first.modified));
    Ok(Lag {
        messages: end.saturating_sub(cursor.offset),
        bytes: listed.iter().map(|listed| listed.size).sum(),
        oldest,
    })
}
