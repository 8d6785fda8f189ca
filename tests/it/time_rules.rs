//! Never early: however the clocks run, stop, step and differ, a lease is believed in by one process at most, and a
//! fence never goes back.

use crate::{
    common::{key, noon, request, s3, secs},
    processes::{
        ENDED, MILLI, SKEW, TTL, World, granted, held, lost, moving, pass, record_name, renewed, settle, start,
    },
};
use leasehold::{
    ErrorKind, Hour, Settings, Ttl,
    clock::{Clock, Timestamp},
    lease::{Acquired, Locked, Request},
    store::Probing,
};
use leasehold_testkit::{Answer, Fault, Op, Rule, S3Server, TestClock};
use std::{pin::pin, sync::Arc, time::Duration};

const HOUR: i64 = 3_600_000;

// Whose turn it is, to the millisecond.

#[tokio::test]
async fn a_lease_is_taken_over_only_past_its_expiry_by_more_than_the_skew() {
    let world = World::new();
    let (holder, other) = (world.process().await, world.process().await);
    let first = granted(holder.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED - MILLI);
    held(other.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(MILLI);
    let second = granted(other.leases.acquire(&key("a"), &request()).await);
    assert!(second.fence() > first.fence());
}

#[tokio::test]
async fn a_renewal_whose_entry_took_longer_than_the_lease_had_left_is_not_sent() {
    let world = World::new();
    let process = world.process().await;
    // Over the end of an hour, so that an entry must be written first.
    world.clock.advance(secs(29 * 60 + 20));
    let request = Request::new(secs(30));
    let grant = granted(process.leases.acquire(&key("a"), &request).await);
    let record = world.record("a");
    world.clock.advance(secs(29));
    world.objects.faults().script(Rule::once(Op::Put, Fault::Slow(secs(2))).on(".lease-index/"));
    let mut renewing = pin!(process.leases.renew(&grant));
    start(&mut renewing).await;
    world.clock.advance(secs(2));
    lost(renewing.await);
    assert_eq!(world.record("a"), record, "what has ended is left as it is");
}

#[tokio::test]
async fn a_lease_is_over_for_its_holder_in_the_very_millisecond_of_its_expiry() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL - MILLI);
    assert!(grant.is_valid());
    assert_eq!(grant.time_left(), MILLI);
    world.clock.advance(MILLI);
    assert!(!grant.is_valid());
    assert_eq!(grant.time_left(), Duration::ZERO);
}

#[tokio::test]
async fn nobody_clears_a_lease_by_looking_at_it_before_others_may_take_it() {
    let world = World::new();
    let (holder, other) = (world.process().await, world.process().await);
    granted(holder.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED - MILLI);
    let before = world.record("a");
    assert!(other.leases.get(&key("a")).await.unwrap().holder.is_some());
    assert_eq!(world.record("a"), before);
    world.clock.advance(MILLI);
    assert!(other.leases.get(&key("a")).await.unwrap().holder.is_none());
    assert_ne!(world.record("a"), before, "cleared on the way");
}

#[tokio::test]
async fn two_clocks_that_differ_by_the_skew_never_make_two_holders() {
    // The holder's clock is slow, the other's is fast, and they are as far apart as they may be.
    for ahead in [1000, -1000] {
        let world = World::new();
        let (holder, other) = (world.process().await, world.process_off_by(ahead).await);
        let first = granted(holder.leases.acquire(&key("a"), &request()).await);
        for _ in 0..40_000 {
            match other.leases.acquire(&key("a"), &request()).await.unwrap() {
                Acquired::Granted(second) => {
                    assert!(!first.is_valid(), "two of them believe in it");
                    assert!(second.fence() > first.fence());
                    break;
                }
                Acquired::Held(held) => {
                    let wait = held.retry_after.clamp(MILLI, secs(1));
                    [&holder.clock, &other.clock].iter().for_each(|clock| clock.advance(wait));
                }
            }
        }
        assert!(!first.is_valid(), "it is never had");
    }
}

#[tokio::test]
async fn belief_ends_by_the_monotonic_clock_when_the_wall_clock_was_set_back() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.step_wall(-HOUR);
    world.clock.advance(TTL - MILLI);
    assert!(grant.is_valid());
    world.clock.advance(MILLI);
    assert!(!grant.is_valid());
    lost(process.leases.renew(&grant).await);
}

#[tokio::test]
async fn belief_ends_by_the_wall_clock_when_that_was_set_forward() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.step_wall(29_999);
    assert!(grant.is_valid());
    world.clock.step_wall(1);
    assert!(!grant.is_valid());
    lost(process.leases.renew(&grant).await);
}

#[tokio::test]
async fn a_guard_says_so_itself_as_soon_as_time_is_up() {
    let world = World::new();
    let process = world.process().await;
    let Locked::Granted(guard) = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap()
    else {
        panic!("held")
    };
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Hang)));
    world.clock.advance(TTL - MILLI);
    assert!(guard.is_valid());
    world.clock.advance(MILLI);
    assert!(!guard.is_valid());
    moving(&[&world.clock], MILLI, guard.lost()).await;
}

// Renewing.

