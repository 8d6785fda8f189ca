//! A lock service of its own, with the library as its storage layer: `cargo run --example embedded_service`.
//!
//! It speaks HTTP and JSON, keeps nothing that is not in the store, sweeps when nobody asks for anything, and shows what it does
//! to Prometheus. Name a store (`s3://bucket/prefix`) as its argument; without one it uses a folder that is gone afterwards.
//! [`docs/GUIDE.md`](../docs/GUIDE.md) explains it; `tests/embedded.rs` runs it.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use leasehold::{
    Error, ErrorKind, Key, LeaseId, Settings, Store,
    lease::{Acquired, Grant, Renewed, Request},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{future::Future, time::Duration};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First of all: what is counted before there is a recorder is not exported.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let folder = tempfile::tempdir()?;
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("file://{}", folder.path().display()));
    let store = Store::builder().url(url).settings(settings()).open().await?;
    let listener = TcpListener::bind("127.0.0.1:7421").await?;
    println!("listening on http://{}, store {store}; stop with Ctrl-C", listener.local_addr()?);
    serve(listener, store, metrics, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

/// The sweeper of this service begins after a minute of quiet, and looks at 50 entries a second.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.sweep.idle_grace = Duration::from_secs(60);
    settings.sweep.op_delay = Duration::from_millis(20);
    settings.sweep.tick = Duration::from_secs(5);
    settings
}

/// Serves until `stop`, then lets requests, the sweeper and writes in doubt come to their end.
pub(crate) async fn serve(
    listener: TcpListener,
    store: Store,
    metrics: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let sweeper = store.sweeper().start();
    let app = Router::new()
        .route("/acquire", post(acquire))
        .route("/renew", post(renew))
        .route("/release", post(release))
        // Work of the service's own, which the library does not see, holds the sweeper back if it is marked as activity.
        .route("/busy", post(async |State(store): State<Store>| store.mark_activity()))
        .with_state(store.clone())
        // Being scraped is not activity: it must not keep the sweeper from its work.
        .route("/metrics", get(async move || metrics.render()));
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    sweeper.stop().await;
    store.drain().await;
    Ok(())
}

type Answer = Result<Json<Value>, (StatusCode, String)>;

#[derive(Deserialize)]
struct Ask {
    #[serde(flatten)]
    key: Key,
    owner: String,
    ttl_ms: u64,
}

#[derive(Deserialize)]
struct Lease {
    #[serde(flatten)]
    key: Key,
    lease_id: LeaseId,
}

async fn acquire(State(store): State<Store>, Json(ask): Json<Ask>) -> Answer {
    let request = Request::new(Duration::from_millis(ask.ttl_ms)).owner(ask.owner);
    match store.default_leases().acquire(&ask.key, &request).await.map_err(problem)? {
        Acquired::Granted(grant) => Ok(granted(&grant)),
        Acquired::Held(held) => Err((StatusCode::CONFLICT, held.to_string())),
    }
}

async fn renew(State(store): State<Store>, Json(lease): Json<Lease>) -> Answer {
    match store.default_leases().renew_by_id(&lease.key, lease.lease_id, None).await.map_err(problem)? {
        Renewed::Renewed(grant) => Ok(granted(&grant)),
        Renewed::Lost(loss) => Err((StatusCode::CONFLICT, loss.to_string())),
    }
}

async fn release(State(store): State<Store>, Json(lease): Json<Lease>) -> Answer {
    store.default_leases().release_by_id(&lease.key, lease.lease_id).await.map_err(problem)?;
    Ok(Json(json!({})))
}

/// The client counts `ttl_ms` from before it asked, renews at a third of it, and hands the fence to what it protects.
fn granted(grant: &Grant) -> Json<Value> {
    Json(json!({ "lease_id": grant.lease_id().to_string(), "fence": grant.fence().get(),
        "ttl_ms": u64::try_from(grant.time_left().as_millis()).unwrap_or(0) }))
}

fn problem(error: Error) -> (StatusCode, String) {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        _ if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}
