//! Wherever a process stops, nothing is left that others cannot get over: every lease has an index entry, no key is
//! stuck for longer than its lease and the skew, and fences rise. Wherever a caller stops waiting, what it asked for is
//! found out about and tidied up.

use crate::{
    common::{key, request, secs},
    processes::{
        ENDED, MILLI, Process, SKEW, TTL, World, granted, held, moving, pass, record_name, renewed, settle, start,
    },
};
use leasehold::{
    Fence,
    lease::{Acquired, Locked, Request},
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

const INDEX: &str = ".lease-index";
const RECORD: &str = "/meta/";

/// The process stops before its request has an effect.
const BEFORE: Fault = Fault::Refuse(Answer::Hang);
/// The process stops after its request has had its effect, before it hears of it.
const AFTER: Fault = Fault::Lose(Answer::Hang);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn hang(world: &World, fault: Fault, name: &str) {
    world.objects.faults().script(Rule::once(Op::Put, fault).on(name));
}

/// Runs a process until it hangs in a request, and kills it there: not even a destructor of it runs any more.
fn kill_in<F: Future>(world: &World, run: impl FnOnce(Process) -> F) {
    let runtime = runtime();
    runtime.block_on(async {
        let process = world.process().await;
        let mut run = Box::pin(run(process));
        start(&mut run).await;
        std::mem::forget(run);
    });
    runtime.shutdown_background();
    world.objects.faults().clear();
}

/// What must be true after any crash: `last` is the highest fence that was ever returned.
fn others_get_over_it(world: &World, ttl: Duration, last: Option<Fence>) {
    runtime().block_on(async {
        world.assert_indexed("a").await;
        let left = world.holder("a").await.map(|holder| holder.fence);
        world.clock.advance(ttl + ttl / 1000 + SKEW + MILLI);
        let other = world.process().await;
        let grant = granted(other.leases.acquire(&key("a"), &request()).await);
        assert!(Some(grant.fence()) > last.max(left), "{grant:?} after {last:?} and {left:?}");
        world.assert_indexed("a").await;
    });
}

#[test]
fn a_death_before_the_entry_of_a_new_key_leaves_nothing() {
    let world = World::new();
    hang(&world, BEFORE, INDEX);
    kill_in(&world, |process| async move { process.leases.acquire(&key("a"), &request().new_key()).await });
    assert!(world.entries("a").is_empty());
    assert!(world.objects.object(&record_name("a")).is_none());
    others_get_over_it(&world, Duration::ZERO, None);
}

#[test]
fn a_death_between_entry_and_record_leaves_a_hint_and_a_free_key() {
    for request in [request(), request().new_key()] {
        let world = World::new();
        hang(&world, BEFORE, RECORD);
        kill_in(&world, |process| async move { process.leases.acquire(&key("a"), &request).await });
        assert_eq!(world.entries("a").len(), 1);
        assert!(world.objects.object(&record_name("a")).is_none());
        others_get_over_it(&world, Duration::ZERO, None);
    }
}

#[test]
fn a_death_between_record_and_answer_leaves_a_lease_that_expires() {
    let world = World::new();
    hang(&world, AFTER, RECORD);
    kill_in(&world, |process| async move { process.leases.acquire(&key("a"), &request()).await });
    runtime().block_on(async {
        assert!(world.holder("a").await.is_some());
        let other = world.process().await;
        world.clock.advance(ENDED - MILLI);
        held(other.leases.acquire(&key("a"), &request()).await);
        world.clock.advance(MILLI);
        granted(other.leases.acquire(&key("a"), &request()).await);
    });
}

#[test]
fn a_death_in_a_takeover_leaves_the_key_to_the_next_one() {
    for (fault, name) in [(BEFORE, INDEX), (AFTER, INDEX), (BEFORE, RECORD), (AFTER, RECORD)] {
        let world = World::new();
        let first = runtime().block_on(async {
            let first = granted(world.process().await.leases.acquire(&key("a"), &request()).await);
            // Into another hour, so that there is an entry to write.
            world.clock.advance(secs(3600));
            first
        });
        hang(&world, fault, name);
        kill_in(&world, |process| async move { process.leases.acquire(&key("a"), &request()).await });
        let ttl = if (fault, name) == (AFTER, RECORD) { TTL } else { Duration::ZERO };
        others_get_over_it(&world, ttl, Some(first.fence()));
    }
}

#[test]
fn a_death_in_a_renewal_into_a_new_hour_leaves_the_old_lease_or_the_new_one() {
    for (fault, name) in [(BEFORE, INDEX), (AFTER, INDEX), (BEFORE, RECORD), (AFTER, RECORD)] {
        let world = World::new();
        world.clock.advance(secs(1800 - 35));
        hang(&world, fault, name);
        // The first entry and the first record are those of the grant.
        world.objects.faults().clear();
        world.objects.faults().script(Rule::once(Op::Put, fault).on(name).after(1));
        let clock = world.clock.clone();
        kill_in(&world, |process| async move {
            let grant = granted(process.leases.acquire(&key("a"), &request()).await);
            clock.advance(secs(20));
            process.leases.renew(&grant).await
        });
        let entries = if (fault, name) == (BEFORE, INDEX) { 1 } else { 2 };
        assert_eq!(world.entries("a").len(), entries, "{fault:?} {name}");
        let ttl = if (fault, name) == (AFTER, RECORD) { TTL } else { secs(10) + 20 * MILLI };
        others_get_over_it(&world, ttl, None);
    }
}

#[test]
fn a_death_in_a_release_leaves_a_free_key_or_one_that_expires() {
    for (fault, ttl) in [(BEFORE, TTL), (AFTER, Duration::ZERO)] {
        let world = World::new();
        world.objects.faults().script(Rule::once(Op::Put, fault).on(RECORD).after(1));
        kill_in(&world, |process| async move {
            let grant = granted(process.leases.acquire(&key("a"), &request()).await);
            process.leases.release(&grant).await
        });
        others_get_over_it(&world, ttl, None);
    }
}

#[test]
fn a_death_in_a_hand_over_leaves_the_first_lease_or_the_second() {
    let long = || Request::new(secs(3000));
    for (fault, name) in [(BEFORE, INDEX), (AFTER, INDEX), (BEFORE, RECORD), (AFTER, RECORD)] {
        let world = World::new();
        world.objects.faults().script(Rule::once(Op::Put, fault).on(name).after(1));
        kill_in(&world, |process| async move {
            let grant = granted(process.leases.acquire(&key("a"), &request()).await);
            let leases = process.leases.clone();
            let waiting = tokio::spawn(async move { leases.acquire_within(&key("a"), &long(), secs(600)).await });
            settle().await;
            // The waiter's lease ends in another hour.
            process.leases.release(&grant).await.unwrap();
            waiting.await
        });
        let ttl = if (fault, name) == (AFTER, RECORD) { secs(3000) } else { TTL };
        others_get_over_it(&world, ttl, None);
    }
}

#[test]
fn a_death_while_finding_out_about_a_write_leaves_a_lease_that_expires() {
    let world = World::new();
    let faults = world.objects.faults();
    faults.script(Rule::once(Op::Put, AFTER).on(RECORD));
    faults.script(Rule::once(Op::Put, BEFORE).on(RECORD));
    kill_in(&world, |process| async move {
        let (leases, name, request) = (process.leases.clone(), key("a"), request());
        let mut acquiring = Box::pin(leases.acquire(&name, &request));
        start(&mut acquiring).await;
        drop(acquiring);
        std::future::pending::<()>().await;
    });
    others_get_over_it(&world, TTL, None);
}

#[test]
fn a_write_that_lands_after_its_process_died_is_an_ordinary_lease_or_nothing() {
    let world = World::new();
    hang(&world, AFTER, RECORD);
    kill_in(&world, |process| async move { process.leases.acquire(&key("a"), &request()).await });
    // What the dead process sent is still under way: it is not visible yet.
    let late = world.record("a");
    assert!(world.objects.delete_object(&record_name("a")));
    runtime().block_on(async {
        let other = world.process().await;
        world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(secs(1))).on(RECORD));
        let (leases, name, request) = (other.leases.clone(), key("a"), request());
        let mut acquiring = Box::pin(leases.acquire(&name, &request));
        start(&mut acquiring).await;
        // It lands first, and then the other's does not.
        world.objects.put_object(&record_name("a"), late);
        world.clock.advance(secs(1));
        let by = held(acquiring.await).by.unwrap();
        assert_eq!(world.holder("a").await.unwrap().lease_id, by.lease_id);
    });
    others_get_over_it(&world, TTL, None);
}

