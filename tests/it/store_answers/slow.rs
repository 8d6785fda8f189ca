//! Stores that are slow, unavailable, list wrongly or answer with an old version.

use super::*;

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
