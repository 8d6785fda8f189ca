//! Clocks that are wrong, and stalls between reading them and the end of a request.

use super::*;

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
