//! Enqueuing: one plain create for each segment, and nothing shared is touched.
//!
//! A name is sent for at most a minute. An answer that says that it exists is believed only if what is there carries the
//! write id that was sent: otherwise two segments would be one.

use super::{
    core::{Core, Known},
    id::{Class, JobId, SegmentId, hash},
    layout::{Minute, Place, SegmentName},
    new::NewJob,
    segment::{Encoded, Head, NewJob as Row, Table, encode},
};
use crate::{
    Error, ErrorKind, Result, WriteId,
    clock::Timestamp,
    job::inbox::Age,
    storage::{Name, bodies::Way},
};
use futures_util::future::{BoxFuture, join_all};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// Jobs in one segment at the most.
const JOBS: usize = 2000;
/// About so many bytes go into one segment; a job that is larger has one of its own.
const BYTES: usize = 4 << 20;
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
}

/// One job on its way into a queue; await it.
#[must_use = "nothing is enqueued until it is awaited"]
#[derive(Debug)]
pub struct EnqueueOne(Enqueue);

impl Enqueue {
    pub(crate) fn new(core: Arc<Core>, jobs: Vec<NewJob>) -> Self {
        Self { core, jobs, request_id: None }
    }

    /// The caller's own name for this call, which makes it safe to repeat: the same call with the same id has the same job
    /// ids and enqueues nothing twice, while its jobs live and for the queue's
    /// [`request_window`](super::QueueSettings::request_window) after.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl EnqueueOne {
    pub(crate) fn new(core: Arc<Core>, job: NewJob) -> Self {
        Self(Enqueue::new(core, vec![job]))
    }

    /// The caller's own name for this call; see [`Enqueue::request_id`].
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.0 = self.0.request_id(id);
        self
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Vec<JobId>, EnqueueError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(enqueue(self.core, self.jobs, self.request_id))
    }
}

impl IntoFuture for EnqueueOne {
    type Output = Result<JobId, EnqueueError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Enqueue { core, mut jobs, request_id } = self.0;
        Box::pin(async move {
            match (request_id, jobs.pop()) {
                // Its name follows from the request: it cannot share a segment.
                (Some(request_id), Some(job)) => one(enqueue(core, vec![job], Some(request_id)).await?),
                (None, Some(job)) => super::together::enqueue_one(core, job).await,
                (_, None) => Err(failed(Error::invalid("no job was given"), 1)),
            }
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
}

pub(super) async fn enqueue(
    core: Arc<Core>,
    jobs: Vec<NewJob>,
    request: Option<String>,
) -> Result<Vec<JobId>, EnqueueError> {
    let count = jobs.len();
    if count == 0 {
        return Ok(Vec::new());
    }
    core.shared.activity.touch(&*core.backend().clock);
    let weight = u64::try_from(jobs.iter().map(NewJob::weight).sum::<usize>()).unwrap_or(0);
    let settings = core.settings().await.map_err(|error| failed(error, count))?;
    // A wrong clock of this machine must not put off what is due now.
    if core.backend().store_time().is_none() {
        core.backend().ask_time().await.map_err(|error| failed(error, count))?;
    }
    let now = core.backend().store_time().unwrap_or_else(|| core.backend().clock.wall());
    let parts = split(&core, &settings, jobs, now, request.as_deref()).map_err(|error| failed(error, count))?;
    let sends = parts.into_iter().enumerate().map(|(number, part)| {
        let (core, request) = (&core, request.as_deref());
        async move {
            let sent = send(core, &part, u32::try_from(number).unwrap_or(u32::MAX), request, now).await;
            (part.places, sent)
        }
    });
    let sent = join_all(sends).await;
    core.news.notify_waiters();
    let mut fates = vec![Fate::NotEnqueued; count];
    let mut first = None;
    for (places, sent) in sent {
        let (ids, error) = match sent {
            Ok(ids) => (ids, None),
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
    Ok(fates.iter().filter_map(id).collect())
}

/// Jobs of one shard, class and due hour go together, as many as fit.
fn split(core: &Core, settings: &Known, jobs: Vec<NewJob>, now: Timestamp, request: Option<&str>) -> Result<Vec<Part>> {
    let record = settings.record();
    let by_hash = |what: &[u8]| {
        let [a, b, ..] = hash(&[b"shard", what]);
        u8::try_from(u16::from_le_bytes([a, b]) % record.key_shards).unwrap_or(0)
    };
    // A call goes into one shard; the next one into the next.
    let turn = core.next_turn() % usize::from(record.settings.shards);
    let turn = match request {
        Some(request) => by_hash(request.as_bytes()),
        None => u8::try_from(turn).unwrap_or(0),
    };
    let mut open: BTreeMap<(u8, Class, Option<i64>), usize> = BTreeMap::new();
    let mut parts: Vec<Part> = Vec::new();
    for (place, job) in jobs.into_iter().enumerate() {
        let weight = job.weight();
        let row = job.into_row(now);
        let key = row.unique_key.as_ref().or(row.key.as_ref());
        let shard = key.map_or(turn, |key| by_hash(key.as_bytes()));
        let class = Class::of(row.priority);
        // By a request id alone: its name must not follow from the time of the call.
        let later = Some(row.due).filter(|due| request.is_none() && *due > now.plus(SOON));
        let hour = later.map(|due| due.as_millis().div_euclid(3_600_000));
        let open = open.entry((shard, class, hour)).or_insert(usize::MAX);
        let fits = parts.get(*open).is_some_and(|part| part.jobs.len() < JOBS && part.weight + weight <= BYTES);
        if !fits {
            *open = parts.len();
            parts.push(Part { shard, class, later, jobs: Vec::new(), places: Vec::new(), weight: 0 });
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

fn prepare(core: &Core, part: &Part, number: u32, request: Option<&str>, now: Timestamp) -> Result<Sending> {
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
        txn: None,
        request: request.is_some(),
        source: None,
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
    request: Option<&str>,
    now: Timestamp,
) -> Result<Vec<JobId>, (Error, Vec<JobId>)> {
    let backend = core.backend();
    loop {
        let sending = prepare(core, part, number, request, now).map_err(|error| (error, Vec::new()))?;
        let ids = || sending.encoded.indexes.iter().map(|index| sending.name.id.job(*index)).collect::<Vec<JobId>>();
        let name = core.layout.segment(&sending.name).map(Name::new);
        let Some(name) = name else { return Err((Error::invalid("a segment needs a place"), Vec::new())) };
        let began = Age::now(backend);
        let (mut doubt, mut tries) = (false, 0);
        let error = loop {
            let refusal = match backend.create(&name, sending.encoded.body.clone()).await {
                Ok(()) => return Ok(ids()),
                Err(refusal) => refusal,
            };
            doubt |= refusal.error.leaves_doubt();
            if refusal.conflict {
                match whose(core, &name, &sending, request.is_some()).await {
                    Ok(Whose::Ours) => return Ok(ids()),
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
