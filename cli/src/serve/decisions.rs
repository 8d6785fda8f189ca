//! Transaction decisions over HTTP.

use super::{App, answer::Json, input::Body, input::Transaction};
use crate::wire::{Decide, Decided, Problem, Txn, TxnAnswer};
use axum::{extract::State, http::StatusCode};
use leasehold::{
    Clock, ErrorKind,
    decision::{self, TxnId},
};

/// A transaction that has begun, by clocks that may differ as far as was agreed.
fn begun(app: &App, txn: TxnId) -> Result<TxnId, Problem> {
    let latest = app.store.time().map_or(app.clock.wall(), |store| store.max(app.clock.wall()));
    match txn.begun() <= latest.plus(app.store.shared_settings().max_clock_skew) {
        true => Ok(txn),
        false => Err(Problem::new(
            "not_begun",
            format!("{txn} begins in the future: correct the clock of the machine that began it"),
        )),
    }
}

/// Begin a transaction: a new id, which says when it began. Nothing is stored.
#[utoipa::path(post, path = "/v1/txns", tag = "decisions",
    responses((status = 200, body = Txn, description = "A new transaction, undecided")))]
pub(super) async fn begin(State(app): State<App>) -> Json<Txn> {
    let txn = app.store.decisions().begin();
    Json(Txn { txn: txn.to_string(), begun_ms: txn.begun().as_millis(), answer: TxnAnswer::Undecided })
}

/// What was decided. `forgotten` does not mean aborted.
#[utoipa::path(get, path = "/v1/txns/{txn}", tag = "decisions",
    params(("txn" = String, Path, pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", description = "A UUID of version 7")),
    responses((status = 200, body = Txn, description = "What is known of it")))]
pub(super) async fn read(State(app): State<App>, Transaction(txn): Transaction) -> Result<Json<Txn>, Problem> {
    let answer = app.store.decisions().get(begun(&app, txn)?).await?.into();
    Ok(Json(Txn { txn: txn.to_string(), begun_ms: txn.begun().as_millis(), answer }))
}

/// Decide, unless that was done already: then the answer is what was decided.
#[utoipa::path(post, path = "/v1/txns/{txn}/decide", tag = "decisions", request_body = Decide,
    params(("txn" = String, Path, pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", description = "A UUID of version 7")),
    responses((status = 200, body = Decided, description = "What was decided, now or before")))]
pub(super) async fn decide(
    State(app): State<App>,
    Transaction(txn): Transaction,
    Body(body): Body<Decide>,
) -> Result<Json<Decided>, Problem> {
    if body.by.len() > 256 {
        return Err(Problem::invalid("`by` is longer than 256 bytes"));
    }
    match app.store.decisions().by(body.by).decide(begun(&app, txn)?, body.decision).await? {
        decision::Decided::Decision(decision) => Ok(Json(Decided { txn: txn.to_string(), decision })),
        decision::Decided::TooOld => Err(Problem::new(
            "too_old",
            "no decision is known, and none can be made any more; that does not mean aborted",
        )),
    }
}

/// Forget a decision before its time: for a coordinator that knows that everybody has applied it.
#[utoipa::path(delete, path = "/v1/txns/{txn}", tag = "decisions",
    params(("txn" = String, Path, pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", description = "A UUID of version 7")),
    responses((status = 204, description = "It is forgotten")))]
pub(super) async fn forget(State(app): State<App>, Transaction(txn): Transaction) -> Result<StatusCode, Problem> {
    // The transaction is one, and has begun: what is wrong with asking is only that it is too early.
    app.store.decisions().forget(begun(&app, txn)?).await.map_err(|error| match error.kind() {
        ErrorKind::Invalid => Problem::new("too_early", error.to_string()),
        _ => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
