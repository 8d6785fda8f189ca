//! Fenced objects: data in the bucket that refuses the write of a holder which has lost its lease.
//!
//! A lease cannot stop a process that was paused: it wakes up and writes as if nothing had happened. What it writes to must
//! refuse it, by the [`Fence`]. A bucket does not know fences; an object that is written through here does. It carries the fence
//! of its last write, and is replaced by compare-and-swap only, so its fence can rise and never fall:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! use leasehold::{Store, fenced::Put};
//!
//! let store = Store::open("memory://").await?;
//! let files = store.fenced();
//! let paused = store.lock("report").await?.fence(); // its guard is dropped, which gives the lease back
//! let newer = store.lock("report").await?.fence();
//!
//! assert!(matches!(files.put("report/latest", "by the newer holder", newer).await?, Put::Written(_)));
//! // The one before it wakes up:
//! let Put::Refused(refused) = files.put("report/latest", "too late", paused).await? else { panic!() };
//! assert_eq!(refused.fence, newer);
//! assert_eq!(files.get("report/latest").await?.unwrap().bytes, "by the newer holder");
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - A write with a lower fence than one that was written before is refused, whenever and from wherever it is sent, also if
//!   it was already on its way.
//! - Equal fences are one holder, which may write as often as it likes: each write replaces the one before. Of two writes that
//!   it sends at once either may be the last.
//! - A write is told as [written](Put::Written), [refused](Put::Refused) or [unknown](Put::Unknown). One whose answer was lost
//!   is looked for in the store: the object names its last [`REMEMBERED`] writes.
//!
//! # Limits
//!
//! - Only for writers that come through here: one that overwrites or deletes the object by other means takes its fence away.
//! - Readers come through here as well: the object has a [header](self#format). The data has up to [`MAX_BYTES`]. For more,
//!   write it under a name that was never used, and put that name into a fenced object.
//! - One object at a time: two puts are two steps, and a reader may see the first without the second.
//! - Fences come from one key, or from one slot of a semaphore. Those of different keys cannot be compared.
//! - The data is never deleted by this library: a deleted object forgets its fence.
//!
//! # Format
//!
//! `<namespace>/fenced/<path>`, with the path spelt as keys are. Numbers are little-endian.
//!
//! ```text
//! magic "LHFENCED" · format u32 = 1 · length of the header u32 · fence u64 · revision u64 · write id 16 bytes
//! written, in ms since 1970, i64 · length of the data u64 · length of the path u16 · number of earlier write ids u16
//! 8 bytes of 0 · the path · the earlier write ids, 16 bytes each, the latest first · CRC-32C of the header up to here u32
//! the data · CRC-32C of the data u32
//! ```

mod format;
mod kind;

pub(crate) use kind::{DECLARATION, FencedKind};

use self::format::{Object, PathSlot};
use crate::{
    Error, ErrorKind, Fence, Key, Namespace, Result, WriteId,
    clock::Timestamp,
    record::{Change, Changed, Patience, Plan},
    storage::{Backend, cas},
    sweep::Activity,
};
use bytes::Bytes;
use std::{fmt, sync::Arc};

/// The most data that one object may have.
pub const MAX_BYTES: usize = 1_000_000;

/// So many of its last writes an object names, so that one whose answer was lost is recognised under later ones.
pub const REMEMBERED: usize = 8;

/// So many writes in a row may come too late because of others.
const CONFLICTS: u32 = 32;

/// The fenced objects of one namespace. Cheap to clone. Made by [`Store::fenced`](crate::Store::fenced).
#[derive(Debug, Clone)]
pub struct Fenced {
    backend: Arc<Backend>,
    activity: Arc<Activity>,
    namespace: Namespace,
}

/// What became of a write.
#[derive(Debug, Clone)]
#[must_use = "a refused write has changed nothing: its holder has lost the lease and must stop"]
pub enum Put {
    /// It is in the store, or was until a later one replaced it.
    Written(Written),
    /// A newer holder has written: nothing of this write is or was in the store. Its sender has lost its lease.
    Refused(Refused),
    /// Whether it is in the store is not known, and it may still land, unless a newer holder comes first. Repeat it, or read.
    Unknown(Error),
}

/// A write that is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Its fence.
    pub fence: Fence,
    /// How often the object has been written.
    pub revision: u64,
}

/// A write that came too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The fence that was asked for.
    pub asked: Fence,
    /// The higher one that the object has.
    pub fence: Fence,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is older than {}, with which a newer holder has written", self.asked, self.fence)
    }
}

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Data {
    /// The data.
    pub bytes: Bytes,
    /// The fence that it was written with.
    pub fence: Fence,
    /// How often the object has been written.
    pub revision: u64,
    /// When, by its writer's clock.
    pub written_at: Timestamp,
}

impl Fenced {
    pub(crate) fn new(backend: &Arc<Backend>, activity: &Arc<Activity>, namespace: Namespace) -> Self {
        Self { backend: Arc::clone(backend), activity: Arc::clone(activity), namespace }
    }

    /// Those of another namespace than `default`.
    pub fn namespace<N>(mut self, namespace: N) -> Result<Self>
    where
        N: TryInto<Namespace>,
        N::Error: Into<Error>,
    {
        self.namespace = namespace.try_into().map_err(Into::into)?;
        Ok(self)
    }

