//! What an operator does by force: taking a lease away, and putting a new record in the place of one that cannot be read.
//!
//! # What could go wrong
//! - *The record is fine and only the answer was damaged.* It is read twice, over two connections, and must be the same.
//! - *Somebody writes it meanwhile* (a holder whose cached version is still good renews it, or a second operator repairs
//!   it). The new record is a swap on the version that was judged: one of them wins, and the other looks again.
//! - *Whoever held it still believes in its lease.* The new record carries a lease of nobody's that lasts for as long as
//!   the old one can have: nobody else is granted the key before, and the holder finds itself lost when it renews.
//! - *The fence was in the record.* The new one is above everything that can still be read of the old one, and above
//!   whatever any machine can have granted until now.
//! - *A death in between.* The entry of the new lease comes first, then the copy aside, then the swap: what is left is a
//!   hint too many, or a copy too many.

use super::{
    Leases,
    cell::Cell,
    engine::{Change, Engine, Plan, Swapped},
    flight::{Flight, Intent},
    layout,
    record::{self, ForcedAway, KeySlot, Lease, Record},
    types::Holder,
    wire,
};
use crate::{
    Error, ErrorKind, Fence, Hour, Key, LeaseId, Result, Ttl, WriteId,
    clock::Timestamp,
    record as records,
    storage::{
        Name, Repair,
        cas::{self, Record as _, Slot, Stamp},
        in_a_name,
    },
};
use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// Fences above this are not taken from a damaged record: one flipped bit must not use up all that are left.
const HIGHEST_SALVAGED: u64 = (1 << 53) - (1 << 32);

/// The owner of the lease that keeps a mended key closed.
const CARETAKER: &str = "leasehold fsck";

const TRIES: u32 = 5;

/// What became of taking a lease away.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Forced {
    /// Who held it. `None` if the record could not be read.
    pub taken_from: Option<Holder>,
    /// Every later grant has a higher fence: what the lease protects may refuse lower ones from now on.
    pub fence: Fence,
    /// The object that says who did it, when and why.
    pub recorded: String,
    /// Where the record is now if it could not be read.
    pub aside: Option<String>,
}

/// A new record that was put in the place of one that could not be read.
#[derive(Debug)]
pub(super) struct Mended {
    pub(super) aside: Name,
    pub(super) fence: Fence,
    /// Nobody is granted the key before.
    pub(super) closed_until: Option<Timestamp>,
    recorded: Name,
}

/// A record that may be damaged: what can still be read of it is good for nothing but to stay above it.
#[derive(Debug)]
pub(super) enum Found {
    Readable(Box<Record>),
    Damaged(Damaged),
}

#[derive(Debug)]
pub(super) struct Damaged {
    /// Of its bytes: it has no id of its own that could be trusted.
    id: WriteId,
    revision: u64,
    fence: Option<Fence>,
    pub(super) why: String,
    /// It says that a later version wrote it, which may have its reasons.
    pub(super) is_later: bool,
    body: Bytes,
}

impl Damaged {
    fn new(body: Bytes, why: String) -> Self {
        let mut message = wire::Record::default();
        // As far as it goes: whatever comes before the damage stays.
        let _ = message.merge(body.clone());
        let fences = [message.last_fence, message.lease.as_ref().map_or(0, |lease| lease.fence)];
        let fence = fences.into_iter().filter(|fence| *fence < HIGHEST_SALVAGED).max();
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(&body)[..16]);
        Self {
            id: WriteId::from(id),
            revision: Some(message.revision).filter(|revision| *revision < 1 << 53).unwrap_or(0),
            fence: fence.and_then(|fence| Fence::new(fence).ok()),
            is_later: message.format > record::FORMAT,
            why,
            body,
        }
    }

    /// The key that it says it is of, if that is the one that its name stands for.
    pub(super) fn key(body: &Bytes, name: &str) -> Option<Key> {
        let mut message = wire::Record::default();
        let _ = message.merge(body.clone());
        Key::new(&message.key).ok().filter(|key| key.name() == name)
    }
}

impl cas::Record for Found {
    fn write_id(&self) -> WriteId {
        match self {
            Self::Readable(record) => record.write_id(),
            Self::Damaged(damaged) => damaged.id,
        }
    }

    fn revision(&self) -> u64 {
        match self {
            Self::Readable(record) => record.revision(),
            Self::Damaged(damaged) => damaged.revision,
        }
    }

