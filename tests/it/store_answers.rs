//! Whatever a store answers, a lease is granted once, is never called held by its own holder, and lasts for as long as
//! it was last known to last.

mod damage;
mod slow;

use crate::{
    common::{Bed, key, noon, request, secs},
    processes::{
        ENDED, MILLI, Process, TTL, World, granted, held, lost, moving, pass, record_name, renewed, settle, start,
    },
};
use leasehold::{
    ErrorKind,
    clock::{Clock, Timestamp},
    lease::{Guard, Locked, Request},
    store::{AnswerKind, RequestKind},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

const RECORD: &str = "/meta/";
const INDEX: &str = ".lease-index";

/// What a client can be told of a write that landed.
const LOST_ANSWERS: [Answer; 6] =
    [Answer::Status(500), Answer::Status(503), Answer::Status(409), Answer::Status(412), Answer::Drop, Answer::Hang];

fn next_put(world: &World, fault: Fault, name: &str) {
    world.objects.faults().script(Rule::once(Op::Put, fault).on(name));
}

async fn guarded(process: &Process, request: &Request) -> Guard {
    match process.leases.lock_within(&key("a"), request, Duration::ZERO).await.unwrap() {
        Locked::Granted(guard) => guard,
        Locked::Held(held) => panic!("{held:?}"),
    }
}

/// The grant of this process is the one that the store has, and the only one.
async fn assert_holds(world: &World, grant: &leasehold::lease::Grant) {
    let holder = world.holder("a").await.expect("somebody holds it");
    assert_eq!((holder.lease_id, holder.fence), (grant.lease_id(), grant.fence()));
    assert_eq!(holder.expires_at, grant.expires_at());
    assert!(grant.is_valid());
}

// Row 1 and row 7: it landed, and the answer is lost.

#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_granted_once() {
    for answer in LOST_ANSWERS {
        for taking_over in [false, true] {
            let world = World::new();
            let process = world.process().await;
            if taking_over {
                granted(world.process().await.leases.acquire(&key("a"), &request()).await);
                world.clock.advance(ENDED);
            }
            let writes = count_records(&world);
            next_put(&world, Fault::Lose(answer), RECORD);
            let run = async { process.leases.acquire(&key("a"), &request()).await };
            let grant = granted(moving(&[&world.clock], MILLI * 100, run).await);
            assert_eq!(writes.lock().unwrap().len(), 1, "{answer:?}: it is recognised and not written again");
            assert_holds(&world, &grant).await;
            renewed(process.leases.renew(&grant).await);
        }
    }
}

#[tokio::test]
async fn belief_in_a_grant_whose_answer_was_lost_counts_from_before_it_was_sent() {
    let world = World::new();
    let process = world.process().await;
    next_put(&world, Fault::Lose(Answer::Hang), RECORD);
    let run = async { process.leases.acquire(&key("a"), &request()).await };
    let grant = granted(moving(&[&world.clock], MILLI * 100, run).await);
    assert_eq!(grant.expires_at(), noon().plus(TTL));
    assert!(grant.time_left() <= TTL - secs(5), "{:?}", grant.time_left());
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_is_a_renewal() {
    for answer in LOST_ANSWERS {
        let world = World::new();
        let process = world.process().await;
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        world.clock.advance(secs(10));
        next_put(&world, Fault::Lose(answer), RECORD);
        let again = renewed(moving(&[&world.clock], MILLI * 100, process.leases.renew(&grant)).await);
        assert_eq!(again.expires_at(), noon().plus(secs(40)), "by the readings of the attempt that landed");
        assert_holds(&world, &again).await;
    }
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_a_release() {
    for answer in LOST_ANSWERS {
        let world = World::new();
        let process = world.process().await;
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        next_put(&world, Fault::Lose(answer), RECORD);
        moving(&[&world.clock], MILLI * 100, process.leases.release(&grant)).await.unwrap();
        assert_eq!(world.holder("a").await, None);
        process.leases.release(&grant).await.unwrap();
    }
}

// Row 2: it did not land, and the answer is lost.

#[tokio::test]
async fn an_acquire_that_did_not_land_is_tried_again_and_granted_once() {
    for answer in LOST_ANSWERS {
        let world = World::new();
        let process = world.process().await;
        let writes = count_records(&world);
        next_put(&world, Fault::Refuse(answer), RECORD);
        let run = async { process.leases.acquire(&key("a"), &request()).await };
        let grant = granted(moving(&[&world.clock], MILLI * 100, run).await);
        assert_eq!(writes.lock().unwrap().len(), 1);
        assert_holds(&world, &grant).await;
    }
}

#[tokio::test]
async fn a_renewal_whose_fate_is_unknown_keeps_the_old_deadline() {
    for landed in [false, true] {
        let world = World::new();
        let process = world.process().await;
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        world.clock.advance(secs(10));
        let faults = world.objects.faults();
        let fault = if landed { Fault::Lose(Answer::Drop) } else { Fault::Refuse(Answer::Drop) };
        faults.script(Rule::once(Op::Put, fault));
        faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)));
        faults.script(Rule::always(Op::Get, Fault::Refuse(Answer::Drop)));
        let error = moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        faults.clear();
        // Neither earlier nor later for it.
        world.clock.advance(grant.time_left() - MILLI);
        assert!(grant.is_valid());
        world.clock.advance(MILLI);
        assert!(!grant.is_valid());
        assert_eq!(world.clock.wall(), noon().plus(TTL));
        lost(process.leases.renew(&grant).await);
    }
}

