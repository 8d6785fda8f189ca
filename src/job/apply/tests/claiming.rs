//! Rules 3, 4 and 12: in which order, to whom, how many, and with which fence.

use super::*;

fn order(bed: &mut Bed, want: u32) -> Vec<(SegmentId, u16, u16)> {
    let mut claims = Vec::new();
    for number in 1..=want {
        let taken = bed.claim(1, u64::from(number) + 1000, 1);
        claims.extend(taken);
    }
    claims
}

#[test]
fn urgent_ones_go_first_then_by_priority_then_by_due_time_then_by_absorption() {
    let mut bed = Bed::new();
    let run = |priority, due| (1, traits(|traits| (traits.priority, traits.due) = (priority, NOW + due)));
    bed.absorb(facts_of(1, &[run(0, -5), run(3, -9)]));
    bed.absorb(facts_of(2, &[run(0, -7)]));
    bed.absorb(facts_of(3, &[run(0, -5)]));
    let urgent = SegmentId::of_request("q", "urgent", 0, 0, Class::Urgent);
    let table = Facts { segment: urgent, ..facts_of(4, &[run(-1, 0)]) };
    bed.absorb(table);
    let expected = [(urgent, 0), (segment(2), 0), (segment(1), 0), (segment(3), 0), (segment(1), 1)];
    assert_eq!(order(&mut bed, 9), expected.map(|(segment, index)| (segment, index, 1)));
}

#[test]
fn nothing_is_claimed_before_it_is_due_by_the_stores_time_and_time_never_falls() {
    let mut bed = Bed::new();
    bed.absorb(facts_of(1, &[(1, traits(|traits| traits.due = NOW + 1000))]));
    assert_eq!(bed.claim(1, 1, 1), []);
    assert_eq!(bed.ledger.wakes_after(bed.now), Some(NOW + 1000));
    bed.now += 1000;
    bed.commit(None, &[]);
    bed.now -= 5000;
    assert_eq!(bed.claim(1, 2, 1), [(segment(1), 0, 1)], "another process has a slower clock");
    assert_eq!(bed.ledger.now, NOW + 1000);
}

#[test]
fn each_claiming_commit_has_a_higher_fence_even_if_the_clock_stops_or_falls() {
    let mut bed = Bed::new().absorbed(1, 9);
    let mut last = None;
    for (number, step) in (1..=6).zip([0, 0, -7000, 1, -1, 5]) {
        bed.now += step;
        let claim = Op::Claim { claim: claim_id(number), want: 1, idle_elsewhere: true };
        let Outcome::Claimed { fence, .. } = bed.one(Some(1), claim) else { panic!() };
        assert!(Some(fence) > last);
        assert_eq!(bed.ledger.fence_last, Some(fence));
        last = Some(fence);
    }
}

#[test]
fn two_claims_on_one_base_cannot_both_land_and_the_loser_gets_other_jobs() {
    let mut bed = Bed::new().absorbed(1, 2);
    let base = bed.ledger.clone();
    let claim = |number| Op::Claim { claim: claim_id(number), want: 1, idle_elsewhere: true };
    let context = bed.context(Some(2));
    let lost = apply(&base, &[claim(2)], &context).unwrap();
    assert_eq!(bed.claim(1, 1, 1), [(segment(1), 0, 1)]);
    // The compare-and-swap of the second fails: its revision is taken. Nothing of it counts.
    assert_eq!(lost.ledger.revision, bed.ledger.revision);
    assert_eq!(bed.claim(2, 2, 1), [(segment(1), 1, 1)]);
    assert_eq!(bed.finish(2, 2, job(1, 0)), stale_held(1));
}

fn stale_held(by: u8) -> Outcome {
    let since = Timestamp::from_millis(NOW);
    let fence = Fence::next(None, since, std::time::Duration::ZERO).unwrap();
    Outcome::StaleAttempt(Stale::Held { owner: format!("worker-{by}").into(), session: session(by), since, fence })
}

