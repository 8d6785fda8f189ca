//! One log of a stream: its segments, where it begins, and where it ends.

use super::{
    Shared,
    layout::PartitionPath,
    look::Look,
    records::{Cursor, MetaBody},
    segment::{Segment, Unreadable},
};
use crate::{
    Error, Result,
    clock::Timestamp,
    record::{
        Plan,
        sealed::{self, Base, Ended, body},
    },
    storage::Fetched,
};
use std::sync::Arc;

/// How often a search begins again because segments were trimmed under it.
const SEARCHES: u32 = 5;

/// One log of a stream, as an opened store knows it.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) shared: Arc<Shared>,
    pub(crate) path: PartitionPath,
}

/// The end of a log, as somebody saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    /// Where the next message goes.
    pub(crate) next: Cursor,
    /// When the last segment was appended, as it says.
    pub(crate) appended: Timestamp,
    /// When that was looked at.
    pub(crate) look: Look,
}

/// A segment, and when the store received it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) segment: Segment,
    pub(crate) at: Timestamp,
    pub(crate) bytes: u64,
}

impl Partition {
    /// Where the log begins.
    pub(crate) async fn meta(&self) -> Result<Option<Base<MetaBody>>> {
        sealed::read(&self.shared.backend, &self.path.meta()).await
    }

    /// The first message that is kept, and the hint at the end.
    pub(crate) async fn beginning(&self) -> Result<MetaBody> {
        Ok(self.meta().await?.map(|meta| body(&meta).clone()).unwrap_or_default())
    }

    /// Changes the record of the partition without saying anything new: a trimmer that has looked around before cannot raise
    /// the boundary any more. Returns where the log begins.
    pub(crate) async fn touch(&self) -> Result<Cursor> {
        let name = self.path.meta();
        let base = self.meta().await?;
        let touched = sealed::change(&self.shared.backend, &name, base, |meta| {
            Ok(Plan::<_, ()>::Write(meta.map(|meta| meta.body.clone()).unwrap_or_default()))
        });
        match touched.await? {
            Ended::Won(meta) => Ok(body(&meta).first),
            Ended::Stopped(()) => Err(Error::unavailable(format!("{name} was not changed"))),
        }
    }

    /// Reads a segment. One that cannot be read is read once more over the other connection.
    pub(crate) async fn segment(&self, number: u64) -> Result<Option<Received>> {
        let (backend, name) = (&self.shared.backend, self.path.segment(number));
        let Some(fetched) = backend.get_large(&name).await? else { return Ok(None) };
        let (at, bytes) = (fetched.modified, fetched.body.len() as u64);
        match self.decode(number, &fetched) {
            Ok(segment) => return Ok(Some(Received { segment, at, bytes })),
            Err(error) if error.kind() == crate::ErrorKind::Config => return Err(error),
            Err(_) => {}
        }
        let Some(fetched) = backend.get_large_again(&name).await? else { return Ok(None) };
        let (at, bytes) = (fetched.modified, fetched.body.len() as u64);
        Ok(Some(Received { segment: self.decode(number, &fetched)?, at, bytes }))
    }

    pub(crate) fn decode(&self, number: u64, fetched: &Fetched) -> Result<Segment> {
        let name = self.path.segment(number);
        match Segment::decode(&fetched.body) {
            Ok(segment) if segment.number == number => Ok(segment),
            Ok(segment) => {
                Err(Error::corrupt(format!("{name} says that it is number {}: it was moved here", segment.number)))
            }
            Err(Unreadable::Later(format)) => Err(Error::config(format!(
                "{name} has format {format}, which this version does not know: use a newer version of leasehold"
            ))),
            Err(Unreadable::Damaged(why)) => Err(Error::corrupt(format!("{name} cannot be read: {why}"))),
        }
    }

    /// Finds the end of the log: from the hint on in steps that double, and then by halves.
    pub(crate) async fn tail(&self) -> Result<Tail> {
        for _ in 0..SEARCHES {
            let look = Look::now(&self.shared.backend);
            let meta = self.beginning().await?;
            let Some(mut last) = self.segment(meta.hint.max(meta.first.number)).await? else {
                if meta.hint > meta.first.number {
                    // It was trimmed since the record was read.
                    continue;
                }
                return Ok(Tail { next: meta.first, appended: Timestamp::from_millis(0), look });
            };
            let (mut step, mut missing) = (1, None::<u64>);
            loop {
                let probe = match missing {
                    None => last.segment.number + step,
                    Some(missing) if missing <= last.segment.number + 1 => break,
                    Some(missing) => last.segment.number + (missing - last.segment.number) / 2,
                };
                match self.segment(probe).await? {
                    Some(found) => last = found,
                    None => missing = Some(probe),
                }
                step *= 2;
            }
            let Segment { number, appended, .. } = last.segment;
            let next = Cursor { offset: last.segment.end(), number: number + 1 };
            return Ok(Tail { next, appended, look });
        }
        Err(self.trimmed_meanwhile())
    }

    /// The first segment for which `is_late` holds, given that it holds for all after it; the end if there is none.
    pub(crate) async fn search(&self, is_late: impl Fn(&Segment) -> bool) -> Result<(MetaBody, Tail, Option<Segment>)> {
        'again: for _ in 0..SEARCHES {
            let tail = self.tail().await?;
            let meta = self.beginning().await?;
            let (mut low, mut high, mut found) = (meta.first.number, tail.next.number, None);
            while low < high {
                let middle = low + (high - low) / 2;
                let Some(received) = self.segment(middle).await? else { continue 'again };
                if is_late(&received.segment) {
                    (high, found) = (middle, Some(received.segment));
                } else {
                    low = middle + 1;
                }
            }
            return Ok((meta, tail, found));
        }
        Err(self.trimmed_meanwhile())
    }

    fn trimmed_meanwhile(&self) -> Error {
        let PartitionPath { stream, number, .. } = &self.path;
        Error::unavailable(format!("partition {number} of {stream} was trimmed while it was searched: try again"))
    }
}
