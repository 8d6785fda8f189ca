//! A watch tells of every change that it can see, soon, and for few reads.

use crate::{
    common::{key, noon, request},
    memory::{Memory, SECOND, lock, settle},
};
use futures_util::StreamExt;
use leasehold::{ErrorKind, Result, lease::Status};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Watches from a task of its own.
fn watch(bed: &Memory, name: &str) -> UnboundedReceiver<Result<Status>> {
    let (sender, receiver) = unbounded_channel();
    let mut changes = bed.leases.watch(&key(name));
    tokio::spawn(async move {
        while let Some(change) = changes.next().await {
            if sender.send(change).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The next change, if it was told of by now.
async fn told(changes: &mut UnboundedReceiver<Result<Status>>) -> Option<Result<Status>> {
    settle().await;
    changes.try_recv().ok()
}

#[tokio::test]
async fn a_watch_begins_with_what_there_is_and_tells_every_change() {
    let bed = Memory::new().await;
    let others = bed.other().await;
    let mut changes = watch(&bed, "a");
    let first = told(&mut changes).await.unwrap().unwrap();
    assert_eq!((first.holder, first.last_fence), (None, None));
    let guard = lock(&others, "a", &request()).await;
    bed.pass(3, SECOND).await;
    let granted = told(&mut changes).await.unwrap().unwrap().holder.unwrap();
    assert_eq!((granted.fence, granted.expires_at), (guard.fence(), noon().plus(30 * SECOND)));
    bed.pass(10, SECOND).await;
    let renewed = told(&mut changes).await.unwrap().unwrap().holder.unwrap();
    assert_eq!((renewed.fence, renewed.expires_at), (guard.fence(), noon().plus(40 * SECOND)));
    guard.release().await.unwrap();
    bed.pass(3, SECOND).await;
    let freed = told(&mut changes).await.unwrap().unwrap();
    assert_eq!((freed.holder, freed.last_fence), (None, Some(granted.fence)));
    bed.pass(60, SECOND).await;
    assert!(told(&mut changes).await.is_none(), "nothing has changed");
}

#[tokio::test]
async fn a_lease_that_runs_out_is_told_of_when_it_has_ended_and_not_before() {
    let bed = Memory::new().await;
    let _ = bed.other().await.acquire(&key("a"), &request()).await.unwrap();
    let mut changes = watch(&bed, "a");
    assert!(told(&mut changes).await.unwrap().unwrap().holder.is_some());
    bed.pass(30, SECOND).await;
    bed.pass(10, SECOND / 10).await;
    assert!(told(&mut changes).await.is_none(), "others may not have it yet");
    bed.pass(20, SECOND / 10).await;
    let ended = told(&mut changes).await.unwrap().unwrap();
    assert!(ended.holder.is_none(), "{ended:?}");
    assert!(told(&mut changes).await.is_none());
}

#[tokio::test]
async fn a_watch_reads_less_and_less_often_and_is_quick_again_after_a_change() {
    let bed = Memory::new().await;
    let mut changes = watch(&bed, "a");
    settle().await;
    let reads = async |steps: u32| {
        let before = bed.gets();
        bed.pass(steps * 20, SECOND / 20).await;
        bed.gets() - before
    };
    let (quick, _) = (reads(1).await, reads(20).await);
    let slow = reads(60).await;
    assert!((3..=20).contains(&quick), "{quick} reads in the first second");
    assert!((30..=60).contains(&slow), "{slow} reads in a minute");
    let others = bed.other().await;
    let grant = others.acquire(&key("a"), &request()).await.unwrap().granted().unwrap();
    bed.pass(40, SECOND / 20).await;
    while told(&mut changes).await.is_some() {}
    others.release(&grant).await.unwrap();
    let freed = loop {
        bed.pass(1, SECOND / 20).await;
        if let Some(change) = told(&mut changes).await {
            break change.unwrap();
        }
    };
    assert!(freed.holder.is_none());
    let after = reads(1).await;
    assert!(after >= 3, "{after} reads in a second after a change");
}

#[tokio::test]
async fn a_watch_only_reads_and_is_no_activity() {
    let bed = Memory::new().await;
    let _ = bed.other().await.acquire(&key("a"), &request()).await.unwrap();
    let (before, idle) = (bed.store.requests(), bed.store.idle_for());
    let mut changes = watch(&bed, "a");
    bed.pass(60, SECOND).await;
    assert!(told(&mut changes).await.is_some());
    let made = bed.store.requests().since(&before);
    assert_eq!(made.total(), made.of(leasehold::store::RequestKind::Get), "{made:?}");
    assert_eq!(bed.store.idle_for(), idle + 60 * SECOND);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_told_of_once_and_asked_more_slowly() {
    let bed = Memory::new().await;
    let mut changes = watch(&bed, "a");
    assert!(told(&mut changes).await.unwrap().is_ok());
    bed.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))));
    bed.pass(30, SECOND).await;
    assert_eq!(told(&mut changes).await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    let before = bed.gets();
    bed.pass(120, SECOND).await;
    let looks = (bed.gets() - before) / 3;
    assert!((5..=16).contains(&looks), "{looks} looks, of three tries each, in two minutes");
    assert!(told(&mut changes).await.is_none(), "told already");
    bed.objects.faults().clear();
    bed.pass(20, SECOND).await;
    assert!(told(&mut changes).await.unwrap().is_ok(), "what there is, now that the store answers");
    let guard = bed.lock("a", &request()).await;
    bed.pass(3, SECOND).await;
    assert_eq!(told(&mut changes).await.unwrap().unwrap().holder.unwrap().fence, guard.fence());
}

#[tokio::test]
async fn an_error_that_does_not_pass_ends_the_watch() {
    let bed = Memory::new().await;
    let mut changes = bed.leases.watch(&key("a"));
    bed.objects.put_object("default/meta/a.pb", "garbage");
    assert_eq!(changes.next().await.unwrap().unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(changes.next().await.is_none());
}