#[test]
fn a_claim_needs_a_session_and_one_that_was_recovered_gets_nothing_any_more() {
    let mut bed = Bed::new().absorbed(1, 3);
    let claim = |number| Op::Claim { claim: claim_id(number), want: 1, idle_elsewhere: true };
    assert_eq!(bed.one(None, claim(1)), Outcome::NothingToClaim(Idle::NoSession));
    bed.claim(1, 2, 1);
    bed.recover(1);
    let context = bed.context(Some(1));
    assert_eq!(apply(&bed.ledger, &[claim(3)], &context).unwrap_err(), Refused::SessionEnded);
    // Long after, when the ledger has forgotten it: it knows itself that it had a row.
    bed.now += 600_000;
    bed.commit(None, &[]);
    let mut context = bed.context(Some(1));
    context.session.as_mut().unwrap().has_row = true;
    assert_eq!(apply(&bed.ledger, &[claim(4)], &context).unwrap_err(), Refused::SessionEnded);
}

#[test]
fn a_full_list_of_sessions_refuses_a_new_one_until_a_dead_one_is_recovered() {
    let mut bed = Bed::new().absorbed(1, 9);
    bed.caps.sessions = 2;
    bed.claim(1, 1, 1);
    bed.claim(2, 2, 1);
    let context = bed.context(Some(3));
    let claim = Op::Claim { claim: claim_id(3), want: 1, idle_elsewhere: true };
    assert_eq!(apply(&bed.ledger, std::slice::from_ref(&claim), &context).unwrap_err(), Refused::SessionsFull);
    let recover = Op::Recover { session: session(1) };
    let outcomes = bed.commit(Some(3), &[recover, claim]);
    assert!(matches!(outcomes[1], Outcome::Claimed { .. }), "{outcomes:?}");
}

#[test]
fn claims_come_last_in_a_commit_so_that_they_take_what_it_has_brought() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(1));
    let keyed = |number| Arc::new(facts_of(number, &[(2, traits(|traits| traits.key = 7))]));
    let operations = [
        Op::Claim { claim: claim_id(1), want: 5, idle_elsewhere: true },
        Op::Absorb { name: inbox(1, 2), facts: keyed(1) },
    ];
    let outcomes = bed.commit(Some(1), &operations);
    assert!(matches!(&outcomes[0], Outcome::Claimed { jobs, .. } if jobs[0].range.len() == 1), "{outcomes:?}");
    let answer = Answer { claim: claim_id(1), job: job(1, 0), what: Answered::Finished, into: None };
    let operations = [Op::Claim { claim: claim_id(2), want: 5, idle_elsewhere: true }, Op::Answer(answer)];
    assert!(
        matches!(bed.commit(Some(1), &operations)[0], Outcome::Claimed { .. }),
        "the slot is free in the same commit"
    );
}

#[test]
fn no_more_jobs_of_a_key_run_than_its_limit_and_a_dead_process_leaks_no_slot() {
    let mut bed = Bed::with(|policy| policy.key_limit = Some(2));
    bed.absorb(facts_of(1, &[(5, traits(|traits| traits.key = 7)), (2, traits(|traits| traits.key = 8))]));
    assert_eq!(bed.claim(1, 1, 99), [(segment(1), 0, 2), (segment(1), 5, 2)]);
    assert_eq!(bed.claim(2, 2, 99), []);
    bed.finish(1, 1, job(1, 0));
    assert_eq!(bed.claim(2, 3, 99), [(segment(1), 2, 1)]);
    bed.recover(1);
    bed.now += 10_000;
    let taken: u16 = bed.claim(3, 4, 99).iter().map(|(_, _, count)| count).sum();
    assert_eq!(taken, 3, "one of key 7 and both of key 8");
    bed.one(None, Op::Limit { key: 7, name: "k".into(), most: Some(4) });
    assert_eq!(bed.ledger.key_limit(7), Some(4));
    let more: u16 = bed.claim(4, 5, 99).iter().map(|(_, _, count)| count).sum();
    assert_eq!(more, 2, "a raised limit takes effect at once");
}

#[test]
fn with_limit_one_a_job_waiting_to_retry_is_passed_only_if_the_queue_allows_it() {
    for skip in [false, true] {
        let mut bed = Bed::with(|policy| (policy.key_limit, policy.skip_waiting) = (Some(1), skip));
        bed.absorb(facts_of(1, &[(3, traits(|traits| traits.key = 7))]));
        bed.claim(1, 1, 9);
        bed.fail(1, 1, job(1, 0));
        assert_eq!(bed.claim(1, 2, 9).is_empty(), !skip);
        if !skip {
            bed.now += 2_000;
            assert_eq!(bed.claim(1, 3, 9), [(segment(1), 0, 1)], "it comes before those behind it");
        }
    }
}

