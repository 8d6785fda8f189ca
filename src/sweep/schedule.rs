//! When the next run is due, and what it may do: rules without requests.

use super::{
    Report, StoppedBy, SweepSettings,
    earned::{Earned, Plan},
    share::Share,
};
use crate::clock::Moment;
use std::time::Duration;

/// How often the pause is doubled for a store that is down, or while others have the turn.
const DOUBLINGS: u32 = 6;

/// What kind of run it is time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// No operation was called for a while.
    Idle,
    /// There has been no such while for too long, and this process has filed entries.
    Busy,
}

/// What the runner remembers between ticks.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Nothing is due before this: a pass is complete and no other hour has ended yet. Not by the wall clock, which may
    /// have been a day ahead when this was found out.
    rest_until: Option<Moment>,
    /// So much later an idle process begins: a fleet of them must not wake at once. Busy ones take turns.
    spread: Duration,
    /// When a pass was last completed by an idle run, or the runner began.
    idle_pass: Moment,
    /// When a busy run last began, or could have begun for the first time.
    busy_run: Moment,
    /// While another process has the turn.
    busy_after: Moment,
    pub(super) earned: Earned,
    pub(super) share: Share,
    said_that_listing_is_denied: bool,
    /// Runs in a row that the store failed.
    failures: u32,
    /// Turns in a row that another process had.
    turned_away: u32,
}

impl Schedule {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            rest_until: None,
            spread: Duration::ZERO,
            idle_pass: now,
            busy_run: now,
            busy_after: now,
            earned: Earned::default(),
            share: Share::default(),
            said_that_listing_is_denied: false,
            failures: 0,
            turned_away: 0,
        }
    }

    /// Until when nothing is to be done by an idle process.
    pub(super) fn rests_until(&self) -> Option<Moment> {
        self.rest_until.map(|until| until.plus(self.spread))
    }

    /// Until the next tick, or until another hour can be swept: an idle process costs nothing.
    pub(super) fn pause(&self, now: Moment, tick: Duration) -> Duration {
        self.rest_until.map_or(Duration::ZERO, |until| until.since(now)).max(tick)
    }

    pub(super) fn due(&self, now: Moment, last_activity: Moment, settings: &SweepSettings) -> Due {
        if self.rest_until.is_some_and(|until| now < until) {
            return Due::Nothing;
        }
        if now.since(last_activity) >= settings.idle_grace {
            let rested = self.rests_until().is_none_or(|until| now >= until);
            return if rested { Due::Idle } else { Due::Nothing };
        }
        let starving = !settings.starvation_after.is_zero() && now.since(self.idle_pass) >= settings.starvation_after;
        if !starving || now < self.busy_after {
            return Due::Nothing;
        }
        // A run for a few entries costs more than it sweeps.
        let enough = match now.since(self.busy_run) >= settings.starvation_after {
            true => 1,
            false => settings.page_size as u64,
        };
        if self.earned.left() >= enough { Due::Busy } else { Due::Nothing }
    }

    /// What a busy run may do now.
    pub(super) fn plan(&mut self, now: Moment, settings: &SweepSettings) -> Plan {
        // It could not run while it rested.
        let since = self.rest_until.map_or(self.busy_run, |rested| rested.max(self.busy_run));
        self.earned.plan(now.since(since), settings)
    }

    /// A run has ended that was not failed by the store.
    pub(super) fn ran(
        &mut self,
        due: Due,
        report: &Report,
        now: Moment,
        next_hour: impl FnOnce() -> (Moment, Duration),
    ) {
        (self.failures, self.turned_away) = (0, 0);
        self.earned.spend(report.ops());
        if due == Due::Busy {
            self.busy_run = now;
        }
        if report.stopped_by == Some(StoppedBy::Complete) {
            self.earned.complete();
            let (until, spread) = next_hour();
            (self.rest_until, self.spread) = (Some(until), spread);
            if due == Due::Idle {
                self.idle_pass = now;
            }
        }
    }

    /// Another process has the turn: this one asks again later and later, and has saved the more by then.
    pub(super) fn turned_away(
        &mut self,
        now: Moment,
        tick: Duration,
        between: impl FnOnce(Duration, Duration) -> Duration,
    ) {
        self.turned_away = (self.turned_away + 1).min(DOUBLINGS);
        let most = tick * 2u32.pow(self.turned_away - 1);
        self.busy_after = now.plus(between(most / 2, most));
    }

    /// The store has failed. One that is down for a moment is tried again soon, then later and later; what no waiting
    /// mends, in the next hour.
    pub(super) fn failed(
        &mut self,
        now: Moment,
        retry_after: Option<Duration>,
        next_hour: impl FnOnce() -> (Moment, Duration),
    ) {
        self.failures += 1;
        (self.rest_until, self.spread) = match retry_after {
            Some(tick) => (Some(now.plus(tick * 2u32.pow(self.failures.min(DOUBLINGS)))), Duration::ZERO),
            None => {
                let (until, spread) = next_hour();
                (Some(until), spread)
            }
        };
    }

    /// Whether it was not logged so far; from now on it was.
    pub(super) fn says_that_listing_is_denied(&mut self) -> bool {
        !std::mem::replace(&mut self.said_that_listing_is_denied, true)
    }
}
