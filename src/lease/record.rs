//! The record of one key, and how it is written down.

use super::{layout, wire};
use crate::{
    BootId, Error, Fence, Hour, Key, LeaseId, Namespace, Result, SessionId, Ttl, WriteId,
    clock::Timestamp,
    id::ProcessId,
    storage::{
        Name,
        cas::{self, Slot, Stamp},
    },
};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::{sync::Arc, time::Duration};

/// The format of a record that has nothing to do with sessions.
///
/// 1: a lease ended for others by their wall clock alone. 2: two witnesses are needed, for which a lease says how long it
/// lasts. A version that knows only format 1 must not touch what this one has written: it would end leases too early.
pub(super) const FORMAT: u32 = 2;

/// The format of a record that names a session, or that asks one for a lease; `store.json` must allow it. Later formats are
/// shown and never rewritten.
///
/// A version that knows only format 2 must not touch it: it would end the lease by a time that says nothing.
pub(crate) const SESSION_FORMAT: u32 = 3;

/// Tag and wire type of the checksum, which is always the last field: five bytes with its value.
pub(crate) const CHECKSUM_TAG: u8 = 15 << 3 | 5;
const CHECKSUM_SIZE: usize = 5;

/// The longest note that an owner may leave.
pub(crate) const LONGEST_NOTE: usize = 4096;

/// A lease on the key, alive or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) request_id: Option<String>,
    /// Shared with the grants that come of it.
    pub(crate) owner: Arc<str>,
    pub(crate) process: ProcessId,
    pub(crate) note: Option<Bytes>,
    pub(crate) fence: Fence,
    pub(crate) granted: Timestamp,
    pub(crate) expires: Timestamp,
    pub(crate) ttl: Ttl,
    /// The write id of the last grant or renewal: by it a holder recognises its own write under the mark of another process.
    pub(crate) beat: WriteId,
    /// How long anybody may believe in it from its last beat on; a format 1 lease does not say.
    pub(crate) lasts: Option<Duration>,
    /// The holder's boot-time clock before the last beat, where that clock is the host's that all processes share.
    pub(crate) boot: Option<Boot>,
    /// The session that it is held under: it goes on for as long as that does, whatever its times say.
    pub(crate) session: Option<SessionName>,
}

/// One session: which one, and the id of its own lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionName {
    pub(crate) id: SessionId,
    pub(crate) lease: LeaseId,
}

impl SessionName {
    /// The key of its own lease, in the library's own namespace.
    pub(crate) fn key(&self) -> Result<Key> {
        layout::session_key(self.id)
    }
}

/// A lease that the process of a session is asked to give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) namespace: Namespace,
    pub(crate) key: Key,
    pub(crate) away: ForcedAway,
}

impl Lease {
    /// How long anybody may believe in it from its last beat on. No lease is believed in for longer than `max_ttl`.
    pub(crate) fn lasts(&self, max_ttl: Duration) -> Duration {
        self.lasts.unwrap_or(self.ttl.as_duration()).min(max_ttl)
    }
}

/// A reading of a clock that counts from the start of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) id: BootId,
    pub(crate) at: Duration,
}

/// A lease that an operator took away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForcedAway {
    pub(crate) lease: LeaseId,
    pub(crate) by: String,
    pub(crate) reason: String,
}

/// A process waits and asks for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) process: ProcessId,
    pub(crate) since: Timestamp,
    pub(crate) interval: Duration,
}

/// What is stored for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) format: u32,
    pub(crate) write_id: WriteId,
    pub(crate) revision: u64,
    pub(crate) last_fence: Option<Fence>,
    pub(crate) lease: Option<Lease>,
    pub(crate) waiting: Option<Mark>,
    pub(crate) written: Timestamp,
    pub(crate) hour: Option<Hour>,
    /// When the store received the lease's last beat, if a write that left the beat alone has come since.
    pub(crate) beat_stamp: Option<Timestamp>,
    /// The last lease was taken away by force.
    pub(crate) forced: Option<Box<ForcedAway>>,
    /// Of the settings that the writer went by.
    pub(crate) epoch: u64,
    /// Of the record of a session: leases under it that its process is asked to give back.
    pub(crate) asked: Vec<Asked>,
}

