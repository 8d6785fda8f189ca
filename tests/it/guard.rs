//! A guard keeps its lease for as long as that can be done, and says at once when it cannot.

use crate::{
    common::{key, noon, request},
    memory::{MILLI, Memory, SECOND, lock, process, settle},
};
use futures_util::FutureExt;
use leasehold::{
    ErrorKind, Fence,
    clock::{Clock, Timestamp},
    lease::{Acquired, Guard, Loss, Request},
    store::RequestKind,
};
use leasehold_testkit::{Answer, Fault, FaultStore, Op, Rule, SeededGenerator, TestClock};
use std::{sync::Arc, time::Duration};
use tokio::runtime::Handle;

fn lasting(secs: u64) -> Request {
    Request::new(Duration::from_secs(secs)).owner("test")
}

/// What the guard says of its loss, if it says so by now.
fn loss(guard: &Guard) -> Option<Loss> {
    guard.lost().now_or_never()
}

async fn is_free(bed: &Memory, name: &str) -> bool {
    bed.leases.peek(&key(name)).await.unwrap().holder.is_none()
}

#[tokio::test]
async fn a_lease_is_renewed_at_each_third_of_its_time_to_live_by_one_write() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let fence = guard.fence();
    assert_eq!(guard.grant().owner(), "test");
    let elsewhere = lock(&bed.store.leases("orders").unwrap(), "b", &request()).await;
    assert_eq!(elsewhere.grant().namespace().as_str(), "orders");
    elsewhere.release().await.unwrap();
    for third in 1..=30u32 {
        let before = bed.store.requests();
        bed.pass(1, 10 * SECOND - MILLI).await;
        assert_eq!(bed.store.requests().since(&before).total(), 0, "not before it is time");
        bed.pass(1, MILLI).await;
        let made = bed.store.requests().since(&before);
        assert_eq!((made.of(RequestKind::Put), made.total()), (1, 1), "once, when it is");
        let expires = noon().plus(third * 10 * SECOND).plus(30 * SECOND);
        assert_eq!(guard.grant().expires_at(), expires);
        let stored = bed.leases.peek(&key("a")).await.unwrap().holder.unwrap();
        assert_eq!((stored.expires_at, stored.fence), (expires, fence), "three lives of the lease for each renewal");
    }
    assert!(guard.is_valid() && loss(&guard).is_none());
}

#[tokio::test]
async fn keeping_a_lease_alive_into_another_hour_files_it_there_first() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &lasting(900)).await;
    let filed = |hour: &str| bed.objects.names().contains(&format!("default/.lease-index/{hour}/a"));
    assert!(filed("2026010100") && !filed("2026010101"));
    for (offset, hour) in [(300, "2026010100"), (600, "2026010100"), (900, "2026010101")] {
        bed.pass(1, 300 * SECOND).await;
        assert_eq!(guard.grant().expires_at(), noon().plus(Duration::from_secs(offset + 900)));
        assert!(filed(hour), "{hour}");
    }
}

#[tokio::test]
async fn a_lost_response_to_a_renewal_costs_nothing() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    for answer in [Answer::Status(500), Answer::Drop, Answer::Status(412), Answer::Hang] {
        bed.objects.faults().script(Rule::once(Op::Put, Fault::Lose(answer)).on("meta/"));
        let before = guard.grant().expires_at();
        bed.pass(20, SECOND).await;
        assert!(guard.is_valid() && loss(&guard).is_none(), "{answer:?}");
        assert!(guard.grant().expires_at() > before, "{answer:?}");
    }
}

#[tokio::test]
async fn a_burst_of_refusals_is_survived_as_long_as_there_is_time() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let (fence, expires) = (guard.fence(), guard.grant().expires_at());
    for op in [Op::Put, Op::Get] {
        bed.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(503))));
    }
    bed.pass(48, SECOND / 2).await;
    assert!(guard.is_valid());
    assert_eq!(guard.grant().expires_at(), expires);
    bed.objects.faults().clear();
    bed.pass(11, SECOND / 2).await;
    assert!(guard.grant().expires_at() > expires, "renewed with what time was left");
    bed.pass(120, SECOND / 2).await;
    assert!(guard.is_valid() && loss(&guard).is_none());
    assert_eq!(guard.fence(), fence);
}

