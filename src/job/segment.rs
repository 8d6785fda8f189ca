//! Segments: immutable objects with many jobs.
//!
//! Sixteen bytes that never change (magic, format, length of the table, checksum), the table, its checksum, then blocks.
//! The table alone says where each part of each job is to be found, so a part can be fetched by range on its own. A
//! block holds parts of one name only, of jobs that follow one another: what is claimed together is one range, and what
//! is left out of a claim costs nothing. A block that does not shrink is stored as it is.
//!
//! Nothing that is read is trusted: every bit is under a checksum, every number is checked against a limit before anything
//! is allocated by it, and a later format is told apart from damage (damage is buried, a later format is left alone).

mod encode;
mod facts;
pub(crate) mod wire;

pub(crate) use encode::{Encoded, Head, NewJob, encode};
pub(crate) use facts::{Facts, key_hash, unique_hash};

use super::{
    id::{JobId, SegmentId},
    ledger::Reason,
};
use crate::{Fence, WriteId, clock::Timestamp};
use bytes::Bytes;
use prost::Message;
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc, time::Duration};

/// The format that this version writes.
pub(crate) const FORMAT: u16 = 1;
const MAGIC: [u8; 4] = *b"LHSG";
/// The part of the head that is the same in every format.
pub(crate) const PREFIX: usize = 16;
const CHECKSUM: usize = 4;

/// No segment has more jobs, whatever the settings of its queue say. Their index has 16 bits.
pub(crate) const MOST_JOBS: usize = 16_384;
/// No segment is longer.
pub(crate) const LONGEST: usize = 16 << 20;
/// No block is longer when it is unpacked.
pub(crate) const LONGEST_BLOCK: usize = 16 << 20;
/// Parts that a job may have.
pub(crate) const MOST_PARTS: usize = 8;
pub(crate) const LONGEST_PART_NAME: usize = 64;
/// Kind, tenant, key, unique key, the caller's own id, the name of a source queue.
pub(crate) const LONGEST_TEXT: usize = 128;
pub(crate) const LONGEST_ERROR: usize = 1024;
/// Different kinds, tenants and part names in one segment.
const MOST_TEXTS: usize = 2 * MOST_JOBS + 64;

/// Why bytes are no segment of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is not what was written.
    Damaged(String),
    /// A later version of leasehold wrote it: left for one, and reported.
    Later(u16),
    /// Fewer bytes were given than the table needs: read this many.
    Short(usize),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => write!(f, "the segment is damaged: {why}"),
            Self::Later(format) => {
                write!(
                    f,
                    "the segment has format {format}, this version reads {FORMAT}: use a newer version of leasehold"
                )
            }
            Self::Short(needed) => write!(f, "the segment's table needs {needed} bytes"),
        }
    }
}

type Read<T> = std::result::Result<T, Unreadable>;

fn damaged<T>(why: impl Into<String>) -> Read<T> {
    Err(Unreadable::Damaged(why.into()))
}

/// Where one part of one job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartAt {
    pub(crate) block: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// What a job that has run before brings with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// The id that it was enqueued under, where that is not its place here.
    pub(crate) id: Option<JobId>,
    pub(crate) attempts: u32,
    pub(crate) stalls: u8,
    /// How many suspects may be in one hand with it; 0: it is none.
    pub(crate) group: u16,
    pub(crate) fence: Option<Fence>,
    pub(crate) error: Option<Arc<str>>,
    /// Why it is dead.
    pub(crate) reason: Option<Reason>,
}

/// A job as the table has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) priority: i16,
    pub(crate) due: Timestamp,
    pub(crate) kind: Option<Arc<str>>,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) unique_key: Option<Arc<str>>,
    pub(crate) caller_id: Option<Arc<str>>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) history: History,
    /// By name.
    pub(crate) parts: Vec<(Arc<str>, PartAt)>,
}

