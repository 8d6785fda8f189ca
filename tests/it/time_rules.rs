//! Never early: however the clocks run, stop, step and differ, a lease is believed in by one process at most, and a
//! fence never goes back.

mod clocks;
mod fences;
mod limits;

use crate::{
    common::{key, noon, request, s3, secs},
    processes::{
        ENDED, MILLI, SKEW, TTL, World, granted, held, lost, moving, pass, record_name, renewed, settle, start,
    },
};
use leasehold::{
    ErrorKind, Hour, Settings, Ttl,
    clock::{Clock, Timestamp},
    lease::{Acquired, Locked, Request},
    store::Probing,
};
use leasehold_testkit::{Answer, Fault, Op, Rule, S3Server, TestClock};
use std::{pin::pin, sync::Arc, time::Duration};

const HOUR: i64 = 3_600_000;

// Whose turn it is, to the millisecond.

#[tokio::test]
async fn a_lease_is_taken_over_only_past_its_expiry_by_more_than_the_skew() {
    let world = World::new();
    let (holder, other) = (world.process().await, world.process().await);
    let first = granted(holder.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED - MILLI);
    held(other.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(MILLI);
    let second = granted(other.leases.acquire(&key("a"), &request()).await);
    assert!(second.fence() > first.fence());
}

#[tokio::test]
async fn a_renewal_whose_entry_took_longer_than_the_lease_had_left_is_not_sent() {
    let world = World::new();
    let process = world.process().await;
    // Over the end of an hour, so that an entry must be written first.
    world.clock.advance(secs(29 * 60 + 20));
    let request = Request::new(secs(30));
    let grant = granted(process.leases.acquire(&key("a"), &request).await);
    let record = world.record("a");
    world.clock.advance(secs(29));
    world.objects.faults().script(Rule::once(Op::Put, Fault::Slow(secs(2))).on(".lease-index/"));
    let mut renewing = pin!(process.leases.renew(&grant));
    start(&mut renewing).await;
    world.clock.advance(secs(2));
    lost(renewing.await);
    assert_eq!(world.record("a"), record, "what has ended is left as it is");
}

#[tokio::test]
async fn a_lease_is_over_for_its_holder_in_the_very_millisecond_of_its_expiry() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL - MILLI);
    assert!(grant.is_valid());
    assert_eq!(grant.time_left(), MILLI);
    world.clock.advance(MILLI);
    assert!(!grant.is_valid());
    assert_eq!(grant.time_left(), Duration::ZERO);
}

#[tokio::test]
async fn nobody_clears_a_lease_by_looking_at_it_before_others_may_take_it() {
    let world = World::new();
    let (holder, other) = (world.process().await, world.process().await);
    granted(holder.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED - MILLI);
    let before = world.record("a");
    assert!(other.leases.get(&key("a")).await.unwrap().holder.is_some());
    assert_eq!(world.record("a"), before);
    world.clock.advance(MILLI);
    assert!(other.leases.get(&key("a")).await.unwrap().holder.is_none());
    assert_ne!(world.record("a"), before, "cleared on the way");
}

#[tokio::test]
async fn two_clocks_that_differ_by_the_skew_never_make_two_holders() {
    // The holder's clock is slow, the other's is fast, and they are as far apart as they may be.
    for ahead in [1000, -1000] {
        let world = World::new();
        let (holder, other) = (world.process().await, world.process_off_by(ahead).await);
        let first = granted(holder.leases.acquire(&key("a"), &request()).await);
        for _ in 0..40_000 {
            match other.leases.acquire(&key("a"), &request()).await.unwrap() {
                Acquired::Granted(second) => {
                    assert!(!first.is_valid(), "two of them believe in it");
                    assert!(second.fence() > first.fence());
                    break;
                }
                Acquired::Held(held) => {
                    let wait = held.retry_after.clamp(MILLI, secs(1));
                    [&holder.clock, &other.clock].iter().for_each(|clock| clock.advance(wait));
                }
            }
        }
        assert!(!first.is_valid(), "it is never had");
    }
}

#[tokio::test]
async fn belief_ends_by_the_monotonic_clock_when_the_wall_clock_was_set_back() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.step_wall(-HOUR);
    world.clock.advance(TTL - MILLI);
    assert!(grant.is_valid());
    world.clock.advance(MILLI);
    assert!(!grant.is_valid());
    lost(process.leases.renew(&grant).await);
}

#[tokio::test]
async fn belief_ends_by_the_wall_clock_when_that_was_set_forward() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.step_wall(29_999);
    assert!(grant.is_valid());
    world.clock.step_wall(1);
    assert!(!grant.is_valid());
    lost(process.leases.renew(&grant).await);
}

#[tokio::test]
async fn a_guard_says_so_itself_as_soon_as_time_is_up() {
    let world = World::new();
    let process = world.process().await;
    let Locked::Granted(guard) = process.leases.lock_within(&key("a"), &request(), Duration::ZERO).await.unwrap()
    else {
        panic!("held")
    };
    settle().await;
    world.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Hang)));
    world.clock.advance(TTL - MILLI);
    assert!(guard.is_valid());
    world.clock.advance(MILLI);
    assert!(!guard.is_valid());
    moving(&[&world.clock], MILLI, guard.lost()).await;
}

// Renewing.