#[tokio::test]
async fn a_guard_stops_by_its_own_clock_whether_the_store_refuses_or_hangs() {
    for answer in [Answer::Status(503), Answer::Drop, Answer::Hang] {
        let bed = Memory::new().await;
        let guard = bed.lock("a", &request()).await;
        let token = guard.cancellation();
        for op in [Op::Put, Op::Get] {
            bed.objects.faults().script(Rule::always(op, Fault::Refuse(answer)));
        }
        bed.pass(29, SECOND).await;
        bed.pass(1, 999 * MILLI).await;
        assert!(guard.is_valid() && !token.is_cancelled() && loss(&guard).is_none(), "{answer:?}: there is time left");
        bed.pass(1, MILLI).await;
        assert!(!guard.is_valid() && token.is_cancelled(), "{answer:?}");
        assert_eq!(loss(&guard).unwrap().taken_by, None);
    }
}

#[tokio::test]
async fn a_guard_that_must_wait_behind_renewals_that_hang_learns_of_its_loss_in_time() {
    let bed = Memory::new().await;
    let mut others = Vec::new();
    for number in 0..300 {
        others.push(bed.lock(&format!("slow-{number}"), &lasting(60)).await);
    }
    bed.pass(18, SECOND).await;
    let guard = bed.lock("a", &lasting(12)).await;
    for op in [Op::Put, Op::Get] {
        bed.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Hang)));
    }
    bed.pass(11, SECOND).await;
    assert!(guard.is_valid() && loss(&guard).is_none());
    bed.pass(1, SECOND).await;
    assert!(!guard.is_valid() && loss(&guard).is_some());
    assert!(others.iter().all(Guard::is_valid), "they have time left");
}

#[tokio::test]
async fn after_a_pause_the_guard_is_invalid_before_any_task_has_run() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let before = bed.puts();
    bed.clock.advance(30 * SECOND);
    assert!(!guard.is_valid(), "asked before anything else could happen");
    settle().await;
    assert!(loss(&guard).is_some() && guard.cancellation().is_cancelled());
    assert_eq!(bed.puts(), before, "a lease that has ended is not renewed");
}

#[tokio::test]
async fn a_suspended_machine_does_not_believe_in_its_lease_when_it_wakes() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    bed.clock.suspend(30 * SECOND);
    assert!(!guard.is_valid(), "by the wall clock, though no monotonic time has passed");
    bed.pass(1, 10 * SECOND).await;
    assert!(loss(&guard).is_some());
}

#[tokio::test]
async fn a_wall_clock_set_back_neither_lengthens_belief_nor_makes_a_renewal_storm() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    bed.pass(5, SECOND).await;
    bed.clock.step_wall(-20_000);
    let before = bed.puts();
    bed.pass(250, SECOND / 10).await;
    assert!(guard.is_valid() && loss(&guard).is_none());
    assert!(guard.grant().time_left() <= 10 * SECOND, "belief moves no further than the expiry does");
    assert!((1..=10).contains(&(bed.puts() - before)), "{}", bed.puts() - before);
}

#[tokio::test]
async fn a_guard_over_an_older_lease_renews_it_at_a_third_of_its_life() {
    for (age, wait) in [(4, 6), (10, 0), (25, 0)] {
        let bed = Memory::new().await;
        let grant = bed.leases.acquire(&key("a"), &request()).await.unwrap().granted().unwrap();
        bed.clock.advance(age * SECOND);
        let guard = bed.leases.guard(grant, None);
        settle().await;
        if wait > 0 {
            bed.pass(1, wait * SECOND - MILLI).await;
            assert_eq!(guard.grant().expires_at(), noon().plus(30 * SECOND));
            bed.pass(1, MILLI).await;
        }
        assert_eq!(guard.grant().expires_at(), bed.clock.wall().plus(30 * SECOND), "{age} s old");
    }
}