    fn carries(&self, id: WriteId) -> bool {
        match self {
            Self::Readable(record) => record.carries(id),
            Self::Damaged(_) => false,
        }
    }
}

/// The place of a record that may be damaged. Reading it never fails for what is in it.
#[derive(Debug, Clone)]
pub(super) struct MendSlot(pub(super) KeySlot);

impl Slot for MendSlot {
    type Record = Found;

    fn name(&self) -> Name {
        self.0.name()
    }

    fn encode(&self, found: &Found) -> Result<Bytes> {
        match found {
            Found::Readable(record) => self.0.encode(record),
            Found::Damaged(_) => Err(Error::corrupt(format!("{} cannot be written as it is", self.name()))),
        }
    }

    fn decode(&self, body: Bytes) -> Result<Found> {
        Ok(match record::decode(body.clone()) {
            Ok((key, record)) if key == self.0.key => Found::Readable(Box::new(record)),
            Ok((key, _)) => Found::Damaged(Damaged::new(body, format!("it is that of another key, {key}"))),
            Err(why) => Found::Damaged(Damaged::new(body, why)),
        })
    }
}

impl Leases {
    /// Takes a lease away from whoever holds it, for an operator who knows better. The fence rises, and the reason is
    /// written down in the store. `None` if there was nothing to take away.
    ///
    /// Its holder is not asked: it goes on until it next looks after its lease, and only a resource that checks fences is
    /// safe from it until then. A lease that was granted meanwhile, to somebody else, is left alone.
    ///
    /// A record that cannot be read is moved aside, and the key is free at once: whoever calls this vouches for it that
    /// nobody holds it any more.
    pub async fn force_release(&self, key: &Key, reason: &str, by: &str) -> Result<Option<Forced>> {
        self.touch();
        self.engine.force_release(&self.cell(key), reason, by).await
    }
}

