//! Tables of cases for the plans of operations.

use super::*;
use std::fmt;

const SECOND: u64 = 1000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(millis).unwrap())
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn now(millis: u64) -> Now {
    Now { moment: Moment::from_origin(ms(millis)), wall: at(millis) }
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(ms(millis)).unwrap()
}

const OURS: [u8; 16] = [7; 16];

fn rules() -> Rules {
    Rules {
        process: ProcessId::from(OURS),
        boot: None,
        host: false,
        epoch: 3,
        max_clock_skew: ms(SECOND),
        max_ttl: ms(3600 * SECOND),
    }
}

/// Of 30 s, granted at 100 s, with the beat 3.
fn lease(process: [u8; 16]) -> Lease {
    Lease {
        id: LeaseId::from([1; 16]),
        request_id: None,
        owner: "holder".into(),
        process: ProcessId::from(process),
        note: None,
        fence: Fence::new(500).unwrap(),
        granted: at(100 * SECOND),
        expires: at(130 * SECOND),
        ttl: ttl(30 * SECOND),
        beat: WriteId::from([3; 16]),
        lasts: Some(ms(30 * SECOND)),
        boot: None,
        session: None,
    }
}

fn record(lease: Option<Lease>) -> Record {
    let stamp = Stamp { write_id: WriteId::from([3; 16]), revision: 5 };
    let last_fence = Fence::new(500).ok();
    Record { lease, last_fence, ..Record::without_lease(None, stamp, at(100 * SECOND)) }
}

/// Read at the time of the clocks, after a time object with the same stamp.
fn view<'a>(record: Option<&'a Record>, millis: u64, rules: &'a Rules) -> View<'a> {
    let facts = Facts { time: Some(at(millis)), ..Facts::read(record, Some(at(100 * SECOND)), None) };
    let readings = Readings { now: now(millis), store_upper: Some(at(millis)), stamp_slack: Some(ms(2 * SECOND)) };
    View { facts, readings, rules }
}

fn written<O: fmt::Debug>(plan: Result<Plan<O>>) -> Change {
    match plan.unwrap() {
        Plan::Write(change) => *change,
        Plan::Stop(outcome) => panic!("stopped: {outcome:?}"),
    }
}

fn stopped<O: fmt::Debug>(plan: Result<Plan<O>>) -> O {
    match plan.unwrap() {
        Plan::Stop(outcome) => outcome,
        Plan::Write(change) => panic!("writes {change:?}"),
    }
}

#[test]
fn a_free_key_is_granted_above_the_last_fence_and_without_a_mark() {
    let (rules, request, id) = (rules(), Request::default().owner("me"), LeaseId::from([9; 16]));
    let mark = Mark { process: ProcessId::from([8; 16]), since: at(0), interval: ms(SECOND) };
    let free = Record { waiting: Some(mark), ..record(None) };
    let wanted = Wanted { request: &request, ttl: ttl(30 * SECOND), id, under: None };
    let change = written(grant(&view(Some(&free), 200 * SECOND, &rules), wanted, None));
    let lease = change.lease.unwrap();
    assert!(lease.fence > Fence::new(500).unwrap() && change.last_fence == Some(lease.fence) && change.beats);
    assert_eq!((lease.id, lease.expires, change.waiting), (id, at(230 * SECOND), None));
}

#[test]
fn a_held_key_is_refused_until_both_witnesses_say_that_it_has_ended() {
    let (rules, request, held) = (rules(), Request::default(), record(Some(lease([8; 16]))));
    let wanted = Wanted { request: &request, ttl: ttl(SECOND), id: LeaseId::from([9; 16]), under: None };
    for millis in [100 * SECOND, 131 * SECOND, 133 * SECOND + 30] {
        stopped(grant(&view(Some(&held), millis, &rules), wanted, None));
    }
    written(grant(&view(Some(&held), 133 * SECOND + 31, &rules), wanted, None));
    // A beat that was watched for long enough needs no clock.
    written(grant(&view(Some(&held), 110 * SECOND, &rules), wanted, Some(WriteId::from([3; 16]))));
}

#[test]
fn a_request_with_its_id_gets_its_own_lease_again_with_the_same_fence() {
    let (rules, request) = (rules(), Request::default().owner("holder").request_id("r"));
    let mine = record(Some(Lease { request_id: Some("r".to_owned()), ..lease([8; 16]) }));
    let wanted = Wanted { request: &request, ttl: ttl(30 * SECOND), id: LeaseId::from([9; 16]), under: None };
    for plan in [
        grant(&view(Some(&mine), 110 * SECOND, &rules), wanted, None),
        regrant(&view(Some(&mine), 110 * SECOND, &rules), &request, ttl(30 * SECOND)),
    ] {
        let lease = written(plan).lease.unwrap();
        assert_eq!((lease.id, lease.fence), (LeaseId::from([1; 16]), Fence::new(500).unwrap()));
        assert_eq!((lease.process, lease.expires), (ProcessId::from(OURS), at(140 * SECOND)));
    }
    let other = Request::default().owner("another").request_id("r");
    stopped(regrant(&view(Some(&mine), 110 * SECOND, &rules), &other, ttl(SECOND)));
    stopped(regrant(&view(Some(&mine), 130 * SECOND, &rules), &request, ttl(SECOND)));
}

