//! A segment: some messages in one object, created once and never changed.
//!
//! Four bytes `LHST`, one byte of format, a protobuf message ([`wire`]), and a CRC-32C of everything before it.

use super::{Message, MessageId, message::MAX_PAYLOAD, wire};
use crate::{WriteId, clock::Timestamp};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;

const MAGIC: &[u8; 4] = b"LHST";

/// The format that this version writes.
const FORMAT: u8 = 1;

const HEAD: usize = 5;
const TAIL: usize = 4;

/// What one object of a log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its place in the log: one more with every segment.
    pub(crate) number: u64,
    /// The offset of its first message.
    pub(crate) base: u64,
    /// Tells who wrote it.
    pub(crate) write_id: WriteId,
    /// When it was appended: never before the segment before it.
    pub(crate) appended: Timestamp,
    /// At least one.
    pub(crate) messages: Vec<Message>,
}

/// Why bytes are no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Of a later format: left alone.
    Later(u8),
    /// Damaged, or something else.
    Damaged(&'static str),
}

impl Segment {
    /// The offset after its last message.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.messages.len() as u64
    }

    pub(crate) fn encode(&self) -> Bytes {
        let messages = self.messages.iter().map(|message| wire::Message {
            id: Bytes::copy_from_slice(message.id.as_bytes()),
            subject: message.subject.clone(),
            time_ms: message.time.as_millis(),
            key: message.key.clone(),
            trace_id: message.trace_id.clone(),
            payload: message.payload.clone(),
        });
        let segment = wire::Segment {
            number: self.number,
            base: self.base,
            write_id: Bytes::copy_from_slice(self.write_id.as_bytes()),
            appended_ms: self.appended.as_millis(),
            messages: messages.collect(),
        };
        let mut body = BytesMut::with_capacity(HEAD + segment.encoded_len() + TAIL);
        body.put_slice(MAGIC);
        body.put_u8(FORMAT);
        body.put_slice(&segment.encode_to_vec());
        let checksum = crc32c::crc32c(&body);
        body.put_u32_le(checksum);
        body.freeze()
    }

    pub(crate) fn decode(body: &Bytes) -> Result<Self, Unreadable> {
        let damaged = Unreadable::Damaged;
        if body.len() < HEAD + TAIL || &body[..4] != MAGIC {
            return Err(damaged("it does not begin as a segment does"));
        }
        if body[4] > FORMAT {
            return Err(Unreadable::Later(body[4]));
        }
        let end = body.len() - TAIL;
        if crc32c::crc32c(&body[..end]).to_le_bytes() != body[end..] {
            return Err(damaged("its checksum is wrong"));
        }
        let segment = wire::Segment::decode(body.slice(HEAD..end)).map_err(|_| damaged("it cannot be decoded"))?;
        let id = |bytes: &Bytes| <[u8; 16]>::try_from(&bytes[..]).map_err(|_| damaged("an id has not 16 bytes"));
        let count = segment.messages.len() as u64;
        if count == 0 || segment.base.checked_add(count).is_none() {
            return Err(damaged("it has no messages, or an offset beyond all numbers"));
        }
        let mut messages = Vec::with_capacity(segment.messages.len());
        for (offset, message) in (segment.base..).zip(segment.messages) {
            if message.payload.len() > MAX_PAYLOAD {
                return Err(damaged("a payload is too large"));
            }
            messages.push(Message {
                offset,
                id: MessageId::from(id(&message.id)?),
                subject: message.subject,
                time: Timestamp::from_millis(message.time_ms),
                key: message.key,
                trace_id: message.trace_id,
                payload: message.payload,
            });
        }
        Ok(Self {
            number: segment.number,
            base: segment.base,
            write_id: WriteId::from(id(&segment.write_id)?),
            appended: Timestamp::from_millis(segment.appended_ms),
            messages,
        })
    }
}

/// What must be true of any bytes at all: a segment that can be read is the same when it is written again.
#[cfg(feature = "_internals")]
#[allow(clippy::panic, reason = "a broken promise is a panic here")]
pub fn fuzz(data: &[u8]) {
    let again = |body: &Bytes| {
        if let Ok(segment) = Segment::decode(body) {
            assert_eq!(Segment::decode(&segment.encode()).as_ref(), Ok(&segment));
            assert!(segment.end() > segment.base);
        }
    };
    again(&Bytes::copy_from_slice(data));
    // A checksum would keep a fuzzer out: the same bytes behind a head and before a checksum that are right.
    let mut sealed = BytesMut::from(&MAGIC[..]);
    sealed.put_u8(FORMAT);
    sealed.put_slice(data);
    let checksum = crc32c::crc32c(&sealed);
    sealed.put_u32_le(checksum);
    again(&sealed.freeze());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsGenerator;
    use crate::stream::Draft;

    fn segment() -> Segment {
        let now = Timestamp::from_millis(1_767_225_600_123);
        let draft = |n: u8| Draft::new("events.audit", vec![n; 10]).key("k");
        let messages = (0..3).map(|n| draft(n).into_message(now, &OsGenerator::new()).unwrap());
        let messages = messages.zip(40..).map(|(message, offset)| Message { offset, ..message }).collect();
        Segment { number: 9, base: 40, write_id: [7; 16].into(), appended: now, messages }
    }

    #[test]
    fn a_segment_survives_its_own_bytes() {
        let segment = segment();
        assert_eq!(Segment::decode(&segment.encode()).unwrap(), segment);
        assert_eq!(segment.end(), 43);
        fuzz(&segment.encode());
        fuzz(&segment.encode()[HEAD..segment.encode().len() - TAIL]);
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unseen() {
        let body = segment().encode();
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::decode(&flipped.into()).is_err(), "bit {bit}");
        }
        for end in 0..body.len() {
            assert!(Segment::decode(&body.slice(..end)).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let mut body = segment().encode().to_vec();
        body[4] = FORMAT + 1;
        assert_eq!(Segment::decode(&body.into()), Err(Unreadable::Later(FORMAT + 1)));
    }

    #[test]
    fn an_empty_segment_is_damage() {
        let empty = Segment { messages: vec![], ..segment() };
        assert!(matches!(Segment::decode(&empty.encode()), Err(Unreadable::Damaged(_))));
    }
}
