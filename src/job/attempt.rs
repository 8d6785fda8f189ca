//! A job in the hands of a process: what it carries, and how its attempt ends.

use super::{
    answer::{Answering, Asked, AttemptEnd},
    apply::{Answer, Answered, Op, Taken},
    claiming::{Content, loaded},
    committer::{Granted, PartChange, Patch, Shard},
    id::{JobId, SegmentId},
    layout::{Place, SegmentName},
    ledger::{ClaimId, JobRef},
    new::ARGS,
    segment::Entry,
    session::Session,
    whole::Wanted,
    worker::Said,
};
use crate::{Error, ErrorKind, Fence, Result, clock::Timestamp, storage::Name};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// What the jobs of one claim have in common.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) shard: Arc<Shard>,
    claim: ClaimId,
    fence: Fence,
    session: Arc<Session>,
}

impl Attempt {
    pub(crate) fn new(shard: &Arc<Shard>, granted: &Granted) -> Self {
        Self {
            shard: Arc::clone(shard),
            claim: granted.claim,
            fence: granted.fence,
            session: Arc::clone(&granted.session),
        }
    }

    /// Answers for jobs whose parts cannot be read: dead if they are damaged, else given back uncharged.
    pub(crate) fn without_content(&self, jobs: &[Taken], error: &Error) {
        let damaged = error.kind() == ErrorKind::Corrupt;
        let text: Arc<str> = error.to_string().chars().take(200).collect::<String>().into();
        self.answer_all(jobs, || {
            let error = Some(Arc::clone(&text));
            let dead = Answered::Failed { for_good: true, error, kind: None, max_attempts: None };
            if damaged { dead } else { Answered::Released { ran: false } }
        });
    }

    /// Gives jobs back, uncharged.
    pub(crate) fn give_back(&self, jobs: &[Taken]) {
        self.answer_all(jobs, || Answered::Released { ran: false });
    }

    fn answer_all(&self, jobs: &[Taken], what: impl Fn() -> Answered) {
        let mut ops = Vec::new();
        for taken in jobs {
            for index in taken.range.from..taken.range.to {
                ops.push(self.op(JobRef { segment: taken.name.id, index }, what()));
            }
        }
        // Queued whether or not anybody waits for it.
        drop(self.shard.answer(ops, Vec::new()));
    }

    fn op(&self, job: JobRef, what: Answered) -> Op {
        Op::Answer(Answer { claim: self.claim, job, what, into: None })
    }
}

/// One attempt at a job, in the hands of this process until it is answered for.
///
/// Dropped without an answer, it goes back to the queue and uses no attempt. While the process lives nobody else is given
/// the job, however long it runs; if the process dies, somebody is, with a higher [`fence`](Self::fence).
///
/// What is said of a job is queued at once: it need not be awaited, and dropping what is returned changes nothing. It goes
/// along with the next commit, as the next claim does.
#[must_use = "a job that is dropped goes back to the queue"]
pub struct Job {
    attempt: Arc<Attempt>,
    content: Arc<Content>,
    name: SegmentName,
    index: u16,
    number: u32,
    stalls: u8,
    alone: bool,
    changes: Vec<PartChange>,
    answered: AtomicBool,
}

impl Job {
    pub(crate) fn new(
        attempt: &Arc<Attempt>,
        name: SegmentName,
        index: u16,
        taken: &Taken,
        content: &Arc<Content>,
    ) -> Self {
        Self {
            attempt: Arc::clone(attempt),
            content: Arc::clone(content),
            name,
            index,
            number: taken.attempt,
            stalls: taken.stalls,
            alone: taken.alone,
            changes: Vec::new(),
            answered: AtomicBool::new(false),
        }
    }

    /// By which jobs of one claim are sorted.
    pub(crate) fn order(&self) -> (i16, Timestamp, SegmentName, u16) {
        let due = self.due_at().unwrap_or_default();
        (self.priority(), due, self.name, self.index)
    }

    fn entry(&self) -> Option<&Entry> {
        self.content.loaded.as_ref()?.table.jobs.get(usize::from(self.index))
    }

    /// Its id, the one that `enqueue` has returned.
    pub fn id(&self) -> JobId {
        let own = self.content.loaded.as_ref().and_then(|loaded| loaded.table.id(self.index));
        own.unwrap_or_else(|| self.name.id.job(self.index))
    }

    /// The fence of this attempt: higher than that of every attempt before. Hand it to whatever the job changes.
    pub fn fence(&self) -> Fence {
        self.attempt.fence
    }

    /// The number of this attempt, from 1. Attempts that were given back or ended with their process are not counted.
    pub fn attempt(&self) -> u32 {
        self.number
    }

    /// How often in a row it was alone with a process that died.
    pub fn stalls(&self) -> u32 {
        u32::from(self.stalls)
    }

    /// Whether it is suspected of killing its process, and nothing else should be started beside it.
    pub fn runs_alone(&self) -> bool {
        self.alone
    }

