//! Random histories of processes whose clocks differ and whose writes are late.

use super::*;

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
