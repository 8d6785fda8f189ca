//! Looking a job up, and cancelling it.

use super::{
    apply::{Found, Op, Outcome},
    core::Core,
    fetch::{Loaded, Read},
    id::{JobId, SegmentId},
    layout::{Listed, SegmentName},
    ledger::{JobRef, Ledger, Why},
};
use crate::{Error, Fence, Result, clock::Timestamp, storage::cas::Seen};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// Due later.
    Scheduled,
    /// Due, and not running.
    Available,
    /// In the hands of a process.
    Running,
    /// Waiting for its next attempt.
    Retrying,
    /// Held back.
    Paused,
    /// Ended.
    Finished,
    /// On its way to the dead letters.
    Dead,
    /// Cancelled, and about to end.
    Cancelled,
    /// Dropped because another job had its unique key.
    Duplicate,
}

/// What is known of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// What it is doing.
    pub state: JobState,
    /// Attempts that were made, with one that runs.
    pub attempts: u32,
    /// How often in a row it was alone with a process that died.
    pub stalls: u32,
    /// When it was enqueued.
    #[serde(rename = "enqueued_ms")]
    pub enqueued_at: Option<Timestamp>,
    /// When it is due next, while it waits.
    #[serde(rename = "due_ms")]
    pub due_at: Option<Timestamp>,
    /// Since when it runs.
    #[serde(rename = "running_since_ms")]
    pub running_since: Option<Timestamp>,
    /// What its last failed attempt said.
    pub last_error: Option<String>,
    /// Who runs it.
    pub owner: Option<String>,
    /// The fence of the attempt that runs.
    pub fence: Option<Fence>,
    /// What kind of job it is.
    pub kind: Option<String>,
    /// On whose behalf.
    pub tenant: Option<String>,
    /// By which it is limited.
    pub key: Option<String>,
    /// Lower ones come first.
    pub priority: i16,
    /// The caller's own id.
    pub caller_id: Option<String>,
    /// The job that had its unique key when it was dropped.
    pub duplicate_of: Option<JobId>,
}

impl JobInfo {
    pub(super) fn new(id: JobId) -> Self {
        Self {
            id,
            state: JobState::Finished,
            attempts: 0,
            stalls: 0,
            enqueued_at: None,
            due_at: None,
            running_since: None,
            last_error: None,
            owner: None,
            fence: None,
            kind: None,
            tenant: None,
            key: None,
            priority: 0,
            caller_id: None,
            duplicate_of: None,
        }
    }
}

/// What became of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[must_use = "a job that runs is only asked to stop"]
#[non_exhaustive]
pub enum Cancelled {
    /// It has ended as cancelled.
    Done,
    /// It runs, or is not taken in yet: it ends as cancelled unless it is finished.
    Asked,
    /// It has ended before.
    AlreadyEnded,
    /// Neither a ledger nor the inbox has it.
    NotFound,
}

/// Where a job is.
pub(super) enum Where {
    Ledger(Arc<Seen<Ledger>>, JobRef, Found),
    Inbox(SegmentName),
    Nowhere,
}

pub(super) async fn locate(core: &Arc<Core>, id: JobId) -> Result<Where> {
    let ever = core.settings().await?.record().shards_ever;
    if u16::from(id.segment().shard()) >= ever {
        return Ok(Where::Nowhere);
    }
    let shard = core.shard(id.segment().shard());
    let job = JobRef::from(id);
    for second in [false, true] {
        let seen = shard.look().await?;
        match seen.record().find(job) {
            Found::Unknown => {
                if let Some(name) = in_inbox(core, id.segment()).await? {
                    return Ok(Where::Inbox(name));
                }
                // It may have been absorbed between the two looks.
                if second {
                    return Ok(Where::Nowhere);
                }
            }
            Found::Elsewhere(spills) => {
                for spill in spills {
                    if let Some(index) = index_in(core, seen.record(), spill, id).await? {
                        let job = JobRef { segment: spill, index };
                        let found = seen.record().find(job);
                        return Ok(Where::Ledger(seen, job, found));
                    }
                }
                return Ok(Where::Nowhere);
            }
            found => return Ok(Where::Ledger(seen, job, found)),
        }
    }
    Ok(Where::Nowhere)
}

async fn index_in(core: &Core, ledger: &Ledger, segment: SegmentId, id: JobId) -> Result<Option<u16>> {
    let Some(loaded) = table(core, ledger, segment).await? else { return Ok(None) };
    Ok((0..loaded.facts.jobs).find(|index| loaded.table.id(*index) == Some(id)))
}

pub(super) async fn table(core: &Core, ledger: &Ledger, segment: SegmentId) -> Result<Option<Arc<Loaded>>> {
    let Some(row) = ledger.row_of(segment) else { return Ok(None) };
    if let Some(inline) = &row.inline {
        return Ok(Some(super::fetch::inline(&row.name, inline)?.0));
    }
    read(core, &row.name).await
}

pub(super) async fn read(core: &Core, name: &SegmentName) -> Result<Option<Arc<Loaded>>> {
    Ok(match core.shared.segments.read(core.backend(), &core.layout, name).await? {
        Read::Loaded(loaded) => Some(loaded),
        _ => None,
    })
}

