//! Listing jobs by state: a page at a time, and as much is read as a page needs.

use super::{
    apply::jobs_of,
    core::Core,
    fetch::Loaded,
    id::JobId,
    inbox::unknown,
    info::{JobInfo, JobState, describe, fill, read, wait},
    layout::{Listed, SegmentName},
    ledger::{Ledger, Millis, Row, Why},
};
use crate::{Error, Result, clock::Timestamp, storage::Name};
use futures_util::future::BoxFuture;
use serde::Serialize;
use std::sync::Arc;

/// Jobs in one page at the most.
const MOST: usize = 1000;
/// Names of segments that are listed at once.
const NAMES: usize = 1000;

/// A page of jobs that is read when it is awaited.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use leasehold::job::JobState;
///
/// # let store = leasehold::Store::open("memory://").await?;
/// # let queue = store.queue("emails")?;
/// # queue.enqueue_many(["a", "b", "c"]).await?;
/// let mut next = None;
/// loop {
///     let page = queue.list(JobState::Available).limit(2).after(next).await?;
///     for job in &page.jobs {
///         println!("{} {:?}", job.id, job.kind);
///     }
///     next = page.next;
///     if next.is_none() {
///         break;
///     }
/// }
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is read until it is awaited"]
#[derive(Debug)]
pub struct JobList {
    core: Arc<Core>,
    state: JobState,
    limit: usize,
    after: Option<String>,
}

/// Some jobs of one state. What changes its state while pages are read may be missed, or shown twice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct JobPage {
    /// In the order of shards and segments.
    pub jobs: Vec<JobInfo>,
    /// Where the next page begins, for [`JobList::after`]; none on the last one.
    pub next: Option<String>,
}

impl JobList {
    pub(crate) fn new(core: Arc<Core>, state: JobState) -> Self {
        Self { core, state, limit: 100, after: None }
    }

    /// So many jobs at the most: 1 to 1,000 (100).
    pub fn limit(mut self, most: usize) -> Self {
        self.limit = most.clamp(1, MOST);
        self
    }

    /// Goes on where a page has ended; from the start for none.
    pub fn after(mut self, next: impl Into<Option<String>>) -> Self {
        self.after = next.into();
        self
    }
}

impl IntoFuture for JobList {
    type Output = Result<JobPage>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(page(self))
    }
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Cursor {
    shard: u8,
    /// The row of the ledger, 0 before the first; the name in the inbox once all rows are through.
    row: u32,
    name: Option<String>,
    index: u16,
}

impl Cursor {
    fn text(&self) -> String {
        match &self.name {
            None => format!("{}-{}-{}", self.shard, self.row, self.index),
            Some(name) => format!("{}-i-{}-{name}", self.shard, self.index),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("{text:?} is no place in a list of jobs: use the one of the last page"));
        let mut parts = text.splitn(4, '-');
        let mut next = || parts.next().ok_or_else(wrong);
        let (shard, row, index) = (next()?, next()?, next()?);
        let shard = shard.parse().map_err(|_| wrong())?;
        let index = index.parse().map_err(|_| wrong())?;
        match row {
            "i" => Ok(Self { shard, row: 0, name: Some(next()?.to_owned()), index }),
            row => Ok(Self { shard, row: row.parse().map_err(|_| wrong())?, name: None, index }),
        }
    }
}

/// A page that is being filled.
struct Filling<'a> {
    core: &'a Arc<Core>,
    state: JobState,
    limit: usize,
    now: Timestamp,
    jobs: Vec<JobInfo>,
}

async fn page(list: JobList) -> Result<JobPage> {
    let JobList { core, state, limit, after } = list;
    if state == JobState::Finished {
        return Err(Error::invalid(
            "finished jobs are kept nowhere: look one up by its id while others of its call run",
        ));
    }
    let mut cursor = after.as_deref().map(Cursor::parse).transpose()?.unwrap_or_default();
    let ever = core.settings().await?.record().shards_ever;
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let mut filling = Filling { core: &core, state, limit, now, jobs: Vec::new() };
    for shard in u16::from(cursor.shard)..ever {
        let shard = u8::try_from(shard).unwrap_or(u8::MAX);
        if shard != cursor.shard {
            cursor = Cursor { shard, ..Cursor::default() };
        }
        if let Some(next) = filling.shard(&cursor).await? {
            return Ok(JobPage { jobs: filling.jobs, next: Some(next.text()) });
        }
    }
    Ok(JobPage { jobs: filling.jobs, next: None })
}

