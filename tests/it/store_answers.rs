//! Whatever a store answers, a lease is granted once, is never called held by its own holder, and lasts for as long as
//! it was last known to last.

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

// Rows 9 and 10: a store that asks for patience.

#[tokio::test]
async fn a_guard_outlives_a_burst_of_503s_that_is_shorter_than_its_lease() {
    for status in [503, 429, 500] {
        let world = World::new();
        let process = world.process().await;
        let guard = guarded(&process, &request()).await;
        settle().await;
        world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(status))));
        world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(status))));
        pass(&[&world.clock], secs(27), MILLI * 100).await;
        assert!(guard.is_valid(), "it has failed to renew for 17 s");
        world.objects.faults().clear();
        pass(&[&world.clock], secs(60), MILLI * 100).await;
        assert!(guard.is_valid());
        assert_holds(&world, &guard.grant()).await;
        guard.release().await.unwrap();
        assert_eq!(world.holder("a").await, None);
    }
}

#[tokio::test]
async fn a_guard_is_lost_at_its_own_deadline_when_503s_do_not_end() {
    let world = World::new();
    let process = world.process().await;
    let guard = guarded(&process, &request()).await;
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    pass(&[&world.clock], TTL - MILLI, MILLI * 100).await;
    assert!(guard.is_valid());
    assert!(!guard.cancellation().is_cancelled());
    world.clock.advance(MILLI);
    assert!(!guard.is_valid());
    settle().await;
    assert!(guard.cancellation().is_cancelled(), "told in the same millisecond");
    assert_eq!(guard.lost().await.taken_by, None);
    assert_eq!(world.clock.wall(), noon().plus(TTL));
}

#[tokio::test]
async fn a_guards_renewals_in_a_long_burst_are_few() {
    let world = World::new();
    let process = world.process().await;
    let guard = guarded(&process, &Request::new(secs(300))).await;
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    let before = process.store.requests();
    pass(&[&world.clock], secs(300), MILLI * 500).await;
    assert!(!guard.is_valid());
    let made = process.store.requests().since(&before);
    assert!(made.total() < 2 * 300, "{made:?} in 200 s of trouble");
}

#[tokio::test]
async fn a_lease_that_nobody_wants_is_given_back_when_the_store_is_there_again() {
    let world = World::new();
    let process = world.process().await;
    let guard = guarded(&process, &Request::new(secs(600))).await;
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    let before = process.store.requests();
    drop(guard);
    pass(&[&world.clock], secs(120), MILLI * 500).await;
    let made = process.store.requests().since(&before);
    assert!(made.total() < 2 * 120, "{made:?} in 120 s of trouble");
    assert!(world.holder("a").await.is_some());
    world.objects.faults().clear();
    pass(&[&world.clock], secs(10), MILLI * 500).await;
    assert_eq!(world.holder("a").await, None);
}

#[tokio::test]
async fn a_renewal_that_hangs_is_sent_again_well_before_its_lease_ends() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &Request::new(secs(4))).await);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Hang)).on("/meta/"));
    let began = world.clock.wall();
    renewed(moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await);
    let took = world.clock.wall().since(began);
    assert!(took >= secs(1) && took < secs(2), "{took:?}");
}

/// Otherwise a reader would look for a permission that is not missing.
#[tokio::test]
async fn a_write_in_doubt_that_cannot_be_looked_for_reports_its_own_trouble() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on("/meta/"));
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(403))).on("/meta/"));
    let error = moving(&[&world.clock], MILLI * 10, process.leases.renew(&grant)).await.unwrap_err();
    assert!(error.to_string().contains("writing default/meta/a.pb"), "{error}");
}

#[tokio::test]
async fn a_failure_is_not_counted_as_a_wish_for_patience() {
    for (status, failed, throttled) in [(500, 1, 0), (503, 0, 1), (429, 0, 1)] {
        let world = World::new();
        let process = world.process().await;
        next_put(&world, Fault::Refuse(Answer::Status(status)), RECORD);
        granted(moving(&[&world.clock], MILLI, process.leases.acquire(&key("a"), &request())).await);
        let made = process.store.requests();
        let counted = (made.answered(AnswerKind::Failed), made.answered(AnswerKind::Throttled));
        assert_eq!(counted, (failed, throttled), "{status}: {made:?}");
    }
}

