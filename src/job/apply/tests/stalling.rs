//! Rules 7 and 8: who is blamed when a process dies, and that the living are never robbed.

use super::*;
use crate::job::ledger::Why;
use std::collections::BTreeSet;

#[test]
fn jobs_of_a_dead_process_come_back_spread_over_five_seconds_and_uncharged() {
    let mut bed = Bed::new().absorbed(1, 1000);
    bed.claim(1, 1, 1000);
    bed.finish(1, 1, job(1, 7));
    let recovered = bed.recover(1);
    assert_eq!((recovered.waiting, recovered.charged, recovered.buried), (999, 0, 0));
    let runs = &bed.ledger.rows[0].runs;
    assert!(runs.len() <= 40, "{} pieces", runs.len());
    let due: BTreeSet<Millis> = runs.iter().map(|run| run.traits.due).collect();
    assert!(due.len() > 20 && due.iter().all(|due| (NOW..NOW + 5_000).contains(due)), "{due:?}");
    assert!(runs.iter().all(|run| run.traits.why == Why::Stalled && run.traits.attempts == 0));
    assert_eq!(bed.one(None, Op::Recover { session: session(1) }), Outcome::Nothing, "two who find it dead");
}

#[test]
fn jobs_of_the_living_are_never_touched_by_a_recovery() {
    let mut bed = Bed::new().absorbed(1, 6);
    bed.claim(1, 1, 2);
    bed.claim(2, 2, 2);
    bed.recover(1);
    assert_eq!(bed.ledger.totals().running, 2);
    assert_eq!(bed.finish(2, 2, job(1, 2)), Outcome::Ended { late: false });
    let own = bed.one(Some(2), Op::Recover { session: session(2) });
    assert_eq!(own, Outcome::Nothing, "nobody recovers itself");
}

/// Runs everything on one process that dies each time it has the killer in hand; how often it died.
fn work_off(bed: &mut Bed, killer: JobRef, concurrency: u32) -> (u32, u32) {
    let (mut deaths, mut finished) = (0, 0);
    let mut process = 1;
    for claim in 1..100_000 {
        if bed.ledger.totals().all() == bed.ledger.totals().burying {
            return (deaths, finished);
        }
        let taken = bed.claim(process, claim, concurrency);
        let jobs = taken
            .iter()
            .flat_map(|(segment, from, count)| (*from..from + count).map(|index| JobRef { segment: *segment, index }));
        let jobs: Vec<JobRef> = jobs.collect();
        if jobs.contains(&killer) {
            deaths += 1;
            process += 1;
            bed.now += 34_000;
            bed.one(Some(process), Op::Recover { session: session(process - 1) });
            continue;
        }
        for job in jobs {
            assert_eq!(bed.finish(process, claim, job), Outcome::Ended { late: false });
            finished += 1;
        }
        bed.now += 1_000;
    }
    panic!("it never ends: {:?}", bed.ledger.totals());
}

#[test]
fn one_job_of_500_that_kills_its_process_each_time_is_the_only_dead_letter() {
    for killer in [0, 250, 499] {
        let mut bed = Bed::new().absorbed(1, 500);
        let (deaths, finished) = work_off(&mut bed, job(1, killer), 500);
        assert_eq!(finished, 499);
        assert_eq!(deaths, 6, "all, an eighth, eight, and three times alone");
        let buried: Vec<_> = bed.ledger.dead.iter().flat_map(|plan| &plan.jobs).collect();
        assert_eq!(buried.len(), 1);
        assert_eq!((buried[0].index, buried[0].reason, buried[0].stalls), (killer, Reason::Stalled, 3));
    }
}

#[test]
fn a_killer_among_a_few_is_found_while_new_work_keeps_coming() {
    let mut bed = Bed::new().absorbed(1, 4).absorbed(2, 2000);
    let (deaths, finished) = work_off(&mut bed, job(1, 2), 4);
    assert_eq!(finished, 2003);
    assert!(deaths <= 6, "{deaths}");
}

