//! Looking: how many jobs a queue has, where one of them is; and cancelling it.

use super::{
    super::{App, answer::Json},
    Named, OneJob,
};
use crate::wire::{CancelledJob, JobStatus, Problem, QueueStatus, word};
use axum::extract::State;
use leasehold::job::Cancelled;

/// How many jobs a queue has, by what they are doing. Not activity.
#[utoipa::path(get, path = "/v1/queues/{queue}", operation_id = "queue", tag = "jobs",
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = QueueStatus, description = "One listing, and one read for each shard")))]
pub(in super::super) async fn status(State(app): State<App>, named: Named) -> Result<Json<QueueStatus>, Problem> {
    let named = named.alone()?;
    let depth = named.queue.depth().await?;
    Ok(Json(QueueStatus {
        namespace: named.name.namespace.to_string(),
        queue: named.name.queue.clone(),
        available: depth.available,
        scheduled: depth.scheduled,
        retrying: depth.retrying,
        paused: depth.paused,
        running: depth.running,
        burying: depth.burying,
        at_least: depth.at_least,
        oldest_due_ms: depth.oldest_due.map(|at| at.as_millis()),
        waiting: app.work.desks.waiting(&named.name) as u64,
    }))
}

/// What is known of a job. One that ended a while ago is not found.
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs/{job}", operation_id = "job", tag = "jobs",
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("job" = String, Path, pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", description = "The job's id"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = JobStatus, description = "Where it is, and who has it")))]
pub(in super::super) async fn job(
    State(app): State<App>,
    named: Named,
    OneJob(id): OneJob,
) -> Result<Json<JobStatus>, Problem> {
    let named = named.alone()?;
    let Some(info) = named.queue.get(id).await? else { return Err(gone(&named, &id.to_string())) };
    let worker = app.work.workers.who(&named.name, id);
    Ok(Json(JobStatus::of(info, worker)))
}

/// Cancel a job. One that waits ends at once; one that runs ends as cancelled unless it is finished.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/{job}/cancel", operation_id = "cancel_job", tag = "jobs",
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("job" = String, Path, pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", description = "The job's id"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = CancelledJob, description = "What became of it")))]
pub(in super::super) async fn cancel(named: Named, OneJob(id): OneJob) -> Result<Json<CancelledJob>, Problem> {
    let named = named.alone()?;
    match named.queue.cancel(id).await? {
        Cancelled::NotFound => Err(gone(&named, &id.to_string())),
        cancelled => Ok(Json(CancelledJob { cancelled: word(&cancelled) })),
    }
}

fn gone(named: &Named, id: &str) -> Problem {
    let queue = &named.name.queue;
    Problem::new("not_found", format!("the queue {queue} has no job {id}: it ended a while ago, or never was"))
}
