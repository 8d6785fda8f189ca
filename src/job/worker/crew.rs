//! The loop of a worker: claims, starts, watches, answers.

mod claims;
mod ending;

use super::{
    beside::{Beside, InHand},
    builder::KindOptions,
    context::{CancelReason, JobContext},
    handler::{Handler, JobOutcome},
    health::{Board, Facts, WorkerState},
    intake::{Pace, by_weight},
    running::{Running, Watch},
    verdict::Ended,
};
use crate::{
    JobId,
    clock::{Clock, Moment},
    job::{
        Job,
        answer::AttemptEnd,
        counters::{Counters, DELAY_SECONDS},
    },
};
pub(super) use claims::Source;
use claims::{Came, Waiting};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

/// How often the loop looks at what runs.
const TICK: Duration = Duration::from_secs(1);
/// A loop that is so much late was starved.
const LATE: Duration = Duration::from_secs(1);

/// What a worker is to do.
pub(super) struct Plan {
    pub(super) concurrency: u32,
    pub(super) handlers: HashMap<String, Handler>,
    pub(super) fallback: Option<Handler>,
    pub(super) options: KindOptions,
    pub(super) kinds: HashMap<String, KindOptions>,
    pub(super) timeout_grace: Duration,
    pub(super) shutdown_grace: Duration,
    pub(super) cancel_grace: Duration,
}

/// An answer that was sent, and what came of it.
type Told = (JobId, crate::Result<AttemptEnd>);

/// A worker at work.
pub(super) struct Crew {
    clock: Arc<dyn Clock>,
    beside: Arc<Beside>,
    counters: Arc<Counters>,
    plan: Plan,
    sources: Vec<Source>,
    shutdown: CancellationToken,
    board: Arc<Board>,
    tasks: JoinSet<JobOutcome>,
    running: HashMap<Id, Running>,
    claims: FuturesUnordered<BoxFuture<'static, Came>>,
    answers: FuturesUnordered<BoxFuture<'static, Told>>,
    /// Slots that claims on their way may fill.
    reserved: u32,
    pace: Pace,
    turn: usize,
    next_tick: Moment,
    next_look: Moment,
    /// When the clock has something to say about a running job.
    next_watch: Option<Moment>,
    draining: Option<Moment>,
    facts: Facts,
}

impl Crew {
    pub(super) fn new(sources: Vec<Source>, plan: Plan, shutdown: CancellationToken, board: Arc<Board>) -> Self {
        let shared = sources[0].shared();
        let clock = Arc::clone(&shared.backend.clock);
        let now = clock.monotonic();
        let concurrency = usize::try_from(plan.concurrency).unwrap_or(usize::MAX);
        let facts = Facts { concurrency, last_turn: clock.wall(), ..Facts::default() };
        *board.facts() = facts.clone();
        Self {
            beside: Arc::clone(&shared.beside),
            counters: Arc::clone(&shared.counters),
            clock,
            plan,
            shutdown,
            board,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            claims: FuturesUnordered::new(),
            answers: FuturesUnordered::new(),
            reserved: 0,
            pace: Pace::default(),
            turn: 0,
            next_tick: now.plus(TICK),
            next_look: now,
            next_watch: None,
            draining: None,
            facts,
            sources,
        }
    }

