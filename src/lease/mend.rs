//! What an operator does by force: taking a lease away, and putting a new record in the place of one that cannot be read.
//!
//! # What could go wrong
//! - *The record is fine and only the answer was damaged.* It is read twice, over two connections, and must be the same.
//! - *Another process writes it meanwhile* (a holder whose cached version is still good renews it, or a second operator repairs
//!   it). The new record is a swap on the version that was judged: one of them wins, and the other looks again.
//! - *Its holder still believes in its lease.* The new record carries a lease without a holder that lasts for as long as
//!   the old one can have: the key is not granted before, and the holder finds itself lost when it renews.
//! - *The fence was in the record.* The new one is above everything that can still be read of the old one, and above
//!   everything that any machine can have granted until now.
//! - *A death in between.* The entry of the new lease comes first, then the copy aside, then the swap: what is left is a
//!   hint too many, or a copy too many.

use super::{
    Leases,
    ask::ask,
    engine::Engine,
    keys::KeyEntry,
    layout,
    operation::{Operation, Swapped, file},
    others,
    plan::{self, View},
    record::{self, Asked, ForcedAway, KeySlot, Lease, Record},
    types::Holder,
    wire,
};
use crate::{
    Error, ErrorKind, Fence, Hour, Key, LeaseId, Result, Ttl, WriteId,
    clock::Timestamp,
    record::{Change, Changed, Patience, Plan},
    storage::{
        Name, Repair,
        cas::{self, Record as _, Seen, Slot, Stamp},
        in_a_name,
    },
};
use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// Fences above this are not taken from a damaged record: one flipped bit must not use up all that are left.
const HIGHEST_SALVAGED: u64 = (1 << 53) - (1 << 32);

/// The owner of the lease that keeps a repaired key closed.
const QUARANTINE: &str = "leasehold fsck";

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
    /// The lease is held under a session, and its process was asked to give it back: the key is not free yet. It is when
    /// that process has next renewed its session, or when the session has ended.
    pub asked: bool,
}

/// A new record that was put in the place of one that could not be read.
#[derive(Debug)]
pub(super) struct Mended {
    pub(super) aside: Name,
    pub(super) fence: Fence,
    /// The key is not granted before.
    pub(super) closed_until: Option<Timestamp>,
    recorded: Name,
}