#[tokio::test]
async fn a_loss_names_who_took_the_lease_and_its_fence() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    // Its clock is wrong by more than clocks may be: that is when a lease can be taken before its holder lets go.
    let ahead = TestClock::at(noon().plus(60 * SECOND));
    let (_store, others) = process(&bed.objects, &ahead).await;
    let taken = others.acquire(&key("a"), &request().owner("thief")).await.unwrap().granted().unwrap();
    bed.pass(1, 10 * SECOND).await;
    let loss = loss(&guard).unwrap();
    let by = loss.taken_by.unwrap();
    assert_eq!((by.owner.as_str(), by.lease_id, by.fence), ("thief", taken.lease_id(), taken.fence()));
    assert_eq!(loss.fence, Some(taken.fence()));
    assert!(!guard.is_valid() && guard.cancellation().is_cancelled());
}

#[tokio::test]
async fn a_guard_that_has_lost_its_lease_releases_nobody_elses() {
    let bed = Memory::new().await;
    for dropped in [false, true] {
        let guard = bed.lock("a", &request()).await;
        bed.clock.advance(32 * SECOND);
        let others = bed.other().await;
        let theirs = others.acquire(&key("a"), &request()).await.unwrap().granted().unwrap();
        if dropped {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        settle().await;
        let holder = bed.leases.peek(&key("a")).await.unwrap().holder.unwrap();
        assert_eq!(holder.lease_id, theirs.lease_id());
        others.release(&theirs).await.unwrap();
        settle().await;
    }
}

#[tokio::test]
async fn max_hold_ends_the_renewing_and_never_releases_under_running_code() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request().max_hold(25 * SECOND)).await;
    bed.pass(24, SECOND).await;
    assert!(guard.is_valid());
    assert_eq!(guard.grant().expires_at(), noon().plus(50 * SECOND));
    bed.clock.advance(SECOND);
    assert!(!guard.is_valid(), "at once");
    settle().await;
    assert_eq!(loss(&guard).unwrap().taken_by, None);
    let before = bed.store.requests();
    bed.pass(20, SECOND).await;
    assert_eq!(bed.store.requests().since(&before).total(), 0, "neither renewed nor released");
    assert!(!is_free(&bed, "a").await);
    drop(guard);
    settle().await;
    assert!(is_free(&bed, "a").await, "whoever held it has stopped");
}

#[tokio::test]
async fn max_hold_is_kept_also_while_a_renewal_hangs() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request().max_hold(12 * SECOND)).await;
    bed.objects.faults().script(Rule::always(Op::Put, Fault::Refuse(Answer::Hang)));
    bed.pass(11, SECOND).await;
    assert!(loss(&guard).is_none());
    bed.pass(1, SECOND).await;
    assert!(loss(&guard).is_some() && !guard.is_valid());
}

#[tokio::test]
async fn what_was_released_can_be_had_at_once_and_is_not_renewed_any_more() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let (fence, token) = (guard.fence(), guard.cancellation());
    guard.release().await.unwrap();
    let others = bed.other().await;
    let theirs = others.acquire(&key("a"), &request()).await.unwrap().granted().unwrap();
    assert!(theirs.fence() > fence);
    let before = bed.store.requests();
    bed.pass(60, SECOND).await;
    assert_eq!(bed.store.requests().since(&before).total(), 0);
    assert!(!token.is_cancelled(), "given back is not lost");
}

#[tokio::test]
async fn a_dropped_guard_releases_in_the_background() {
    let bed = Memory::new().await;
    drop(bed.lock("a", &request()).await);
    settle().await;
    assert!(is_free(&bed, "a").await);
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_is_finished_in_the_background() {
    let bed = Memory::new().await;
    // Dropped in the middle of its write.
    let guard = bed.lock("a", &request()).await;
    bed.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Hang)).on("meta/"));
    let mut releasing = Box::pin(guard.release());
    assert!(releasing.as_mut().now_or_never().is_none());
    drop(releasing);
    bed.pass(10, SECOND / 2).await;
    assert!(is_free(&bed, "a").await);
    // Dropped while it waits for a renewal to end.
    let guard = bed.lock("b", &request()).await;
    bed.objects.faults().script(Rule::once(Op::Put, Fault::Delay(2 * SECOND)).on("meta/"));
    bed.pass(1, 10 * SECOND).await;
    let mut releasing = Box::pin(guard.release());
    assert!(releasing.as_mut().now_or_never().is_none());
    drop(releasing);
    bed.pass(3, SECOND).await;
    assert!(is_free(&bed, "b").await);
}

