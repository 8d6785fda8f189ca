//! At each write of a job's life an answer is lost, comes late, or the write is made twice: each job is there once, runs
//! once, and ends once.

use super::process::{Process, World, numbers};
use leasehold::job::AttemptEnd;
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

/// What can become of a write, with a name for messages.
fn troubles() -> Vec<(&'static str, Fault)> {
    let late = Duration::from_millis(1500);
    vec![
        ("lost, connection closed", Fault::Lose(Answer::Drop)),
        ("lost, no answer", Fault::Lose(Answer::Hang)),
        ("lost, 500", Fault::Lose(Answer::Status(500))),
        ("lost, 412", Fault::Lose(Answer::Status(412))),
        ("late, connection closed", Fault::Late(late, Answer::Drop)),
        ("late, 503", Fault::Late(late, Answer::Status(503))),
        ("twice", Fault::Duplicate),
        ("refused, 412", Fault::Refuse(Answer::Status(412))),
        ("refused, 409", Fault::Refuse(Answer::Status(409))),
        ("refused, connection closed", Fault::Refuse(Answer::Drop)),
    ]
}

/// Works a queue off with two processes in turn; every job that ran, by number.
fn work_off(world: &World, processes: &[&Process]) -> Vec<usize> {
    let mut ran = Vec::new();
    for _ in 0..12 {
        for process in processes {
            let claimed = process.run_in_time(world, process.queue.claim(10).into_future()).unwrap();
            ran.extend(numbers(&claimed));
            let ends = process.run_in_time(world, process.queue.finish_all(claimed)).unwrap();
            assert!(ends.iter().all(AttemptEnd::is_accepted), "{ends:?}");
            process.pass(world, Duration::from_secs(1));
        }
    }
    ran.sort_unstable();
    ran
}

fn each_trouble(check: impl Fn(&World, &Process, &Process, Fault, &str)) {
    for (name, fault) in troubles() {
        let world = World::new();
        let (one, other) = (world.process(1), world.process(2));
        check(&world, &one, &other, fault, name);
    }
}

#[test]
fn the_create_of_a_segment_makes_its_jobs_once() {
    each_trouble(|world, one, other, fault, name| {
        world.fault(Op::Put, "/in/", fault);
        let jobs = super::process::jobs(3);
        let ids = one.run_in_time(world, one.queue.enqueue_many(jobs).into_future()).unwrap();
        assert_eq!(ids.len(), 3, "{name}");
        assert_eq!(work_off(world, &[one, other]), [0, 1, 2], "{name}");
    });
}

#[test]
fn the_commit_of_a_claim_hands_each_job_out_once() {
    each_trouble(|world, one, other, fault, name| {
        one.enqueue(4);
        world.fault(Op::Put, "/ledger/", fault);
        assert_eq!(work_off(world, &[one, other]), [0, 1, 2, 3], "{name}");
    });
}

#[test]
fn the_commit_of_a_finish_ends_each_job_once_and_is_never_told_stale() {
    each_trouble(|world, one, other, fault, name| {
        one.enqueue(2);
        let claimed = one.claim(2);
        world.fault(Op::Put, "/ledger/", fault);
        let ends = one.run_in_time(world, one.queue.finish_all(claimed)).unwrap();
        let finished = AttemptEnd::Finished { late: false };
        assert!(ends.iter().all(|end| *end == finished), "{name}: {ends:?}");
        assert_eq!(work_off(world, &[one, other]), [0_usize; 0], "{name}");
    });
}

#[test]
fn the_commit_of_a_failure_uses_one_attempt() {
    each_trouble(|world, one, other, fault, name| {
        one.enqueue(1);
        let job = one.claim(1).remove(0);
        world.fault(Op::Put, "/ledger/", fault);
        let end = one.run_in_time(world, job.fail("no").into_future()).unwrap();
        assert!(matches!(end, AttemptEnd::Waits { .. }), "{name}: {end:?}");
        other.pass(world, Duration::from_secs(5));
        let again = other.run_in_time(world, other.queue.claim(1).into_future()).unwrap();
        assert_eq!(again.iter().map(leasehold::job::Job::attempt).collect::<Vec<_>>(), [2], "{name}");
    });
}

#[test]
fn a_lost_answer_is_recognised_under_a_commit_of_another_process() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(10);
    // The last to commit knows the ledger as it is: its finish lands at the first try.
    let theirs = other.claim(2);
    let ours = one.claim(2);
    // The finish lands, its answer never comes, and meanwhile the other one commits on top of it.
    world.0.store.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)).on("/ledger/"));
    let finishing = one.queue.finish_all(ours);
    let mut finishing = Box::pin(finishing);
    one.run(async {
        tokio::select! { biased; _ = &mut finishing => panic!("no answer yet"), () = crate::common::calm() => {} }
    });
    let ends = other.run_in_time(&world, other.queue.finish_all(theirs)).unwrap();
    assert!(ends.iter().all(AttemptEnd::is_accepted));
    let ends = one.run_in_time(&world, finishing).unwrap();
    assert!(ends.iter().all(|end| *end == AttemptEnd::Finished { late: false }), "{ends:?}");
    assert_eq!(work_off(&world, &[&one, &other]).len(), 6);
}

