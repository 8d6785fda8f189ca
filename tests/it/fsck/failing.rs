//! A store that fails while it is looked at is not damaged, and a repair goes on when it is back.

use super::{found, look, repair};
use crate::{
    common::{key, request},
    processes::{MILLI, World, granted, lost, moving, record_name, renewed},
};
use leasehold::{Clock, ErrorKind, fsck::Damage};
use leasehold_testkit::{Answer, Fault, Op, Rule};

const DENIED: Fault = Fault::Refuse(Answer::Status(403));
const FAILED: Fault = Fault::Refuse(Answer::Status(500));

/// A world with a record that cannot be read.
async fn damaged() -> World {
    let world = World::new();
    granted(world.process().await.leases.acquire(&key("x"), &request()).await);
    world.objects.put_object(&record_name("x"), "nonsense");
    world
}

#[tokio::test]
async fn a_record_that_may_not_be_read_is_a_failure_and_no_damage() {
    let world = World::new();
    let operator = world.process().await;
    granted(operator.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::always(Op::Get, DENIED).on("/meta/"));
    let report = look(&operator.store).await;
    assert_eq!((report.findings.len(), report.failures), (0, 2), "for itself, and for its entry: {report:?}");
}

/// What cannot be read is read again, and before anything is said of it twice more.
#[tokio::test]
async fn damage_that_cannot_be_looked_at_a_second_time_is_a_failure() {
    let world = damaged().await;
    let operator = world.process().await;
    world.objects.faults().script(Rule::once(Op::Get, DENIED).on("/meta/").after(2));
    let report = look(&operator.store).await;
    assert_eq!((report.findings.len(), report.failures), (0, 1), "{report:?}");
}

#[tokio::test]
async fn a_copy_that_cannot_be_put_aside_is_tried_thrice_and_nothing_is_repaired() {
    let world = damaged().await;
    let operator = world.process().await;
    world.objects.faults().script(Rule::always(Op::Put, FAILED).on("/.aside/"));
    let began = world.clock.wall();
    let report = moving(&[&world.clock], MILLI, repair(&operator.store)).await;
    assert_eq!((report.repaired, report.failures), (0, 1), "{report:?}");
    assert_eq!(world.objects.faults().injected().values().sum::<u64>(), 3);
    let took = world.clock.wall().since(began);
    assert!(took <= 55 * MILLI, "the second at once, the third after a twentieth of a second: {took:?}");
    assert_eq!(world.record("x"), "nonsense");
}

#[tokio::test]
async fn damage_that_is_gone_when_it_is_looked_at_again_is_none() {
    let world = damaged().await;
    let operator = world.process().await;
    world
        .objects
        .faults()
        .script(Rule::once(Op::Get, Fault::Refuse(Answer::Status(404))).on("/meta/").after(2).times(2));
    let report = look(&operator.store).await;
    assert_eq!((report.findings.len(), report.failures), (0, 0), "{report:?}");
}

#[tokio::test]
async fn a_record_in_the_place_of_another_is_damage() {
    let world = World::new();
    let operator = world.process().await;
    granted(operator.leases.acquire(&key("x"), &request()).await);
    granted(operator.leases.acquire(&key("y"), &request()).await);
    world.objects.put_object(&record_name("x"), world.record("y"));
    let report = look(&operator.store).await;
    assert_eq!(found(&report), [(Damage::Unreadable, "default/meta/x.pb")]);
    assert!(report.findings[0].detail.contains("another key"), "{report:?}");
    assert_eq!(repair(&world.process().await.store).await.repaired, 1);
}

#[tokio::test]
async fn a_store_that_fails_for_a_while_does_not_keep_a_record_from_being_mended() {
    let world = damaged().await;
    let operator = world.process().await;
    world.objects.faults().script(Rule::once(Op::Put, FAILED).on("/meta/").times(3));
    let report = moving(&[&world.clock], MILLI, repair(&operator.store)).await;
    assert!(report.is_clean() && report.repaired == 1, "{report:?}");
}

#[tokio::test]
async fn a_store_that_goes_on_failing_leaves_the_record_as_it_is() {
    for fault in [DENIED, FAILED] {
        let world = damaged().await;
        let operator = world.process().await;
        world.objects.faults().script(Rule::always(Op::Put, fault).on("/meta/"));
        let report = moving(&[&world.clock], MILLI, repair(&operator.store)).await;
        assert_eq!((report.repaired, report.failures), (0, 1), "{fault:?}: {report:?}");
        assert_eq!(world.record("x"), "nonsense", "{fault:?}");
    }
}

/// Or its holder would take the new record for an old one that came back.
#[tokio::test]
async fn a_mended_record_counts_its_writes_on_where_the_old_one_still_says_them() {
    let world = World::new();
    let holder = world.process().await;
    let mut grant = granted(holder.leases.acquire(&key("x"), &request()).await);
    for _ in 0..5 {
        grant = renewed(holder.leases.renew(&grant).await);
    }
    let body = world.record("x");
    world.objects.put_object(&record_name("x"), body.slice(..body.len() - 3));
    assert_eq!(repair(&world.process().await.store).await.repaired, 1);
    lost(holder.leases.renew(&grant).await);
}

#[tokio::test]
async fn nothing_is_taken_away_by_force_from_a_record_that_may_not_be_read() {
    let world = World::new();
    let operator = world.process().await;
    let grant = granted(operator.leases.acquire(&key("x"), &request()).await);
    world.objects.faults().script(Rule::once(Op::Get, DENIED).on("/meta/"));
    let error = operator.leases.force_release(&key("x"), "it must go", "test").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    renewed(operator.leases.renew(&grant).await);
}
