//! Each kind of damage, and each thing that can come in between.

use super::{contents, damages, found, look, repair};
use crate::{
    common::{key, request},
    processes::{MILLI, Process, SKEW, TTL, World, granted, held, lost, moving, record_name},
};
use leasehold::{
    Hour, Key,
    clock::Clock,
    decision::{Decided, Decision},
    fsck::{Damage, FsckOptions},
    sweep::SweepOptions,
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The longest that a lease can last, and the skew and the minute by which clocks may be off.
const BELIEF: Duration = Duration::from_millis(3_600_000 + 3_600 + 1_000);

async fn take(process: &Process, name: &str) -> leasehold::lease::Grant {
    granted(process.leases.acquire(&key(name), &request()).await)
}

#[tokio::test]
async fn a_store_in_good_order_is_clean_and_looking_changes_nothing() {
    let world = World::new();
    let process = world.process().await;
    take(&process, "held").await;
    let given_back = take(&process, "free").await;
    process.leases.release(&given_back).await.unwrap();
    let decisions = process.store.decisions();
    let _ = decisions.decide(decisions.begin(), Decision::Commit).await.unwrap();
    let before = contents(&world);

    let report = look(&process.store).await;
    assert!(report.is_clean() && report.findings.is_empty(), "{report:?}");
    assert_eq!((report.records, report.entries), (3, 3));
    assert_eq!(contents(&world), before);
    assert_eq!(repair(&process.store).await.findings, []);
    assert_eq!(contents(&world), before);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_only_a_repair_touches_it() {
    let world = World::new();
    let process = world.process().await;
    take(&process, "x").await;
    for (what, body) in damages(&world.record("x")) {
        world.objects.put_object(&record_name("x"), body);
        let before = contents(&world);
        let report = look(&world.process().await.store).await;
        assert_eq!(found(&report), [(Damage::Unreadable, "default/meta/x.pb")], "{what}");
        assert_eq!((report.open, report.failures, report.is_clean()), (1, 0, false), "{what}");
        assert_eq!(report.findings[0].key.as_deref(), Some("x"));
        assert_eq!(contents(&world), before, "{what}");
    }
}

#[tokio::test]
async fn a_repaired_records_key_has_a_higher_fence_and_a_copy_is_kept() {
    let bodies = {
        let world = World::new();
        take(&world.process().await, "x").await;
        damages(&world.record("x"))
    };
    for (what, damaged) in bodies {
        let world = World::new();
        let before = take(&world.process().await, "x").await;
        world.objects.put_object(&record_name("x"), damaged.clone());
        let operator = world.process().await;
        let report = repair(&operator.store).await;
        assert!(report.is_clean() && report.repaired == 1, "{what}: {report:?}");
        assert!(look(&operator.store).await.findings.is_empty(), "{what}");

        let aside: Vec<String> = world.objects.names().into_iter().filter(|name| name.contains("/.aside/")).collect();
        assert_eq!(aside.len(), 1, "{what}");
        assert!(aside[0].starts_with("default/.aside/20260101T003000") && aside[0].ends_with("/x.pb"), "{aside:?}");
        assert_eq!(world.objects.object(&aside[0]).unwrap().0, damaged, "{what}");

        // The key is not granted while a holder may believe in the lease that was in the record.
        let other = world.process().await;
        let no = held(other.leases.acquire(&key("x"), &request()).await);
        assert_eq!(no.by.unwrap().owner, "leasehold fsck", "{what}");
        world.clock.advance(2 * BELIEF);
        let after = take(&other, "x").await;
        assert!(after.fence() > before.fence(), "{what}");
    }
}

#[tokio::test]
async fn what_cannot_be_repaired_is_said_and_is_no_failure_of_the_store() {
    let world = World::new();
    // No fence is left below 2^53: those of 2256 are above it.
    world.clock.advance(Duration::from_secs(230 * 366 * 24 * 3600));
    let process = world.process().await;
    for name in ["x", "y"] {
        world.objects.put_object(&record_name(name), "nonsense");
    }
    let before = contents(&world);
    let report = repair(&process.store).await;
    assert_eq!((report.open, report.repaired, report.failures), (2, 0, 0), "{report:?}");
    for finding in &report.findings {
        let advice = finding.advice.as_deref().unwrap_or_default();
        assert!(advice.contains("could not be repaired") && advice.contains("no fence is left"), "{finding:?}");
    }
    assert_eq!(contents(&world), before);
}

#[tokio::test]
async fn a_holder_whose_record_was_repaired_is_the_only_one_to_believe_in_it() {
    let world = World::new();
    let (holder, other) = (world.process().await, world.process().await);
    let grant = take(&holder, "x").await;
    world.objects.put_object(&record_name("x"), "nonsense");
    assert_eq!(repair(&world.process().await.store).await.repaired, 1);
    while grant.is_valid() {
        held(other.leases.acquire(&key("x"), &request()).await);
        world.clock.advance(TTL / 7);
    }
    lost(holder.leases.renew(&grant).await);
    held(other.leases.acquire(&key("x"), &request()).await);
}

#[tokio::test]
async fn a_record_damaged_long_ago_is_free_right_after_its_repair_and_not_before() {
    for (after, open) in [(BELIEF - MILLI, false), (BELIEF, true)] {
        let world = World::new();
        take(&world.process().await, "x").await;
        world.objects.put_object(&record_name("x"), "nonsense");
        world.clock.advance(after);
        let report = repair(&world.process().await.store).await;
        let said = report.findings[0].repaired.as_ref().unwrap();
        assert_eq!(said.contains("open at once"), open, "{report:?}");
        let acquired = world.process().await.leases.acquire(&key("x"), &request()).await.unwrap();
        assert_eq!(acquired.granted().is_some(), open);
    }
}

#[tokio::test]
async fn the_caretaker_of_a_mended_key_is_in_the_index_and_is_swept_like_anybody() {
    let world = World::new();
    take(&world.process().await, "x").await;
    world.objects.put_object(&record_name("x"), "nonsense");
    let operator = world.process().await;
    repair(&operator.store).await;
    world.assert_indexed("x").await;
    world.clock.advance(Duration::from_secs(3 * 3600));
    let swept = operator.store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!((swept.of("lease").cleared, swept.failures), (1, 0), "{swept:?}");
    assert!(look(&operator.store).await.findings.is_empty());
}

#[tokio::test]
async fn an_answer_that_was_damaged_on_its_way_is_no_damage() {
    let world = World::new();
    let holder = world.process().await;
    let grant = take(&holder, "x").await;
    let before = contents(&world);
    world.objects.faults().script(Rule::once(Op::Get, Fault::Corrupt).on("/meta/"));
    let report = repair(&world.process().await.store).await;
    assert!(report.findings.is_empty() && report.is_clean(), "{report:?}");
    assert_eq!(world.objects.faults().injected().get("corrupt"), Some(&1));
    assert_eq!(contents(&world), before);
    let _ = holder.leases.renew(&grant).await.unwrap();
}

#[tokio::test]
async fn a_network_that_damages_every_answer_makes_the_repair_touch_nothing() {
    let world = World::new();
    let operator = world.process().await;
    take(&operator, "x").await;
    let before = contents(&world);
    world.objects.faults().script(Rule::always(Op::Get, Fault::Corrupt).on("/meta/"));
    let report = repair(&operator.store).await;
    assert!(!report.is_clean(), "{report:?}");
    let meta = |name: &&String| name.contains("/meta/");
    assert_eq!(contents(&world).iter().find(|(name, _)| meta(name)), before.iter().find(|(name, _)| meta(name)));
}

#[tokio::test]
async fn a_record_that_somebody_restores_during_its_repair_stays_as_it_was_restored() {
    let world = World::new();
    let holder = world.process().await;
    let grant = take(&holder, "x").await;
    let good = world.record("x");
    world.objects.put_object(&record_name("x"), "nonsense");
    // The new record is under way when the backup arrives.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(2))).on("/meta/"));
    let operator = world.process().await;
    let mut repairing = Box::pin(repair(&operator.store));
    crate::processes::start(&mut repairing).await;
    world.objects.put_object(&record_name("x"), good.clone());
    let report = moving(&[&world.clock], Duration::from_millis(100), repairing).await;
    assert!(report.is_clean() && report.repaired == 0, "{report:?}");
    assert_eq!(world.record("x"), good);
    crate::processes::renewed(holder.leases.renew(&grant).await);
}

#[tokio::test]
async fn of_two_repairs_at_once_one_puts_its_record_in_place_and_both_end_well() {
    let world = World::new();
    take(&world.process().await, "x").await;
    world.objects.put_object(&record_name("x"), "nonsense");
    let writes = Arc::new(AtomicU64::new(0));
    world.objects.set_observer({
        let writes = Arc::clone(&writes);
        Box::new(move |change| {
            writes.fetch_add(u64::from(change.name.contains("/meta/")), Ordering::SeqCst);
        })
    });
    let (one, two) = (world.process().await, world.process().await);
    let (first, second) = tokio::join!(repair(&one.store), repair(&two.store));
    assert!(first.is_clean() && second.is_clean(), "{first:?} {second:?}");
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    assert_eq!(first.repaired + second.repaired, 1);
}

#[tokio::test]
async fn a_repair_that_landed_and_whose_answer_was_lost_is_known_as_done() {
    let world = World::new();
    take(&world.process().await, "x").await;
    world.objects.put_object(&record_name("x"), "nonsense");
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    let operator = world.process().await;
    let report = moving(&[&world.clock], MILLI, repair(&operator.store)).await;
    assert!(report.is_clean() && report.repaired == 1, "{report:?}");
    assert_eq!(world.objects.names().iter().filter(|name| name.contains("/.aside/")).count(), 1);
}

#[tokio::test]
async fn where_no_copy_and_no_entry_can_be_written_the_record_stays_as_it_is() {
    for folder in ["/.aside/", "/.lease-index/", ".leasehold/repairs/"] {
        let world = World::new();
        take(&world.process().await, "x").await;
        world.objects.put_object(&record_name("x"), "nonsense");
        world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(500))).on(folder));
        let operator = world.process().await;
        let report = moving(&[&world.clock], MILLI, repair(&operator.store)).await;
        assert_eq!((report.failures, report.repaired), (1, 0), "{folder}: {report:?}");
        assert_eq!(world.record("x"), "nonsense", "{folder}");
        world.objects.faults().clear();
        assert_eq!(repair(&operator.store).await.repaired, 1, "{folder}");
    }
}

