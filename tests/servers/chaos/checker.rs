//! Whether every promise was kept, from what the processes say, what the resource has applied, and what is in the store.

use super::{
    history::{Answer, Event, Line},
    resource::Applied,
};
use std::collections::{BTreeMap, BTreeSet};

/// All that is known at the end.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) lines: Vec<Line>,
    pub(super) journal: Vec<Applied>,
    /// What the store says of each transaction.
    pub(super) decided: BTreeMap<String, Answer>,
    /// Keys that could not be locked.
    pub(super) stuck: BTreeSet<String>,
    /// What a sweep should have taken away.
    pub(super) left: BTreeSet<String>,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Violation {
    /// One fence of a key was given to two leases.
    FenceGivenTwice { key: String, fence: u64 },
    /// A lease that was asked for after another had been granted has no higher fence.
    FenceDidNotRise { key: String, fence: u64, after: u64 },
    /// The resource took a write with a lower fence than it had seen.
    WroteWithAnOldFence { key: String, fence: u64, after: u64 },
    /// Two leases wrote with one fence: two holders at once.
    TwoHolders { key: String, fence: u64 },
    /// A writer had not seen the write before its own: that one is lost.
    Overwritten { key: String, id: String },
    /// A write that was acknowledged is not there.
    LostWrite { key: String, id: String },
    /// Two answers for one transaction.
    Contradicted { txn: String },
    /// It was answered as undecided after a worker had been told the decision.
    UndecidedAgain { txn: String },
    /// It was decided, and the store does not know.
    ForgottenDecision { txn: String },
    /// An error that nothing of what was done to the process explains.
    Unexpected { call: String, kind: String, message: String },
    /// This key cannot be locked any more.
    Stuck { key: String },
    /// The sweeper has left something that was over.
    LeftBehind { name: String },
}

pub(super) fn check(evidence: &Evidence) -> BTreeSet<Violation> {
    let mut found = BTreeSet::new();
    grants(&evidence.lines, &mut found);
    writes(evidence, &mut found);
    decisions(evidence, &mut found);
    for line in &evidence.lines {
        if let Event::Failed { call, kind, message } = &line.event
            && !is_expected(call, kind)
        {
            found.insert(Violation::Unexpected { call: call.clone(), kind: kind.clone(), message: message.clone() });
        }
    }
    found.extend(evidence.stuck.iter().cloned().map(|key| Violation::Stuck { key }));
    found.extend(evidence.left.iter().cloned().map(|name| Violation::LeftBehind { name }));
    found
}

/// The store was killed or cut off, or the process's clock was set. A transaction begun by a clock that is ahead is refused
/// as coming from the future.
fn is_expected(call: &str, kind: &str) -> bool {
    matches!(kind, "Unavailable" | "Unknown" | "Clock") || kind == "Invalid" && call == "decide"
}

fn grants(lines: &[Line], found: &mut BTreeSet<Violation>) {
    let mut by_key: BTreeMap<&str, Vec<(&Line, u64, &str)>> = BTreeMap::new();
    for line in lines {
        if let Event::Granted { key, fence, lease } = &line.event {
            by_key.entry(key).or_default().push((line, *fence, lease));
        }
    }
    for (key, mut grants) in by_key {
        let mut lease_of = BTreeMap::new();
        for (_, fence, lease) in &grants {
            if *lease_of.entry(*fence).or_insert(*lease) != *lease {
                found.insert(Violation::FenceGivenTwice { key: key.into(), fence: *fence });
            }
        }
        // Of all grants whose answer was there before this one was asked for, the highest fence.
        let mut ends: Vec<(u64, u64)> = grants.iter().map(|(line, fence, _)| (line.ended, *fence)).collect();
        ends.sort_unstable();
        grants.sort_by_key(|(line, ..)| line.began);
        let (mut at, mut highest) = (0, 0);
        for (line, fence, _) in grants {
            while at < ends.len() && ends[at].0 < line.began {
                highest = highest.max(ends[at].1);
                at += 1;
            }
            if fence <= highest {
                found.insert(Violation::FenceDidNotRise { key: key.into(), fence, after: highest });
            }
        }
    }
}

