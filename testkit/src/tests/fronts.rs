//! The clocks of the machines that a store answers by.

use crate::fronts::Fronts;
use leasehold::clock::Timestamp;

#[test]
fn stamps_and_dates_are_those_of_one_front_end_or_another() {
    let mut fronts = Fronts::default();
    fronts.ahead = vec![0, 2000];
    fronts.whole_seconds = true;
    let stamps: Vec<i64> = (0..50).map(|_| fronts.stamp(Timestamp::from_millis(10_900)).as_millis()).collect();
    assert!(stamps.contains(&10_000) && stamps.contains(&12_000));
    assert!(stamps.iter().all(|stamp| [10_000, 12_000].contains(stamp)), "{stamps:?}");
    let mut alone = Fronts::default();
    assert_eq!(alone.stamp(Timestamp::from_millis(10_900)), Timestamp::from_millis(10_900));
    assert_eq!(alone.date(Timestamp::from_millis(10_900)), Timestamp::from_millis(10_000));
}
