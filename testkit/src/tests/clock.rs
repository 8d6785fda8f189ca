//! The clock that is moved by hand.

use crate::TestClock;
use leasehold::clock::{Clock, Timestamp};
use std::time::Duration;

#[tokio::test]
async fn a_sleeper_wakes_when_time_is_moved_and_not_before() {
    let clock = TestClock::at(Timestamp::from_millis(0));
    let sleeping = tokio::spawn({
        let clock = clock.clone();
        async move { clock.sleep(Duration::from_secs(60)).await }
    });
    clock.wait_for_sleepers(1).await;
    clock.advance(Duration::from_secs(59));
    tokio::task::yield_now().await;
    assert!(!sleeping.is_finished());
    clock.advance(Duration::from_secs(1));
    sleeping.await.unwrap();
    assert_eq!(clock.sleepers(), 0);
    assert_eq!(clock.wall(), Timestamp::from_millis(60_000));
}

#[test]
fn a_step_of_the_wall_clock_is_no_passing_of_time() {
    let clock = TestClock::at(Timestamp::from_millis(5000));
    let before = clock.monotonic();
    clock.step_wall(-3000);
    assert_eq!(clock.wall(), Timestamp::from_millis(2000));
    assert_eq!(clock.monotonic(), before);
}
