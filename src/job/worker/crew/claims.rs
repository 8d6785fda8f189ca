//! Where a worker's jobs come from.

use super::{Crew, TICK};
use crate::{
    clock::Moment,
    job::{
        Job,
        attempt::place,
        claiming::{Parts, Round, round, until_next},
        core::{Core, Shared},
        ledger::JobRef,
        worker::{beside::InHand, context::CancelReason, intake::shares},
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// What was claimed and has not started within this time is given back.
const STARTS_WITHIN: Duration = Duration::from_secs(1);
/// How often the ledgers of running jobs are looked at, for cancels.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The longest pause after a claim that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// One queue of a worker.
#[derive(Debug)]
pub(in super::super) struct Source {
    core: Arc<Core>,
    pub(super) weight: u32,
    pub(super) waiting: Waiting,
    /// What is on its way to be started, since when.
    pub(super) claimed: VecDeque<(Job, InHand, Moment)>,
    pause: Duration,
    /// Something was enqueued while a claim was on its way.
    news: bool,
}

/// Why a queue is not claimed from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// It can be.
    No,
    /// A claim is on its way.
    Claim,
    /// There is nothing, at least until then.
    Until(Moment),
}

/// What the loop is told.
pub(super) enum Came {
    Claimed {
        at: usize,
        reserved: u32,
        round: crate::Result<Round>,
    },
    /// Something was enqueued by this process.
    News(usize),
    /// These jobs were cancelled.
    Cancelled(Vec<(u8, JobRef)>),
}

impl Source {
    pub(in super::super) fn new(core: Arc<Core>, weight: u32) -> Self {
        let pause = core.shared.options.poll_interval;
        Self { core, weight, waiting: Waiting::No, claimed: VecDeque::new(), pause, news: false }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.core.shared
    }
}

impl Crew {
    /// Hears of what this process enqueues.
    pub(super) fn listen(&mut self) {
        for at in 0..self.sources.len() {
            self.listen_to(at);
        }
    }

    fn listen_to(&mut self, at: usize) {
        let core = Arc::clone(&self.sources[at].core);
        self.claims.push(Box::pin(async move {
            core.news.notified().await;
            Came::News(at)
        }));
    }

    /// Claims from every queue that may have something, by their weights: what there are slots for, and what will start
    /// within about half a second.
    pub(super) fn begin_claims(&mut self, now: Moment) {
        if self.beside.runs_alone() {
            return;
        }
        let mut waiting = 0;
        for source in &mut self.sources {
            if matches!(source.waiting, Waiting::Until(at) if at <= now) {
                source.waiting = Waiting::No;
            }
            waiting += source.claimed.len();
        }
        let taken = self.running.len() + waiting + usize::try_from(self.reserved).unwrap_or(usize::MAX);
        let most = u64::from(self.plan.concurrency) + u64::from(self.pace.ahead(now));
        let free = most.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        let ready = |waiting: Waiting| waiting == Waiting::No;
        let weights: Vec<u32> =
            self.sources.iter().map(|source| if ready(source.waiting) { source.weight } else { 0 }).collect();
        if free == 0 || weights.iter().all(|weight| *weight == 0) {
            return;
        }
        let shares = shares(u32::try_from(free).unwrap_or(u32::MAX), &weights, &mut self.turn);
        for (at, share) in shares.into_iter().enumerate().filter(|(_, share)| *share > 0) {
            self.begin_claim(at, share);
        }
    }

    fn begin_claim(&mut self, at: usize, share: u32) {
        let source = &mut self.sources[at];
        source.waiting = Waiting::Claim;
        source.news = false;
        self.reserved += share;
        let core = Arc::clone(&source.core);
        self.claims.push(Box::pin(async move {
            core.shared.activity.touch(&*core.backend().clock);
            // It comes again: what is young is left to a shard's owner.
            let round = round(&core, share, &Parts::All, true).await;
            Came::Claimed { at, reserved: share, round }
        }));
    }

    pub(super) async fn came(&mut self, came: Came) {
        match came {
            Came::News(at) => {
                let source = &mut self.sources[at];
                source.news = true;
                if matches!(source.waiting, Waiting::Until(_)) {
                    source.waiting = Waiting::No;
                }
                self.listen_to(at);
            }
            Came::Cancelled(jobs) => self.cancel(&jobs),
            Came::Claimed { at, reserved, round } => {
                self.reserved = self.reserved.saturating_sub(reserved);
                self.claimed(at, round).await;
            }
        }
    }

    async fn claimed(&mut self, at: usize, round: crate::Result<Round>) {
        let now = self.clock.monotonic();
        let source = &mut self.sources[at];
        let options = &source.core.shared.options;
        let round = match round {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(%error, queue = %source.core.name, "jobs cannot be claimed: it is tried again");
                source.waiting = Waiting::Until(now.plus(source.pause));
                source.pause = (source.pause * 2).min(LONGEST_PAUSE);
                let since = self.facts.failing.take().map_or_else(|| self.clock.wall(), |(since, _)| since);
                self.facts.failing = Some((since, error.to_string()));
                return;
            }
        };
        self.facts.failing = None;
        self.facts.last_claim = Some(self.clock.wall());
        match round {
            Round::Jobs(jobs) => {
                source.pause = options.poll_interval;
                source.waiting = Waiting::No;
                source.claimed.extend(jobs.into_iter().map(|job| (job, self.beside.hold(), now)));
            }
            Round::Again => source.waiting = Waiting::No,
            Round::Nothing { .. } if source.news => source.waiting = Waiting::No,
            Round::Nothing { wakes } => {
                let wait = until_next(&source.core, wakes, source.pause, Duration::MAX).await;
                source.waiting = Waiting::Until(now.plus(wait));
                source.pause = (source.pause * 2).min(options.max_poll_interval);
            }
        }
    }

    /// What will not start soon goes back, uncharged: others may have time for it.
    pub(super) fn give_back_late(&mut self, now: Moment) {
        for source in &mut self.sources {
            let before = source.claimed.len();
            source.claimed.retain(|(_, _, since)| now.since(*since) < STARTS_WITHIN);
            let late = before - source.claimed.len();
            if late > 0 {
                self.counters.given_back(u64::try_from(late).unwrap_or(0));
                tracing::debug!(jobs = late, queue = %source.core.name, "jobs that could not be started soon are given back");
                source.waiting = Waiting::Until(now.plus(TICK));
            }
        }
    }

    /// Looks at the ledgers of jobs that run: somebody may have cancelled them.
    pub(super) fn look_for_cancels(&mut self, now: Moment) {
        if now < self.next_look {
            return;
        }
        self.next_look = now.plus(LOOK_EVERY);
        let mut shards = BTreeMap::new();
        for running in self.running.values().filter(|running| now.since(running.began) >= TICK) {
            let (shard, _) = place(&running.context);
            shards.entry(Arc::as_ptr(shard) as usize).or_insert_with(|| Arc::clone(shard));
        }
        for shard in shards.into_values() {
            self.claims.push(Box::pin(async move {
                let jobs = match shard.look().await {
                    Ok(seen) => seen.record().cancelling.iter().map(|job| (shard.number, *job)).collect(),
                    Err(error) => {
                        tracing::debug!(%error, "whether jobs were cancelled cannot be seen now");
                        Vec::new()
                    }
                };
                Came::Cancelled(jobs)
            }));
        }
    }

    fn cancel(&mut self, cancelled: &[(u8, JobRef)]) {
        for running in self.running.values() {
            let (shard, job) = place(&running.context);
            if cancelled.contains(&(shard.number, job)) {
                running.context.cancel(CancelReason::Asked);
            }
        }
    }
}