#[tokio::test]
async fn an_expiry_never_moves_back_and_belief_moves_no_further_than_it_did() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-HOUR);
    let second = renewed(process.leases.renew(&first).await);
    assert_eq!(second.expires_at(), first.expires_at());
    assert_eq!(second.time_left(), secs(10), "the expiry did not move, and neither does belief");
    world.clock.advance(secs(10));
    assert!(!second.is_valid());
}

#[tokio::test]
async fn a_small_step_back_moves_belief_by_as_much_as_the_expiry() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-5000);
    let second = renewed(process.leases.renew(&first).await);
    assert_eq!(second.expires_at(), first.expires_at().plus(secs(15)));
    assert_eq!(second.time_left(), secs(25));
    // It is not granted before the holder has stopped believing in it.
    let other = world.process_off_by(5000).await;
    let held = held(other.leases.acquire(&key("a"), &request()).await);
    assert!(held.retry_after >= secs(25) + SKEW, "{:?}", held.retry_after);
}

#[tokio::test]
async fn renewing_by_the_id_alone_moves_belief_no_further_than_the_expiry_either() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-30_000);
    let second = renewed(process.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    assert_eq!(second.expires_at(), first.expires_at());
    assert_eq!(second.time_left(), secs(10), "others may have it when it was to expire");
}

#[tokio::test]
async fn a_repeated_request_moves_belief_no_further_than_the_expiry_either() {
    let world = World::new();
    let process = world.process().await;
    let asked = request().request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-30_000);
    let second = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!((second.lease_id(), second.expires_at()), (first.lease_id(), first.expires_at()));
    assert_eq!(second.time_left(), secs(10), "others may have it when it was to expire");
}

#[tokio::test]
async fn a_request_repeated_elsewhere_can_be_repeated_here_while_it_lives() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let asked = request().request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    let second = granted(other.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    assert!(!first.is_valid() && second.is_valid());
    let third = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!((third.lease_id(), third.time_left()), (first.lease_id(), TTL));
}

#[tokio::test]
async fn a_lease_renewed_elsewhere_can_be_renewed_here_when_it_would_have_ended() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    renewed(other.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    world.clock.advance(secs(10));
    let third = renewed(process.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    assert_eq!(third.time_left(), TTL);
}

#[tokio::test]
async fn renewing_a_lease_that_has_ended_is_lost_even_if_nobody_took_it() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL);
    let before = world.record("a");
    let loss = lost(process.leases.renew(&grant).await);
    assert_eq!((loss.taken_by, loss.fence), (None, Some(grant.fence())));
    lost(process.leases.renew_by_id(&key("a"), grant.lease_id(), None).await);
    assert_eq!(world.record("a"), before, "nothing is written");
}

#[tokio::test]
async fn a_lease_can_be_renewed_in_its_last_millisecond() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL - MILLI);
    let again = renewed(process.leases.renew(&grant).await);
    assert_eq!((again.fence(), again.time_left()), (grant.fence(), TTL));
}

#[tokio::test]
async fn a_renewal_says_who_has_it_now() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED);
    let second = granted(other.leases.acquire(&key("a"), &request().owner("other")).await);
    let loss = lost(process.leases.renew(&first).await);
    assert_eq!(loss.taken_by.map(|holder| holder.owner), Some("other".to_owned()));
    assert_eq!(loss.fence, Some(second.fence()));
}

#[tokio::test]
async fn a_renewal_whose_answer_comes_after_its_time_is_lost() {
    let world = World::new();
    let process = world.process().await;
    let short = Request::new(secs(2));
    let grant = granted(process.leases.acquire(&key("a"), &short).await);
    // The write lands at once; reading back what became of it takes longer than the lease lasts.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(4))).on("/meta/"));
    let clock = world.clock.clone();
    lost(moving(&[&clock], Duration::from_millis(100), process.leases.renew(&grant)).await);
}

#[tokio::test]
async fn renewing_across_hours_leaves_two_entries_at_most() {
    let world = World::new();
    let process = world.process().await;
    let mut grant = granted(process.leases.acquire(&key("a"), &request()).await);
    let mut hours = Vec::new();
    for _ in 0..3 * 360 {
        world.clock.advance(secs(10));
        grant = renewed(process.leases.renew(&grant).await);
        let hour = Hour::of(grant.expires_at()).unwrap().to_string();
        let entries = world.entries("a");
        assert!(entries.contains(&hour), "{hour} is not in {entries:?}");
        hours.push(hour);
    }
    hours.dedup();
    // One for each hour that it was in. Those of past hours are the sweeper's; none is written twice.
    assert_eq!(world.entries("a"), hours);
    let now = Hour::of(world.clock.wall()).unwrap().to_string();
    assert!(world.entries("a").iter().filter(|hour| **hour >= now).count() <= 2);
}

// Clocks that are wrong.

