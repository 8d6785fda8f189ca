//! What the store does when it is right, and what each fault does to it.

use crate::{Answer, Applied, Fault, FaultStore, Op, Rates, Rule, SeededGenerator, TestClock};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use leasehold::{Clock, clock::Timestamp};
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult, Result, UpdateVersion, path::Path,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const SECOND: Duration = Duration::from_secs(1);

fn store() -> (FaultStore, TestClock) {
    let clock = TestClock::at(Timestamp::from_millis(1_767_225_600_000));
    (FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1))), clock)
}

fn path(name: &str) -> Path {
    Path::from(name)
}

async fn write(store: &FaultStore, name: &str, body: &'static str, mode: PutMode) -> Result<PutResult> {
    store.put_opts(&path(name), body.into(), mode.into()).await
}

async fn create(store: &FaultStore, name: &str, body: &'static str) -> Result<PutResult> {
    write(store, name, body, PutMode::Create).await
}

async fn update(store: &FaultStore, name: &str, body: &'static str, on: &PutResult) -> Result<PutResult> {
    write(store, name, body, PutMode::Update(on.clone().into())).await
}

async fn read(store: &FaultStore, name: &str) -> Result<Bytes> {
    store.get(&path(name)).await?.bytes().await
}

async fn list(store: &FaultStore, prefix: &str) -> Result<Vec<String>> {
    store.list(Some(&path(prefix))).map_ok(|meta| meta.location.to_string()).try_collect().await
}

fn body(store: &FaultStore, name: &str) -> Option<Bytes> {
    store.object(name).map(|(body, _)| body)
}

