//! A fenced object, and how it is written down.

use super::{MAX_BYTES, REMEMBERED};
use crate::{
    Error, Fence, Key, Namespace, Result, WriteId,
    clock::Timestamp,
    kind::{Content, Folder},
    storage::{
        Name,
        cas::{self, Slot},
    },
};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const MAGIC: &[u8; 8] = b"LHFENCED";

/// The format that this version writes; it reads no later one.
const FORMAT: u32 = 1;

/// Up to the path.
const FIXED: usize = 76;

const FOLDER: &str = "fenced";

/// Where the objects of a namespace are.
pub(super) fn folder(namespace: &str) -> String {
    [namespace, "/", FOLDER, "/"].concat()
}

/// The folders that fenced objects have in one that lies right in the store.
pub(super) fn folders(top: &str) -> Vec<Folder> {
    let folder = Folder { top: top.to_owned(), path: folder(top), content: Content::Records };
    if Namespace::new(top).is_ok() { vec![folder] } else { Vec::new() }
}

/// What is stored under a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) write_id: WriteId,
    pub(super) revision: u64,
    pub(super) fence: Fence,
    pub(super) written: Timestamp,
    /// The writes before, the latest first.
    pub(super) earlier: Vec<WriteId>,
    pub(super) bytes: Bytes,
}

impl cas::Record for Object {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn carries(&self, id: WriteId) -> bool {
        self.write_id == id || self.earlier.contains(&id)
    }
}

/// Where the object of a path stands.
#[derive(Debug, Clone)]
pub(super) struct PathSlot {
    pub(super) namespace: Namespace,
    pub(super) path: Key,
}

impl Slot for PathSlot {
    type Record = Object;

    fn name(&self) -> Name {
        Name::new(folder(self.namespace.as_str()) + &self.path.name())
    }

    fn encode(&self, object: &Object) -> Result<Bytes> {
        Ok(encode(&self.path, object))
    }

    fn decode(&self, body: Bytes) -> Result<Object> {
        let unusable = |why: String| {
            let advice = "nothing is written to it until somebody has looked: move it away, or restore it";
            Error::corrupt(format!("the fenced object {} {why}; {advice}", self.name()))
        };
        let (path, object) = decode(body).map_err(|error| match error {
            Unreadable::Later(format) => Error::config(format!(
                "the fenced object {} has format {format}, this version knows {FORMAT}: use a newer version of leasehold",
                self.name()
            )),
            Unreadable::Damaged(why) => unusable(format!("cannot be read: {why}")),
        })?;
        if path != self.path {
            return Err(unusable(format!("is that of another path, {path}: it was copied to the wrong place")));
        }
        Ok(object)
    }
}

/// Why an object cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// A later version wrote it, in this format.
    Later(u32),
    Damaged(String),
}

fn encode(path: &Key, object: &Object) -> Bytes {
    let path = path.as_bytes();
    let header = FIXED + path.len() + 16 * object.earlier.len() + 4;
    let mut body = BytesMut::with_capacity(header + object.bytes.len() + 4);
    body.put_slice(MAGIC);
    body.put_u32_le(FORMAT);
    // Neither comes near its limit: a path has 1024 bytes, and few writes are remembered.
    body.put_u32_le(u32::try_from(header).unwrap_or(u32::MAX));
    body.put_u64_le(object.fence.get());
    body.put_u64_le(object.revision);
    body.put_slice(object.write_id.as_bytes());
    body.put_i64_le(object.written.as_millis());
    body.put_u64_le(object.bytes.len() as u64);
    body.put_u16_le(u16::try_from(path.len()).unwrap_or(u16::MAX));
    body.put_u16_le(u16::try_from(object.earlier.len()).unwrap_or(u16::MAX));
    // Room that a later version may use.
    body.put_u64_le(0);
    body.put_slice(path);
    object.earlier.iter().for_each(|id| body.put_slice(id.as_bytes()));
    let checksum = crc32c::crc32c(&body);
    body.put_u32_le(checksum);
    body.put_slice(&object.bytes);
    body.put_u32_le(crc32c::crc32c(&object.bytes));
    body.freeze()
}