/// One block, as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Counted from the start of the object.
    start: usize,
    stored: usize,
    length: usize,
    packed: bool,
    checksum: u32,
}

/// Everything that a segment says without its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) segment: SegmentId,
    pub(crate) write_id: WriteId,
    pub(crate) made: Timestamp,
    pub(crate) txn: Option<[u8; 16]>,
    pub(crate) request: bool,
    pub(crate) source: Option<String>,
    pub(crate) jobs: Vec<Entry>,
    blocks: Vec<Block>,
    /// Of the whole object.
    length: usize,
}

/// How many bytes from the start have the table, as the first [`PREFIX`] bytes say.
pub(crate) fn head_length(start: &[u8]) -> Read<usize> {
    let Some(prefix) = start.first_chunk::<PREFIX>() else { return Err(Unreadable::Short(PREFIX)) };
    let word = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    if prefix[..4] != MAGIC || word(12) != crc32c::crc32c(&prefix[..12]) {
        return damaged("it does not begin like a segment");
    }
    let format = u16::from_le_bytes([prefix[4], prefix[5]]);
    if format > FORMAT {
        return Err(Unreadable::Later(format));
    }
    let table = usize::try_from(word(8)).unwrap_or(usize::MAX);
    if format == 0 || prefix[6..8] != [0, 0] || table > LONGEST {
        return damaged("its head says what no version writes");
    }
    Ok(PREFIX + table + CHECKSUM)
}

impl Table {
    /// From the first bytes of a segment; asks for more if they do not reach.
    pub(crate) fn decode(start: &[u8]) -> Read<Self> {
        let head = head_length(start)?;
        let Some(head) = start.get(..head) else { return Err(Unreadable::Short(head)) };
        let (content, checksum) = head[PREFIX..].split_at(head.len() - PREFIX - CHECKSUM);
        if checksum != crc32c::crc32c(content).to_le_bytes() {
            return damaged("the checksum of its table is wrong");
        }
        let message = match wire::Table::decode(content) {
            Ok(message) => message,
            Err(error) => return damaged(error.to_string()),
        };
        read_table(message, head.len())
    }

    /// How long the whole object must be.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The id of the job at an index: the one that it was enqueued under.
    pub(crate) fn id(&self, index: u16) -> Option<JobId> {
        let entry = self.jobs.get(usize::from(index))?;
        Some(entry.history.id.unwrap_or_else(|| self.segment.job(index)))
    }

    /// The bytes of the object in which a block is stored.
    pub(crate) fn block(&self, block: u32) -> Option<Range<usize>> {
        let block = self.blocks.get(usize::try_from(block).ok()?)?;
        Some(block.start..block.start + block.stored)
    }