    /// What kind of job it is.
    pub fn kind(&self) -> Option<&str> {
        self.entry()?.kind.as_deref()
    }

    /// On whose behalf it runs.
    pub fn tenant(&self) -> Option<&str> {
        self.entry()?.tenant.as_deref()
    }

    /// The key by which it is limited.
    pub fn key(&self) -> Option<&str> {
        self.entry()?.key.as_deref()
    }

    /// The caller's own id.
    pub fn caller_id(&self) -> Option<&str> {
        self.entry()?.caller_id.as_deref()
    }

    /// Its priority.
    pub fn priority(&self) -> i16 {
        self.entry().map_or(0, |entry| entry.priority)
    }

    /// When it was first due.
    pub fn due_at(&self) -> Option<Timestamp> {
        self.entry().map(|entry| entry.due)
    }

    /// When it was enqueued, by the store's clock.
    pub fn enqueued_at(&self) -> Option<Timestamp> {
        self.content.loaded.as_ref().map(|loaded| loaded.table.made)
    }

    /// How long one attempt may take; it is for you to stop it then.
    pub fn timeout(&self) -> Option<Duration> {
        self.entry()?.timeout
    }

    /// Its arguments, if the claim has brought them; empty if it has none.
    pub fn args(&self) -> Bytes {
        self.loaded_part(ARGS).unwrap_or_default()
    }

    /// A part that the claim has brought.
    pub fn loaded_part(&self, name: &str) -> Option<Bytes> {
        if self.content.names.as_ref().is_some_and(|names| names.iter().all(|known| known != name)) {
            return None;
        }
        match &self.content.loaded {
            Some(loaded) => loaded.table.part(self.index, name, &self.content.blocks),
            None => None,
        }
    }

    /// The names of its parts.
    pub fn part_names(&self) -> Vec<&str> {
        match self.entry() {
            Some(entry) => entry.parts.iter().map(|(name, _)| name.as_ref()).collect(),
            None => Vec::new(),
        }
    }

    /// A part, fetched now if the claim has not brought it; `None` if the job has no such part.
    pub async fn part(&self, name: &str) -> Result<Option<Bytes>> {
        if let Some(part) = self.loaded_part(name) {
            return Ok(Some(part));
        }
        if !self.part_names().contains(&name) {
            return Ok(None);
        }
        let core = &self.attempt.shard.queue;
        let Some(path) = core.layout.segment(&self.name).map(Name::new) else {
            let loaded = self.content.loaded.as_ref();
            return Ok(loaded.and_then(|loaded| loaded.table.part(self.index, name, &self.content.blocks)));
        };
        let table = loaded(core, &self.name, &path).await?;
        let segments = &core.shared.segments;
        let blocks: BTreeMap<u32, Bytes> =
            segments.blocks(core.backend(), &path, &table, &[self.index], Some(&[name])).await?;
        Ok(table.table.part(self.index, name, &blocks))
    }

    /// Sets a part for the next attempt, if this one ends by going back to the queue: failed, snoozed or released. Parts that
    /// are neither set nor cleared stay as they are.
    pub fn set_part(&mut self, name: impl Into<String>, content: impl Into<Bytes>) {
        let name = name.into();
        self.changes.retain(|(known, _)| *known != name);
        self.changes.push((name, Some(content.into())));
    }

    /// Takes a part away for the next attempt, if this one ends by going back to the queue.
    pub fn clear_part(&mut self, name: impl Into<String>) {
        let name = name.into();
        self.changes.retain(|(known, _)| *known != name);
        self.changes.push((name, None));
    }

    /// Whether this process may still believe that nobody else has been given the job. Asks no network.
    pub fn is_ours(&self) -> bool {
        self.attempt.session.is_valid()
    }

    /// How long this process may still believe that nobody else has been given the job, if the store does not answer.
    pub fn time_left(&self) -> Duration {
        self.attempt.session.time_left()
    }

    /// The job is done.
    pub fn finish(self) -> Answering {
        self.answer(Answered::Finished)
    }

    /// The attempt has failed: the queue decides when it runs again, or that it is dead.
    pub fn fail(self, error: impl AsRef<str>) -> Answering {
        let what = self.failed(error.as_ref(), false);
        self.answer(what)
    }

    /// The attempt has failed, and another one is of no use: the job goes to the dead letters.
    pub fn fail_for_good(self, error: impl AsRef<str>) -> Answering {
        let what = self.failed(error.as_ref(), true);
        self.answer(what)
    }

    fn failed(&self, error: &str, for_good: bool) -> Answered {
        let entry = self.entry();
        Answered::Failed {
            for_good,
            error: Some(error).filter(|error| !error.is_empty()).map(Into::into),
            kind: entry.and_then(|entry| entry.kind.clone()),
            max_attempts: entry.and_then(|entry| entry.max_attempts),
        }
    }

    /// The job runs again at this time, by the store's clock, and no attempt is used.
    pub fn snooze_until(self, until: Timestamp) -> Answering {
        self.answer(Answered::Snoozed { until })
    }