#[tokio::test]
async fn a_clock_set_forward_by_an_hour_grants_nothing_and_what_is_held_goes_on() {
    let server_clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(server_clock.clone())).await.unwrap();
    let clock = TestClock::at(noon());
    let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    let other = s3(&server, &server_clock).probing(Probing::Never).open().await.unwrap();
    let (leases, others) = (store.leases("default").unwrap(), other.leases("default").unwrap());
    let theirs = granted(others.acquire(&key("theirs"), &request()).await);
    let long = Request::new(secs(3600));
    let mine = granted(leases.acquire(&key("mine"), &long).await);

    clock.step_wall(HOUR - 60_000);
    for name in ["theirs", "free"] {
        let error = leases.acquire(&key(name), &request()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
        assert!(error.to_string().contains("nothing is granted"), "{error}");
        assert!(!error.is_retryable());
        let error = leases.acquire_within(&key(name), &request(), secs(60)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
    }
    assert!(store.skew().unwrap() > secs(3500));
    // Reading does not clear what only looks ended from here; renewing and releasing go on.
    assert!(leases.get(&key("theirs")).await.is_ok());
    assert!(others.peek(&key("theirs")).await.unwrap().holder.is_some(), "cleared by a wrong clock");
    renewed(others.renew(&theirs).await);
    let mine = renewed(leases.renew(&mine).await);
    leases.release(&mine).await.unwrap();
    assert!(others.peek(&key("mine")).await.unwrap().holder.is_none());

    clock.step_wall(60_000 - HOUR);
    granted(leases.acquire(&key("free"), &request()).await);
}

#[tokio::test]
async fn a_process_that_differs_from_the_store_by_two_minutes_grants_nothing() {
    for millis in [120_000, -120_000] {
        let world = World::new();
        let clock = TestClock::at(Timestamp::from_millis(noon().as_millis() + millis));
        let process = world.process_that_asks_the_time(&clock).await;
        assert!(
            !process.store.trusts_clock() && world.process_that_asks_the_time(&world.clock).await.store.trusts_clock()
        );
        let error = process.leases.acquire(&key("a"), &request()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
        assert!(!world.objects.names().iter().any(|name| name.contains("/meta/")));
    }
}

#[tokio::test]
async fn an_unprobed_process_asks_the_store_for_its_time_before_its_first_grant() {
    let world = World::new();
    world.process().await;
    let clock = TestClock::at(Timestamp::from_millis(noon().as_millis() + 120_000));
    let store = leasehold::Store::builder()
        .object_store(Arc::new(world.objects.clone()))
        .probing(Probing::Never)
        .clock(Arc::new(clock.clone()))
        .open()
        .await
        .unwrap();
    let error = store.leases("default").unwrap().acquire(&key("a"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
}

#[tokio::test]
async fn what_is_certainly_ten_seconds_beyond_the_skew_grants_nothing() {
    // The store cuts its time to seconds: a clock that is ahead is certainly so by a second less.
    for (millis, granted) in [(12_000, true), (12_001, false), (-11_000, true), (-11_001, false)] {
        let world = World::new();
        let clock = TestClock::at(Timestamp::from_millis(noon().as_millis() + millis));
        let process = world.process_that_asks_the_time(&clock).await;
        assert_eq!(process.leases.acquire(&key("a"), &request()).await.is_ok(), granted, "{millis}");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_while_an_acquire_waits_for_its_turn_takes_nothing_over() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&clock).await;
    let other = world.process().await;
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    // Another operation of this process has the key; the clock is set while the second one stands behind it.
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(1))).on("/meta/"));
    let (leases, again) = (process.leases.clone(), process.leases.clone());
    let mut reading = Box::pin(async move { leases.get(&key("a")).await });
    start(&mut reading).await;
    let mut acquiring = Box::pin(async move { again.acquire(&key("a"), &request()).await });
    start(&mut acquiring).await;
    clock.step_wall(HOUR);
    world.clock.advance(secs(1));
    reading.await.unwrap();
    let outcome = acquiring.await;
    assert!(!matches!(outcome, Ok(Acquired::Granted(_))), "{outcome:?} while the other's is good until {theirs:?}");
    assert_eq!(world.holder("a").await.map(|holder| holder.fence), Some(theirs.fence()));
}

#[tokio::test]
async fn a_machine_that_slept_asks_the_store_for_the_time_before_it_refuses_to_grant() {
    let server_clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(server_clock.clone())).await.unwrap();
    let clock = TestClock::at(noon());
    let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    let leases = store.leases("default").unwrap();
    granted(leases.acquire(&key("a"), &request()).await);
    // The monotonic clock does not count it, so what is known of the store's time is two hours old.
    clock.suspend(secs(7200));
    server_clock.advance(secs(7200));
    granted(leases.acquire(&key("a"), &request()).await);
}

#[tokio::test]
async fn after_a_suspended_host_wakes_its_lease_is_not_valid_and_a_renewal_is_lost() {
    let world = World::new();
    let (process, other) = (world.process_off_by(0).await, world.process().await);
    let Locked::Granted(guard) = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap()
    else {
        panic!("held")
    };
    settle().await;
    let asleep = ENDED;
    process.clock.suspend(asleep);
    world.clock.advance(asleep);
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    assert!(!guard.is_valid(), "before anybody has told it");
    let loss = lost(process.leases.renew(&guard.grant()).await);
    assert_eq!(loss.fence, Some(theirs.fence()));
    moving(&[&process.clock], secs(1), guard.lost()).await;
    assert_eq!(world.holder("a").await.map(|holder| holder.lease_id), Some(theirs.lease_id()));
}

