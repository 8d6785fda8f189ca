//! Writing a segment: jobs sorted, parts gathered into blocks, limits checked before anything is sent.

use super::{
    CHECKSUM, Entry, FORMAT, History, LONGEST, LONGEST_ERROR, LONGEST_PART_NAME, LONGEST_TEXT, MAGIC, MOST_JOBS,
    MOST_PARTS, PREFIX, wire,
};
use crate::{Error, Fence, Result, WriteId, clock::Timestamp, job::id::SegmentId};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A block is closed once it has this many bytes: one claimed job costs a read of no more than about this.
const BLOCK: usize = 64 << 10;

/// What a segment says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) segment: SegmentId,
    pub(crate) write_id: WriteId,
    pub(crate) made: Timestamp,
    pub(crate) txn: Option<[u8; 16]>,
    pub(crate) request: bool,
    pub(crate) source: Option<String>,
    /// Whether blocks are to be packed.
    pub(crate) pack: bool,
}

/// A job to be written.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewJob {
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
    pub(crate) parts: Vec<(Arc<str>, Bytes)>,
}

impl NewJob {
    /// A job as a table has it, with these parts: what is spilled, buried or moved keeps all that it was.
    pub(crate) fn again(entry: &Entry, parts: Vec<(Arc<str>, Bytes)>) -> Self {
        Self {
            priority: entry.priority,
            due: entry.due,
            kind: entry.kind.clone(),
            tenant: entry.tenant.clone(),
            key: entry.key.clone(),
            unique_key: entry.unique_key.clone(),
            caller_id: entry.caller_id.clone(),
            max_attempts: entry.max_attempts,
            timeout: entry.timeout,
            history: entry.history.clone(),
            parts,
        }
    }
}

/// A segment ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) body: Bytes,
    /// For each job as it was given: its index in the segment.
    pub(crate) indexes: Vec<u16>,
}

/// Writes a segment down. Refuses what no reader would take.
pub(crate) fn encode(head: &Head, jobs: &[NewJob]) -> Result<Encoded> {
    if jobs.is_empty() || jobs.len() > MOST_JOBS {
        let count = jobs.len();
        return Err(Error::invalid(format!("a segment has 1 to {MOST_JOBS} jobs (got {count}): split the call")));
    }
    if head.source.as_ref().is_some_and(|source| source.len() > LONGEST_TEXT) {
        return Err(Error::invalid(format!("the name of a queue has at most {LONGEST_TEXT} bytes")));
    }
    jobs.iter().try_for_each(check)?;
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|at| (jobs[*at].priority, jobs[*at].due));
    let mut indexes = vec![0; jobs.len()];
    for (index, at) in order.iter().enumerate() {
        indexes[*at] = u16::try_from(index).unwrap_or(u16::MAX);
    }
    let mut texts = Texts::default();
    let (blocks, stored, parts) = blocks(jobs, &order, head.pack, &mut texts);
    let rows = order.iter().zip(parts).map(|(at, parts)| row(&jobs[*at], parts, &mut texts)).collect();
    let table = wire::Table {
        segment: Bytes::copy_from_slice(&head.segment.number().to_be_bytes()),
        write_id: Bytes::copy_from_slice(head.write_id.as_bytes()),
        made_ms: head.made.as_millis(),
        txn: head.txn.map(|txn| Bytes::copy_from_slice(&txn)).unwrap_or_default(),
        request: head.request,
        jobs: rows,
        texts: texts.all,
        blocks,
        source: head.source.clone().unwrap_or_default(),
    };
    let length = PREFIX + table.encoded_len() + CHECKSUM + stored.len();
    if length > LONGEST {
        return Err(Error::invalid(format!(
            "the segment has {length} bytes, at most {LONGEST} are allowed: enqueue fewer or smaller jobs at once"
        )));
    }
    Ok(Encoded { body: assemble(&table, &stored), indexes })
}

fn assemble(table: &wire::Table, stored: &[u8]) -> Bytes {
    let length = table.encoded_len();
    let mut body = BytesMut::with_capacity(PREFIX + length + CHECKSUM + stored.len());
    body.put_slice(&MAGIC);
    body.put_u16_le(FORMAT);
    body.put_u16_le(0);
    // The whole is below 16 MiB.
    body.put_u32_le(u32::try_from(length).unwrap_or(u32::MAX));
    let checksum = crc32c::crc32c(&body);
    body.put_u32_le(checksum);
    // Reserving enough is all that encoding can fail for.
    let _ = table.encode(&mut body);
    let checksum = crc32c::crc32c(&body[PREFIX..]);
    body.put_u32_le(checksum);
    body.put_slice(stored);
    body.freeze()
}

