//! Tables of cases for the end of a lease.

use super::*;
use crate::{Fence, LeaseId, ProcessId, Ttl, storage::cas::Stamp};
use proptest::prelude::*;

const SKEW: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(3600);
const SLACK: Duration = Duration::from_secs(2);
/// A lease of 30 s is over for everybody when this has passed since its beat.
const BELIEF: u64 = 31_030;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn moment(millis: u64) -> Moment {
    Moment::from_origin(ms(millis))
}

fn bounds() -> Bounds {
    Bounds { max_clock_skew: SKEW, max_ttl: MAX_TTL, stamp_slack: Some(SLACK) }
}

/// Of 30 s, granted at 100 s by its holder's clock.
fn lease() -> Lease {
    Lease {
        id: LeaseId::from([1; 16]),
        request_id: None,
        owner: "holder".into(),
        process: ProcessId::from([2; 16]),
        note: None,
        fence: Fence::new(1).unwrap(),
        granted: at(100_000),
        expires: at(130_000),
        ttl: Ttl::new(ms(30_000)).unwrap(),
        beat: WriteId::from([3; 16]),
        lasts: Some(ms(30_000)),
        boot: None,
        session: None,
    }
}

fn record(lease: Lease) -> Record {
    let stamp = Stamp { write_id: lease.beat, revision: 1 };
    Record { lease: Some(lease), ..Record::without_lease(None, stamp, at(100_000)) }
}

/// The store received the beat at 100 s, and nothing else is known.
fn known() -> Known {
    Known {
        modified: Some(at(100_000)),
        time: None,
        own: None,
        gone: None,
        session_over: None,
        now: moment(500_000),
        host: false,
        boot: None,
    }
}

fn says(record: &Record, wall: i64, known: Known) -> &'static str {
    match judge(Some(record), at(wall), &known, None, &bounds()) {
        State::Free => "free",
        State::Held(_) => "held",
        State::MayHaveEnded(_) => "may have ended",
        State::Ended(_) => "ended",
    }
}

#[test]
fn a_wall_clock_alone_ends_nothing_however_far_ahead_it_is() {
    let record = record(lease());
    for wall in [131_001, 200_000, 86_400_000] {
        assert_eq!(says(&record, wall, known()), "may have ended");
        let young = Known { time: Some(at(100_000 + 33_030)), ..known() };
        assert_eq!(says(&record, wall, young), "may have ended");
    }
}

#[test]
fn stamps_alone_end_nothing_and_both_together_do() {
    let record = record(lease());
    let old = Known { time: Some(at(100_000 + 33_031)), ..known() };
    assert_eq!(says(&record, 131_000, old), "held", "the wall clock has not passed the expiry and the skew");
    assert_eq!(says(&record, 131_001, old), "ended");
}

#[test]
fn the_slack_of_stamps_is_added_and_where_there_is_none_they_end_nothing() {
    let (lease, record) = (lease(), record(lease()));
    let second = |time| Known { time: Some(at(time)), ..known() }.seconds(&record, &lease)[1];
    let waits = |time, stamp_slack| second_waits(second(time), &lease, &Bounds { stamp_slack, ..bounds() });
    assert_eq!(waits(100_000, Some(SLACK)), Some(ms(BELIEF + 2001)));
    assert_eq!(waits(100_000, Some(ms(7000))), Some(ms(BELIEF + 7001)));
    assert_eq!(waits(900_000, Some(ms(7000))), Some(Duration::ZERO));
    assert_eq!(waits(900_000, None), None);
}

#[test]
fn a_stamp_that_was_carried_over_counts_and_not_that_of_the_mark() {
    let marked = Record { beat_stamp: Some(at(100_000)), ..record(lease()) };
    let known = Known { modified: Some(at(125_000)), time: Some(at(133_031)), ..known() };
    assert_eq!(says(&marked, 131_001, known), "ended");
}

