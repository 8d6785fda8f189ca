//! A transaction is decided once, for all processes and for good; once that is forgotten, no answer claims to know it.

mod doubt;
mod durable;
mod example;
mod histories;
mod times;

use crate::{
    common::{Bed, SECOND, noon, s3},
    processes::{MILLI, Process, SKEW, World, moving, settle, start},
};
use futures_util::future::join_all;
use leasehold::{
    Clock, ErrorKind, OsGenerator, Settings, Store,
    clock::Timestamp,
    decision::{Answer, Decided, Decision, Decisions, TxnId},
    store::{
        Probing,
        RequestKind::{self, Delete, Get, Put},
    },
    sweep::SweepOptions,
};
use leasehold_testkit::{Answer as Reply, Fault, Op, Rates, Rule, S3Server, SeededGenerator, TestClock};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

#[path = "../../examples/two_phase_commit.rs"]
mod two_phase_commit;

const HOUR: Duration = Duration::from_secs(3600);
/// The defaults of `max_txn_age`, `margin` and the retention of markers.
const AGE: Duration = HOUR;
const MARGIN: Duration = Duration::from_secs(900);
const RETENTION: Duration = Duration::from_secs(24 * 3600);

const COMMIT: Decided = Decided::Decision(Decision::Commit);
const ABORT: Decided = Decided::Decision(Decision::Abort);

const MARKERS: &str = ".txn-decisions/m/";
const ENTRIES: &str = ".txn-decisions/e/";

impl World {
    /// A process by the store's clock that remembers nothing.
    async fn fresh(&self) -> Decisions {
        self.process().await.store.decisions()
    }

    fn script(&self, rule: Rule) {
        self.objects.faults().script(rule);
    }

    fn marker(&self, txn: TxnId) -> Option<(bytes::Bytes, Timestamp)> {
        self.objects.object(&marker_name(txn))
    }

    fn entries_of(&self, txn: TxnId) -> Vec<String> {
        let is_its = |name: &String| name.starts_with(ENTRIES) && name.ends_with(&txn.to_string());
        self.objects.names().into_iter().filter(is_its).collect()
    }
}

impl Process {
    fn decisions(&self) -> Decisions {
        self.store.decisions()
    }
}

fn marker_name(txn: TxnId) -> String {
    format!("{MARKERS}{txn}")
}

/// A transaction that begins when the clocks of these tests stand where they start.
fn begun_at(at: Timestamp) -> TxnId {
    TxnId::begin(&TestClock::at(at), &OsGenerator::new())
}

/// With the checksum that it must have.
fn sealed(body: &str) -> String {
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body).unwrap();
    fields.remove("crc32c");
    let checksum = crc32c::crc32c(&serde_json::to_vec(&fields).unwrap());
    fields.insert("crc32c".to_owned(), format!("{checksum:08x}").into());
    serde_json::to_string(&fields).unwrap()
}