fn check(job: &NewJob) -> Result<()> {
    let texts = [
        ("kind", &job.kind, LONGEST_TEXT),
        ("tenant", &job.tenant, LONGEST_TEXT),
        ("key", &job.key, LONGEST_TEXT),
        ("unique key", &job.unique_key, LONGEST_TEXT),
        ("id", &job.caller_id, LONGEST_TEXT),
        ("error", &job.history.error, LONGEST_ERROR),
    ];
    for (what, text, longest) in texts {
        if let Some(length) = text.as_ref().map(|text| text.len()).filter(|length| !(1..=longest).contains(length)) {
            return Err(Error::invalid(format!("the {what} of a job has 1 to {longest} bytes (got {length})")));
        }
    }
    if job.parts.len() > MOST_PARTS {
        return Err(Error::invalid(format!("a job has at most {MOST_PARTS} parts (got {})", job.parts.len())));
    }
    for (at, (name, bytes)) in job.parts.iter().enumerate() {
        if !(1..=LONGEST_PART_NAME).contains(&name.len()) {
            let length = name.len();
            return Err(Error::invalid(format!(
                "the name of a part has 1 to {LONGEST_PART_NAME} bytes (got {length})"
            )));
        }
        if job.parts[..at].iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(format!("a job has two parts named {name:?}: give each a name of its own")));
        }
        if bytes.len() > LONGEST {
            return Err(Error::invalid(format!("the part {name:?} has {} bytes, at most {LONGEST} fit", bytes.len())));
        }
    }
    // What the table keeps in milliseconds must come back as it was.
    let timeout_fits = job.timeout.is_none_or(|timeout| {
        timeout.subsec_nanos() % 1_000_000 == 0 && timeout.as_millis() > 0 && timeout.as_millis() < 1 << 53
    });
    if !timeout_fits || job.max_attempts == Some(0) {
        return Err(Error::invalid("a timeout is whole milliseconds, at least one; attempts are at least one"));
    }
    Ok(())
}

fn row(job: &NewJob, parts: Vec<wire::Part>, texts: &mut Texts) -> wire::Job {
    let text = |text: &Option<Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
    wire::Job {
        priority: i32::from(job.priority),
        due_ms: job.due.as_millis(),
        kind: job.kind.as_ref().map_or(0, |kind| texts.number(kind) + 1),
        tenant: job.tenant.as_ref().map_or(0, |tenant| texts.number(tenant) + 1),
        key: text(&job.key),
        unique_key: text(&job.unique_key),
        caller_id: text(&job.caller_id),
        parts,
        max_attempts: job.max_attempts.unwrap_or(0),
        timeout_ms: job.timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        attempts: job.history.attempts,
        stalls: u32::from(job.history.stalls),
        group: u32::from(job.history.group),
        fence: job.history.fence.map_or(0, Fence::get),
        error: text(&job.history.error),
        id: job.history.id.map(|id| Bytes::copy_from_slice(&id.number().to_be_bytes())).unwrap_or_default(),
        reason: job.history.reason.map_or(0, |reason| reason.number() + 1),
    }
}

/// Texts that many jobs share, each once.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    known: BTreeMap<Arc<str>, u32>,
}

impl Texts {
    fn number(&mut self, text: &Arc<str>) -> u32 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.push(text.as_ref().to_owned());
        self.known.insert(Arc::clone(text), number);
        number
    }
}

type Gathered = (Vec<wire::Block>, Vec<u8>, Vec<Vec<wire::Part>>);

/// All parts of one name, then all of the next, in the order of the jobs.
fn blocks(jobs: &[NewJob], order: &[usize], pack: bool, texts: &mut Texts) -> Gathered {
    let mut names: Vec<&Arc<str>> = Vec::new();
    for (name, _) in jobs.iter().flat_map(|job| &job.parts) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_unstable();
    let (mut blocks, mut stored) = (Vec::new(), Vec::new());
    let mut parts = vec![Vec::new(); jobs.len()];
    for name in names {
        let mut open: Vec<u8> = Vec::new();
        let number = texts.number(name);
        for (index, at) in order.iter().enumerate() {
            let Some((_, bytes)) = jobs[*at].parts.iter().find(|(known, _)| known == name) else { continue };
            // A large part has a block of its own.
            if !open.is_empty() && open.len() + bytes.len() > BLOCK {
                close(&mut open, pack, &mut blocks, &mut stored);
            }
            let short = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
            let (block, offset, length) = (short(blocks.len()), short(open.len()), short(bytes.len()));
            parts[index].push(wire::Part { name: number, block, offset, length });
            open.extend_from_slice(bytes);
        }
        // Some job has a part of this name, if only an empty one, and it has to be somewhere.
        close(&mut open, pack, &mut blocks, &mut stored);
    }
    (blocks, stored, parts)
}

fn close(open: &mut Vec<u8>, pack: bool, blocks: &mut Vec<wire::Block>, stored: &mut Vec<u8>) {
    let packed = pack.then(|| lz4_flex::block::compress(open)).filter(|packed| packed.len() < open.len());
    let bytes = packed.as_deref().unwrap_or(open);
    let size = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    blocks.push(wire::Block {
        stored: size(bytes.len()),
        length: size(open.len()),
        packing: u32::from(packed.is_some()),
        checksum: crc32c::crc32c(bytes),
    });
    stored.extend_from_slice(bytes);
    open.clear();
}