/// Lets spawned tasks run that need no more time.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn conditions_are_judged_as_on_s3() {
    let (store, _) = store();
    let one = create(&store, "a", "1").await.unwrap();
    assert!(matches!(create(&store, "a", "2").await, Err(Error::AlreadyExists { .. })));
    let two = update(&store, "a", "2", &one).await.unwrap();
    assert!(matches!(update(&store, "a", "3", &one).await, Err(Error::Precondition { .. })));
    assert!(matches!(update(&store, "b", "3", &two).await, Err(Error::Precondition { .. })));
    let no_tag = PutMode::Update(UpdateVersion { e_tag: None, version: None });
    assert!(matches!(write(&store, "a", "3", no_tag).await, Err(Error::Generic { .. })));
    assert_eq!(read(&store, "a").await.unwrap(), "2");
    assert!(matches!(read(&store, "b").await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_body_that_comes_back_brings_its_tag_back() {
    let (store, _) = store();
    let a = create(&store, "x", "A").await.unwrap();
    let b = update(&store, "x", "B", &a).await.unwrap();
    update(&store, "x", "A", &b).await.unwrap();
    assert!(update(&store, "x", "C", &a).await.is_ok(), "an old tag must match again, as on S3");
    assert_eq!(a.e_tag.unwrap(), "\"7fc56270e7a70fa81a5935b72eacbe29\"");
}

#[tokio::test]
async fn reads_can_be_conditional_partial_or_of_the_head_alone() {
    let (store, _) = store();
    let put = create(&store, "a", "0123456789").await.unwrap();
    let same = GetOptions { if_none_match: put.e_tag.clone(), ..Default::default() };
    assert!(matches!(store.get_opts(&path("a"), same).await, Err(Error::NotModified { .. })));
    let other = GetOptions { if_match: Some("\"x\"".into()), ..Default::default() };
    assert!(matches!(store.get_opts(&path("a"), other).await, Err(Error::Precondition { .. })));
    assert_eq!(store.get_range(&path("a"), 2..4).await.unwrap(), "23");
    assert_eq!(store.get_ranges(&path("a"), &[0..1, 8..99]).await.unwrap(), ["0", "89"]);
    assert!(store.get_range(&path("a"), 10..11).await.is_err());
    let head = store.head(&path("a")).await.unwrap();
    assert_eq!((head.size, head.e_tag), (10, put.e_tag));
}

#[tokio::test]
async fn objects_carry_the_stores_own_time() {
    let (store, clock) = store();
    store.set_offset_millis(-90_000);
    clock.advance(SECOND);
    create(&store, "a", "1").await.unwrap();
    let expected = clock.wall().minus(Duration::from_secs(90));
    assert_eq!(store.object("a").unwrap().1, expected);
    assert_eq!(store.time(), expected);
    assert_eq!(Timestamp::from(store.head(&path("a")).await.unwrap().last_modified), expected);
}

#[tokio::test]
async fn listings_are_in_order_by_whole_segments_and_over_many_pages() {
    let (store, _) = store();
    let mut names: Vec<_> = (0..2500).map(|n| format!("p/{n:05}")).collect();
    for name in names.iter().rev() {
        store.put_object(name, "x");
    }
    for other in ["p", "p-q/1", "o/1", "q/1"] {
        store.put_object(other, "x");
    }
    assert_eq!(list(&store, "p").await.unwrap(), names);
    let after = store.list_with_offset(Some(&path("p")), &path("p/02497"));
    let after: Vec<_> = after.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    assert_eq!(after, ["p/02498", "p/02499"]);
    let early: Vec<_> = store.list_with_offset(Some(&path("p")), &path("a")).try_collect().await.unwrap();
    assert_eq!(early.len(), 2500);
    assert_eq!(store.list_with_offset(Some(&path("p")), &path("q")).count().await, 0);
    names.extend(["o/1", "p", "p-q/1", "q/1"].map(String::from));
    names.sort();
    assert_eq!(list(&store, "").await.unwrap(), names);
    assert_eq!(list(&store, "none").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn every_page_is_a_request_made_when_it_is_asked_for() {
    let (store, _) = store();
    (0..2500).for_each(|n| store.put_object(&format!("p/{n:05}"), "x"));
    store.faults().script(Rule::once(Op::List, Fault::Refuse(Answer::Status(503))).after(1));
    let mut listing = store.list(Some(&path("p")));
    store.delete_object("p/00000");
    assert_eq!(listing.try_next().await.unwrap().unwrap().location, path("p/00001"));
    assert_eq!(listing.by_ref().take(999).filter(|meta| std::future::ready(meta.is_ok())).count().await, 999);
    assert!(listing.try_next().await.is_err());
}

#[tokio::test]
async fn a_listing_with_a_delimiter_tells_objects_from_folders() {
    let (store, _) = store();
    for name in ["n/meta/b", "n/meta/a", "n/x/1/2", "n/y", "m/z", "top"] {
        store.put_object(name, "x");
    }
    let listed = store.list_with_delimiter(Some(&path("n"))).await.unwrap();
    assert_eq!(listed.common_prefixes, [path("n/meta"), path("n/x")]);
    assert_eq!(listed.objects.iter().map(|meta| meta.location.as_ref()).collect::<Vec<_>>(), ["n/y"]);
    let root = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(root.common_prefixes, [path("m"), path("n")]);
    assert_eq!(root.objects.len(), 1);
}

#[tokio::test]
async fn deletes_copies_and_renames_work_and_multipart_is_not_there() {
    let (store, _) = store();
    store.put_object("a", "1");
    store.delete(&path("missing")).await.unwrap();
    store.copy(&path("a"), &path("b")).await.unwrap();
    assert!(store.copy(&path("missing"), &path("b")).await.is_err());
    assert!(matches!(store.copy_if_not_exists(&path("a"), &path("b")).await, Err(Error::AlreadyExists { .. })));
    store.rename(&path("b"), &path("c")).await.unwrap();
    assert_eq!(store.names(), ["a", "c"]);
    let bulk = ["c", "missing", "a"].map(|name| Ok(path(name)));
    let deleted: Vec<_> = store.delete_stream(stream::iter(bulk).boxed()).try_collect().await.unwrap();
    assert_eq!(deleted.len(), 3);
    assert_eq!(store.names(), [""; 0]);
    assert!(matches!(store.put_multipart(&path("a")).await, Err(Error::NotImplemented { .. })));
}

#[tokio::test]
async fn an_observer_hears_of_every_change_and_of_nothing_else() {
    let (store, clock) = store();
    let heard = Arc::new(Mutex::new(Vec::new()));
    store.set_observer(Box::new({
        let heard = heard.clone();
        move |applied: &Applied| heard.lock().unwrap().push(applied.clone())
    }));
    let one = create(&store, "a", "1").await.unwrap();
    let _ = create(&store, "a", "2").await;
    store.delete(&path("missing")).await.unwrap();
    store.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)));
    let _ = update(&store, "a", "3", &one).await;
    store.delete_object("a");
    let heard = heard.lock().unwrap();
    let short: Vec<_> = heard.iter().map(|a| (a.seq, a.op, a.name.as_str(), a.body.as_deref())).collect();
    let expected = [
        (1, Op::Put, "a", Some(b"1".as_slice())),
        (2, Op::Put, "a", Some(b"3".as_slice())),
        (3, Op::Delete, "a", None),
    ];
    assert_eq!(short, expected);
    assert!(heard.iter().all(|applied| applied.at == clock.wall()));
}

#[tokio::test]
async fn a_refused_request_is_not_applied_and_fails_as_on_s3() {
    type Kind = fn(&Error) -> bool;
    let exists: Kind = |error| matches!(error, Error::AlreadyExists { .. });
    let precondition: Kind = |error| matches!(error, Error::Precondition { .. });
    let denied: Kind = |error| matches!(error, Error::PermissionDenied { .. });
    let generic: Kind = |error| matches!(error, Error::Generic { .. });
    let missing: Kind = |error| matches!(error, Error::NotFound { .. });
    for (answer, of_create, of_update, of_read) in [
        (Answer::Status(412), exists, precondition, precondition),
        (Answer::Status(409), exists, exists, exists),
        (Answer::Status(404), missing, precondition, missing),
        (Answer::Status(403), denied, denied, denied),
        (Answer::Status(429), generic, generic, generic),
        (Answer::Status(500), generic, generic, generic),
        (Answer::Status(503), generic, generic, generic),
        (Answer::Drop, generic, generic, generic),
    ] {
        let (store, _) = store();
        let base = create(&store, "a", "1").await.unwrap();
        for op in [Op::Put, Op::Get, Op::List, Op::Delete] {
            store.faults().script(Rule::always(op, Fault::Refuse(answer)));
        }
        assert!(of_create(&create(&store, "b", "2").await.unwrap_err()), "{answer:?}");
        assert!(of_update(&update(&store, "a", "2", &base).await.unwrap_err()), "{answer:?}");
        assert!(of_read(&read(&store, "a").await.unwrap_err()), "{answer:?}");
        assert!(of_read(&list(&store, "").await.unwrap_err()), "{answer:?}");
        assert!(of_read(&store.list_with_delimiter(None).await.unwrap_err()), "{answer:?}");
        assert!(of_read(&store.delete(&path("a")).await.unwrap_err()), "{answer:?}");
        assert_eq!(store.names(), ["a"]);
        assert_eq!(body(&store, "a").unwrap(), "1");
    }
}

#[tokio::test]
async fn a_request_that_hangs_is_never_answered() {
    let (store, clock) = store();
    store.put_object("a", "1");
    for op in [Op::Put, Op::Get, Op::Delete] {
        store.faults().script(Rule::once(op, Fault::Refuse(Answer::Hang)));
    }
    let hanging = [
        tokio::spawn({
            let store = store.clone();
            async move { drop(create(&store, "b", "1").await) }
        }),
        tokio::spawn({
            let store = store.clone();
            async move { drop(read(&store, "a").await) }
        }),
        tokio::spawn({
            let store = store.clone();
            async move { drop(store.delete(&path("a")).await) }
        }),
    ];
    settle().await;
    clock.advance(Duration::from_secs(86_400));
    settle().await;
    assert!(hanging.iter().all(|request| !request.is_finished()));
    assert_eq!(store.faults().injected().get("refuse"), Some(&3));
    assert_eq!(store.names(), ["a"]);
    store.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)));
    assert!(create(&store, "c", "1").now_or_never().is_none());
    assert_eq!(store.names(), ["a", "c"]);
}

