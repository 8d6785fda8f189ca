//! No clock steals a lease: the wall clock of the process that takes over is one witness, and never the only one.

use crate::{
    common::{SECOND, calm, granted, key, noon, request, s3},
    processes::{TTL, renewed},
};
use leasehold::{
    BootId, ErrorKind, Leases, Store,
    clock::{Clock, Timestamp},
    lease::{Acquired, Grant, Request},
    store::{Probing, RequestKind},
};
use leasehold_testkit::{S3Server, SeededGenerator, TestClock};
use std::{path::Path, sync::Arc, time::Duration};

/// A server, and the clocks of all machines that use it. They run alike and are wrong, each in its own way.
struct Machines {
    clock: TestClock,
    server: S3Server,
    others: Vec<TestClock>,
}

struct Machine {
    clock: TestClock,
    store: Store,
    leases: Leases,
}

impl Machines {
    async fn new() -> Self {
        let clock = TestClock::at(noon());
        let server = S3Server::start(Arc::new(clock.clone())).await.unwrap();
        s3(&server, &clock).open().await.unwrap();
        Self { clock, server, others: Vec::new() }
    }

    /// A machine whose clock is off by so many milliseconds.
    async fn off_by(&mut self, millis: i64) -> Machine {
        let clock = TestClock::at(Timestamp::from_millis(self.clock.wall().as_millis() + millis));
        self.others.push(clock.clone());
        self.again(&clock).await
    }

    /// Another process of a machine, that knows nothing of the first.
    async fn again(&self, clock: &TestClock) -> Machine {
        let store = s3(&self.server, clock).probing(Probing::Never).open().await.unwrap();
        let leases = store.leases("default").unwrap();
        Machine { clock: clock.clone(), store, leases }
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.others.iter().for_each(|clock| clock.advance(time));
    }
}

