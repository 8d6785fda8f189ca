//! Jobs, and those who work on them.
//!
//! What a job carries is bytes. Text stands as it is, anything else in base64.

use super::{maybe_whole, millis, ms, present, whole};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use leasehold::{
    Fence,
    clock::Timestamp,
    job::{self, AttemptEnd, Fate, Job, JobInfo, JobState, StaleAttempt},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};
use utoipa::ToSchema;

/// The longest kind, tenant, key or caller's id of a job.
const LONGEST_TEXT: usize = 128;

/// A job to be enqueued.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// What it carries, as text.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(example = "ann@example.org", value_type = String)]
    pub(crate) args: Option<String>,
    /// What it carries, as JSON: it is stored, and handed to its worker, as the text of this value.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value)]
    pub(crate) args_json: Option<Value>,
    /// What it carries, in base64.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,1000}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) args_b64: Option<String>,
    /// What kind of job it is, for its handler.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, value_type = String)]
    pub(crate) kind: Option<String>,
    /// On whose behalf: tenants take turns.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, value_type = String)]
    pub(crate) tenant: Option<String>,
    /// Jobs of one key are limited together, if the queue has a limit.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, value_type = String)]
    pub(crate) key: Option<String>,
    /// Dropped as a duplicate if another job of this key is queued or running when it is taken in.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, value_type = String)]
    pub(crate) unique_key: Option<String>,
    /// The caller's own id, shown wherever the job is.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, value_type = String)]
    pub(crate) caller_id: Option<String>,
    /// Lower ones come first; below 0 is urgent.
    #[serde(default)]
    #[schema(minimum = -32768, maximum = 32767)]
    pub(crate) priority: i16,
    /// Not before this time, by the store's clock.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 4_102_444_800_000_u64, value_type = u64)]
    pub(crate) due_ms: Option<u64>,
    /// Not before so much later.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 315_360_000_000_u64, value_type = u64)]
    pub(crate) due_in_ms: Option<u64>,
    /// How many attempts may fail, if not as many as the queue says.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000, value_type = u32)]
    pub(crate) max_attempts: Option<u32>,
    /// How long one attempt may take: for its worker to enforce.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, value_type = u64)]
    pub(crate) timeout_ms: Option<u64>,
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("what should be base64 is not: {error}"))
}

fn in_range(what: &str, number: Option<u64>, least: u64, most: u64) -> Result<(), String> {
    match number.is_none_or(|number| (least..=most).contains(&number)) {
        true => Ok(()),
        false => Err(format!("`{what}` is a number from {least} to {most}")),
    }
}

impl NewJob {
    fn check(&self) -> Result<(), String> {
        const TEN_YEARS: u64 = 315_360_000_000;
        let texts = [
            ("kind", &self.kind),
            ("tenant", &self.tenant),
            ("key", &self.key),
            ("unique_key", &self.unique_key),
            ("caller_id", &self.caller_id),
        ];
        for (what, text) in texts {
            if text.as_ref().is_some_and(|text| text.is_empty() || text.len() > LONGEST_TEXT) {
                return Err(format!("`{what}` has 1 to {LONGEST_TEXT} bytes"));
            }
        }
        in_range("due_ms", self.due_ms, 0, 4_102_444_800_000)?;
        in_range("due_in_ms", self.due_in_ms, 0, TEN_YEARS)?;
        in_range("max_attempts", self.max_attempts.map(u64::from), 1, 10_000)?;
        in_range("timeout_ms", self.timeout_ms, 1, TEN_YEARS)?;
        if self.due_ms.is_some() && self.due_in_ms.is_some() {
            return Err("a job has `due_ms` or `due_in_ms`, not both".to_owned());
        }
        Ok(())
    }

