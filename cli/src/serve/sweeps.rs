//! The sweeper over HTTP: what it is doing, and a run by hand.

use super::{App, answer::Json, input::Body};
use crate::wire::{self, Problem, Sweep, SweepReport, SweepStatus, millis};
use axum::extract::State;
use leasehold::sweep::SweepOptions;

/// How many entries a run by hand looks at, if it does not say.
const OPS: u32 = 1000;

/// What the sweeper is doing, and how its last runs ended. Not activity.
#[utoipa::path(get, path = "/v1/sweep", tag = "sweeper",
    responses((status = 200, body = SweepStatus, description = "Its state and its last runs")))]
pub(super) async fn status(State(app): State<App>) -> Json<SweepStatus> {
    Json(app.sweep_status())
}

/// Sweep now, whether or not anybody is active, and say what was done. It goes on if the client goes.
#[utoipa::path(post, path = "/v1/sweep", tag = "sweeper", request_body = Sweep,
    responses((status = 200, body = SweepReport, description = "What was done")))]
pub(super) async fn run(State(app): State<App>, Body(body): Body<Sweep>) -> Result<Json<SweepReport>, Problem> {
    let ops = body.max_ops.unwrap_or(OPS);
    if !(1..=100_000).contains(&ops) {
        return Err(Problem::invalid("`max_ops` is a number from 1 to 100000"));
    }
    let namespace = body.namespace.as_deref().map(|name| wire::namespace(Some(name))).transpose()?;
    let options = SweepOptions::new().max_ops(ops).dry_run(body.dry_run).namespace(namespace);
    // One at a time: a second one would only wait for the first.
    let turn = std::sync::Arc::clone(&app.sweeping).try_lock_owned();
    let Ok(turn) =
        turn.map_err(drop).and_then(|turn| if app.store.sweeper().state().running { Err(()) } else { Ok(turn) })
    else {
        return Err(Problem { retry_after_ms: Some(1000), ..Problem::new("sweep_running", "wait until it has ended") });
    };
    let store = app.store.clone();
    let swept = app.tasks.spawn(async move {
        let _turn = turn;
        store.sweeper().run_once(options).await
    });
    match swept.await {
        Ok(report) => Ok(Json(report?.into())),
        Err(_) => Err(Problem::draining()),
    }
}

impl App {
    pub(super) fn sweep_status(&self) -> SweepStatus {
        let state = self.store.sweeper().state();
        SweepStatus {
            running: state.running,
            idle_ms: millis(self.store.idle_for()),
            idle_grace_ms: millis(self.idle_grace),
            rests_until_ms: state.rests_until.map(|at| at.as_millis()),
            runs: state.runs.into_iter().map(Into::into).collect(),
        }
    }
}