#[test]
fn a_renewal_moves_the_expiry_and_never_back() {
    let (rules, mine) = (rules(), record(Some(lease(OURS))));
    let id = LeaseId::from([1; 16]);
    let lease = written(renew(&view(Some(&mine), 110 * SECOND, &rules), id, None, None)).lease.unwrap();
    assert_eq!((lease.expires, lease.fence), (at(140 * SECOND), Fence::new(500).unwrap()));
    let lease = written(renew(&view(Some(&mine), 110 * SECOND, &rules), id, Some(ttl(SECOND)), None)).lease.unwrap();
    assert_eq!((lease.expires, lease.lasts), (at(130 * SECOND), Some(ms(30 * SECOND))));
}

#[test]
fn a_lease_that_ended_or_is_gone_or_was_cloned_is_lost() {
    let (rules, mine, id) = (rules(), record(Some(lease(OURS))), LeaseId::from([1; 16]));
    let expired = LossReason::Expired { failing: None };
    let reason = |plan: Result<Plan<Loss>>| stopped(plan).reason;
    assert_eq!(reason(renew(&view(Some(&mine), 130 * SECOND, &rules), id, None, None)), expired);
    let seen = view(Some(&mine), 110 * SECOND, &rules);
    let deadline = Moment::from_origin(ms(110 * SECOND));
    assert_eq!(reason(renew(&seen, id, None, Some(Believed { over: false, deadline }))), expired);
    let deadline = Moment::from_origin(ms(120 * SECOND));
    assert_eq!(reason(renew(&seen, id, None, Some(Believed { over: true, deadline }))), expired);
    assert_eq!(reason(renew(&seen, LeaseId::from([2; 16]), None, None)), LossReason::Taken);
    assert_eq!(reason(renew(&view(None, 110 * SECOND, &rules), id, None, None)), LossReason::Released);
    // Another beat than this process wrote, under its own name.
    let own = Some((WriteId::from([4; 16]), Moment::default()));
    let cloned = View { facts: Facts { own, is_older_than_own: false, ..seen.facts }, ..seen };
    let old = Some(Believed { over: false, deadline });
    assert_eq!(reason(renew(&cloned, id, None, old)), LossReason::Cloned);
    stopped(release(&cloned, id, None));
}

#[test]
fn a_hand_over_is_a_grant_that_leaves_the_mark_and_a_release_removes_it() {
    let (rules, request, id) = (rules(), Request::default(), LeaseId::from([1; 16]));
    let mark = Mark { process: ProcessId::from([8; 16]), since: at(0), interval: ms(SECOND) };
    let held = Record { waiting: Some(mark), ..record(Some(lease(OURS))) };
    let seen = view(Some(&held), 110 * SECOND, &rules);
    let freed = written(release(&seen, id, None));
    assert_eq!((freed.lease, freed.waiting, freed.last_fence), (None, None, Fence::new(500).ok()));
    let next = Wanted { request: &request, ttl: ttl(SECOND), id: LeaseId::from([9; 16]), under: None };
    let change = written(release(&seen, id, Some(next)));
    assert!(change.waiting == Some(mark) && change.last_fence > Fence::new(500).ok());
    stopped(release(&seen, LeaseId::from([2; 16]), Some(next)));
}

#[test]
fn only_an_ended_lease_is_cleared_and_its_fence_stays() {
    let (rules, held) = (rules(), record(Some(lease([8; 16]))));
    stopped(Ok(clear(&view(Some(&held), 131 * SECOND, &rules), None)));
    let change = written(Ok(clear(&view(Some(&held), 140 * SECOND, &rules), None)));
    let stamp = Stamp { write_id: WriteId::from([6; 16]), revision: 6 };
    let cleared = change.record(Some(&held), stamp, now(140 * SECOND), 3, held.hour);
    assert_eq!((cleared.lease, cleared.last_fence, cleared.epoch), (None, Fence::new(500).ok(), 3));
}

#[test]
fn a_lease_that_would_be_over_is_not_sent() {
    let (rules, mine) = (rules(), record(Some(lease(OURS))));
    let renewed = Lease { expires: at(140 * SECOND), ..lease(OURS) };
    let late = |millis| too_late(&view(Some(&mine), millis, &rules), &renewed, now(110 * SECOND));
    assert_eq!(late(129 * SECOND), None);
    assert_eq!(late(130 * SECOND), Some("was over before its renewal was sent"));
    assert_eq!(late(140 * SECOND), Some("would have been over before it was written"));
}
