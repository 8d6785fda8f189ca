//! Rule 9: nothing is deleted on unknown, and no id leaves while its name may still be met.

use super::*;
use crate::job::layout::{Layout, Listing};

/// A bed with segment 1 finished.
fn finished(request: bool) -> Bed {
    let mut bed = Bed::new();
    bed.absorb(Facts { request, ..facts(1, 1) });
    bed.claim(1, 1, 1);
    bed.finish(1, 1, job(1, 0));
    bed
}

fn since(bed: &Bed) -> Millis {
    bed.ledger.unconfirmed_since(segment(1)).unwrap()
}

fn confirm(bed: &mut Bed) {
    let since = since(bed);
    assert_eq!(bed.one(None, Op::Confirm { segment: segment(1), since }), Outcome::Done);
}

fn forget() -> Op {
    Op::Forget { segments: vec![segment(1)] }
}

#[test]
fn a_segment_enters_the_finished_list_in_the_commit_that_ends_it() {
    let mut bed = Bed::new();
    let name = SegmentName { place: Place::At(later(0)), ..inbox(1, 2) };
    bed.one(None, Op::Absorb { name, facts: Arc::new(facts(1, 2)) });
    bed.claim(1, 1, 2);
    bed.finish(1, 1, job(1, 0));
    assert_eq!(bed.last.as_ref().unwrap().finished, []);
    bed.finish(1, 1, job(1, 1));
    assert_eq!(bed.last.as_ref().unwrap().finished, [name]);
    assert_eq!(bed.ledger.finished[0].name, name);
}

#[test]
fn an_entry_leaves_90_seconds_after_its_confirmed_delete_and_never_unconfirmed() {
    let mut bed = finished(false);
    bed.now += 86_400_000;
    assert_eq!(bed.one(None, forget()), Outcome::Nothing, "its delete was never confirmed");
    confirm(&mut bed);
    bed.now += 89_999;
    assert_eq!(bed.one(None, forget()), Outcome::Nothing);
    bed.now += 1;
    assert_eq!(bed.one(None, Op::Forget { segments: vec![segment(2)] }), Outcome::Nothing, "a listing has shown it");
    assert_eq!(bed.one(None, forget()), Outcome::Done);
    assert_eq!(bed.ledger.finished, []);
}

#[test]
fn a_segment_with_a_request_id_is_remembered_for_its_window_and_90_seconds() {
    let mut bed = finished(true);
    confirm(&mut bed);
    bed.now += 600_000 + 89_999;
    assert_eq!(bed.one(None, forget()), Outcome::Nothing);
    bed.now += 1;
    assert_eq!(bed.one(None, forget()), Outcome::Done);
}

#[test]
fn a_returning_name_is_unconfirmed_first_and_an_old_confirmation_does_not_fit() {
    let mut bed = finished(false);
    let first = since(&bed);
    confirm(&mut bed);
    assert_eq!(bed.one(None, Op::Unconfirm { segment: segment(1) }), Outcome::Delete(vec![inbox(1, 1)]));
    let second = since(&bed);
    assert!(second > first, "also when the clock stands still");
    let late = Op::Confirm { segment: segment(1), since: first };
    assert_eq!(bed.one(None, late), Outcome::Nothing, "the answer of the first delete, which came late");
    bed.now += 86_400_000;
    assert_eq!(bed.one(None, forget()), Outcome::Nothing);
    confirm(&mut bed);
    bed.now += 89_999;
    assert_eq!(bed.one(None, forget()), Outcome::Nothing, "its time has started again");
    let again = bed.one(None, Op::Unconfirm { segment: segment(1) });
    assert_eq!(again, Outcome::Delete(vec![inbox(1, 1)]));
    assert_eq!(bed.one(None, Op::Unconfirm { segment: segment(2) }), Outcome::Nothing);
}

#[test]
fn a_repeat_between_look_and_commit_cannot_be_deleted_while_it_is_absorbed() {
    // Q lists and does not see X; a repeat creates X; P lists X and, on a ledger read a moment ago, would delete it; Q lets
    // the id go; R absorbs X.
    let mut bed = finished(true);
    confirm(&mut bed);
    bed.now += 690_000;
    let seen_by_p = bed.ledger.clone();
    assert_eq!(seen_by_p.unconfirmed_since(segment(1)), None, "P may not delete what is confirmed");
    bed.one(None, forget());
    bed.absorb(facts(1, 1));
    // P's commit loses, and on what is there now it finds a live segment.
    assert_eq!(bed.one(None, Op::Unconfirm { segment: segment(1) }), Outcome::Nothing);
    assert_eq!(bed.ledger.unconfirmed_since(segment(1)), None);
}

#[test]
fn anybody_deletes_what_is_unconfirmed_for_a_minute_and_wakes_for_it() {
    let bed = finished(false);
    assert_eq!(bed.ledger.to_delete(NOW + 59_999), []);
    assert_eq!(bed.ledger.to_delete(NOW + 60_000), [(inbox(1, 1), NOW)]);
    assert_eq!(bed.ledger.wakes_after(bed.now), Some(NOW + 60_000));
}