#[tokio::test]
async fn a_guard_dropped_after_a_suspension_does_not_free_the_next_holders_lease() {
    let world = World::new();
    let (process, other) = (world.process_off_by(0).await, world.process().await);
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    let guard = process.leases.guard(grant, None);
    process.clock.suspend(secs(60));
    world.clock.advance(secs(60));
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    guard.release().await.unwrap();
    settle().await;
    assert_eq!(world.holder("a").await.map(|holder| holder.lease_id), Some(theirs.lease_id()));
}

#[tokio::test]
async fn all_clocks_stepping_together_end_a_lease_for_its_holder_first() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.step_wall(i64::try_from((ENDED).as_millis()).unwrap());
    assert!(!first.is_valid());
    lost(process.leases.renew(&first).await);
    let second = granted(other.leases.acquire(&key("a"), &request()).await);
    // And back: no lease is granted earlier for it, and the fence goes on rising.
    world.clock.step_wall(-HOUR);
    held(process.leases.acquire(&key("a"), &request()).await);
    other.leases.release(&second).await.unwrap();
    let third = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(first.fence() < second.fence() && second.fence() < third.fence());
}

// Stalls between reading the clocks and the end of the request.

#[tokio::test]
async fn a_stall_before_the_record_is_written_writes_no_lease_that_is_over() {
    let world = World::new();
    let process = world.process().await;
    let short = Request::new(secs(2)).new_key();
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(secs(4))).on(".lease-index"));
    let watch = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&watch);
    world.objects.set_observer(Box::new(move |change| {
        if change.name.contains("/meta/") {
            seen.lock().unwrap().push(change.at);
        }
    }));
    let clock = world.clock.clone();
    let grant = granted(moving(&[&clock], MILLI * 50, process.leases.acquire(&key("a"), &short)).await);
    // It was tried again with readings of its own.
    assert_eq!(watch.lock().unwrap().len(), 1);
    assert!(grant.is_valid());
    assert!(grant.expires_at() >= noon().plus(secs(6)), "{grant:?}");
}

#[tokio::test]
async fn a_stall_by_the_wall_clock_alone_is_one_too() {
    let world = World::new();
    let process = world.process().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(secs(1))).on(".lease-index"));
    let leases = process.leases.clone();
    let mut acquiring = Box::pin(async move { leases.acquire(&key("a"), &request().new_key()).await });
    start(&mut acquiring).await;
    world.clock.suspend(secs(31));
    world.clock.advance(secs(1));
    let grant = granted(acquiring.await);
    assert_eq!(grant.expires_at(), noon().plus(secs(32) + TTL), "counted from after the stall");
    assert!(grant.is_valid());
}

#[tokio::test]
async fn a_grant_whose_answer_comes_after_its_time_is_not_returned() {
    let world = World::new();
    let process = world.process().await;
    let short = Request::new(secs(2)).new_key();
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(4))).on("/meta/"));
    let clock = world.clock.clone();
    let error = moving(&[&clock], MILLI * 100, process.leases.acquire(&key("a"), &short)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("too late"), "{error}");
    world.clock.advance(SKEW + MILLI);
    granted(process.leases.acquire(&key("a"), &short).await);
}

#[tokio::test]
async fn a_grant_that_the_process_slept_through_is_not_returned() {
    let world = World::new();
    let process = world.process().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(secs(1))).on("/meta/"));
    let leases = process.leases.clone();
    let mut acquiring = Box::pin(async move { leases.acquire(&key("a"), &request().new_key()).await });
    start(&mut acquiring).await;
    world.clock.suspend(secs(60));
    world.clock.advance(secs(1));
    let error = acquiring.await.unwrap_err();
    assert!(error.to_string().contains("too late"), "{error}");
}

#[tokio::test]
async fn a_hand_over_that_took_longer_than_the_lease_is_no_grant() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(other.leases.acquire(&key("a"), &request()).await);
    // The release has the key and reads; the waiter comes and stands behind it.
    let faults = world.objects.faults();
    faults.script(Rule::once(Op::Get, Fault::Delay(secs(1))).on("/meta/"));
    faults.script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    faults.script(Rule::once(Op::Get, Fault::Delay(secs(4))).on("/meta/"));
    let id = first.lease_id();
    let leases = process.leases.clone();
    let releasing = tokio::spawn(async move { leases.release_by_id(&key("a"), id).await });
    settle().await;
    let leases = process.leases.clone();
    let waiting = tokio::spawn(async move {
        let short = Request::new(secs(2));
        leases.acquire_within(&key("a"), &short, secs(60)).await
    });
    settle().await;
    let grant = granted(moving(&[&world.clock], MILLI * 100, waiting).await.unwrap());
    assert!(grant.is_valid(), "handed over after its time: {grant:?}");
    releasing.await.unwrap().unwrap();
}

// An expiry that cannot be.

