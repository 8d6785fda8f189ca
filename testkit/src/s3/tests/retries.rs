//! What `object_store` makes of a store's answers: the facts that our compare-and-swap is built on, and the reason
//! that this server exists. A release of `object_store` that changes one of them must not go unnoticed.

use super::*;
use crate::{Answer, Fault, Rule};
use object_store::Error;

/// Writes with up to three retries while `fault` strikes `times`; what the writer sees, and in how many requests.
async fn told(mode: Mode, fault: Fault, times: usize) -> (Seen, usize) {
    let (server, _) = server().await;
    let base = create(&client(&server), "a", "base").await.unwrap();
    let (name, mode) = match mode {
        Mode::Create => ("b", PutMode::Create),
        Mode::Update => ("a", PutMode::Update(base.into())),
        Mode::Overwrite => ("a", PutMode::Overwrite),
    };
    server.clear_requests();
    server.faults().script(Rule::once(Op::Put, fault).times(times));
    let store = match fault {
        Fault::Refuse(Answer::Hang) => impatient_client(&server, 3),
        _ => client_with_retries(&server, 3),
    };
    let seen = match store.put_opts(&Path::from(name), "new".into(), mode.into()).await {
        Ok(_) => Seen::Ok,
        Err(Error::AlreadyExists { .. }) => Seen::AlreadyExists,
        Err(Error::Precondition { .. }) => Seen::Precondition,
        Err(Error::PermissionDenied { .. }) => Seen::PermissionDenied,
        Err(Error::NotFound { .. }) => Seen::NotFound,
        Err(Error::Generic { .. }) => Seen::Generic,
        Err(error) => panic!("not in the table: {error}"),
    };
    (seen, count(&server, Op::Put))
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Create,
    Update,
    Overwrite,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Ok,
    AlreadyExists,
    Precondition,
    PermissionDenied,
    NotFound,
    Generic,
}

#[tokio::test]
async fn a_write_that_landed_is_reported_as_lost_when_its_answer_was_an_error() {
    for answer in [Answer::Status(500), Answer::Status(503), Answer::Drop] {
        assert_eq!(told(Mode::Create, Fault::Lose(answer), 1).await, (Seen::AlreadyExists, 2), "{answer:?}");
        assert_eq!(told(Mode::Update, Fault::Lose(answer), 1).await, (Seen::Precondition, 2), "{answer:?}");
    }
}

#[tokio::test]
async fn a_conflict_on_create_is_reported_as_exists_although_nobody_has_won() {
    let conflict = Fault::Refuse(Answer::Status(409));
    assert_eq!(told(Mode::Create, conflict, 1).await, (Seen::AlreadyExists, 1));
}

#[tokio::test]
async fn a_conflict_on_update_is_retried_and_in_the_end_not_called_a_precondition() {
    let conflict = Fault::Refuse(Answer::Status(409));
    assert_eq!(told(Mode::Update, conflict, 1).await, (Seen::Ok, 2));
    assert_eq!(told(Mode::Update, conflict, usize::MAX).await, (Seen::AlreadyExists, 4));
}

#[tokio::test]
async fn an_update_of_what_is_gone_is_a_precondition() {
    assert_eq!(told(Mode::Update, Fault::Refuse(Answer::Status(404)), 1).await, (Seen::Precondition, 1));
}

#[tokio::test]
async fn a_timeout_is_retried_only_where_a_repeat_does_no_harm() {
    let hang = Fault::Refuse(Answer::Hang);
    assert_eq!(told(Mode::Create, hang, 1).await, (Seen::Generic, 1));
    assert_eq!(told(Mode::Update, hang, 1).await, (Seen::Generic, 1));
    assert_eq!(told(Mode::Overwrite, hang, 1).await, (Seen::Ok, 2));
}

#[tokio::test]
async fn a_dropped_request_that_did_not_land_is_repeated() {
    let drop = Fault::Refuse(Answer::Drop);
    assert_eq!(told(Mode::Create, drop, 1).await, (Seen::Ok, 2));
    assert_eq!(told(Mode::Create, drop, usize::MAX).await, (Seen::Generic, 4));
}

#[tokio::test]
async fn what_no_retry_can_mend_is_not_retried() {
    assert_eq!(told(Mode::Create, Fault::Refuse(Answer::Status(403)), 1).await, (Seen::PermissionDenied, 1));
    assert_eq!(told(Mode::Create, Fault::Refuse(Answer::Status(404)), 1).await, (Seen::NotFound, 1));
}

#[tokio::test]
async fn without_retries_an_error_of_the_server_leaves_the_outcome_unknown() {
    let (server, _) = server().await;
    for fault in [Fault::Refuse(Answer::Status(500)), Fault::Lose(Answer::Status(500))] {
        server.clear_requests();
        server.faults().script(Rule::once(Op::Put, fault));
        let error = create(&client(&server), "a", "1").await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{error}");
        assert_eq!(count(&server, Op::Put), 1);
    }
    assert_eq!(server.object("a").unwrap(), "1", "and the second one landed");
}
