//! The end of a run of queues: one process works everything off, and then nothing is left and nobody is missing.

use super::{
    QUEUE,
    rules::{INTERVAL, SCHEDULE, SLOT},
    settings,
};
use crate::{run::Run, world::NodeClock};
use leasehold::{
    Clock, Result, Store,
    decision::Decision,
    job::{Job, NewSchedule},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Looks at the queue until it is empty; more than any schedule of retries needs.
const ROUNDS: usize = 300;

impl Run {
    /// Before anything goes wrong: the queue is made.
    pub fn make_queue(&mut self) {
        let settings = settings(&self.plan);
        self.ask(move |store| async move {
            // The machine that asks may stall for longer than anybody waits for an answer: then it asks again.
            let mut changed = store.queue(QUEUE)?.change_settings(settings.clone()).await;
            while changed.as_ref().is_err_and(leasehold::Error::is_retryable) {
                changed = store.queue(QUEUE)?.change_settings(settings.clone()).await;
            }
            changed?;
            let schedule = || NewSchedule::every(INTERVAL, SLOT).look_back(Duration::MAX);
            let mut added = store.queue(QUEUE)?.schedules().add(SCHEDULE, schedule()).await;
            while added.as_ref().is_err_and(leasehold::Error::is_retryable) {
                added = store.queue(QUEUE)?.schedules().add(SCHEDULE, schedule()).await;
            }
            added?;
            Ok(Vec::new())
        });
    }

    /// Whoever waited for a coordinator gives up: what is not decided is aborted, or too old to be.
    fn resolve_transactions(&mut self) {
        let transactions = self.auditor.jobs(|jobs| Ok(jobs.rules.transactions())).unwrap_or_default();
        let auditor = self.auditor.clone();
        self.ask(move |store| async move {
            for txn in transactions {
                let decided = store.decisions().decide(txn, Decision::Abort).await?.decision();
                auditor.jobs(|jobs| jobs.rules.decided(txn, decided));
            }
            Ok(Vec::new())
        });
    }

    /// Works off what is left, and looks whether everything that was promised has come.
    pub fn inspect_queue(&mut self) {
        let clock = self.world.clock(self.plan.nodes + 1);
        let auditor = self.auditor.clone();
        let note = move |job: &Job| {
            let number = String::from_utf8_lossy(&job.args()).parse();
            auditor.jobs(|jobs| match number {
                Ok(number) => jobs.rules.starts(number).and_then(|()| jobs.worked_off(number)),
                Err(_) => jobs.rules.slot_starts(job.due_at().unwrap_or_default().as_millis()),
            });
        };
        self.resolve_transactions();
        let buried = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&buried);
        self.ask(move |store| drained(store, clock, note, found));
        if !self.auditor.is_content() {
            return;
        }
        let (lost, left) = self
            .auditor
            .jobs(|jobs| Ok((jobs.lost(), jobs.left().into_iter().cloned().collect::<Vec<_>>())))
            .unwrap_or_default();
        lost.into_iter().for_each(|problem| self.auditor.accuse(problem));
        // The segment of a job on the dead list stays until its dead letter is written.
        if self.auditor.is_content() && !left.is_empty() && !buried.load(Relaxed) {
            self.auditor.accuse(format!("J6: left in the inbox of an empty queue: {left:?}"));
        }
    }
}

async fn drained(
    store: Store,
    clock: NodeClock,
    ended: impl Fn(&Job) + Send,
    buried: Arc<AtomicBool>,
) -> Result<Vec<String>> {
    let queue = store.queue(QUEUE)?;
    queue.schedules().remove(SCHEDULE).await?;
    let mut calm = 0;
    for _ in 0..ROUNDS {
        let claimed = queue.claim(100).within(Duration::from_secs(20)).await?;
        if claimed.is_empty() {
            let depth = queue.depth().await?;
            let waits = depth.available + depth.scheduled + depth.retrying + depth.running;
            // Empty for longer than a name stays in the finished list: by then the inbox is tidy.
            calm = if waits == 0 { calm + 1 } else { 0 };
            buried.store(depth.burying > 0, Relaxed);
            if calm >= 12 {
                return Ok(Vec::new());
            }
            clock.sleep(Duration::from_secs(1)).await;
            continue;
        }
        claimed.iter().for_each(&ended);
        let ends = queue.finish_all(claimed).await?;
        if let Some(end) = ends.iter().find(|end| !end.is_accepted()) {
            return Ok(vec![format!("J5: with nothing going wrong a finish is not accepted: {end:?}")]);
        }
    }
    Ok(vec![format!("J5: the queue is never empty: {:?}", queue.depth().await?)])
}