// Callers that stop waiting while their process goes on.

/// Asks, and stops waiting in the middle of the write of the record.
async fn acquire_and_give_up(process: &Process, request: &Request) {
    let name = key("a");
    let mut acquiring = Box::pin(process.leases.acquire(&name, request));
    start(&mut acquiring).await;
}

/// The key is free for any process, with no time passing.
async fn assert_free(world: &World) {
    assert_eq!(world.holder("a").await, None, "nobody knows of this lease");
    let other = world.process().await;
    let grant = granted(other.leases.acquire(&key("a"), &request()).await);
    other.leases.release(&grant).await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_nobody_waits_for_any_more_leaves_no_lease() {
    for fault in [BEFORE, AFTER, Fault::Late(secs(3), Answer::Hang)] {
        for existing in [false, true] {
            let world = World::new();
            let process = world.process().await;
            if existing {
                let grant = granted(process.leases.acquire(&key("a"), &request()).await);
                process.leases.release(&grant).await.unwrap();
            }
            hang(&world, fault, RECORD);
            acquire_and_give_up(&process, &request()).await;
            settle().await;
            assert_free(&world).await;
            // And nothing of it comes later.
            pass(&[&world.clock], secs(10), secs(1)).await;
            assert_free(&world).await;
        }
    }
}

#[tokio::test]
async fn a_takeover_that_nobody_waits_for_any_more_leaves_no_lease() {
    for fault in [BEFORE, AFTER, Fault::Late(secs(3), Answer::Hang)] {
        let world = World::new();
        let (process, other) = (world.process().await, world.process().await);
        let first = granted(other.leases.acquire(&key("a"), &request()).await);
        world.clock.advance(ENDED);
        hang(&world, fault, RECORD);
        acquire_and_give_up(&process, &request()).await;
        pass(&[&world.clock], secs(10), secs(1)).await;
        assert_eq!(world.holder("a").await, None);
        let next = granted(process.leases.acquire(&key("a"), &request()).await);
        assert!(next.fence() > first.fence());
    }
}

#[tokio::test]
async fn an_acquire_with_a_request_id_is_left_and_had_again_by_the_same_id() {
    for elsewhere in [false, true] {
        let world = World::new();
        let process = world.process().await;
        let asked = request().request_id("job-7");
        hang(&world, AFTER, RECORD);
        acquire_and_give_up(&process, &asked).await;
        settle().await;
        let left = world.holder("a").await.expect("its lease is left to it");
        let other = world.process().await;
        held(other.leases.acquire(&key("a"), &request().request_id("job-8")).await);
        held(other.leases.acquire(&key("a"), &request().owner("other").request_id("job-7")).await);
        world.clock.advance(secs(20));
        let again = if elsewhere { &other } else { &process };
        let grant = granted(again.leases.acquire(&key("a"), &asked).await);
        assert_eq!((grant.lease_id(), grant.fence()), (left.lease_id, left.fence));
        assert_eq!(grant.time_left(), TTL);
    }
}

#[tokio::test]
async fn a_create_that_lands_after_its_client_gave_up_is_freed() {
    let world = World::new();
    let process = world.process().await;
    let faults = world.objects.faults();
    faults.script(Rule::once(Op::Put, Fault::Late(secs(25), Answer::Drop)).on(RECORD));
    faults.script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on(RECORD));
    // For so long that it cannot be over by itself before the end.
    let (name, request) = (key("a"), Request::new(secs(600)));
    let error = moving(&[&world.clock], MILLI * 100, process.leases.acquire(&name, &request)).await.unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Unknown, "{error}");
    assert!(world.objects.object(&record_name("a")).is_none());
    pass(&[&world.clock], secs(15), MILLI * 100).await;
    assert!(world.objects.object(&record_name("a")).is_some(), "it has landed by now");
    faults.clear();
    pass(&[&world.clock], secs(5), MILLI * 100).await;
    assert_free(&world).await;
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_any_more_still_frees_the_key() {
    for fault in [BEFORE, AFTER, Fault::Late(secs(3), Answer::Hang)] {
        let world = World::new();
        let process = world.process().await;
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        hang(&world, fault, RECORD);
        let mut releasing = Box::pin(process.leases.release(&grant));
        start(&mut releasing).await;
        drop(releasing);
        settle().await;
        assert_free(&world).await;
        pass(&[&world.clock], secs(10), secs(1)).await;
        assert_free(&world).await;
    }
}

