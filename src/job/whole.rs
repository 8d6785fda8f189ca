//! Whole jobs, with all their parts: for what is spilled, buried, moved, or goes back with changed parts.

use super::{
    claiming::loaded,
    core::Core,
    layout::SegmentName,
    segment::{NewJob, Table},
};
use crate::{Error, Result, storage::Name};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// A job by its place, with what it must bring along.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) name: SegmentName,
    pub(crate) index: u16,
    /// Of a job that has no object.
    pub(crate) inline: Option<Bytes>,
}

/// Reads whole jobs, in the order in which they are named. Each knows the id that it was enqueued under.
pub(crate) async fn read(core: &Core, wanted: &[Wanted]) -> Result<Vec<NewJob>> {
    let mut by_segment: BTreeMap<SegmentName, Vec<u16>> = BTreeMap::new();
    for one in wanted {
        by_segment.entry(one.name).or_default().push(one.index);
    }
    let mut segments = BTreeMap::new();
    for (name, indexes) in by_segment {
        let Some(path) = core.layout.segment(&name).map(Name::new) else { continue };
        let table = loaded(core, &name, &path).await?;
        let blocks = core.shared.segments.blocks(core.backend(), &path, &table, &indexes, None).await?;
        segments.insert(name, (table, blocks));
    }
    wanted.iter().map(|one| whole(one, &segments)).collect()
}

type Read = BTreeMap<SegmentName, (Arc<super::fetch::Loaded>, BTreeMap<u32, Bytes>)>;

fn whole(one: &Wanted, segments: &Read) -> Result<NewJob> {
    let Some((loaded, blocks)) = segments.get(&one.name) else {
        let (loaded, blocks) = super::fetch::inline(&one.name, one.inline.as_ref().unwrap_or(&Bytes::new()))?;
        return from_table(one, &loaded.table, &blocks);
    };
    from_table(one, &loaded.table, blocks)
}

fn from_table(one: &Wanted, table: &Table, blocks: &BTreeMap<u32, Bytes>) -> Result<NewJob> {
    let id = one.name.id.job(one.index);
    let gone = || Error::corrupt(format!("job {id} is not in its segment"));
    let entry = table.jobs.get(usize::from(one.index)).ok_or_else(gone)?;
    let mut parts = Vec::with_capacity(entry.parts.len());
    for (name, _) in &entry.parts {
        parts.push((Arc::clone(name), table.part(one.index, name, blocks).ok_or_else(gone)?));
    }
    let mut job = NewJob::again(entry, parts);
    job.history.id = table.id(one.index);
    Ok(job)
}
