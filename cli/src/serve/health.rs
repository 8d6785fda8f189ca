//! For those who look after the service: alive, ready, metrics. None of it is activity.

use super::{App, clock::WrongClock};
use crate::wire::Problem;
use axum::{extract::State, http::header, response::IntoResponse};
use leasehold::{Clock, Key, clock::Moment};
use metrics::{describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::time::Duration;

/// For how long the store's last answer counts, so that many who ask are one who asks.
const FRESH: Duration = Duration::from_secs(5);

/// The bounds of what is measured in seconds, from a fast local write to a long wait.
const SECONDS: [f64; 12] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 5., 30., 120.];

/// When the store was last asked, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Pulse(Option<(Moment, Result<(), Problem>)>);

/// The process is there.
#[utoipa::path(get, path = "/livez", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String, description = "The process is there")))]
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// The store answers, the clocks agree, and the service is not going down.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String, description = "It can do its work")))]
pub(super) async fn ready(State(app): State<App>) -> Result<&'static str, Problem> {
    if app.draining.is_cancelled() {
        return Err(Problem::draining());
    }
    if let Some(wrong) = WrongClock::of(&app.store) {
        return Err(Problem::new("clock_skew", wrong.to_string()));
    }
    if !app.store.trusts_clock() {
        return Err(Problem::new(
            "clock_skew",
            "the clocks of this machine and of the store differ: nothing is granted",
        ));
    }
    let mut pulse = app.pulse.lock().await;
    let now = app.clock.monotonic();
    let known = pulse.0.as_ref().filter(|(at, _)| now.since(*at) < FRESH).map(|(_, answer)| answer.clone());
    let answer = match known {
        Some(answer) => answer,
        None => {
            // One read, of a key that nobody has.
            let read = app.store.leases("default")?.peek(&Key::new(".readyz")?).await;
            let answer = read.map(drop).map_err(Problem::from);
            app.trouble.note(app.clock.wall(), &answer);
            pulse.0 = Some((app.clock.monotonic(), answer.clone()));
            answer
        }
    };
    answer.map(|()| "ok\n")
}

/// Everything that is counted, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String, description = "In the text format of Prometheus")))]
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    gauge!("leasehold_idle_seconds").set(app.store.idle_for().as_secs_f64());
    gauge!("leasehold_clock_trusted").set(f64::from(u8::from(app.store.trusts_clock())));
    gauge!("leasehold_clock_wrong").set(f64::from(u8::from(WrongClock::of(&app.store).is_some())));
    if let Some(skew) = app.store.skew() {
        gauge!("leasehold_clock_skew_seconds").set(skew.as_secs_f64());
    }
    gauge!("leasehold_sweep_running").set(f64::from(u8::from(app.store.sweeper().state().running)));
    gauge!("leasehold_known_leases").set(app.board.held() as f64);
    gauge!("leasehold_workers").set(app.work.workers.count() as f64);
    gauge!("leasehold_workers_jobs").set(app.work.workers.in_hand() as f64);
    gauge!("leasehold_http_waiting").set(app.max_waiting.saturating_sub(app.seats.available_permits()) as f64);
    gauge!("leasehold_http_waiting_limit").set(app.max_waiting as f64);
    if let Some(bytes) = resident() {
        gauge!("process_resident_memory_bytes").set(bytes as f64);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

/// Counts for this process from now on.
pub(super) fn install() -> Result<PrometheusHandle, BuildError> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    let handle = builder.install_recorder()?;
    describe_counter!("leasehold_http_requests_total", "Requests to the service, by route and status");
    describe_histogram!(
        "leasehold_http_request_duration_seconds",
        "How long requests took, without those that may wait"
    );
    describe_gauge!("leasehold_http_waiting", "Requests that wait for a lease, or watch one");
    describe_gauge!("leasehold_http_waiting_limit", "How many may");
    describe_gauge!("leasehold_workers", "Workers that are registered with this service");
    describe_gauge!("leasehold_workers_jobs", "Jobs that they have in hand");
    describe_gauge!("leasehold_idle_seconds", "How long nobody has asked for anything");
    describe_gauge!("leasehold_clock_trusted", "Whether the clocks of this machine and the store agree");
    describe_gauge!("leasehold_clock_wrong", "Whether they are certainly further apart than max_clock_skew");
    describe_gauge!("leasehold_clock_skew_seconds", "How far they are apart, as far as is known");
    describe_gauge!("leasehold_sweep_running", "Whether the sweeper is at work");
    describe_gauge!("leasehold_known_leases", "Leases that this process knows to be held");
    describe_gauge!("process_resident_memory_bytes", "Resident memory");
    describe_gauge!("leasehold_build_info", "The version");
    gauge!("leasehold_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.);
    Ok(handle)
}

/// How much memory this process has, where the system says.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