impl Record {
    /// A record that follows `base` and leaves its lease, and that lease's beat, as they are. `modified` is when the store
    /// received the base, if that is known.
    ///
    /// It keeps its format, so that a holder which knows only that one can go on renewing, and a later one than ours, so
    /// that an operation which forgets to check fails to write it.
    pub(crate) fn after(base: Option<&Self>, modified: Option<Timestamp>, stamp: Stamp, now: Timestamp) -> Self {
        let lease = base.and_then(|base| base.lease.clone());
        let beat_stamp = base.and_then(|base| base.beat_stamp).or(modified).filter(|_| lease.is_some());
        Self {
            format: base.map_or(FORMAT, |base| base.format),
            lease,
            beat_stamp,
            epoch: base.map_or(0, |base| base.epoch),
            asked: base.map_or_else(Vec::new, |base| base.asked.clone()),
            ..Self::without_lease(base, stamp, now)
        }
    }

    /// A record that follows `base` without its lease.
    pub(crate) fn without_lease(base: Option<&Self>, stamp: Stamp, now: Timestamp) -> Self {
        Self {
            format: base.map_or(FORMAT, |base| if base.format > SESSION_FORMAT { base.format } else { FORMAT }),
            write_id: stamp.write_id,
            revision: stamp.revision,
            last_fence: base.and_then(|base| base.last_fence),
            lease: None,
            waiting: base.and_then(|base| base.waiting),
            written: now,
            hour: base.and_then(|base| base.hour),
            beat_stamp: None,
            forced: base.and_then(|base| base.forced.clone()),
            epoch: base.map_or(0, |base| base.epoch),
            asked: Vec::new(),
        }
    }

    /// The format that what it says needs.
    pub(crate) fn with_its_format(mut self) -> Self {
        let sessions = !self.asked.is_empty() || self.lease.as_ref().is_some_and(|lease| lease.session.is_some());
        if sessions {
            self.format = self.format.max(SESSION_FORMAT);
        }
        self
    }

    /// A record of a later format may carry what we would drop.
    pub(crate) fn must_be_ours(&self, key: &Key) -> Result<()> {
        if self.format > SESSION_FORMAT {
            return Err(Error::config(format!(
                "the record of {key} has format {}, this version writes {SESSION_FORMAT}: use a newer version of leasehold",
                self.format
            )));
        }
        Ok(())
    }
}

impl cas::Record for Record {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn carries(&self, id: WriteId) -> bool {
        self.write_id == id || self.lease.as_ref().is_some_and(|lease| lease.beat == id)
    }
}

/// Where the record of a key stands.
#[derive(Debug, Clone)]
pub(crate) struct KeySlot {
    pub(crate) namespace: Namespace,
    pub(crate) key: Key,
}

impl Slot for KeySlot {
    type Record = Record;

    fn name(&self) -> Name {
        layout::record(self.namespace.as_str(), &self.key.name())
    }

    fn encode(&self, record: &Record) -> Result<Bytes> {
        record.must_be_ours(&self.key)?;
        Ok(encode(&self.key, record))
    }

    fn decode(&self, body: Bytes) -> Result<Record> {
        let unusable = |why: String| {
            let advice = "nothing is granted on it until an operator has repaired it: leasehold fsck --repair";
            Error::corrupt(format!("the record {} of {} {why}; {advice}", self.name(), self.key))
        };
        let (key, record) = decode(body).map_err(|error| unusable(format!("cannot be read: {error}")))?;
        if key != self.key {
            return Err(unusable(format!(
                "is that of another key, {key}: it was copied or restored to the wrong place"
            )));
        }
        Ok(record)
    }
}