#[test]
fn a_suspect_at_its_last_chance_runs_alone_in_its_process() {
    let mut bed = Bed::new();
    let suspect = traits(|traits| (traits.group, traits.why) = (1, Why::Stalled));
    bed.absorb(facts_of(1, &[(2, suspect), (5, traits(|_| ()))]));
    let claim = |number, idle_elsewhere| Op::Claim { claim: claim_id(number), want: 9, idle_elsewhere };
    let Outcome::Claimed { jobs, .. } = bed.one(Some(1), claim(1, false)) else { panic!() };
    assert_eq!((jobs[0].range.from, jobs[0].range.len()), (2, 5), "it has something in hand elsewhere");
    let Outcome::Claimed { jobs, .. } = bed.one(Some(2), claim(2, true)) else { panic!() };
    assert!(jobs.len() == 1 && jobs[0].alone && jobs[0].range.len() == 1);
    assert_eq!(bed.one(Some(2), claim(3, true)), Outcome::NothingToClaim(Idle::RunsAlone));
    assert_eq!(bed.claim(1, 4, 9), [], "nor does it join what somebody has in hand");
    bed.finish(2, 2, job(1, 0));
    let Outcome::Claimed { jobs, .. } = bed.one(Some(2), claim(5, true)) else { panic!() };
    assert!(jobs[0].alone, "the next one");
}

#[test]
fn a_suspect_with_no_idle_worker_runs_with_others_after_a_minute_uncharged() {
    let mut bed = Bed::new();
    bed.absorb(facts_of(1, &[(2, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]));
    bed.absorb(facts(2, 1));
    let claim = |number| Op::Claim { claim: claim_id(number), want: 9, idle_elsewhere: false };
    bed.one(Some(1), claim(1));
    bed.now += 60_000;
    let Outcome::Claimed { jobs, .. } = bed.one(Some(1), claim(2)) else { panic!() };
    assert_eq!((jobs.len(), jobs[0].range.len(), jobs[0].alone), (1, 1, false), "one suspect in a hand");
    let recovered = bed.recover(1);
    assert_eq!((recovered.charged, recovered.buried, recovered.waiting), (0, 0, 2));
}

#[test]
fn stalls_count_only_in_a_row() {
    let lucky = [failed(), Answered::Snoozed { until: Timestamp::from_millis(NOW) }, Answered::Released { ran: true }];
    for what in lucky {
        let mut bed = Bed::new();
        bed.absorb(facts_of(1, &[(1, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]));
        bed.claim(1, 1, 1);
        bed.answer(1, 1, job(1, 0), what);
        let Found::Waiting { stalls, .. } = bed.ledger.find(job(1, 0)) else { panic!() };
        assert_eq!((stalls, bed.ledger.rows[0].runs[0].traits.group), (0, 0));
    }
    let mut bed = Bed::new();
    bed.absorb(facts_of(1, &[(1, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]));
    bed.claim(1, 1, 1);
    bed.answer(1, 1, job(1, 0), Answered::Released { ran: false });
    let Found::Waiting { stalls, .. } = bed.ledger.find(job(1, 0)) else { panic!() };
    assert_eq!(stalls, 2, "what never began proves nothing");
}

#[test]
fn nobody_is_charged_while_most_of_a_fleet_dies_at_once() {
    let lone = || facts_of(1, &[(1, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]);
    for (others, dying, buried) in [(3, 2, 0), (3, 1, 1), (2, 2, 1), (7, 4, 0)] {
        let mut bed = Bed::new();
        bed.absorb(facts(2, 100));
        let claim = |number| Op::Claim { claim: claim_id(number), want: 1, idle_elsewhere: false };
        for other in 0..others {
            bed.one(Some(10 + other), claim(u64::from(other) + 50));
        }
        bed.absorb(lone());
        bed.claim(1, 1, 1);
        for other in 0..dying {
            bed.recover(10 + other);
        }
        assert_eq!(bed.recover(1).buried, buried, "{dying} of {others} others died");
    }
}

#[test]
fn the_fleets_deaths_are_forgotten_after_one_session_ttl() {
    let mut bed = Bed::new().absorbed(2, 100);
    for other in 0..4 {
        bed.claim(10 + other, u64::from(other) + 50, 1);
        bed.recover(10 + other);
    }
    bed.now += 30_000;
    bed.absorb(facts_of(1, &[(1, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]));
    let claim = Op::Claim { claim: claim_id(1), want: 1, idle_elsewhere: true };
    let Outcome::Claimed { jobs, .. } = bed.one(Some(1), claim) else { panic!() };
    assert!(jobs[0].alone);
    assert_eq!(bed.recover(1).buried, 1);
}

#[test]
fn a_dead_list_that_is_full_lets_a_stalled_job_wait_instead_of_losing_it() {
    let mut bed = Bed::new();
    bed.caps.dead = 0;
    bed.absorb(facts_of(1, &[(1, traits(|traits| (traits.group, traits.stalls) = (1, 2)))]));
    bed.claim(1, 1, 1);
    let recovered = bed.recover(1);
    assert_eq!((recovered.buried, recovered.waiting), (0, 1));
    bed.caps.dead = 9;
    bed.now += 600_000;
    bed.claim(2, 2, 1);
    assert_eq!(bed.recover(2).buried, 1);
}