    /// Runs until it is shut down and everything is answered for.
    pub(super) async fn run(mut self) {
        self.listen();
        loop {
            let now = self.clock.monotonic();
            if self.shutdown.is_cancelled() && self.draining.is_none() {
                self.begin_drain(now);
            }
            if now >= self.next_tick {
                self.tick(now);
            }
            if self.next_watch.is_some_and(|at| now >= at) {
                self.watch(now);
            }
            if self.draining.is_none() {
                self.start_claimed(now);
                self.begin_claims(now);
            } else if self.running.is_empty() && self.answers.is_empty() {
                break;
            }
            let clock = Arc::clone(&self.clock);
            let wait = self.next_moment().since(now);
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                Some(came) = self.claims.next() => self.came(came).await,
                Some((id, told)) = self.answers.next() => heard(id, told, &self.counters),
                () = self.shutdown.cancelled(), if self.draining.is_none() => {}
                () = clock.sleep(wait) => {}
            }
        }
        self.facts.state = WorkerState::Stopped;
        self.publish(self.clock.monotonic());
    }

    /// When the loop has something to do, whatever else happens.
    fn next_moment(&self) -> Moment {
        let waits = self.sources.iter().filter_map(|source| match source.waiting {
            Waiting::Until(at) if self.draining.is_none() => Some(at),
            _ => None,
        });
        let next = waits.chain(self.next_watch).min().unwrap_or(self.next_tick);
        next.min(self.next_tick)
    }

    /// Starts what was claimed, by the weights of its queues, as far as there are slots.
    fn start_claimed(&mut self, now: Moment) {
        while self.running.len() < self.facts.concurrency && !self.beside.runs_alone() {
            let weights: Vec<u32> =
                self.sources.iter().map(|source| if source.claimed.is_empty() { 0 } else { source.weight }).collect();
            if weights.iter().all(|weight| *weight == 0) {
                return;
            }
            let at = by_weight(&weights, self.turn);
            self.turn = self.turn.wrapping_add(1);
            let Some((job, mut hand, _)) = self.sources[at].claimed.pop_front() else { return };
            if job.runs_alone() && !hand.be_alone() {
                // Something else came to hand meanwhile: it goes back, and somebody takes it whose hands are empty.
                tracing::debug!(job = %job.id(), "a job that must run alone is given back");
                drop(job);
                self.sources[at].waiting = Waiting::Until(now.plus(TICK));
                continue;
            }
            self.start(job, hand, now);
        }
    }

    fn start(&mut self, job: Job, hand: InHand, now: Moment) {
        if let Some(due) = job.due_at() {
            let delay = self.clock.wall().since(due);
            metrics::histogram!(DELAY_SECONDS).record(delay.as_secs_f64());
        }
        let context = JobContext::new(job, self.shutdown.clone());
        let kind = context.kind();
        let limits = self.plan.limits(kind, context.timeout());
        let run: BoxFuture<'static, JobOutcome> = match self.plan.handler(kind) {
            Some(handler) => {
                let (handler, context) = (Arc::clone(handler), context.clone());
                // In its own task from the start: what panics before it returns a future is no more than a failed job.
                Box::pin(async move { handler(context).await })
            }
            None => {
                let said =
                    format!("no handler for jobs of the kind {:?}: update this worker", kind.unwrap_or_default());
                Box::pin(async move { JobOutcome::Failed(said) })
            }
        };
        let abort = self.tasks.spawn(run);
        let running = Running::new(context, hand, now, limits, abort);
        self.next_watch = [self.next_watch, running.next()].into_iter().flatten().min();
        self.running.insert(running.abort.id(), running);
    }

    /// Looks at everything that goes by the clock.
    fn tick(&mut self, now: Moment) {
        let late = now.since(self.next_tick);
        if late >= LATE {
            self.facts.starved = Some((self.clock.wall(), late));
            self.counters.starved(1);
            tracing::warn!(
                ?late,
                "the runtime did not run this worker: a handler blocks it, or the machine stood still"
            );
        }
        self.next_tick = now.plus(TICK);
        self.give_back_late(now);
        self.watch(now);
        self.drain(now);
        self.look_for_cancels(now);
        self.publish(now);
    }

    fn watch(&mut self, now: Moment) {
        let grace = self.plan.timeout_grace;
        let mut left = Vec::new();
        for running in self.running.values_mut() {
            let context = &running.context;
            let (id, kind) = (context.id(), context.kind().unwrap_or_default().to_owned());
            match running.watch(now, grace) {
                Watch::Nothing => {}
                Watch::Stuck => {
                    let age = now.since(running.began);
                    self.counters.stuck(1);
                    tracing::warn!(job = %id, kind, ?age, "a job runs for long: it may be stuck");
                }
                Watch::GiveUp => {
                    let timeout = running.timeout.unwrap_or_default();
                    self.counters.timeouts(1);
                    tracing::warn!(job = %id, kind, ?timeout, "a handler did not stop in time: its attempt has failed");
                    left.extend(running.leave_behind(Ended::DidNotStop { timeout, grace }).map(|told| (id, told)));
                }
            }
        }
        self.next_watch = self.running.values().filter_map(Running::next).min();
        self.wait_for(left);
    }

    /// What others may know of it.
    fn publish(&mut self, now: Moment) {
        self.facts.last_turn = self.clock.wall();
        self.facts.running =
            self.running.values().filter(|one| !one.left_behind).map(|running| running.shown(now)).collect();
        self.facts.left_behind = self.running.values().filter(|one| one.left_behind).count();
        self.facts.ahead = self.sources.iter().map(|source| source.claimed.len()).sum();
        *self.board.facts() = self.facts.clone();
    }
}

/// What has become of an answer.
fn heard(id: JobId, told: crate::Result<AttemptEnd>, counters: &Counters) {
    match told {
        Ok(AttemptEnd::Stale(stale)) => {
            counters.stale(1);
            tracing::warn!(job = %id, %stale, "an attempt was over before it was answered for: nothing was changed");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(job = %id, %error, "whether an answer was accepted is not known yet"),
    }
}