fn writes(evidence: &Evidence, found: &mut BTreeSet<Violation>) {
    let mut last: BTreeMap<&str, &Applied> = BTreeMap::new();
    for write in &evidence.journal {
        let before = last.insert(&write.key, write);
        let (fence, lease, count) = before.map_or((0, "", 0), |write| (write.fence, write.lease.as_str(), write.count));
        let key = || write.key.clone();
        if write.fence < fence {
            found.insert(Violation::WroteWithAnOldFence { key: key(), fence: write.fence, after: fence });
        }
        if write.fence == fence && write.lease != lease {
            found.insert(Violation::TwoHolders { key: key(), fence });
        }
        if write.count != count + 1 {
            found.insert(Violation::Overwritten { key: key(), id: write.id.clone() });
        }
    }
    let applied: BTreeSet<&str> = evidence.journal.iter().map(|write| write.id.as_str()).collect();
    for line in &evidence.lines {
        if let Event::Wrote { key, id, .. } = &line.event
            && !applied.contains(id.as_str())
        {
            found.insert(Violation::LostWrite { key: key.clone(), id: id.clone() });
        }
    }
}

fn decisions(evidence: &Evidence, found: &mut BTreeSet<Violation>) {
    let mut first: BTreeMap<&str, (Answer, u64)> = BTreeMap::new();
    let answers = || {
        evidence.lines.iter().filter_map(|line| match &line.event {
            Event::Answered { txn, answer } => Some((txn.as_str(), *answer, line)),
            _ => None,
        })
    };
    for (txn, answer, line) in answers().filter(|(_, answer, _)| matches!(answer, Answer::Commit | Answer::Abort)) {
        let (known, ended) = first.entry(txn).or_insert((answer, line.ended));
        *ended = line.ended.min(*ended);
        if *known != answer {
            found.insert(Violation::Contradicted { txn: txn.into() });
        }
    }
    for (txn, answer, line) in answers() {
        if matches!(answer, Answer::Undecided | Answer::Forgotten)
            && first.get(txn).is_some_and(|(_, ended)| *ended < line.began)
        {
            found.insert(Violation::UndecidedAgain { txn: txn.into() });
        }
    }
    for (txn, (answer, _)) in first {
        match evidence.decided.get(txn) {
            Some(Answer::Commit | Answer::Abort) if evidence.decided[txn] != answer => {
                found.insert(Violation::Contradicted { txn: txn.into() });
            }
            Some(Answer::Commit | Answer::Abort) => {}
            _ => drop(found.insert(Violation::ForgottenDecision { txn: txn.into() })),
        }
    }
}

/// Given a history with one thing wrong, the checker finds that and nothing else.
#[cfg(test)]
mod tests {
    use super::*;

    fn line(began: u64, event: Event) -> Line {
        Line { worker: "w".into(), began, ended: began + 5, event }
    }

    fn granted(began: u64, fence: u64, lease: &str) -> Line {
        line(began, Event::Granted { key: "k".into(), fence, lease: lease.into() })
    }

    fn wrote(began: u64, fence: u64, id: &str) -> Line {
        line(began, Event::Wrote { key: "k".into(), fence, id: id.into() })
    }

    fn answered(began: u64, answer: Answer) -> Line {
        line(began, Event::Answered { txn: "t".into(), answer })
    }

    fn applied(fence: u64, lease: &str, count: u64, id: &str) -> Applied {
        Applied { key: "k".into(), fence, lease: lease.into(), count, id: id.into() }
    }

    /// Two holders one after the other, a refused write, a decision, and errors that have their reasons.
    fn sound() -> Evidence {
        let failed =
            |call: &str, kind: &str| Event::Failed { call: call.into(), kind: kind.into(), message: "".into() };
        Evidence {
            lines: vec![
                granted(10, 100, "a"),
                wrote(20, 100, "a1"),
                granted(30, 200, "b"),
                line(32, Event::Refused { key: "k".into(), fence: 100 }),
                wrote(40, 200, "b1"),
                answered(50, Answer::Undecided),
                answered(52, Answer::Commit),
                answered(54, Answer::Undecided),
                answered(60, Answer::Commit),
                line(70, failed("lock", "Unavailable")),
                line(71, failed("decide", "Invalid")),
            ],
            journal: vec![
                applied(100, "a", 1, "a1"),
                applied(200, "b", 2, "b1"),
                applied(200, "b", 3, "of the killed"),
            ],
            decided: [("t".to_owned(), Answer::Commit)].into(),
            ..Evidence::default()
        }
    }

