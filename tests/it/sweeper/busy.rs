//! A process that is never idle sweeps as much as it files, and no more than twice that.

use super::{PAST, entries, file_stale, seeded};
use crate::{common::key, memory::SECOND, processes::World};
use leasehold::{
    Leases, Settings, Store,
    lease::{Acquired, Request},
    store::RequestKind::{Get, List},
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A process that asks for something without a pause.
struct Busy {
    store: Store,
    leases: Leases,
    /// Whether leases are given back; if not, they end by time.
    releases: bool,
    filed: u64,
    /// The requests that it has made itself.
    requests: u64,
}

impl Busy {
    async fn new(world: &World, seed: u64, releases: bool) -> Self {
        let store = seeded(&world.objects, &world.clock, seed, Settings::default()).await;
        let leases = store.leases("default").unwrap();
        Self { store, leases, releases, filed: 0, requests: 0 }
    }

    /// Takes a lease on a key that has no entry in this hour.
    async fn work(&mut self, name: &str) {
        let before = self.store.requests();
        let request = Request::new(20 * SECOND);
        let Acquired::Granted(grant) = self.leases.acquire(&key(name), &request).await.unwrap() else {
            panic!("{name} is held");
        };
        if self.releases {
            self.leases.release(&grant).await.unwrap();
        }
        self.filed += 1;
        // Nothing here waits for anything, so no other task has run meanwhile.
        self.requests += self.store.requests().since(&before).total();
    }
}

/// Time passes: in one step while no sweep runs, and in small ones while one does.
async fn pass(world: &World, processes: &[Busy], time: Duration, step: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let sweeping = processes.iter().any(|process| process.store.sweeper().state().running);
        let step = if sweeping { left.min(step) } else { left };
        world.clock.advance(step);
        for _ in 0..10 * processes.len() {
            tokio::task::yield_now().await;
        }
        left -= step;
    }
}

/// Works for so long without a pause, with so many entries an hour; returns the most that were in the index at once.
async fn work(world: &World, processes: &mut [Busy], per_hour: u64, hours: u64, step: Duration) -> usize {
    let pause = HOUR / u32::try_from(per_hour).unwrap();
    let mut most = 0;
    for hour in 0..hours {
        for number in 0..per_hour {
            for (at, process) in processes.iter_mut().enumerate() {
                // Not met again before it has been swept.
                process.work(&format!("k-{at}-{}-{number}", hour % 4)).await;
            }
            pass(world, processes, pause, step).await;
            if number % (per_hour / 12).max(1) == 0 {
                most = most.max(entries(&world.objects).len());
            }
        }
    }
    most
}

/// A never-idle process; returns how many requests tidying has cost for each entry that was filed.
async fn never_idle(per_hour: u64, hours: u64, releases: bool, step: Duration) -> f64 {
    let world = World::new();
    let mut processes = [Busy::new(&world, 1, releases).await];
    let _sweeper = processes[0].store.sweeper().start();
    let opening = processes[0].store.requests().total();
    let most = work(&world, &mut processes, per_hour, hours, step).await;
    let [process] = processes;
    let (stats, requests) = (process.store.stats(), process.store.requests());
    let cost = (requests.total() - opening - process.requests) as f64 / process.filed as f64;
    println!(
        "{} filed in {hours} h, {} deleted, at most {most} at once, {} runs, {} listings, {cost:.3} requests each",
        process.filed,
        stats.entries_deleted,
        process.store.stats().sweeps_complete,
        requests.of(List),
    );
    assert_eq!(stats.sweeps_ended_by_activity, 0, "a busy run does not look at activity");
    assert_eq!(stats.sweep_failures, 0);
    assert!(stats.entries_filed >= process.filed);
    assert!(most < 2 * usize::try_from(per_hour).unwrap(), "{most} entries at once, of {per_hour} an hour");
    cost
}

#[tokio::test]
async fn a_system_that_is_never_idle_keeps_its_index_small_at_little_cost() {
    let cost = never_idle(1000, 12, true, Duration::from_millis(100)).await;
    assert!(cost <= 1.1, "{cost} requests for each entry");
}

