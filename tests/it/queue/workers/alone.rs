//! One job of many kills its process, again and again: it alone ends as a dead letter.

use super::{Notes, World, text};
use crate::common::{secs, settle};
use leasehold::{
    Store,
    job::{JobContext, NewJob, Worker},
};
use leasehold_testkit::TestClock;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// A process with a clock of its own: it dies by standing still for ever.
struct Process {
    clock: TestClock,
    dead: Arc<AtomicBool>,
    _store: Store,
    worker: Option<Worker>,
}

impl Process {
    async fn start(world: &World, seed: u64, notes: &Notes) -> Self {
        let clock = TestClock::at(leasehold::Clock::wall(&world.0.clock));
        let mut settings = leasehold::Settings::default();
        settings.jobs.owner = Some(format!("process-{seed}"));
        settings.jobs.shards = 1;
        let builder = world.0.builder(seed).settings(settings).clock(Arc::new(clock.clone()));
        let store = builder.open().await.unwrap();
        let dead = Arc::new(AtomicBool::new(false));
        let (notes, died, time) = (notes.clone(), Arc::clone(&dead), clock.clone());
        let worker = store.queue("emails").unwrap().worker().concurrency(500).run(move |job: JobContext| {
            let (notes, died, time) = (notes.clone(), Arc::clone(&died), time.clone());
            async move {
                if text(&job) == "poison" {
                    notes.note("killed");
                    died.store(true, SeqCst);
                    std::future::pending::<()>().await;
                }
                // All of a batch are in hand when the process dies.
                leasehold::Clock::sleep(&time, secs(1)).await;
                notes.note(text(&job));
            }
        });
        Self { clock, dead, _store: store, worker: Some(worker) }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }
}

#[tokio::test]
async fn one_of_five_hundred_that_kills_its_process_is_the_only_dead_letter() {
    let world = World::new();
    let producer = world.queue(1000).await;
    let job = |number| NewJob::new(if number == 137 { "poison".to_owned() } else { format!("job {number}") });
    producer.enqueue_many((0..500).map(job)).await.unwrap();
    let notes = Notes::default();
    let mut seed = 1;
    let mut alive = Process::start(&world, seed, &notes).await;
    let mut graves = Vec::new();
    let dead_letters = || world.names("/dead/").len();
    let mut seconds = 0;
    while dead_letters() == 0 || notes.len() - graves.len() < 499 {
        seconds += 1;
        assert!(seconds < 3600, "{} done, {} killed, {} dead", notes.len(), graves.len(), dead_letters());
        for _ in 0..10 {
            world.0.clock.advance(secs(1) / 10);
            if !alive.is_dead() {
                alive.clock.advance(secs(1) / 10);
            }
            settle().await;
        }
        if alive.is_dead() {
            // Its clock stands still from now on; nothing of it is written any more.
            seed += 1;
            let next = Process::start(&world, seed, &notes).await;
            graves.push(std::mem::replace(&mut alive, next));
        }
    }
    let counted = notes.counted();
    assert_eq!(counted.len(), 500, "499 that are done, and one that kills");
    assert!(counted.iter().all(|(what, times)| what == "killed" || *times == 1), "none of the others ran twice");
    assert_eq!(dead_letters(), 1);
    let depth = producer.depth().await.unwrap();
    assert_eq!((depth.available, depth.retrying, depth.running), (0, 0, 0));
    println!("{} processes died in {seconds} s of moved time", graves.len());
    for grave in &mut graves {
        std::mem::forget(grave.worker.take());
    }
}