#[tokio::test]
async fn a_waiter_outlives_a_store_that_is_down_for_a_while() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    let leases = process.leases.clone();
    let waiting = tokio::spawn(async move { leases.acquire_within(&key("a"), &request(), secs(600)).await });
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))));
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))));
    pass(&[&world.clock], secs(120), MILLI * 500).await;
    assert!(!waiting.is_finished());
    world.objects.faults().clear();
    let mine = granted(moving(&[&world.clock], MILLI * 100, waiting).await.unwrap());
    assert!(mine.fence() > theirs.fence());
}

// Row 11: listings.

#[tokio::test]
async fn no_lease_depends_on_a_listing() {
    let world = World::new();
    world.objects.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(403))));
    world.objects.faults().script(Rule::always(Op::Delete, Fault::Refuse(Answer::Status(403))));
    let (process, other) = (world.process().await, world.process().await);
    let before = [process.store.requests(), other.store.requests()];
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    let first = renewed(process.leases.renew(&first).await);
    held(other.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    let second = granted(other.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED);
    let third = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(first.fence() < second.fence() && second.fence() < third.fence());
    for (store, before) in [&process.store, &other.store].into_iter().zip(before) {
        let made = store.requests().since(&before);
        assert_eq!(made.of(RequestKind::List) + made.of(RequestKind::Delete), 0);
    }
}

// Row 12: an old version is read.

#[tokio::test]
async fn an_old_version_is_reported_once_to_a_reader_and_then_taken_as_it_is() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    let old = world.record("a");
    let first = renewed(process.leases.renew(&first).await);
    world.objects.put_object(&record_name("a"), old);
    let error = process.leases.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Regressed, "{error}");
    assert!(error.is_retryable());
    let holder = process.leases.get(&key("a")).await.unwrap().holder.unwrap();
    assert_eq!(holder.fence, first.fence());
}

#[tokio::test]
async fn a_guard_outlives_a_record_that_was_set_back_to_an_earlier_renewal() {
    let world = World::new();
    let process = world.process().await;
    let guard = guarded(&process, &request()).await;
    pass(&[&world.clock], secs(11), MILLI * 100).await;
    let old = world.record("a");
    pass(&[&world.clock], secs(10), MILLI * 100).await;
    assert_ne!(world.record("a"), old, "renewed");
    world.objects.put_object(&record_name("a"), old);
    pass(&[&world.clock], secs(60), MILLI * 100).await;
    assert!(guard.is_valid());
    assert_holds(&world, &guard.grant()).await;
}

#[tokio::test]
async fn a_grant_that_an_old_answer_hid_is_freed_as_nobody_knows_of_it() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    let old = world.record("a");
    process.leases.release(&first).await.unwrap();
    // It lands, its answer is lost, and what is read back comes from an old cache, once.
    next_put(&world, Fault::Lose(Answer::Hang), RECORD);
    let (name, asked) = (key("a"), request());
    let mut acquiring = Box::pin(process.leases.acquire(&name, &asked));
    start(&mut acquiring).await;
    let new = world.record("a");
    world.objects.put_object(&record_name("a"), old);
    world.clock.advance(secs(5));
    let error = acquiring.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Regressed, "{error}");
    world.objects.put_object(&record_name("a"), new);
    settle().await;
    assert_eq!(world.holder("a").await, None, "nobody knows of it");
    granted(process.leases.acquire(&key("a"), &request()).await);
}

#[tokio::test]
async fn a_record_set_back_for_good_does_not_keep_its_key_from_the_next_request() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    let old = world.record("a");
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&second).await.unwrap();
    world.objects.put_object(&record_name("a"), old);
    assert_eq!(process.leases.acquire(&key("a"), &request()).await.unwrap_err().kind(), ErrorKind::Regressed);
    // With no time passing.
    let third = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(third.fence() > second.fence());
}

// Damage.

