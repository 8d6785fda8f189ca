//! A lease is taken away by force, for a reason that is kept.

use crate::{
    common::{key, request},
    processes::{MILLI, World, granted, lost, moving, record_name, start},
};
use leasehold::{ErrorKind, clock::Clock};
use leasehold_testkit::{Answer, Fault, Op, Rule, TestClock};
use std::time::Duration;

#[tokio::test]
async fn a_lease_taken_away_is_lost_to_its_holder_and_the_next_fence_is_higher() {
    let world = World::new();
    let (holder, operator) = (world.process().await, world.process().await);
    let grant = granted(holder.leases.acquire(&key("x"), &request()).await);
    let forced = operator.leases.force_release(&key("x"), "its host burnt down", "alice").await.unwrap().unwrap();
    assert_eq!(forced.taken_from.as_ref().unwrap().lease_id, grant.lease_id());
    assert!(forced.fence > grant.fence());
    lost(holder.leases.renew(&grant).await);
    let next = granted(operator.leases.acquire(&key("x"), &request()).await);
    assert!(next.fence() > forced.fence);

    let (body, _) = world.objects.object(&forced.recorded).unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    assert!(forced.recorded.starts_with(".leasehold/repairs/20260101T0030"), "{}", forced.recorded);
    for said in ["its host burnt down", "alice", "release_forced", "\"key\": \"x\"", "\"namespace\": \"default\""] {
        assert!(text.contains(said), "{text}");
    }
}

#[tokio::test]
async fn nothing_is_taken_from_nobody_and_nothing_without_a_reason() {
    let world = World::new();
    let process = world.process().await;
    assert!(process.leases.force_release(&key("x"), "why not", "test").await.unwrap().is_none());
    let grant = granted(process.leases.acquire(&key("x"), &request()).await);
    let error = process.leases.force_release(&key("x"), " ", "test").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    crate::processes::renewed(process.leases.renew(&grant).await);
    process.leases.release(&grant).await.unwrap();
    assert!(process.leases.force_release(&key("x"), "why not", "test").await.unwrap().is_none());
}

#[tokio::test]
async fn a_lease_that_is_renewed_meanwhile_is_taken_away_all_the_same() {
    let world = World::new();
    let (holder, operator) = (world.process().await, world.process().await);
    let grant = granted(holder.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(2))).on("/meta/"));
    let (name, leases) = (key("x"), &operator.leases);
    let mut forcing = Box::pin(leases.force_release(&name, "it must go", "test"));
    start(&mut forcing).await;
    let renewed = crate::processes::renewed(holder.leases.renew(&grant).await);
    let forced = moving(&[&world.clock], Duration::from_millis(100), forcing).await.unwrap();
    assert!(forced.is_some());
    lost(holder.leases.renew(&renewed).await);
}

#[tokio::test]
async fn whoever_was_granted_the_key_meanwhile_keeps_it() {
    let world = World::new();
    let (holder, operator, next) = (world.process().await, world.process().await, world.process().await);
    let grant = granted(holder.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(2))).on("/meta/"));
    let (name, leases) = (key("x"), &operator.leases);
    let mut forcing = Box::pin(leases.force_release(&name, "it must go", "test"));
    start(&mut forcing).await;
    holder.leases.release(&grant).await.unwrap();
    let innocent = granted(next.leases.acquire(&key("x"), &request()).await);
    let forced = moving(&[&world.clock], Duration::from_millis(100), forcing).await.unwrap();
    assert!(forced.is_none(), "{forced:?}");
    crate::processes::renewed(next.leases.renew(&innocent).await);
}

#[tokio::test]
async fn where_the_reason_cannot_be_kept_nothing_is_taken_away() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(500))).on(".leasehold/repairs/"));
    let name = key("x");
    let error =
        moving(&[&world.clock], MILLI, process.leases.force_release(&name, "it must go", "test")).await.unwrap_err();
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    crate::processes::renewed(process.leases.renew(&grant).await);
}

#[tokio::test]
async fn a_reason_that_is_written_at_the_second_try_is_kept_and_the_lease_taken_away() {
    for fault in [Fault::Refuse(Answer::Status(500)), Fault::Lose(Answer::Drop)] {
        let world = World::new();
        let process = world.process().await;
        granted(process.leases.acquire(&key("x"), &request()).await);
        world.objects.faults().script(Rule::once(Op::Put, fault).on(".leasehold/repairs/"));
        let name = key("x");
        let forced = moving(&[&world.clock], MILLI, process.leases.force_release(&name, "it must go", "test")).await;
        assert!(world.objects.object(&forced.unwrap().unwrap().recorded).is_some());
        assert_eq!(world.holder("x").await, None);
    }
}

#[tokio::test]
async fn an_answer_that_was_lost_is_known_as_done() {
    let world = World::new();
    let process = world.process().await;
    granted(process.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    let name = key("x");
    let forced = moving(&[&world.clock], MILLI, process.leases.force_release(&name, "it must go", "test")).await;
    assert!(forced.unwrap().is_some());
    assert_eq!(world.holder("x").await, None);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_moved_aside_and_its_key_is_free_at_once() {
    let world = World::new();
    let before = granted(world.process().await.leases.acquire(&key("x"), &request()).await);
    world.objects.put_object(&record_name("x"), "nonsense");
    let operator = world.process().await;
    let error = operator.leases.acquire(&key("x"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let forced = operator.leases.force_release(&key("x"), "damaged, and nobody runs", "test").await.unwrap().unwrap();
    assert_eq!(world.objects.object(&forced.aside.unwrap()).unwrap().0, "nonsense");
    let after = granted(operator.leases.acquire(&key("x"), &request()).await);
    assert!(after.fence() > forced.fence && forced.fence > before.fence());
}

#[tokio::test]
async fn a_machine_with_a_wrong_clock_takes_nothing_away() {
    let world = World::new();
    let late = TestClock::at(world.clock.wall().plus(Duration::from_secs(24 * 3600)));
    let operator = world.process_that_asks_the_time(&late).await;
    let holder = world.process().await;
    let grant = granted(holder.leases.acquire(&key("x"), &request()).await);
    let error = operator.leases.force_release(&key("x"), "it must go", "test").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock);
    crate::processes::renewed(holder.leases.renew(&grant).await);
}