pub(super) fn decode(body: Bytes) -> std::result::Result<(Key, Object), Unreadable> {
    let damaged = |why: &str| Unreadable::Damaged(why.to_owned());
    if body.len() < FIXED || &body[..8] != MAGIC {
        return Err(damaged("it does not begin as one"));
    }
    let mut rest = body.clone();
    rest.advance(8);
    let (format, header) = (rest.get_u32_le(), rest.get_u32_le() as usize);
    if !(FIXED + 4..=body.len()).contains(&header) {
        return Err(damaged("it is cut off"));
    }
    // Before the format is believed: a flipped bit is no later version.
    let (head, mut sum) = (&body[..header - 4], &body[header - 4..header]);
    if sum.get_u32_le() != crc32c::crc32c(head) {
        return Err(damaged("the checksum of its header is wrong"));
    }
    if format > FORMAT {
        return Err(Unreadable::Later(format));
    }
    let (fence, revision) = (rest.get_u64_le(), rest.get_u64_le());
    let write_id = take_id(&mut rest);
    let (written, length) = (rest.get_i64_le(), rest.get_u64_le());
    let (path, earlier) = (usize::from(rest.get_u16_le()), usize::from(rest.get_u16_le()));
    rest.advance(8);
    if header != FIXED + path + 16 * earlier + 4 || earlier >= REMEMBERED {
        return Err(damaged("its header has another length than it says"));
    }
    let path = Key::new(rest.split_to(path)).map_err(|error| Unreadable::Damaged(error.to_string()))?;
    let earlier = (0..earlier).map(|_| take_id(&mut rest)).collect();
    rest.advance(4);
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BYTES && rest.len() == length + 4);
    let Some(length) = length else { return Err(damaged("its data has another length than it says")) };
    let bytes = rest.split_to(length);
    if rest.get_u32_le() != crc32c::crc32c(&bytes) {
        return Err(damaged("the checksum of its data is wrong"));
    }
    let fence = Fence::new(fence).map_err(|error| Unreadable::Damaged(error.to_string()))?;
    let written = Timestamp::from_millis(written);
    Ok((path, Object { write_id, revision, fence, written, earlier, bytes }))
}

fn take_id(rest: &mut Bytes) -> WriteId {
    let mut id = [0; 16];
    rest.copy_to_slice(&mut id);
    id.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(earlier: u8, bytes: &'static [u8]) -> (Key, Object) {
        let object = Object {
            write_id: [9; 16].into(),
            revision: 3,
            fence: Fence::new(12).unwrap(),
            written: Timestamp::from_millis(1_767_225_600_001),
            earlier: (0..earlier).map(|number| [number; 16].into()).collect(),
            bytes: Bytes::from_static(bytes),
        };
        (Key::new("a/b").unwrap(), object)
    }

    #[test]
    fn an_object_comes_back_as_it_was_written() {
        for (path, object) in [object(0, b""), object(7, b"data"), object(3, &[0; 1000])] {
            assert_eq!(decode(encode(&path, &object)).unwrap(), (path, object));
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unseen() {
        let (path, object) = object(2, b"data");
        let body = encode(&path, &object);
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(flipped.into()), Err(Unreadable::Damaged(_))), "bit {bit}");
        }
        for length in 0..body.len() {
            assert!(decode(body.slice(..length)).is_err(), "cut after {length} bytes");
        }
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let (path, object) = object(0, b"data");
        let mut body = encode(&path, &object).to_vec();
        body[8] = 2;
        let header = FIXED + path.as_bytes().len();
        let checksum = crc32c::crc32c(&body[..header]).to_le_bytes();
        body[header..header + 4].copy_from_slice(&checksum);
        assert_eq!(decode(body.into()).unwrap_err(), Unreadable::Later(2));
    }
}
