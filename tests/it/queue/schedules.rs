//! Schedules: each slot once, whoever comes and goes.

use super::shared::{World, work_down};
use leasehold::{
    Clock, Queue,
    clock::Timestamp,
    job::{JobId, NewJob, NewSchedule, ScheduleChange},
};
use std::{collections::BTreeMap, time::Duration};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Claims and finishes; the slots that ran, with their ids.
async fn run(queue: &Queue, slots: &mut BTreeMap<Timestamp, Vec<JobId>>) {
    loop {
        let jobs = queue.claim(100).await.unwrap();
        if jobs.is_empty() {
            return;
        }
        for job in &jobs {
            slots.entry(job.due_at().unwrap()).or_default().push(job.id());
        }
        for end in queue.finish_all(jobs).await.unwrap() {
            assert!(end.is_accepted());
        }
    }
}

#[tokio::test]
async fn a_slot_makes_a_job_with_all_that_its_producer_said() {
    let world = World::new();
    let queue = world.queue(1).await;
    let job = NewJob::new("all").kind("report").priority(-2).part("blob", vec![7; 100]).max_attempts(3);
    let schedules = queue.schedules();
    assert_eq!(
        schedules.add("nightly", NewSchedule::every(MINUTE, job.clone())).await.unwrap(),
        ScheduleChange::Written
    );
    assert_eq!(schedules.add("nightly", NewSchedule::every(MINUTE, job)).await.unwrap(), ScheduleChange::Unchanged);
    assert!(queue.claim(9).await.unwrap().is_empty(), "nothing at its start");
    let listed = schedules.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].every_ms), (1, "nightly", Some(60_000)));
    world.pass(MINUTE).await;
    let mut jobs = queue.claim(9).await.unwrap();
    assert_eq!(jobs.len(), 1);
    let job = jobs.remove(0);
    assert_eq!((job.args().as_ref(), job.kind(), job.priority()), (&b"all"[..], Some("report"), -2));
    assert_eq!((job.caller_id(), job.due_at()), (Some("nightly"), Some(listed[0].next[0])));
    assert_eq!(job.part("blob").await.unwrap().unwrap().len(), 100);
    let info = queue.get(job.id()).await.unwrap().unwrap();
    assert_eq!(info.kind.as_deref(), Some("report"));
    // It goes back with other parts, and is buried with all that it is.
    let id = job.id();
    let mut job = job;
    job.set_part("step", "2");
    let _ = job.fail("once").await.unwrap();
    world.pass(Duration::from_secs(3)).await;
    let again = queue.claim(9).await.unwrap().remove(0);
    assert_eq!((again.id(), again.attempt(), again.args().as_ref()), (id, 2, &b"all"[..]));
    assert!(again.finish().await.unwrap().is_accepted());
    assert!(schedules.remove("nightly").await.unwrap());
    assert!(!schedules.remove("nightly").await.unwrap());
    world.pass(MINUTE).await;
    assert!(queue.claim(9).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_no_schedule_is_refused() {
    let world = World::new();
    let queue = world.queue(1).await;
    let wrong = [
        NewSchedule::cron("0 25 * * *", "UTC", "x"),
        NewSchedule::cron("0 3 * * *", "Mars/Olympus", "x"),
        NewSchedule::cron("0 0 31 2 *", "UTC", "x"),
        NewSchedule::every(Duration::from_millis(10), "x"),
        NewSchedule::every(
            MINUTE,
            (0..4000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>(),
        ),
        NewSchedule::every(MINUTE, NewJob::new("x").key("k")),
    ];
    for schedule in wrong {
        let text = format!("{schedule:?}");
        let error = queue.schedules().add("s", schedule).await.expect_err(&text);
        assert_eq!(error.kind(), leasehold::ErrorKind::Invalid, "{error}");
    }
    assert!(queue.schedules().list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_claim_that_waits_wakes_for_a_slot() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.schedules().add("often", NewSchedule::every(MINUTE, "x")).await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.claim(1).within(HOUR).await }
    });
    world.pass(Duration::from_secs(61)).await;
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn each_slot_runs_once_while_processes_come_and_go_and_clocks_change() {
    let world = World::new();
    let mut queues = futures_util::future::join_all((1..=5).map(|seed| world.queue(seed))).await;
    let schedule = NewSchedule::cron("*/20 * * * *", "Europe/Berlin", "x").look_back(6 * HOUR);
    queues[0].schedules().add("often", schedule).await.unwrap();
    let began = world.0.clock.wall();
    let mut slots = BTreeMap::new();
    let mut seed = 10;
    // 10,000 slots of 20 minutes are 139 days: the last Sunday of March is among any 139 days from winter on.
    let mut dice: u64 = 7;
    while slots.len() < 10_000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(dice >> 33).unwrap() % 5;
        if dice >> 40 & 0x3f == 0 {
            seed += 1;
            queues[at] = world.queue(seed).await;
        }
        let (a, b) = (queues[at].clone(), queues[(at + 1) % 5].clone());
        let (mut mine, mut others) = (BTreeMap::new(), BTreeMap::new());
        tokio::join!(run(&a, &mut mine), run(&b, &mut others));
        for (slot, ids) in mine.into_iter().chain(others) {
            slots.entry(slot).or_insert_with(Vec::new).extend(ids);
        }
        world.0.clock.advance(Duration::from_secs(60 + (dice >> 50) % 16_000));
    }
    assert!(slots.values().all(|ids: &Vec<JobId>| ids.len() == 1), "each slot once");
    let times: Vec<i64> = slots.keys().map(|slot| slot.as_millis()).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 1_200_000), "none is left out");
    assert!(times[0] - began.as_millis() <= 1_200_000);
}

