//! Workers: register, renew, leave, and claim by long poll.

use super::{
    super::{
        App,
        answer::{Json, line},
        input::{Batch, Body},
    },
    BATCH, Named, QueueName, desk, is_uuid, of_path,
    workers::unknown_worker,
};
use crate::wire::{
    AttemptName, ClaimJobs, Claimed, ClaimedJob, InHand, NewWorker, Problem, RenewWorker, Worker, millis,
};
use axum::{
    body::Body as HttpBody,
    extract::{FromRequestParts, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use leasehold::{Clock, job::Job};
use std::time::Duration;

/// For how long a worker may be silent, if it does not say.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The worker that a path names.
#[derive(Debug)]
pub(crate) struct WorkerId(String);

impl FromRequestParts<App> for WorkerId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Ok(Self(of_path(parts, "worker").await?))
    }
}

/// Jobs that a renewal may name.
const MOST_NAMED: usize = 10_000;

/// Register a worker, which claims jobs under its id and keeps them by renewing.
#[utoipa::path(post, path = "/v1/workers", operation_id = "register_worker", tag = "jobs", request_body = NewWorker,
    responses((status = 200, body = Worker, description = "It may claim now")))]
pub(in super::super) async fn register(
    State(app): State<App>,
    Body(body): Body<NewWorker>,
) -> Result<Json<Worker>, Problem> {
    if body.name.len() > 256 {
        return Err(Problem::invalid("`name` is longer than 256 bytes"));
    }
    let ttl = body.ttl_ms.map_or(DEFAULT_TTL, Duration::from_millis);
    if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&ttl) {
        return Err(Problem::invalid("`ttl_ms` is a number from 1000 to 3600000"));
    }
    let worker = app.work.workers.register(body.name.clone(), ttl, app.clock.monotonic())?;
    let ttl_ms = millis(ttl);
    Ok(Json(Worker { worker, name: body.name, ttl_ms, expires_in_ms: ttl_ms, jobs: Vec::new() }))
}

/// Say that a worker is alive: keeps everything that it has in hand. The answer names all of that.
///
/// A worker that is silent for longer than its time to live is forgotten, and its jobs have failed: each uses an attempt, and
/// the queue decides when it runs again.
#[utoipa::path(post, path = "/v1/workers/{worker}/renew", operation_id = "renew_worker", tag = "jobs", request_body = RenewWorker,
    params(("worker" = String, Path, pattern = "^[0-9a-f]{32}$", description = "Its id")),
    responses((status = 200, body = Worker, description = "What it has in hand")))]
pub(in super::super) async fn renew(
    State(app): State<App>,
    WorkerId(worker): WorkerId,
    Batch(body, _room): Batch<RenewWorker>,
) -> Result<Json<Worker>, Problem> {
    let has = body.jobs.as_deref();
    if has.unwrap_or_default().len() > MOST_NAMED {
        return Err(Problem::invalid(format!("one renewal names at most {MOST_NAMED} jobs: leave `jobs` out")));
    }
    if let Some(wrong) = has.unwrap_or_default().iter().find(|name| !is_uuid(&name.id)) {
        return Err(Problem::invalid(format!("{:?} is no job's id", wrong.id)));
    }
    let renewed = app.work.workers.renew(&worker, app.clock.monotonic(), has);
    let (holding, strange) = renewed.ok_or_else(unknown_worker)?;
    // Dropped, they go back to their queue, and no attempt is used.
    drop(strange);
    let jobs = holding.jobs.into_iter().map(|(name, attempt, lost)| InHand {
        namespace: name.namespace.to_string(),
        queue: name.queue,
        id: attempt.id,
        fence: attempt.fence.get(),
        lost,
    });
    Ok(Json(Worker {
        worker,
        name: holding.name,
        ttl_ms: millis(holding.ttl),
        expires_in_ms: millis(holding.ttl.min(holding.believed)),
        jobs: jobs.collect(),
    }))
}