#[test]
fn only_a_listing_from_the_folders_start_past_the_name_lets_an_id_leave() {
    let mut bed = finished(false);
    confirm(&mut bed);
    let layout = Layout::new("default", "q").unwrap();
    let name = layout.segment(&inbox(1, 1)).unwrap();
    let now = bed.now + 90_000;
    let listing = |from_start, cut_off_after: Option<&str>, shown: &[&str]| Listing {
        prefix: layout.inbox(),
        from_start,
        cut_off_after: cut_off_after.map(str::to_owned),
        shown: shown.iter().map(|name| (*name).to_owned()).collect(),
    };
    let cases = [
        (listing(true, None, &[]), true),
        (listing(true, None, &[&name]), false),
        (listing(false, None, &[]), false),
        (listing(true, Some("default/queue/q/in/0/0"), &[]), false),
        (listing(true, Some(&name), &[]), true),
        (Listing { prefix: layout.later(0), from_start: true, ..Listing::default() }, false),
    ];
    for (listing, leaves) in cases {
        assert_eq!(!bed.ledger.to_forget(&layout, &listing, now).is_empty(), leaves, "{listing:?}");
        assert_eq!(bed.ledger.to_forget(&layout, &listing, now - 1), []);
    }
}

/// Ten jobs that failed, each due in some minutes, and the spill that would take them.
fn ten_retries() -> (Bed, Spill) {
    let mut bed = Bed::new();
    bed.absorb(Facts { unique: vec![(3, [5; 16])], ..facts(1, 10) });
    bed.claim(1, 1, 10);
    for index in 0..10 {
        let until = Timestamp::from_millis(NOW + 100_000 + i64::from(index) * 1000);
        bed.answer(1, 1, job(1, index), Answered::Snoozed { until });
    }
    let moving = (0..10).map(|index| Moving {
        job: job(1, index),
        attempts: 0,
        due: NOW + 100_000 + i64::from(index) * 1000,
        index,
    });
    let moving = moving.collect();
    let spill = Spill { segment: segment(60), epoch: 0, jobs: 10, moving, span: (id(1, 0), id(1, 9)) };
    (bed, spill)
}

#[test]
fn a_spill_takes_waiting_jobs_whole_and_the_old_segment_is_over() {
    let (mut bed, spill) = ten_retries();
    assert_eq!(bed.one(Some(1), Op::Spill(Arc::new(spill))), Outcome::Spilled { moved: 10 });
    assert_eq!(bed.last.as_ref().unwrap().finished, [inbox(1, 10)]);
    assert_eq!(bed.ledger.find(job(1, 4)), Found::Elsewhere(vec![segment(60)]));
    assert_eq!(bed.ledger.unique[0].job, job(60, 3));
    assert_eq!((bed.ledger.rows[0].runs.len(), bed.ledger.rows[0].unread.len()), (0, 1));
    assert_eq!(
        bed.finish(1, 1, job(1, 4)),
        Outcome::StaleAttempt(Stale::Gone),
        "what was spilled is not finished late"
    );
    assert_eq!(bed.one(None, Op::Cancel { job: job(60, 4), in_inbox: false }), Outcome::Ended { late: false });
    bed.now += 86_400_000;
    let runs = (0..10).map(|index| (1, traits(|traits| traits.due = NOW + 100_000 + index * 1000)));
    let table = facts_of(60, &runs.collect::<Vec<_>>());
    assert_eq!(bed.one(None, Op::Open { facts: Arc::new(table) }), Outcome::Done);
    assert_eq!(bed.claim(1, 2, 99).len(), 9, "all but the cancelled one");
}

#[test]
fn what_has_changed_since_the_spill_was_written_stays_where_it_is() {
    let (mut bed, spill) = ten_retries();
    bed.one(None, Op::Cancel { job: job(1, 0), in_inbox: false });
    bed.one(None, Op::Pause { job: job(1, 1), paused: true });
    bed.now += 103_000;
    assert_eq!(bed.claim(2, 7, 1).len(), 1);
    bed.fail(2, 7, job(1, 2));
    bed.claim(2, 8, 1);
    assert_eq!(bed.one(Some(1), Op::Spill(Arc::new(spill.clone()))), Outcome::Spilled { moved: 6 });
    assert_eq!(bed.ledger.rows[0].moved.len(), 1);
    assert_eq!(bed.one(Some(1), Op::Spill(Arc::new(spill.clone()))), Outcome::WriteAgain, "once only");
    let none = Spill { segment: segment(61), ..spill };
    assert_eq!(bed.one(Some(1), Op::Spill(Arc::new(none))), Outcome::Spilled { moved: 0 });
    assert_eq!(bed.last.as_ref().unwrap().unnamed, [segment(61)], "an object for nothing is deleted");
}

#[test]
fn a_collector_and_a_paused_spill_cannot_lose_jobs_together() {
    // P reads, writes seg/60 and is paused; the collector lists it, raises the epoch and goes to delete it; P's commit is
    // lost and made again on the new ledger.
    let (mut bed, spill) = ten_retries();
    let context = bed.context(Some(1));
    let on_old_base = apply(&bed.ledger, &[Op::Spill(Arc::new(spill.clone()))], &context).unwrap();
    assert_eq!(on_old_base.outcomes, [Outcome::Spilled { moved: 10 }]);
    let orphans = bed.one(None, Op::RaiseEpoch { candidates: vec![segment(60)] });
    assert_eq!(orphans, Outcome::Orphans(vec![segment(60)]));
    assert_eq!(bed.one(Some(1), Op::Spill(Arc::new(spill.clone()))), Outcome::WriteAgain);
    assert_eq!(bed.ledger.totals().waiting, 10);
    // The other order: the spill lands first, and the collector looks again on that base.
    let (mut bed, spill) = ten_retries();
    bed.one(Some(1), Op::Spill(Arc::new(spill)));
    assert_eq!(bed.one(None, Op::RaiseEpoch { candidates: vec![segment(60)] }), Outcome::Nothing);
    assert_eq!(bed.ledger.gc_epoch, 0);
}
