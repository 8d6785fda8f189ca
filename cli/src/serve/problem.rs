//! What goes wrong, as problem details (RFC 9457) with codes that never change their meaning.

use super::answer::line;
use crate::wire::{Problem, millis};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use leasehold::{Error, ErrorKind, Fence, lease::Held, lease::Loss};

/// Every code that the service answers with, its status and its title. Documented in `docs/OPERATIONS.md`.
pub(super) const CODES: &[(&str, StatusCode, &str)] = &[
    ("invalid_json", StatusCode::BAD_REQUEST, "The body is not JSON"),
    ("invalid_request", StatusCode::BAD_REQUEST, "The request is wrong"),
    ("unauthorized", StatusCode::UNAUTHORIZED, "The token is missing or wrong"),
    ("forbidden", StatusCode::FORBIDDEN, "The token does not allow this"),
    ("forbidden_host", StatusCode::FORBIDDEN, "This host is not served"),
    ("forbidden_origin", StatusCode::FORBIDDEN, "Another site may not call the service"),
    ("not_found", StatusCode::NOT_FOUND, "There is nothing here"),
    ("unknown_worker", StatusCode::NOT_FOUND, "There is no such worker here"),
    ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, "This path has other methods"),
    ("slow_request", StatusCode::REQUEST_TIMEOUT, "The request took too long to arrive"),
    ("held", StatusCode::CONFLICT, "Another one holds it"),
    ("timed_out", StatusCode::CONFLICT, "Another one held it for as long as was waited"),
    ("lost", StatusCode::CONFLICT, "The lease is not yours any more"),
    ("wrong_size", StatusCode::CONFLICT, "The semaphore has another number of slots"),
    ("stale_attempt", StatusCode::CONFLICT, "Another attempt has the job, or it has ended"),
    ("not_begun", StatusCode::CONFLICT, "The transaction begins in the future"),
    ("too_early", StatusCode::CONFLICT, "Somebody may still decide it"),
    ("too_old", StatusCode::CONFLICT, "The transaction is too old to be decided"),
    ("sweep_running", StatusCode::CONFLICT, "A sweep is under way"),
    ("body_too_large", StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
    ("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body must be JSON"),
    ("too_many_waiting", StatusCode::TOO_MANY_REQUESTS, "Too many requests are waiting"),
    ("too_many_workers", StatusCode::TOO_MANY_REQUESTS, "Too many workers are registered"),
    ("too_much_at_once", StatusCode::TOO_MANY_REQUESTS, "Too many large requests are under way"),
    ("draining", StatusCode::SERVICE_UNAVAILABLE, "The service is going down"),
    ("store_unavailable", StatusCode::SERVICE_UNAVAILABLE, "The store does not answer"),
    ("unknown_outcome", StatusCode::SERVICE_UNAVAILABLE, "Whether it happened is not known"),
    ("store_regressed", StatusCode::SERVICE_UNAVAILABLE, "The store answered with something older than was seen"),
    ("clock_skew", StatusCode::SERVICE_UNAVAILABLE, "The clocks of the service and the store differ"),
    ("store_denied", StatusCode::BAD_GATEWAY, "The store refuses the service"),
    ("store_misconfigured", StatusCode::BAD_GATEWAY, "The store cannot be used"),
    ("corrupt", StatusCode::INTERNAL_SERVER_ERROR, "What is stored cannot be read"),
];

impl Problem {
    pub(super) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        let known = CODES.iter().find(|(known, ..)| *known == code);
        let (status, title) =
            known.map_or((StatusCode::INTERNAL_SERVER_ERROR, ""), |(_, status, title)| (*status, *title));
        Self {
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.into(),
            holder: None,
            retry_after_ms: None,
            last_fence: None,
            reason: None,
            results: None,
            fates: None,
        }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new("invalid_request", detail)
    }

    pub(super) fn draining() -> Self {
        Self { retry_after_ms: Some(1000), ..Self::new("draining", "the service is going down: ask another one") }
    }

    /// Somebody else has it, whether or not that was waited for.
    pub(super) fn held(held: &Held, waited: bool) -> Self {
        let detail = match &held.by {
            Some(by) if by.owner.is_empty() => format!("it is held, with fence {}", by.fence),
            Some(by) => format!("{} holds it, with fence {}", by.owner, by.fence),
            None => "it is the turn of somebody else".to_owned(),
        };
        Self {
            holder: held.by.as_ref().map(|by| Box::new(by.into())),
            retry_after_ms: Some(millis(held.retry_after)),
            ..Self::new(if waited { "timed_out" } else { "held" }, detail)
        }
    }

    pub(super) fn lost(loss: &Loss) -> Self {
        Self {
            holder: loss.taken_by.as_ref().map(|by| Box::new(by.into())),
            last_fence: loss.fence.map(Fence::get),
            reason: Some(loss.to_string()),
            ..Self::new("lost", format!("{loss}: stop what it protects"))
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => "invalid_request",
            ErrorKind::Config => "store_misconfigured",
            ErrorKind::Denied => "store_denied",
            ErrorKind::Clock => "clock_skew",
            ErrorKind::Unavailable => "store_unavailable",
            ErrorKind::Unknown => "unknown_outcome",
            ErrorKind::Regressed => "store_regressed",
            _ => "corrupt",
        };
        let retry_after_ms = error.is_retryable().then_some(1000);
        Self { retry_after_ms, ..Self::new(code, error.to_string()) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = line(&self);
        let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.div_ceil(1000)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the log.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented_with_its_status() {
        let book = include_str!("../../../docs/OPERATIONS.md");
        for (code, status, _) in CODES {
            assert!(book.contains(&format!("| `{code}` | {} |", status.as_u16())), "{code} {status}");
        }
    }
}