#[tokio::test]
async fn leases_that_end_by_time_are_cleared_by_a_system_that_is_never_idle() {
    let cost = never_idle(1000, 6, false, Duration::from_millis(100)).await;
    assert!(cost <= 2.1, "{cost} requests for each entry");
}

#[tokio::test]
#[ignore = "takes minutes; run by hand"]
async fn ten_thousand_entries_an_hour_for_two_days() {
    let released = never_idle(10_000, 48, true, Duration::from_millis(15)).await;
    assert!(released <= 1.1, "{released} requests for each entry");
    let ended = never_idle(10_000, 48, false, Duration::from_millis(15)).await;
    assert!(ended <= 2.1, "{ended} requests for each entry");
}

#[tokio::test]
async fn what_others_have_left_behind_is_swept_two_for_each_that_is_filed() {
    let world = World::new();
    file_stale(&world.objects, "default", 5000);
    world.clock.advance(PAST);
    let mut processes = [Busy::new(&world, 1, true).await];
    let _sweeper = processes[0].store.sweeper().start();
    // For one hour nothing is swept: there may be an idle moment yet.
    work(&world, &mut processes, 360, 1, Duration::from_millis(100)).await;
    assert_eq!(processes[0].store.stats().entries_deleted, 0);
    for hour in 2..5 {
        work(&world, &mut processes, 360, 1, Duration::from_millis(100)).await;
        let (filed, deleted) = (processes[0].filed, processes[0].store.stats().entries_deleted);
        assert!(deleted <= 2 * filed, "{deleted} deleted, {filed} filed");
        assert!(deleted + 600 >= 2 * filed, "hour {hour}: {deleted} deleted, {filed} filed");
    }
}

#[tokio::test]
async fn who_files_nothing_sweeps_nothing_while_it_is_busy() {
    let world = World::new();
    file_stale(&world.objects, "default", 300);
    world.clock.advance(PAST);
    let store = seeded(&world.objects, &world.clock, 1, Settings::default()).await;
    let _sweeper = store.sweeper().start();
    let before = store.requests();
    for _ in 0..5 * 60 {
        store.mark_activity();
        world.clock.advance(MINUTE);
        crate::memory::settle().await;
    }
    assert_eq!(store.requests().since(&before).total(), 0);
}

#[tokio::test]
async fn sweeping_while_busy_can_be_switched_off() {
    let world = World::new();
    let mut settings = Settings::default();
    settings.sweep.starvation_after = Duration::ZERO;
    let store = seeded(&world.objects, &world.clock, 1, settings).await;
    let leases = store.leases("default").unwrap();
    let _sweeper = store.sweeper().start();
    let mut processes = [Busy { store, leases, releases: true, filed: 0, requests: 0 }];
    work(&world, &mut processes, 600, 4, SECOND).await;
    assert_eq!((processes[0].store.stats().entries_deleted, entries(&world.objects).len()), (0, 2400));
}

#[tokio::test]
async fn busy_processes_take_turns_and_do_not_read_what_another_has_swept() {
    let world = World::new();
    let mut processes = [Busy::new(&world, 1, true).await, Busy::new(&world, 2, true).await];
    let _sweepers = processes.each_ref().map(|process| process.store.sweeper().start());
    let before = processes.each_ref().map(|process| process.store.requests().of(Get));
    let most = work(&world, &mut processes, 600, 6, Duration::from_millis(100)).await;
    assert!(most < 2 * 1200, "{most}");
    let deleted: u64 = processes.iter().map(|process| process.store.stats().entries_deleted).sum();
    let reads: u64 =
        processes.iter().zip(before).map(|(process, before)| process.store.requests().of(Get) - before).sum();
    // One for each key that was new to its process, one for each entry, and those of the turn's lease.
    let new_keys = 2 * 4 * 600;
    assert!(deleted > 4000, "{deleted}");
    assert!(reads <= new_keys + deleted + deleted / 10, "{reads} reads, {deleted} deleted");
    assert!(processes.iter().all(|process| process.store.stats().entries_deleted > 1000), "both have had their turns");
}