#[tokio::test]
async fn a_lost_answer_leaves_the_request_applied_and_so_does_one_that_breaks_off() {
    for fault in [Fault::Lose(Answer::Drop), Fault::Truncate] {
        let (store, _) = store();
        for op in [Op::Put, Op::Delete] {
            store.faults().script(Rule::once(op, fault));
        }
        assert!(matches!(create(&store, "a", "1").await, Err(Error::Generic { .. })));
        assert_eq!(body(&store, "a").unwrap(), "1");
        assert!(store.delete(&path("a")).await.is_err());
        assert_eq!(store.names(), [""; 0]);
    }
}

#[tokio::test]
async fn a_late_write_lands_after_its_answer_if_its_condition_holds_by_then() {
    let (store, clock) = store();
    let one = create(&store, "a", "1").await.unwrap();
    store.faults().script(Rule::once(Op::Put, Fault::Late(SECOND, Answer::Status(503))).times(2));
    assert!(create(&store, "b", "late").await.is_err());
    assert!(update(&store, "a", "late", &one).await.is_err());
    assert_eq!(store.names(), ["a"]);
    update(&store, "a", "2", &one).await.unwrap();
    // Moved before the tasks have run for the first time: the time counts from the request.
    clock.advance(SECOND - Duration::from_millis(1));
    settle().await;
    assert_eq!(store.names(), ["a"]);
    clock.advance(Duration::from_millis(1));
    settle().await;
    assert_eq!(body(&store, "b").unwrap(), "late");
    assert_eq!(store.object("b").unwrap().1, clock.wall());
    assert_eq!(body(&store, "a").unwrap(), "2", "its condition no longer held");
}