fn kind<T: std::fmt::Debug>(result: leasehold::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

fn sweep() -> SweepOptions {
    SweepOptions::new().op_delay(Duration::ZERO)
}

/// Puts, gets and deletes that one store makes.
async fn counting<T>(store: &Store, run: impl Future<Output = T>) -> (T, [u64; 3]) {
    let before = store.requests();
    let result = run.await;
    let made = store.requests().since(&before);
    let counts = [Put, Get, Delete].map(|kind: RequestKind| made.of(kind));
    assert_eq!(counts.iter().sum::<u64>(), made.total(), "{made:?}");
    (result, counts)
}

// What it costs.

#[tokio::test]
async fn a_decision_is_two_requests_and_one_that_was_made_already_three() {
    let bed = Bed::new().await;
    let other = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
    let txn = bed.store.decisions().begin();
    let (decided, made) = counting(&bed.store, bed.store.decisions().decide(txn, Decision::Commit)).await;
    assert_eq!((decided.unwrap(), made), (COMMIT, [2, 0, 0]));
    let (decided, made) = counting(&other, other.decisions().decide(txn, Decision::Abort)).await;
    assert_eq!((decided.unwrap(), made), (COMMIT, [2, 1, 0]));
    // Known from then on.
    let (decided, made) = counting(&other, other.decisions().decide(txn, Decision::Abort)).await;
    assert_eq!((decided.unwrap(), made), (COMMIT, [0, 0, 0]));
}

#[tokio::test]
async fn reading_a_decision_is_one_request_known_none_and_expired_two() {
    let bed = Bed::new().await;
    let txn = bed.store.decisions().begin();
    let _ = bed.store.decisions().decide(txn, Decision::Commit).await.unwrap();
    let other = s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap();
    for (requests, store) in [([0, 0, 0], &bed.store), ([0, 1, 0], &other), ([0, 0, 0], &other)] {
        let (answer, made) = counting(store, store.decisions().get(txn)).await;
        assert_eq!((answer.unwrap(), made), (Answer::Committed, requests));
    }
    bed.clock.advance(RETENTION + SECOND);
    for store in [&bed.store, &other] {
        let requests = if std::ptr::eq(store, &bed.store) { [0, 1, 1] } else { [0, 1, 0] };
        let (answer, made) = counting(store, store.decisions().get(txn)).await;
        assert_eq!((answer.unwrap(), made), (Answer::Forgotten, requests));
    }
}

#[tokio::test]
async fn what_may_change_is_asked_for_every_time() {
    let bed = Bed::new().await;
    let decisions = bed.store.decisions();
    let txn = decisions.begin();
    for _ in 0..2 {
        let (answer, made) = counting(&bed.store, decisions.get(txn)).await;
        assert_eq!((answer.unwrap(), made), (Answer::Undecided, [0, 1, 0]));
    }
    // What is known of the store's time from its first answer is good to 1 in 2,000.
    bed.clock.advance(AGE + MARGIN + 5 * SECOND);
    for _ in 0..2 {
        let (answer, made) = counting(&bed.store, decisions.get(txn)).await;
        assert_eq!((answer.unwrap(), made), (Answer::Forgotten, [0, 1, 0]));
    }
}

// One decision.

#[tokio::test]
async fn the_same_again_is_fine_and_the_opposite_gets_what_was_decided() {
    let world = World::new();
    for (first, second, decided) in
        [(Decision::Commit, Decision::Abort, COMMIT), (Decision::Abort, Decision::Commit, ABORT)]
    {
        let process = world.process().await;
        let txn = process.decisions().begin();
        assert_eq!(process.decisions().decide(txn, first).await.unwrap(), decided);
        let written = world.marker(txn);
        for decisions in [process.decisions(), world.fresh().await] {
            assert_eq!(decisions.decide(txn, first).await.unwrap(), decided);
            assert_eq!(decisions.decide(txn, second).await.unwrap(), decided);
        }
        assert_eq!(world.fresh().await.decide(txn, second).await.unwrap(), decided);
        assert_eq!(world.fresh().await.get(txn).await.unwrap(), Answer::from(first));
        assert_eq!(world.marker(txn), written, "a marker is written once");
        assert_eq!(process.store.stats().decisions_made, 1);
    }
}

#[tokio::test]
async fn sixteen_that_commit_and_abort_at_once_agree_two_hundred_times() {
    let world = World::new();
    let processes = join_all((0..16).map(|_| world.process())).await;
    let reader = world.fresh().await;
    let rates = Rates::none()
        .with(Fault::Delay(MILLI), 300)
        .with(Fault::Delay(3 * MILLI), 300)
        .with(Fault::Lose(Reply::Status(500)), 40)
        .with(Fault::Refuse(Reply::Status(409)), 40)
        .with(Fault::Duplicate, 40);
    let mut winners = BTreeSet::new();
    for round in 0..200u64 {
        world.objects.faults().roll(SeededGenerator::new(round), rates.clone());
        let txn = reader.begin();
        let all = join_all(processes.iter().enumerate().map(|(number, process)| {
            let decisions = process.decisions();
            let wants = if number % 2 == 0 { Decision::Commit } else { Decision::Abort };
            async move {
                let first = decisions.decide(txn, wants).await.unwrap();
                (first, decisions.get(txn).await.unwrap())
            }
        }));
        let answers = moving(&[&world.clock], MILLI, all).await;
        world.objects.faults().clear();
        let decision = match reader.get(txn).await.unwrap() {
            Answer::Committed => Decision::Commit,
            Answer::Aborted => Decision::Abort,
            other => panic!("{other:?}"),
        };
        for answer in answers {
            assert_eq!(answer, (Decided::Decision(decision), decision.into()), "round {round}");
        }
        let made: Vec<u64> = processes.iter().map(|process| process.store.stats().decisions_made).collect();
        assert_eq!(made.iter().sum::<u64>(), round + 1, "one winner in each round");
        winners.insert(decision.to_string());
    }
    assert_eq!(winners.len(), 2, "it is a race: {winners:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn those_that_decide_at_once_over_http_agree() {
    let bed = Bed::new().await;
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(s3(&bed.server, &bed.clock).probing(Probing::Never).open().await.unwrap());
    }
    for _ in 0..25 {
        let txn = bed.store.decisions().begin();
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let decisions = stores[number / 2].decisions();
                let wants = if number % 2 == 0 { Decision::Commit } else { Decision::Abort };
                tokio::spawn(async move { decisions.decide(txn, wants).await.unwrap() })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
        let Decided::Decision(decision) = answers[0] else { panic!("too old") };
        assert_eq!(bed.store.decisions().get(txn).await.unwrap(), decision.into());
    }
    assert_eq!(stores.iter().map(|store| store.stats().decisions_made).sum::<u64>(), 25);
}

// Answers that get lost.

const LOSSES: [Reply; 5] =
    [Reply::Status(500), Reply::Status(503), Reply::Status(409), Reply::Status(412), Reply::Drop];

#[tokio::test]
async fn a_decision_whose_answer_is_lost_is_known_to_be_ones_own() {
    for loss in LOSSES {
        let world = World::new();
        let process = world.process().await;
        let txn = process.decisions().begin();
        world.script(Rule::once(Op::Put, Fault::Lose(loss)).on(MARKERS));
        let decided = process.decisions().decide(txn, Decision::Commit).await.unwrap();
        assert_eq!(decided, COMMIT, "{loss:?}");
        assert_eq!(process.store.stats().decisions_made, 1, "{loss:?}");
        let bed = Bed::new().await;
        let txn = bed.store.decisions().begin();
        bed.server.faults().script(Rule::once(Op::Put, Fault::Lose(loss)).on(MARKERS));
        assert_eq!(bed.store.decisions().decide(txn, Decision::Commit).await.unwrap(), COMMIT, "{loss:?}");
        assert_eq!(bed.store.stats().decisions_made, 1, "{loss:?}");
    }
}

#[tokio::test]
async fn a_refusal_behind_which_nobody_has_decided_is_tried_again() {
    for refusal in LOSSES {
        for which in [MARKERS, ENTRIES] {
            let world = World::new();
            let decisions = world.fresh().await;
            let txn = decisions.begin();
            world.script(Rule::once(Op::Put, Fault::Refuse(refusal)).on(which).times(3));
            let decided = moving(&[&world.clock], 10 * MILLI, decisions.decide(txn, Decision::Abort)).await;
            assert_eq!(decided.unwrap(), ABORT, "{refusal:?} {which}");
            assert_eq!(world.entries_of(txn).len(), 1);
        }
    }
}

#[tokio::test]
async fn a_decision_that_may_yet_land_is_unknown_and_can_be_repeated() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    world.script(Rule::once(Op::Put, Fault::Late(30 * SECOND, Reply::Drop)).on(MARKERS));
    world.script(Rule::always(Op::Put, Fault::Refuse(Reply::Drop)).on(MARKERS));
    let unknown = moving(&[&world.clock], 100 * MILLI, decisions.decide(txn, Decision::Commit)).await;
    assert_eq!(kind(unknown), ErrorKind::Unknown);
    assert_eq!(decisions.get(txn).await.unwrap(), Answer::Undecided);
    world.objects.faults().clear();
    settle().await;
    world.clock.advance(30 * SECOND);
    settle().await;
    // It landed. Asking for the opposite does not undo it.
    assert_eq!(decisions.decide(txn, Decision::Abort).await.unwrap(), COMMIT);
    // And if it never lands, the repetition decides.
    let txn = decisions.begin();
    world.script(Rule::always(Op::Put, Fault::Refuse(Reply::Drop)).on(MARKERS));
    let unknown = moving(&[&world.clock], 100 * MILLI, decisions.decide(txn, Decision::Commit)).await;
    assert_eq!(kind(unknown), ErrorKind::Unknown);
    world.objects.faults().clear();
    assert_eq!(decisions.decide(txn, Decision::Abort).await.unwrap(), ABORT);
}

