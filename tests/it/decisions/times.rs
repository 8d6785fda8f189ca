//! Ages and clocks: until when a transaction can be decided, by whose clock, and when that is forgotten.

use super::*;

#[tokio::test]
async fn a_transaction_can_be_decided_until_its_age_and_not_a_millisecond_longer() {
    let world = World::new();
    let decisions = world.fresh().await;
    let (young, old) = (decisions.begin(), decisions.begin());
    world.clock.advance(AGE - MILLI);
    assert_eq!(decisions.decide(young, Decision::Abort).await.unwrap(), ABORT);
    world.clock.advance(MILLI);
    assert_eq!(decisions.decide(old, Decision::Abort).await.unwrap(), Decided::TooOld);
    assert_eq!(world.entries_of(old), Vec::<String>::new(), "nothing is written");
    assert_eq!(decisions.get(old).await.unwrap(), Answer::Undecided);
    world.clock.advance(MARGIN);
    assert_eq!(decisions.get(old).await.unwrap(), Answer::Undecided, "also in the margin, to its end");
    world.clock.advance(MILLI);
    assert_eq!(decisions.get(old).await.unwrap(), Answer::Forgotten);
    assert_eq!(decisions.decide(old, Decision::Commit).await.unwrap(), Decided::TooOld);
    assert_eq!(world.marker(old), None);
}

#[tokio::test]
async fn a_coordinator_that_comes_back_after_its_marker_is_gone_decides_nothing() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Abort).await.unwrap();
    world.clock.advance(AGE);
    assert_eq!(world.fresh().await.decide(txn, Decision::Commit).await.unwrap(), ABORT, "it is there to be read");
    world.clock.advance(RETENTION - AGE);
    assert_eq!(world.fresh().await.decide(txn, Decision::Commit).await.unwrap(), ABORT);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Aborted, "to the end of its retention");
    world.clock.advance(MILLI);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
    assert_eq!(world.marker(txn), None);
    for decisions in [decisions, world.fresh().await] {
        assert_eq!(decisions.decide(txn, Decision::Commit).await.unwrap(), Decided::TooOld);
        assert_eq!(decisions.get(txn).await.unwrap(), Answer::Forgotten);
    }
    assert_eq!(world.marker(txn), None);
}

#[tokio::test]
async fn an_id_from_the_future_is_refused_beyond_the_skew() {
    let world = World::new();
    let decisions = world.fresh().await;
    let (near, far) = (begun_at(noon().plus(SKEW)), begun_at(noon().plus(SKEW + MILLI)));
    assert_eq!(decisions.get(near).await.unwrap(), Answer::Undecided);
    assert_eq!(decisions.decide(near, Decision::Abort).await.unwrap(), ABORT);
    assert_eq!(kind(decisions.decide(far, Decision::Abort).await), ErrorKind::Invalid);
    assert_eq!(kind(decisions.get(far).await), ErrorKind::Invalid);
    assert_eq!(kind(decisions.forget(far).await), ErrorKind::Invalid);
    assert_eq!(world.entries_of(far), Vec::<String>::new());
    assert_eq!(kind("7d444840-9dc0-41d1-b245-5ffdce74fad2".parse::<TxnId>()), ErrorKind::Invalid);
}

/// Decides with a process that is suspended while its marker is on its way to the store, for so long.
async fn suspended(world: &World, rule: Fault, op: Op, pause: Duration) -> (TxnId, leasehold::Result<Decided>) {
    let clock = TestClock::at(world.clock.wall());
    let process = world.process_on(&clock).await;
    let txn = process.decisions().begin();
    for clock in [&world.clock, &clock] {
        clock.advance(AGE - MILLI);
    }
    world.script(Rule::once(op, rule).on(MARKERS));
    let decisions = process.decisions();
    let mut deciding = pin!(decisions.decide(txn, Decision::Commit));
    start(&mut deciding).await;
    clock.suspend(pause);
    world.clock.advance(pause);
    (txn, deciding.await)
}

