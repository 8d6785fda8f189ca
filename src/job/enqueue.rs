//! Enqueuing: one plain create for each segment, and nothing shared is touched.
//!
//! A name is sent for at most a minute. An answer that says that it exists is believed only if what is there carries the
//! write id that was sent: otherwise two segments would be one.

use super::{
    capacity::admit,
    core::{Core, Known},
    id::{Class, JobId, SegmentId},
    layout::{Minute, Place, SegmentName},
    new::NewJob,
    segment::{Encoded, Head, NewJob as Row, Table, encode},
};
use crate::{
    Error, ErrorKind, Result, WriteId,
    clock::Timestamp,
    decision::TxnId,
    job::inbox::Age,
    storage::{Name, bodies::Way},
};
use futures_util::future::{BoxFuture, join_all};
use serde::Serialize;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// How long one name is sent.
const SENDING: Duration = Duration::from_secs(60);
/// What is due within this goes to the inbox all the same: the folder of what is due later is looked at once a minute.
const SOON: Duration = Duration::from_secs(90);
/// How much of a segment is read to see whose it is.
const HEAD: usize = 64 << 10;

/// What has become of one job of a call that failed in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It is in the queue.
    Enqueued(JobId),
    /// It is not, and will not be.
    NotEnqueued,
    /// It may be, under this id.
    Unknown(JobId),
}

/// Why not all jobs of a call were enqueued. Jobs that went into one segment share their fate.
#[derive(Debug, Clone)]
pub struct EnqueueError {
    error: Error,
    fates: Vec<Fate>,
}

impl EnqueueError {
    /// What one job of a call is told that shares its error with others.
    pub(super) fn of_one(error: &Error, fate: Fate) -> Self {
        Self { error: error.clone(), fates: vec![fate] }
    }

    /// What has become of each job, in the order of the call.
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// The first error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What the caller must do.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }
}

impl fmt::Display for EnqueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.fates.iter().filter(|fate| matches!(fate, Fate::Enqueued(_))).count();
        let all = self.fates.len();
        write!(f, "{done} of {all} jobs are known to be enqueued: {}", self.error)
    }
}

impl std::error::Error for EnqueueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<EnqueueError> for Error {
    fn from(failed: EnqueueError) -> Self {
        Self::new(failed.error.kind(), failed.to_string()).with_source(failed)
    }
}

/// Jobs on their way into a queue; await it.
#[must_use = "nothing is enqueued until it is awaited"]
#[derive(Debug)]
pub struct Enqueue {
    core: Arc<Core>,
    jobs: Vec<NewJob>,
    request_id: Option<String>,
    txn: Option<TxnId>,
    wait: Duration,
}

/// One job on its way into a queue; await it.
#[must_use = "nothing is enqueued until it is awaited"]
#[derive(Debug)]
pub struct EnqueueOne(Enqueue);

/// Jobs on their way into a queue, where they wait for a transaction's decision; await it.
#[must_use = "nothing is enqueued until it is awaited"]
#[derive(Debug)]
pub struct EnqueueInTransaction(Enqueue);

/// Jobs that run if and only if their transaction is committed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[must_use = "the decision must name the segments"]
pub struct Enrolled {
    /// Their ids, in the order of the call.
    pub ids: Vec<JobId>,
    /// What [`decide_with`](crate::Decisions::decide_with) must be given, so that the decision is kept until workers have met it.
    pub segments: Vec<String>,
}

impl Enqueue {
    pub(crate) fn new(core: Arc<Core>, jobs: Vec<NewJob>) -> Self {
        Self { core, jobs, request_id: None, txn: None, wait: Duration::ZERO }
    }

    /// The caller's own name for this call, which makes it safe to repeat: the same call with the same id has the same job
    /// ids and enqueues nothing twice, while its jobs live and for the queue's
    /// [`request_window`](super::QueueSettings::request_window) after.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// The jobs run if and only if the transaction is committed; until it is decided they wait in the queue. Await it before
    /// you decide, and if it fails, decide to abort. Give the names it returns to
    /// [`decide_with`](crate::Decisions::decide_with).
    pub fn in_transaction(mut self, txn: TxnId) -> EnqueueInTransaction {
        self.txn = Some(txn);
        EnqueueInTransaction(self)
    }
}