    fn finds(change: impl FnOnce(&mut Evidence)) -> Vec<Violation> {
        let mut evidence = sound();
        change(&mut evidence);
        check(&evidence).into_iter().collect()
    }

    #[test]
    fn a_sound_history_has_nothing_wrong() {
        assert_eq!(finds(|_| {}), []);
    }

    #[test]
    fn a_fence_that_was_given_twice_is_found() {
        let found = finds(|evidence| evidence.lines.push(granted(29, 200, "c")));
        assert_eq!(found, [Violation::FenceGivenTwice { key: "k".into(), fence: 200 }]);
    }

    #[test]
    fn a_fence_that_did_not_rise_is_found() {
        let found = finds(|evidence| evidence.lines.push(granted(80, 150, "c")));
        assert_eq!(found, [Violation::FenceDidNotRise { key: "k".into(), fence: 150, after: 200 }]);
        // Those that were under way at once may have been granted in either order.
        assert_eq!(finds(|evidence| evidence.lines.push(granted(33, 150, "c"))), []);
    }

    #[test]
    fn a_write_with_an_old_fence_is_found() {
        let found = finds(|evidence| evidence.journal.push(applied(100, "a", 4, "a2")));
        assert_eq!(found, [Violation::WroteWithAnOldFence { key: "k".into(), fence: 100, after: 200 }]);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let found = finds(|evidence| evidence.journal.push(applied(200, "c", 4, "c1")));
        assert_eq!(found, [Violation::TwoHolders { key: "k".into(), fence: 200 }]);
    }

    #[test]
    fn a_write_that_another_has_undone_is_found() {
        let found = finds(|evidence| evidence.journal.push(applied(200, "b", 3, "b2")));
        assert_eq!(found, [Violation::Overwritten { key: "k".into(), id: "b2".into() }]);
    }

    #[test]
    fn an_acknowledged_write_that_is_not_there_is_found() {
        let found = finds(|evidence| evidence.lines.push(wrote(80, 200, "b9")));
        assert_eq!(found, [Violation::LostWrite { key: "k".into(), id: "b9".into() }]);
    }

    #[test]
    fn a_contradicted_decision_is_found_whoever_contradicts_it() {
        let contradicted = [Violation::Contradicted { txn: "t".into() }];
        assert_eq!(finds(|evidence| evidence.lines.push(answered(80, Answer::Abort))), contradicted);
        assert_eq!(finds(|evidence| evidence.decided = [("t".to_owned(), Answer::Abort)].into()), contradicted);
    }

    #[test]
    fn a_decision_that_was_known_and_is_not_any_more_is_found() {
        for answer in [Answer::Undecided, Answer::Forgotten] {
            let found = finds(|evidence| evidence.lines.push(answered(80, answer)));
            assert_eq!(found, [Violation::UndecidedAgain { txn: "t".into() }]);
            let found = finds(|evidence| evidence.decided = [("t".to_owned(), answer)].into());
            assert_eq!(found, [Violation::ForgottenDecision { txn: "t".into() }]);
        }
    }

    #[test]
    fn an_error_without_a_reason_is_found() {
        for (call, kind) in [("lock", "Invalid"), ("lock", "Corrupt"), ("sweep", "Denied"), ("decide", "Regressed")] {
            let failed = Event::Failed { call: call.into(), kind: kind.into(), message: "m".into() };
            let found = finds(|evidence| evidence.lines.push(line(80, failed)));
            let (call, kind) = (call.to_owned(), kind.to_owned());
            assert_eq!(found, [Violation::Unexpected { call, kind, message: "m".into() }]);
        }
    }

    #[test]
    fn a_stuck_key_and_what_was_left_behind_are_found() {
        let found = finds(|evidence| {
            evidence.stuck.insert("k".into());
            evidence.left.insert("default/.lease-index/2026010100/k".into());
        });
        let name = "default/.lease-index/2026010100/k".into();
        assert_eq!(found, [Violation::Stuck { key: "k".into() }, Violation::LeftBehind { name }]);
    }
}
