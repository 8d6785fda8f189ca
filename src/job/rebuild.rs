//! Making a ledger again that was lost, from the segments that are there.
//!
//! Jobs run twice rather than not at all: what had ended in a segment of which something is left runs again, and so does what
//! runs now. What stood in the ledger alone is gone: how often a job was tried, unless it was spilled; cancels, pauses of
//! single jobs, limits of keys, slots of schedules, unique keys.

use super::{
    apply::unread_of,
    core::Core,
    fetch::Read,
    id::{JobId, SegmentId},
    layout::{Listed, Place, SegmentName},
    ledger::{Ledger, Row, insert_range},
    segment::Facts,
};
use crate::{
    Error, Fence, Result, WriteId,
    clock::Timestamp,
    record::{Change, Changed, Patience, Plan},
    storage::{Name, Walk, cas::Record as _},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Names that are listed at once.
const PAGE: usize = 1000;

/// What a lost ledger was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Rebuilt {
    /// Ledgers that were missing and are there again.
    pub ledgers: u16,
    /// Segments that only a ledger names, and whose jobs wait again.
    pub segments: u64,
    /// Jobs in them.
    pub jobs: u64,
    /// Segments that could not be read and are left as they are.
    pub unreadable: u64,
}

/// A segment that was read.
struct Found {
    name: SegmentName,
    facts: Arc<Facts>,
    ids: Vec<JobId>,
}

/// Makes every ledger again that is missing.
pub(crate) async fn rebuild(core: &Arc<Core>) -> Result<Rebuilt> {
    core.backend().refresh_time().await?;
    let ever = core.settings().await?.record().shards_ever;
    let mut rebuilt = Rebuilt::default();
    for shard in 0..ever {
        let shard = u8::try_from(shard).unwrap_or(u8::MAX);
        if crate::storage::cas::read(core.backend(), &core.ledger_slot(shard)).await?.is_none() {
            one(core, shard, &mut rebuilt).await?;
        }
    }
    Ok(rebuilt)
}

async fn one(core: &Arc<Core>, shard: u8, rebuilt: &mut Rebuilt) -> Result<()> {
    let kept = read_all(core, &core.layout.seg(shard), rebuilt).await?;
    // Where their jobs came from: what is left there must not run beside them.
    let moved: BTreeMap<SegmentId, BTreeSet<u16>> = kept.iter().flat_map(|found| &found.ids).fold(
        BTreeMap::new(),
        |mut moved: BTreeMap<SegmentId, BTreeSet<u16>>, id| {
            moved.entry(id.segment()).or_default().insert(id.index());
            moved
        },
    );
    let mut origins = Vec::new();
    for folder in [core.layout.inbox_of(shard), core.layout.later(shard)] {
        for name in names(core, &folder).await? {
            if moved.contains_key(&name.id) {
                origins.extend(read_one(core, name, rebuilt).await?);
            }
        }
    }
    let known = core.settings().await?;
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let mut ledger =
        Ledger::new(&core.name, shard, WriteId::from([0; 16]), known.revision(), known.record().settings.policy());
    fill(&mut ledger, now, &kept, &origins, &moved);
    ledger.check().map_err(Error::corrupt)?;
    let patience = Patience { within: 3 * core.backend().request_timeout, conflicts: 8 };
    let mut change = Change::new(core.backend(), core.ledger_slot(shard), None, patience);
    let done = change.run(|there, stamp| {
        Ok(match there {
            Some(there) => ((), Plan::Stop(there.record().revision())),
            None => ((), Plan::Write(Ledger { write_id: stamp.write_id, ..ledger.clone() })),
        })
    });
    if let Changed::Won(..) = done.await? {
        rebuilt.ledgers += 1;
        rebuilt.segments += kept.len() as u64;
        rebuilt.jobs += kept.iter().map(|found| u64::from(found.facts.jobs)).sum::<u64>();
        tracing::warn!(queue = %core.name, shard, "a lost ledger was made again: jobs may run twice");
    }
    Ok(())
}

/// Pure: the ledger of what was found. Numbers that must be above all of before are taken from the clock.
fn fill(
    ledger: &mut Ledger,
    now: Timestamp,
    kept: &[Found],
    origins: &[Found],
    moved: &BTreeMap<SegmentId, BTreeSet<u16>>,
) {
    let millis = u64::try_from(now.as_millis()).unwrap_or(1).max(1);
    ledger.now = now.as_millis();
    // Above that of the lost one, so that no process takes it for an older copy; and no object of before can be named.
    ledger.revision = millis;
    ledger.gc_epoch = millis;
    ledger.fence_last = Fence::new(millis.saturating_mul(1000)).ok();
    let none = BTreeSet::new();
    for (found, is_origin) in kept.iter().map(|found| (found, false)).chain(origins.iter().map(|found| (found, true))) {
        let without = if is_origin { moved.get(&found.name.id).unwrap_or(&none) } else { &none };
        let without: Vec<u16> = without.iter().copied().filter(|index| *index < found.facts.jobs).collect();
        let mut ranges = Vec::new();
        for index in &without {
            insert_range(&mut ranges, super::ledger::Range::one(*index));
        }
        let open = found.facts.jobs.saturating_sub(u16::try_from(without.len()).unwrap_or(u16::MAX));
        ledger.fence_last = ledger.fence_last.max(found.facts.fence);
        if open == 0 {
            continue;
        }
        ledger.rows.push(Row {
            number: ledger.next_row,
            name: found.name,
            open,
            request: found.facts.request,
            unread: unread_of(&found.facts, &without),
            runs: Vec::new(),
            moved: ranges,
            span: found.facts.span,
            inline: None,
            tracked: Vec::new(),
        });
        ledger.next_row += 1;
        ledger.counters.absorbed += u64::from(open);
    }
}

async fn read_all(core: &Arc<Core>, folder: &str, rebuilt: &mut Rebuilt) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    let mut walk = Walk::new(folder, None);
    loop {
        let page = walk.next(core.backend(), PAGE).await?;
        for name in &page.names {
            let Some(id) = core.layout.parse_seg(name.as_str()) else { continue };
            all.extend(read_one(core, SegmentName { id, place: Place::Seg, jobs: 0 }, rebuilt).await?);
        }
        if !page.more || page.names.is_empty() {
            return Ok(all);
        }
    }
}

async fn names(core: &Arc<Core>, folder: &str) -> Result<Vec<SegmentName>> {
    let mut all = Vec::new();
    let mut walk = Walk::new(folder, None);
    loop {
        let page = walk.next(core.backend(), PAGE).await?;
        all.extend(page.names.iter().filter_map(|name: &Name| match core.layout.parse(name.as_str()) {
            Listed::Segment(segment) => Some(segment),
            Listed::Foreign => None,
        }));
        if !page.more || page.names.is_empty() {
            return Ok(all);
        }
    }
}

async fn read_one(core: &Arc<Core>, name: SegmentName, rebuilt: &mut Rebuilt) -> Result<Option<Found>> {
    match core.shared.segments.read(core.backend(), &core.layout, &name).await? {
        Read::Loaded(loaded) => {
            let facts = Arc::clone(&loaded.facts);
            let ids = (0..facts.jobs).filter_map(|index| loaded.table.id(index)).collect();
            Ok(Some(Found { name: SegmentName { jobs: facts.jobs, ..name }, facts, ids }))
        }
        Read::Missing => Ok(None),
        read => {
            tracing::error!(segment = %name.id, ?read, "a segment cannot be read: it is left as it is");
            rebuilt.unreadable += 1;
            Ok(None)
        }
    }
}