fn is_granted(acquired: leasehold::Result<Acquired>) -> Option<Grant> {
    match acquired {
        Ok(acquired) => acquired.granted(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Clock, "{error}");
            None
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_wrong_takes_no_live_lease_and_late_only_a_dead_one() {
    for ahead in [2_000, 5_000, 10_500, 20_000, 45_000, 60_000, 3_600_000, -2_000, -10_000, -45_000, -86_400_000] {
        let mut machines = Machines::new().await;
        let holder = machines.off_by(0).await;
        let taker = machines.off_by(ahead).await;
        let held = granted(holder.leases.acquire(&key("a"), &request()).await);
        let mut taken = None;
        for second in 0..60 {
            // A process that lives on, and one for each try, as a command is.
            let once = machines.again(&taker.clock).await;
            for leases in [&taker.leases, &once.leases] {
                if let Some(grant) = is_granted(leases.acquire(&key("a"), &request()).await) {
                    assert!(!held.is_valid(), "two holders after {second} s with a clock off by {ahead} ms");
                    taken.get_or_insert((second, grant));
                }
            }
            machines.pass(SECOND);
        }
        match taken {
            // 11 s off and more: nothing is granted at all.
            None => assert!(ahead.abs() > 11_000, "{ahead} ms: a dead holder's key is never had"),
            Some((second, grant)) => {
                assert!(ahead.abs() < 12_000 && grant.fence() > held.fence());
                let late = if ahead < 0 { ahead.unsigned_abs() / 1000 } else { 0 };
                assert!(second <= 36 + late, "{second} s with a clock off by {ahead} ms");
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_holder_keeps_its_lease_for_as_long_as_it_may_and_nobody_is_early() {
    for ahead in [-10_500, -5_000, 5_000, 10_500] {
        let mut machines = Machines::new().await;
        let holder = machines.off_by(ahead).await;
        let held = granted(holder.leases.acquire(&key("a"), &request()).await);
        let taker = machines.off_by(0).await;
        let mut taken = false;
        for _ in 0..60 {
            if let Some(grant) = is_granted(taker.leases.acquire(&key("a"), &request()).await) {
                assert!(!held.is_valid(), "two holders with a holder off by {ahead} ms");
                assert!(grant.fence() > held.fence());
                taken = true;
                break;
            }
            machines.pass(SECOND);
        }
        assert!(taken, "a dead holder whose clock was off by {ahead} ms is never replaced");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_while_somebody_waits_takes_nothing_early() {
    let mut machines = Machines::new().await;
    let holder = machines.off_by(0).await;
    let taker = machines.off_by(0).await;
    let held = granted(holder.leases.acquire(&key("a"), &request()).await);
    let waiting = tokio::spawn({
        let leases = taker.leases.clone();
        async move { leases.acquire_within(&key("a"), &request(), 90 * SECOND).await }
    });
    taker.clock.wait_for_sleepers(1).await;
    taker.clock.step_wall(8_000);
    let mut valid = true;
    for _ in 0..700 {
        machines.pass(SECOND / 10);
        for _ in 0..20 {
            calm().await;
            if waiting.is_finished() {
                break;
            }
            tokio::task::spawn_blocking(std::thread::yield_now).await.unwrap();
        }
        if waiting.is_finished() {
            break;
        }
        valid = held.is_valid();
    }
    let taken = granted(waiting.await.unwrap());
    assert!(!valid || !held.is_valid(), "granted while the holder believed in it");
    assert!(taken.fence() > held.fence());
}

#[tokio::test]
async fn taking_over_by_stamps_costs_a_time_object_and_by_watching_nothing_more() {
    let mut machines = Machines::new().await;
    let (holder, taker) = (machines.off_by(0).await, machines.off_by(0).await);
    granted(holder.leases.acquire(&key("a"), &request()).await);
    machines.pass(TTL + 5 * SECOND);
    let before = taker.store.requests();
    granted(taker.leases.acquire(&key("a"), &request()).await);
    let made = taker.store.requests().since(&before);
    // Read and entry, time object and its stamp, the lease again, the swap.
    assert_eq!((made.of(RequestKind::Get), made.of(RequestKind::Put), made.total()), (3, 3, 6));
    let stamps = machines.server.names().into_iter().filter(|name| name.contains(".leasehold/time-")).count();
    assert_eq!(stamps, 1);
}

#[tokio::test]
async fn nobody_is_asked_for_a_stamp_before_it_can_say_anything() {
    let mut machines = Machines::new().await;
    let holder = machines.off_by(0).await;
    let taker = machines.off_by(5_000).await;
    granted(holder.leases.acquire(&key("a"), &request()).await);
    let _ = taker.leases.acquire(&key("a"), &request()).await.unwrap();
    // By its own clock the lease is over, by the store's dates it is not.
    machines.pass(28 * SECOND);
    let before = taker.store.requests();
    let Acquired::Held(held) = taker.leases.acquire(&key("a"), &request()).await.unwrap() else { panic!("granted") };
    assert_eq!(taker.store.requests().since(&before).total(), 1, "one read");
    assert!(held.retry_after > 4 * SECOND && held.retry_after < 8 * SECOND, "{:?}", held.retry_after);
    let status = taker.leases.peek(&key("a")).await.unwrap();
    assert!(status.holder.is_some() && status.may_have_ended, "held, and it may have ended");
}

#[tokio::test]
async fn looking_at_a_key_settles_it_by_stamps_as_well() {
    let mut machines = Machines::new().await;
    let (holder, other) = (machines.off_by(0).await, machines.off_by(0).await);
    granted(holder.leases.acquire(&key("a"), &request()).await);
    machines.pass(TTL + 2 * SECOND);
    let status = other.leases.get(&key("a")).await.unwrap();
    assert!(status.holder.is_some() && status.may_have_ended);
    machines.pass(3 * SECOND);
    assert!(other.leases.get(&key("a")).await.unwrap().holder.is_none());
    assert!(other.leases.peek(&key("a")).await.unwrap().holder.is_none(), "it was cleared");
}

#[tokio::test]
async fn a_lease_that_two_share_by_a_request_id_lasts_for_whoever_believes_longest() {
    // One asks for a minute; the other asks for the same for ten seconds, renews, and dies.
    let mut machines = Machines::new().await;
    let (long, short) = (machines.off_by(0).await, machines.off_by(0).await);
    let watcher = machines.off_by(0).await;
    let shared = |ttl| Request::new(ttl).owner("both").request_id("job-7");
    let first = granted(long.leases.acquire(&key("a"), &shared(60 * SECOND)).await);
    machines.pass(SECOND);
    let second = granted(short.leases.acquire(&key("a"), &shared(10 * SECOND)).await);
    assert_eq!(first.lease_id(), second.lease_id());
    for _ in 0..2 {
        machines.pass(4 * SECOND);
        renewed(short.leases.renew(&second).await);
    }
    let waiting = tokio::spawn({
        let leases = watcher.leases.clone();
        async move { leases.acquire_within(&key("a"), &request(), 200 * SECOND).await }
    });
    watcher.clock.wait_for_sleepers(1).await;
    while !waiting.is_finished() {
        assert!(!(waiting.is_finished() && first.is_valid()), "taken from the one who believes for longer");
        machines.pass(SECOND / 4);
        for _ in 0..50 {
            calm().await;
        }
    }
    assert!(!first.is_valid());
    granted(waiting.await.unwrap());
}

#[tokio::test]
async fn an_older_copy_of_a_grant_does_not_outlive_a_shorter_renewal() {
    let mut machines = Machines::new().await;
    let holder = machines.off_by(0).await;
    let old = granted(holder.leases.acquire(&key("a"), &Request::new(60 * SECOND)).await);
    machines.pass(5 * SECOND);
    let ttl = Some(10 * SECOND);
    for _ in 0..2 {
        let grant = renewed(holder.leases.renew_by_id(&key("a"), old.lease_id(), ttl).await);
        assert!(grant.time_left() >= old.time_left(), "never shorter");
        machines.pass(3 * SECOND);
    }
    let taker = machines.off_by(0).await;
    for _ in 0..120 {
        if taker.leases.acquire(&key("a"), &request()).await.unwrap().granted().is_some() {
            assert!(!old.is_valid(), "the old copy still believes");
            return;
        }
        machines.pass(SECOND);
    }
    panic!("never had");
}

#[tokio::test]
async fn belief_that_was_found_to_be_over_is_over_for_every_copy() {
    let mut machines = Machines::new().await;
    let holder = machines.off_by(0).await;
    let grant = granted(holder.leases.acquire(&key("a"), &request()).await);
    let copy = grant.clone();
    holder.clock.step_wall(3_600_000);
    assert!(!grant.is_valid());
    holder.clock.step_wall(-3_600_000);
    assert!(!grant.is_valid() && !copy.is_valid(), "revived by a clock that was set back");
}

#[tokio::test]
async fn a_holder_whose_clock_is_ahead_does_not_close_a_key_for_longer() {
    let mut machines = Machines::new().await;
    let holder = machines.off_by(10_500).await;
    let grant = granted(holder.leases.acquire(&key("a"), &request()).await);
    let store = noon().plus(TTL).plus(4 * SECOND);
    assert!(grant.expires_at() < store, "{} is later than the store's time allows", grant.expires_at());
}

#[tokio::test]
async fn stamps_that_are_apart_are_measured_noted_and_added() {
    let mut machines = Machines::new().await;
    let (holder, taker) = (machines.off_by(0).await, machines.off_by(0).await);
    granted(holder.leases.acquire(&key("a"), &request()).await);
    machines.pass(TTL + 5 * SECOND);
    granted(taker.leases.acquire(&key("a"), &request()).await);
    granted(holder.leases.acquire(&key("b"), &request()).await);
    machines.pass(75 * SECOND);
    // Now another machine of the store answers, whose clock is far behind: its dates say that it is too early to ask, and
    // the wall clock that it is late.
    machines.server.set_date(-80_000);
    assert!(taker.leases.get(&key("b")).await.unwrap().holder.is_some(), "its stamp is too old to end anything");
    let spread = taker.store.info().await.unwrap().spread;
    assert_eq!(spread, 5 * SECOND, "the whole distance to the stamp before");
    // Opening the store adds it.
    machines.server.set_date(0);
    granted(holder.leases.acquire(&key("c"), &request()).await);
    machines.pass(36 * SECOND);
    let other = machines.again(&taker.clock).await;
    assert!(other.leases.get(&key("c")).await.unwrap().holder.is_some(), "33 s and the spread of 5 are needed");
    machines.pass(4 * SECOND);
    assert!(other.leases.get(&key("c")).await.unwrap().holder.is_none());
}

// In a local directory all processes share the host's boot-time clock, and no wall clock can be trusted to be right.

async fn on_disk(folder: &Path, clock: &TestClock, seed: u64) -> Leases {
    let url = format!("file://{}", folder.display());
    let builder = Store::builder().url(url).clock(Arc::new(clock.clone()));
    let store = builder.generator(Arc::new(SeededGenerator::new(seed))).open().await.unwrap();
    store.leases("default").unwrap()
}

#[tokio::test]
async fn in_a_directory_a_wall_clock_that_jumps_an_hour_takes_no_live_lease() {
    let folder = tempfile::tempdir().unwrap();
    let boot = BootId::from([7; 16]);
    let clock = TestClock::at(noon()).booted(boot);
    let (holder, taker) = (on_disk(folder.path(), &clock, 1).await, on_disk(folder.path(), &clock, 2).await);
    let held = granted(holder.acquire(&key("a"), &request()).await);
    clock.step_wall(3_600_000);
    assert!(taker.acquire(&key("a"), &request()).await.unwrap().granted().is_none(), "by one clock alone");
    clock.step_wall(-3_600_000);
    clock.advance(TTL + SECOND);
    assert!(taker.acquire(&key("a"), &request()).await.unwrap().granted().is_none());
    clock.advance(SECOND);
    assert!(!held.is_valid());
    granted(taker.acquire(&key("a"), &request()).await);
}

#[tokio::test]
async fn after_a_restart_the_lock_of_the_dead_process_is_the_witness() {
    let folder = tempfile::tempdir().unwrap();
    let before = TestClock::at(noon()).booted(BootId::from([7; 16]));
    let after = TestClock::at(noon()).booted(BootId::from([8; 16]));
    let holder = on_disk(folder.path(), &before, 1).await;
    granted(holder.acquire(&key("a"), &request()).await);
    let taker = on_disk(folder.path(), &after, 2).await;
    after.advance(TTL + 2 * SECOND);
    assert!(taker.acquire(&key("a"), &request()).await.unwrap().granted().is_none(), "its process is alive");
    drop(holder);
    granted(taker.acquire(&key("a"), &request()).await);
}

#[tokio::test]
async fn between_containers_with_boot_ids_of_their_own_a_living_process_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let mine = TestClock::at(noon()).booted(BootId::from([7; 16]));
    let other = TestClock::at(noon()).booted(BootId::from([8; 16]));
    let holder = on_disk(folder.path(), &mine, 1).await;
    let held = granted(holder.acquire(&key("a"), &request()).await);
    let taker = on_disk(folder.path(), &other, 2).await;
    let waiting = tokio::spawn(async move { taker.acquire_within(&key("a"), &request(), 300 * SECOND).await });
    other.wait_for_sleepers(1).await;
    other.step_wall(3_600_000);
    while !waiting.is_finished() {
        assert!(!waiting.is_finished() || !held.is_valid());
        // In small steps: the disk takes real time, however busy the machine is, and requests have deadlines.
        mine.advance(SECOND / 20);
        other.advance(SECOND / 20);
        for _ in 0..10 {
            tokio::task::spawn_blocking(std::thread::yield_now).await.unwrap();
            calm().await;
        }
    }
    granted(waiting.await.unwrap());
    assert!(!held.is_valid(), "taken from a living holder");
}
