//! Decisions whose clock, permissions or record change while they are made.

use super::*;

#[tokio::test]
async fn what_was_forgotten_while_it_was_read_is_not_undecided() {
    let world = World::new();
    let (coordinator, participant) = (world.fresh().await, world.fresh().await);
    let txn = coordinator.begin();
    assert_eq!(coordinator.decide(txn, Decision::Commit).await.unwrap(), COMMIT);
    world.clock.advance(AGE + MARGIN - SECOND);
    // It may still be decided when it asks, and has been forgotten when the store looks.
    world.script(Rule::once(Op::Get, Fault::Delay(4 * SECOND)).on(MARKERS));
    let mut asking = pin!(participant.get(txn));
    start(&mut asking).await;
    world.clock.advance(3 * SECOND);
    coordinator.forget(txn).await.unwrap();
    world.clock.advance(SECOND);
    assert_eq!(kind(asking.await), ErrorKind::Unavailable);
    assert_eq!(participant.get(txn).await.unwrap(), Answer::Forgotten);
}

#[tokio::test]
async fn a_decision_in_doubt_is_unknown_also_where_the_clock_is_found_to_be_wrong() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&clock).await;
    let (decisions, txn) = (process.decisions(), process.decisions().begin());
    world.script(Rule::once(Op::Put, Fault::Lose(Reply::Hang)).on(MARKERS));
    world.script(Rule::always(Op::Get, Fault::Refuse(Reply::Status(503))).on(MARKERS));
    let mut deciding = Box::pin(async move { decisions.decide(txn, Decision::Commit).await });
    start(&mut deciding).await;
    clock.step_wall(-3_600_000);
    let error = moving(&[&clock, &world.clock], SECOND, deciding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    world.objects.faults().clear();
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
}

#[tokio::test]
async fn a_decision_in_doubt_is_unknown_also_where_permissions_were_taken_away() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    world.script(Rule::once(Op::Put, Fault::Lose(Reply::Status(500))).on(MARKERS));
    world.script(Rule::always(Op::Get, Fault::Refuse(Reply::Status(403))).on(MARKERS));
    world.script(Rule::always(Op::Put, Fault::Refuse(Reply::Status(403))).on(MARKERS).after(1));
    let deciding = Box::pin(async move { decisions.decide(txn, Decision::Commit).await });
    let error = moving(&[&world.clock], SECOND, deciding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    world.objects.faults().clear();
    assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::Committed);
}

#[tokio::test]
async fn a_clock_that_is_set_while_the_entry_is_written_decides_nothing() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&clock).await;
    let (decisions, txn) = (process.decisions(), process.decisions().begin());
    world.script(Rule::once(Op::Put, Fault::Slow(SECOND)).on(ENTRIES));
    let mut deciding = Box::pin(async move { decisions.decide(txn, Decision::Commit).await });
    start(&mut deciding).await;
    clock.step_wall(-3_600_000);
    let error = moving(&[&clock, &world.clock], SECOND, deciding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
    assert_eq!(world.marker(txn), None);
}

#[tokio::test]
async fn a_verdict_is_not_believed_by_a_clock_that_was_set_while_it_was_under_way() {
    let world = World::new();
    let clock = TestClock::at(noon());
    let process = world.process_that_asks_the_time(&clock).await;
    let (decisions, txn) = (process.decisions(), process.decisions().begin());
    world.script(Rule::once(Op::Put, Fault::Slow(SECOND)).on(MARKERS));
    let mut deciding = Box::pin(async move { decisions.decide(txn, Decision::Commit).await });
    start(&mut deciding).await;
    // The machine sleeps, its monotonic clock with it, and wakes with a wall clock that says otherwise.
    clock.step_wall(-3_600_000);
    world.clock.advance(AGE + MARGIN + SECOND);
    let error = moving(&[&clock, &world.clock], SECOND, deciding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}
