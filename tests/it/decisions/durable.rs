//! What is known for good, what a crash leaves behind, and what damage does.

use super::*;

#[tokio::test]
async fn what_was_decided_is_known_for_as_long_as_it_lives_whatever_the_store_does() {
    let world = World::new();
    let process = world.process().await;
    let txn = process.decisions().begin();
    let _ = process.decisions().decide(txn, Decision::Commit).await.unwrap();
    world.objects.delete_object(&marker_name(txn));
    world.clock.advance(RETENTION - MILLI);
    let (answer, made) = counting(&process.store, process.decisions().get(txn)).await;
    assert_eq!((answer.unwrap(), made), (Answer::Committed, [0, 0, 0]));
    world.clock.advance(MILLI);
    assert_eq!(process.decisions().get(txn).await.unwrap(), Answer::Forgotten);
}

// Crashes.

#[tokio::test]
async fn the_entry_is_written_before_the_marker_and_no_marker_without_it() {
    let world = World::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    world.objects.set_observer(Box::new(move |change| log.lock().unwrap().push(change.name.clone())));
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    // The process dies between the two.
    world.script(Rule::once(Op::Put, Fault::Delay(SECOND)).on(MARKERS));
    {
        let mut deciding = pin!(decisions.decide(txn, Decision::Commit));
        start(&mut deciding).await;
    }
    assert_eq!((world.entries_of(txn).len(), world.marker(txn)), (1, None));
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Undecided);
    // While the entry is under way, no marker is.
    let other = decisions.begin();
    world.script(Rule::once(Op::Put, Fault::Delay(SECOND)).on(ENTRIES));
    {
        let mut deciding = pin!(decisions.decide(other, Decision::Commit));
        start(&mut deciding).await;
    }
    assert_eq!((world.entries_of(other).len(), world.marker(other)), (0, None));
    let whole = decisions.begin();
    let _ = decisions.decide(whole, Decision::Commit).await.unwrap();
    let order = order.lock().unwrap().clone();
    let at = |part: &str| order.iter().position(|name| name.contains(part) && name.ends_with(&whole.to_string()));
    assert!(at(ENTRIES).unwrap() < at(MARKERS).unwrap(), "{order:?}");
    // What is left behind is swept.
    world.clock.advance(RETENTION + 2 * HOUR);
    let report = world.process().await.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (1, 2, 0), "{report:?}");
    assert!(!world.objects.names().iter().any(|name| name.starts_with(".txn-decisions/")));
}

#[tokio::test]
async fn an_entry_is_deleted_only_after_its_marker() {
    for fails in [MARKERS, ENTRIES] {
        let world = World::new();
        let process = world.process().await;
        let txn = process.decisions().begin();
        let _ = process.decisions().decide(txn, Decision::Commit).await.unwrap();
        world.clock.advance(RETENTION + 2 * HOUR);
        world.script(Rule::once(Op::Delete, Fault::Refuse(Reply::Status(500))).on(fails));
        let _ = process.store.sweeper().run_once(sweep()).await;
        assert_eq!(world.entries_of(txn).len(), 1, "{fails}");
        assert_eq!(world.marker(txn).is_some(), fails == MARKERS);
        process.store.sweeper().run_once(sweep()).await.unwrap();
        assert_eq!((world.entries_of(txn).len(), world.marker(txn)), (0, None), "{fails}");
    }
}

#[tokio::test]
async fn a_marker_outlives_the_entry_of_somebody_who_lost() {
    let world = World::new();
    let (early, late) = (world.process().await, world.process().await);
    let txn = early.decisions().begin();
    // The first files its entry and dies. At twenty past the next hour another process decides.
    world.script(Rule::once(Op::Put, Fault::Delay(SECOND)).on(MARKERS));
    {
        let decisions = early.decisions();
        let mut deciding = pin!(decisions.decide(txn, Decision::Commit));
        start(&mut deciding).await;
    }
    world.clock.advance(Duration::from_secs(50 * 60));
    assert_eq!(late.decisions().decide(txn, Decision::Abort).await.unwrap(), ABORT);
    assert_eq!(world.entries_of(txn).len(), 2);
    // The first hour is over and can be swept; the marker lives on, with its own entry.
    world.clock.advance(RETENTION - Duration::from_secs(299));
    let report = late.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted), (0, 1), "{report:?}");
    assert_eq!(world.entries_of(txn).len(), 1);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Aborted);
}

// Damage.

#[tokio::test]
async fn a_marker_that_cannot_be_read_is_corrupt_and_never_undecided() {
    let world = World::new();
    let txn = begun_at(noon());
    let decisions = world.fresh().await;
    let _ = decisions.decide(txn, Decision::Commit).await.unwrap();
    let body = world.marker(txn).unwrap().0;
    let other = begun_at(noon());
    let foreign = String::from_utf8(body.to_vec()).unwrap().replace(&txn.to_string(), &other.to_string());
    let broken = [bytes::Bytes::new(), "{}".into(), "null".into(), body.slice(..body.len() - 1), foreign.into()];
    for broken in broken {
        world.objects.put_object(&marker_name(txn), broken.clone());
        assert_eq!(kind(world.fresh().await.get(txn).await), ErrorKind::Corrupt, "{broken:?}");
        assert_eq!(kind(world.fresh().await.decide(txn, Decision::Abort).await), ErrorKind::Corrupt, "{broken:?}");
        assert_eq!(world.marker(txn).unwrap().0, broken, "nothing is overwritten");
    }
    world.clock.advance(RETENTION + 2 * HOUR);
    let process = world.process().await;
    let report = process.store.sweeper().run_once(sweep()).await.unwrap();
    assert_eq!((report.of("decision").deleted, report.entries_deleted, report.failures), (0, 0, 1), "{report:?}");
    assert!(world.marker(txn).is_some(), "an operator must look at it");
    assert_eq!(kind(process.decisions().decide(txn, Decision::Abort).await), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_flipped_bit_never_makes_another_decision() {
    let world = World::new();
    let txn = begun_at(noon());
    let _ = world.fresh().await.decide(txn, Decision::Commit).await.unwrap();
    let body = world.marker(txn).unwrap().0;
    let mut corrupt = 0;
    for bit in 0..body.len() * 8 {
        let mut flipped = body.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        world.objects.put_object(&marker_name(txn), flipped);
        match world.fresh().await.get(txn).await {
            Ok(answer) => assert_eq!(answer, Answer::Committed, "bit {bit}"),
            Err(error) => {
                corrupt += 1;
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Config), "bit {bit}: {error}");
            }
        }
    }
    assert!(corrupt > body.len() * 4, "{corrupt} of {}", body.len() * 8);
}