#[tokio::test]
async fn a_late_delete_removes_what_was_written_since() {
    let (store, clock) = store();
    store.put_object("a", "1");
    store.faults().script(Rule::once(Op::Delete, Fault::Late(SECOND, Answer::Drop)));
    assert!(store.delete(&path("a")).await.is_err());
    store.put_object("a", "2");
    clock.advance(SECOND);
    settle().await;
    assert_eq!(store.names(), [""; 0]);
}

#[tokio::test]
async fn a_duplicated_write_meets_itself() {
    let (store, _) = store();
    for op in [Op::Put, Op::Delete] {
        store.faults().script(Rule::always(op, Fault::Duplicate));
    }
    assert!(matches!(create(&store, "a", "1").await, Err(Error::AlreadyExists { .. })));
    let one = store.head(&path("a")).await.unwrap();
    let base = PutMode::Update(UpdateVersion { e_tag: one.e_tag, version: None });
    assert!(matches!(write(&store, "a", "2", base).await, Err(Error::Precondition { .. })));
    assert_eq!(body(&store, "a").unwrap(), "2");
    assert!(write(&store, "a", "3", PutMode::Overwrite).await.is_ok());
    store.delete(&path("a")).await.unwrap();
    assert_eq!(store.names(), [""; 0]);
}

#[tokio::test]
async fn a_delayed_request_is_applied_when_its_time_has_come() {
    let (store, clock) = store();
    for op in [Op::Put, Op::Get, Op::List, Op::Delete] {
        store.faults().script(Rule::always(op, Fault::Delay(SECOND)));
    }
    let writing = tokio::spawn({
        let store = store.clone();
        async move { create(&store, "a", "1").await }
    });
    clock.wait_for_sleepers(1).await;
    assert_eq!(store.names(), [""; 0]);
    clock.advance(SECOND);
    writing.await.unwrap().unwrap();
    assert_eq!(store.object("a").unwrap().1, clock.wall());
    let rest = tokio::spawn({
        let store = store.clone();
        async move { tokio::join!(read(&store, "a"), list(&store, "")) }
    });
    clock.wait_for_sleepers(2).await;
    clock.advance(SECOND);
    let (read, listed) = rest.await.unwrap();
    assert_eq!((read.unwrap(), listed.unwrap()), (Bytes::from("1"), vec!["a".to_owned()]));
}