    /// The job runs again so much later, and no attempt is used.
    pub fn snooze(self, pause: Duration) -> Answering {
        let backend = self.attempt.shard.queue.backend();
        let now = backend.store_time().unwrap_or_else(|| backend.clock.wall());
        self.snooze_until(now.plus(pause))
    }

    /// The job goes back to the queue as it was, and no attempt is used: for a process that shuts down.
    pub fn release(self) -> Answering {
        self.answer(Answered::Released { ran: true })
    }

    /// The job was cancelled while it ran.
    pub fn cancelled(self) -> Answering {
        self.answer(Answered::Cancelled)
    }

    /// The job goes on in another queue of this namespace, as a new job with this one's parts and fence.
    pub async fn move_to(self, queue: &super::Queue) -> Result<AttemptEnd> {
        let settings = queue.core.settings().await?;
        let place = self.id();
        let class = self.name.id.class();
        // By its key, if it has one: its limit is counted there.
        let unique = self.entry().and_then(|entry| entry.unique_key.clone());
        let shard = match self.key().or(unique.as_deref()) {
            Some(key) => settings.shard_of(key.as_bytes()),
            None => settings.shard_of(&place.number().to_be_bytes()),
        };
        let id = SegmentId::of_move(place, shard, class);
        let target = SegmentName { id, place: Place::Inbox, jobs: 1 };
        let backend = queue.core.backend();
        let due = backend.store_time().unwrap_or_else(|| backend.clock.wall());
        let (name, priority) = (Arc::clone(&queue.core.name), self.priority());
        self.answer(Answered::Moved { queue: name, target, priority, due }).await
    }

    fn answer(mut self, what: Answered) -> Answering {
        let changes = std::mem::take(&mut self.changes);
        say(&self, what, changes)
    }

    fn take_op(&self, what: Answered) -> (Arc<Shard>, Op) {
        self.answered.store(true, SeqCst);
        let job = JobRef { segment: self.name.id, index: self.index };
        (Arc::clone(&self.attempt.shard), self.attempt.op(job, what))
    }

    /// For [`Queue::finish_all`](super::Queue::finish_all).
    pub(crate) fn into_finished(self) -> Asked {
        let (shard, op) = self.take_op(Answered::Finished);
        Asked { shard, op }
    }
}

/// Queues an answer. What goes back to the queue may go with changed parts.
fn say(job: &Job, what: Answered, changes: Vec<PartChange>) -> Answering {
    let goes_back =
        matches!(what, Answered::Failed { for_good: false, .. } | Answered::Snoozed { .. } | Answered::Released { .. });
    let mut patches = Vec::new();
    if goes_back && !changes.is_empty() {
        let wanted = Wanted { name: job.name, index: job.index, inline: job.content.inline.clone() };
        patches.push(Patch { op: 0, job: wanted, changes });
    }
    let (shard, op) = job.take_op(what);
    let told = shard.answer(vec![op], patches);
    Answering::new(shard, told)
}

/// For a worker, whose handler may still look at the job: answers for it unless that was done before.
pub(crate) fn answer_once(job: &Job, said: &Said, changes: Vec<PartChange>) -> Option<Answering> {
    if job.answered.swap(true, SeqCst) {
        return None;
    }
    let backend = job.attempt.shard.queue.backend();
    let what = match said {
        Said::Finished => Answered::Finished,
        Said::Failed { error, for_good } => job.failed(error, *for_good),
        Said::Snoozed(pause) => {
            let now = backend.store_time().unwrap_or_else(|| backend.clock.wall());
            Answered::Snoozed { until: now.plus(*pause) }
        }
        Said::GivenBack => Answered::Released { ran: true },
        Said::Cancelled => Answered::Cancelled,
    };
    Some(say(job, what, changes))
}

/// How often a tracked job was interrupted before it was begun.
pub(crate) fn interruptions_before(job: &Job) -> u32 {
    job.entry().map_or(0, |entry| entry.history.attempts)
}

/// The shard that a job came from, and its place there.
pub(crate) fn place(job: &Job) -> (&Arc<Shard>, JobRef) {
    (&job.attempt.shard, JobRef { segment: job.name.id, index: job.index })
}

/// Cancelled when the session is lost under which the job was claimed.
pub(crate) fn lost(job: &Job) -> CancellationToken {
    job.attempt.session.cancellation()
}

impl Drop for Job {
    fn drop(&mut self) {
        if !*self.answered.get_mut() {
            let (shard, op) = self.take_op(Answered::Released { ran: false });
            drop(shard.answer(vec![op], Vec::new()));
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id())
            .field("attempt", &self.number)
            .field("fence", &self.attempt.fence)
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// Says how an attempt ended, for code that decides by a value.
impl AttemptEnd {
    /// Whether what was said of the job holds.
    pub fn is_accepted(&self) -> bool {
        !matches!(self, Self::Stale(_) | Self::AnsweredBefore)
    }
}