#[tokio::test]
async fn a_lease_without_its_entry_gets_it_back_and_is_swept() {
    let world = World::new();
    let process = world.process().await;
    let grant = take(&process, "x").await;
    let entry = format!("default/.lease-index/{}/x", Hour::of(grant.expires_at()).unwrap());
    let body = world.objects.object(&entry).unwrap().0;
    world.objects.delete_object(&entry);

    let report = look(&process.store).await;
    assert_eq!(found(&report), [(Damage::MissingEntry, entry.as_str())]);
    assert!(!report.is_clean());
    let report = repair(&process.store).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(world.objects.object(&entry).unwrap().0, body);
    crate::processes::renewed(process.leases.renew(&grant).await);
    world.clock.advance(Duration::from_secs(2 * 3600));
    let swept = process.store.sweeper().run_once(SweepOptions::new().op_delay(Duration::ZERO)).await.unwrap();
    assert_eq!((swept.of("lease").cleared, swept.entries_deleted), (1, 1));
}

#[tokio::test]
async fn a_lease_that_is_cleared_and_swept_while_it_is_looked_at_is_no_damage() {
    let world = World::new();
    let process = world.process().await;
    let grant = take(&process, "x").await;
    let entry = format!("default/.lease-index/{}/x", Hour::of(grant.expires_at()).unwrap());
    // The answer about the entry takes its time; the lease is given back and the entry removed meanwhile.
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(Duration::from_secs(1))).on(entry.clone()));
    let operator = world.process().await;
    let mut looking = Box::pin(look(&operator.store));
    crate::processes::start(&mut looking).await;
    process.leases.release(&grant).await.unwrap();
    world.objects.delete_object(&entry);
    let report = moving(&[&world.clock], Duration::from_millis(100), looking).await;
    assert!(report.findings.is_empty(), "{report:?}");
}

