//! How attempts end: finished, failed, snoozed or given back, in bulk.

use super::{
    super::{App, answer::Json, input::Batch},
    BATCH, Named, is_uuid,
    workers::Asked,
};
use crate::wire::{Answered, AttemptName, AttemptResult, EndJobs, FailJobs, Problem, SnoozeJobs};
use axum::extract::State;
use futures_util::{StreamExt, stream};
use leasehold::job::{Answering, Job, JobId, Queue};
use std::{collections::HashSet, time::Duration};

/// How many jobs are looked up side by side.
const SIDE_BY_SIDE: usize = 16;

/// How much of what went wrong is kept.
const ERROR: usize = 200;

/// Finish jobs. One that somebody else has been given meanwhile is refused, and the answer says who has it.
#[utoipa::path(post, path = "/v1/queues/{queue}/finish", operation_id = "finish_jobs", tag = "jobs", request_body = EndJobs,
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = Answered, description = "All of them have ended")))]
pub(in super::super) async fn finish(
    State(app): State<App>,
    named: Named,
    Batch(body, _room): Batch<EndJobs>,
) -> Result<Json<Answered>, Problem> {
    answer(app, named, body.worker, body.jobs, Job::finish).await
}

/// Say that attempts have failed. The queue decides when each job runs again, or that it is dead.
#[utoipa::path(post, path = "/v1/queues/{queue}/fail", operation_id = "fail_jobs", tag = "jobs", request_body = FailJobs,
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = Answered, description = "When each runs again, or that it is dead")))]
pub(in super::super) async fn fail(
    State(app): State<App>,
    named: Named,
    Batch(body, _room): Batch<FailJobs>,
) -> Result<Json<Answered>, Problem> {
    let FailJobs { worker, jobs, error, for_good } = body;
    if error.chars().count() > 4096 {
        return Err(Problem::invalid("`error` has at most 4096 characters"));
    }
    let error: String = error.chars().take(ERROR).collect();
    let what = |job: Job| if for_good { job.fail_for_good(&error) } else { job.fail(&error) };
    answer(app, named, worker, jobs, what).await
}

/// Let jobs run again later. No attempt is used.
#[utoipa::path(post, path = "/v1/queues/{queue}/snooze", operation_id = "snooze_jobs", tag = "jobs", request_body = SnoozeJobs,
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = Answered, description = "When each runs again")))]
pub(in super::super) async fn snooze(
    State(app): State<App>,
    named: Named,
    Batch(body, _room): Batch<SnoozeJobs>,
) -> Result<Json<Answered>, Problem> {
    if body.snooze_ms > 315_360_000_000 {
        return Err(Problem::invalid("`snooze_ms` is a number from 0 to 315360000000"));
    }
    let pause = Duration::from_millis(body.snooze_ms);
    answer(app, named, body.worker, body.jobs, |job| job.snooze(pause)).await
}

/// Give jobs back as they were: for a worker that shuts down. No attempt is used.
#[utoipa::path(post, path = "/v1/queues/{queue}/release", operation_id = "release_jobs", tag = "jobs", request_body = EndJobs,
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = Answered, description = "They wait again")))]
pub(in super::super) async fn give_up(
    State(app): State<App>,
    named: Named,
    Batch(body, _room): Batch<EndJobs>,
) -> Result<Json<Answered>, Problem> {
    answer(app, named, body.worker, body.jobs, Job::release).await
}

fn check(names: &[AttemptName]) -> Result<(), Problem> {
    if !(1..=BATCH).contains(&names.len()) {
        return Err(Problem::invalid(format!("`jobs` has 1 to {BATCH} of them")));
    }
    let mut seen = HashSet::new();
    for name in names {
        if !is_uuid(&name.id) {
            name.id.parse::<JobId>()?;
        }
        if !seen.insert(name) {
            return Err(Problem::invalid(format!("job {} is there twice", name.id)));
        }
    }
    Ok(())
}

/// Where the result of an attempt comes from.
enum From {
    Answer(Answering),
    Known(AttemptResult),
    LookUp,
}

/// Answers for attempts. What was queued is queued, whether or not the client waits for it.
async fn answer(
    app: App,
    named: Named,
    worker: String,
    names: Vec<AttemptName>,
    what: impl Fn(Job) -> Answering,
) -> Result<Json<Answered>, Problem> {
    let named = named.alone()?;
    check(&names)?;
    // A worker that is not known is one of a service before this one: what has become of its jobs is looked up.
    let asked = app.work.workers.take(&worker, &named.name, &names);
    let asked = asked.unwrap_or_else(|| names.iter().map(|_| Asked::Unknown).collect());
    let sources = asked.into_iter().map(|asked| match asked {
        Asked::Job(job) => From::Answer(what(*job)),
        Asked::Repeated(result) => From::Known(result),
        Asked::Unknown => From::LookUp,
    });
    let all: Vec<(AttemptName, From)> = names.into_iter().zip(sources).collect();
    let here = app.clone();
    let told = app.tasks.spawn(async move {
        let mut results: Vec<AttemptResult> = Vec::with_capacity(all.len());
        let each = all.into_iter().map(|(name, from)| result(&here, &named, &worker, name, from));
        // In the order of the request; all answers go along with the same commit.
        let mut each = stream::iter(each).buffered(BATCH.max(SIDE_BY_SIDE));
        while let Some(result) = each.next().await {
            results.push(result);
        }
        results
    });
    let results = told.await.map_err(|_| Problem::draining())?;
    if results.iter().all(|result| result.accepted) {
        return Ok(Json(Answered { results }));
    }
    Err(refused(results))
}

async fn result(app: &App, named: &Named, worker: &str, name: AttemptName, from: From) -> AttemptResult {
    match from {
        From::Known(result) => result,
        From::LookUp => look_up(&named.queue, &name).await,
        From::Answer(answering) => {
            let result = AttemptResult::of(&name, answering.await.map_err(|error| error.to_string()));
            app.work.workers.remember(worker, &named.name, &name, &result);
            result
        }
    }
}

async fn look_up(queue: &Queue, name: &AttemptName) -> AttemptResult {
    // What looks like an id and is none is no job's.
    let Ok(id) = name.id.parse::<JobId>() else { return AttemptResult::not_ours(name, None) };
    match queue.get(id).await {
        Ok(info) => AttemptResult::not_ours(name, info.as_ref()),
        Err(error) => AttemptResult::of(name, Err(error.to_string())),
    }
}

/// Some answers were refused, or nobody knows.
fn refused(results: Vec<AttemptResult>) -> Problem {
    let first = results.iter().find(|result| !result.accepted);
    let why = first.map_or_else(String::new, |result| {
        let detail = result.detail.as_deref().unwrap_or(&result.end);
        format!("job {}, attempt with fence {}: {detail}", result.id, result.fence)
    });
    let refused = results.iter().filter(|result| !result.accepted).count();
    let detail = format!("{why}; {refused} of {} answers were not accepted", results.len());
    let code = if results.iter().any(|result| result.end == "unknown") { "unknown_outcome" } else { "stale_attempt" };
    Problem { results: Some(results), ..Problem::new(code, detail) }
}
