//! Producers and workers: what they do, how long it takes, and how it ends.

use super::{
    QUEUE,
    audit::Told,
    rules::{Bound, SLOT},
};
use crate::{
    auditor::Auditor,
    client::millis,
    plan::{Plan, dice},
    run::Maker,
    world::{NodeClock, World},
};
use leasehold::{
    Clock, Decisions, Queue, Store,
    decision::Decision,
    job::{Cancelled, Fate, Job, NewJob, QueueSettings},
};
use rand::{RngExt, rngs::StdRng};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Retries come soon and end soon, so that a run sees all of it.
#[allow(clippy::field_reassign_with_default, reason = "the settings may get more fields")]
pub fn settings(plan: &Plan) -> QueueSettings {
    let mut settings = QueueSettings::default();
    settings.shards = 1 + u16::from(plan.seed.is_multiple_of(5));
    settings.max_attempts = 4;
    settings.backoff.cap = Duration::from_secs(20);
    settings.key_limit = Some(1);
    settings.session_ttl = Duration::from_secs(if plan.seed.is_multiple_of(2) { 10 } else { 20 });
    settings
}

/// One producer or worker of one process.
#[derive(Clone)]
pub struct QueueClient {
    plan: Arc<Plan>,
    world: World,
    auditor: Auditor,
    machine: usize,
    clock: NodeClock,
    queue: Queue,
    decisions: Decisions,
    dice: Arc<std::sync::Mutex<StdRng>>,
    number: usize,
}

impl QueueClient {
    pub fn new(store: &Store, maker: &Maker, number: usize) -> Self {
        let (plan, world, auditor, machine, life) = maker.place();
        let dice = dice(plan.seed, "queue client", (life * 64 + machine as u64) * 64 + number as u64);
        Self {
            clock: world.clock(machine),
            queue: store.queue(QUEUE).expect("a good name"),
            decisions: store.decisions(),
            plan,
            world,
            auditor,
            machine,
            dice: Arc::new(std::sync::Mutex::new(dice)),
            number,
        }
    }