#[tokio::test]
async fn a_record_that_was_removed_is_made_again_with_a_fence_above_all_before() {
    let world = World::new();
    let holder = world.process().await;
    let before = take(&holder, "x").await;
    world.objects.delete_object(&record_name("x"));
    let operator = world.process().await;
    let report = look(&operator.store).await;
    assert_eq!(report.findings[0].damage, Damage::MissingRecord);
    assert!(!report.is_clean());
    assert!(repair(&operator.store).await.is_clean());
    assert!(look(&operator.store).await.findings.is_empty());
    let after = take(&operator, "x").await;
    assert!(after.fence() > before.fence());
    lost(holder.leases.renew(&before).await);
}

#[tokio::test]
async fn a_key_that_is_acquired_while_its_record_is_being_made_keeps_its_lease() {
    let world = World::new();
    let (operator, other) = (world.process().await, world.process().await);
    let hour = Hour::of(world.clock.wall()).unwrap();
    world.objects.put_object(&format!("default/.lease-index/{hour}/x"), "{}");
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(Duration::from_secs(2))).on("/meta/"));
    let mut repairing = Box::pin(repair(&operator.store));
    crate::processes::start(&mut repairing).await;
    let grant = take(&other, "x").await;
    let report = moving(&[&world.clock], Duration::from_millis(100), repairing).await;
    assert!(report.is_clean(), "{report:?}");
    crate::processes::renewed(other.leases.renew(&grant).await);
}