#[tokio::test]
async fn a_marker_that_arrives_after_the_margin_is_void_for_everybody() {
    let late = MARGIN + 2 * MILLI;
    let world = World::new();
    let (txn, decided) = suspended(&world, Fault::Delay(late), Op::Put, late).await;
    assert_eq!(kind(decided), ErrorKind::Unknown);
    let (_, received) = world.marker(txn).expect("it has landed");
    assert_eq!(received, txn.begun().plus(AGE + MARGIN + MILLI));
    let process = world.process().await;
    assert_eq!(process.decisions().decide(txn, Decision::Commit).await.unwrap(), Decided::TooOld);
    assert_eq!(process.decisions().decide(txn, Decision::Abort).await.unwrap(), Decided::TooOld);
    // Its entry is in the hour in which it would have ended.
    world.clock.advance(RETENTION + 2 * HOUR);
    let report = process.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (1, 1, 0), "{report:?}");
    assert_eq!((world.marker(txn), world.entries_of(txn)), (None, Vec::new()));
    assert_eq!(process.decisions().get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn whoever_reads_a_marker_that_is_void_deletes_it() {
    let late = MARGIN + 10 * SECOND;
    let world = World::new();
    let (txn, _) = suspended(&world, Fault::Delay(late), Op::Put, late).await;
    assert!(world.marker(txn).is_some());
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
    assert_eq!(world.marker(txn), None);
}

#[tokio::test]
async fn a_void_marker_is_left_alone_by_a_clock_that_is_not_past_its_end() {
    let late = MARGIN + 10 * SECOND;
    let world = World::new();
    let (txn, _) = suspended(&world, Fault::Delay(late), Op::Put, late).await;
    let behind = world.process_off_by(-30_000).await;
    assert_eq!(behind.decisions().get(txn).await.unwrap(), Answer::Forgotten);
    assert!(world.marker(txn).is_some(), "by this clock somebody may still decide");
    world.clock.advance(30 * SECOND);
    behind.clock.advance(30 * SECOND);
    assert_eq!(behind.decisions().get(txn).await.unwrap(), Answer::Forgotten);
    assert_eq!(world.marker(txn), None);
}

#[tokio::test]
async fn an_answer_that_is_older_than_the_decision_does_not_say_forgotten() {
    let world = World::new();
    let (reader, decider) = (world.process().await, world.process().await);
    let txn = begun_at(noon());
    world.clock.advance(AGE - SECOND);
    world.script(Rule::once(Op::Get, Fault::Slow(MARGIN + 4 * SECOND)).on(MARKERS));
    let decisions = reader.decisions();
    let mut reading = pin!(decisions.get(txn));
    start(&mut reading).await;
    assert_eq!(decider.decisions().decide(txn, Decision::Commit).await.unwrap(), COMMIT);
    // The reader's machine sleeps over the end of the transaction; what it read is from before the decision.
    world.clock.advance(MARGIN + 4 * SECOND);
    assert_ne!(reading.await.ok(), Some(Answer::Forgotten));
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
}

#[tokio::test]
async fn a_marker_that_arrives_at_the_end_of_the_margin_still_counts() {
    let late = MARGIN + MILLI;
    let world = World::new();
    let (txn, decided) = suspended(&world, Fault::Delay(late), Op::Put, late).await;
    // But not for its writer, which cannot know.
    assert_eq!(kind(decided), ErrorKind::Unknown);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
    assert_eq!(world.fresh().await.decide(txn, Decision::Abort).await.unwrap(), COMMIT);
}

#[tokio::test]
async fn a_verdict_that_comes_late_is_unknown_by_response_and_by_reading_back() {
    let last = MILLI + MARGIN - SKEW;
    for (pause, known) in [(last - MILLI, true), (last, false), (last + 10 * SECOND, false)] {
        let world = World::new();
        let (txn, decided) = suspended(&world, Fault::Delay(pause), Op::Put, pause).await;
        assert_eq!(decided.as_ref().ok(), known.then_some(&COMMIT), "by its answer after {pause:?}: {decided:?}");
        assert!(known || kind(decided) == ErrorKind::Unknown);
        assert!(world.marker(txn).is_some());

        let world = World::new();
        world.script(Rule::once(Op::Put, Fault::Lose(Reply::Status(500))).on(MARKERS));
        let (_, decided) = suspended(&world, Fault::Delay(pause), Op::Get, pause).await;
        assert_eq!(decided.as_ref().ok(), known.then_some(&COMMIT), "by reading back after {pause:?}: {decided:?}");
        assert!(known || kind(decided) == ErrorKind::Unknown);
    }
}

#[tokio::test]
async fn a_write_that_was_under_way_for_longer_than_margins_allow_is_void() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    world.clock.advance(AGE - SECOND);
    world.script(Rule::once(Op::Put, Fault::Late(MARGIN + 2 * SECOND, Reply::Drop)).on(MARKERS));
    world.script(Rule::always(Op::Put, Fault::Refuse(Reply::Drop)).on(MARKERS));
    let unknown = moving(&[&world.clock], 100 * MILLI, decisions.decide(txn, Decision::Commit)).await;
    assert_eq!(kind(unknown), ErrorKind::Unknown);
    world.clock.advance(txn.begun().plus(AGE + MARGIN).since(world.clock.wall()));
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Undecided);
    world.clock.advance(3 * SECOND);
    settle().await;
    assert!(world.marker(txn).is_some(), "it has landed");
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
    assert_eq!(decisions.decide(txn, Decision::Commit).await.unwrap(), Decided::TooOld);
}