#[test]
fn a_claim_that_nobody_waits_for_any_more_is_given_back_uncharged() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(3);
    world.fault(Op::Put, "/ledger/", Fault::Slow(Duration::from_secs(1)));
    one.run(async {
        let mut call = Box::pin(one.queue.claim(3).into_future());
        tokio::select! { biased; _ = &mut call => panic!("no answer yet"), () = crate::common::calm() => {} }
    });
    one.pass(&world, Duration::from_secs(3));
    let claimed = other.claim(10);
    assert_eq!(numbers(&claimed), [0, 1, 2]);
    assert!(claimed.iter().all(|job| job.attempt() == 1));
}

#[test]
fn an_answer_stays_queued_while_the_store_is_away_and_is_in_when_it_is_back() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(2);
    let mut claimed = one.claim(2);
    world.0.store.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Status(503))).on("/ledger/"));
    // Nobody waits for the first one; the second one's caller is told when it is in.
    drop(claimed.remove(0).finish());
    let finishing = claimed.remove(0).finish();
    one.pass(&world, Duration::from_secs(15));
    world.0.store.faults().clear();
    let end = one.run_in_time(&world, finishing.into_future()).unwrap();
    assert_eq!(end, AttemptEnd::Finished { late: false });
    assert_eq!(work_off(&world, &[&one, &other]), [0_usize; 0]);
}

#[test]
fn a_claim_answered_after_a_pause_hands_out_nothing_that_may_be_taken_away() {
    let world = World::new();
    // It waits for its answer for longer than its session can last.
    let paused = world.process_with(1, |jobs| jobs.answer_timeout = Duration::from_secs(300));
    let other = world.process(2);
    paused.enqueue(3);
    world.fault(Op::Put, "/ledger/", Fault::Slow(Duration::from_secs(1)));
    let mut claiming = Box::pin(paused.queue.claim(3).into_future());
    paused.run(async {
        tokio::select! { biased; _ = &mut claiming => panic!("no answer yet"), () = crate::common::calm() => {} }
    });
    // It has landed, and its process is stopped until its session is over.
    other.pass(&world, Duration::from_secs(45));
    let told = paused.run_in_time(&world, claiming);
    let error = told.expect_err("they may be somebody else's by now");
    assert_eq!(error.kind(), leasehold::ErrorKind::Unavailable, "{error}");
}

#[test]
fn an_answer_is_not_forgotten_when_the_ledger_cannot_be_read() {
    let world = World::new();
    let (one, other) = (world.process(1), world.process(2));
    one.enqueue(2);
    let mut claimed = one.claim(2);
    // Its session is over, and nobody has looked: what it says now is based on a read.
    other.pass(&world, Duration::from_secs(45));
    world.0.store.faults().script(Rule::always(Op::Get, Fault::Refuse(Answer::Status(503))).on("/ledger/"));
    drop(claimed.remove(0).finish());
    let finishing = claimed.remove(0).finish();
    one.pass(&world, Duration::from_secs(15));
    world.0.store.faults().clear();
    let end = one.run_in_time(&world, finishing.into_future()).unwrap();
    assert_eq!(end, AttemptEnd::Finished { late: false });
    assert_eq!(work_off(&world, &[&other]), [0_usize; 0], "both are finished");
}

#[test]
fn a_ledger_set_back_under_a_living_process_is_told_as_that_and_work_goes_on() {
    let world = World::new();
    let one = world.process(1);
    one.enqueue(6);
    let mut claimed = one.claim(4);
    let ledger = world.names("/ledger/").remove(0);
    let (backup, _) = world.0.store.object(&ledger).unwrap();
    // These are finished after the backup was made: they are in hand again in what is restored.
    let rest = claimed.split_off(2);
    assert!(one.run(one.queue.finish_all(claimed)).unwrap().iter().all(AttemptEnd::is_accepted));
    drop(one.claim(1).remove(0).finish());
    one.calm();
    world.0.store.put_object(&ledger, backup);
    // Whoever waits for an answer is told that the store went back: neither unknown nor stale.
    let error = one.run_in_time(&world, one.queue.finish_all(rest)).unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Regressed, "{error}");
    assert!(error.to_string().contains(&ledger), "{error}");
    // What was said of the jobs still holds, and nothing is lost: what ended after the backup runs again.
    one.pass(&world, Duration::from_secs(60));
    let again = work_off(&world, &[&one]);
    assert!(again.windows(2).all(|two| two[0] < two[1]), "none runs twice from here on: {again:?}");
    assert!(again.contains(&4) && again.contains(&5), "{again:?}");
}
