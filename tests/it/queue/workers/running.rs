//! What is run, how often, and what follows from what a handler says.

use super::{Notes, World, ended, of_kind, sleep, text, until};
use crate::{common::secs, queue::shared::jobs};
use leasehold::job::{JobContext, JobOutcome, JobState, NewJob, typed, with_state};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

#[tokio::test]
async fn every_job_runs_once_and_no_more_at_a_time_than_is_wanted() {
    let world = World::new();
    let queue = world.queue(1).await;
    queue.enqueue_many(jobs(300)).await.unwrap();
    let (notes, now, most) = (Notes::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clock = world.0.clock.clone();
    let worker = queue.worker().concurrency(7).run({
        let (notes, now, most) = (notes.clone(), Arc::clone(&now), Arc::clone(&most));
        move |job: JobContext| {
            let (notes, now, most, clock) = (notes.clone(), Arc::clone(&now), Arc::clone(&most), clock.clone());
            async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                leasehold::Clock::sleep(&clock, Duration::from_millis(50)).await;
                now.fetch_sub(1, SeqCst);
                notes.note(text(&job));
            }
        }
    });
    until(&world, "all have run", || notes.len() >= 300).await;
    assert_eq!(most.load(SeqCst), 7, "all slots are in use, and no more");
    assert!(worker.health().ok, "{:?}", worker.health());
    ended(&world, tokio::spawn(worker.shutdown())).await;
    assert!(notes.counted().values().all(|times| *times == 1) && notes.len() == 300);
    assert_eq!(queue.depth().await.unwrap(), Default::default(), "everything is finished");
}

#[tokio::test]
async fn a_worker_takes_no_more_than_it_can_start_soon() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    queue.enqueue_many(jobs(50)).await.unwrap();
    let hour = world.0.clock.clone();
    let worker = queue.worker().concurrency(2).run(move |_job: JobContext| {
        let hour = hour.clone();
        async move { leasehold::Clock::sleep(&hour, secs(3600)).await }
    });
    world.pass(secs(5)).await;
    assert_eq!((worker.health().running, worker.health().ahead), (2, 0));
    assert_eq!(other.claim(100).await.unwrap().len(), 48, "the rest is there for others");
    drop(worker);
}

#[derive(serde::Deserialize)]
struct Welcome {
    to: String,
}