#[tokio::test]
async fn a_release_that_fails_is_tried_again_in_the_background() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    // Refused for good, then not any more.
    bed.objects.faults().script(Rule::once(Op::Put, Fault::Refuse(Answer::Status(403))).on("meta/"));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Denied);
    bed.pass(10, SECOND / 2).await;
    assert!(is_free(&bed, "a").await);
}

#[tokio::test]
async fn cancelling_the_token_of_a_guard_does_not_make_it_lost() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    guard.cancellation().cancel();
    assert!(guard.is_valid() && loss(&guard).is_none() && !guard.cancellation().is_cancelled());
}

#[tokio::test]
async fn a_thousand_guards_share_one_timer() {
    let bed = Memory::new().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut guards = Vec::new();
    for number in 0..1000 {
        guards.push(bed.lock(&format!("key-{number}"), &request()).await);
    }
    settle().await;
    assert!(tasks() <= before + 1, "{} tasks", tasks());
    assert!(bed.clock.sleepers() <= 1, "{} timers", bed.clock.sleepers());
    for _ in 0..3 {
        let puts = bed.puts();
        bed.clock.advance(10 * SECOND);
        settle().await;
        assert!(tasks() <= before + 1, "{} tasks", tasks());
        assert_eq!(bed.puts() - puts, 1000);
        assert!(guards.iter().all(Guard::is_valid));
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    let puts = bed.puts();
    bed.pass(3, 10 * SECOND).await;
    assert_eq!(bed.puts(), puts);
}

#[tokio::test]
async fn a_renewal_that_landed_unheard_is_given_back_with_the_guard_that_was_lost() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    bed.objects.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Hang)));
    for op in [Op::Get, Op::Put] {
        bed.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(503))));
    }
    bed.pass(30, SECOND).await;
    assert_eq!(loss(&guard).unwrap().taken_by, None);
    bed.objects.faults().clear();
    let there = bed.leases.peek(&key("a")).await.unwrap().holder.expect("it has landed");
    assert!(there.expires_at > bed.clock.wall());
    drop(guard);
    settle().await;
    assert!(is_free(&bed, "a").await);
}

#[tokio::test]
async fn a_background_release_backs_off_and_stops_where_it_is_denied() {
    for (answer, most) in [(503, 1000), (403, 10)] {
        let bed = Memory::new().await;
        let guard = bed.lock("a", &request()).await;
        let before = bed.store.requests();
        for op in [Op::Get, Op::Put] {
            bed.objects.faults().script(Rule::always(op, Fault::Refuse(Answer::Status(answer))));
        }
        drop(guard);
        bed.pass(600, SECOND).await;
        let made = bed.store.requests().since(&before).total();
        assert!((1..most).contains(&made), "{made} requests answered {answer}");
    }
}

#[tokio::test]
async fn a_store_that_nobody_uses_any_more_leaves_no_task_behind() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    settle().await;
    guard.release().await.unwrap();
    settle().await;
    assert!(tasks() > before, "somebody looks after guards");
    drop(bed);
    settle().await;
    assert_eq!(tasks(), before);
}

#[tokio::test]
async fn only_what_a_user_asks_for_is_activity() {
    let bed = Memory::new().await;
    let (store, leases) = (&bed.store, &bed.leases);
    let idle = |secs: u64| assert_eq!(store.idle_for(), Duration::from_secs(secs));
    let guard = bed.lock("a", &request()).await;
    idle(0);
    bed.pass(60, SECOND).await;
    assert!(guard.is_valid());
    idle(60);
    // A waiter has asked once; its looks are not asked for.
    let others = bed.other().await;
    let theirs = lock(&others, "b", &request()).await;
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire_within(&key("b"), &request(), Duration::from_secs(600)).await }
    });
    settle().await;
    idle(0);
    let gets = bed.gets();
    bed.pass(20, SECOND).await;
    assert!(bed.gets() > gets + 5, "it looks");
    idle(20);
    leases.peek(&key("a")).await.unwrap();
    leases.list(b"", None, 10).await.unwrap();
    idle(20);
    waiting.abort();
    theirs.release().await.unwrap();
    // Each of these is.
    let mut grant = None;
    for what in ["acquire", "renew", "get", "release", "mark"] {
        bed.pass(1, SECOND).await;
        assert!(store.idle_for() >= SECOND, "before {what}");
        match what {
            "acquire" => grant = leases.acquire(&key("c"), &request()).await.unwrap().granted(),
            "renew" => drop(leases.renew(grant.as_ref().unwrap()).await.unwrap()),
            "get" => drop(leases.get(&key("c")).await.unwrap()),
            "release" => leases.release(grant.as_ref().unwrap()).await.unwrap(),
            _ => store.mark_activity(),
        }
        assert_eq!(store.idle_for(), Duration::ZERO, "{what}");
    }
    bed.pass(1, SECOND).await;
    guard.release().await.unwrap();
    idle(0);
    let guard = bed.lock("a", &request()).await;
    bed.pass(1, SECOND).await;
    drop(guard);
    idle(0);
}

