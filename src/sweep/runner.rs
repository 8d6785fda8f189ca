//! When to sweep: after a while of quiet, or, where there never is any, as much as is filed; and not again until another
//! hour has ended.

use super::run::{Limits, Sweeper};
use super::schedule::{Due, Schedule};
use super::{Report, contain::contained, earned::Plan};
use crate::{Clock, ErrorKind, Hour, Result, SystemClock, clock::Moment, generator::GeneratorExt, storage::tidying};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often in a row the clock may fail before the machine's own is waited for.
const CLOCK_TRIES: u32 = 3;

/// A sweeper that runs in the background. Dropping it lets it run on for as long as the store is open.
#[derive(Debug)]
#[must_use = "dropping it detaches the sweeper, which then runs on: keep it to stop it"]
pub struct RunningSweeper {
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// What keeps it going after the last handle of the store is gone.
    _sweeper: Arc<Sweeper>,
}

impl RunningSweeper {
    /// Stops it after the entry in hand, with everything that it has judged deleted.
    pub async fn stop(self) {
        self.stop.cancel();
        // It only ends by itself, or with the runtime.
        let _ = self.task.await;
    }
}

impl Sweeper {
    pub(crate) fn start(self: &Arc<Self>, runtime: &tokio::runtime::Handle) -> RunningSweeper {
        let stop = CancellationToken::new();
        let clock = Arc::clone(&self.backend.clock);
        let task = runtime.spawn(Self::keep_sweeping(Arc::downgrade(self), clock, stop.clone()));
        RunningSweeper { stop, task, _sweeper: Arc::clone(self) }
    }

    /// Until it is stopped, or the store is closed.
    async fn keep_sweeping(sweeper: Weak<Self>, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let mut schedule = None;
        let mut failures = 0;
        while !stop.is_cancelled() {
            let next = contained("a round of the sweeper", Self::round(&sweeper, &*clock, &mut schedule, &stop)).await;
            match next {
                Ok(true) => failures = 0,
                Ok(false) => return,
                // The clock, most likely: there may be no other way to wait than by another one.
                Err(error) => {
                    tracing::warn!(%error, "the sweeper could not look whether it is time to sweep: it tries again");
                    failures += 1;
                    if failures >= CLOCK_TRIES {
                        let machine = SystemClock::new();
                        tokio::select! {
                            () = machine.sleep(Duration::from_secs(30)) => {}
                            () = stop.cancelled() => {}
                        }
                    }
                }
            }
        }
    }

    /// Waits for the next tick, and sweeps if it is time to; whether to go on.
    async fn round(
        sweeper: &Weak<Self>,
        clock: &dyn Clock,
        schedule: &mut Option<Schedule>,
        stop: &CancellationToken,
    ) -> bool {
        let schedule = schedule.get_or_insert_with(|| Schedule::new(clock.monotonic()));
        let Some(tick) = sweeper.upgrade().map(|sweeper| sweeper.settings.tick) else { return false };
        let pause = schedule.pause(clock.monotonic(), tick);
        tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            () = clock.sleep(pause) => {}
        }
        let Some(sweeper) = sweeper.upgrade() else { return false };
        let now = clock.monotonic();
        sweeper.backend.walks.forget(now);
        schedule.earned.count(sweeper.backend.counters.counts().entries_filed);
        let due = schedule.due(now, sweeper.activity.last(), &sweeper.settings);
        if due != Due::Nothing {
            tidying(sweeper.take_turn(due, schedule, stop)).await;
            sweeper.history.rest(schedule.rests_until());
        }
        let (all, tidying) = (sweeper.backend.requests().total(), sweeper.backend.meter.tidying());
        sweeper.counters.share(schedule.share.at(clock.monotonic(), all, tidying));
        true
    }

    async fn take_turn(&self, due: Due, schedule: &mut Schedule, stop: &CancellationToken) {
        let plan = match due {
            Due::Busy => schedule.plan(self.backend.clock.monotonic(), &self.settings),
            Due::Idle | Due::Nothing => Plan {
                ops: u64::from(self.settings.max_ops_per_run),
                op_delay: self.settings.op_delay,
                side_by_side: 1,
            },
        };
        let ran = contained("a run of the sweeper", self.run_alone(due, &plan, stop)).await.unwrap_or_else(Err);
        let now = self.backend.clock.monotonic();
        match ran {
            Ok(Some(report)) => schedule.ran(due, &report, now, || self.next_hour()),
            // Another one is at it.
            Ok(None) => {
                schedule.turned_away(now, self.settings.tick, |least, most| self.backend.generator.between(least, most))
            }
            Err(error) => {
                if error.kind() != ErrorKind::Denied {
                    tracing::warn!(%error, "the sweeper could not run");
                } else if schedule.says_that_listing_is_denied() {
                    tracing::warn!(%error, "the sweeper may not list, so it rests; nothing depends on it");
                }
                let retry_after = error.is_retryable().then_some(self.settings.tick);
                schedule.failed(now, retry_after, || self.next_hour());
            }
        }
    }

    async fn run_alone(&self, due: Due, plan: &Plan, stop: &CancellationToken) -> Result<Option<Report>> {
        let Ok(mut state) = self.state.try_lock() else { return Ok(None) };
        let idle_since = self.activity.last();
        let idle = due == Due::Idle;
        let turn = if self.settings.cluster_singleton || !idle {
            match self.turn.take(self.settings.max_runtime_per_run + self.settings.tick).await? {
                Some(turn) => Some(turn),
                None => return Ok(None),
            }
        } else {
            None
        };
        if let Some(turn) = &turn {
            let last = state.turn.replace(turn.number());
            // Without this all would look at what the first of them has deleted.
            if last.is_none_or(|last| turn.number() != last + 1)
                && let Some(pass) = &mut state.pass
            {
                pass.list_again();
            }
        }
        state.pace.set_delay(plan.op_delay);
        let until = self.backend.clock.monotonic().plus(self.settings.max_runtime_per_run);
        let limits = Limits {
            max_ops: plan.ops,
            until: Some(until),
            idle_since: idle.then_some(idle_since),
            side_by_side: plan.side_by_side,
            dry_run: false,
            by_hand: false,
            stop,
            progress: None,
        };
        let (report, error) = self.run(&mut state, None, &limits).await;
        if let Some(turn) = turn {
            turn.give_back().await;
        }
        error.map_or(Ok(Some(report)), Err)
    }

    /// When the hour that is under way, or in its grace, can be swept, and how much later this process begins when it is
    /// idle: a fleet must not wake at once.
    fn next_hour(&self) -> (Moment, Duration) {
        let grace = self.settings.hour_grace;
        // By the later of both clocks: an hour that is over by one of them alone would be found not to be, and be left
        // alone for another hour.
        let now = self.backend.clocks().earliest();
        let end = Hour::of(now.minus(grace)).map_or(now, Hour::end);
        let spread = self.backend.generator.between(Duration::ZERO, self.settings.rest_spread);
        (self.backend.clock.monotonic().plus(end.plus(grace).since(now)), spread)
    }
}