#[tokio::test]
async fn jobs_go_to_the_handler_of_their_kind_with_arguments_and_state() {
    let world = World::new();
    let queue = world.queue(1).await;
    let good = queue.enqueue(of_kind("welcome", r#"{"to":"ann"}"#)).await.unwrap();
    let bad = queue.enqueue(of_kind("welcome", "no json")).await.unwrap();
    let other = queue.enqueue(of_kind("unheard", "x")).await.unwrap();
    let raw = queue.enqueue(of_kind("raw", "bytes")).await.unwrap();
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue
        .worker()
        .on(
            "welcome",
            typed(move |_job: JobContext, args: Welcome| {
                let said = said.clone();
                async move { said.note(args.to) }
            }),
        )
        .on(
            "raw",
            with_state(Arc::new(notes.clone()), |job: JobContext, notes: Arc<Notes>| async move {
                notes.note(text(&job));
                Ok::<_, std::io::Error>(())
            }),
        )
        .start();
    until(&world, "both have run", || notes.len() >= 2).await;
    world.pass(Duration::from_millis(200)).await;
    assert_eq!(notes.counted().keys().collect::<Vec<_>>(), ["ann", "bytes"]);
    for done in [good, raw] {
        assert!(queue.get(done).await.unwrap().is_none_or(|job| job.state == JobState::Finished));
    }
    let bad = queue.get(bad).await.unwrap().unwrap();
    assert!(bad.last_error.unwrap().contains("the arguments are not those of"));
    let other = queue.get(other).await.unwrap().unwrap();
    assert_eq!((other.state, other.attempts), (JobState::Retrying, 1), "a newer worker may know it");
    assert!(other.last_error.unwrap().contains(r#"no handler for jobs of the kind "unheard""#));
    ended(&world, tokio::spawn(worker.shutdown())).await;
}

#[tokio::test]
async fn a_panic_is_the_failure_of_its_job_and_of_nothing_else() {
    let world = World::new();
    let queue = world.queue(1).await;
    let bad = queue.enqueue("bad").await.unwrap();
    queue.enqueue_many(jobs(20)).await.unwrap();
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().concurrency(4).run(move |job: JobContext| {
        // Before there is a future, and inside of it.
        assert_ne!((text(&job).as_str(), job.attempt()), ("bad", 1), "at once");
        let said = said.clone();
        async move {
            assert_ne!((text(&job).as_str(), job.attempt()), ("bad", 2), "later");
            said.note(text(&job));
        }
    });
    until(&world, "the others are done", || notes.len() == 20).await;
    world.pass(Duration::from_millis(100)).await;
    let info = queue.get(bad).await.unwrap().unwrap();
    assert_eq!(info.attempts, 1);
    assert!(info.last_error.as_ref().unwrap().starts_with("panicked: "), "{info:?}");
    assert!(info.last_error.unwrap().contains("at once"));
    until(&world, "it runs again and again", || notes.len() == 21).await;
    assert_eq!(notes.all().last().unwrap(), "bad");
    assert!(worker.health().ok);
}

#[tokio::test]
async fn the_queue_does_what_the_handler_says() {
    let world = World::new();
    let queue = world.queue(1).await;
    for args in ["done", "failed", "for good", "snooze", "cancelled"] {
        queue.enqueue(NewJob::new(args)).await.unwrap();
    }
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().run(move |job: JobContext| {
        let said = said.clone();
        async move {
            let progress = job.part("progress").await.unwrap().unwrap_or_default();
            said.note(format!("{} {} {}", text(&job), job.attempt(), String::from_utf8_lossy(&progress)));
            job.set_part("progress", "half");
            match (text(&job).as_str(), progress.is_empty()) {
                ("failed", true) => JobOutcome::Failed("once".into()),
                ("for good", _) => JobOutcome::FailForGood("never".into()),
                ("snooze", true) => JobOutcome::Snooze(secs(30)),
                ("cancelled", _) => JobOutcome::Cancelled,
                _ => JobOutcome::Done,
            }
        }
    });
    until(&world, "all have run", || notes.len() == 5).await;
    world.pass(secs(25)).await;
    assert!(notes.counted().contains_key("failed 2 half"), "the second attempt comes after about a second");
    assert!(!notes.counted().contains_key("snooze 1 half"));
    world.pass(secs(10)).await;
    assert!(notes.counted().contains_key("snooze 1 half"), "a snooze uses no attempt: {:?}", notes.all());
    world.pass(secs(60)).await;
    assert_eq!(notes.len(), 7, "nothing else runs again");
    assert_eq!(world.names("/dead/").len(), 1);
    ended(&world, tokio::spawn(worker.shutdown())).await;
}

#[tokio::test]
async fn one_worker_serves_several_queues_by_weight_and_starves_none() {
    let world = World::new();
    let store = world.process(1).await;
    let (heavy, light) = (store.queue("heavy").unwrap(), store.queue("light").unwrap());
    heavy.enqueue_many((0..400).map(|_| "heavy")).await.unwrap();
    light.enqueue_many((0..100).map(|_| "light")).await.unwrap();
    let notes = Notes::default();
    let (said, clock) = (notes.clone(), world.0.clock.clone());
    let worker = heavy.worker().weight(4).also(&light, 1).concurrency(5).run(move |job: JobContext| {
        let (said, clock) = (said.clone(), clock.clone());
        async move {
            leasehold::Clock::sleep(&clock, Duration::from_millis(20)).await;
            said.note(text(&job));
        }
    });
    until(&world, "some have run", || notes.len() >= 200).await;
    let light = notes.all()[..200].iter().filter(|what| *what == "light").count();
    assert!((20..=70).contains(&light), "{light} of 200 are of the light queue");
    until(&world, "all have run", || notes.len() == 500).await;
    ended(&world, tokio::spawn(worker.shutdown())).await;
}

#[tokio::test]
async fn a_worker_that_waits_hears_at_once_of_its_own_process_and_soon_of_others() {
    let world = World::new();
    let (queue, other) = (world.queue(1).await, world.queue(2).await);
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().run(move |job: JobContext| {
        let said = said.clone();
        async move { said.note(text(&job)) }
    });
    world.pass(secs(60)).await;
    queue.enqueue("own").await.unwrap();
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(notes.all(), ["own"]);
    world.pass(secs(60)).await;
    other.enqueue("of another").await.unwrap();
    world.pass(secs(10)).await;
    assert_eq!(notes.len(), 2);
    drop((worker, sleep(&world, secs(0))));
}

#[tokio::test]
async fn a_store_that_is_away_is_said_and_survived() {
    use leasehold_testkit::{Answer, Fault, Op, Rule};
    let world = World::new();
    let queue = world.queue(1).await;
    let notes = Notes::default();
    let said = notes.clone();
    let worker = queue.worker().run(move |job: JobContext| {
        let said = said.clone();
        async move { said.note(text(&job)) }
    });
    world.pass(secs(1)).await;
    queue.enqueue("x").await.unwrap();
    world.0.store.faults().script(Rule::always(Op::List, Fault::Refuse(Answer::Status(503))));
    world.pass(secs(60)).await;
    let health = worker.health();
    assert!(!health.ok && health.reason.starts_with("nothing can be claimed since"), "{health:?}");
    assert!(notes.len() == 0);
    world.0.store.faults().clear();
    until(&world, "it runs", || notes.len() == 1).await;
    world.pass(secs(2)).await;
    assert!(worker.health().ok);
}