impl Enqueue {
    /// Waits for so long for room in a queue that is full; without it, a full queue refuses at once.
    pub fn wait_for_room(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }
}

impl EnqueueOne {
    /// Waits for so long for room in a queue that is full; see [`Enqueue::wait_for_room`].
    pub fn wait_for_room(mut self, longest: Duration) -> Self {
        self.0 = self.0.wait_for_room(longest);
        self
    }

    pub(crate) fn new(core: Arc<Core>, job: NewJob) -> Self {
        Self(Enqueue::new(core, vec![job]))
    }

    /// The caller's own name for this call; see [`Enqueue::request_id`].
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.0 = self.0.request_id(id);
        self
    }

    /// The job runs if and only if the transaction is committed; see [`Enqueue::in_transaction`].
    pub fn in_transaction(self, txn: TxnId) -> EnqueueInTransaction {
        self.0.in_transaction(txn)
    }
}

impl EnqueueInTransaction {
    /// The caller's own name for this call; see [`Enqueue::request_id`]. It holds within its transaction.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.0 = self.0.request_id(id);
        self
    }
}

impl IntoFuture for EnqueueInTransaction {
    type Output = Result<Enrolled, EnqueueError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(carry_out(self.0))
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Vec<JobId>, EnqueueError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(carry_out(self).await?.ids) })
    }
}

impl IntoFuture for EnqueueOne {
    type Output = Result<JobId, EnqueueError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Enqueue { core, mut jobs, request_id, txn, wait } = self.0;
        Box::pin(async move {
            let Some(job) = jobs.pop() else { return Err(failed(Error::invalid("no job was given"), 1)) };
            if request_id.is_none() && txn.is_none() && wait.is_zero() {
                return super::together::enqueue_one(core, job).await;
            }
            // Its name follows from the request, and its fate from the transaction: it cannot share a segment.
            one(carry_out(Enqueue { core, jobs: vec![job], request_id, txn, wait }).await?.ids)
        })
    }
}

/// The id of the one job of a call.
pub(super) fn one(ids: Vec<JobId>) -> Result<JobId, EnqueueError> {
    ids.first().copied().ok_or_else(|| failed(Error::invalid("no job was given"), 1))
}

pub(super) fn failed(error: Error, jobs: usize) -> EnqueueError {
    EnqueueError { error, fates: vec![Fate::NotEnqueued; jobs] }
}

/// What goes into one segment.
struct Part {
    shard: u8,
    class: Class,
    /// The first due time, if it is later than soon.
    later: Option<Timestamp>,
    jobs: Vec<Row>,
    /// Their places in the call.
    places: Vec<usize>,
    weight: usize,
    /// The queue that had no room for them.
    source: Option<String>,
}

/// What all segments of a call have in common.
#[derive(Clone, Copy)]
struct Call<'a> {
    /// In a transaction the same request has other names than in another one: they share no fate.
    request: Option<&'a str>,
    txn: Option<TxnId>,
    now: Timestamp,
}

pub(super) async fn enqueue(core: Arc<Core>, jobs: Vec<NewJob>) -> Result<Vec<JobId>, EnqueueError> {
    Ok(carry_out(Enqueue::new(core, jobs)).await?.ids)
}

