//! Which path leads where, and what happens on every way.

use super::{App, auth, decisions, events, health, jobs, leases, openapi, overview, page, semaphores, sweeps};
use crate::wire::Problem;
use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use leasehold::Clock;
use metrics::{counter, histogram};

pub(super) fn router(app: App) -> Router {
    Router::new()
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/acquire", post(leases::acquire))
        .route("/v1/renew", post(leases::renew))
        .route("/v1/release", post(leases::release))
        .route("/v1/lease", get(leases::get))
        .route("/v1/leases", get(leases::list))
        .route("/v1/check", post(leases::check))
        .route("/v1/watch", get(events::watch))
        .route("/v1/elections/campaign", post(leases::campaign))
        .route("/v1/elections/resign", post(leases::resign))
        .route("/v1/elections/leader", get(leases::leader))
        .route("/v1/elections/observe", get(events::observe))
        .route("/v1/force-release", post(leases::force))
        .route("/v1/semaphores/acquire", post(semaphores::acquire))
        .route("/v1/semaphores/renew", post(semaphores::renew))
        .route("/v1/semaphores/release", post(semaphores::release))
        .route("/v1/semaphores/resize", post(semaphores::resize))
        .route("/v1/semaphore", get(semaphores::status))
        .route("/v1/txns", post(decisions::begin))
        .route("/v1/txns/{txn}", get(decisions::read).delete(decisions::forget))
        .route("/v1/txns/{txn}/decide", post(decisions::decide))
        .route("/v1/sweep", get(sweeps::status).post(sweeps::run))
        .route("/v1/workers", post(jobs::register))
        .route("/v1/workers/{worker}", delete(jobs::leave))
        .route("/v1/workers/{worker}/renew", post(jobs::renew))
        .route("/v1/queues/{queue}", get(jobs::status))
        .route("/v1/queues/{queue}/jobs", post(jobs::enqueue))
        .route("/v1/queues/{queue}/jobs/{job}", get(jobs::job))
        .route("/v1/queues/{queue}/jobs/{job}/cancel", post(jobs::cancel))
        .route("/v1/queues/{queue}/claim", post(jobs::claim))
        .route("/v1/queues/{queue}/finish", post(jobs::finish))
        .route("/v1/queues/{queue}/fail", post(jobs::fail))
        .route("/v1/queues/{queue}/snooze", post(jobs::snooze))
        .route("/v1/queues/{queue}/release", post(jobs::give_up))
        .route("/v1/overview", get(overview::overview))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), auth::guard))
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .with_state(app)
}

/// Where a request may wait for as long as its client likes.
const MAY_WAIT: [&str; 6] = [
    "/v1/acquire",
    "/v1/elections/campaign",
    "/v1/watch",
    "/v1/elections/observe",
    "/v1/semaphores/acquire",
    "/v1/queues/{queue}/claim",
];

async fn nowhere() -> Problem {
    Problem::new("not_found", "there is no such path; see /openapi.json")
}

async fn wrong_method(method: Method) -> Problem {
    Problem::new("method_not_allowed", format!("the method {method} is not allowed here; see /openapi.json"))
}

/// Counts every request under its route, never under what a client made up, and lets nobody store an answer.
async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let began = app.clock.monotonic();
    let method = request.method().clone();
    let mut response = next.run(request).await.into_response();
    app.trouble.answered(app.clock.wall(), &method, &route, &response);
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16().to_string();
    let took = app.clock.monotonic().since(began);
    // Those that look after the service would drown all others.
    if !matches!(route.as_str(), "/livez" | "/readyz" | "/metrics") {
        tracing::info!(%method, route, status, took_ms = crate::wire::millis(took), "request");
    }
    counter!("leasehold_http_requests_total", "route" => route.clone(), "status" => status).increment(1);
    // How long a client wants to wait says nothing about the service.
    if !MAY_WAIT.contains(&route.as_str()) {
        histogram!("leasehold_http_request_duration_seconds", "route" => route).record(took.as_secs_f64());
    }
    response
}