#[tokio::test]
async fn a_lease_from_a_clock_a_day_ahead_is_taken_over_by_a_waiter_that_watched_it() {
    let world = World::new();
    let process = world.process().await;
    let broken = world.process_off_by(24 * HOUR).await;
    let theirs = granted(broken.leases.acquire(&key("a"), &request()).await);
    held(process.leases.acquire(&key("a"), &request()).await);
    let started = world.clock.monotonic();
    let wait = async { process.leases.acquire_within(&key("a"), &request(), secs(120)).await };
    let mine = granted(moving(&[&world.clock, &broken.clock], MILLI * 10, wait).await);
    let took = world.clock.monotonic().since(started);
    assert!(took >= TTL + SKEW, "after {took:?}");
    assert!(took <= TTL + SKEW + secs(4), "after {took:?}");
    assert!(!theirs.is_valid());
    assert!(mine.fence() > theirs.fence());
    assert_eq!(mine.expires_at(), world.clock.wall().plus(TTL));
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_lease_from_a_clock_a_day_ahead_is_left_alone_while_it_is_renewed() {
    let world = World::new();
    let process = world.process().await;
    let broken = world.process_off_by(24 * HOUR).await;
    let mut theirs = granted(broken.leases.acquire(&key("a"), &request()).await);
    let leases = process.leases.clone();
    let waiting = tokio::spawn(async move { leases.acquire_within(&key("a"), &request(), secs(600)).await });
    for _ in 0..10 {
        pass(&[&world.clock, &broken.clock], TTL - secs(1), MILLI * 500).await;
        assert!(!waiting.is_finished());
        theirs = renewed(broken.leases.renew(&theirs).await);
    }
    let mine = granted(moving(&[&world.clock, &broken.clock], MILLI * 500, waiting).await.unwrap());
    assert!(!theirs.is_valid());
    assert!(mine.fence() > theirs.fence());
}

#[tokio::test]
async fn a_clock_a_day_ahead_that_is_corrected_does_not_lengthen_belief() {
    let world = World::new();
    let broken = world.process_off_by(24 * HOUR).await;
    let first = granted(broken.leases.acquire(&key("a"), &request()).await);
    broken.clock.advance(secs(20));
    broken.clock.step_wall(-24 * HOUR);
    let second = renewed(broken.leases.renew(&first).await);
    assert_eq!(second.expires_at(), first.expires_at());
    assert_eq!(second.time_left(), secs(10));
    broken.clock.advance(secs(10));
    lost(broken.leases.renew(&second).await);
}

#[tokio::test]
async fn an_expiry_that_some_clock_could_have_written_is_waited_for() {
    // The longest lease, from a clock that is ahead by just the skew: not impossible, so it must not be taken over earlier.
    let world = World::new();
    let process = world.process().await;
    let other = world.process_off_by(1000).await;
    let theirs = granted(other.leases.acquire(&key("a"), &Request::new(secs(3600))).await);
    let wait = async { process.leases.acquire_within(&key("a"), &request(), secs(7200)).await };
    let mine = granted(moving(&[&world.clock, &other.clock], secs(1), wait).await);
    assert!(world.clock.wall() > theirs.expires_at().plus(SKEW));
    assert!(mine.fence() > theirs.fence());
}

// Hours.

#[tokio::test]
async fn an_hour_that_rolls_between_the_entry_and_the_record_does_not_part_them() {
    let world = World::new();
    let process = world.process().await;
    // 29 s before the hour, less the time to live: the entry is of this hour.
    world.clock.advance(secs(1800 - 31));
    world.objects.faults().script(Rule::once(Op::Put, Fault::Delay(secs(3))).on("/meta/"));
    let clock = world.clock.clone();
    let grant = granted(moving(&[&clock], secs(1), process.leases.acquire(&key("a"), &request().new_key())).await);
    let hour = Hour::of(grant.expires_at()).unwrap().to_string();
    assert_eq!(world.entries("a"), [hour.as_str()]);
    assert_eq!(hour, "2026010100");
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_write_that_is_tried_again_in_the_next_hour_is_filed_there() {
    let world = World::new();
    let process = world.process().await;
    world.clock.advance(secs(1800 - 31));
    // The first attempt is refused, and so is reading back, until the hour has rolled.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(503))).on("/meta/"));
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(4))).on("/meta/"));
    let clock = world.clock.clone();
    let grant = granted(moving(&[&clock], secs(1), process.leases.acquire(&key("a"), &request().new_key())).await);
    assert_eq!(Hour::of(grant.expires_at()).unwrap().to_string(), "2026010101");
    assert_eq!(world.entries("a"), ["2026010100", "2026010101"]);
}

#[tokio::test]
async fn a_clock_that_is_set_back_into_the_last_hour_files_there_again_or_earlier() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    world.clock.step_wall(HOUR);
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&second).await.unwrap();
    world.clock.step_wall(-HOUR);
    granted(process.leases.acquire(&key("a"), &request()).await);
    world.assert_indexed("a").await;
}

// Times to live.

#[tokio::test]
async fn a_time_to_live_within_the_limits_is_granted_as_it_was_asked_for() {
    let world = World::new();
    let process = world.process().await;
    for (number, asked) in [secs(1), secs(7), secs(3600)].into_iter().enumerate() {
        let name = key(&format!("k{number}"));
        let grant = granted(process.leases.acquire(&name, &Request::new(asked)).await);
        assert_eq!((grant.ttl(), grant.time_left()), (asked, asked));
        assert_eq!(grant.expires_at(), world.clock.wall().plus(asked));
        let again = renewed(process.leases.renew_by_id(&name, grant.lease_id(), Some(asked)).await);
        assert_eq!(again.ttl(), asked);
    }
}

