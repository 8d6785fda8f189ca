//! Reading segments: whole if they are small, else the table first and the parts that are wanted by range.

use super::{
    layout::{Layout, SegmentName},
    segment::{Facts, Segment, Table, Unreadable},
};
use crate::{
    Error, Result,
    job::id::SegmentId,
    storage::{
        Backend, Name,
        bodies::{Piece, Way},
    },
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What the first read of a segment asks for: smaller ones come whole.
const FIRST_READ: usize = 1 << 20;
/// What is kept of segments between their absorption and their claims.
const KEPT: usize = 64 << 20;

/// A segment as far as it was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) table: Table,
    pub(crate) facts: Arc<Facts>,
    /// All of it, if it came whole.
    blocks: Option<BTreeMap<u32, Bytes>>,
    weight: usize,
}

/// What a look at a segment shows.
#[derive(Debug)]
pub(crate) enum Read {
    Loaded(Arc<Loaded>),
    /// It is not there any more.
    Missing,
    /// A later version wrote it: left for one.
    Later(u16),
    /// Two reads over two connections have shown it.
    Damaged(String),
}

impl Loaded {
    fn whole(segment: Segment, weight: usize) -> Self {
        let facts = Arc::new(segment.table.facts());
        Self { table: segment.table, facts, blocks: Some(segment.blocks), weight }
    }

    fn of_table(table: Table, weight: usize) -> Self {
        let facts = Arc::new(table.facts());
        Self { table, facts, blocks: None, weight }
    }
}

/// A job that has no object: its row has the segment of its schedule, and its own time and id.
pub(crate) fn inline(name: &SegmentName, body: &Bytes) -> Result<(Arc<Loaded>, BTreeMap<u32, Bytes>)> {
    let mut segment = Segment::decode(body)
        .map_err(|why| Error::corrupt(format!("the job of slot {} cannot be read: {why}", name.id)))?;
    segment.table.segment = name.id;
    segment.table.made = name.id.time();
    for job in &mut segment.table.jobs {
        job.due = name.id.time();
    }
    let blocks = segment.blocks.clone();
    Ok((Arc::new(Loaded::whole(segment, body.len())), blocks))
}

/// The segments that a process has read and may need again.
#[derive(Debug, Default)]
pub(crate) struct Segments(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<SegmentId, Arc<Loaded>>,
    order: VecDeque<SegmentId>,
    weight: usize,
}

impl Segments {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn known(&self, id: SegmentId) -> Option<Arc<Loaded>> {
        self.lock().by_id.get(&id).cloned()
    }

    fn keep(&self, id: SegmentId, loaded: &Arc<Loaded>) {
        let mut kept = self.lock();
        if kept.by_id.insert(id, Arc::clone(loaded)).is_none() {
            kept.order.push_back(id);
            kept.weight += loaded.weight;
        }
        while kept.weight > KEPT && kept.order.len() > 1 {
            if let Some(oldest) = kept.order.pop_front()
                && let Some(gone) = kept.by_id.remove(&oldest)
            {
                kept.weight = kept.weight.saturating_sub(gone.weight);
            }
        }
    }

    /// All its jobs have ended.
    pub(crate) fn forget(&self, ids: impl Iterator<Item = SegmentId>) {
        let mut kept = self.lock();
        for id in ids {
            if let Some(gone) = kept.by_id.remove(&id) {
                kept.weight = kept.weight.saturating_sub(gone.weight);
                kept.order.retain(|known| *known != id);
            }
        }
    }

    /// Reads a segment unless it is known. What looks damaged is read again over another connection.
    pub(crate) async fn read(&self, backend: &Backend, layout: &Layout, name: &SegmentName) -> Result<Read> {
        if let Some(known) = self.known(name.id) {
            return Ok(Read::Loaded(known));
        }
        let Some(path) = layout.segment(name).map(Name::new) else { return Ok(Read::Missing) };
        let mut read = read_once(backend, &path, Way::First).await?;
        if matches!(read, Read::Damaged(_)) {
            read = read_once(backend, &path, Way::Second).await?;
        }
        if let Read::Loaded(loaded) = &read {
            if loaded.table.segment != name.id {
                return Ok(Read::Damaged(format!("it is segment {}", loaded.table.segment)));
            }
            self.keep(name.id, loaded);
        }
        Ok(read)
    }

    /// The blocks that have these parts of these jobs, unpacked. `None` for all parts.
    pub(crate) async fn blocks(
        &self,
        backend: &Backend,
        path: &Name,
        loaded: &Loaded,
        indexes: &[u16],
        parts: Option<&[&str]>,
    ) -> Result<BTreeMap<u32, Bytes>> {
        if let Some(blocks) = &loaded.blocks {
            return Ok(blocks.clone());
        }
        let table = &loaded.table;
        let ranges = table.ranges(indexes.iter().copied(), parts);
        let reads = ranges.iter().map(|range| backend.get_range(path, range.clone(), Way::First));
        let pieces: Vec<Option<Piece>> = try_join_all(reads).await?;
        let mut blocks = BTreeMap::new();
        for number in wanted(table, indexes, parts) {
            let stored = table.block(number).unwrap_or_default();
            let piece =
                ranges.iter().zip(&pieces).find(|(range, _)| range.start <= stored.start && stored.end <= range.end);
            let bytes = match piece {
                Some((range, Some(piece))) if piece.body.len() == range.len() => {
                    piece.body.slice(stored.start - range.start..stored.end - range.start)
                }
                Some((_, None)) => {
                    return Err(Error::corrupt(format!("{path} is gone although its jobs are not done")));
                }
                Some(_) => return Err(Error::corrupt(format!("{path} is shorter than its table says"))),
                // An empty block is in no range.
                None => Bytes::new(),
            };
            let unpacked = table.unpack(number, bytes);
            blocks.insert(number, unpacked.map_err(|why| Error::corrupt(format!("{path} cannot be read: {why}")))?);
        }
        Ok(blocks)
    }
}

fn wanted(table: &Table, indexes: &[u16], parts: Option<&[&str]>) -> Vec<u32> {
    let entries = indexes.iter().filter_map(|index| table.jobs.get(usize::from(*index)));
    let named = entries
        .flat_map(|entry| &entry.parts)
        .filter(|(name, _)| parts.is_none_or(|parts| parts.contains(&name.as_ref())));
    let mut blocks: Vec<u32> = named.map(|(_, at)| at.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

async fn read_once(backend: &Backend, path: &Name, way: Way) -> Result<Read> {
    let Some(first) = backend.get_range(path, 0..FIRST_READ, way).await? else { return Ok(Read::Missing) };
    let length = first.body.len();
    let loaded = if first.whole as usize <= length {
        Segment::decode(&first.body).map(|segment| Loaded::whole(segment, length))
    } else {
        match Table::decode(&first.body) {
            Err(Unreadable::Short(needed)) => {
                let Some(more) = backend.get_range(path, 0..needed, way).await? else { return Ok(Read::Missing) };
                Table::decode(&more.body).map(|table| Loaded::of_table(table, needed))
            }
            table => table.map(|table| Loaded::of_table(table, length)),
        }
    };
    Ok(match loaded {
        Ok(loaded) => Read::Loaded(Arc::new(loaded)),
        Err(Unreadable::Later(format)) => Read::Later(format),
        Err(damage) => Read::Damaged(damage.to_string()),
    })
}
