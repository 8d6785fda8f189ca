//! Jobs that hang on a transaction: they run if and only if it is committed, whoever crashes and when.

use super::shared::{World, work_down};
use crate::common::calm;
use leasehold::{
    ErrorKind, Queue, Store,
    decision::{Answer as Decided, Decision, TxnId},
    job::NewJob,
};
use leasehold_testkit::{Answer, Fault, Op, Rule};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const REFUSED: Fault = Fault::Refuse(Answer::Drop);
const LOST: Fault = Fault::Lose(Answer::Drop);

fn queue(store: &Store) -> Queue {
    store.queue("emails").unwrap()
}

/// Everything that a coordinator does: a job, and the decision that names it.
async fn coordinate(store: Store, txn: TxnId, decision: Decision) {
    let Ok(enrolled) = queue(&store).enqueue("x").in_transaction(txn).await else { return };
    let _ = store.decisions().decide_with(txn, decision, enrolled.segments).await;
}

/// Some seconds pass.
async fn pass(world: &World) {
    for _ in 0..7 {
        world.0.clock.advance(Duration::from_secs(1));
        calm().await;
    }
}

/// Moves time until a call that may wait for its next try has been answered.
async fn moving<T: Send + 'static>(world: &World, call: impl Future<Output = T> + Send + 'static) -> T {
    let task = tokio::spawn(call);
    loop {
        calm().await;
        if task.is_finished() {
            return task.await.unwrap();
        }
        world.0.clock.advance(Duration::from_millis(100));
    }
}

/// Works for a while, as a process that comes back again and again.
async fn work(world: &World, queue: &Queue) -> Vec<String> {
    let mut run = Vec::new();
    for _ in 0..12 {
        run.extend(work_down(queue).await);
        pass(world).await;
    }
    run
}

async fn world() -> (World, Store, Store) {
    let world = World::new();
    let (coordinator, worker) = (world.process(1).await, world.process(2).await);
    queue(&worker).settings().await.unwrap();
    queue(&coordinator).settings().await.unwrap();
    (world, coordinator, worker)
}

#[tokio::test]
async fn a_job_waits_for_its_transaction_and_runs_if_it_is_committed() {
    let (world, coordinator, worker) = world().await;
    let decisions = coordinator.decisions();
    for (decision, ran) in [(Decision::Commit, vec!["x", "y"]), (Decision::Abort, vec![])] {
        let txn = decisions.begin();
        let jobs = ["x", "y"].map(NewJob::new);
        let enrolled = queue(&coordinator).enqueue_many(jobs).in_transaction(txn).await.unwrap();
        assert_eq!((enrolled.ids.len(), enrolled.segments.len()), (2, 1));
        // What comes after it is not hidden by it.
        queue(&coordinator).enqueue("plain").await.unwrap();
        assert_eq!(work_down(&queue(&worker)).await, ["plain"]);
        let decided = decisions.decide_with(txn, decision, &enrolled.segments).await.unwrap();
        assert_eq!(decided.decision(), Some(decision));
        world.pass(Duration::from_secs(3)).await;
        assert_eq!(work_down(&queue(&worker)).await, ran);
        calm().await;
        assert_eq!(world.names("/in/"), Vec::<String>::new(), "nothing is left");
    }
}