#[tokio::test]
async fn a_shuffled_listing_is_whole_and_in_no_order() {
    let (store, _) = store();
    let names: Vec<_> = (0..9).map(|n| format!("p/{n}")).collect();
    names.iter().for_each(|name| store.put_object(name, "x"));
    store.faults().script(Rule::always(Op::List, Fault::Shuffle));
    for _ in 0..50 {
        let mut listed = list(&store, "p").await.unwrap();
        assert!(!listed.is_sorted());
        listed.sort();
        assert_eq!(listed, names);
    }
}

#[tokio::test]
async fn a_listing_with_a_gap_lacks_something_and_invents_nothing() {
    let (store, _) = store();
    let names: Vec<_> = (0..9).map(|n| format!("p/{n}")).collect();
    store.faults().script(Rule::always(Op::List, Fault::Gap));
    assert_eq!(list(&store, "p").await.unwrap(), [""; 0]);
    names.iter().for_each(|name| store.put_object(name, "x"));
    for _ in 0..50 {
        let listed = list(&store, "p").await.unwrap();
        assert!(listed.len() < names.len() && listed.is_sorted());
        assert!(listed.iter().all(|name| names.contains(name)));
    }
}

#[tokio::test]
async fn a_stale_listing_is_one_from_before_the_latest_writes() {
    let (store, _) = store();
    store.faults().script(Rule::always(Op::List, Fault::Stale));
    assert_eq!(list(&store, "").await.unwrap(), [""; 0]);
    store.put_object("a", "1");
    assert_eq!(list(&store, "").await.unwrap(), [""; 0]);
    for n in 0..30 {
        store.put_object(&format!("p/{n:02}"), "x");
    }
    for _ in 0..20 {
        let listed = list(&store, "p").await.unwrap();
        assert!((14..30).contains(&listed.len()) && listed.is_sorted(), "{listed:?}");
    }
    store.delete_object("a");
    assert!(list(&store, "").await.unwrap().contains(&"a".to_owned()));
}

#[tokio::test]
async fn a_corrupt_read_has_one_flipped_bit_and_leaves_the_object_alone() {
    let (store, _) = store();
    store.put_object("a", "hello");
    store.put_object("empty", "");
    store.faults().script(Rule::always(Op::Get, Fault::Corrupt));
    for _ in 0..50 {
        let corrupt = read(&store, "a").await.unwrap();
        assert_eq!(corrupt.iter().zip(b"hello").map(|(a, b)| (a ^ b).count_ones()).sum::<u32>(), 1);
    }
    assert_eq!(read(&store, "empty").await.unwrap(), "");
    assert_eq!(body(&store, "a").unwrap(), "hello");
}

#[tokio::test]
async fn the_same_seeds_give_the_same_history() {
    let run = || async {
        let (store, _) = store();
        let rates = Rates::none()
            .with(Fault::Lose(Answer::Drop), 200)
            .with(Fault::Refuse(Answer::Status(503)), 200)
            .with(Fault::Gap, 300)
            .with(Fault::Shuffle, 300);
        store.faults().roll(SeededGenerator::new(9), rates);
        let mut history = Vec::new();
        for n in 0..200 {
            let name = path(&format!("p/{}", n % 17));
            let put = store.put(&name, PutPayload::from(n.to_string()));
            history.push(format!("{:?}", put.await.map_err(|error| error.to_string())));
            history.push(format!("{:?}", list(&store, "p").await.map_err(|error| error.to_string())));
        }
        history
    };
    assert_eq!(run().await, run().await);
}

#[tokio::test]
async fn a_bulk_delete_is_one_request_that_fails_as_a_whole() {
    let (store, _) = store();
    store.put_object("a", "1");
    store.put_object("b", "1");
    store.faults().script(Rule::once(Op::Delete, Fault::Refuse(Answer::Status(503))).on("b"));
    let bulk = || stream::iter(["a", "b"].map(|name| Ok(path(name)))).boxed();
    let answers: Vec<_> = store.delete_stream(bulk()).collect().await;
    assert!(matches!(answers.as_slice(), [Err(Error::Generic { .. })]), "{answers:?}");
    assert_eq!(store.names(), ["a", "b"]);
    assert_eq!(store.delete_stream(bulk()).collect::<Vec<_>>().await.len(), 2);
}