#[tokio::test]
async fn missed_slots_run_only_if_they_are_backfilled_and_then_once() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.schedules().add("s", NewSchedule::every(MINUTE, "x")).await.unwrap();
    let began = world.0.clock.wall();
    world.0.clock.advance(10 * HOUR + Duration::from_secs(30));
    let mut slots = BTreeMap::new();
    run(&queue, &mut slots).await;
    assert_eq!(slots.len(), 1, "only the one of the last minute");
    let missed = queue.schedules().list().await.unwrap()[0].missed.clone();
    assert_eq!(missed.len(), 1);
    let now = world.0.clock.wall();
    let schedules = queue.schedules();
    let other = world.queue(2).await;
    let half = began.plus(5 * HOUR);
    let first = schedules.backfill("s", began, half).await.unwrap();
    assert_eq!(first, Some(299), "the slots of minutes 1 to 299");
    run(&other, &mut slots).await;
    let rest = other.schedules().backfill("s", began, now).await.unwrap();
    assert_eq!(rest, Some(300));
    assert_eq!(schedules.backfill("s", began, now).await.unwrap(), Some(0), "each once");
    assert_eq!(schedules.backfill("nobody", began, now).await.unwrap(), None);
    run(&queue, &mut slots).await;
    assert_eq!(slots.len(), 600);
    assert!(slots.values().all(|ids| ids.len() == 1));
}

#[tokio::test]
async fn a_paused_schedule_inserts_nothing_and_goes_on_with_its_next_slot() {
    let world = World::new();
    let queue = world.queue(1).await;
    let schedules = queue.schedules();
    schedules.add("s", NewSchedule::every(MINUTE, "x").run_at_start()).await.unwrap();
    assert_eq!(work_down(&queue).await, ["x"], "it was asked to");
    assert!(schedules.pause("s").await.unwrap());
    world.pass(10 * MINUTE).await;
    assert!(work_down(&queue).await.is_empty());
    assert!(schedules.resume("s").await.unwrap());
    assert!(work_down(&queue).await.is_empty());
    world.pass(MINUTE).await;
    assert_eq!(work_down(&queue).await, ["x"]);
    assert!(!schedules.pause("nobody").await.unwrap() && !schedules.resume("nobody").await.unwrap());
}
