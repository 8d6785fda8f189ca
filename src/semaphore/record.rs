//! The record of one semaphore, and how it is written down.

use super::{MAX_SIZE, layout, wire};
use crate::{
    Error, Fence, Hour, Key, LeaseId, Namespace, ProcessId, Result, WriteId,
    clock::Timestamp,
    lease::record::{CHECKSUM_TAG, Lease, lease_from_wire, lease_to_wire},
    storage::{
        Name,
        cas::{self, Slot},
    },
};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::time::Duration;

/// The format that this version writes; it rewrites no later one.
pub(super) const FORMAT: u32 = 1;

const CHECKSUM_SIZE: usize = 5;

/// One who holds, or held, a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) number: u32,
    pub(super) lease: Lease,
    /// When the store received the lease's last beat, or later; `None` if that is when it received the record.
    pub(super) beat_stamp: Option<Timestamp>,
}

/// A process that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) process: ProcessId,
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    pub(super) interval: Duration,
}

/// What is stored for a semaphore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) write_id: WriteId,
    pub(super) revision: u64,
    pub(super) size: u32,
    pub(super) last_fence: Option<Fence>,
    pub(super) holders: Vec<Holding>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) written: Timestamp,
    pub(super) hour: Option<Hour>,
    pub(super) epoch: u64,
}

impl Record {
    /// The holder with this lease.
    pub(super) fn holder(&self, id: LeaseId) -> Option<&Holding> {
        self.holders.iter().find(|holding| holding.lease.id == id)
    }

