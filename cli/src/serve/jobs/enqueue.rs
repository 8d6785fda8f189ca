//! Enqueuing: one job as JSON, many as a line of JSON each.

use super::{
    super::{
        App,
        answer::Json,
        input::{self, Room},
    },
    BULK, Named,
};
use crate::wire::{Enqueued, JobFate, NewJob, Problem};
use axum::{
    extract::{FromRequest, Request, State},
    http::{HeaderMap, header},
};
use leasehold::job::{self, EnqueueError};

/// What is to be enqueued.
pub(crate) enum Sent {
    One(Box<job::NewJob>, Room),
    Many(Vec<job::NewJob>, Room),
}

impl FromRequest<App> for Sent {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase();
        let (bytes, room) = input::batch(app, request).await?;
        match kind.as_str() {
            "application/json" => {
                let job: NewJob = input::parse(&bytes)?;
                Ok(Self::One(Box::new(job.into_job().map_err(Problem::invalid)?), room))
            }
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Ok(Self::Many(lines(&bytes)?, room)),
            _ => Err(Problem::new(
                "unsupported_media_type",
                "send one job as `application/json`, or one in each line as `application/x-ndjson`",
            )),
        }
    }
}

fn lines(bytes: &[u8]) -> Result<Vec<job::NewJob>, Problem> {
    let mut jobs = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if jobs.len() == BULK {
            return Err(Problem::invalid(format!(
                "one request brings at most {BULK} jobs: send the rest in another one"
            )));
        }
        let job = input::parse::<NewJob>(line).and_then(|job| job.into_job().map_err(Problem::invalid));
        jobs.push(
            job.map_err(|problem| Problem { detail: format!("line {}: {}", number + 1, problem.detail), ..problem })?,
        );
    }
    match jobs.is_empty() {
        true => Err(Problem::invalid("there is no job in the body")),
        false => Ok(jobs),
    }
}

/// Enqueue a job as `application/json`, or up to 10,000 as `application/x-ndjson`, one in each line.
///
/// They are durable when this is answered. Send an `Idempotency-Key` to be safe from lost answers: the same request under the
/// same key has the same ids, and enqueues nothing twice. Jobs without one that arrive at the same time share a request to the
/// store.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs", operation_id = "enqueue_jobs", tag = "jobs",
    request_body(content((NewJob = "application/json"), (String = "application/x-ndjson"))),
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}$", description = "The queue"),
           ("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("Idempotency-Key" = Option<String>, Header, description = "The caller's own name for this request, up to 256 characters")),
    responses((status = 200, body = Enqueued, description = "They are in the queue")))]
pub(in super::super) async fn enqueue(
    State(app): State<App>,
    headers: HeaderMap,
    named: Named,
    sent: Sent,
) -> Result<Json<Enqueued>, Problem> {
    let named = named.alone()?;
    if app.draining.is_cancelled() {
        return Err(Problem::draining());
    }
    let id = input::idempotency_key(&headers)?;
    let ids = match (sent, id) {
        // Without a key it may share its segment with others.
        (Sent::One(job, _room), None) => vec![named.queue.enqueue(*job).await.map_err(failed)?],
        (Sent::One(job, _room), Some(id)) => vec![named.queue.enqueue(*job).request_id(id).await.map_err(failed)?],
        (Sent::Many(jobs, _room), None) => named.queue.enqueue_many(jobs).await.map_err(failed)?,
        (Sent::Many(jobs, _room), Some(id)) => named.queue.enqueue_many(jobs).request_id(id).await.map_err(failed)?,
    };
    Ok(Json(Enqueued { ids: ids.iter().map(ToString::to_string).collect() }))
}

fn failed(error: EnqueueError) -> Problem {
    let fates: Vec<JobFate> = error.fates().iter().map(JobFate::from).collect();
    let nothing = fates.iter().all(|fate| fate.fate == "not_enqueued");
    let problem = Problem::from(error.error().clone());
    Problem { detail: error.to_string(), fates: (!nothing).then_some(fates), ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_line_is_named() {
        let Err(problem) = lines(b"{\"args\":\"a\"}\n\n{\"arg\":\"b\"}\n") else { panic!("it was taken") };
        assert_eq!(problem.code, "invalid_request");
        assert!(problem.detail.starts_with("line 3: ") && problem.detail.contains("arg"), "{}", problem.detail);
        let Err(problem) = lines(b"{\"args\":") else { panic!("it was taken") };
        assert_eq!(problem.code, "invalid_json");
        assert_eq!(lines(b"{\"args\":\"a\"}\r\n{\"args_json\":[1]}").map(|jobs| jobs.len()).ok(), Some(2));
        assert!(lines(b"\n\n").is_err());
        let many = "{}\n".repeat(BULK + 1);
        assert!(lines(many.as_bytes()).is_err());
    }
}