#[test]
fn ones_own_beat_is_judged_by_ones_own_monotonic_clock() {
    let record = record(lease());
    let own = |now| Known { own: Some((lease().beat, moment(1_000))), now: moment(now), ..known() };
    assert_eq!(says(&record, 131_001, own(1_000 + BELIEF)), "may have ended");
    assert_eq!(says(&record, 131_001, own(1_001 + BELIEF)), "ended");
    let slept = Known { time: Some(at(133_031)), ..own(2_000) };
    assert_eq!(
        says(&record, 131_001, slept),
        "ended",
        "a clock that stood still with its machine is not the last word"
    );
    let another = Known { own: Some((WriteId::from([9; 16]), moment(1_000))), ..own(900_000) };
    assert_eq!(says(&record, 131_001, another), "may have ended", "somebody else's beat is not ours to judge");
}

#[test]
fn on_one_host_the_boot_time_clock_is_the_second_witness() {
    let boot = BootId::from([7; 16]);
    let record = record(Lease { boot: Some(Boot { id: boot, at: ms(1_000) }), ..lease() });
    let host = |now, boot| Known { host: true, boot, now: moment(now), ..known() };
    assert_eq!(says(&record, 131_001, host(1_000 + BELIEF, Some(boot))), "may have ended");
    assert_eq!(says(&record, 131_001, host(1_001 + BELIEF, Some(boot))), "ended");
    assert_eq!(says(&record, 131_000, host(1_001 + BELIEF, Some(boot))), "held");
    // A process that is gone says nothing where the clock is shared: its client may believe in the lease.
    let gone = Known { gone: Some(lease().beat), ..host(1_000 + BELIEF, Some(boot)) };
    assert_eq!(says(&record, 131_001, gone), "may have ended");
    // After a restart, in another container, or by a clock that is behind the holder's: no witness.
    let other = Some(BootId::from([8; 16]));
    let stamped = |known: Known| Known { time: Some(at(900_000)), ..known };
    assert_eq!(says(&record, 131_001, stamped(host(900_000, other))), "may have ended");
    assert_eq!(says(&record, 131_001, stamped(host(900_000, None))), "may have ended");
    assert_eq!(says(&record, 131_001, stamped(host(999, Some(boot)))), "may have ended");
}

#[test]
fn a_process_that_is_gone_ends_its_lease_with_the_wall_clock() {
    let boot = Some(Boot { id: BootId::from([7; 16]), at: ms(1_000) });
    let record = record(Lease { boot, ..lease() });
    let gone = Known { host: true, gone: Some(lease().beat), ..known() };
    assert_eq!(says(&record, 131_000, gone), "held");
    assert_eq!(says(&record, 131_001, gone), "ended");
    let another = Known { gone: Some(WriteId::from([9; 16])), ..gone };
    assert_eq!(says(&record, 131_001, another), "may have ended");
}

#[test]
fn what_was_watched_for_long_enough_has_ended_whatever_the_clocks_say() {
    let (lease, record) = (lease(), record(lease()));
    let watched = Watched::new(&lease, moment(1_000), &bounds());
    assert_eq!(watched.long_enough(moment(1_000 + BELIEF - 1)), None);
    assert_eq!(watched.left(moment(1_000 + BELIEF - 1)), ms(1));
    let beat = watched.long_enough(moment(1_000 + BELIEF));
    assert_eq!(beat, Some(lease.beat));
    let judged = |watched| judge(Some(&record), at(0), &known(), watched, &bounds());
    assert!(matches!(judged(beat), State::Ended(_)));
    assert!(matches!(judged(Some(WriteId::from([9; 16]))), State::Held(_)), "another beat was watched");
    // A new beat begins to be watched when it is first seen; the same one goes on.
    let again = Watched::new(&lease, moment(20_000), &bounds());
    assert_eq!(again.or_since(Some(watched)), watched);
    let renewed = Watched::new(&Lease { beat: WriteId::from([9; 16]), ..lease }, moment(20_000), &bounds());
    assert_eq!(renewed.or_since(Some(watched)), renewed);
}