    /// Refuses to write over what a later version, or a process with other settings, has written.
    pub(super) fn may_change(&self, key: &Key, epoch: u64) -> Result<()> {
        if self.format > FORMAT {
            return Err(Error::config(format!(
                "the semaphore {key} has format {}, this version writes {FORMAT}: use a newer version of leasehold",
                self.format
            )));
        }
        if self.epoch > epoch {
            return Err(Error::config(format!(
                "the semaphore {key} goes by epoch {} of the store's settings, this process by {epoch}: an operator has \
                 changed them, so restart this process",
                self.epoch
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
        self.write_id == id || self.holders.iter().any(|holding| holding.lease.beat == id)
    }
}

/// Where the record of a semaphore stands.
#[derive(Debug, Clone)]
pub(super) struct SemaphoreSlot {
    pub(super) namespace: Namespace,
    pub(super) key: Key,
}

impl Slot for SemaphoreSlot {
    type Record = Record;

    fn name(&self) -> Name {
        layout::record(self.namespace.as_str(), &self.key.name())
    }

    fn encode(&self, record: &Record) -> Result<Bytes> {
        Ok(encode(&self.key, record))
    }

    fn decode(&self, body: Bytes) -> Result<Record> {
        let unusable = |why: String| {
            let advice = "nothing is granted on it until an operator has moved it away: leasehold fsck says more";
            Error::corrupt(format!("the record {} of the semaphore {} {why}; {advice}", self.name(), self.key))
        };
        let (key, record) = decode(body).map_err(|error| unusable(format!("cannot be read: {error}")))?;
        if key != self.key {
            return Err(unusable(format!("is that of another one, {key}: it was copied to the wrong place")));
        }
        Ok(record)
    }
}

fn encode(key: &Key, record: &Record) -> Bytes {
    let id = |bytes: &[u8; 16]| Bytes::copy_from_slice(bytes);
    let slot = |holding: &Holding| wire::Slot {
        number: holding.number,
        lease: Some(lease_to_wire(&holding.lease)),
        beat_stamp_us: holding.beat_stamp.map(Timestamp::as_micros),
    };
    let waiting = |waiting: &Waiting| wire::Waiting {
        process: id(waiting.process.as_bytes()),
        since_ms: waiting.since.as_millis(),
        until_ms: waiting.until.as_millis(),
        interval_ms: u64::try_from(waiting.interval.as_millis()).unwrap_or(u64::MAX),
    };
    let message = wire::Semaphore {
        format: record.format,
        key: Bytes::copy_from_slice(key.as_bytes()),
        write_id: id(record.write_id.as_bytes()),
        revision: record.revision,
        size: record.size,
        last_fence: record.last_fence.map_or(0, Fence::get),
        slots: record.holders.iter().map(slot).collect(),
        waiting: record.waiting.iter().map(waiting).collect(),
        written_ms: record.written.as_millis(),
        hour: record.hour.map_or(0, Hour::number),
        epoch: record.epoch,
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

/// Everything that a record must be; what it is not is said in a few words.
pub(super) fn decode(body: Bytes) -> std::result::Result<(Key, Record), String> {
    let Some(length) = body.len().checked_sub(CHECKSUM_SIZE) else {
        return Err(format!("it has {} bytes", body.len()));
    };
    let (content, tail) = body.split_at(length);
    if tail[0] != CHECKSUM_TAG || tail[1..] != crc32c::crc32c(content).to_le_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    let message = wire::Semaphore::decode(body.clone()).map_err(|error| error.to_string())?;
    let text = |error: Error| error.to_string();
    let id = |bytes: &Bytes| <[u8; 16]>::try_from(bytes.as_ref()).map_err(|_| "one of its ids is none".to_owned());
    let holding = |slot: wire::Slot| {
        let lease = lease_from_wire(slot.lease.ok_or("one of its slots has no lease")?)?;
        let beat_stamp = slot.beat_stamp_us.map(Timestamp::from_micros);
        Ok(Holding { number: slot.number, lease, beat_stamp })
    };
    let waiting = |waiting: wire::Waiting| {
        Ok::<_, String>(Waiting {
            process: id(&waiting.process)?.into(),
            since: Timestamp::from_millis(waiting.since_ms),
            until: Timestamp::from_millis(waiting.until_ms),
            interval: Duration::from_millis(waiting.interval_ms),
        })
    };
    let record = Record {
        format: message.format,
        write_id: id(&message.write_id)?.into(),
        revision: message.revision,
        size: message.size,
        last_fence: if message.last_fence == 0 { None } else { Some(Fence::new(message.last_fence).map_err(text)?) },
        holders: message.slots.into_iter().map(holding).collect::<std::result::Result<_, String>>()?,
        waiting: message.waiting.into_iter().map(waiting).collect::<std::result::Result<_, String>>()?,
        written: Timestamp::from_millis(message.written_ms),
        hour: if message.hour == 0 { None } else { Some(Hour::from_number(message.hour).map_err(text)?) },
        epoch: message.epoch,
    };
    if record.format == 0 || !(1..=MAX_SIZE).contains(&record.size) {
        return Err(format!("it has format {} and {} slots", record.format, record.size));
    }
    if record.holders.iter().any(|holding| Some(holding.lease.fence) > record.last_fence) {
        return Err("one of its holders has a higher fence than the record".to_owned());
    }
    Ok((Key::new(&message.key).map_err(text)?, record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ttl, lease::record::Boot};

    pub(crate) fn record() -> Record {
        let at = Timestamp::from_millis(1_767_225_600_001);
        let lease = |number: u8| Lease {
            id: [number; 16].into(),
            request_id: None,
            owner: "me".into(),
            process: [9; 16].into(),
            note: Some(Bytes::from_static(b"note")),
            fence: Fence::new(u64::from(number)).unwrap(),
            granted: at,
            expires: at.plus(Duration::from_secs(30)),
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            beat: [7; 16].into(),
            lasts: Some(Duration::from_secs(30)),
            boot: Some(Boot { id: [5; 16].into(), at: Duration::from_millis(12) }),
            session: None,
        };
        let holding = |number: u8| Holding { number: number.into(), lease: lease(number), beat_stamp: Some(at) };
        Record {
            format: FORMAT,
            write_id: [1; 16].into(),
            revision: 4,
            size: 3,
            last_fence: Fence::new(2).ok(),
            holders: vec![holding(1), Holding { beat_stamp: None, ..holding(2) }],
            waiting: vec![Waiting { process: [3; 16].into(), since: at, until: at, interval: Duration::from_secs(1) }],
            written: at,
            hour: Hour::of(at).ok(),
            epoch: 1,
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written_and_no_flipped_bit_goes_unseen() {
        let (key, record) = (Key::new("gpu").unwrap(), record());
        let body = encode(&key, &record);
        assert_eq!(decode(body.clone()).unwrap(), (key, record));
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(flipped.into()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_is_refused() {
        let key = Key::new("gpu").unwrap();
        for (wrong, why) in [
            (Record { size: 0, ..record() }, "0 slots"),
            (Record { size: MAX_SIZE + 1, ..record() }, "slots"),
            (Record { last_fence: Fence::new(1).ok(), ..record() }, "higher fence"),
            (Record { format: 0, ..record() }, "format 0"),
        ] {
            let error = decode(encode(&key, &wrong)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
