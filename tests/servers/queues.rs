//! Queues of jobs, between processes as far as several opened stores are that.

use crate::place::{Place, now, settings, unique};
use futures_util::future::join_all;
use leasehold::{
    Clock, ErrorKind, Queue, Store, SystemClock,
    job::{AttemptEnd, Job, JobState, NewJob},
};
use leasehold_testkit::TestClock;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

const MANY: usize = 10_000;
/// Jobs that one claim asks for.
const BATCH: u32 = 500;
/// How often a thing that another process has to do is looked for: the store may be slow, and it answers in the end.
const LOOKS: u32 = 1200;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn text(job: &Job) -> String {
    String::from_utf8(job.args().to_vec()).unwrap()
}

/// The only job that a claim gets, where time is moved by hand.
async fn one(queue: &Queue) -> Job {
    let mut claimed = queue.claim(1).await.unwrap();
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}

/// The job that a claim gets within a minute: a server tells whole seconds, so what one process says is due now may be due
/// for another a second later.
async fn soon(queue: &Queue) -> Job {
    let mut claimed = queue.claim(1).within(seconds(60)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}

async fn nothing(queue: &Queue) {
    assert!(queue.claim(10).await.unwrap().is_empty());
}

/// Waits until nothing is left of this kind: what has ended is deleted behind our backs.
async fn until_gone(place: &Place, part: &str) {
    for _ in 0..LOOKS {
        if !place.names().await.iter().any(|name| name.contains(part)) {
            return;
        }
        SystemClock::new().sleep(Duration::from_millis(50)).await;
    }
    panic!("still there: {:?}", place.names().await);
}

pub(crate) async fn a_job_is_enqueued_claimed_and_finished(place: Arc<Place>) {
    let (ours, theirs) = (place.open().await, place.open().await);
    let (producer, worker) = (ours.queue("emails").unwrap(), theirs.queue("emails").unwrap());
    let large = vec![7_u8; 300_000];
    let job = NewJob::new("hello").part("blob", large.clone()).kind("mail").caller_id("42");
    let id = producer.enqueue(job).await.unwrap();
    assert_eq!(producer.get(id).await.unwrap().unwrap().state, JobState::Available);
    let job = soon(&worker).await;
    assert_eq!((job.id(), text(&job).as_str(), job.kind(), job.attempt()), (id, "hello", Some("mail"), 1));
    assert_eq!(job.part("blob").await.unwrap().unwrap(), large);
    let info = producer.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.fence), (JobState::Running, Some(job.fence())));
    nothing(&producer).await;
    assert_eq!(job.finish().await.unwrap(), AttemptEnd::Finished { late: false });
    nothing(&producer).await;
    until_gone(&place, "/in/").await;
    theirs.drain().await;
    ours.drain().await;
}

pub(crate) async fn what_failed_runs_again_and_what_is_dead_is_redriven(place: Arc<Place>) {
    let clock = TestClock::at(now());
    let store = place.open_at(&clock).await;
    let queue = store.queue("emails").unwrap();
    let id = queue.enqueue("x").await.unwrap();
    let first = one(&queue).await;
    let fence = first.fence();
    assert!(matches!(first.fail("no route").await.unwrap(), AttemptEnd::Waits { .. }));
    let info = queue.get(id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts, info.last_error.as_deref()), (JobState::Retrying, 1, Some("no route")));
    nothing(&queue).await;
    clock.advance(seconds(2));
    let second = one(&queue).await;
    assert!(second.attempt() == 2 && second.fence() > fence);
    let fence = second.fence();
    assert_eq!(second.fail_for_good("no such address").await.unwrap(), AttemptEnd::Dead);
    for _ in 0..LOOKS {
        // It is on its way there until the ledger has dropped it.
        if queue.depth().await.unwrap().dead == 1 {
            break;
        }
        SystemClock::new().sleep(Duration::from_millis(50)).await;
    }
    let letters = queue.dead().list().await.unwrap().letters;
    assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [Some(id)]);
    assert_eq!(queue.depth().await.unwrap().dead, 1);
    let _ = queue.retry(id).await.unwrap();
    let again = one(&queue).await;
    assert!(again.id() == id && again.fence() > fence);
    assert!(again.finish().await.unwrap().is_accepted());
    assert_eq!(queue.depth().await.unwrap().dead, 0);
    store.drain().await;
}

pub(crate) async fn what_is_due_later_runs_then_and_not_before(place: Arc<Place>) {
    let clock = TestClock::at(now());
    let store = place.open_at(&clock).await;
    let queue = store.queue("emails").unwrap();
    let later = |after: u64| NewJob::new(after.to_string()).due_in(seconds(after));
    queue.enqueue_many([later(10), later(600), later(7200)]).await.unwrap();
    let depth = queue.depth().await.unwrap();
    // What is due within a minute and a half stands in the inbox, where it is counted as available.
    assert_eq!((depth.available, depth.scheduled), (1, 2), "{depth:?}");
    nothing(&queue).await;
    for (step, due) in [(11, 10), (590, 600), (6600, 7200)] {
        nothing(&queue).await;
        clock.advance(seconds(step));
        let job = one(&queue).await;
        assert_eq!(text(&job), due.to_string());
        assert!(job.finish().await.unwrap().is_accepted());
        nothing(&queue).await;
    }
    store.drain().await;
    until_gone(&place, "/at/").await;
}