pub(crate) fn encode(key: &Key, record: &Record) -> Bytes {
    let id = |bytes: &[u8; 16]| Bytes::copy_from_slice(bytes);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let message = wire::Record {
        format: record.format,
        key: Bytes::copy_from_slice(key.as_bytes()),
        write_id: id(record.write_id.as_bytes()),
        revision: record.revision,
        last_fence: record.last_fence.map_or(0, Fence::get),
        lease: record.lease.as_ref().map(lease_to_wire),
        beat_stamp_us: record.beat_stamp.map(Timestamp::as_micros),
        forced: record.forced.as_ref().map(|forced| wire::Forced {
            lease: id(forced.lease.as_bytes()),
            by: forced.by.clone(),
            reason: forced.reason.clone(),
        }),
        epoch: record.epoch,
        asked: record.asked.iter().map(asked_to_wire).collect(),
        waiting: record.waiting.map(|mark| wire::Mark {
            process: id(mark.process.as_bytes()),
            since_ms: mark.since.as_millis(),
            interval_ms: millis(mark.interval),
        }),
        written_ms: record.written.as_millis(),
        hour: record.hour.map_or(0, Hour::number),
        checksum: 0,
    };
    let mut body = BytesMut::with_capacity(message.encoded_len() + CHECKSUM_SIZE);
    // Reserving enough is all that encoding can fail for.
    let _ = message.encode(&mut body);
    let checksum = crc32c::crc32c(&body);
    body.put_u8(CHECKSUM_TAG);
    body.put_u32_le(checksum);
    body.freeze()
}

fn fence(number: u64) -> std::result::Result<Fence, String> {
    Fence::new(number).map_err(|error| error.to_string())
}

/// A time that the clock cannot count must not come back as another one.
fn time(name: &str, millis: i64) -> std::result::Result<Timestamp, String> {
    Some(Timestamp::from_millis(millis))
        .filter(|at| at.as_millis() == millis)
        .ok_or_else(|| format!("the time of its {name} is {millis} ms since 1970, which no clock shows"))
}

fn id(name: &str, bytes: &Bytes) -> std::result::Result<[u8; 16], String> {
    <[u8; 16]>::try_from(bytes.as_ref()).map_err(|_| format!("its {name} is no id"))
}

/// Everything that a record must be; what it is not is said in a few words.
pub(crate) fn decode(body: Bytes) -> std::result::Result<(Key, Record), String> {
    let Some(length) = body.len().checked_sub(CHECKSUM_SIZE) else {
        return Err(format!("it has {} bytes", body.len()));
    };
    let (content, tail) = body.split_at(length);
    if tail[0] != CHECKSUM_TAG || tail[1..] != crc32c::crc32c(content).to_le_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    let message = wire::Record::decode(body.clone()).map_err(|error| error.to_string())?;
    let text = |error: Error| error.to_string();
    let lease = message.lease.map(lease_from_wire).transpose()?;
    let waiting = match message.waiting {
        None => None,
        Some(mark) => Some(Mark {
            process: id("waiting process", &mark.process)?.into(),
            since: time("mark", mark.since_ms)?,
            interval: Duration::from_millis(mark.interval_ms),
        }),
    };
    let forced = match message.forced {
        None => None,
        Some(forced) => Some(Box::new(ForcedAway {
            lease: id("lease that was taken away", &forced.lease)?.into(),
            by: forced.by,
            reason: forced.reason,
        })),
    };
    let record = Record {
        format: message.format,
        write_id: id("write_id", &message.write_id)?.into(),
        revision: message.revision,
        last_fence: if message.last_fence == 0 { None } else { Some(fence(message.last_fence)?) },
        lease,
        waiting,
        written: time("writing", message.written_ms)?,
        hour: if message.hour == 0 { None } else { Some(Hour::from_number(message.hour).map_err(text)?) },
        beat_stamp: message.beat_stamp_us.map(Timestamp::from_micros),
        forced,
        epoch: message.epoch,
        asked: message.asked.into_iter().map(asked_from_wire).collect::<std::result::Result<_, _>>()?,
    };
    let sessions = !record.asked.is_empty() || record.lease.as_ref().is_some_and(|lease| lease.session.is_some());
    if sessions && record.format < SESSION_FORMAT {
        return Err(format!("it names a session, which format {} does not have", record.format));
    }
    if record.lease.as_ref().is_some_and(|lease| Some(lease.fence) > record.last_fence) {
        return Err("its lease has a higher fence than the record".to_owned());
    }
    if record.format == 0 {
        return Err("it has no format".to_owned());
    }
    Ok((Key::new(&message.key).map_err(text)?, record))
}