#[tokio::test]
async fn a_time_to_live_beyond_the_limits_is_refused_by_name_and_nothing_is_sent() {
    let world = World::new();
    let process = world.process().await;
    let held = granted(process.leases.acquire(&key("a"), &request()).await);
    let before = process.store.requests().total();
    for (asked, words, way_out) in [
        (secs(24 * 3600), "TTL must be between 1 s and 1 h (got 1 d)", "leasehold store set --max-ttl"),
        (secs(3600) + MILLI, "TTL must be between 1 s and 1 h (got 1 h 1 ms)", "leasehold store set --max-ttl"),
        (10 * MILLI, "TTL must be between 1 s and 1 h (got 10 ms)", "min_ttl"),
    ] {
        let request = Request::new(asked);
        let (name, ttl) = (key("b"), Some(asked));
        let errors = [
            process.leases.acquire(&name, &request).await.map(drop).unwrap_err(),
            process.leases.acquire_within(&name, &request, secs(5)).await.map(drop).unwrap_err(),
            process.leases.lock_within(&name, &request, Duration::ZERO).await.map(drop).unwrap_err(),
            process.leases.renew_by_id(&key("a"), held.lease_id(), ttl).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(words) && error.to_string().contains(way_out), "{error}");
        }
    }
    for refused in [Duration::ZERO, Duration::from_micros(999), Ttl::MAX.as_duration() + MILLI, Duration::MAX] {
        let error = process.leases.acquire(&key("b"), &Request::new(refused)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(process.store.requests().total(), before);
}

#[tokio::test]
async fn a_lease_of_a_millisecond_works_where_the_settings_allow_it() {
    let world = World::new();
    let mut settings = Settings::default();
    settings.min_ttl = MILLI;
    let process = world.process_with(&world.clock, settings).await;
    let grant = granted(process.leases.acquire(&key("a"), &Request::new(MILLI)).await);
    assert!(grant.is_valid());
    world.clock.advance(MILLI);
    assert!(!grant.is_valid());
    world.clock.advance(SKEW + 2 * MILLI);
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(second.fence() > grant.fence());
}

#[tokio::test]
async fn a_shorter_renewal_shortens_neither_what_others_see_nor_belief() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &Request::new(secs(600))).await);
    let second = renewed(process.leases.renew_by_id(&key("a"), first.lease_id(), Some(secs(10))).await);
    assert_eq!(second.expires_at(), first.expires_at(), "an expiry never moves back");
    assert_eq!(second.time_left(), secs(600), "there may be copies of the first grant");
}

// Fences.

#[tokio::test]
async fn a_fence_rises_over_release_and_expiry_and_a_clock_that_goes_back() {
    let world = World::new();
    let (one, two) = (world.process().await, world.process().await);
    let mut last = None;
    for turn in 0..20 {
        let process = if turn % 2 == 0 { &one } else { &two };
        let grant = granted(process.leases.acquire(&key("a"), &request()).await);
        assert!(Some(grant.fence()) > last, "{grant:?} after {last:?}");
        last = Some(grant.fence());
        if turn % 3 == 0 {
            world.clock.advance(ENDED);
        } else {
            process.leases.release(&grant).await.unwrap();
        }
        if turn % 5 == 0 {
            world.clock.step_wall(-HOUR);
            world.clock.step_wall(if turn % 3 == 0 { HOUR } else { 0 });
        }
    }
}

#[tokio::test]
async fn a_fence_rises_over_a_record_that_an_operator_removed() {
    let world = World::new();
    // The one that remembers has a slow clock; the one that does not has one that is slower by the skew.
    let (knows, new) = (world.process().await, world.process_off_by(-999).await);
    let first = granted(knows.leases.acquire(&key("a"), &request()).await);
    knows.leases.release(&first).await.unwrap();
    [&world.clock, &new.clock].iter().for_each(|clock| clock.advance(SKEW));
    assert!(world.objects.delete_object(&record_name("a")));
    let second = granted(new.leases.acquire(&key("a"), &request()).await);
    assert!(second.fence() > first.fence());
    assert!(world.objects.delete_object(&record_name("a")));
    let third = granted(knows.leases.acquire(&key("a"), &request()).await);
    assert!(third.fence() > first.fence());
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_fence_rises_over_a_removed_record_and_over_an_empty_one_left_in_doubt() {
    let world = World::new();
    let (knows, ahead) = (world.process().await, world.process_off_by(999).await);
    let first = granted(knows.leases.acquire(&key("a"), &request()).await);
    knows.leases.release(&first).await.unwrap();
    [&world.clock, &ahead.clock].iter().for_each(|clock| clock.advance(secs(10)));
    let second = granted(ahead.leases.acquire(&key("a"), &request()).await);
    ahead.leases.release(&second).await.unwrap();
    assert!(world.objects.delete_object(&record_name("a")));
    // The one that remembers the first fence only finds the record gone, and stops waiting while it makes it anew.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Hang)).on("/meta/").after(1));
    let (name, asked) = (key("a"), request());
    let mut acquiring = Box::pin(knows.leases.acquire(&name, &asked));
    start(&mut acquiring).await;
    drop(acquiring);
    settle().await;
    let third = granted(knows.leases.acquire(&key("a"), &request()).await);
    assert!(third.fence() > second.fence(), "{third:?} after {second:?}");
}

#[tokio::test]
async fn a_grant_after_record_and_index_were_removed_is_filed_again() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    // An operator empties the bucket.
    world.objects.names().iter().filter(|name| name.starts_with("default/")).for_each(|name| {
        world.objects.delete_object(name);
    });
    granted(process.leases.acquire(&key("a"), &request()).await);
    world.assert_indexed("a").await;
}