/// A record that may be damaged: what can still be read of it is good for nothing but to stay above it.
#[derive(Debug)]
pub(super) enum MaybeDamaged {
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
        // As far as it goes: what comes before the damage stays.
        let _ = message.merge(body.clone());
        let fences = [message.last_fence, message.lease.as_ref().map_or(0, |lease| lease.fence)];
        let fence = fences.into_iter().filter(|fence| *fence < HIGHEST_SALVAGED).max();
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(&body)[..16]);
        Self {
            id: WriteId::from(id),
            revision: Some(message.revision).filter(|revision| *revision < 1 << 53).unwrap_or(0),
            fence: fence.and_then(|fence| Fence::new(fence).ok()),
            is_later: message.format > record::SESSION_FORMAT,
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

impl cas::Record for MaybeDamaged {
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
    type Record = MaybeDamaged;

    fn name(&self) -> Name {
        self.0.name()
    }

    fn encode(&self, found: &MaybeDamaged) -> Result<Bytes> {
        match found {
            MaybeDamaged::Readable(record) => self.0.encode(record),
            MaybeDamaged::Damaged(_) => Err(Error::corrupt(format!("{} cannot be written as it is", self.name()))),
        }
    }

    fn decode(&self, body: Bytes) -> Result<MaybeDamaged> {
        Ok(match record::decode(body.clone()) {
            Ok((key, record)) if key == self.0.key => MaybeDamaged::Readable(Box::new(record)),
            Ok((key, _)) => MaybeDamaged::Damaged(Damaged::new(body, format!("it is that of another key, {key}"))),
            Err(why) => MaybeDamaged::Damaged(Damaged::new(body, why)),
        })
    }
}

impl Leases {
    /// Takes a lease away from its holder, for an operator who knows better. The fence rises, and the reason is
    /// written down in the store. `None` if there was nothing to take away.
    ///
    /// Its holder is not asked: it goes on until it next looks after its lease, and only a resource that checks fences is
    /// safe from it until then. A lease that was granted to another one meanwhile is left alone.
    ///
    /// A record that cannot be read is moved aside, and the key is free at once: the caller vouches that it is
    /// not held any more.
    ///
    /// A lease that is held under a [session](crate::session) is only asked for ([`Forced::asked`]): its holder would not
    /// notice that it was taken. Its process gives it back with the next renewal of the session.
    pub async fn force_release(&self, key: &Key, reason: &str, by: &str) -> Result<Option<Forced>> {
        self.touch();
        force_release(&self.engine, &self.entry(key), reason, by, false).await
    }

    /// Takes a lease away at once that is held under a session: **two may run** until the process of that session has
    /// next renewed it. Any other lease is taken away as by [`force_release`](Self::force_release).
    pub async fn force_release_now(&self, key: &Key, reason: &str, by: &str) -> Result<Option<Forced>> {
        self.touch();
        force_release(&self.engine, &self.entry(key), reason, by, true).await
    }
}

/// Asks for a lease that is held under a session which has not ended. True if nothing more is to be done.
async fn ask_first(operation: &mut Operation, away: &ForcedAway, now: bool) -> Result<bool> {
    others::second_look(operation, None).await?;
    let known = operation.known();
    let Some(session) = known.lease().filter(|lease| lease.id == away.lease).and_then(|lease| lease.session) else {
        return Ok(false);
    };
    if known.session_over == Some(session) {
        return Ok(false);
    }
    let KeySlot { namespace, key } = operation.entry.slot.clone();
    let asked = Asked { namespace, key, away: away.clone() };
    Ok(ask(&operation.engine, session, &asked).await? && !now)
}

async fn force_release(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    reason: &str,
    by: &str,
    now: bool,
) -> Result<Option<Forced>> {
    if reason.trim().is_empty() {
        return Err(Error::invalid("a lease is taken away for a reason: say which"));
    }
    engine.trust_clock().await?;
    let state = engine.lock_key(entry).await?;
    let mut operation = Operation::new(engine, entry, state);
    match operation.read().await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            drop(operation);
            let mended = mend(engine, entry, reason, by, Closed::No).await?;
            return Ok(mended.map(|mended| Forced {
                taken_from: None,
                fence: mended.fence,
                recorded: mended.recorded.to_string(),
                aside: Some(mended.aside.to_string()),
                asked: false,
            }));
        }
        Err(error) => return Err(error),
    }
    let Some(lease) = operation.known().lease().cloned() else { return Ok(None) };
    let KeySlot { namespace, key } = &entry.slot;
    let what = "release_forced";
    let repair = Repair { what, namespace: Some(namespace), key: Some(key), reason, by, aside: None };
    let recorded = repair.record(&engine.backend).await?;
    let away = ForcedAway { lease: lease.id, by: shortened(by), reason: shortened(reason) };
    let taken_from = Some(Holder::from(&lease));
    if lease.session.is_some() && ask_first(&mut operation, &away, now).await? {
        tracing::warn!(%key, owner = &*lease.owner, lease = %lease.id, reason, by, "a lease under a session was asked for by force");
        let recorded = recorded.to_string();
        return Ok(Some(Forced { taken_from, fence: lease.fence, recorded, aside: None, asked: true }));
    }
    let swapped = operation.swap(None, |view| {
        engine.check_clock(view.readings.now.wall)?;
        plan::force_away(view, away.clone())
    });
    match swapped.await? {
        Swapped::Won(_) => {}
        // It was released, or taken over, while the reason was written down.
        Swapped::Stopped(()) => return Ok(None),
    }
    tracing::warn!(%key, owner = &*lease.owner, lease = %lease.id, reason, by, "a lease was taken away by force");
    entry.queue.wake();
    let fence = operation.known().fence.unwrap_or(lease.fence);
    Ok(Some(Forced { taken_from, fence, recorded: recorded.to_string(), aside: None, asked: false }))
}