pub(crate) async fn the_jobs_of_a_dead_process_come_back_and_its_answer_is_not_accepted(place: Arc<Place>) {
    // Its clock stands still: its session is not renewed, and it does not know.
    let paused = place.open_at(&TestClock::at(now())).await;
    let queue = paused.queue("emails").unwrap();
    queue.enqueue_many((0..5).map(|number| number.to_string())).await.unwrap();
    let mut held = queue.claim(5).await.unwrap();
    assert_eq!(held.len(), 5);
    let highest = held.iter().map(Job::fence).max().unwrap();
    let clock = TestClock::at(now());
    let living = place.open_at(&clock).await;
    let other = living.queue("emails").unwrap();
    nothing(&other).await;
    clock.advance(seconds(60));
    let mut run = BTreeMap::new();
    for _ in 0..60 {
        for job in other.claim(10).await.unwrap() {
            assert!(job.fence() > highest);
            *run.entry(text(&job)).or_insert(0) += 1;
            assert!(job.finish().await.unwrap().is_accepted());
        }
        if run.len() == 5 {
            break;
        }
        clock.advance(seconds(1));
    }
    let each_once = (0..5).map(|number| (number.to_string(), 1)).collect();
    assert_eq!(run, each_once);
    // Its row in the ledger is gone, so it may not be able to tell whether an answer of its own had landed before.
    match held.remove(0).finish().await {
        Ok(end) => assert!(!end.is_accepted(), "{end:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error}"),
    }
    nothing(&other).await;
    drop(held);
    living.drain().await;
    paused.drain().await;
}

pub(crate) async fn ten_thousand_jobs_are_each_run_once_by_two_processes(place: Arc<Place>) {
    let stores = join_all((0..2).map(|_| place.open())).await;
    let ids = stores[0].queue("many").unwrap().enqueue_many((0..MANY).map(|number| number.to_string())).await.unwrap();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), MANY);
    let run = Arc::new(Mutex::new(BTreeMap::new()));
    let workers = stores.iter().map(|store| work_off(store.queue("many").unwrap(), Arc::clone(&run)));
    join_all(workers).await;
    {
        let run = run.lock().unwrap();
        assert_eq!(run.len(), MANY);
        assert!(run.values().all(|times| *times == 1), "some ran twice");
    }
    let depth = stores[1].queue("many").unwrap().depth().await.unwrap();
    assert_eq!((depth.load(), depth.is_exact()), (0, true), "{depth:?}");
    for store in &stores {
        store.drain().await;
    }
    until_gone(&place, "/in/").await;
}

/// Claims and finishes until all have run, here or there.
async fn work_off(queue: Queue, run: Arc<Mutex<BTreeMap<String, u32>>>) {
    for _ in 0..LOOKS {
        let claimed = queue.claim(BATCH).await.unwrap();
        if claimed.is_empty() {
            if run.lock().unwrap().len() == MANY {
                return;
            }
            SystemClock::new().sleep(Duration::from_millis(50)).await;
            continue;
        }
        let names: Vec<String> = claimed.iter().map(text).collect();
        for (name, end) in names.into_iter().zip(queue.finish_all(claimed).await.unwrap()) {
            assert!(end.is_accepted(), "{end:?}");
            *run.lock().unwrap().entry(name).or_insert(0) += 1;
        }
    }
}

fn nasty() -> Vec<String> {
    let names = [
        "a",
        "A",
        "a/b",
        "a//b",
        "a/b/",
        "/a",
        "/",
        "..",
        ".",
        "../../x",
        "a/../b",
        "con",
        "nul.txt",
        "a b",
        "a+b",
        "a%2fb",
        "a%252fb",
        "a?b=c",
        "a#b",
        "a&b",
        "a\\b",
        "a:b",
        "a*b",
        "<a>",
        "'",
        "\"",
        "`",
        "$HOME",
        "~",
        "|",
        ";",
        "a\nb",
        "a\tb",
        "\u{1}",
        "\0",
        "é",
        "e\u{301}",
        "ſ",
        "日本",
        "🔒",
        "\u{202e}",
        "a.pb",
        "a!2fb",
        "!",
        "in",
        "at",
        "queue.json",
        "ledger",
    ];
    let long = ["x".repeat(64), "é".repeat(32), "\u{1}".repeat(64)];
    names.into_iter().map(str::to_owned).chain(long).collect()
}

async fn with_one_shard(place: &Place) -> Store {
    let mut settings = settings();
    settings.jobs.shards = 1;
    place.builder().settings(settings).open().await.unwrap()
}

pub(crate) async fn nasty_names_of_queues_are_told_apart(place: Arc<Place>) {
    let (ours, theirs) = (with_one_shard(&place).await, with_one_shard(&place).await);
    for name in nasty() {
        ours.queue(&name).unwrap().enqueue(name.clone()).await.unwrap();
    }
    let listed = theirs.queues("default").unwrap().list().await.unwrap();
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), nasty().into_iter().collect());
    for name in nasty() {
        let queue = theirs.queue(&name).unwrap();
        let job = soon(&queue).await;
        assert_eq!(text(&job), name, "a job of another queue");
        assert!(job.finish().await.unwrap().is_accepted());
        nothing(&queue).await;
    }
    for name in ["", unique().repeat(3).as_str()] {
        assert!(ours.queue(name).is_err(), "{name:?}");
    }
    theirs.drain().await;
    ours.drain().await;
}
