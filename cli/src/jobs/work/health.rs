//! For those who look after a worker: alive, ready, metrics.

use crate::exit::{Failure, OWN_FAILURE};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The bounds of what is measured in seconds.
const SECONDS: [f64; 12] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 5., 30., 120.];

/// What is told of this process to whoever asks, if somebody may.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Whether jobs can be claimed.
    ready: Arc<AtomicBool>,
    closing: Option<DropGuard>,
}

#[derive(Clone)]
struct App {
    ready: Arc<AtomicBool>,
    metrics: PrometheusHandle,
}

impl Health {
    pub(super) async fn listen(address: SocketAddr) -> Result<Self, Failure> {
        let failed = |error: String| Failure::new(OWN_FAILURE, format!("cannot listen on {address}: {error}"));
        let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS);
        let metrics =
            builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| failed(error.to_string()))?;
        describe_counter!("leasehold_work_attempts_total", "Attempts at jobs by `work`, by how they ended");
        describe_gauge!("leasehold_work_running", "Commands of `work` that run");
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| failed(error.to_string()))?;
        let bound = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let ready = Arc::new(AtomicBool::new(false));
        let app = App { ready: Arc::clone(&ready), metrics };
        let router = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(answer_ready))
            .route("/metrics", get(answer_metrics))
            .with_state(app);
        let closing = CancellationToken::new();
        let closed = closing.clone().cancelled_owned();
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(closed).await {
                tracing::warn!(%error, "nobody answers for this worker's health any more");
            }
        });
        crate::output::say(format_args!("answering on http://{bound}"));
        Ok(Self { ready, closing: Some(closing.drop_guard()) })
    }

    pub(super) fn close(&mut self) {
        self.closing = None;
    }

    pub(super) fn ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    pub(super) fn running(&self, count: usize) {
        gauge!("leasehold_work_running").set(count as f64);
    }

    pub(super) fn ended(&self, end: &'static str) {
        counter!("leasehold_work_attempts_total", "end" => end).increment(1);
    }
}

async fn answer_ready(State(app): State<App>) -> (StatusCode, &'static str) {
    match app.ready.load(Relaxed) {
        true => (StatusCode::OK, "ok\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "no jobs can be claimed: the store does not answer, or this worker ends\n",
        ),
    }
}

async fn answer_metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}