#[tokio::test]
async fn what_is_no_time_to_live_or_beyond_the_limits_is_refused() {
    let bed = Memory::new().await;
    for refused in [Duration::ZERO, Duration::from_micros(999), Duration::MAX, Duration::from_millis(u64::MAX)] {
        let error = bed.leases.acquire(&key("a"), &Request::new(refused)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{refused:?}");
    }
    for asked in [MILLI, 24 * 3600 * SECOND] {
        let refused = bed.leases.lock_within(&key("a"), &Request::new(asked), Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("TTL must be between 1 s and 1 h"), "{refused}");
    }
}

/// A process whose clock stands where clocks should not.
async fn at(millis: i64) -> (FaultStore, TestClock, leasehold::Leases) {
    let clock = TestClock::at(Timestamp::from_millis(millis));
    let objects = FaultStore::new(Arc::new(clock.clone()), Arc::new(SeededGenerator::new(1)));
    let (_, leases) = process(&objects, &clock).await;
    (objects, clock, leases)
}

#[tokio::test]
async fn a_clock_at_the_end_of_the_years_or_of_the_fences_grants_nothing() {
    // 9999-12-31T23:59:50Z, where no hour can be filed, and 2255-06-05T23:47:34Z, where fences end.
    for (millis, kind) in [(253_402_300_790_000, ErrorKind::Invalid), (9_007_199_254_000, ErrorKind::Corrupt)] {
        let (objects, clock, leases) = at(millis).await;
        clock.advance(SECOND);
        assert_eq!(leases.acquire(&key("a"), &request()).await.unwrap_err().kind(), kind);
        for request in [request().new_key(), request().request_id("x")] {
            leases.acquire(&key("a"), &request).await.unwrap_err();
        }
        assert!(objects.names().iter().all(|name| !name.contains("/meta/")), "{:?}", objects.names());
    }
}

#[tokio::test]
async fn a_clock_before_1970_grants_leases_whose_fences_rise() {
    let (_objects, _clock, leases) = at(-86_400_000).await;
    let mut last: Option<Fence> = None;
    for _ in 0..3 {
        let guard = lock(&leases, "a", &request()).await;
        assert!(Some(guard.fence()) > last && guard.is_valid());
        last = Some(guard.fence());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_held_key_says_who_has_it_and_until_when() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request()).await;
    let Acquired::Held(held) = bed.other().await.acquire(&key("a"), &request()).await.unwrap() else { panic!() };
    assert_eq!(held.by.unwrap().fence, guard.fence());
    assert!(held.retry_after > 31 * SECOND && held.retry_after < 32 * SECOND, "{:?}", held.retry_after);
}

#[tokio::test]
async fn a_guard_that_is_dropped_while_the_clock_is_wrong_keeps_nothing_alive() {
    let bed = Memory::new().await;
    let guard = bed.lock("a", &request().request_id("job-7")).await;
    bed.clock.step_wall(3_600_000);
    assert!(!guard.is_valid());
    drop(guard);
    bed.clock.step_wall(-3_600_000);
    let before = bed.puts();
    bed.pass(100, SECOND).await;
    assert_eq!(bed.puts(), before, "it is renewed for nobody");
    assert!(is_free(&bed, "a").await);
}