#[tokio::test]
async fn a_guards_release_that_is_dropped_before_it_was_sent_still_frees_the_key() {
    let world = World::new();
    let process = world.process().await;
    let Locked::Granted(guard) = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap()
    else {
        panic!("held")
    };
    // Another operation has the key, so that the release has to stand behind it.
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(2))).on(RECORD));
    let leases = process.leases.clone();
    let reading = tokio::spawn(async move { leases.get(&key("a")).await });
    settle().await;
    let mut releasing = Box::pin(guard.release());
    start(&mut releasing).await;
    drop(releasing);
    world.clock.advance(secs(2));
    reading.await.unwrap().unwrap();
    settle().await;
    assert_free(&world).await;
}

#[tokio::test]
async fn a_guards_release_that_fails_is_finished_in_the_background() {
    let world = World::new();
    let process = world.process().await;
    let Locked::Granted(guard) =
        process.leases.lock_within(&key("a"), &Request::new(secs(300)), secs(1)).await.unwrap()
    else {
        panic!("held")
    };
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on(RECORD));
    moving(&[&world.clock], MILLI * 100, guard.release()).await.unwrap_err();
    world.objects.faults().clear();
    pass(&[&world.clock], secs(10), MILLI * 100).await;
    assert_free(&world).await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_frees_the_key() {
    let world = World::new();
    let process = world.process().await;
    let Locked::Granted(guard) = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap()
    else {
        panic!("held")
    };
    drop(guard);
    settle().await;
    assert_free(&world).await;
}