#[tokio::test]
async fn a_repeated_request_whose_renewal_is_in_doubt_is_not_held_by_itself() {
    let world = World::new();
    let process = world.process().await;
    let asked = Request::new(secs(2)).request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(2) - MILLI * 100);
    // The renewal lands, and cannot be read back before the first lease is over.
    next_put(&world, Fault::Lose(Answer::Drop), RECORD);
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Drop)).on(RECORD).after(1));
    let run = async { process.leases.acquire(&key("a"), &asked).await };
    let error = moving(&[&world.clock], MILLI * 10, run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    world.objects.faults().clear();
    let again = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!((again.lease_id(), again.fence()), (first.lease_id(), first.fence()));
}

#[tokio::test]
async fn a_renewal_that_was_unknown_is_settled_by_the_next_one() {
    for fault in [Fault::Lose(Answer::Drop), Fault::Refuse(Answer::Drop), Fault::Late(secs(16), Answer::Drop)] {
        let world = World::new();
        let process = world.process().await;
        let grant = granted(process.leases.acquire(&key("a"), &Request::new(secs(120))).await);
        let faults = world.objects.faults();
        faults.script(Rule::once(Op::Put, fault));
        faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Drop)));
        faults.script(Rule::always(Op::Get, Fault::Refuse(Answer::Drop)));
        moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await.unwrap_err();
        faults.clear();
        let again = renewed(moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await);
        assert_holds(&world, &again).await;
        // What was late cannot come any more.
        pass(&[&world.clock], secs(20), secs(1)).await;
        assert_holds(&world, &again).await;
        moving(&[&world.clock], MILLI * 10, process.leases.release(&again)).await.unwrap();
        assert_eq!(world.holder("a").await, None);
    }
}

// Row 3: it lands late.

#[tokio::test]
async fn a_create_that_lands_after_somebody_elses_changes_nothing() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    next_put(&world, Fault::Late(secs(2), Answer::Hang), RECORD);
    let (name, asked) = (key("a"), request());
    let mut acquiring = Box::pin(process.leases.acquire(&name, &asked));
    start(&mut acquiring).await;
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(2));
    settle().await;
    assert_holds(&world, &theirs).await;
    let by = held(moving(&[&world.clock], MILLI * 100, acquiring).await).by.unwrap();
    assert_eq!(by.lease_id, theirs.lease_id());
}

#[tokio::test]
async fn a_takeover_that_lands_late_is_recognised_by_its_own_process() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(other.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED);
    // Answered with an error at once; it lands between the retries, which are refused.
    next_put(&world, Fault::Late(secs(1), Answer::Status(500)), RECORD);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(503))).on(RECORD).times(12));
    let run = async { process.leases.acquire(&key("a"), &request()).await };
    let grant = granted(moving(&[&world.clock], MILLI * 10, run).await);
    assert!(grant.fence() > first.fence());
    assert_holds(&world, &grant).await;
    held(other.leases.acquire(&key("a"), &request()).await);
}

// Row 4: it is delivered twice.

#[tokio::test]
async fn writes_that_are_delivered_twice_count_once() {
    let world = World::new();
    let process = world.process().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Duplicate));
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    assert_holds(&world, &first).await;
    world.clock.advance(secs(1));
    let again = renewed(process.leases.renew(&first).await);
    assert_eq!(again.fence(), first.fence());
    assert_holds(&world, &again).await;
    process.leases.release(&again).await.unwrap();
    assert_eq!(world.holder("a").await, None);
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(second.fence() > first.fence());
    assert_holds(&world, &second).await;
}

// Rows 5 and 6: 409.

#[tokio::test]
async fn a_409_on_a_create_with_no_winner_is_no_holder() {
    let world = World::new();
    let process = world.process().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(409))).on(RECORD).times(3));
    let run = async { process.leases.acquire(&key("a"), &request()).await };
    let grant = granted(moving(&[&world.clock], MILLI * 10, run).await);
    assert_holds(&world, &grant).await;
}

#[tokio::test]
async fn a_409_for_ever_ends_in_an_error_and_not_in_a_holder() {
    for existing in [false, true] {
        let world = World::new();
        let process = world.process().await;
        if existing {
            let grant = granted(process.leases.acquire(&key("a"), &request()).await);
            process.leases.release(&grant).await.unwrap();
        }
        world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(409))).on(RECORD));
        let before = world.clock.monotonic();
        let run = async { process.leases.acquire(&key("a"), &request()).await };
        let error = moving(&[&world.clock], MILLI * 10, run).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(world.clock.monotonic().since(before) < secs(25), "bounded");
        assert!(process.store.requests().of(RequestKind::Put) < 100, "{:?}", process.store.requests());
        assert_eq!(world.holder("a").await, None);
    }
}

#[tokio::test]
async fn a_409_for_ever_on_a_renewal_ends_in_an_error_before_the_lease_does() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(409))).on(RECORD));
    let error = moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(grant.is_valid());
    world.objects.faults().clear();
    renewed(process.leases.renew(&grant).await);
}

// Row 8: no two records are equal, so no ETag comes back.

#[tokio::test]
async fn no_two_writes_of_a_record_are_equal_even_if_time_stands_still() {
    let world = World::new();
    let process = world.process().await;
    let bodies = count_records(&world);
    for _ in 0..50 {
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        let grant = renewed(process.leases.renew(&grant).await);
        process.leases.release(&grant).await.unwrap();
    }
    let bodies = bodies.lock().unwrap();
    assert_eq!((bodies.len(), bodies.iter().collect::<BTreeSet<_>>().len()), (150, 150));
}

/// Collects the bodies of all records that are written from now on.
fn count_records(world: &World) -> Arc<Mutex<Vec<bytes::Bytes>>> {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&bodies);
    world.objects.set_observer(Box::new(move |change| {
        if change.name.contains(RECORD) {
            seen.lock().unwrap().extend(change.body.clone());
        }
    }));
    bodies
}