/// Puts a new record in the place of one that cannot be read. `None` if it can be read, or is not there any more.
pub(super) async fn mend(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    reason: &str,
    by: &str,
    closed: Closed,
) -> Result<Option<Mended>> {
    engine.trust_clock().await?;
    // Nothing of this process comes in between.
    let mut state = engine.lock_key(entry).await?;
    for _ in 0..TRIES {
        // First, so that it is older than what is read.
        let time = engine.backend.write_time().await?;
        let Some(seen) = cas::read_twice(&engine.backend, &MendSlot(entry.slot.clone())).await? else {
            return Ok(None);
        };
        let MaybeDamaged::Damaged(damaged) = seen.record() else { return Ok(None) };
        let view = engine.view(state.facts(), engine.now());
        let replacement = Replacement::new(engine, &view, damaged, seen.modified(), time, closed)?;
        if let Some((mended, reason)) = replacement.write(engine, entry, seen, reason, by).await? {
            state.forget();
            state.fence = state.fence.max(Some(mended.fence));
            let (key, aside, fence) = (&entry.slot.key, &mended.aside, mended.fence);
            tracing::warn!(%key, %aside, %fence, reason, by, "a record that cannot be read was moved aside");
            entry.queue.wake();
            return Ok(Some(mended));
        }
    }
    Err(Error::unavailable(format!("the record of {} changes too fast: try again", entry.slot.key)))
}

/// What takes the place of a record that cannot be read.
struct Replacement {
    fence: Fence,
    closed_until: Option<Timestamp>,
    lease: Option<Lease>,
    now: Timestamp,
}

impl Replacement {
    fn new(
        engine: &Engine,
        view: &View<'_>,
        damaged: &Damaged,
        modified: Option<Timestamp>,
        time: Timestamp,
        closed: Closed,
    ) -> Result<Self> {
        let now = view.readings.now.wall;
        engine.check_clock(now)?;
        let fence = view.fence_above_all(view.facts.fence.max(damaged.fence))?;
        let closed_until = match closed {
            Closed::No => None,
            Closed::WhileSomebodyMayBelieve => believed_until(view, modified, time),
        };
        let id = LeaseId::random(&*engine.backend.generator);
        let lease = closed_until.map(|expires| quarantine_lease(view, id, fence, expires, &damaged.why)).transpose()?;
        Ok(Self { fence, closed_until, lease, now })
    }

    /// Files the entry of its lease, keeps a copy of what is there, and puts it in its place. `None` if another write came
    /// first.
    async fn write<'a>(
        self,
        engine: &Arc<Engine>,
        entry: &KeyEntry,
        seen: Seen<MaybeDamaged>,
        reason: &'a str,
        by: &str,
    ) -> Result<Option<(Mended, &'a str)>> {
        let MaybeDamaged::Damaged(damaged) = seen.record() else { return Ok(None) };
        let filed = self.lease.as_ref().map(|lease| Hour::of(lease.expires)).transpose()?;
        if let (Some(lease), Some(hour)) = (&self.lease, filed) {
            file(engine, &entry.slot, hour, lease.expires).await?;
        }
        let aside = set_aside(engine, &entry.slot, damaged.body.clone(), self.now).await?;
        let KeySlot { namespace, key } = &entry.slot;
        let (what, moved) = ("record_moved_aside", Some(aside.as_str()));
        let repair = Repair { what, namespace: Some(namespace), key: Some(key), reason, by, aside: moved };
        let recorded = repair.record(&engine.backend).await?;
        let (fence, closed_until) = (self.fence, self.closed_until);
        let based_on = seen.record().write_id();
        let patience = Patience { within: engine.operation_timeout(), conflicts: 2 };
        let slot = MendSlot(entry.slot.clone());
        let mut change = Change::new(&engine.backend, slot, Some(Arc::new(seen)), patience);
        let changed = change.run(|there, stamp| {
            let unchanged = there.is_some_and(|there| there.record().write_id() == based_on);
            let record = || MaybeDamaged::Readable(Box::new(self.record(stamp, filed)));
            Ok(((), if unchanged { Plan::Write(record()) } else { Plan::Stop(()) }))
        });
        let won = matches!(changed.await?, Changed::Won(..));
        Ok(won.then_some((Mended { aside, fence, closed_until, recorded }, reason)))
    }

    fn record(&self, stamp: Stamp, filed: Option<Hour>) -> Record {
        let mut record = Record::without_lease(None, stamp, self.now);
        record.last_fence = Some(self.fence);
        record.lease = self.lease.clone().map(|lease| Lease { beat: stamp.write_id, ..lease });
        record.hour = filed;
        record
    }
}

