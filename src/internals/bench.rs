//! What `benches/` measures and is not public: how records, markers and index entries are written down, pages of the
//! index, and the cache. What the code itself calls, and nothing else.

use crate::{
    Fence, Hour, Key, LeaseId, Leases, Namespace, ProcessId, Result, Settings, Store, Ttl, WriteId,
    clock::{Moment, Timestamp},
    decision::{Decision, Marker, MarkerSlot, TxnId},
    index,
    lease::{
        self, ended, layout,
        record::{self, KeySlot, Lease, Record},
    },
    storage::{
        Name,
        cas::{Slot, Stamp},
    },
    store,
};
use bytes::Bytes;
use std::time::Duration;

/// The record of a key that is held, as an acquire would write it.
#[derive(Debug, Clone)]
pub struct Sample {
    slot: KeySlot,
    record: Record,
}

impl Sample {
    /// A lease on a key of the namespace `default`.
    pub fn held(key: Key, owner: &str, granted: Timestamp, ttl: Duration) -> Result<Self> {
        let ttl = Ttl::new(ttl)?;
        let fence = Fence::first(None, granted, Duration::from_secs(1))?;
        let expires = ttl.expiry(granted)?;
        let beat = WriteId::from([3; 16]);
        let mut record = Record::without_lease(None, Stamp { write_id: beat, revision: 1 }, granted);
        record.lease = Some(Lease {
            id: LeaseId::from([1; 16]),
            request_id: None,
            owner: owner.into(),
            process: ProcessId::from([2; 16]),
            note: None,
            fence,
            granted,
            expires,
            ttl,
            beat,
            lasts: Some(ttl.as_duration()),
            boot: None,
            session: None,
        });
        record.last_fence = Some(fence);
        record.hour = Some(Hour::of(expires)?);
        Ok(Self { slot: KeySlot { namespace: Namespace::default(), key }, record })
    }

    /// The name of its object.
    pub fn name(&self) -> String {
        self.slot.name().as_str().to_owned()
    }

    /// Its body.
    pub fn encode(&self) -> Result<Bytes> {
        self.slot.encode(&self.record)
    }

    /// What stands in a body, which must be that of the same key.
    pub fn decode(&self, body: Bytes) -> Result<Self> {
        Ok(Self { slot: self.slot.clone(), record: self.slot.decode(body)? })
    }

    /// What stands in a body, whichever key it is of.
    pub fn read(body: Bytes) -> Result<Self> {
        let (key, record) = record::decode(body).map_err(crate::Error::corrupt)?;
        Ok(Self { slot: KeySlot { namespace: Namespace::default(), key }, record })
    }

    /// Whether the next operation on it clears it, by a wall clock and a stamp of the store that both say `now`.
    pub fn is_expired(&self, now: Timestamp) -> Result<bool> {
        let known = ended::Known {
            modified: Some(self.record.written),
            time: Some(now),
            own: None,
            gone: None,
            session_over: None,
            now: Moment::default(),
            host: false,
            boot: None,
        };
        let shared = lease::Shared::of(&store::propose(&Settings::default())?);
        let lease::Shared { max_clock_skew, max_ttl, .. } = shared;
        let bounds = ended::Bounds { max_clock_skew, max_ttl, stamp_slack: Some(Duration::from_secs(2)) };
        let state = ended::judge(Some(&self.record), now, &known, None, &bounds);
        Ok(matches!(state, ended::State::Ended(_)))
    }

    /// The record that follows when it is cleared.
    #[must_use]
    pub fn cleared(&self, now: Timestamp) -> Self {
        let stamp = Stamp { write_id: WriteId::from([4; 16]), revision: self.record.revision + 1 };
        let record = Record::without_lease(Some(&self.record), stamp, now);
        Self { slot: self.slot.clone(), record }
    }

    /// The name and the body of its index entry.
    pub fn entry(&self) -> Result<(String, Bytes)> {
        let expires = self.record.lease.as_ref().map_or(self.record.written, |lease| lease.expires);
        let name = layout::entry(&self.slot.namespace, &self.slot.key, Hour::of(expires)?);
        Ok((name.as_str().to_owned(), layout::entry_body(&self.slot.key, expires)))
    }
}

/// Whether a name in the index of the namespace `default` is one of ours.
pub fn is_entry(name: &str) -> bool {
    let name = Name::new(name);
    let parsed = index::parse_entry(&layout::index_folder("default"), &name);
    parsed.is_some_and(|(_, entry)| Key::from_name(entry).is_ok())
}

/// The marker of a transaction that was committed.
#[derive(Debug, Clone)]
pub struct SampleMarker(MarkerSlot, Marker);

impl SampleMarker {
    /// As `decide` would write it.
    pub fn committed(txn: TxnId, by: &str, decided: Timestamp) -> Self {
        let expires = decided.plus(Duration::from_secs(86_400));
        Self(MarkerSlot(txn), Marker::new(txn, WriteId::from([5; 16]), Decision::Commit, by, decided, expires))
    }

    /// Its body.
    pub fn encode(&self) -> Result<Bytes> {
        self.0.encode(&self.1)
    }

    /// What stands in a body.
    pub fn decode(&self, body: Bytes) -> Result<Self> {
        Ok(Self(self.0, self.0.decode(body)?))
    }
}

/// One page of the index, from its beginning or from behind a name; the last name of it, if there is more.
pub async fn page(store: &Store, after: Option<&str>, limit: usize) -> Result<Option<String>> {
    let after = after.map(Name::new);
    let page = store.backend().page(&layout::index_folder("default"), after.as_ref(), limit).await?;
    Ok(page.names.last().filter(|_| page.more).map(|name| name.as_str().to_owned()))
}

/// Finds a key in the cache, or makes a place for it.
pub fn look_up(leases: &Leases, key: &Key) {
    leases.look_up(key);
}
