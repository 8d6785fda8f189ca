//! What `doctor` shows: what a store allows, and what that comes to.

use crate::{common::s3, processes::World};
use leasehold::{
    ErrorKind, Store,
    clock::Clock,
    store::{Check, Diagnosis, Verdict},
};
use leasehold_testkit::{Answer, Fault, FaultStore, Flaw, FlawedStore, Op, Rule, S3Server, TestClock};
use std::{sync::Arc, time::Duration};

async fn diagnose(objects: &FaultStore, clock: &TestClock) -> Diagnosis {
    let store = Store::builder().object_store(Arc::new(objects.clone())).lists_in_order();
    store.clock(Arc::new(clock.clone())).diagnose().await.unwrap()
}

/// The checks that worked, those that failed and those that were not tried.
fn checks(diagnosis: &Diagnosis) -> [Vec<&'static str>; 3] {
    let named = |wanted: fn(&Check) -> bool| {
        diagnosis.checks.iter().filter(|check| wanted(check)).map(|check| check.name).collect()
    };
    [named(|check| check.is_ok()), named(|check| check.error().is_some()), named(|check| check.result.is_none())]
}

#[tokio::test]
async fn a_good_store_is_safe_and_nothing_is_left_in_it() {
    let world = World::new();
    let found = diagnose(&world.objects, &world.clock).await;
    assert_eq!(found.verdict(), Verdict::Safe, "{found:?}");
    let [worked, failed, untried] = checks(&found);
    assert_eq!(worked, ["reach", "get", "put", "list", "delete", "conditions", "clock"]);
    assert!(failed.is_empty() && untried.is_empty(), "{found:?}");
    assert_eq!((found.skew, found.reads.is_some(), found.writes.is_some()), (Some(Duration::ZERO), true, true));
    assert!(found.requests > 0);
    let names = world.objects.names();
    assert!(names.iter().all(|name| name.starts_with(".leasehold/time-")) && !names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_unreachable_and_nothing_else_is_tried() {
    let world = World::new();
    for op in [Op::Get, Op::Put, Op::List, Op::Delete] {
        world.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(500))));
    }
    let found = diagnose(&world.objects, &world.clock).await;
    assert_eq!(found.verdict(), Verdict::Unreachable, "{found:?}");
    let [worked, failed, untried] = checks(&found);
    assert_eq!((worked.len(), failed, untried.len()), (0, vec!["reach"], 6), "{found:?}");
}

#[tokio::test]
async fn what_is_not_allowed_is_named_and_the_rest_is_tried() {
    for (op, denied, verdict) in [
        (Op::Get, vec!["get"], Verdict::Unusable),
        (Op::Put, vec!["put"], Verdict::Unusable),
        (Op::List, vec!["list"], Verdict::Untidy),
        (Op::Delete, vec!["delete"], Verdict::Untidy),
    ] {
        let world = World::new();
        world.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(403))));
        let found = diagnose(&world.objects, &world.clock).await;
        assert_eq!((found.verdict(), &checks(&found)[1]), (verdict, &denied), "{op:?}: {found:?}");
        assert_eq!(found.check(denied[0]).unwrap().error().unwrap().kind(), ErrorKind::Denied);
        let untried = if verdict == Verdict::Unusable { vec!["conditions"] } else { vec![] };
        assert_eq!(checks(&found)[2], untried, "{op:?}");
    }
}

#[tokio::test]
async fn a_wrong_clock_is_told_apart_from_a_wrong_store() {
    let world = World::new();
    let late = TestClock::at(world.clock.wall().plus(Duration::from_secs(180)));
    let found = diagnose(&world.objects, &late).await;
    assert_eq!((found.verdict(), &checks(&found)[1]), (Verdict::WrongClock, &vec!["clock"]), "{found:?}");
    assert_eq!(found.skew, Some(Duration::from_secs(180)));
}

#[tokio::test]
async fn a_store_that_breaks_conditions_is_unsafe_and_one_that_fails_them_is_not() {
    let world = World::new();
    let flawed = FlawedStore::new(Arc::new(world.objects.clone()), Flaw::IgnoresPreconditions);
    let store = Store::builder().object_store(Arc::new(flawed)).clock(Arc::new(world.clock.clone()));
    assert_eq!(store.diagnose().await.unwrap().verdict(), Verdict::Unsafe);

    let world = World::new();
    // Not the first write, which tries whether it may, and not those that are timed.
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).after(1 + 20));
    let found = diagnose(&world.objects, &world.clock).await;
    assert_eq!((found.verdict(), &checks(&found)[1]), (Verdict::Unusable, &vec!["conditions", "clock"]), "{found:?}");
}

#[tokio::test]
async fn a_store_that_does_not_tell_its_time_is_not_called_safe() {
    let world = World::new();
    let server = S3Server::start(Arc::new(world.clock.clone())).await.unwrap();
    assert_eq!(s3(&server, &world.clock).diagnose().await.unwrap().verdict(), Verdict::Safe);
    server.hide_date(true);
    let found = s3(&server, &world.clock).diagnose().await.unwrap();
    assert_ne!(found.verdict(), Verdict::Safe, "{found:?}");
    assert_eq!(checks(&found)[1], ["clock"]);
}