    /// The fewest ranges that have these parts of these jobs: neighbours are joined. `None` for all parts.
    pub(crate) fn ranges(&self, indexes: impl Iterator<Item = u16>, parts: Option<&[&str]>) -> Vec<Range<usize>> {
        let mut blocks: Vec<u32> = indexes
            .filter_map(|index| self.jobs.get(usize::from(index)))
            .flat_map(|entry| &entry.parts)
            .filter(|(name, _)| parts.is_none_or(|parts| parts.contains(&name.as_ref())))
            .map(|(_, at)| at.block)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in blocks.into_iter().filter_map(|block| self.block(block)).filter(|range| !range.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// The parts in a block, given the bytes of [`block`](Self::block).
    pub(crate) fn unpack(&self, block: u32, stored: Bytes) -> Read<Bytes> {
        let known = usize::try_from(block).ok().and_then(|block| self.blocks.get(block));
        let Some(block) = known else { return damaged("it has no such block") };
        if stored.len() != block.stored || crc32c::crc32c(&stored) != block.checksum {
            return damaged("the checksum of a block is wrong");
        }
        if !block.packed {
            return Ok(stored);
        }
        match lz4_flex::block::decompress(&stored, block.length) {
            Ok(bytes) if bytes.len() == block.length => Ok(bytes.into()),
            _ => damaged("a block cannot be unpacked"),
        }
    }

    /// One part of one job, given an unpacked block.
    pub(crate) fn part(&self, index: u16, name: &str, unpacked: &BTreeMap<u32, Bytes>) -> Option<Bytes> {
        let (_, at) = self.jobs.get(usize::from(index))?.parts.iter().find(|(known, _)| known.as_ref() == name)?;
        let start = usize::try_from(at.offset).ok()?;
        let end = start.checked_add(usize::try_from(at.length).ok()?)?;
        let block = unpacked.get(&at.block)?;
        (end <= block.len()).then(|| block.slice(start..end))
    }
}

/// A segment that was read whole: small ones come so, and their body is already here.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) table: Table,
    /// Unpacked, by number.
    pub(crate) blocks: BTreeMap<u32, Bytes>,
}

impl Segment {
    /// Checks every byte.
    pub(crate) fn decode(body: &Bytes) -> Read<Self> {
        let table = match Table::decode(body) {
            // Nothing more is to come.
            Err(Unreadable::Short(needed)) => return damaged(format!("it has {} bytes of {needed}", body.len())),
            table => table?,
        };
        if body.len() != table.length {
            return damaged(format!("it has {} bytes, not {}", body.len(), table.length));
        }
        let mut blocks = BTreeMap::new();
        for number in 0..u32::try_from(table.blocks.len()).unwrap_or(0) {
            let range = table.block(number).unwrap_or_default();
            blocks.insert(number, table.unpack(number, body.slice(range))?);
        }
        Ok(Self { table, blocks })
    }

