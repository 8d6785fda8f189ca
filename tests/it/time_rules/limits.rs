//! Expiries that no clock could have written, the end of an hour, and the limits of a TTL.

use super::*;

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