    /// The job that the library takes, or what is wrong with it.
    pub(crate) fn into_job(self) -> Result<job::NewJob, String> {
        self.check()?;
        let mut job = match (self.args, self.args_json, self.args_b64) {
            (Some(text), None, None) => job::NewJob::new(text),
            (None, Some(json), None) => {
                let text =
                    serde_json::to_string(&json).map_err(|error| format!("`args_json` cannot be written: {error}"))?;
                job::NewJob::new(text)
            }
            (None, None, Some(text)) => job::NewJob::new(bytes(&text)?),
            (None, None, None) => job::NewJob::empty(),
            _ => return Err("a job has one of `args`, `args_json` and `args_b64`".to_owned()),
        };
        job = job.priority(self.priority);
        job = if let Some(kind) = self.kind { job.kind(kind) } else { job };
        job = if let Some(tenant) = self.tenant { job.tenant(tenant) } else { job };
        job = if let Some(key) = self.key { job.key(key) } else { job };
        job = if let Some(key) = self.unique_key { job.unique_key(key) } else { job };
        job = if let Some(id) = self.caller_id { job.caller_id(id) } else { job };
        job = if let Some(most) = self.max_attempts { job.max_attempts(most) } else { job };
        job = if let Some(longest) = self.timeout_ms { job.timeout(Duration::from_millis(longest)) } else { job };
        if let Some(at) = self.due_ms {
            job = job.due_at(Timestamp::from_millis(i64::try_from(at).unwrap_or(i64::MAX)));
        }
        job = if let Some(after) = self.due_in_ms { job.due_in(Duration::from_millis(after)) } else { job };
        Ok(job)
    }
}

/// Jobs that are in the queue.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Enqueued {
    /// Their ids, in the order in which they were sent.
    pub(crate) ids: Vec<String>,
}

/// What has become of one job of an enqueue that failed in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobFate {
    /// `enqueued`, `not_enqueued`, or `unknown`: then it may be in the queue, under this id.
    pub(crate) fate: String,
    /// Its id.
    pub(crate) id: Option<String>,
}

impl From<&Fate> for JobFate {
    fn from(fate: &Fate) -> Self {
        let (fate, id) = match fate {
            Fate::Enqueued(id) => ("enqueued", Some(id)),
            Fate::NotEnqueued => ("not_enqueued", None),
            Fate::Unknown(id) => ("unknown", Some(id)),
            _ => ("unknown", None),
        };
        Self { fate: fate.to_owned(), id: id.map(ToString::to_string) }
    }
}

/// Somebody who wants to work.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWorker {
    /// How it is called where others see that it has a job.
    #[serde(default)]
    #[schema(max_length = 256, example = "mailer-7")]
    pub(crate) name: String,
    /// For how long it may be silent before its jobs are given to others.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 3_600_000, default = 30_000, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
}

/// A worker that says that it is alive.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewWorker {
    /// The jobs that it knows to have in hand. What the service has under its name since before its last renewal, and is
    /// not among them, has never reached it, and goes back to its queue.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(max_items = 10_000, value_type = Vec<AttemptName>)]
    pub(crate) jobs: Option<Vec<AttemptName>>,
}

/// A worker, and what it has in hand.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Worker {
    /// Its id, for every call that it makes.
    pub(crate) worker: String,
    /// How it is called.
    pub(crate) name: String,
    /// For how long it may be silent before its jobs are given to others. Renew at a third of that.
    pub(crate) ttl_ms: u64,
    /// For how long its jobs are its own from when this is answered, if it is silent. Count it from before the request was sent.
    pub(crate) expires_in_ms: u64,
    /// What it has in hand.
    pub(crate) jobs: Vec<InHand>,
}

/// A job in the hands of a worker.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct InHand {
    pub(crate) namespace: String,
    pub(crate) queue: String,
    pub(crate) id: String,
    pub(crate) fence: u64,
    /// Whether it was taken away, because the service could not reach the store for too long: stop it.
    pub(crate) lost: bool,
}

/// A request for jobs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimJobs {
    /// Who asks.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) worker: String,
    /// How many jobs at the most.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, default = 1, value_type = u32)]
    pub(crate) most: Option<u32>,
    /// How long to wait for the first one. The service may wait for less.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, maximum = 4_294_967_295_u64)]
    pub(crate) wait_ms: u32,
}

/// Jobs that a worker was given. None, if there were none for as long as was waited.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Claimed {
    pub(crate) jobs: Vec<ClaimedJob>,
    /// For how long they are the worker's own, if it is silent. Count it from before the request was sent, plus `waited_ms`.
    pub(crate) expires_in_ms: u64,
    /// How long the request was with the service.
    pub(crate) waited_ms: u64,
}

