//! Decisions, which are made once.

use crate::place::{Place, now};
use futures_util::future::join_all;
use leasehold::decision::{Answer, Decided, Decision};
use leasehold_testkit::TestClock;
use std::{sync::Arc, time::Duration};

pub(crate) async fn the_first_decision_stands_for_everybody(place: Arc<Place>) {
    let (ours, theirs) = (place.open().await.decisions(), place.open().await.decisions());
    for (first, second) in [(Decision::Commit, Decision::Abort), (Decision::Abort, Decision::Commit)] {
        let txn = ours.begin();
        assert_eq!(theirs.get(txn).await.unwrap(), Answer::Undecided);
        assert_eq!(ours.decide(txn, first).await.unwrap(), Decided::Decision(first));
        assert_eq!(theirs.decide(txn, second).await.unwrap(), Decided::Decision(first));
        assert_eq!(ours.decide(txn, second).await.unwrap(), Decided::Decision(first));
        let other = place.open().await.decisions();
        assert_eq!(other.get(txn).await.unwrap(), first.into());
    }
}

pub(crate) async fn those_that_decide_at_once_agree(place: Arc<Place>) {
    let processes = join_all((0..8).map(|_| place.open())).await;
    for _ in 0..10 {
        let txn = processes[0].decisions().begin();
        let decided = processes.iter().enumerate().map(|(at, process)| async move {
            let wish = if at % 2 == 0 { Decision::Commit } else { Decision::Abort };
            process.decisions().decide(txn, wish).await.unwrap()
        });
        let decided = join_all(decided).await;
        assert!(decided.iter().all(|answer| *answer == decided[0]), "{decided:?}");
        let Decided::Decision(decision) = decided[0] else { panic!("too old") };
        assert_eq!(place.open().await.decisions().get(txn).await.unwrap(), decision.into());
    }
}

pub(crate) async fn a_decision_can_be_read_until_its_time_is_over(place: Arc<Place>) {
    let clock = TestClock::at(now());
    let decisions = place.open_at(&clock).await.decisions();
    let (decided, undecided) = (decisions.begin(), decisions.begin());
    let _ = decisions.decide(decided, Decision::Commit).await.unwrap();
    clock.advance(Duration::from_secs(2 * 3600));
    assert_eq!(decisions.decide(undecided, Decision::Abort).await.unwrap(), Decided::TooOld);
    assert_eq!(decisions.get(undecided).await.unwrap(), Answer::Forgotten);
    assert_eq!(place.open_at(&clock).await.decisions().get(decided).await.unwrap(), Answer::Committed);
    clock.advance(Duration::from_secs(23 * 3600));
    assert_eq!(place.open_at(&clock).await.decisions().get(decided).await.unwrap(), Answer::Forgotten);
    let markers: Vec<_> =
        place.names().await.into_iter().filter(|name| name.starts_with(".txn-decisions/m/")).collect();
    assert_eq!(markers, [""; 0], "whoever met it has deleted it");
}
