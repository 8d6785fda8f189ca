//! A transaction is decided once, for all processes and for good; once that is forgotten, no answer claims to know it.

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

// Ages.

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

// Knowing it for good.

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
    world.objects.put_object(&marker_name(txn), body.replace(r#""format": 1"#, r#""format": 2"#));
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

// Everything at once.

/// What becomes of the next write of a marker.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Fine,
    Lost,
    Late(i64),
    Delayed(i64),
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Decide(Decision, Fate),
    Read,
    Forget,
}

#[derive(Debug, Clone)]
struct Step {
    /// Milliseconds of true time since the transaction began.
    at: i64,
    who: usize,
    act: Act,
    /// Who is suspended until then: its monotonic clock stands still.
    suspended: [bool; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Decision(Decision),
    Forgotten,
    /// The marker was deleted on purpose.
    Deleted,
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// Around a time, closely or by as much as the store's clock may be off.
fn around(times: Vec<i64>) -> impl Strategy<Value = i64> {
    let by = prop_oneof![3 => -2_500..2_500i64, 1 => -65_000..65_000i64, 1 => Just(0)];
    (proptest::sample::select(times), by).prop_map(|(time, by)| (time + by).max(0))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (age, margin, skew) = (millis(AGE), millis(MARGIN), millis(SKEW));
    let late = move || around(vec![0, 60_000, margin - skew, margin]);
    let fate = prop_oneof![
        2 => Just(Fate::Fine),
        1 => Just(Fate::Lost),
        3 => late().prop_map(Fate::Late),
        3 => late().prop_map(Fate::Delayed),
    ];
    let decision = prop_oneof![Just(Decision::Commit), Just(Decision::Abort)];
    let act = prop_oneof![
        4 => (decision, fate).prop_map(|(decision, fate)| Act::Decide(decision, fate)),
        4 => Just(Act::Read),
        1 => Just(Act::Forget),
    ];
    let at = around(vec![age, age + margin - skew, age + margin]);
    let step = (at, 0..3usize, act, any::<[bool; 3]>());
    let step = step.prop_map(|(at, who, act, suspended)| Step { at, who, act, suspended });
    proptest::collection::vec(step, 2..12).prop_map(|mut steps| {
        steps.sort_by_key(|step| step.at);
        steps
    })
}

/// Every answer that a process got, in the order of true time.
async fn history(offsets: [i64; 3], store: i64, begun: i64, steps: &[Step]) -> Vec<(usize, Event)> {
    let world = World::new();
    world.objects.set_offset_millis(store);
    let mut processes = Vec::new();
    for offset in offsets {
        let clock = TestClock::at(Timestamp::from_millis(noon().as_millis() + offset));
        processes.push(world.process_that_asks_the_time(&clock).await);
    }
    let txn = begun_at(Timestamp::from_millis(noon().as_millis() + begun));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let tell = |who, event| heard.lock().unwrap().push((who, event));
    let mut now = 0;
    // In the end all processes ask, long after.
    let end = (0..3).map(|who| Step { at: 5_400_000, who, act: Act::Read, suspended: [false; 3] });
    for Step { at, who, act, suspended } in steps.iter().cloned().chain(end) {
        // Not in one jump: what is late lands before what comes after it.
        while now < at {
            let by = (at - now).min(if at - now > 10_000 { (at - now) / 2 } else { 1_000 });
            now += by;
            let by = Duration::from_millis(by.unsigned_abs());
            world.clock.advance(by);
            for (process, suspended) in processes.iter().zip(suspended) {
                if suspended { process.clock.suspend(by) } else { process.clock.advance(by) }
            }
            settle().await;
        }
        let decisions = processes[who].decisions();
        match act {
            Act::Decide(decision, fate) => {
                let fault = match fate {
                    Fate::Fine => None,
                    Fate::Lost => Some(Fault::Lose(Reply::Status(500))),
                    Fate::Late(by) => Some(Fault::Late(Duration::from_millis(by.unsigned_abs()), Reply::Drop)),
                    Fate::Delayed(by) => Some(Fault::Delay(Duration::from_millis(by.unsigned_abs()))),
                };
                if let Some(fault) = fault {
                    world.script(Rule::once(Op::Put, fault).on(MARKERS));
                }
                let heard = Arc::clone(&heard);
                tokio::spawn(async move {
                    if let Ok(Decided::Decision(decision)) = decisions.decide(txn, decision).await {
                        heard.lock().unwrap().push((who, Event::Decision(decision)));
                    }
                });
                settle().await;
            }
            Act::Read => match decisions.get(txn).await {
                Ok(Answer::Committed) => tell(who, Event::Decision(Decision::Commit)),
                Ok(Answer::Aborted) => tell(who, Event::Decision(Decision::Abort)),
                Ok(Answer::Forgotten) => tell(who, Event::Forgotten),
                Ok(Answer::Undecided) => {}
                // Over by one clock and not by the other.
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Clock | ErrorKind::Unavailable), "{error}"),
            },
            Act::Forget => {
                if decisions.forget(txn).await.is_ok() {
                    tell(who, Event::Deleted);
                }
            }
        }
    }
    heard.lock().unwrap().clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn clocks_that_differ_and_writes_that_are_late_never_make_two_answers(
        offsets in [-500..=500i64, -500..=500i64, -500..=500i64],
        store in prop_oneof![-500..=500i64, -62_000..=62_000i64],
        begun in -500..=500i64,
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let heard = runtime.block_on(history(offsets, store, begun, &steps));
        let decided = |event: &Event| matches!(event, Event::Decision(_));
        let mut decisions: Vec<Event> = heard.iter().map(|(_, event)| *event).filter(decided).collect();
        decisions.dedup();
        prop_assert!(decisions.len() <= 1, "two decisions: {heard:?}");
        let over = heard.iter().position(|(_, event)| !decided(event));
        let first = heard.iter().position(|(_, event)| decided(event));
        if let (Some(over), Some(first)) = (over, first) {
            prop_assert!(first < over, "decided after it was forgotten: {heard:?}");
            let deleted = heard.iter().any(|(_, event)| *event == Event::Deleted);
            prop_assert!(deleted, "forgotten though nobody has deleted it: {heard:?}");
        }
    }
}

// The example.

use two_phase_commit::{Account, Death, Ended, Transfer, transfer};

fn accounts() -> (Account, Account) {
    (Account::new("account/alice", 100).unwrap(), Account::new("account/bob", 0).unwrap())
}

#[tokio::test]
async fn no_death_in_a_two_phase_commit_makes_or_destroys_money() {
    let step = 50 * MILLI;
    for death in Death::ALL.into_iter().map(Some).chain([None]) {
        for alice_first in [true, false] {
            let world = World::new();
            let (alice, bob) = accounts();
            let coordinator = world.process().await;
            let run = transfer(&coordinator.store, &alice, &bob, 10, death);
            let (txn, ended) = moving(&[&world.clock], step, run).await.unwrap();
            // Those that are left, each on a machine of its own.
            let order = if alice_first { [&alice, &bob] } else { [&bob, &alice] };
            for account in order {
                account.recover(&world.fresh().await).await.unwrap();
            }
            let answer = world.fresh().await.get(txn).await.unwrap();
            let balances = if answer == Answer::Committed { (90, 10) } else { (100, 0) };
            assert_eq!((alice.balance(), bob.balance()), balances, "{death:?} {answer:?}");
            for account in order {
                assert!(!account.is_waiting(), "{death:?}");
                let end = account.end_of(txn);
                assert!(end.is_none_or(|end| Answer::from(end) == answer), "{death:?}: {end:?}, {answer:?}");
            }
            if let Ended::Decided(decision) = ended {
                assert_eq!(answer, decision.into(), "{death:?}");
            }
            let committed = matches!(
                death,
                None | Some(Death::Decided | Death::OneApplied | Death::BothApplied | Death::ParticipantBeforeApplying)
            );
            assert_eq!(answer == Answer::Committed, committed, "{death:?}");
            // Life goes on, when the leases of the dead have ended.
            let next = world.process().await;
            let run = transfer(&next.store, &alice, &bob, 10, None);
            let (_, ended) = moving(&[&world.clock], step, run).await.unwrap();
            assert_eq!(ended, Ended::Decided(Decision::Commit), "{death:?}");
            assert_eq!((alice.balance(), bob.balance()), (balances.0 - 10, balances.1 + 10));
        }
    }
}

#[tokio::test]
async fn the_next_coordinator_settles_what_a_dead_one_left() {
    for death in Death::ALL {
        let world = World::new();
        let (alice, bob) = accounts();
        let (first, second) = (world.process().await, world.process().await);
        let run = transfer(&first.store, &alice, &bob, 10, Some(death));
        let (txn, _) = moving(&[&world.clock], 50 * MILLI, run).await.unwrap();
        let run = transfer(&second.store, &bob, &alice, 0, None);
        let (_, ended) = moving(&[&world.clock], 50 * MILLI, run).await.unwrap();
        assert_eq!(ended, Ended::Decided(Decision::Commit), "{death:?}");
        let committed = world.fresh().await.get(txn).await.unwrap() == Answer::Committed;
        let balances = if committed { (90, 10) } else { (100, 0) };
        assert_eq!((alice.balance(), bob.balance()), balances, "{death:?}");
    }
}

#[tokio::test]
async fn a_coordinator_that_was_taken_for_dead_learns_that_it_was_aborted() {
    let world = World::new();
    let (alice, bob) = accounts();
    let process = world.process().await;
    let work = Transfer::begin(&process.store, &alice, &bob, 10).await.unwrap();
    work.stage_from().unwrap();
    work.stage_to().unwrap();
    // Only one of them has lost its patience.
    bob.recover(&world.fresh().await).await.unwrap();
    assert_eq!(work.decide(Decision::Commit).await.unwrap(), Decision::Abort);
    alice.recover(&world.fresh().await).await.unwrap();
    assert_eq!((alice.balance(), bob.balance()), (100, 0));
    work.end().await.unwrap();
}

#[tokio::test]
async fn a_coordinator_that_has_lost_its_leases_cannot_stage_the_rest() {
    let world = World::new();
    let (alice, bob) = accounts();
    let (first, second) = (world.process().await, world.process().await);
    let stale = Transfer::begin(&first.store, &alice, &bob, 10).await.unwrap();
    stale.stage_from().unwrap();
    let run = transfer(&second.store, &alice, &bob, 25, None);
    let (_, ended) = moving(&[&world.clock], 50 * MILLI, run).await.unwrap();
    assert_eq!(ended, Ended::Decided(Decision::Commit));
    let refused = stale.stage_to().unwrap_err().to_string();
    assert!(refused.contains("is older than"), "{refused}");
    assert_eq!(stale.decide(Decision::Commit).await.unwrap(), Decision::Abort, "whatever it thinks");
    assert_eq!((alice.balance(), bob.balance()), (75, 25));
}

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