/// One attempt at a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClaimedJob {
    pub(crate) id: String,
    /// Higher than that of every attempt before: hand it to whatever the job changes, and back with the answer.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub(crate) fence: u64,
    /// The number of this attempt, from 1.
    pub(crate) attempt: u32,
    /// Whether nothing else should be started beside it: it is suspected of ending its process.
    pub(crate) runs_alone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caller_id: Option<String>,
    pub(crate) priority: i16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enqueued_ms: Option<i64>,
    /// How long the attempt may take: stop it then, and say that it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    /// What it carries, if that is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) args: Option<String>,
    /// What it carries, in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) args_b64: Option<String>,
    /// Its other parts, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parts_b64: BTreeMap<String, String>,
}

impl From<&Job> for ClaimedJob {
    fn from(job: &Job) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let args = job.args();
        let (args, args_b64) = match String::from_utf8(args.to_vec()) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(STANDARD.encode(&args))),
        };
        let parts = job.part_names().into_iter().filter(|name| *name != job::ARGS);
        let parts = parts.filter_map(|name| Some((name.to_owned(), STANDARD.encode(job.loaded_part(name)?))));
        Self {
            id: job.id().to_string(),
            fence: job.fence().get(),
            attempt: job.attempt(),
            runs_alone: job.runs_alone(),
            kind: owned(job.kind()),
            tenant: owned(job.tenant()),
            key: owned(job.key()),
            caller_id: owned(job.caller_id()),
            priority: job.priority(),
            enqueued_ms: job.enqueued_at().map(ms),
            timeout_ms: job.timeout().map(millis),
            args,
            args_b64,
            parts_b64: parts.collect(),
        }
    }
}

/// One attempt at a job, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptName {
    /// The job.
    #[schema(pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")]
    pub(crate) id: String,
    /// The fence of the attempt: an integer, not a float.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub(crate) fence: Fence,
}

/// Jobs that are done, or that go back to the queue as they were.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndJobs {
    /// Who has them.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) worker: String,
    /// Which.
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) jobs: Vec<AttemptName>,
}

/// Jobs whose attempts have failed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailJobs {
    /// Who has them.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) worker: String,
    /// Which.
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) jobs: Vec<AttemptName>,
    /// What went wrong; its first 200 characters are kept.
    #[serde(default)]
    #[schema(max_length = 4096)]
    pub(crate) error: String,
    /// Another attempt is of no use: they go to the dead letters.
    #[serde(default)]
    pub(crate) for_good: bool,
}

/// Jobs that are to run again later, without using an attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnoozeJobs {
    /// Who has them.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) worker: String,
    /// Which.
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) jobs: Vec<AttemptName>,
    /// How much later.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 315_360_000_000_u64, value_type = u64)]
    pub(crate) snooze_ms: u64,
}

/// What has become of each attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Answered {
    /// In the order of the request.
    pub(crate) results: Vec<AttemptResult>,
}

/// What has become of an attempt that its worker has answered for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AttemptResult {
    pub(crate) id: String,
    pub(crate) fence: u64,
    /// Whether what was said of the job holds.
    pub(crate) accepted: bool,
    /// `finished`, `waits` (it will run again), `dead`, `cancelled`, `answered_before`, `stale` (it is over, and what was
    /// said changes nothing) or `unknown` (it may still be accepted).
    pub(crate) end: String,
    /// When it runs again, not before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) due_ms: Option<i64>,
    /// If it is stale: whether the job is `running`, `waiting` to be claimed again, or `gone` (it has ended or moved on).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// Who runs it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<i64>,
    /// With which fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by_fence: Option<u64>,
    /// What happened, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

impl AttemptResult {
    /// What the library says of it.
    pub(crate) fn of(name: &AttemptName, ended: Result<AttemptEnd, String>) -> Self {
        let mut result =
            Self { id: name.id.clone(), fence: name.fence.get(), end: "unknown".to_owned(), ..Self::default() };
        let end = match ended {
            Ok(end) => end,
            Err(error) => {
                result.detail = Some(error);
                return result;
            }
        };
        result.accepted = end.is_accepted();
        result.end = match &end {
            AttemptEnd::Finished { .. } => "finished",
            AttemptEnd::Waits { until } => {
                result.due_ms = Some(ms(*until));
                "waits"
            }
            AttemptEnd::Dead => "dead",
            AttemptEnd::Cancelled => "cancelled",
            AttemptEnd::AnsweredBefore => "answered_before",
            AttemptEnd::Stale(stale) => {
                result.stale(stale);
                "stale"
            }
            _ => "unknown",
        }
        .to_owned();
        result
    }