    fn roll(&self, below: u64) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).random_range(0..below.max(1))
    }

    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        millis(&mut self.dice.lock().unwrap_or_else(PoisonError::into_inner), range)
    }

    /// Works until the last stretch has ended.
    pub async fn run(self, stretches: Arc<Vec<(i64, i64)>>) {
        loop {
            let now = self.world.now();
            let Some((begin, _)) = stretches.iter().find(|(_, end)| now < *end).copied() else { return };
            if now < begin {
                self.clock.sleep(Duration::from_micros((begin - now).unsigned_abs())).await;
                continue;
            }
            match self.number {
                0 if self.roll(12) == 0 => self.cancel().await,
                0 if self.roll(6) == 0 => self.transact().await,
                0 => self.produce().await,
                _ => self.work().await,
            }
            let pause = self.millis(1..if self.number == 0 { 6000 } else { 300 });
            self.clock.sleep(pause).await;
        }
    }

    /// Gives up after a while, now and then.
    async fn patience<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let gives_up = self.plan.has("cancel") && self.roll(7) == 0;
        let after = Duration::from_micros(self.roll(300_000) << self.roll(4));
        if !gives_up {
            return Some(call.await);
        }
        tokio::select! {
            biased;
            done = call => Some(done),
            () = self.clock.sleep(after) => None,
        }
    }

    async fn produce(&self) {
        let count = 1 + self.roll(4) as usize;
        let numbers: Vec<u64> = (0..count).map(|_| self.auditor.jobs(|jobs| Ok(jobs.sends())).unwrap_or(0)).collect();
        let later = self.roll(10) == 0;
        let bound = match self.roll(8) {
            0 | 1 => Some(Bound::Key(self.roll(3))),
            2 => Some(Bound::Unique(self.roll(2))),
            _ => None,
        };
        for number in &numbers {
            self.bind(*number, bound.clone());
        }
        let jobs = numbers.iter().map(|number| {
            let job = NewJob::new(number.to_string()).priority(if self.roll(6) == 0 { -1 } else { 0 });
            let job = match &bound {
                Some(Bound::Key(key)) => job.key(format!("k{key}")),
                Some(Bound::Unique(key)) => job.unique_key(format!("u{key}")),
                _ => job,
            };
            if later { job.due_in(self.millis(1000..20_000)) } else { job }
        });
        let call = self.queue.enqueue_many(jobs.collect::<Vec<_>>());
        self.world.note(format_args!("m{}: enqueues {numbers:?}", self.machine));
        let told: Vec<(Told, Option<leasehold::job::JobId>)> = match self.patience(call.into_future()).await {
            None => vec![(Told::Unknown, None); count],
            Some(Ok(ids)) => ids.into_iter().map(|id| (Told::Enqueued, Some(id))).collect(),
            Some(Err(failed)) => {
                let fates = failed.fates().iter().map(|fate| match fate {
                    Fate::Enqueued(id) => (Told::Enqueued, Some(*id)),
                    Fate::NotEnqueued => (Told::NotEnqueued, None),
                    Fate::Unknown(id) => (Told::Unknown, Some(*id)),
                    _ => (Told::Unknown, None),
                });
                fates.collect()
            }
        };
        if told.len() != count {
            self.auditor.accuse(format!("J1: {count} jobs have {} ids", told.len()));
        }
        for (number, (told, id)) in numbers.into_iter().zip(told) {
            self.auditor.jobs(|jobs| jobs.told(number, told, id));
        }
    }

    fn bind(&self, number: u64, bound: Option<Bound>) {
        self.auditor.jobs(|jobs| {
            bound.into_iter().for_each(|bound| jobs.rules.bind(number, bound));
            Ok(())
        });
    }

    /// A job that hangs on a transaction, which is decided, or left to others.
    async fn transact(&self) {
        // By a wrong clock a transaction would begin at another time, and be refused.
        if !self.world.sound_since(self.machine, 0) {
            return;
        }
        let txn = self.decisions.begin();
        let number = self.auditor.jobs(|jobs| Ok(jobs.sends())).unwrap_or(0);
        self.bind(number, Some(Bound::Transaction(txn)));
        self.world.note(format_args!("m{}: enqueues {number} in {txn}", self.machine));
        let call = self.queue.enqueue(number.to_string()).in_transaction(txn);
        let enrolled = self.patience(call.into_future()).await;
        let (told, id) = match &enrolled {
            Some(Ok(enrolled)) => (Told::Enqueued, enrolled.ids.first().copied()),
            _ => (Told::Unknown, None),
        };
        self.auditor.jobs(|jobs| jobs.told(number, told, id));
        if self.roll(5) == 0 {
            return;
        }
        self.clock.sleep(self.millis(1..4000)).await;
        // What is not known to be there must not be committed.
        let commits = told == Told::Enqueued && self.roll(3) > 0;
        let decision = if commits { Decision::Commit } else { Decision::Abort };
        let segments = enrolled.and_then(Result::ok).map(|enrolled| enrolled.segments).unwrap_or_default();
        let decisions = self.decisions.clone();
        let decided = self.patience(async move { decisions.decide_with(txn, decision, segments).await }).await;
        self.world.note(format_args!("m{}: decides {txn} {decision}: {decided:?}", self.machine));
        if let Some(Ok(decided)) = decided {
            self.auditor.jobs(|jobs| match decided.decision() {
                Some(decision) => jobs.rules.decided(txn, Some(decision)),
                None => Ok(()),
            });
        }
    }

    /// A job that a schedule has made.
    async fn slot(&self, job: Job) {
        let Some(slot) = job.due_at().map(|at| at.as_millis()) else {
            return self.auditor.accuse("J8: a slot has no time");
        };
        if !self.world.watching(|| job.is_ours()) {
            return drop(job);
        }
        self.world.note(format_args!("m{}: slot {slot} with {}", self.machine, job.fence()));
        self.auditor.jobs(|jobs| {
            jobs.count("slots started");
            jobs.rules.slot_starts(slot)
        });
        self.clock.sleep(self.millis(1..800)).await;
        if let Ok(end) = job.finish().await
            && matches!(end, leasehold::job::AttemptEnd::Finished { .. })
        {
            self.auditor.jobs(|jobs| jobs.rules.slot_ended(slot));
        }
    }

    async fn cancel(&self) {
        let roll = self.roll(1 << 40);
        let Some((number, id)) = self.auditor.jobs(|jobs| Ok(jobs.any(roll))).flatten() else { return };
        self.auditor.jobs(|jobs| {
            jobs.cancelled(number, false);
            Ok(())
        });
        let queue = self.queue.clone();
        let done = self.patience(async move { queue.cancel(id).await }).await;
        self.world.note(format_args!("m{}: cancels {number}: {done:?}", self.machine));
        if matches!(done, Some(Ok(Cancelled::Done))) {
            self.auditor.jobs(|jobs| {
                jobs.cancelled(number, true);
                Ok(())
            });
        }
    }

    async fn work(&self) {
        let claim = self.queue.claim(1 + self.roll(5) as u32);
        let claim = if self.roll(2) == 0 { claim.within(self.millis(10..8000)) } else { claim };
        let claimed = match self.patience(claim.into_future()).await {
            Some(Ok(claimed)) => claimed,
            Some(Err(error)) => return self.world.note(format_args!("m{}: claim: {:?}", self.machine, error.kind())),
            None => return,
        };
        if self.roll(3) == 0 {
            // Side by side.
            let all: Vec<_> = claimed.into_iter().map(|job| Box::pin(self.attempt(job))).collect();
            futures_util::future::join_all(all).await;
        } else {
            for job in claimed {
                self.attempt(job).await;
            }
        }
    }

    async fn attempt(&self, job: Job) {
        if job.args() == SLOT {
            return self.slot(job).await;
        }
        let Ok(number) = String::from_utf8_lossy(&job.args()).parse::<u64>() else {
            return self.auditor.accuse(format!("J1: job {} has lost its arguments", job.id()));
        };
        let fence = job.fence();
        if !self.world.watching(|| job.is_ours()) {
            self.world.note(format_args!("m{}: {number} is not ours any more", self.machine));
            return drop(job);
        }
        self.world.note(format_args!("m{}: starts {number} with {fence}", self.machine));
        let world = self.world.clone();
        let started = self.world.watching(|| self.auditor.jobs(|jobs| jobs.starts(number, job, self.machine, &world)));
        let Some((attempt, hand)) = started else { return };
        let pause = if self.roll(8) == 0 { self.millis(1000..45_000) } else { self.millis(1..1500) };
        self.clock.sleep(pause).await;
        let Some(job) = hand.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let kind = self.roll(40);
        let ends = !matches!(kind, 28..=33 | 37..);
        let before = self.auditor.jobs(|jobs| Ok(jobs.may_have_ended(number))).unwrap_or(true);
        self.auditor.jobs(|jobs| {
            jobs.stops(number, attempt, ends);
            Ok(())
        });
        let answering = match kind {
            0..28 => job.finish(),
            28..31 => job.snooze(self.millis(10..5000)),
            31..34 => job.release(),
            34..36 => job.fail("no luck"),
            36 => job.fail_for_good("no use"),
            _ => return drop(job),
        };
        let finishes = kind < 28;
        match self.patience(answering.into_future()).await {
            Some(Ok(end)) => {
                self.world.note(format_args!("m{}: {number} {end:?}", self.machine));
                self.auditor.jobs(|jobs| jobs.answered(number, fence, &end, before, finishes));
            }
            Some(Err(error)) => self.world.note(format_args!("m{}: {number}: {:?}", self.machine, error.kind())),
            None => {}
        }
    }
}