async fn carry_out(call: Enqueue) -> Result<Enrolled, EnqueueError> {
    let Enqueue { core: asked, jobs, request_id, txn, wait } = call;
    let core = Arc::clone(&asked);
    let count = jobs.len();
    if count == 0 {
        return Ok(Enrolled::default());
    }
    let request = match txn {
        Some(txn) => request_id.map(|request| format!("{txn}\0{request}")),
        None => request_id,
    };
    core.shared.activity.touch(&*core.backend().clock);
    let weight = u64::try_from(jobs.iter().map(NewJob::weight).sum::<usize>()).unwrap_or(0);
    let due_now = jobs.iter().filter(|job| job.due == super::new::Due::Now).count();
    let core = admit(&core, due_now as u64, wait).await.map_err(|error| failed(error, count))?;
    let source = (!Arc::ptr_eq(&core, &asked)).then(|| asked.name.as_ref().to_owned());
    let settings = core.settings().await.map_err(|error| failed(error, count))?;
    // A wrong clock of this machine must not put off what is due now.
    if core.backend().store_time().is_none() {
        core.backend().ask_time().await.map_err(|error| failed(error, count))?;
    }
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let mut parts = split(&core, &settings, jobs, now, request.as_deref()).map_err(|error| failed(error, count))?;
    parts.iter_mut().for_each(|part| part.source.clone_from(&source));
    let call = Call { request: request.as_deref(), txn, now };
    let sends = parts.into_iter().enumerate().map(|(number, part)| {
        let core = &core;
        async move {
            let sent = send(core, &part, u32::try_from(number).unwrap_or(u32::MAX), call).await;
            (part.places, sent)
        }
    });
    let sent = join_all(sends).await;
    core.news.notify_waiters();
    let mut fates = vec![Fate::NotEnqueued; count];
    let (mut first, mut segments) = (None, Vec::new());
    for (places, sent) in sent {
        let (ids, error) = match sent {
            Ok((ids, name)) => {
                segments.push(name);
                (ids, None)
            }
            Err((error, ids)) => (ids, Some(error)),
        };
        for (place, id) in places.into_iter().zip(ids) {
            fates[place] = if error.is_some() { Fate::Unknown(id) } else { Fate::Enqueued(id) };
        }
        first = first.or(error);
    }
    let safe = fates.iter().filter(|fate| matches!(fate, Fate::Enqueued(_))).count();
    core.shared.counters.enqueued(u64::try_from(safe).unwrap_or(0));
    core.shared.counters.bytes_enqueued(weight);
    if let Some(error) = first {
        return Err(EnqueueError { error, fates });
    }
    let id = |fate: &Fate| match fate {
        Fate::Enqueued(id) => Some(*id),
        _ => None,
    };
    Ok(Enrolled { ids: fates.iter().filter_map(id).collect(), segments })
}

/// Jobs of one shard, class and due hour go together, as many as fit.
fn split(core: &Core, settings: &Known, jobs: Vec<NewJob>, now: Timestamp, request: Option<&str>) -> Result<Vec<Part>> {
    let record = settings.record();
    let most = usize::from(record.settings.segment_jobs);
    let bytes = usize::try_from(record.settings.segment_bytes).unwrap_or(usize::MAX);
    // A call goes into one shard; the next one into the next.
    let turn = core.next_turn() % usize::from(record.settings.shards);
    let turn = match request {
        Some(request) => settings.shard_of(request.as_bytes()),
        None => u8::try_from(turn).unwrap_or(0),
    };
    let mut open: BTreeMap<(u8, Class, Option<i64>), usize> = BTreeMap::new();
    let mut parts: Vec<Part> = Vec::new();
    for (place, job) in jobs.into_iter().enumerate() {
        let weight = job.weight();
        let row = job.into_row(now);
        // With a key, a unique key holds among the jobs of that key: both are judged in one shard.
        let key = row.key.as_ref().or(row.unique_key.as_ref());
        let shard = key.map_or(turn, |key| settings.shard_of(key.as_bytes()));
        let class = Class::of(row.priority);
        // By a request id alone: its name must not follow from the time of the call.
        let later = Some(row.due).filter(|due| request.is_none() && *due > now.plus(SOON));
        let hour = later.map(|due| due.as_millis().div_euclid(3_600_000));
        let open = open.entry((shard, class, hour)).or_insert(usize::MAX);
        let fits = parts.get(*open).is_some_and(|part| part.jobs.len() < most && part.weight + weight <= bytes);
        if !fits {
            *open = parts.len();
            let (jobs, places) = (Vec::new(), Vec::new());
            parts.push(Part { shard, class, later, jobs, places, weight: 0, source: None });
        }
        let part = &mut parts[*open];
        part.later = part.later.zip(later).map(|(known, due)| known.min(due));
        part.weight += weight;
        part.jobs.push(row);
        part.places.push(place);
    }
    Ok(parts)
}

/// A segment that is to be created.
struct Sending {
    name: SegmentName,
    write_id: WriteId,
    encoded: Encoded,
}

