//! Damaged records, index entries that cannot be written, and credentials that are denied.

use super::*;

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