impl Engine {
    async fn force_release(self: &Arc<Self>, cell: &Arc<Cell>, reason: &str, by: &str) -> Result<Option<Forced>> {
        if reason.trim().is_empty() {
            return Err(Error::invalid("a lease is taken away for a reason: say which"));
        }
        self.trust_clock().await?;
        let core = self.hold(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        match self.read(cell, flight.core()).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                drop(flight);
                let mended = self.mend(cell, reason, by, Closed::No).await?;
                return Ok(mended.map(|mended| Forced {
                    taken_from: None,
                    fence: mended.fence,
                    recorded: mended.recorded.to_string(),
                    aside: Some(mended.aside.to_string()),
                }));
            }
            Err(error) => return Err(error),
        }
        let Some(lease) = flight.core().record().and_then(|record| record.lease.clone()) else { return Ok(None) };
        let KeySlot { namespace, key } = &cell.slot;
        let what = "release_forced";
        let repair = Repair { what, namespace: Some(namespace), key: Some(key), reason, by, aside: None };
        let recorded = repair.record(&self.backend).await?;
        let mut fence = lease.fence;
        let swapped = self.swap(&mut flight, None, |core, now| {
            self.believe(now.wall)?;
            let record = core.record();
            let there = record.and_then(|record| record.lease.as_ref()).map(|lease| lease.id);
            if there != Some(lease.id) {
                return Ok(Plan::Stop(()));
            }
            let last = core.fence.max(record.and_then(|record| record.last_fence));
            fence = Fence::next(last, now.wall, self.shared.max_clock_skew)?;
            let away = ForcedAway { lease: lease.id, by: shortened(by), reason: shortened(reason) };
            let forced = Some(Box::new(away));
            Ok(Plan::write(Change { last_fence: Some(fence), forced, ..Change::free(record) }))
        });
        match swapped.await? {
            Swapped::Won(_) => {}
            // It was released, or taken over, while we wrote down why.
            Swapped::Stopped(()) => return Ok(None),
        }
        tracing::warn!(%key, owner = &*lease.owner, lease = %lease.id, reason, by, "a lease was taken away by force");
        cell.queue.wake();
        let taken_from = Some(Holder::from(&lease));
        Ok(Some(Forced { taken_from, fence, recorded: recorded.to_string(), aside: None }))
    }

    /// Puts a new record in the place of one that cannot be read. `None` if it can be read, or is not there any more.
    pub(super) async fn mend(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        reason: &str,
        by: &str,
        closed: Closed,
    ) -> Result<Option<Mended>> {
        self.trust_clock().await?;
        // Nothing of this process comes in between.
        let mut core = self.hold(cell).await?;
        let slot = MendSlot(cell.slot.clone());
        for _ in 0..TRIES {
            // First, so that it is older than what is read.
            let time = self.backend.write_time().await?;
            let Some(seen) = cas::read_twice(&self.backend, &slot).await? else { return Ok(None) };
            let Found::Damaged(damaged) = seen.record() else { return Ok(None) };
            let now = self.now().wall;
            self.believe(now)?;
            let fence = self.fence_above_all(core.fence.max(damaged.fence), now)?;
            let closed_until = match closed {
                Closed::No => None,
                Closed::WhileSomebodyMayBelieve => self.believed_until(seen.modified(), time, now),
            };
            let lease = closed_until.map(|expires| self.caretaker(fence, now, expires, &damaged.why)).transpose()?;
            let filed = lease.as_ref().map(|lease| Hour::of(lease.expires)).transpose()?;
            if let (Some(lease), Some(hour)) = (&lease, filed) {
                let entry = layout::entry(&cell.slot.namespace, &cell.slot.key, hour);
                self.backend.file(&entry, layout::entry_body(&cell.slot.key, lease.expires)).await?;
            }
            let aside = self.set_aside(&cell.slot, damaged.body.clone(), now).await?;
            let KeySlot { namespace, key } = &cell.slot;
            let what = "record_moved_aside";
            let moved = Some(aside.as_str());
            let repair = Repair { what, namespace: Some(namespace), key: Some(key), reason, by, aside: moved };
            let recorded = repair.record(&self.backend).await?;
            let build = |stamp: Stamp| {
                let mut record = Record::without_lease(None, stamp, now);
                record.last_fence = Some(fence);
                record.lease = lease.clone().map(|lease| Lease { beat: stamp.write_id, ..lease });
                record.hour = filed;
                Found::Readable(Box::new(record))
            };
            if self.swap_in(&slot, seen, build).await? {
                core.forget();
                core.fence = core.fence.max(Some(fence));
                tracing::warn!(%key, %aside, %fence, reason, by, "a record that cannot be read was moved aside");
                cell.queue.wake();
                return Ok(Some(Mended { aside, fence, closed_until, recorded }));
            }
        }
        Err(Error::unavailable(format!("the record of {} changes too fast: try again", cell.slot.key)))
    }

    /// Whether it was won; lost means that somebody else was faster.
    async fn swap_in(&self, slot: &MendSlot, base: cas::Seen<Found>, build: impl Fn(Stamp) -> Found) -> Result<bool> {
        let based_on = base.record().write_id();
        let patience = records::Patience { within: self.patience(), conflicts: 2 };
        let mut change = records::Change::new(&self.backend, slot.clone(), Some(Arc::new(base)), patience);
        let changed = change.run(|there, stamp| {
            Ok((
                (),
                match there {
                    Some(there) if there.record().write_id() == based_on => records::Plan::Write(build(stamp)),
                    _ => records::Plan::Stop(()),
                },
            ))
        });
        Ok(matches!(changed.await?, records::Changed::Won(..)))
    }

    /// Above every fence that a record which cannot be read, or is not there, can have had: another machine may have made
    /// a record where there was none, by what it knew of the store's time.
    fn fence_above_all(&self, known: Option<Fence>, now: Timestamp) -> Result<Fence> {
        let skew = self.shared.max_clock_skew;
        let above = Fence::first(known, self.store_upper(now), skew)?;
        Fence::first(Some(above), now, skew)
    }

    /// Until when somebody may believe in a lease that was in a damaged record: its last beat came before the object was
    /// last written, or then. By the store's stamps alone, as this machine's clock may be wrong; `None` if that is over.
    fn believed_until(&self, modified: Option<Timestamp>, time: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let max_ttl = self.shared.max_ttl;
        let longest = max_ttl + max_ttl / 1000 + self.shared.max_clock_skew;
        let passed = match (modified, self.backend.stamp_slack()) {
            (Some(modified), Some(slack)) => time.since(modified).saturating_sub(slack),
            _ => Duration::ZERO,
        };
        let left = longest.saturating_sub(passed).min(max_ttl);
        (!left.is_zero()).then(|| now.plus(left))
    }

    /// A lease that nobody has, and that ends by itself.
    fn caretaker(&self, fence: Fence, now: Timestamp, expires: Timestamp, why: &str) -> Result<Lease> {
        let left = Duration::from_millis(u64::try_from(expires.since(now).as_millis()).unwrap_or(u64::MAX).max(1));
        let why = shortened(why);
        Ok(Lease {
            id: LeaseId::random(&*self.backend.generator),
            request_id: None,
            owner: CARETAKER.into(),
            process: self.process,
            note: Some(format!("closed until nobody can believe in the lease that was here: {why}").into()),
            fence,
            granted: now,
            expires: Timestamp::from_millis(expires.as_millis()),
            ttl: Ttl::new(left)?,
            beat: WriteId::from([0; 16]),
            lasts: Some(left),
            boot: self.boot_at(self.now().moment),
        })
    }

    /// A copy under a name that says when, and that no listing of keys comes by.
    async fn set_aside(&self, slot: &KeySlot, body: Bytes, now: Timestamp) -> Result<Name> {
        let id = WriteId::random(&*self.backend.generator);
        let name = layout::aside(&slot.namespace, &slot.key, &in_a_name(now), id);
        let put = self.backend.put_fresh(&name, body, self.backend.bulk_timeout).await;
        put.map_err(|error| error.while_doing("nothing was changed, as no copy could be made"))?;
        Ok(name)
    }

    /// Makes a record that nobody holds for a key that has none. `None` if somebody was faster.
    pub(super) async fn make_record(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        reason: &str,
        by: &str,
    ) -> Result<Option<Fence>> {
        self.trust_clock().await?;
        let core = self.hold(cell).await?;
        let mut flight = Flight::new(self, cell, core, Intent::Nothing);
        self.read(cell, flight.core()).await?;
        if flight.core().record().is_some() {
            return Ok(None);
        }
        let KeySlot { namespace, key } = &cell.slot;
        let repair =
            Repair { what: "record_made", namespace: Some(namespace), key: Some(key), reason, by, aside: None };
        repair.record(&self.backend).await?;
        let mut made = None;
        let swapped = self.swap(&mut flight, None, |core, now| {
            self.believe(now.wall)?;
            if core.record().is_some() {
                return Ok(Plan::Stop(()));
            }
            let fence = self.fence_above_all(core.fence, now.wall)?;
            made = Some(fence);
            Ok(Plan::write(Change { last_fence: Some(fence), ..Change::free(None) }))
        });
        Ok(match swapped.await? {
            Swapped::Won(_) => made,
            Swapped::Stopped(()) => None,
        })
    }
}