fn prepare(core: &Core, part: &Part, number: u32, call: Call<'_>) -> Result<Sending> {
    let Call { request, txn, now } = call;
    let generator = &*core.backend().generator;
    let (shard, class) = (part.shard, part.class);
    let (id, place) = match (request, part.later) {
        (Some(request), _) => (SegmentId::of_request(&core.name, request, number, shard, class), Place::Inbox),
        (None, Some(due)) => (SegmentId::delayed(due, shard, class, generator), Place::At(Minute::of(due))),
        (None, None) => {
            let mut ids = core.shared.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            (ids.next(now, shard, class, generator), Place::Inbox)
        }
    };
    let write_id = WriteId::random(generator);
    let head = Head {
        segment: id,
        write_id,
        made: now,
        txn: txn.map(TxnId::to_bytes),
        request: request.is_some(),
        source: part.source.clone(),
        pack: core.shared.options.pack,
    };
    let encoded = encode(&head, &part.jobs)?;
    let jobs = u16::try_from(part.jobs.len()).unwrap_or(u16::MAX);
    Ok(Sending { name: SegmentName { id, place, jobs }, write_id, encoded })
}

/// Creates one segment. On an error, the ids that it may have been made under; none if it was not.
async fn send(
    core: &Core,
    part: &Part,
    number: u32,
    call: Call<'_>,
) -> Result<(Vec<JobId>, String), (Error, Vec<JobId>)> {
    let backend = core.backend();
    let request = call.request;
    loop {
        let sending = prepare(core, part, number, call).map_err(|error| (error, Vec::new()))?;
        let ids = || sending.encoded.indexes.iter().map(|index| sending.name.id.job(*index)).collect::<Vec<JobId>>();
        let name = core.layout.segment(&sending.name).map(Name::new);
        let Some(name) = name else { return Err((Error::invalid("a segment needs a place"), Vec::new())) };
        let began = Age::now(backend);
        let (mut doubt, mut tries) = (false, 0);
        let error = loop {
            let refusal = match backend.create(&name, sending.encoded.body.clone()).await {
                Ok(()) => return Ok((ids(), name.to_string())),
                Err(refusal) => refusal,
            };
            doubt |= refusal.error.leaves_doubt();
            if refusal.conflict {
                match whose(core, &name, &sending, request.is_some()).await {
                    Ok(Whose::Ours) => return Ok((ids(), name.to_string())),
                    // Another segment has this id: a new one is drawn.
                    Ok(Whose::Others) => break None,
                    Ok(Whose::Nobodys) | Err(_) => {}
                }
            }
            if !refusal.error.is_retryable() || began.of(backend) >= SENDING {
                break Some(refusal.error);
            }
            backend.pause(tries).await;
            tries += 1;
            // Where answers have no date, a machine that stood still with all its clocks does not know how late it is: by
            // now the segment may be finished, deleted and forgotten, and its name would make its jobs run again.
            let asked = !backend.must_be_asked_for_the_time() || backend.ask_time().await.is_ok();
            if !asked || began.of(backend) >= SENDING {
                break Some(refusal.error);
            }
        };
        match error {
            None if request.is_some() => {
                let text = "the request id was used for another call: use another one";
                return Err((Error::invalid(text), Vec::new()));
            }
            None => {}
            Some(error) if doubt => {
                let unknown = Error::unknown(format!("whether {name} was created is not known: {error}"));
                return Err((unknown, ids()));
            }
            Some(error) => return Err((error, Vec::new())),
        }
    }
}

enum Whose {
    Ours,
    Others,
    /// It was there, and is not any more.
    Nobodys,
}

/// Whose segment has a name that exists.
async fn whose(core: &Core, name: &Name, sending: &Sending, by_request: bool) -> Result<Whose> {
    let backend = core.backend();
    let Some(piece) = backend.get_range(name, 0..HEAD, Way::First).await? else { return Ok(Whose::Nobodys) };
    let table = match Table::decode(&piece.body) {
        Err(super::segment::Unreadable::Short(needed)) => {
            let Some(piece) = backend.get_range(name, 0..needed, Way::First).await? else {
                return Ok(Whose::Nobodys);
            };
            Table::decode(&piece.body)
        }
        table => table,
    };
    // A repeat of the same call has other write ids, and the same name for the same jobs.
    Ok(match table {
        Ok(table) if table.write_id == sending.write_id || by_request => Whose::Ours,
        _ => Whose::Others,
    })
}