/// A lease as it is written down.
pub(crate) fn lease_to_wire(lease: &Lease) -> wire::Lease {
    let id = |bytes: &[u8; 16]| Bytes::copy_from_slice(bytes);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    wire::Lease {
        id: id(lease.id.as_bytes()),
        request_id: lease.request_id.clone(),
        owner: lease.owner.as_ref().to_owned(),
        process: id(lease.process.as_bytes()),
        note: lease.note.clone(),
        fence: lease.fence.get(),
        granted_ms: lease.granted.as_millis(),
        expires_ms: lease.expires.as_millis(),
        ttl_ms: lease.ttl.as_millis(),
        beat: id(lease.beat.as_bytes()),
        lasts_ms: lease.lasts.map(millis),
        boot: lease.boot.map(|boot| wire::Boot { id: id(boot.id.as_bytes()), at_ms: millis(boot.at) }),
        session: lease
            .session
            .map(|session| wire::Session { id: id(session.id.as_bytes()), lease: id(session.lease.as_bytes()) }),
    }
}

fn asked_to_wire(asked: &Asked) -> wire::Asked {
    wire::Asked {
        lease: Bytes::copy_from_slice(asked.away.lease.as_bytes()),
        namespace: asked.namespace.to_string(),
        key: Bytes::copy_from_slice(asked.key.as_bytes()),
        by: asked.away.by.clone(),
        reason: asked.away.reason.clone(),
    }
}

fn asked_from_wire(asked: wire::Asked) -> std::result::Result<Asked, String> {
    let text = |error: Error| error.to_string();
    Ok(Asked {
        namespace: Namespace::new(asked.namespace).map_err(text)?,
        key: Key::new(&asked.key).map_err(text)?,
        away: ForcedAway {
            lease: id("lease that is asked for", &asked.lease)?.into(),
            by: asked.by,
            reason: asked.reason,
        },
    })
}

/// Everything that a lease must be; what it is not is said in a few words.
pub(crate) fn lease_from_wire(lease: wire::Lease) -> std::result::Result<Lease, String> {
    let text = |error: Error| error.to_string();
    Ok(Lease {
        id: id("lease", &lease.id)?.into(),
        request_id: lease.request_id,
        owner: lease.owner.into(),
        process: id("process", &lease.process)?.into(),
        note: lease.note,
        fence: fence(lease.fence)?,
        granted: time("grant", lease.granted_ms)?,
        expires: {
            let expires = time("expiry", lease.expires_ms)?;
            // What cannot be filed was never granted.
            Hour::of(expires).map_err(text)?;
            expires
        },
        ttl: Ttl::new(Duration::from_millis(lease.ttl_ms)).map_err(text)?,
        beat: id("beat", &lease.beat)?.into(),
        lasts: lease.lasts_ms.map(Duration::from_millis),
        boot: match lease.boot {
            None => None,
            Some(boot) => Some(Boot { id: id("boot", &boot.id)?.into(), at: Duration::from_millis(boot.at_ms) }),
        },
        session: match lease.session {
            None => None,
            Some(session) => Some(SessionName {
                id: id("session", &session.id)?.into(),
                lease: id("session's lease", &session.lease)?.into(),
            }),
        },
    })
}

#[cfg(test)]
mod tests;