    fn slot<K>(&self, path: K) -> Result<PathSlot>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Ok(PathSlot { namespace: self.namespace.clone(), path: path.try_into().map_err(Into::into)? })
    }

    /// Writes an object, unless one with a higher fence is there: one read and one write.
    ///
    /// An error means that nothing was written; where that is not known, the outcome is [`Put::Unknown`].
    ///
    /// # Cancellation
    /// Dropped in the middle, its write may land all the same, unless one with a higher fence comes first.
    pub async fn put<K>(&self, path: K, bytes: impl Into<Bytes>, fence: Fence) -> Result<Put>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let (slot, bytes) = (self.slot(path)?, bytes.into());
        if bytes.len() > MAX_BYTES {
            return Err(Error::invalid(format!(
                "{} bytes are too many for {}: at most {MAX_BYTES} are allowed; write them under a name that was never used, \
                 and put that name here",
                bytes.len(),
                slot.path
            )));
        }
        self.activity.touch(&*self.backend.clock);
        let base = cas::read(&self.backend, &slot).await?.map(Arc::new);
        let patience = Patience { within: 3 * self.backend.request_timeout, conflicts: CONFLICTS };
        let mut change: Change<PathSlot, ()> = Change::new(&self.backend, slot.clone(), base, patience);
        let mut sent_on: Option<u64> = None;
        let changed = change.run(|there, stamp| {
            let there = there.map(cas::Seen::record);
            // Of more writes than it remembers an object does not say whether one of them was ours.
            let revision = there.map_or(0, |there| there.revision);
            if sent_on.is_some_and(|before| revision > before + REMEMBERED as u64) {
                return Err(Error::unknown(format!(
                    "whether {} was written is not known: others have written it too often since",
                    slot.path
                )));
            }
            let plan = match next(there, &bytes, fence, stamp, self.backend.clock.wall()) {
                Ok(object) => {
                    sent_on = Some(revision);
                    Plan::Write(object)
                }
                Err(refused) => Plan::Stop(refused),
            };
            Ok(((), plan))
        });
        match changed.await {
            Ok(Changed::Won(seen, ())) => Ok(Put::Written(Written { fence, revision: seen.record().revision })),
            Ok(Changed::Stopped(refused)) => Ok(Put::Refused(refused)),
            Err(error) if error.kind() == ErrorKind::Unknown || change.is_in_doubt() => Ok(Put::Unknown(error)),
            Err(error) => Err(error),
        }
    }

    /// The object with its fence; `None` if there is none. One read.
    pub async fn get<K>(&self, path: K) -> Result<Option<Data>>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let slot = self.slot(path)?;
        self.activity.touch(&*self.backend.clock);
        let seen = cas::read(&self.backend, &slot).await?;
        Ok(seen.map(|seen| {
            let Object { bytes, fence, revision, written, .. } = seen.record().clone();
            Data { bytes, fence, revision, written_at: written }
        }))
    }
}

/// The rule: what follows the object that is there, or why nothing does.
fn next(
    there: Option<&Object>,
    bytes: &Bytes,
    fence: Fence,
    stamp: cas::Stamp,
    now: Timestamp,
) -> Result<Object, Refused> {
    if let Some(there) = there.filter(|there| there.fence > fence) {
        return Err(Refused { asked: fence, fence: there.fence });
    }
    let earlier =
        there.into_iter().flat_map(|there| std::iter::once(there.write_id).chain(there.earlier.iter().copied()));
    let earlier: Vec<WriteId> = earlier.take(REMEMBERED - 1).collect();
    let cas::Stamp { write_id, revision } = stamp;
    Ok(Object { write_id, revision, fence, written: now, earlier, bytes: bytes.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(there: Option<&Object>, number: u8, fence: u64) -> Result<Object, Refused> {
        let stamp = cas::Stamp { write_id: [number; 16].into(), revision: there.map_or(0, |there| there.revision) + 1 };
        next(there, &Bytes::from_static(b"x"), Fence::new(fence).unwrap(), stamp, Timestamp::from_millis(7))
    }

    #[test]
    fn a_fence_rises_or_stays_and_a_lower_one_is_refused() {
        let first = after(None, 1, 5).unwrap();
        let again = after(Some(&first), 2, 5).unwrap();
        let higher = after(Some(&again), 3, 6).unwrap();
        assert_eq!((higher.revision, higher.fence.get()), (3, 6));
        let refused = after(Some(&higher), 4, 5).unwrap_err();
        assert_eq!((refused.asked.get(), refused.fence.get()), (5, 6));
        assert_eq!(refused.to_string(), "fence 5 is older than 6, with which a newer holder has written");
    }

    #[test]
    fn an_object_names_its_last_writes_the_latest_first() {
        use crate::storage::cas::Record as _;
        let mut object = after(None, 0, 1).unwrap();
        for number in 1..20 {
            object = after(Some(&object), number, 1).unwrap();
        }
        assert_eq!(object.earlier.len(), REMEMBERED - 1);
        let carries = |number: u8| object.carries([number; 16].into());
        assert!((12..20).all(carries) && !(0..12).any(carries));
    }
}
