//! The ways in which a look-alike is unsafe.

use super::*;
use crate::Flaw;
use futures_util::future::join_all;
use object_store::Error;

#[tokio::test]
async fn a_store_that_ignores_preconditions_lets_everybody_win() {
    let (server, _) = server().await;
    let store = client(&server);
    server.break_rule(Flaw::IgnoresPreconditions);
    let first = create(&store, "a", "1").await.unwrap();
    create(&store, "a", "2").await.unwrap();
    update(&store, "a", "3", &first).await.unwrap();
    update(&store, "b", "3", &first).await.unwrap();
    assert_eq!(server.names(), ["a", "b"]);
}

async fn races_have_several_winners() {
    let (server, _) = server().await;
    server.break_rule(Flaw::ChecksThenWrites);
    let store = client(&server);
    let creates = join_all((0..8).map(|_| create(&store, "a", "1"))).await;
    let won: Vec<_> = creates.into_iter().filter_map(Result::ok).collect();
    assert!(won.len() > 1, "{won:?}");
    let updates = join_all(["2", "3", "4", "5"].map(|body| update(&store, "a", body, &won[0]))).await;
    assert!(updates.iter().filter(|update| update.is_ok()).count() > 1, "{updates:?}");
}

#[tokio::test]
async fn a_store_that_checks_and_then_writes_has_several_winners_of_a_race() {
    races_have_several_winners().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_checks_and_then_writes_has_several_winners_on_many_threads_too() {
    races_have_several_winners().await;
}

#[tokio::test]
async fn a_store_that_checks_and_then_writes_looks_sound_while_nobody_races() {
    let (server, _) = server().await;
    let store = client(&server);
    server.break_rule(Flaw::ChecksThenWrites);
    let first = create(&store, "a", "1").await.unwrap();
    assert!(matches!(create(&store, "a", "2").await, Err(Error::AlreadyExists { .. })));
    update(&store, "a", "2", &first).await.unwrap();
    assert!(matches!(update(&store, "a", "3", &first).await, Err(Error::Precondition { .. })));
}

#[tokio::test]
async fn a_store_that_updates_the_missing_creates_it() {
    let (server, _) = server().await;
    let store = client(&server);
    let first = create(&store, "a", "1").await.unwrap();
    server.break_rule(Flaw::UpdatesTheMissing);
    update(&store, "b", "2", &first).await.unwrap();
    assert_eq!(server.object("b").unwrap(), "2");
    assert!(matches!(update(&store, "b", "3", &first).await, Err(Error::Precondition { .. })));
}

#[tokio::test]
async fn a_store_with_stale_reads_shows_the_previous_version_once() {
    let (server, _) = server().await;
    let store = client(&server);
    server.break_rule(Flaw::StaleReads);
    let first = create(&store, "a", "1").await.unwrap();
    assert_eq!(read(&store, "a").await.unwrap(), "1");
    update(&store, "a", "2", &first).await.unwrap();
    assert_eq!(read(&store, "a").await.unwrap(), "1");
    assert_eq!(read(&store, "a").await.unwrap(), "2");
    assert_eq!(server.object("a").unwrap(), "2");
}
