//! Fenced objects: a write with a lower fence is refused, and a lost answer is told as written, refused or unknown.

use crate::common::{Bed, Memory};
use leasehold::{
    ErrorKind, Fence, Fenced,
    fenced::{MAX_BYTES, Put, REMEMBERED},
    fsck::{Damage, FsckOptions},
    store::RequestKind::{Get, Put as Write},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

async fn files(memory: &Memory, seed: u64) -> Fenced {
    memory.builder(seed).open().await.unwrap().fenced()
}

fn next_put(memory: &Memory, fault: Fault) {
    memory.store.faults().script(Rule::once(Op::Put, fault).on("/fenced/"));
}

async fn there(files: &Fenced) -> (Vec<u8>, u64) {
    let data = files.get("x").await.unwrap().expect("it was written");
    (data.bytes.to_vec(), data.fence.get())
}

fn written(put: leasehold::Result<Put>) -> u64 {
    let Ok(Put::Written(written)) = put else { panic!("{put:?}") };
    written.revision
}

fn refused(put: leasehold::Result<Put>) -> u64 {
    let Ok(Put::Refused(refused)) = put else { panic!("{put:?}") };
    refused.fence.get()
}

#[tokio::test]
async fn a_write_is_one_read_and_one_swap_and_a_refusal_one_read() {
    let bed = Bed::new().await;
    let files = bed.store.fenced();
    for (number, puts) in [(5, 1), (5, 1), (6, 1), (5, 0)] {
        let (put, made) = bed.counting(files.put("x", "data", fence(number))).await;
        assert_eq!((made.of(Write), made.of(Get), made.total()), (puts, 1, puts + 1), "{put:?}");
    }
    let (data, made) = bed.counting(files.get("x")).await;
    assert_eq!((data.unwrap().unwrap().fence, made.total()), (fence(6), 1));
}

#[tokio::test]
async fn a_write_that_landed_is_written_whatever_its_answer_was() {
    for answer in [Answer::Drop, Answer::Status(500), Answer::Status(412), Answer::Status(409)] {
        let memory = Memory::new();
        let files = files(&memory, 1).await;
        next_put(&memory, Fault::Lose(answer));
        assert_eq!(written(files.put("x", "created", fence(5)).await), 1);
        next_put(&memory, Fault::Lose(answer));
        assert_eq!(written(files.put("x", "updated", fence(6)).await), 2);
        assert_eq!(there(&files).await, (b"updated".to_vec(), 6));
    }
}

#[tokio::test]
async fn a_write_that_was_under_way_when_its_holder_paused_is_refused() {
    let memory = Memory::new();
    let (paused, newer) = (files(&memory, 1).await, files(&memory, 2).await);
    written(paused.put("x", "first", fence(5)).await);
    next_put(&memory, Fault::Delay(Duration::from_secs(2)));
    let late = tokio::spawn({
        let paused = paused.clone();
        async move { paused.put("x", "late", fence(5)).await }
    });
    memory.pass(Duration::from_millis(500)).await;
    assert_eq!(written(newer.put("x", "newer", fence(6)).await), 2);
    memory.pass(Duration::from_secs(5)).await;
    assert_eq!(refused(late.await.unwrap()), 6);
    assert_eq!(there(&newer).await, (b"newer".to_vec(), 6));
}

#[tokio::test]
async fn a_lost_answer_is_told_as_written_although_a_newer_holder_has_written_since() {
    let memory = Memory::new();
    let (ours, newer) = (files(&memory, 1).await, files(&memory, 2).await);
    // It lands, and the answer takes its time: a newer one comes in between.
    next_put(&memory, Fault::Slow(Duration::from_secs(10)));
    let put = tokio::spawn({
        let ours = ours.clone();
        async move { ours.put("x", "ours", fence(5)).await }
    });
    memory.pass(Duration::from_millis(100)).await;
    assert_eq!(there(&newer).await.1, 5);
    written(newer.put("x", "newer", fence(6)).await);
    memory.pass(Duration::from_secs(20)).await;
    written(put.await.unwrap());
    assert_eq!(there(&newer).await, (b"newer".to_vec(), 6));
}

#[tokio::test]
async fn a_write_does_not_come_back_after_a_later_one_of_its_holder() {
    let memory = Memory::new();
    let files = files(&memory, 1).await;
    next_put(&memory, Fault::Slow(Duration::from_secs(10)));
    let first = tokio::spawn({
        let files = files.clone();
        async move { files.put("x", "first", fence(5)).await }
    });
    memory.pass(Duration::from_millis(100)).await;
    written(files.put("x", "second", fence(5)).await);
    memory.pass(Duration::from_secs(20)).await;
    written(first.await.unwrap());
    assert_eq!(there(&files).await, (b"second".to_vec(), 5), "the first was seen before, and does not return");
}

#[tokio::test]
async fn where_too_many_others_have_written_since_it_is_unknown() {
    let memory = Memory::new();
    let files = files(&memory, 1).await;
    next_put(&memory, Fault::Slow(Duration::from_secs(10)));
    let first = tokio::spawn({
        let files = files.clone();
        async move { files.put("x", "first", fence(5)).await }
    });
    memory.pass(Duration::from_millis(100)).await;
    for _ in 0..=REMEMBERED {
        written(files.put("x", "later", fence(5)).await);
    }
    memory.pass(Duration::from_secs(20)).await;
    let put = first.await.unwrap();
    assert!(matches!(&put, Ok(Put::Unknown(error)) if error.kind() == ErrorKind::Unknown), "{put:?}");
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_repeating_it_settles_it() {
    let memory = Memory::new();
    let files = files(&memory, 1).await;
    memory.store.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)).on("/fenced/"));
    let put = tokio::spawn({
        let files = files.clone();
        async move { files.put("x", "data", fence(5)).await }
    });
    memory.pass(Duration::from_secs(60)).await;
    let put = put.await.unwrap();
    assert!(matches!(&put, Ok(Put::Unknown(error)) if error.kind() == ErrorKind::Unknown), "{put:?}");
    memory.store.faults().clear();
    assert_eq!(files.get("x").await.unwrap(), None);
    assert_eq!(written(files.put("x", "data", fence(5)).await), 1);
}

