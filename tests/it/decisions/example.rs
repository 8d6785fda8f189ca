//! The example of a two-phase commit, with a coordinator that dies at each step.

use super::*;

use super::two_phase_commit::{Account, Death, Ended, Transfer, transfer};

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