#[tokio::test]
async fn a_record_that_cannot_be_read_is_never_granted() {
    for damage in [&b""[..], b"garbage", &[0; 200]] {
        let world = World::new();
        let (knows, new) = (world.process().await, world.process().await);
        let grant = granted(knows.leases.acquire(&key("a"), &request()).await);
        knows.leases.release(&grant).await.unwrap();
        world.objects.put_object(&record_name("a"), damage.to_vec());
        world.clock.advance(secs(600));
        for (process, request) in [(&knows, request()), (&new, request()), (&new, request().new_key())] {
            for _ in 0..2 {
                let error = process.leases.acquire(&key("a"), &request).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains("meta/a.pb"), "{error}");
                settle().await;
            }
            let run = async { process.leases.acquire_within(&key("a"), &request, secs(60)).await };
            let error = moving(&[&world.clock], MILLI * 100, run).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        assert_eq!(knows.leases.get(&key("a")).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(world.record("a"), damage, "nothing is overwritten");
    }
}

#[tokio::test]
async fn a_holder_whose_record_is_damaged_keeps_its_deadline_and_is_told() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.objects.put_object(&record_name("a"), "garbage");
    assert_eq!(process.leases.renew(&grant).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(grant.is_valid());
    assert_eq!(grant.time_left(), TTL);
    assert_eq!(process.leases.release(&grant).await.unwrap_err().kind(), ErrorKind::Corrupt);
    settle().await;
    assert_eq!(world.record("a"), "garbage");
}

#[tokio::test]
async fn a_bit_that_flips_on_the_way_hides_no_grant_for_good() {
    let world = World::new();
    let process = world.process().await;
    // What cannot be read is read once more.
    next_put(&world, Fault::Lose(Answer::Drop), RECORD);
    world.objects.faults().script(Rule::once(Op::Get, Fault::Corrupt).on(RECORD));
    let grant = granted(process.leases.acquire(&key("a"), &request().new_key()).await);
    process.leases.release(&grant).await.unwrap();
    next_put(&world, Fault::Lose(Answer::Drop), RECORD);
    world.objects.faults().script(Rule::once(Op::Get, Fault::Corrupt).on(RECORD).times(2));
    let error = process.leases.acquire(&key("a"), &request().new_key()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    settle().await;
    assert_eq!(world.holder("a").await, None, "it was told that it failed, so it is freed");
}

#[tokio::test]
async fn a_record_of_another_key_is_never_granted() {
    let world = World::new();
    let process = world.process().await;
    granted(process.leases.acquire(&key("b"), &request()).await);
    world.objects.put_object(&record_name("a"), world.record("b"));
    let error = process.leases.acquire(&key("a"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("another key"), "{error}");
}

// The index.

#[tokio::test]
async fn nothing_is_granted_whose_entry_could_not_be_written() {
    for request in [request(), request().new_key(), request().request_id("job-7")] {
        for answer in [Answer::Status(503), Answer::Status(403), Answer::Drop, Answer::Hang] {
            let world = World::new();
            let process = world.process().await;
            world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(answer)).on(INDEX));
            let run = async { process.leases.acquire(&key("a"), &request).await };
            let error = moving(&[&world.clock], MILLI * 100, run).await.unwrap_err();
            let kind = if answer == Answer::Status(403) { ErrorKind::Denied } else { ErrorKind::Unavailable };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(world.objects.object(&record_name("a")).is_none());
        }
    }
}

#[tokio::test]
async fn an_entry_whose_answer_was_lost_does_not_count_and_is_written_again() {
    let world = World::new();
    let process = world.process().await;
    next_put(&world, Fault::Refuse(Answer::Drop), INDEX);
    let run = async { process.leases.acquire(&key("a"), &request()).await };
    granted(moving(&[&world.clock], MILLI * 100, run).await);
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_renewal_into_an_hour_whose_entry_cannot_be_written_keeps_the_old_deadline() {
    let world = World::new();
    let process = world.process().await;
    world.clock.advance(secs(1800 - 35));
    let guard = guarded(&process, &request()).await;
    settle().await;
    let before = guard.grant().expires_at();
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on(INDEX));
    pass(&[&world.clock], TTL - MILLI, MILLI * 100).await;
    assert!(guard.is_valid());
    assert_eq!(guard.grant().expires_at(), before);
    world.clock.advance(MILLI);
    assert!(!guard.is_valid());
    settle().await;
    assert!(guard.cancellation().is_cancelled());
    assert_eq!(world.entries("a").len(), 1);
}

// Row 16: credentials, through a real client.

#[tokio::test]
async fn credentials_that_are_denied_in_mid_run_leave_the_old_deadline() {
    let bed = Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    let grant = granted(leases.acquire(&key("a"), &request()).await);
    bed.clock.advance(secs(10));
    for op in [Op::Put, Op::Get] {
        bed.server.deny(op);
    }
    let error = leases.renew(&grant).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(grant.is_valid());
    assert_eq!(grant.time_left(), secs(20));
    let error = leases.acquire(&key("b"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = leases.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for op in [Op::Put, Op::Get] {
        bed.server.allow(op);
    }
    let again = renewed(leases.renew(&grant).await);
    assert_eq!(again.time_left(), TTL);
    bed.clock.advance(TTL);
    assert!(!again.is_valid());
}

#[tokio::test]
async fn a_guard_outlives_denied_credentials_only_if_they_come_back_in_time() {
    for back in [true, false] {
        let world = World::new();
        let process = world.process().await;
        let guard = guarded(&process, &request()).await;
        settle().await;
        world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))));
        world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(401))));
        pass(&[&world.clock], secs(28), MILLI * 100).await;
        assert!(guard.is_valid());
        if back {
            world.objects.faults().clear();
        }
        pass(&[&world.clock], secs(10), MILLI * 100).await;
        assert_eq!(guard.is_valid(), back);
        assert_eq!(guard.cancellation().is_cancelled(), !back);
    }
}