// Hand-overs.

type Waiting = tokio::task::JoinHandle<leasehold::Result<Acquired>>;

fn wait_for(process: &Process, request: Request) -> Waiting {
    let leases = process.leases.clone();
    tokio::spawn(async move { leases.acquire_within(&key("a"), &request, secs(600)).await })
}

#[tokio::test]
async fn a_hand_over_whose_answer_is_lost_is_delivered() {
    for fault in
        [Fault::Lose(Answer::Drop), Fault::Refuse(Answer::Drop), Fault::Late(secs(1), Answer::Drop), Fault::Duplicate]
    {
        let world = World::new();
        let process = world.process().await;
        let first = granted(process.leases.acquire(&key("a"), &request()).await);
        let waiting = wait_for(&process, request().owner("second"));
        settle().await;
        hang(&world, fault, RECORD);
        process.leases.release(&first).await.unwrap();
        let second = granted(moving(&[&world.clock], MILLI, waiting).await.unwrap());
        assert!(second.fence() > first.fence());
        assert!(second.is_valid());
        assert_eq!(world.holder("a").await.map(|holder| holder.fence), Some(second.fence()));
        pass(&[&world.clock], secs(5), secs(1)).await;
        renewed(process.leases.renew(&second).await);
    }
}

#[tokio::test]
async fn a_hand_over_whose_releaser_stops_waiting_is_delivered_or_made_again() {
    for fault in [BEFORE, AFTER, Fault::Late(secs(1), Answer::Hang)] {
        let world = World::new();
        let process = world.process().await;
        let first = granted(process.leases.acquire(&key("a"), &request()).await);
        let waiting = wait_for(&process, request().owner("second"));
        settle().await;
        hang(&world, fault, RECORD);
        let mut releasing = Box::pin(process.leases.release(&first));
        start(&mut releasing).await;
        drop(releasing);
        settle().await;
        assert!(waiting.is_finished(), "{fault:?}: with no time passing");
        let second = granted(waiting.await.unwrap());
        assert!(second.fence() > first.fence());
        assert_eq!(world.holder("a").await.map(|holder| holder.lease_id), Some(second.lease_id()));
    }
}

#[tokio::test]
async fn a_hand_over_to_one_who_has_just_gone_frees_the_key() {
    for fault in [BEFORE, AFTER, Fault::Delay(secs(1))] {
        let world = World::new();
        let process = world.process().await;
        let first = granted(process.leases.acquire(&key("a"), &request()).await);
        let waiting = wait_for(&process, request());
        settle().await;
        hang(&world, fault, RECORD);
        let leases = process.leases.clone();
        let releasing = tokio::spawn(async move { leases.release(&first).await });
        settle().await;
        waiting.abort();
        pass(&[&world.clock], secs(8), MILLI * 500).await;
        releasing.await.unwrap().unwrap();
        assert_free(&world).await;
    }
}

#[tokio::test]
async fn a_hand_over_that_was_dropped_before_it_was_sent_leaves_the_line_as_it_was() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    let long = Request::new(secs(3000));
    let second = wait_for(&process, long);
    settle().await;
    let third = wait_for(&process, request());
    settle().await;
    // The second one's lease would end in another hour, whose entry cannot be written.
    hang(&world, BEFORE, INDEX);
    let mut releasing = Box::pin(process.leases.release(&first));
    start(&mut releasing).await;
    drop(releasing);
    settle().await;
    process.leases.release(&first).await.unwrap();
    settle().await;
    assert!(second.is_finished() && !third.is_finished(), "they were there in this order");
    third.abort();
}

#[tokio::test]
async fn a_waiter_that_goes_leaves_the_next_one_looking_after_the_key() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(other.leases.acquire(&key("a"), &request()).await);
    let second = wait_for(&process, request());
    settle().await;
    let third = wait_for(&process, request());
    settle().await;
    second.abort();
    settle().await;
    other.leases.release(&first).await.unwrap();
    let third = granted(moving(&[&world.clock], MILLI * 100, third).await.unwrap());
    assert!(third.fence() > first.fence());
}