#[tokio::test]
async fn a_restored_record_is_reported_once_and_fences_go_on_rising() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    let backup = world.record("a");
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&second).await.unwrap();
    world.objects.put_object(&record_name("a"), backup);
    // The clock is behind as well: only what the process remembers is left.
    world.clock.step_wall(-HOUR);
    let error = process.leases.acquire(&key("a"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Regressed, "{error}");
    let third = granted(process.leases.acquire(&key("a"), &request()).await);
    assert!(third.fence() > second.fence());
}

#[tokio::test]
async fn a_bucket_restored_without_its_index_gets_its_entries_again() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&first).await.unwrap();
    world.clock.advance(secs(3600));
    let backup = world.record("a");
    let second = granted(process.leases.acquire(&key("a"), &request()).await);
    process.leases.release(&second).await.unwrap();
    // The backup is from before this hour's entry was written.
    let hour = Hour::of(second.expires_at()).unwrap();
    assert!(world.objects.delete_object(&format!("default/.lease-index/{hour}/a")));
    world.objects.put_object(&record_name("a"), backup);
    process.leases.acquire(&key("a"), &request()).await.unwrap_err();
    let third = granted(process.leases.acquire(&key("a"), &request()).await);
    let hour = Hour::of(third.expires_at()).unwrap().to_string();
    assert!(world.entries("a").contains(&hour), "{:?}", world.entries("a"));
}

#[tokio::test]
async fn the_fences_of_two_processes_rise_in_the_order_of_their_grants() {
    let world = World::new();
    let (one, two) = (world.process().await, world.process_off_by(-1000).await);
    let mut fences = Vec::new();
    for _ in 0..50 {
        for process in [&one, &two] {
            let grant = granted(process.leases.acquire(&key("a"), &request()).await);
            fences.push(grant.fence());
            process.leases.release(&grant).await.unwrap();
            [&one.clock, &two.clock].iter().for_each(|clock| clock.advance(MILLI));
        }
    }
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

#[tokio::test]
async fn renewing_and_repeating_a_request_keep_the_fence() {
    let world = World::new();
    let process = world.process().await;
    let asked = request().request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(5));
    let second = renewed(process.leases.renew(&first).await);
    let third = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!([second.fence(), third.fence()], [first.fence(); 2]);
    // Once it has ended, the same request is a new one.
    world.clock.advance(ENDED);
    let fourth = granted(process.leases.acquire(&key("a"), &asked).await);
    assert!(fourth.fence() > third.fence());
    assert_ne!(fourth.lease_id(), third.lease_id());
}

#[tokio::test]
async fn a_clock_that_is_set_while_a_hand_over_is_tried_again_grants_nothing() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let (process, other) = (world.process_that_asks_the_time(&clock).await, world.process().await);
    let mine = granted(process.leases.acquire(&key("a"), &request()).await);
    let leases = process.leases.clone();
    let waiting = tokio::spawn(async move { leases.acquire_within(&key("a"), &request(), secs(600)).await });
    settle().await;
    // The hand-over hangs and does not land. When it is tried again, the clock is an hour behind.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Hang)).on("/meta/"));
    let leases = process.leases.clone();
    let releasing = tokio::spawn(async move { leases.release(&mine).await });
    settle().await;
    clock.step_wall(-HOUR);
    pass(&[&clock, &world.clock], secs(20), secs(1)).await;
    assert_eq!(releasing.await.unwrap().map_err(|error| error.kind()), Err(ErrorKind::Unknown));
    let theirs = granted(other.leases.acquire(&key("a"), &request()).await);
    assert!(theirs.is_valid());
    assert!(waiting.is_finished());
    let outcome = waiting.await.unwrap();
    assert!(!matches!(outcome, Ok(Acquired::Granted(_))), "{outcome:?} beside {theirs:?}");
}