#[tokio::test]
async fn what_was_never_sent_is_not_in_doubt() {
    let world = World::new();
    let decisions = world.fresh().await;
    let txn = decisions.begin();
    world.script(Rule::always(Op::Put, Fault::Refuse(Reply::Status(503))).on(ENTRIES));
    let failed = moving(&[&world.clock], 100 * MILLI, decisions.decide(txn, Decision::Commit)).await;
    assert_eq!(kind(failed), ErrorKind::Unavailable);
    assert_eq!(world.marker(txn), None);
}

#[tokio::test]
async fn a_decision_in_doubt_is_unknown_also_if_it_grows_too_old_meanwhile() {
    for lands in [true, false] {
        let world = World::new();
        let decisions = world.fresh().await;
        let txn = decisions.begin();
        world.clock.advance(AGE - SECOND);
        let fault = if lands { Fault::Lose(Reply::Drop) } else { Fault::Refuse(Reply::Drop) };
        world.script(Rule::always(Op::Put, fault).on(MARKERS));
        world.script(Rule::always(Op::Get, Fault::Refuse(Reply::Drop)).on(MARKERS));
        let unknown = moving(&[&world.clock], 500 * MILLI, decisions.decide(txn, Decision::Commit)).await;
        assert_eq!(kind(unknown), ErrorKind::Unknown);
        assert!(world.clock.wall() >= txn.begun().plus(AGE));
        world.objects.faults().clear();
        // Asked again after its age, one that landed is the answer.
        let (decided, answer) = if lands { (COMMIT, Answer::Committed) } else { (Decided::TooOld, Answer::Undecided) };
        assert_eq!(world.fresh().await.get(txn).await.unwrap(), answer);
        assert_eq!(decisions.decide(txn, Decision::Commit).await.unwrap(), decided);
        assert_eq!(world.fresh().await.decide(txn, Decision::Abort).await.unwrap(), decided);
    }
}