/// A worker goes. What it has in hand goes back to its queues at once, and uses no attempt.
#[utoipa::path(delete, path = "/v1/workers/{worker}", operation_id = "leave_worker", tag = "jobs",
    params(("worker" = String, Path, pattern = "^[0-9a-f]{32}$", description = "Its id")),
    responses((status = 204, description = "It is gone")))]
pub(in super::super) async fn leave(State(app): State<App>, WorkerId(worker): WorkerId) -> Result<StatusCode, Problem> {
    let jobs = app.work.workers.leave(&worker).ok_or_else(unknown_worker)?;
    give_back(jobs).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives jobs back that may have run, and uses no attempt.
pub(in super::super) async fn give_back(jobs: Vec<Job>) {
    let answers: Vec<_> = jobs.into_iter().map(|job| job.release().into_future()).collect();
    for answered in futures_util::future::join_all(answers).await {
        if let Err(error) = answered {
            tracing::warn!(%error, "whether a job was given back is not known yet");
        }
    }
}

/// Claim jobs, waiting for the first one if asked to.
///
/// A claim counts as a renewal of its worker. Jobs whose answer could not be handed to the connection go back to the queue.
#[utoipa::path(post, path = "/v1/queues/{queue}/claim", operation_id = "claim_jobs", tag = "jobs", request_body = ClaimJobs,
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out")),
    responses((status = 200, body = Claimed, description = "The jobs that are the worker's now; none, if there were none")))]
pub(in super::super) async fn claim(
    State(app): State<App>,
    named: Named,
    Body(body): Body<ClaimJobs>,
) -> Result<Response, Problem> {
    let (came, named) = (app.clock.monotonic(), named.alone()?);
    let most = body.most.unwrap_or(1);
    if !(1..=BATCH).contains(&(most as usize)) {
        return Err(Problem::invalid(format!("`most` is a number from 1 to {BATCH}")));
    }
    if app.draining.is_cancelled() {
        return Err(Problem::draining());
    }
    let ttl = app.work.workers.ttl(&body.worker).ok_or_else(unknown_worker)?;
    let wait = Duration::from_millis(body.wait_ms.into()).min(app.max_wait);
    let jobs = match wait.is_zero() {
        true => named.queue.claim(most).await?,
        false => {
            let _seat = app.seat()?;
            desk::wait(&app, &named.name, &named.queue, most, wait).await?
        }
    };
    let believed = jobs.iter().map(Job::time_left).min().unwrap_or(ttl);
    let names = jobs.iter().map(|job| AttemptName { id: job.id().to_string(), fence: job.fence() }).collect();
    let claimed: Vec<ClaimedJob> = jobs.iter().map(ClaimedJob::from).collect();
    let now = app.clock.monotonic();
    // Jobs for which no worker is known any more are dropped here, and go back.
    app.work.workers.give(&body.worker, &named.name, jobs, now).map_err(|_| unknown_worker())?;
    let expires_in_ms = millis(ttl.min(believed));
    let body_of = line(&Claimed { jobs: claimed, expires_in_ms, waited_ms: millis(now.since(came)) });
    Ok(hand_over(body_of, Owed { app, worker: body.worker, queue: named.name, names }))
}

/// Jobs that their worker has not been told of. Dropped, they go back: nobody else knows that they are there.
struct Owed {
    app: App,
    worker: String,
    queue: QueueName,
    names: Vec<AttemptName>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        drop(self.app.work.workers.take_back(&self.worker, &self.queue, &self.names));
    }
}

/// The answer to a claim. The debt is paid when the connection takes the body.
fn hand_over(body: Vec<u8>, owed: Owed) -> Response {
    let length = body.len();
    let once = stream::once(async move {
        let mut owed = owed;
        owed.names.clear();
        Ok::<_, std::convert::Infallible>(body)
    });
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, HttpBody::from_stream(once)).into_response()
}