/// Until when a lease may be believed in that was in a damaged record: its last beat came before the object was last
/// written, or then. By the store's stamps alone, as this machine's clock may be wrong; `None` if that is over.
fn believed_until(view: &View<'_>, modified: Option<Timestamp>, time: Timestamp) -> Option<Timestamp> {
    let max_ttl = view.rules.max_ttl;
    let longest = max_ttl + max_ttl / 1000 + view.rules.max_clock_skew;
    let passed = match (modified, view.readings.stamp_slack) {
        (Some(modified), Some(slack)) => time.since(modified).saturating_sub(slack),
        _ => Duration::ZERO,
    };
    let left = longest.saturating_sub(passed).min(max_ttl);
    (!left.is_zero()).then(|| view.readings.now.wall.plus(left))
}

/// A lease without a holder, which ends by itself.
fn quarantine_lease(view: &View<'_>, id: LeaseId, fence: Fence, expires: Timestamp, why: &str) -> Result<Lease> {
    let now = view.readings.now.wall;
    let left = Duration::from_millis(u64::try_from(expires.since(now).as_millis()).unwrap_or(u64::MAX).max(1));
    let why = shortened(why);
    Ok(Lease {
        id,
        request_id: None,
        owner: QUARANTINE.into(),
        process: view.rules.process,
        note: Some(format!("closed until nobody can believe in the lease that was here: {why}").into()),
        fence,
        granted: now,
        expires: Timestamp::from_millis(expires.as_millis()),
        ttl: Ttl::new(left)?,
        beat: WriteId::from([0; 16]),
        lasts: Some(left),
        boot: view.boot(),
        session: None,
    })
}

/// A copy under a name that says when, and that no listing of keys comes by.
async fn set_aside(engine: &Engine, slot: &KeySlot, body: Bytes, now: Timestamp) -> Result<Name> {
    let id = WriteId::random(&*engine.backend.generator);
    let name = layout::aside(&slot.namespace, &slot.key, &in_a_name(now), id);
    let put = engine.backend.put_fresh(&name, body, engine.backend.bulk_timeout).await;
    put.map_err(|error| error.while_doing("nothing was changed, as no copy could be made"))?;
    Ok(name)
}

/// Makes a free record for a key that has none. `None` if another process was faster.
pub(super) async fn make_record(
    engine: &Arc<Engine>,
    entry: &Arc<KeyEntry>,
    reason: &str,
    by: &str,
) -> Result<Option<Fence>> {
    engine.trust_clock().await?;
    let state = engine.lock_key(entry).await?;
    let mut operation = Operation::new(engine, entry, state);
    operation.read().await?;
    if operation.known().record().is_some() {
        return Ok(None);
    }
    let KeySlot { namespace, key } = &entry.slot;
    let repair = Repair { what: "record_made", namespace: Some(namespace), key: Some(key), reason, by, aside: None };
    repair.record(&engine.backend).await?;
    let swapped = operation.swap(None, |view| {
        engine.check_clock(view.readings.now.wall)?;
        plan::make_free(view)
    });
    Ok(match swapped.await? {
        Swapped::Won(_) => operation.known().record().and_then(|record| record.last_fence),
        Swapped::Stopped(()) => None,
    })
}

/// So much of a text as a record has room for.
fn shortened(text: &str) -> String {
    text.chars().take(500).collect()
}

/// Whether a repaired key stays closed for a while.
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