#[test]
fn tenants_take_turns_inside_a_priority_and_one_with_many_jobs_delays_nobody() {
    let mut bed = Bed::new();
    let of = |tenant| traits(|traits| traits.tenant = tenant);
    bed.absorb(facts_of(1, &[(1000, of(1))]));
    bed.absorb(facts_of(2, &[(3, of(2))]));
    bed.absorb(facts_of(3, &[(50, of(3))]));
    let taken = bed.claim(1, 1, 30);
    let by = |number| taken.iter().filter(|(id, ..)| *id == segment(number)).map(|(.., count)| count).sum::<u16>();
    assert_eq!((by(1), by(2), by(3)), (14, 3, 13));
    let first: Vec<_> = (2..6).map(|claim| bed.claim(1, claim, 1)[0].0).collect();
    assert!(first.contains(&segment(1)) && first.contains(&segment(3)), "one at a time they still take turns");
}

#[test]
fn a_rate_is_kept_over_time_and_saves_up_no_more_than_a_second() {
    let mut bed = Bed::with(|policy| policy.rate_milli = Some(10_000));
    bed.absorb(facts(1, 1000));
    let mut started = 0;
    for number in 1..=100 {
        started += bed.claim(1, number, 99).iter().map(|(.., count)| u32::from(*count)).sum::<u32>();
        bed.now += 100;
    }
    assert!((100..=110).contains(&started), "{started} in ten seconds at 10 a second");
    bed.now += 3_600_000;
    let burst: u16 = bed.claim(1, 999, 99).iter().map(|(.., count)| count).sum();
    assert_eq!(burst, 10);
}

#[test]
fn a_paused_job_is_passed_over_and_a_paused_queue_wakes_when_its_pause_ends() {
    let mut bed = Bed::new().absorbed(1, 3);
    assert_eq!(bed.one(None, Op::Pause { job: job(1, 1), paused: true }), Outcome::Done);
    assert_eq!(bed.claim(1, 1, 9), [(segment(1), 0, 1), (segment(1), 2, 1)]);
    assert_eq!(bed.ledger.depth(bed.now).paused, 1);
    assert_eq!(bed.one(None, Op::Pause { job: job(1, 1), paused: false }), Outcome::Done);
    bed.settings = 9;
    bed.policy = Policy { paused: true, paused_until: Some(NOW + 5000), ..Policy::default() };
    assert_eq!(bed.claim(1, 2, 9), []);
    assert_eq!(bed.ledger.wakes_after(bed.now), Some(NOW + 5000));
    bed.now += 5000;
    assert_eq!(bed.claim(1, 3, 9), [(segment(1), 1, 1)]);
}

#[test]
fn no_more_is_claimed_than_the_ledger_could_take_back() {
    let mut bed = Bed::new().absorbed(1, 16_000).absorbed(2, 16_000);
    let mut total = 0u32;
    for number in 1..40 {
        total += bed.claim(1, number, 5000).iter().map(|(.., count)| u32::from(*count)).sum::<u32>();
    }
    assert!((10_000..25_000).contains(&total), "{total}");
    // The worst: every second job fails with a long error, each is a run of its own.
    let claims: Vec<_> = bed.ledger.claims.clone();
    let mut operations = Vec::new();
    for claim in &claims {
        for item in &claim.items {
            let segment = bed.ledger.row(item.row).unwrap().name.id;
            operations.extend((item.run.from..item.run.to).map(|index| {
                let error = Some(Arc::from("x".repeat(300)));
                let what = Answered::Failed { for_good: false, error, kind: None, max_attempts: None };
                Op::Answer(Answer { claim: claim.id, job: JobRef { segment, index }, what, into: None })
            }));
        }
    }
    bed.commit(Some(1), &operations);
    let length = crate::job::ledger::encode(&bed.ledger).len();
    assert!(length < 1 << 20, "{length} bytes");
}
