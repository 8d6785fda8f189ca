//! The owner of a shard, and who leaves it to whom.

use super::*;
use crate::job::apply::Op;

#[test]
fn the_first_that_claims_owns_the_shard_until_a_while_after_its_last_commit() {
    let mut bed = Bed::new().absorbed(1, 8);
    bed.claim(1, 1, 2);
    let until = |bed: &Bed| bed.ledger.owner(bed.now).map(|owner| (owner.id, owner.owns_until - bed.now));
    assert_eq!(until(&bed), Some((session(1), 3_000)));
    bed.now += 2_000;
    bed.claim(2, 2, 2);
    assert_eq!(until(&bed), Some((session(1), 1_000)), "a guest takes some, and the owner stays");
    bed.finish(1, 1, job(1, 0));
    assert_eq!(until(&bed), Some((session(1), 3_000)), "each of its commits makes it last");
    bed.now += 3_000;
    assert_eq!(until(&bed), None);
    bed.finish(2, 2, job(1, 2));
    assert_eq!(until(&bed), None, "who only answers does not take it over");
    bed.claim(2, 3, 1);
    assert_eq!(until(&bed), Some((session(2), 3_000)));
    assert!(bed.ledger.is_owned_by_another(Some(session(1)), bed.now));
    assert!(!bed.ledger.is_owned_by_another(Some(session(2)), bed.now));
}

#[test]
fn an_owner_that_died_owns_nothing_any_more() {
    let mut bed = Bed::new().absorbed(1, 4);
    bed.claim(1, 1, 2);
    bed.commit(Some(2), &[Op::Recover { session: session(1) }]);
    assert_eq!(bed.ledger.owner(bed.now).map(|owner| owner.id), None);
    bed.claim(2, 2, 1);
    assert_eq!(bed.ledger.owner(bed.now).map(|owner| owner.id), Some(session(2)));
}

#[test]
fn a_guest_leaves_what_is_young_and_takes_what_has_waited_for_a_second() {
    let mut bed = Bed::new().absorbed(1, 8);
    bed.claim(1, 1, 2);
    let left = |bed: &Bed, who| bed.ledger.left_to_owner(Some(session(who)), &[], bed.now);
    assert_eq!(left(&bed, 1), None, "it is the owner");
    let due = bed.ledger.rows[0].runs[0].traits.due;
    bed.now = due.max(bed.now);
    assert_eq!(left(&bed, 2), Some(due + 1_000).filter(|until| *until > bed.now));
    bed.now = due + 1_000;
    assert_eq!(left(&bed, 2), None, "it waits for a second");
    // With nothing that waits, there is nothing to take until the owner is gone.
    bed.claim(1, 2, 6);
    assert_eq!(left(&bed, 2), Some(bed.now + 3_000));
    bed.now += 3_000;
    assert_eq!(left(&bed, 2), None, "nobody owns it");
}

#[test]
fn the_row_of_a_session_that_has_nothing_in_hand_goes_by_itself() {
    let mut bed = Bed::new().absorbed(1, 2).absorbed(2, 1);
    bed.claim(1, 1, 1);
    bed.claim(2, 2, 1);
    bed.finish(1, 1, job(1, 0));
    bed.now += 31_000;
    let over: Vec<_> = bed.ledger.to_look_at(None, bed.now).map(|known| known.id).collect();
    assert_eq!(over, [session(2)], "nobody has to find out what has become of the first");
    bed.now += 60_000;
    bed.claim(3, 3, 1);
    let there: Vec<_> = bed.ledger.sessions.iter().map(|known| known.id).collect();
    assert_eq!(there, [session(2), session(3)], "one that has something in hand stays");
}