/// So much of a text as a record has room for.
fn shortened(text: &str) -> String {
    text.chars().take(500).collect()
}

/// Whether a mended key stays closed for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    No,
    WhileSomebodyMayBelieve,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(last_fence: u64, lease_fence: u64) -> Bytes {
        let lease = wire::Lease { fence: lease_fence, expires_ms: 7, ..Default::default() };
        let message =
            wire::Record { key: "x".into(), revision: 41, last_fence, lease: Some(lease), ..Default::default() };
        message.encode_to_vec().into()
    }

    #[test]
    fn what_stands_before_the_damage_is_stayed_above() {
        let whole = body(1000, 999);
        let damaged = Damaged::new(whole.clone(), String::new());
        assert_eq!((damaged.fence, damaged.revision), (Fence::new(1000).ok(), 41));
        // The revision and the fence come first; the lease is cut.
        let damaged = Damaged::new(whole.slice(..whole.len() - 2), String::new());
        assert_eq!((damaged.fence, damaged.revision), (Fence::new(1000).ok(), 41));
        assert_eq!(Damaged::new(Bytes::new(), String::new()).fence, None);
        assert_eq!(Damaged::new(body(1000, 2000), String::new()).fence, Fence::new(2000).ok());
    }

    #[test]
    fn a_fence_that_would_use_up_all_that_are_left_is_not_believed() {
        for wrong in [(1 << 53) - 1, 1 << 53, u64::MAX] {
            assert_eq!(Damaged::new(body(wrong, 1000), String::new()).fence, Fence::new(1000).ok());
        }
        let highest = Damaged::new(body(HIGHEST_SALVAGED - 1, 0), String::new());
        assert_eq!(highest.fence, Fence::new(HIGHEST_SALVAGED - 1).ok());
    }

    #[test]
    fn a_key_is_believed_only_if_it_has_the_name() {
        assert_eq!(Damaged::key(&body(1, 1), "x"), Key::new("x").ok());
        assert_eq!(Damaged::key(&body(1, 1), "y"), None);
    }
}
