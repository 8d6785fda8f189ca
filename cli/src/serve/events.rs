//! Watching over HTTP, as server-sent events: what there is, then every change of it.

use super::{App, input::Query};
use crate::wire::{self, HeldBy, KeyStatus, Leader, Problem};
use axum::{
    extract::State,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, StreamExt};
use leasehold::Result;
use serde::Serialize;
use std::{convert::Infallible, time::Duration};

/// How often a silent stream says that it is alive, so that nothing in between takes it for dead.
const ALIVE: Duration = Duration::from_secs(15);

/// Watch a key: an event `status` with what there is, and one for every change; `problem` when the store fails.
#[utoipa::path(get, path = "/v1/watch", tag = "leases",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("key" = String, Query, min_length = 1, max_length = 1024, description = "The key")),
    responses((status = 200, content_type = "text/event-stream", body = String, description = "What there is, then every change of it, as server-sent events")))]
pub(super) async fn watch(State(app): State<App>, query: Query) -> Result<Response, Problem> {
    let query = query.only(&["namespace", "key"])?;
    let (leases, key) = query.key(&app, "key")?;
    let namespace = wire::namespace(query.text("namespace")?)?;
    stream(&app, "status", leases.watch(&key).map(move |seen| seen.map(|status| KeyStatus::of(&namespace, &status))))
}

/// Watch an election: an event `leader` with who leads, and one for every new leader.
#[utoipa::path(get, path = "/v1/elections/observe", tag = "elections",
    params(("namespace" = Option<String>, Query, pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", description = "`default` if left out"),
           ("name" = String, Query, min_length = 1, max_length = 1024, description = "The election")),
    responses((status = 200, content_type = "text/event-stream", body = String, description = "Who leads, then every new leader, as server-sent events")))]
pub(super) async fn observe(State(app): State<App>, query: Query) -> Result<Response, Problem> {
    let query = query.only(&["namespace", "name"])?;
    let (leases, key) = query.key(&app, "name")?;
    // Nobody stands: the candidate and its time are never used.
    let election = leases.election(&key, "", Duration::from_secs(1))?;
    let leader = |leader: Option<leasehold::lease::Holder>| Leader { leader: leader.as_ref().map(HeldBy::from) };
    stream(&app, "leader", election.observe().map(move |seen| seen.map(leader)))
}

fn stream<T: Serialize + Send + 'static>(
    app: &App,
    name: &'static str,
    items: impl Stream<Item = Result<T>> + Send + 'static,
) -> Result<Response, Problem> {
    let seat = app.seat()?;
    let events = items.take_until(app.draining.clone().cancelled_owned()).map(move |item| {
        let _seat = &seat;
        let event = match item {
            Ok(item) => Event::default().event(name).json_data(item),
            Err(error) => Event::default().event("problem").json_data(Problem::from(error)),
        };
        Ok::<_, Infallible>(event.unwrap_or_else(|_| Event::default().comment("not JSON")))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)).into_response())
}
