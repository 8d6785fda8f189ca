//! job get, list, cancel, retry, pause and resume.

use super::{existing, text};
use crate::{
    config::Config,
    duration::relative,
    exit::{FAILED, Failure, Outcome},
    output::{self, Format},
    target::Embedded,
    view::{self, printable},
};
use clap::{Args, Subcommand, ValueEnum};
use leasehold::job::{Cancelled, JobChange, JobId, JobInfo, JobState, Queue};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is known of a job
    Get(Get),
    /// Show the jobs of a queue in one state
    List(List),
    /// Cancel jobs: one that waits ends at once, one that runs is asked to stop
    Cancel(Ids),
    /// Let jobs run now: those that wait for their time or their next attempt, and those that are dead
    Retry(Ids),
    /// Hold jobs back that wait
    Pause(Ids),
    /// Hold jobs back no longer
    Resume(Ids),
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The queue
    queue: String,
    /// The job
    id: JobId,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// The queue
    queue: String,
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<JobId>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The queue
    queue: String,
    /// In which state. Dead letters have a list of their own: leasehold dead list
    #[arg(long, value_enum, default_value = "available")]
    state: State,
    /// So many at the most
    #[arg(long, value_name = "N", default_value = "100")]
    limit: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// Due, and not running
    Available,
    /// Due later
    Scheduled,
    /// In the hands of a process
    Running,
    /// Waiting for its next attempt
    Retrying,
    /// Held back
    Paused,
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Available => Self::Available,
            State::Scheduled => Self::Scheduled,
            State::Running => Self::Running,
            State::Retrying => Self::Retrying,
            State::Paused => Self::Paused,
        }
    }
}

/// A value as its JSON has it: one word for one thing.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

/// What became of a change to one job.
#[derive(Debug, Serialize)]
struct Changed {
    id: JobId,
    result: String,
}

/// All jobs of a state, up to a number.
pub(super) async fn all(queue: &Queue, state: JobState, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let (mut jobs, mut next): (Vec<JobInfo>, Option<String>) = (Vec::new(), None);
    while jobs.len() < limit {
        let page = queue.list(state).limit((limit - jobs.len()).min(1000)).after(next).await?;
        jobs.extend(page.jobs);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    Ok(jobs)
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::Get(get) => get.run(config).await,
            Self::List(list) => list.run(config).await,
            Self::Cancel(ids) => {
                let word = |done| match done {
                    Cancelled::NotFound => None,
                    other => Some(word(&other)),
                };
                ids.each(config, async |queue, id| Ok(word(queue.cancel(id).await?))).await
            }
            Self::Retry(ids) => ids.each(config, async |queue, id| Ok(changed(queue.retry(id).await?))).await,
            Self::Pause(ids) => ids.each(config, async |queue, id| Ok(changed(queue.pause_job(id).await?))).await,
            Self::Resume(ids) => ids.each(config, async |queue, id| Ok(changed(queue.resume_job(id).await?))).await,
        }
    }
}

/// What became of it; nothing if there is no such job.
fn changed(change: JobChange) -> Option<String> {
    match change {
        JobChange::NotFound => None,
        other => Some(word(&other)),
    }
}

impl Get {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let queue = existing(&opened, config, &self.queue).await?;
        let Some(info) = queue.get(self.id).await? else {
            let dead = config.command(&["dead", "get", &self.queue, &self.id.to_string()]);
            return Err(Failure::failed(format!(
                "{} has no job {}: it ended a while ago, or never was; if it is dead: {dead}",
                printable(&self.queue),
                self.id
            )));
        };
        output::object(config.output.value, &info, &rows(&info))?;
        Ok(0)
    }
}

fn rows(info: &JobInfo) -> Vec<(&'static str, String)> {
    let now = view::now();
    let mut rows =
        vec![("id", info.id.to_string()), ("state", word(&info.state)), ("attempts", info.attempts.to_string())];
    if info.stalls > 0 {
        rows.push(("stalls", info.stalls.to_string()));
    }
    for (name, at) in
        [("enqueued_at", info.enqueued_at), ("due_at", info.due_at), ("running_since", info.running_since)]
    {
        rows.extend(at.map(|at| (name, relative(at, now))));
    }
    rows.extend(info.fence.map(|fence| ("fence", fence.to_string())));
    for (name, value) in [
        ("owner", &info.owner),
        ("kind", &info.kind),
        ("tenant", &info.tenant),
        ("key", &info.key),
        ("caller_id", &info.caller_id),
        ("last_error", &info.last_error),
    ] {
        rows.extend(value.as_ref().map(|value| (name, printable(value))));
    }
    if info.priority != 0 {
        rows.push(("priority", info.priority.to_string()));
    }
    rows
}

impl List {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let queue = existing(&opened, config, &self.queue).await?;
        let jobs = all(&queue, self.state.into(), self.limit).await?;
        match config.output.value {
            Format::Json => output::json(&jobs)?,
            Format::Table if jobs.is_empty() => output::say("no jobs"),
            Format::Table => {
                let now = view::now();
                let lines = jobs.iter().map(|job| {
                    let when = job.running_since.or(job.due_at);
                    [
                        job.id.to_string(),
                        word(&job.state),
                        text(job.kind.as_deref()),
                        job.attempts.to_string(),
                        when.map(|at| relative(at, now)).unwrap_or_default(),
                        text(job.last_error.as_deref()),
                    ]
                });
                output::table(["JOB", "STATE", "KIND", "ATTEMPTS", "DUE OR SINCE", "LAST ERROR"], lines)?;
                if jobs.len() == self.limit {
                    output::say(format_args!("there may be more: --limit {}", self.limit.saturating_mul(10)));
                }
            }
        }
        Ok(0)
    }
}

impl Ids {
    /// Does something to each job. Ends with 1 if there is none of an id.
    async fn each(
        &self,
        config: &Config,
        change: impl AsyncFn(&Queue, JobId) -> Result<Option<String>, Failure>,
    ) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let queue = existing(&opened, config, &self.queue).await?;
        let (mut results, mut missing) = (Vec::new(), 0);
        for id in &self.ids {
            match change(&queue, *id).await? {
                Some(result) => results.push(Changed { id: *id, result }),
                None => {
                    missing += 1;
                    output::complain(format_args!(
                        "{} has no job {id}: it ended a while ago, or never was",
                        printable(&self.queue)
                    ));
                }
            }
        }
        match config.output.value {
            Format::Json => output::json(&results)?,
            Format::Table if results.is_empty() => {}
            Format::Table => {
                let lines = results.iter().map(|changed| [changed.id.to_string(), changed.result.replace('_', " ")]);
                output::table(["JOB", "RESULT"], lines)?;
            }
        }
        Ok(if missing == 0 { 0 } else { FAILED })
    }
}