#[tokio::test]
async fn an_expiry_never_moves_back_and_belief_moves_no_further_than_it_did() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-HOUR);
    let second = renewed(process.leases.renew(&first).await);
    assert_eq!(second.expires_at(), first.expires_at());
    assert_eq!(second.time_left(), secs(10), "the expiry did not move, and neither does belief");
    world.clock.advance(secs(10));
    assert!(!second.is_valid());
}

#[tokio::test]
async fn a_small_step_back_moves_belief_by_as_much_as_the_expiry() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-5000);
    let second = renewed(process.leases.renew(&first).await);
    assert_eq!(second.expires_at(), first.expires_at().plus(secs(15)));
    assert_eq!(second.time_left(), secs(25));
    // It is not granted before the holder has stopped believing in it.
    let other = world.process_off_by(5000).await;
    let held = held(other.leases.acquire(&key("a"), &request()).await);
    assert!(held.retry_after >= secs(25) + SKEW, "{:?}", held.retry_after);
}

#[tokio::test]
async fn renewing_by_the_id_alone_moves_belief_no_further_than_the_expiry_either() {
    let world = World::new();
    let process = world.process().await;
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-30_000);
    let second = renewed(process.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    assert_eq!(second.expires_at(), first.expires_at());
    assert_eq!(second.time_left(), secs(10), "others may have it when it was to expire");
}

#[tokio::test]
async fn a_repeated_request_moves_belief_no_further_than_the_expiry_either() {
    let world = World::new();
    let process = world.process().await;
    let asked = request().request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    world.clock.step_wall(-30_000);
    let second = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!((second.lease_id(), second.expires_at()), (first.lease_id(), first.expires_at()));
    assert_eq!(second.time_left(), secs(10), "others may have it when it was to expire");
}

#[tokio::test]
async fn a_request_repeated_elsewhere_can_be_repeated_here_while_it_lives() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let asked = request().request_id("job-7");
    let first = granted(process.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    let second = granted(other.leases.acquire(&key("a"), &asked).await);
    world.clock.advance(secs(20));
    assert!(!first.is_valid() && second.is_valid());
    let third = granted(process.leases.acquire(&key("a"), &asked).await);
    assert_eq!((third.lease_id(), third.time_left()), (first.lease_id(), TTL));
}

#[tokio::test]
async fn a_lease_renewed_elsewhere_can_be_renewed_here_when_it_would_have_ended() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(secs(20));
    renewed(other.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    world.clock.advance(secs(10));
    let third = renewed(process.leases.renew_by_id(&key("a"), first.lease_id(), None).await);
    assert_eq!(third.time_left(), TTL);
}

#[tokio::test]
async fn renewing_a_lease_that_has_ended_is_lost_even_if_nobody_took_it() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL);
    let before = world.record("a");
    let loss = lost(process.leases.renew(&grant).await);
    assert_eq!((loss.taken_by, loss.fence), (None, Some(grant.fence())));
    lost(process.leases.renew_by_id(&key("a"), grant.lease_id(), None).await);
    assert_eq!(world.record("a"), before, "nothing is written");
}

#[tokio::test]
async fn a_lease_can_be_renewed_in_its_last_millisecond() {
    let world = World::new();
    let process = world.process().await;
    let grant = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(TTL - MILLI);
    let again = renewed(process.leases.renew(&grant).await);
    assert_eq!((again.fence(), again.time_left()), (grant.fence(), TTL));
}

#[tokio::test]
async fn a_renewal_says_who_has_it_now() {
    let world = World::new();
    let (process, other) = (world.process().await, world.process().await);
    let first = granted(process.leases.acquire(&key("a"), &request()).await);
    world.clock.advance(ENDED);
    let second = granted(other.leases.acquire(&key("a"), &request().owner("other")).await);
    let loss = lost(process.leases.renew(&first).await);
    assert_eq!(loss.taken_by.map(|holder| holder.owner), Some("other".to_owned()));
    assert_eq!(loss.fence, Some(second.fence()));
}

#[tokio::test]
async fn a_renewal_whose_answer_comes_after_its_time_is_lost() {
    let world = World::new();
    let process = world.process().await;
    let short = Request::new(secs(2));
    let grant = granted(process.leases.acquire(&key("a"), &short).await);
    // The write lands at once; reading back what became of it takes longer than the lease lasts.
    world.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
    world.objects.faults().script(Rule::once(Op::Get, Fault::Delay(secs(4))).on("/meta/"));
    let clock = world.clock.clone();
    lost(moving(&[&clock], Duration::from_millis(100), process.leases.renew(&grant)).await);
}

#[tokio::test]
async fn renewing_across_hours_leaves_two_entries_at_most() {
    let world = World::new();
    let process = world.process().await;
    let mut grant = granted(process.leases.acquire(&key("a"), &request()).await);
    let mut hours = Vec::new();
    for _ in 0..3 * 360 {
        world.clock.advance(secs(10));
        grant = renewed(process.leases.renew(&grant).await);
        let hour = Hour::of(grant.expires_at()).unwrap().to_string();
        let entries = world.entries("a");
        assert!(entries.contains(&hour), "{hour} is not in {entries:?}");
        hours.push(hour);
    }
    hours.dedup();
    // One for each hour that it was in. Those of past hours are the sweeper's; none is written twice.
    assert_eq!(world.entries("a"), hours);
    let now = Hour::of(world.clock.wall()).unwrap().to_string();
    assert!(world.entries("a").iter().filter(|hour| **hour >= now).count() <= 2);
}