async fn in_inbox(core: &Core, segment: SegmentId) -> Result<Option<SegmentName>> {
    for prefix in core.layout.look_up(segment) {
        let page = core.backend().page(&prefix, None, 2).await?;
        for name in &page.names {
            if let Listed::Segment(found) = core.layout.parse(name.as_str())
                && found.id == segment
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

pub(crate) async fn get(core: &Arc<Core>, id: JobId) -> Result<Option<JobInfo>> {
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let mut info = JobInfo::new(id);
    match locate(core, id).await? {
        Where::Nowhere => return Ok(None),
        Where::Inbox(name) => {
            let Some(loaded) = read(core, &name).await? else { return Ok(None) };
            if id.index() >= loaded.facts.jobs {
                return Ok(None);
            }
            describe(&mut info, &loaded, id.index());
            wait(&mut info, now);
        }
        Where::Ledger(seen, job, found) => {
            let ledger = seen.record();
            if ledger.row_of(job.segment).is_some_and(|row| job.index >= row.name.jobs) {
                return Ok(None);
            }
            if !matches!(found, Found::Ended | Found::SegmentFinished)
                && let Some(loaded) = table(core, ledger, job.segment).await?
            {
                describe(&mut info, &loaded, job.index);
            }
            fill(&mut info, ledger, found, now);
            if let Some(one) = ledger.duplicates.iter().find(|one| one.job == JobRef::from(id)) {
                info.state = JobState::Duplicate;
                info.duplicate_of = Some(one.of.segment.job(one.of.index));
            }
        }
    }
    Ok(Some(info))
}

pub(super) fn describe(info: &mut JobInfo, loaded: &Loaded, index: u16) {
    let Some(entry) = loaded.table.jobs.get(usize::from(index)) else { return };
    info.enqueued_at = Some(loaded.table.made);
    info.due_at = Some(entry.due);
    info.attempts = entry.history.attempts;
    info.stalls = u32::from(entry.history.stalls);
    info.last_error = entry.history.error.as_deref().map(str::to_owned);
    info.kind = entry.kind.as_deref().map(str::to_owned);
    info.tenant = entry.tenant.as_deref().map(str::to_owned);
    info.key = entry.key.as_deref().map(str::to_owned);
    info.priority = entry.priority;
    info.caller_id = entry.caller_id.as_deref().map(str::to_owned);
}

pub(super) fn wait(info: &mut JobInfo, now: Timestamp) {
    let due = info.due_at.is_none_or(|due| due <= now);
    info.state = if due { JobState::Available } else { JobState::Scheduled };
}

pub(super) fn fill(info: &mut JobInfo, ledger: &Ledger, found: Found, now: Timestamp) {
    match found {
        Found::Unread => wait(info, now),
        Found::Waiting { why, due, attempts, stalls, paused, error } => {
            info.due_at = Some(Timestamp::from_millis(due));
            (info.attempts, info.stalls) = (attempts, u32::from(stalls));
            info.last_error = error.as_deref().map(str::to_owned).or_else(|| info.last_error.take());
            wait(info, now);
            info.state = match (paused, info.state, why) {
                (true, ..) => JobState::Paused,
                (_, JobState::Scheduled, Why::Failed | Why::Stalled) => JobState::Retrying,
                (_, state, _) => state,
            };
        }
        Found::Running { session, fence, since, attempt, stalls, cancelling, .. } => {
            info.state = if cancelling { JobState::Cancelled } else { JobState::Running };
            (info.attempts, info.stalls) = (attempt, u32::from(stalls));
            info.due_at = None;
            info.running_since = Some(Timestamp::from_millis(since));
            info.fence = Some(fence);
            info.owner = ledger.session(session).map(|session| session.owner.as_ref().to_owned());
        }
        Found::Burying(_) => info.state = JobState::Dead,
        Found::Ended | Found::SegmentFinished | Found::Moving { .. } => info.state = JobState::Finished,
        Found::Elsewhere(_) | Found::Unknown => wait(info, now),
    }
}

pub(crate) async fn cancel(core: &Arc<Core>, id: JobId) -> Result<Cancelled> {
    const TRIES: u32 = 3;
    for _ in 0..TRIES {
        let (job, in_inbox) = match locate(core, id).await? {
            Where::Nowhere => return Ok(Cancelled::NotFound),
            Where::Inbox(name) if id.index() >= name.jobs => return Ok(Cancelled::NotFound),
            Where::Inbox(_) => (JobRef::from(id), true),
            Where::Ledger(_, job, _) => (job, false),
        };
        let outcomes = core.shard(id.segment().shard()).ask(vec![Op::Cancel { job, in_inbox }]).await?;
        match outcomes.first() {
            Some(Outcome::Ended { .. }) => return Ok(Cancelled::Done),
            Some(Outcome::Asked) => return Ok(Cancelled::Asked),
            Some(Outcome::NotFound) if in_inbox => return Ok(Cancelled::AlreadyEnded),
            Some(Outcome::Nothing | Outcome::NotFound) => return Ok(Cancelled::AlreadyEnded),
            // It has moved meanwhile.
            Some(Outcome::Elsewhere) => {}
            Some(Outcome::Full(_)) => {
                return Err(Error::unavailable("too many cancels wait in this shard: try again later"));
            }
            _ => return Err(Error::unknown(format!("whether job {id} was cancelled is not known: look at it"))),
        }
    }
    Err(Error::unavailable(format!("job {id} moves too fast: try again")))
}