#[tokio::test]
async fn wherever_a_coordinator_crashes_a_job_runs_only_if_it_is_committed() {
    let steps = [("/in/", false), (".txn-decisions/e/", false), (".txn-decisions/m/", true)];
    for (step, decides) in steps {
        for fault in [REFUSED, LOST] {
            for decision in [Decision::Commit, Decision::Abort] {
                let (world, coordinator, worker) = world().await;
                let txn = coordinator.decisions().begin();
                world.fault(Rule::always(Op::Put, fault).on(step));
                let task = tokio::spawn(coordinate(coordinator, txn, decision));
                while world.0.store.faults().injected().is_empty() {
                    calm().await;
                }
                // It dies here, before it could try again.
                task.abort();
                let _ = task.await;
                world.0.store.faults().clear();
                let case = format!("{step} {fault:?} {decision}");
                let early = work(&world, &queue(&worker)).await;
                let known = worker.decisions().get(txn).await.unwrap();
                let decided = decides && fault == LOST;
                assert_eq!(known.decision(), decided.then_some(decision), "{case}");
                // Whoever waits for the coordinator gives up: the answer is the same for everybody.
                let _ = worker.decisions().decide(txn, Decision::Abort).await.unwrap();
                let late = work(&world, &queue(&worker)).await;
                let committed = decided && decision == Decision::Commit;
                let ran: Vec<String> = early.into_iter().chain(late).collect();
                assert_eq!(ran, if committed { vec!["x"] } else { vec![] }, "{case}");
                assert_eq!(world.names("/in/"), Vec::<String>::new(), "{case}");
                assert_eq!(world.names("/dead/"), Vec::<String>::new(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_worker_that_fails_at_any_step_changes_nothing_of_it() {
    let steps =
        [(Op::Get, ".txn-decisions/m/"), (Op::Get, "/in/"), (Op::List, "/in/"), (Op::Put, "ledger/"), (Op::Delete, "")];
    for (op, step) in steps {
        for fault in [REFUSED, LOST] {
            for decision in [Decision::Commit, Decision::Abort] {
                let (world, coordinator, worker) = world().await;
                let txn = coordinator.decisions().begin();
                coordinate(coordinator.clone(), txn, decision).await;
                world.fault(Rule::once(op, fault).on(step).times(3));
                let (first, second) = (queue(&worker), world.queue(3).await);
                let mut ran = Vec::new();
                // A delete that was refused is sent again after a minute.
                for _ in 0..40 {
                    for queue in [&first, &second] {
                        let (claiming, finishing) = (queue.clone(), queue.clone());
                        if let Ok(jobs) = moving(&world, async move { claiming.claim(9).await }).await {
                            ran.extend(jobs.iter().map(|job| job.args()));
                            let _ = moving(&world, async move { finishing.finish_all(jobs).await }).await;
                        }
                    }
                    pass(&world).await;
                }
                let case = format!("{op:?} {step} {fault:?} {decision}");
                let expected = if decision == Decision::Commit { vec!["x"] } else { vec![] };
                assert_eq!(ran, expected, "{case}");
                assert_eq!(world.names("/in/"), Vec::<String>::new(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_segment_that_lands_after_the_abort_is_removed() {
    let (world, coordinator, worker) = world().await;
    let txn = coordinator.decisions().begin();
    world.fault(Rule::once(Op::Put, Fault::Late(Duration::from_secs(20), Answer::Drop)).on("/in/"));
    let task = tokio::spawn({
        let coordinator = coordinator.clone();
        async move { queue(&coordinator).enqueue("x").in_transaction(txn).await.map(drop) }
    });
    calm().await;
    task.abort();
    let _ = coordinator.decisions().decide(txn, Decision::Abort).await.unwrap();
    assert!(work(&world, &queue(&worker)).await.is_empty());
    assert_eq!(world.names("/in/"), Vec::<String>::new());
}

#[tokio::test]
async fn a_decision_is_kept_for_as_long_as_a_segment_waits_for_it() {
    let (world, coordinator, worker) = world().await;
    let decisions = coordinator.decisions();
    let txn = decisions.begin();
    let enrolled = queue(&coordinator).enqueue("x").in_transaction(txn).await.unwrap();
    let _ = decisions.decide_with(txn, Decision::Commit, &enrolled.segments).await.unwrap();
    // From Friday to Monday nobody works, and everybody tidies up.
    for _ in 0..72 {
        world.0.clock.advance(HOUR);
        calm().await;
    }
    let other = world.process(3).await;
    let options = leasehold::sweep::SweepOptions::new().op_delay(Duration::ZERO);
    assert_eq!(other.sweeper().run_once(options).await.unwrap().of("decision").deleted, 0);
    let refused = other.decisions().forget(txn).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(other.decisions().get(txn).await.unwrap(), Decided::Committed);
    assert_eq!(work_down(&queue(&world.process(4).await)).await, ["x"]);
    calm().await;
    assert_eq!(world.names("/in/"), Vec::<String>::new());
    assert_eq!(other.decisions().get(txn).await.unwrap(), Decided::Forgotten, "nobody needs it any more");
    assert_eq!(world.names(".txn-decisions/m/"), Vec::<String>::new());
    drop(worker);
}

#[tokio::test]
async fn jobs_of_a_forgotten_transaction_end_as_dead_letters() {
    let (world, coordinator, worker) = world().await;
    let txn = coordinator.decisions().begin();
    let id = queue(&coordinator).enqueue("x").in_transaction(txn).await.unwrap().ids[0];
    assert!(work_down(&queue(&worker)).await.is_empty());
    for _ in 0..80 {
        world.0.clock.advance(Duration::from_secs(60));
        calm().await;
    }
    let later = queue(&world.process(3).await);
    assert!(work(&world, &later).await.is_empty());
    assert_eq!(world.names("/dead/").len(), 1, "it is not dropped");
    assert_eq!(world.names("/in/"), Vec::<String>::new());
    assert!(!matches!(later.get(id).await.unwrap(), Some(info) if info.state == leasehold::job::JobState::Available));
}

#[tokio::test]
async fn a_request_in_one_transaction_is_not_that_of_another() {
    let (world, coordinator, worker) = world().await;
    let decisions = coordinator.decisions();
    let queue = queue(&coordinator);
    let (first, second) = (decisions.begin(), decisions.begin());
    let call = |txn| queue.enqueue("x").in_transaction(txn).request_id("order-7");
    let aborted = call(first).await.unwrap();
    assert_eq!(call(first).await.unwrap(), aborted, "a repeat");
    let _ = decisions.decide(first, Decision::Abort).await.unwrap();
    let committed = call(second).await.unwrap();
    assert_ne!(committed.ids, aborted.ids);
    let _ = decisions.decide_with(second, Decision::Commit, &committed.segments).await.unwrap();
    assert_eq!(work(&world, &self::queue(&worker)).await, ["x"]);
}

#[tokio::test]
async fn a_marker_with_segments_has_a_format_that_earlier_versions_refuse() {
    let (world, coordinator, _worker) = world().await;
    let decisions = coordinator.decisions();
    for (segments, format) in [(vec![], 1), (vec!["default/queue/q/in/0/1/x-1".to_owned()], 2)] {
        let txn = decisions.begin();
        let _ = decisions.decide_with(txn, Decision::Commit, segments).await.unwrap();
        let body = world.0.store.object(&format!(".txn-decisions/m/{txn}")).unwrap().0;
        let marker: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(marker["format"], format);
        assert_eq!(marker.get("segments").is_some(), format == 2);
    }
    let refused = decisions.decide_with(decisions.begin(), Decision::Commit, ["../x"]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}
