//! Each kind of fault, told from the client's side and from the store's.

use super::*;
use crate::{Answer, Fault, Rule};
use futures_util::TryStreamExt;
use object_store::Error;

async fn listed(store: &AmazonS3) -> Vec<String> {
    store.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
}

#[tokio::test]
async fn a_refused_write_is_not_applied_whatever_the_client_hears() {
    let (server, _) = server().await;
    let store = client(&server);
    for (status, code) in [
        (400, "InvalidRequest"),
        (403, "AccessDenied"),
        (404, "NoSuchKey"),
        (409, "ConditionalRequestConflict"),
        (412, "PreconditionFailed"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "SlowDown"),
    ] {
        server.clear_requests();
        server.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(status))));
        let error = create(&store, "a", "1").await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(server.requests()[0].status, Some(status));
        assert_eq!(server.object("a"), None);
    }
}

#[tokio::test]
async fn a_dropped_connection_is_closed_after_the_request_and_before_any_answer() {
    let (server, _) = server().await;
    let store = client(&server);
    create(&store, "warm", "the connection").await.unwrap();
    server.clear_requests();
    server.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Drop)));
    let error = create(&store, "a", "1").await.unwrap_err();
    assert!(matches!(error, Error::Generic { .. }), "{error}");
    assert_eq!(server.object("a"), None);
    server.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)));
    create(&store, "a", "1").await.unwrap_err();
    assert_eq!(server.object("a").unwrap(), "1");
    assert_eq!(server.requests().iter().map(|seen| seen.status).collect::<Vec<_>>(), [None, None]);
}

#[tokio::test]
async fn a_lost_write_is_applied_with_its_condition() {
    let (server, _) = server().await;
    let store = client(&server);
    server.put_object("a", "theirs");
    server.faults().script(Rule::always(Op::Put, Fault::Lose(Answer::Status(500))));
    create(&store, "a", "mine").await.unwrap_err();
    create(&store, "b", "mine").await.unwrap_err();
    assert_eq!(server.object("a").unwrap(), "theirs");
    assert_eq!(server.object("b").unwrap(), "mine");
}

#[tokio::test]
async fn a_late_write_is_judged_when_it_lands() {
    let (server, clock) = server().await;
    let store = client(&server);
    let late = Fault::Late(Duration::from_secs(60), Answer::Status(503));
    server.faults().script(Rule::once(Op::Put, late).times(2));
    create(&store, "a", "mine").await.unwrap_err();
    create(&store, "b", "mine").await.unwrap_err();
    clock.wait_for_sleepers(2).await;
    assert!(server.names().is_empty());
    create(&store, "b", "theirs").await.unwrap();
    clock.advance(Duration::from_secs(60));
    until("the late writes have been judged", || clock.sleepers() == 0).await;
    assert_eq!(server.object("a").unwrap(), "mine");
    assert_eq!(server.object("b").unwrap(), "theirs");
}

#[tokio::test]
async fn a_request_delivered_twice_gets_the_second_answer() {
    let (server, _) = server().await;
    let store = client(&server);
    server.faults().script(Rule::once(Op::Put, Fault::Duplicate));
    let error = create(&store, "a", "1").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(server.object("a").unwrap(), "1");
    assert_eq!(count(&server, Op::Put), 1);
}

#[tokio::test]
async fn a_delayed_write_is_applied_and_answered_later() {
    let (server, clock) = server().await;
    let store = client(&server);
    server.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(9))));
    let delayed = tokio::spawn(async move { create(&store, "a", "1").await });
    clock.wait_for_sleepers(1).await;
    assert_eq!(server.object("a"), None);
    clock.advance(Duration::from_secs(9));
    delayed.await.unwrap().unwrap();
    assert_eq!(server.object("a").unwrap(), "1");
}

#[tokio::test]
async fn a_delayed_write_lands_even_if_its_client_has_hung_up() {
    let (server, clock) = server().await;
    let store = impatient_client(&server, 0);
    server.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(9))));
    create(&store, "a", "1").await.unwrap_err();
    assert_eq!(server.object("a"), None);
    clock.advance(Duration::from_secs(9));
    until("the write has landed", || server.object("a").is_some()).await;
}

#[tokio::test]
async fn a_listing_can_be_out_of_order_or_torn_or_stale() {
    let (server, _) = server().await;
    let store = client(&server);
    for name in ["a", "b", "c", "d"] {
        server.put_object(name, "");
    }
    for (fault, names) in [
        (Fault::Shuffle, &["b", "d", "a", "c"][..]),
        (Fault::Gap, &["b", "d"]),
        (Fault::Stale, &["a", "b", "c"]),
        (Fault::Corrupt, &["a", "b", "c", "d"]),
    ] {
        server.faults().script(Rule::once(Op::List, fault));
        assert_eq!(listed(&store).await, names, "{fault:?}");
        assert_eq!(listed(&store).await, ["a", "b", "c", "d"]);
    }
    store.delete(&Path::from("a")).await.unwrap();
    server.faults().script(Rule::once(Op::List, Fault::Stale));
    assert_eq!(listed(&store).await, ["a", "b", "c", "d"], "a deleted name is still listed");
}

#[tokio::test]
async fn a_corrupt_read_differs_in_one_bit_and_the_next_is_whole() {
    let (server, _) = server().await;
    let store = client(&server);
    server.put_object("a", "whole");
    server.faults().script(Rule::once(Op::Get, Fault::Corrupt));
    let corrupt = read(&store, "a").await.unwrap();
    let flipped: u32 = corrupt.iter().zip(b"whole").map(|(left, right)| (left ^ right).count_ones()).sum();
    assert_eq!((corrupt.len(), flipped), (5, 1));
    assert_eq!(read(&store, "a").await.unwrap(), "whole");
}

#[tokio::test]
async fn a_rule_finds_a_listing_by_its_prefix_and_a_bulk_delete_by_its_first_name() {
    let (server, _) = server().await;
    let store = client(&server);
    server.put_object("x/a", "");
    server.faults().script(Rule::always(Op::List, Fault::Gap).on("x/"));
    server.faults().script(Rule::always(Op::Delete, Fault::Refuse(Answer::Status(500))).on("x/a"));
    assert_eq!(listed(&store).await, ["x/a"]);
    assert!(store.list(Some(&Path::from("x"))).try_collect::<Vec<_>>().await.unwrap().is_empty());
    store.delete(&Path::from("x/b")).await.unwrap();
    store.delete(&Path::from("x/a")).await.unwrap_err();
    assert_eq!(server.names(), ["x/a"]);
}