#[test]
fn a_lease_that_does_not_say_lasts_for_its_ttl_and_never_beyond_the_longest() {
    assert_eq!(Lease { lasts: None, ..lease() }.lasts(MAX_TTL), ms(30_000));
    assert_eq!(Lease { lasts: Some(ms(45_000)), ..lease() }.lasts(MAX_TTL), ms(45_000));
    assert_eq!(Lease { lasts: Some(Duration::MAX), ..lease() }.lasts(MAX_TTL), MAX_TTL);
}

#[test]
fn a_shorter_renewal_does_not_forget_who_believed_for_longer() {
    let lease = Lease { lasts: Some(ms(60_000)), ..lease() };
    let lasts = |own, now| lasts_after_renewal(&lease, ms(10_000), own, moment(now), MAX_TTL);
    assert_eq!(lasts(None, 30_000), ms(60_000), "another process wrote the last beat: all of it");
    assert_eq!(lasts(Some((WriteId::from([9; 16]), moment(0))), 30_000), ms(60_000));
    assert_eq!(lasts(Some((lease.beat, moment(0))), 30_000), ms(30_030), "what is left, by a clock that may be fast");
    assert_eq!(lasts(Some((lease.beat, moment(0))), 900_000), ms(10_000));
    assert_eq!(lasts_after_renewal(&lease, ms(90_000), None, moment(0), MAX_TTL), ms(90_000));
    assert_eq!(lasts_after_renewal(&lease, ms(90_000), None, moment(0), ms(80_000)), ms(80_000));
}

#[test]
fn what_is_left_is_never_written_down_as_less() {
    let lease = lease();
    let sent = Moment::from_origin(Duration::ZERO);
    let now = Moment::from_origin(Duration::from_micros(1_001));
    let left = lasts_after_renewal(&lease, ms(1), Some((lease.beat, sent)), now, MAX_TTL);
    assert_eq!(left, ms(29_999 + 1), "29.998 999… s, rounded up");
}

proptest! {
    /// The holder reads its monotonic clock, then sends; the store stamps what arrives by a clock that differs from its
    /// other clocks by up to the slack and cuts it to the second. Whoever judges by stamps is never early.
    #[test]
    fn no_stamp_ends_a_lease_before_its_holder_stops_to_believe(
        sent in 0i64..100_000_000,
        under_way in 0i64..60_000_000,
        lasts in 1_000u64..3_600_000,
        beat_clock in -1_000_000i64..=1_000_000,
        time_clock in -1_000_000i64..=1_000_000,
        judged in 0i64..8_000_000_000,
        wall: i64,
    ) {
        let cut = |micros: i64| Timestamp::from_micros(micros.div_euclid(1_000_000) * 1_000_000);
        let base = 1_767_227_400_000_000i64;
        let lease = Lease { lasts: Some(ms(lasts)), expires: at(0), ..lease() };
        let received = base + sent + under_way;
        let beat = cut(received + beat_clock);
        // The time object was written at this moment by a right clock.
        let now = received + judged;
        let known = Known { modified: Some(beat), time: Some(cut(now + time_clock)), ..known() };
        let record = record(lease);
        if let State::Ended(_) = judge(Some(&record), Timestamp::from_micros(wall), &known, None, &bounds()) {
            let believed_until = base + sent + i64::try_from(lasts).unwrap() * 1000;
            prop_assert!(now > believed_until, "early by {} µs", believed_until - now);
        }
    }

    #[test]
    fn no_clock_makes_the_judge_panic(wall: i64, time: i64, stamp: i64, lasts: u64, now: u64, sent: u64) {
        let lease = Lease { lasts: Some(ms(lasts)), ..lease() };
        let record = Record { beat_stamp: Some(Timestamp::from_micros(stamp)), ..record(lease.clone()) };
        let known = Known { time: Some(Timestamp::from_micros(time)), now: moment(now), ..known() };
        judge(Some(&record), Timestamp::from_micros(wall), &known, None, &bounds());
        let own = Known { own: Some((lease.beat, moment(sent))), ..known };
        judge(Some(&record), Timestamp::from_micros(wall), &own, None, &bounds());
        lasts_after_renewal(&lease, ms(lasts), Some((lease.beat, moment(sent))), moment(now), MAX_TTL);
    }
}