#[tokio::test]
async fn an_entry_of_an_hour_that_is_over_is_left_to_the_sweeper() {
    let world = World::new();
    let process = world.process().await;
    world.objects.put_object("default/.lease-index/2025010100/gone", "{}");
    let before = contents(&world);
    let report = repair(&process.store).await;
    assert!(report.is_clean() && report.harmless == 1, "{report:?}");
    assert_eq!(contents(&world), before);
}

#[tokio::test]
async fn names_that_are_none_of_ours_are_named_and_left_and_do_not_stop_anything() {
    let world = World::new();
    let process = world.process().await;
    take(&process, "x").await;
    let inside = [
        "default/meta/README",
        "default/meta/UPPER.pb",
        "default/meta/a/b.pb",
        "default/.lease-index/notes.txt",
        "default/.lease-index/9999999999/x",
        "default/.lease-index/2026010100/!zz",
        "default/other/thing",
        "default/beside",
        ".leasehold/whatever",
        ".leasehold/strange/x",
        ".txn-decisions/m/not-a-uuid",
        ".txn-decisions/e/2026010100/not-a-uuid",
    ];
    let beside = ["top-level", "logs/2026/app.log", ".hidden/x", "Upper/meta/x.pb"];
    inside.iter().chain(&beside).for_each(|name| world.objects.put_object(name, "?"));
    take(&process, "zzz").await;
    let before = contents(&world);
    let report = repair(&process.store).await;
    assert_eq!(report.found.get(&Damage::UnknownName), Some(&14), "{:?}", found(&report));
    assert_eq!(report.found.get(&Damage::OlderLayout), Some(&2), "records with names of an earlier version");
    assert_eq!((report.open, report.harmless, report.failures, report.repaired), (10, 6, 0, 0), "{report:?}");
    assert_eq!(contents(&world), before);
}

#[tokio::test]
async fn everything_is_walked_a_page_at_a_time() {
    let world = World::new();
    let process = world.process().await;
    let grant = take(&process, "x").await;
    process.leases.release(&grant).await.unwrap();
    let hour = Hour::of(world.clock.wall()).unwrap();
    for number in 0..2_500 {
        world.objects.put_object(&format!("default/meta/k-{number:04}.pb"), "?");
        world.objects.put_object(&format!("default/.lease-index/{hour}/k-{number:04}"), "{}");
    }
    let told = Arc::new(AtomicU64::new(0));
    let options = FsckOptions::new().progress({
        let told = Arc::clone(&told);
        move |report| told.store(report.records + report.entries, Ordering::SeqCst)
    });
    let report = process.store.fsck(options).await.unwrap();
    assert_eq!((report.records, report.entries), (2_501, 2_501));
    assert_eq!(report.found.get(&Damage::Unreadable), Some(&2_500));
    assert_eq!(told.load(Ordering::SeqCst), 5_002);
}