// Clocks.

#[tokio::test]
async fn a_process_whose_clock_is_two_minutes_off_decides_nothing_and_reads_on() {
    for off in [-120_000, 120_000] {
        let bed = Bed::new().await;
        let other = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
        let decided = bed.store.decisions().begin();
        let _ = bed.store.decisions().decide(decided, Decision::Commit).await.unwrap();
        bed.server.set_date(off);
        // One that began just now by the store's clock.
        let txn = begun_at(Timestamp::from_millis(noon().as_millis() + off.max(0)));
        let decisions = other.decisions();
        // The first answer tells it.
        assert_eq!(decisions.get(decided).await.unwrap(), Answer::Committed);
        assert_eq!(decisions.get(txn).await.unwrap(), Answer::Undecided, "off by {off}");
        assert_eq!(kind(decisions.decide(txn, Decision::Commit).await), ErrorKind::Clock, "off by {off}");
        assert_eq!(kind(decisions.forget(txn).await), ErrorKind::Clock, "off by {off}");
        assert!(other.stats().clock_refusals >= 2);
        assert!(!bed.server.names().iter().any(|name| name.ends_with(&txn.to_string())), "nothing was written");
        bed.server.set_date(0);
        // By clocks that agree, one of the two is from the future.
        let decided = decisions.decide(txn, Decision::Abort).await.map_err(|error| error.kind());
        assert_eq!(decided, if off < 0 { Ok(ABORT) } else { Err(ErrorKind::Invalid) });
    }
}

#[tokio::test]
async fn nobody_calls_forgotten_what_can_still_be_decided_by_the_stores_clock() {
    let bed = Bed::new().await;
    let txn = bed.store.decisions().begin();
    let fast = TestClock::at(noon().plus(2 * HOUR));
    let hasty = s3(&bed.server, &fast).probing(Probing::Never).open().await.unwrap();
    assert_eq!(kind(hasty.decisions().get(txn).await), ErrorKind::Clock);
    assert_eq!(bed.store.decisions().decide(txn, Decision::Commit).await.unwrap(), COMMIT);
    assert_eq!(hasty.decisions().get(txn).await.unwrap(), Answer::Committed);
}

