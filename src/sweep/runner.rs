//! When to sweep: after a while of quiet, and not again until another hour has ended.

use super::run::{Limits, Sweeper};
use super::{Report, StoppedBy};
use crate::{Bucket, Clock, ErrorKind, Result, clock::Moment, generator::GeneratorExt};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often a system that is never idle is swept a little.
const TRICKLE_EVERY: Duration = Duration::from_secs(60);

/// A sweeper that runs in the background. Dropping it lets it run on for as long as the store is open.
#[derive(Debug)]
#[must_use = "keep it to stop the sweeper"]
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

/// What kind of run it is time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Idle,
    Trickle,
}

/// What the runner remembers between ticks.
struct Schedule {
    /// Nothing is due before this: a pass is complete and no other hour has ended yet. Not by the wall clock, which may
    /// have been a day ahead when this was found out.
    rest_until: Option<Moment>,
    /// When something was last swept, or the runner began.
    swept: Moment,
    said_that_listing_is_denied: bool,
    /// Runs in a row that the store failed.
    failures: u32,
}

impl Sweeper {
    pub(crate) fn start(self: &Arc<Self>, runtime: &tokio::runtime::Handle) -> RunningSweeper {
        let stop = CancellationToken::new();
        let clock = Arc::clone(&self.backend.clock);
        let task = runtime.spawn(Self::keep_sweeping(Arc::downgrade(self), clock, stop.clone()));
        RunningSweeper { stop, task, _sweeper: Arc::clone(self) }
    }

    /// Until it is stopped, or nobody has the store open any more.
    async fn keep_sweeping(sweeper: Weak<Self>, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let mut schedule =
            Schedule { rest_until: None, swept: clock.monotonic(), said_that_listing_is_denied: false, failures: 0 };
        loop {
            let Some(pause) = sweeper.upgrade().map(|sweeper| sweeper.pause(&schedule)) else { return };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep(pause) => {}
            }
            let Some(sweeper) = sweeper.upgrade() else { return };
            let due = sweeper.due(&schedule);
            if due != Due::Nothing {
                sweeper.take_turn(due, &mut schedule, &stop).await;
                sweeper.history.rest(schedule.rest_until);
            }
        }
    }

    /// Until the next tick, or until another hour can be swept: an idle process costs nothing.
    fn pause(&self, schedule: &Schedule) -> Duration {
        let now = self.backend.clock.monotonic();
        let rest = schedule.rest_until.map_or(Duration::ZERO, |until| until.since(now));
        rest.max(self.settings.tick)
    }

    fn due(&self, schedule: &Schedule) -> Due {
        let now = self.backend.clock.monotonic();
        if schedule.rest_until.is_some_and(|until| now < until) {
            return Due::Nothing;
        }
        if now.since(self.activity.last()) >= self.settings.idle_grace {
            return Due::Idle;
        }
        let starved_for = now.since(schedule.swept);
        let starving = !self.settings.starvation_after.is_zero() && starved_for >= self.settings.starvation_after;
        if starving { Due::Trickle } else { Due::Nothing }
    }

    async fn take_turn(&self, due: Due, schedule: &mut Schedule, stop: &CancellationToken) {
        let report = match self.run_alone(due, stop).await {
            Ok(Some(report)) => report,
            // Another one is at it.
            Ok(None) => return,
            Err(error) => {
                if error.kind() != ErrorKind::Denied {
                    tracing::warn!(%error, "the sweeper could not run");
                } else if !std::mem::replace(&mut schedule.said_that_listing_is_denied, true) {
                    tracing::warn!(%error, "the sweeper may not list, so it rests; leases are right without it");
                }
                // A store that is down for a moment is tried again soon, then later and later.
                schedule.failures += 1;
                schedule.rest_until = Some(match error.is_retryable() {
                    true => {
                        self.backend.clock.monotonic().plus(self.settings.tick * 2u32.pow(schedule.failures.min(6)))
                    }
                    false => self.next_hour(),
                });
                return;
            }
        };
        schedule.failures = 0;
        let now = self.backend.clock.monotonic();
        schedule.swept = match due {
            // A little every minute, for as long as nobody is idle.
            Due::Trickle => rewind(now, self.settings.starvation_after.saturating_sub(TRICKLE_EVERY)),
            Due::Idle | Due::Nothing => now,
        };
        if report.stopped_by == Some(StoppedBy::Complete) {
            schedule.rest_until = Some(self.next_hour());
        }
    }

    async fn run_alone(&self, due: Due, stop: &CancellationToken) -> Result<Option<Report>> {
        let Ok(mut state) = self.state.try_lock() else { return Ok(None) };
        let idle_since = self.activity.last();
        let turn = if self.settings.cluster_singleton {
            match self.turn.take(self.settings.max_runtime_per_run + self.settings.tick).await? {
                Some(turn) => Some(turn),
                None => return Ok(None),
            }
        } else {
            None
        };
        let idle = due == Due::Idle;
        let max_ops = if idle { self.settings.max_ops_per_run } else { self.settings.trickle_ops };
        let until = self.backend.clock.monotonic().plus(self.settings.max_runtime_per_run);
        let limits = Limits {
            max_ops: u64::from(max_ops),
            until: Some(until),
            idle_since: idle.then_some(idle_since),
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

    /// When the hour that is under way, or in its grace, can be swept; a little later for everybody but one.
    fn next_hour(&self) -> Moment {
        let grace = self.settings.hour_grace;
        let now = self.backend.clock.wall();
        let end = Bucket::of(now.minus(grace)).map_or(now, Bucket::end);
        let spread = self.backend.generator.between(Duration::ZERO, self.settings.rest_spread);
        self.backend.clock.monotonic().plus(end.plus(grace).plus(spread).since(now))
    }
}

/// So long before a moment.
fn rewind(now: Moment, by: Duration) -> Moment {
    Moment::from_origin(now.since(Moment::default()).saturating_sub(by))
}