#[tokio::test]
async fn a_marker_of_a_later_format_is_left_alone_at_once() {
    let world = World::new();
    let txn = begun_at(noon());
    let _ = world.fresh().await.decide(txn, Decision::Commit).await.unwrap();
    let body = String::from_utf8(world.marker(txn).unwrap().0.to_vec()).unwrap();
    world.objects.put_object(&marker_name(txn), body.replace(r#""format": 1"#, r#""format": 3"#));
    assert_eq!(kind(world.fresh().await.get(txn).await), ErrorKind::Config);
    let decisions = world.fresh().await;
    let decided = moving(&[&world.clock], 100 * MILLI, decisions.decide(txn, Decision::Abort)).await;
    assert_eq!(kind(decided), ErrorKind::Config);
}

#[tokio::test]
async fn a_marker_says_all_that_an_operator_wants_to_know() {
    let world = World::new();
    let decisions = world.fresh().await.by("billing-7");
    let txn = decisions.begin();
    let _ = decisions.decide(txn, Decision::Abort).await.unwrap();
    let marker: serde_json::Value = serde_json::from_slice(&world.marker(txn).unwrap().0).unwrap();
    let names: BTreeSet<&str> = marker.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["format", "txn", "write_id", "decision", "by", "decided_ms", "expires_ms", "crc32c"];
    assert_eq!(names, BTreeSet::from(expected));
    assert_eq!(
        (&marker["txn"], &marker["decision"], &marker["by"]),
        (&txn.to_string().into(), &"abort".into(), &"billing-7".into())
    );
    assert_eq!(marker["expires_ms"].as_i64().unwrap(), noon().plus(RETENTION).as_millis());
}

#[tokio::test]
async fn a_marker_outlives_its_retention_while_its_transaction_can_be_contradicted() {
    let world = World::new();
    let mut settings = Settings::default();
    settings.marker_retention = Some(60 * SECOND);
    let process = world.process_with(&world.clock, settings).await;
    let txn = process.decisions().begin();
    let _ = process.decisions().decide(txn, Decision::Commit).await.unwrap();
    world.clock.advance(AGE + MARGIN);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
    world.clock.advance(MILLI);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn a_decision_the_store_received_too_late_is_not_won_whatever_our_clock_says() {
    let world = World::new();
    world.objects.set_offset_millis(10_000);
    let clock = TestClock::at(world.clock.wall());
    let process = world.process_that_asks_the_time(&clock).await;
    let decisions = process.decisions();
    let txn = decisions.begin();
    for clock in [&world.clock, &clock] {
        clock.advance(AGE - 15 * SECOND);
    }
    // Its clock runs ten seconds behind the store's. It is suspended until just before it would stop believing its own.
    let pause = MARGIN + 10 * SECOND;
    world.script(Rule::once(Op::Put, Fault::Delay(pause)).on(MARKERS));
    let mut deciding = pin!(decisions.decide(txn, Decision::Commit));
    start(&mut deciding).await;
    clock.suspend(pause);
    world.clock.advance(pause);
    let decided = deciding.await;
    assert!(world.marker(txn).unwrap().1 > txn.begun().plus(AGE + MARGIN), "it is void");
    assert_eq!(kind(decided), ErrorKind::Unknown);
    world.clock.advance(61 * SECOND);
    clock.advance(61 * SECOND);
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Forgotten);
}

/// A virtual machine that was paused, on a store whose answers have no date.
#[tokio::test]
async fn a_decision_by_a_frozen_machine_is_judged_by_when_the_store_received_it() {
    let world = World::new();
    let frozen = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&frozen).await;
    let (decisions, txn) = (process.decisions(), process.decisions().begin());
    world.clock.advance(AGE + MARGIN + 2 * SECOND);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
    assert_eq!(kind(decisions.decide(txn, Decision::Commit).await), ErrorKind::Unknown);
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn a_decision_received_too_late_by_one_store_machine_is_not_won_by_another() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    world.clock.advance(AGE - SECOND);
    world.script(Rule::once(Op::Put, Fault::Delay(2 * SECOND)).on(MARKERS));
    let mut deciding = pin!(decisions.decide(txn, Decision::Commit));
    start(&mut deciding).await;
    // By all that the process knows there is time left. What counts is when its marker was received.
    world.objects.set_offset_millis(millis(MARGIN + SECOND));
    world.clock.advance(2 * SECOND);
    assert_eq!(kind(deciding.await), ErrorKind::Unknown);
    assert!(world.marker(txn).unwrap().1 > txn.begun().plus(AGE + MARGIN), "it is void");
}