#[tokio::test]
async fn a_retried_hand_over_is_not_made_by_a_clock_that_was_set_meanwhile() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let (process, other) = (world.process_that_asks_the_time(&clock).await, world.process().await);
    let mine = granted(process.leases.acquire(&key("a"), &request()).await);
    let leases = process.leases.clone();
    let waiting = tokio::spawn(async move { leases.acquire_within(&key("a"), &request(), secs(600)).await });
    settle().await;
    // Renewed by another process, so that the hand-over meets another record; and slow, so that the clock can be set.
    renewed(other.leases.renew(&mine).await);
    world.objects.faults().script(Rule::once(Op::Put, Fault::Slow(secs(1))).on("/meta/"));
    let leases = process.leases.clone();
    let releasing = tokio::spawn(async move { leases.release(&mine).await });
    settle().await;
    clock.step_wall(-HOUR);
    pass(&[&clock, &world.clock], secs(5), secs(1)).await;
    releasing.await.unwrap().unwrap();
    assert_eq!(world.holder("a").await, None, "given back all the same");
    assert!(!matches!(waiting.await.unwrap(), Ok(Acquired::Granted(_))));
}

#[tokio::test]
async fn a_grant_in_doubt_is_unknown_also_where_the_clock_is_found_to_be_wrong() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&clock).await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)).on("/meta/"));
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))).on("/meta/").after(1));
    let leases = process.leases.clone();
    let mut acquiring = Box::pin(async move { leases.acquire(&key("a"), &request()).await });
    start(&mut acquiring).await;
    assert!(world.objects.object(&record_name("a")).is_some(), "it has landed");
    clock.step_wall(-HOUR);
    let error = moving(&[&clock, &world.clock], secs(1), acquiring).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("clock"), "{error}");
}

#[tokio::test]
async fn a_grant_in_doubt_is_unknown_also_where_permissions_were_taken_away() {
    let world = World::new();
    let process = world.process().await;
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Status(500))).on("/meta/"));
    world.objects.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(403))).on("/meta/").after(1));
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(403))).on("/meta/").after(1));
    let leases = process.leases.clone();
    let acquiring = Box::pin(async move { leases.acquire(&key("a"), &request()).await });
    let error = moving(&[&world.clock], secs(1), acquiring).await.unwrap_err();
    assert!(world.objects.object(&record_name("a")).is_some(), "it has landed");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}

/// A virtual machine that was paused: neither of its clocks has counted the time. What it knows is enough to write at once,
/// and the key is free; the answer tells it.
#[tokio::test]
async fn a_machine_that_stood_still_with_all_its_clocks_is_alone_with_what_it_gets() {
    for keeps in [true, false] {
        let (frozen, running) = (TestClock::at(noon()), TestClock::at(noon()));
        let server = S3Server::start(Arc::new(running.clone())).await.unwrap();
        let open = |clock: &TestClock| s3(&server, clock).probing(Probing::Never).open();
        let leases = open(&frozen).await.unwrap().leases("default").unwrap();
        let mine = granted(leases.acquire(&key("a"), &request()).await);
        if !keeps {
            leases.release(&mine).await.unwrap();
        }
        running.advance(secs(400));
        // It was not held meanwhile. By all other clocks its time is long over, and the store's stamp says that it is not.
        let again = match keeps {
            true => renewed(leases.renew(&mine).await),
            false => granted(leases.acquire(&key("a"), &request()).await),
        };
        let other = open(&running).await.unwrap().leases("default").unwrap();
        loop {
            let taken = other.acquire(&key("a"), &request()).await.unwrap().granted();
            assert!(!(taken.is_some() && again.is_valid()), "two holders");
            if taken.is_some() {
                break;
            }
            [&frozen, &running].iter().for_each(|clock| clock.advance(secs(1)));
        }
        // The answer to its write has told it what time it is.
        assert_eq!(leases.acquire(&key("b"), &request()).await.unwrap_err().kind(), ErrorKind::Clock);
    }
}

#[tokio::test]
async fn by_a_store_that_does_not_tell_its_time_nothing_is_granted() {
    let server_clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(server_clock.clone())).await.unwrap();
    let holder = s3(&server, &server_clock).probing(Probing::Never).open().await.unwrap().leases("default").unwrap();
    let theirs = granted(holder.acquire(&key("a"), &request()).await);
    server.hide_date(true);
    let ahead = TestClock::at(noon().plus(secs(24 * 3600)));
    let process = s3(&server, &ahead).probing(Probing::Never).open().await.unwrap().leases("default").unwrap();
    let error = process.acquire(&key("a"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("what time it is"), "{error}");
    assert_eq!(process.peek(&key("a")).await.unwrap().last_fence, Some(theirs.fence()));
    server.hide_date(false);
    assert_eq!(process.acquire(&key("a"), &request()).await.unwrap_err().kind(), ErrorKind::Clock);
}

#[tokio::test]
async fn the_time_is_not_taken_from_answers_that_the_store_did_not_give() {
    let server_clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(server_clock.clone())).await.unwrap();
    let ahead = TestClock::at(noon().plus(secs(24 * 3600)));
    let process = s3(&server, &ahead).probing(Probing::Never).open().await.unwrap().leases("default").unwrap();
    process.get(&key("a")).await.unwrap();
    // Something in between, which goes by the same wrong clock as this machine, answers in the store's place.
    server.set_date(24 * 3_600_000);
    server.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))).on("/meta/b"));
    moving(&[&ahead, &server_clock], MILLI, process.peek(&key("b"))).await.unwrap_err();
    server.set_date(0);
    let error = process.acquire(&key("a"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
}