impl Filling<'_> {
    /// Adds what one shard has; where to go on if the page is full.
    async fn shard(&mut self, from: &Cursor) -> Result<Option<Cursor>> {
        let inbox = matches!(self.state, JobState::Available | JobState::Scheduled);
        // The listing first: what is absorbed in between is shown by the ledger alone.
        let listed = if inbox { Some(self.listed(from).await?) } else { None };
        let seen = self.core.shard(from.shard).look().await?;
        let ledger = seen.record();
        if from.name.is_none() {
            for row in ledger.rows.iter().filter(|row| row.number >= from.row) {
                let first = if row.number == from.row { from.index } else { 0 };
                if let Some(index) = self.row(ledger, row, first).await? {
                    return Ok(Some(Cursor { shard: from.shard, row: row.number, name: None, index }));
                }
            }
        }
        let Some((names, more)) = listed else { return Ok(None) };
        for name in unknown(ledger, &names, u64::MAX) {
            let path = self.core.layout.segment(&name).unwrap_or_default();
            let first = if from.name.as_deref() == Some(path.as_str()) { from.index } else { 0 };
            if let Some(index) = self.segment(&name, first).await? {
                return Ok(Some(Cursor { shard: from.shard, row: 0, name: Some(path), index }));
            }
        }
        let last = names.last().and_then(|name| self.core.layout.segment(name)).filter(|_| more);
        Ok(last.map(|name| Cursor { shard: from.shard, row: 0, name: Some(name), index: u16::MAX }))
    }

    /// Segments in the inbox of a shard from a place on, and whether there are more.
    async fn listed(&self, from: &Cursor) -> Result<(Vec<SegmentName>, bool)> {
        let (layout, backend) = (&self.core.layout, self.core.backend());
        let folders = [layout.inbox_of(from.shard), layout.later(from.shard)];
        let mut names = Vec::new();
        for folder in folders {
            let from = from.name.as_deref();
            // `at/` comes before `in/` by name, and after it here.
            let is_past = from.is_some_and(|from| !from.starts_with(&folder) && folder.contains("/in/"));
            if is_past {
                continue;
            }
            let from = from.filter(|from| from.starts_with(&folder));
            // The place itself is shown again: some of its jobs may be left.
            let itself = from.and_then(|from| match layout.parse(from) {
                Listed::Segment(segment) => Some(segment),
                Listed::Foreign => None,
            });
            names.extend(itself);
            let page = backend.page(&folder, from.map(Name::new).as_ref(), NAMES).await?;
            names.extend(page.names.iter().filter_map(|name| match layout.parse(name.as_str()) {
                Listed::Segment(segment) => Some(segment),
                Listed::Foreign => None,
            }));
            if page.more {
                return Ok((names, true));
            }
        }
        Ok((names, false))
    }

    /// Adds the jobs of a row; the first that has no room.
    async fn row(&mut self, ledger: &Ledger, row: &Row, first: u16) -> Result<Option<u16>> {
        if !may_have(ledger, row, self.state, self.now.as_millis()) {
            return Ok(None);
        }
        let loaded = if row.inline.is_some() { None } else { read(self.core, &row.name).await? };
        for (index, found) in jobs_of(ledger, row).into_iter().filter(|(index, _)| *index >= first) {
            let mut info = self.info(&row.name, loaded.as_deref(), index);
            fill(&mut info, ledger, found, self.now);
            if self.add(info) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    async fn segment(&mut self, name: &SegmentName, first: u16) -> Result<Option<u16>> {
        if first >= name.jobs {
            return Ok(None);
        }
        let Some(loaded) = read(self.core, name).await? else { return Ok(None) };
        for index in first..name.jobs {
            let mut info = self.info(name, Some(&loaded), index);
            wait(&mut info, self.now);
            if self.add(info) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn info(&self, name: &SegmentName, loaded: Option<&Loaded>, index: u16) -> JobInfo {
        let own: JobId = name.id.job(index);
        let mut info = JobInfo::new(loaded.and_then(|loaded| loaded.table.id(index)).unwrap_or(own));
        if let Some(loaded) = loaded {
            describe(&mut info, loaded, index);
        }
        info
    }

    /// Adds a job if it is of the state; whether there was no room for it.
    fn add(&mut self, info: JobInfo) -> bool {
        if info.state != self.state {
            return false;
        }
        if self.jobs.len() >= self.limit {
            return true;
        }
        self.jobs.push(info);
        false
    }
}

/// Whether a row can have jobs of a state, by what the ledger alone says: nothing is read for one that cannot.
fn may_have(ledger: &Ledger, row: &Row, state: JobState, now: Millis) -> bool {
    let runs = || row.runs.iter().map(|run| &run.traits);
    let claimed = || ledger.claims.iter().flat_map(|claim| &claim.items).any(|item| item.row == row.number);
    match state {
        JobState::Available => {
            runs().any(|traits| traits.due <= now && !traits.paused)
                || row.unread.iter().any(|unread| unread.due <= now)
        }
        // An unread range is known by its first job: others may be due later.
        JobState::Scheduled => !row.unread.is_empty() || runs().any(|traits| traits.due > now),
        JobState::Retrying => runs().any(|traits| matches!(traits.why, Why::Failed | Why::Stalled)),
        JobState::Paused => runs().any(|traits| traits.paused),
        JobState::Running => claimed(),
        JobState::Cancelled => ledger.cancelling.iter().any(|job| job.segment == row.name.id),
        JobState::Dead => ledger.dead.iter().any(|plan| {
            plan.raw.is_some_and(|(number, _)| number == row.number)
                || plan.jobs.iter().any(|job| job.row == row.number)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_own_text() {
        let name = Some("default/queue/a-b/in/0/1/00-7".to_owned());
        for cursor in
            [Cursor { shard: 3, row: 9, name: None, index: 77 }, Cursor { shard: 255, row: 0, name, index: u16::MAX }]
        {
            assert_eq!(Cursor::parse(&cursor.text()).unwrap(), cursor);
        }
        for wrong in ["", "1", "1-2", "a-2-3", "1-i-3", "1-2-99999"] {
            assert!(Cursor::parse(wrong).is_err(), "{wrong}");
        }
    }
}