#[tokio::test]
async fn more_than_an_object_may_have_is_refused_before_anything_is_sent() {
    let memory = Memory::new();
    let files = files(&memory, 1).await;
    written(files.put("x", vec![7; MAX_BYTES], fence(5)).await);
    assert_eq!(files.get("x").await.unwrap().unwrap().bytes.len(), MAX_BYTES);
    let error = files.put("x", vec![7; MAX_BYTES + 1], fence(6)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(there(&files).await.1, 5);
}

#[tokio::test]
async fn a_damaged_object_is_neither_read_nor_replaced_and_fsck_names_it() {
    let memory = Memory::new();
    let store = memory.builder(1).open().await.unwrap();
    let files = store.fenced();
    written(files.put("x", "data", fence(5)).await);
    let (body, _) = memory.store.object("default/fenced/x").unwrap();
    memory.store.put_object("default/fenced/x", body.slice(..body.len() - 1));
    assert_eq!(files.get("x").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(files.put("x", "more", fence(6)).await.unwrap_err().kind(), ErrorKind::Corrupt);
    // What was copied to another path is that of its own path.
    memory.store.put_object("default/fenced/y", body);
    assert_eq!(files.get("y").await.unwrap_err().kind(), ErrorKind::Corrupt);
    let report = store.fsck(FsckOptions::new()).await.unwrap();
    let found: Vec<_> = report.findings.iter().map(|found| (found.damage, found.name.as_str())).collect();
    assert_eq!(found, [(Damage::Unreadable, "default/fenced/x"), (Damage::Unreadable, "default/fenced/y")]);
}