#[tokio::test]
async fn a_guard_of_a_short_lease_tries_again_more_often() {
    let world = World::new();
    let process = world.process().await;
    let guard = guarded(&process, &Request::new(secs(3))).await;
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))));
    pass(&[&world.clock], MILLI * 2300, MILLI * 50).await;
    world.objects.faults().clear();
    pass(&[&world.clock], secs(10), MILLI * 50).await;
    assert!(guard.is_valid());
}

#[tokio::test]
async fn a_short_lease_is_kept_beside_a_long_one() {
    let world = World::new();
    let process = world.process().await;
    let long = guarded(&process, &Request::new(secs(600))).await;
    pass(&[&world.clock], secs(1), MILLI * 100).await;
    let asked = Request::new(secs(3));
    let Locked::Granted(short) = process.leases.lock_within(&key("b"), &asked, Duration::ZERO).await.unwrap() else {
        panic!("held")
    };
    pass(&[&world.clock], secs(30), MILLI * 100).await;
    assert!(long.is_valid() && short.is_valid());
}

#[tokio::test]
async fn a_lease_is_written_in_whole_milliseconds_and_believed_in_as_it_is_written() {
    let world = World::new();
    let clock = leasehold_testkit::TestClock::at(Timestamp::from_micros(noon().as_micros() + 999));
    let process = world.process_on(&clock).await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    assert_eq!(grant.expires_at(), noon().plus(TTL));
    assert_holds(&world, &grant).await;
    clock.advance(TTL - Duration::from_micros(999));
    assert!(!grant.is_valid());
}

#[tokio::test]
async fn a_note_and_a_record_larger_than_ours_are_refused() {
    let bed = crate::common::Bed::new().await;
    let leases = bed.store.leases("default").unwrap();
    let noted = |bytes: usize| crate::common::request().note(vec![0; bytes]);
    let error = leases.acquire(&crate::common::key("b"), &noted(4097)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(leases.acquire(&crate::common::key("b"), &noted(4096)).await.unwrap().granted().is_some());
    bed.server.put_object("some/prefix/default/meta/a.pb", vec![0; (1 << 20) + 1]);
    let error = leases.acquire(&crate::common::key("a"), &crate::common::request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("1048577 bytes"), "{error}");
}
