//! Fences only rise.

use super::*;

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