#[tokio::test]
async fn a_marker_in_the_second_a_transaction_ends_cannot_follow_its_forgetting() {
    let clock = TestClock::at(noon());
    let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
    let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    let txn = begun_at(noon().plus(500 * MILLI));
    let body = {
        let decisions = store.decisions();
        let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
        let name = format!("some/prefix/{}", marker_name(txn));
        let body = server.object(&name).unwrap();
        server.delete_object(&name);
        (name, body)
    };
    let store = s3(&server, &clock).probing(Probing::Never).open().await.unwrap();
    let decisions = store.decisions();
    clock.advance(AGE + MARGIN);
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Undecided);
    clock.advance(700 * MILLI);
    // Past its end by both clocks, but what the store receives now carries a time of before its end.
    assert_eq!(kind(decisions.forget(txn).await), ErrorKind::Invalid);
    assert_eq!(kind(decisions.get(txn).await), ErrorKind::Unavailable);
    server.put_object(&body.0, body.1);
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Committed);
    clock.advance(2 * SECOND);
    decisions.forget(txn).await.unwrap();
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn an_expired_marker_is_deleted_only_if_it_is_expired_by_both_clocks() {
    for off in [-10_000, 10_000] {
        let bed = Bed::new().await;
        let txn = bed.store.decisions().begin();
        let _ = bed.store.decisions().decide(txn, Decision::Commit).await.unwrap();
        let there = |bed: &Bed| bed.server.names().iter().any(|name| name.contains(MARKERS));
        // One of the two is past, the other is not.
        bed.server.set_date(off);
        bed.clock.advance(if off < 0 { RETENTION + 5 * SECOND } else { RETENTION - 5 * SECOND });
        let reader = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
        assert_eq!(reader.decisions().get(txn).await.unwrap(), Answer::Committed, "off by {off}");
        assert!(there(&bed));
        bed.clock.advance(30 * SECOND);
        let reader = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
        let (answer, made) = counting(&reader, reader.decisions().get(txn)).await;
        assert_eq!((answer.unwrap(), made), (Answer::Forgotten, [0, 1, 1]), "off by {off}");
        assert!(!there(&bed), "deleted before the reply");
        assert!(bed.server.names().iter().any(|name| name.contains(ENTRIES)), "its entry is the sweeper's");
        assert_eq!(reader.stats().markers_deleted_by_operation, 1);
        bed.clock.advance(2 * HOUR);
        let report = reader.sweeper().run_once(sweep()).await.unwrap();
        assert_eq!((report.of("decision").deleted, report.entries_deleted), (0, 1), "{report:?}");
        assert!(!bed.server.names().iter().any(|name| name.contains(ENTRIES)));
    }
}

#[tokio::test]
async fn a_decision_can_be_forgotten_after_its_margin_and_not_before() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    for wait in [Duration::ZERO, AGE, MARGIN] {
        world.clock.advance(wait);
        assert_eq!(kind(decisions.forget(txn).await), ErrorKind::Invalid);
        assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
    }
    world.clock.advance(MILLI);
    decisions.forget(txn).await.unwrap();
    assert_eq!(world.marker(txn), None);
    for decisions in [decisions.clone(), world.fresh().await] {
        assert_eq!(decisions.get(txn).await.unwrap(), Answer::Forgotten);
        assert_eq!(decisions.decide(txn, Decision::Abort).await.unwrap(), Decided::TooOld);
    }
    decisions.forget(txn).await.unwrap();
}

#[tokio::test]
async fn a_marker_that_expires_too_early_is_kept_while_it_could_be_contradicted() {
    let world = World::new();
    let txn = begun_at(noon());
    let process = world.process().await;
    let _ = process.decisions().decide(txn, Decision::Commit).await.unwrap();
    let body = String::from_utf8(world.marker(txn).unwrap().0.to_vec()).unwrap();
    let (expires, early) = (noon().plus(RETENTION).as_millis(), noon().plus(60 * SECOND).as_millis());
    let changed = body.replace(&expires.to_string(), &early.to_string());
    assert_ne!(changed, body);
    world.objects.put_object(&marker_name(txn), sealed(&changed));
    for wait in [120 * SECOND, AGE - 120 * SECOND, MARGIN] {
        world.clock.advance(wait);
        assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
        assert_eq!(world.fresh().await.decide(txn, Decision::Abort).await.unwrap(), COMMIT);
    }
    world.clock.advance(MILLI);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn the_sweeper_keeps_an_early_expiring_marker_while_it_could_be_contradicted() {
    let world = World::new();
    let process = world.process().await;
    // In the middle of an hour.
    let now = world.clock.wall();
    let txn = begun_at(now);
    let _ = process.decisions().decide(txn, Decision::Commit).await.unwrap();
    let body = String::from_utf8(world.marker(txn).unwrap().0.to_vec()).unwrap();
    let (expires, early) = (now.plus(RETENTION), now.plus(SECOND));
    let changed = body.replace(&expires.as_millis().to_string(), &early.as_millis().to_string());
    assert_ne!(changed, body);
    world.objects.put_object(&marker_name(txn), sealed(&changed));
    let hour = leasehold::Hour::of(early).unwrap();
    world.objects.put_object(&format!("{ENTRIES}{hour}/{txn}"), "{}");
    // Its hour may be swept, and it can still be decided.
    world.clock.advance(HOUR / 2 + MARGIN + SECOND);
    let report = process.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_kept), (0, 1), "{report:?}");
    world.clock.advance(HOUR / 2);
    let report = process.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!(report.of("decision").deleted, 1, "{report:?}");
}