    fn stale(&mut self, stale: &StaleAttempt) {
        self.detail = Some(stale.to_string());
        let state = match stale {
            StaleAttempt::Running { owner, since, fence } => {
                (self.owner, self.since_ms) = (Some(owner.clone()), Some(ms(*since)));
                self.by_fence = Some(fence.get());
                "running"
            }
            StaleAttempt::Waiting => "waiting",
            _ => "gone",
        };
        self.state = Some(state.to_owned());
    }

    /// An attempt whose answer has not landed yet.
    pub(crate) fn under_way(name: &AttemptName) -> Self {
        Self::of(name, Err("its answer is on its way: ask again".to_owned()))
    }

    /// An attempt that this service does not know to be its worker's, by what is known of its job.
    pub(crate) fn not_ours(name: &AttemptName, info: Option<&JobInfo>) -> Self {
        let stale = match info {
            Some(JobInfo {
                state: JobState::Running, owner, running_since: Some(since), fence: Some(fence), ..
            }) => StaleAttempt::Running { owner: owner.clone().unwrap_or_default(), since: *since, fence: *fence },
            Some(JobInfo { state: JobState::Finished | JobState::Dead | JobState::Cancelled, .. }) | None => {
                StaleAttempt::Gone
            }
            Some(_) => StaleAttempt::Waiting,
        };
        Self::of(name, Ok(AttemptEnd::Stale(stale)))
    }
}

/// What is known of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobStatus {
    pub(crate) id: String,
    /// `scheduled`, `available`, `running`, `retrying`, `paused`, `finished`, `dead` or `cancelled`.
    pub(crate) state: String,
    /// Attempts that were made, with one that runs.
    pub(crate) attempts: u32,
    /// How often in a row it was alone with a process that died.
    pub(crate) stalls: u32,
    pub(crate) enqueued_ms: Option<i64>,
    /// When it is due next, while it waits.
    pub(crate) due_ms: Option<i64>,
    pub(crate) running_since_ms: Option<i64>,
    /// What its last failed attempt said.
    pub(crate) last_error: Option<String>,
    /// The process that runs it.
    pub(crate) owner: Option<String>,
    /// The worker of this service that runs it.
    pub(crate) worker: Option<String>,
    pub(crate) fence: Option<u64>,
    pub(crate) kind: Option<String>,
    pub(crate) caller_id: Option<String>,
}

/// A word of the library's, as JSON has it.
pub(crate) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

impl JobStatus {
    pub(crate) fn of(info: JobInfo, worker: Option<String>) -> Self {
        Self {
            id: info.id.to_string(),
            state: word(&info.state),
            attempts: info.attempts,
            stalls: info.stalls,
            enqueued_ms: info.enqueued_at.map(ms),
            due_ms: info.due_at.map(ms),
            running_since_ms: info.running_since.map(ms),
            last_error: info.last_error,
            owner: info.owner,
            worker,
            fence: info.fence.map(Fence::get),
            kind: info.kind,
            caller_id: info.caller_id,
        }
    }
}

/// What became of a cancel.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CancelledJob {
    /// `done`, `asked` (it runs, or is not taken in yet: it ends as cancelled unless it is finished) or `already_ended`.
    pub(crate) cancelled: String,
}

/// How many jobs a queue has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct QueueStatus {
    pub(crate) namespace: String,
    pub(crate) queue: String,
    /// Due, and not running.
    pub(crate) available: u64,
    /// Due later.
    pub(crate) scheduled: u64,
    /// Waiting for their next attempt.
    pub(crate) retrying: u64,
    /// Held back.
    pub(crate) paused: u64,
    /// In the hands of processes.
    pub(crate) running: u64,
    /// On their way to the dead letters.
    pub(crate) burying: u64,
    /// There are at least this many.
    pub(crate) at_least: bool,
    /// When the one that waits longest was or will be due.
    pub(crate) oldest_due_ms: Option<i64>,
    /// Requests that wait for jobs at this service.
    pub(crate) waiting: u64,
}