#[tokio::test]
async fn a_key_that_only_its_record_names_comes_back_if_the_record_still_says_it() {
    let world = World::new();
    let process = world.process().await;
    let long = Key::new("k".repeat(700)).unwrap();
    let grant = granted(process.leases.acquire(&long, &request()).await);
    let name = format!("default/meta/{}.pb", long.name());
    let body = world.objects.object(&name).unwrap().0;
    // Only the end is gone: the key stands before it.
    world.objects.put_object(&name, body.slice(..body.len() - 3));
    let operator = world.process().await;
    assert!(repair(&operator.store).await.is_clean());
    world.clock.advance(BELIEF + SKEW + MILLI);
    let again = granted(operator.leases.acquire(&long, &request()).await);
    assert!(again.fence() > grant.fence());

    world.objects.put_object(&name, "nothing is left");
    let operator = world.process().await;
    let report = repair(&operator.store).await;
    assert_eq!((report.open, report.repaired), (1, 0), "{report:?}");
    // An operator who knows the key can name it.
    let forced = operator.leases.force_release(&long, "it was damaged", "test").await.unwrap().unwrap();
    assert!(forced.aside.is_some() && forced.fence > again.fence(), "{forced:?}");
    let last = granted(world.process().await.leases.acquire(&long, &request()).await);
    assert!(last.fence() > forced.fence);
}

#[tokio::test]
async fn a_decision_that_cannot_be_read_is_left_and_one_without_its_entry_gets_it() {
    let world = World::new();
    let process = world.process().await;
    let decisions = process.store.decisions();
    let (damaged, unfiled) = (decisions.begin(), decisions.begin());
    for txn in [damaged, unfiled] {
        assert_eq!(decisions.decide(txn, Decision::Abort).await.unwrap(), Decided::Decision(Decision::Abort));
    }
    world.objects.put_object(&format!(".txn-decisions/m/{damaged}"), "?");
    let entry = |txn| {
        let end = format!("/{txn}");
        world.objects.names().into_iter().find(|name| name.starts_with(".txn-decisions/e/") && name.ends_with(&end))
    };
    world.objects.delete_object(&entry(unfiled).unwrap());
    let report = repair(&process.store).await;
    assert_eq!((report.open, report.repaired), (1, 1), "{report:?}");
    assert!(entry(unfiled).is_some());
    assert_eq!(world.objects.object(&format!(".txn-decisions/m/{damaged}")).unwrap().0, "?");
}

#[tokio::test]
async fn a_machine_with_a_wrong_clock_looks_and_repairs_nothing() {
    let world = World::new();
    let late = leasehold_testkit::TestClock::at(world.clock.wall().plus(Duration::from_secs(24 * 3600)));
    let operator = world.process_that_asks_the_time(&late).await;
    world.objects.put_object(&record_name("x"), "nonsense");
    assert_eq!(look(&operator.store).await.findings.iter().filter(|found| found.name.contains("meta/x")).count(), 1);
    let error = operator.store.fsck(FsckOptions::new().repair("test")).await.unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Clock);
    assert_eq!(world.record("x"), "nonsense");
}

#[tokio::test]
async fn what_a_later_version_may_have_written_is_left_to_it() {
    let world = World::new();
    let operator = world.process().await;
    take(&operator, "x").await;
    // Format 9, and nothing that this version understands.
    world.objects.put_object(&record_name("x"), "\u{8}\u{9}of another kind");
    let before = world.record("x");
    let report = repair(&world.process().await.store).await;
    assert_eq!((report.open, report.repaired), (1, 0), "{report:?}");
    assert!(report.findings[0].advice.as_ref().unwrap().contains("later version"), "{report:?}");
    assert_eq!(world.record("x"), before);
}

#[tokio::test]
async fn a_later_versions_decision_is_named_and_an_unreadable_one_is_a_failure() {
    let world = World::new();
    let operator = world.process().await;
    let name = format!(".txn-decisions/m/{}", operator.store.decisions().begin());
    world.objects.put_object(&name, r#"{"format":9}"#);
    let report = repair(&operator.store).await;
    assert_eq!(found(&report), [(Damage::LaterFormat, name.as_str())]);
    assert_eq!((report.open, report.repaired, report.failures), (0, 0, 0), "{report:?}");
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(403))).on(".txn-decisions/m/"));
    let report = look(&operator.store).await;
    assert_eq!((report.findings.len(), report.failures), (0, 1), "{report:?}");
}