    pub(crate) fn part(&self, index: u16, name: &str) -> Option<Bytes> {
        self.table.part(index, name, &self.blocks)
    }
}

fn id16(what: &str, bytes: &[u8]) -> Read<[u8; 16]> {
    bytes.try_into().or_else(|_| damaged(format!("its {what} is no id")))
}

fn time(millis: i64) -> Read<Timestamp> {
    let at = Timestamp::from_millis(millis);
    if at.as_millis() == millis { Ok(at) } else { damaged("it has a time that no clock shows") }
}

fn read_table(message: wire::Table, head: usize) -> Read<Table> {
    let Some(segment) = SegmentId::from_number(u128::from_be_bytes(id16("segment", &message.segment)?)) else {
        return damaged("its id is none of ours");
    };
    if message.jobs.is_empty() || message.jobs.len() > MOST_JOBS || message.texts.len() > MOST_TEXTS {
        return damaged(format!("it has {} jobs and {} texts", message.jobs.len(), message.texts.len()));
    }
    if message.source.len() > LONGEST_TEXT {
        return damaged("the name of its source is too long");
    }
    let mut length = head;
    let mut blocks = Vec::with_capacity(message.blocks.len().min(LONGEST / 64));
    for block in &message.blocks {
        let block = read_block(block, length)?;
        length += block.stored;
        blocks.push(block);
    }
    if length > LONGEST {
        return damaged(format!("it would have {length} bytes"));
    }
    let texts: Vec<Arc<str>> = message.texts.iter().map(|text| Arc::from(text.as_str())).collect();
    let mut jobs: Vec<Entry> = Vec::with_capacity(message.jobs.len());
    for job in &message.jobs {
        let entry = read_job(job, &texts, &blocks)?;
        if jobs.last().is_some_and(|last| (last.priority, last.due) > (entry.priority, entry.due)) {
            return damaged("its jobs are not in order");
        }
        jobs.push(entry);
    }
    Ok(Table {
        segment,
        write_id: id16("write_id", &message.write_id)?.into(),
        made: time(message.made_ms)?,
        txn: if message.txn.is_empty() { None } else { Some(id16("transaction", &message.txn)?) },
        request: message.request,
        source: Some(message.source).filter(|source| !source.is_empty()),
        jobs,
        blocks,
        length,
    })
}

fn read_block(block: &wire::Block, start: usize) -> Read<Block> {
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let (stored, length) = (size(block.stored), size(block.length));
    let packed = block.packing == 1;
    if stored > LONGEST || length > LONGEST_BLOCK || block.packing > 1 || (!packed && stored != length) {
        return damaged("a block is longer than any");
    }
    Ok(Block { start, stored, length, packed, checksum: block.checksum })
}

fn read_job(job: &wire::Job, texts: &[Arc<str>], blocks: &[Block]) -> Read<Entry> {
    let named = |number: u32| match usize::try_from(number).unwrap_or(usize::MAX).checked_sub(1) {
        None => Ok(None),
        Some(at) => match texts.get(at) {
            Some(text) if text.len() <= LONGEST_TEXT => Ok(Some(Arc::clone(text))),
            _ => damaged("a job has a kind or a tenant that is not there"),
        },
    };
    let text = |text: &str, longest: usize| match text.len() {
        0 => Ok(None),
        length if length <= longest => Ok(Some(Arc::from(text))),
        length => damaged(format!("a text of a job has {length} bytes")),
    };
    let history = History {
        id: if job.id.is_empty() {
            None
        } else {
            let id = JobId::from_number(u128::from_be_bytes(id16("job", &job.id)?));
            Some(id.ok_or_else(|| Unreadable::Damaged("a job's id is none of ours".to_owned()))?)
        },
        attempts: job.attempts,
        stalls: u8::try_from(job.stalls).or_else(|_| damaged("a job has too many stalls"))?,
        group: u16::try_from(job.group).or_else(|_| damaged("a job has too large a group"))?,
        fence: match job.fence {
            0 => None,
            fence => Some(Fence::new(fence).or_else(|error| damaged(error.to_string()))?),
        },
        error: text(&job.error, LONGEST_ERROR)?,
        reason: match job.reason.checked_sub(1) {
            None => None,
            // One that a later version knows is none for this one.
            Some(number) => Reason::from_number(number),
        },
    };
    Ok(Entry {
        priority: i16::try_from(job.priority).or_else(|_| damaged("a job has a priority beyond 16 bits"))?,
        due: time(job.due_ms)?,
        kind: named(job.kind)?,
        tenant: named(job.tenant)?,
        key: text(&job.key, LONGEST_TEXT)?,
        unique_key: text(&job.unique_key, LONGEST_TEXT)?,
        caller_id: text(&job.caller_id, LONGEST_TEXT)?,
        max_attempts: Some(job.max_attempts).filter(|most| *most > 0),
        timeout: Some(job.timeout_ms).filter(|millis| *millis > 0).map(Duration::from_millis),
        history,
        parts: read_parts(&job.parts, texts, blocks)?,
    })
}

fn read_parts(parts: &[wire::Part], texts: &[Arc<str>], blocks: &[Block]) -> Read<Vec<(Arc<str>, PartAt)>> {
    if parts.len() > MOST_PARTS {
        return damaged(format!("a job has {} parts", parts.len()));
    }
    let mut read: Vec<(Arc<str>, PartAt)> = Vec::with_capacity(parts.len());
    for part in parts {
        let name = usize::try_from(part.name).ok().and_then(|at| texts.get(at));
        let block = usize::try_from(part.block).ok().and_then(|at| blocks.get(at));
        let end = part.offset.checked_add(part.length).and_then(|end| usize::try_from(end).ok());
        match (name, block, end) {
            (Some(name), Some(block), Some(end))
                if end <= block.length
                    && (1..=LONGEST_PART_NAME).contains(&name.len())
                    && read.iter().all(|(other, _)| other != name) =>
            {
                let at = PartAt { block: part.block, offset: part.offset, length: part.length };
                read.push((Arc::clone(name), at));
            }
            _ => return damaged("a job has a part that is not there"),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
