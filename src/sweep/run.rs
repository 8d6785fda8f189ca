//! One run: from the oldest hour on, a page at a time, until there is nothing left or something says stop.

use super::{
    Activity, Report, Run, StoppedBy, SweepOptions, SweepSettings, SweeperState, Swept,
    contain::contained,
    counters::{Counters, Counts},
    history::History,
    options::Progress,
    pace::Pace,
    pass::{Pass, Stop, Work},
    walk::Came,
};
use crate::{
    Error, Hour, Namespace, Result,
    clock::{Moment, Timestamp},
    generator::GeneratorExt,
    kind::{Content, Context, Kind},
    storage::{Backend, tidying},
    sync::Locked as _,
};
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// One sweeper at a time in a cluster: taken for one run. It saves requests and is never needed for safety.
#[async_trait]
pub(crate) trait Turn: fmt::Debug + Send + Sync {
    /// `None` if another process has it.
    async fn take(&self, longest: Duration) -> Result<Option<Box<dyn TurnTaken>>>;
}

/// The turn, until it is given back.
#[async_trait]
pub(crate) trait TurnTaken: Send + Sync {
    /// One more than that of the turn before, of any process.
    fn number(&self) -> u64;

    async fn give_back(self: Box<Self>);
}

/// What bounds a run.
pub(super) struct Limits<'a> {
    pub(super) max_ops: u64,
    pub(super) until: Option<Moment>,
    /// Stops when an operation was called since.
    pub(super) idle_since: Option<Moment>,
    /// How many entries are looked at at once.
    pub(super) side_by_side: usize,
    pub(super) dry_run: bool,
    pub(super) by_hand: bool,
    pub(super) stop: &'a CancellationToken,
    pub(super) progress: Option<&'a Progress>,
}

/// Held while a run is under way: one at a time in a process.
#[derive(Debug)]
pub(super) struct State {
    pub(super) pass: Option<Pass>,
    pub(super) pace: Pace,
    /// The last turn that this process had.
    pub(super) turn: Option<u64>,
}

/// The sweeper of one opened store.
#[derive(Debug)]
pub(crate) struct Sweeper {
    pub(super) backend: Arc<Backend>,
    max_clock_skew: Duration,
    pub(super) settings: SweepSettings,
    kinds: Vec<Arc<dyn Kind>>,
    pub(super) turn: Arc<dyn Turn>,
    pub(super) activity: Arc<Activity>,
    pub(super) counters: Counters,
    /// What was done about each kind since the store was opened.
    swept: std::sync::Mutex<BTreeMap<&'static str, Swept>>,
    pub(super) state: Mutex<State>,
    /// It was logged: once is enough.
    pub(super) said_that_deleting_is_denied: AtomicBool,
    pub(super) history: History,
}

impl Sweeper {
    pub(crate) fn new(
        backend: Arc<Backend>,
        max_clock_skew: Duration,
        settings: SweepSettings,
        kinds: Vec<Arc<dyn Kind>>,
        turn: Arc<dyn Turn>,
        activity: Arc<Activity>,
    ) -> Arc<Self> {
        let pace = Pace::new(Arc::clone(&backend.clock), settings.op_delay);
        let state = Mutex::new(State { pass: None, pace, turn: None });
        let said_that_deleting_is_denied = AtomicBool::new(false);
        let names = || kinds.iter().map(|kind| kind.declaration().name);
        let counters = Counters::of_kinds(names());
        let swept = names().map(|kind| (kind, Swept::default())).collect();
        Arc::new(Self {
            backend,
            max_clock_skew,
            settings,
            kinds,
            turn,
            activity,
            counters,
            swept: std::sync::Mutex::new(swept),
            state,
            said_that_deleting_is_denied,
            history: History::default(),
        })
    }

    /// What it is doing, and how its last runs ended.
    pub(crate) fn state(&self) -> SweeperState {
        self.history.state(&*self.backend.clock)
    }

    /// What runs have done about each kind of record since the store was opened.
    pub(crate) fn swept(&self) -> BTreeMap<&'static str, Swept> {
        self.swept.locked().clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// One pass by hand.
    pub(crate) async fn sweep_once(&self, options: SweepOptions) -> Result<Report> {
        // Waits for a run that is under way.
        let _one_at_a_time = self.state.lock().await;
        let delay = options.op_delay.unwrap_or(self.settings.op_delay);
        let mut state = State { pass: None, pace: Pace::new(Arc::clone(&self.backend.clock), delay), turn: None };
        let limits = Limits {
            max_ops: options.max_ops.map_or(u64::MAX, u64::from),
            until: None,
            idle_since: options.heed_activity.then(|| self.activity.last()),
            side_by_side: 1,
            dry_run: options.dry_run,
            by_hand: true,
            stop: &CancellationToken::new(),
            progress: options.progress.as_ref(),
        };
        let (report, error) = tidying(self.run(&mut state, options.namespace.as_ref(), &limits)).await;
        match error {
            Some(error) if report.entries_seen == 0 => Err(error),
            _ => Ok(report),
        }
    }

    /// One run; whatever happens, what it judged is deleted and what it did is reported.
    pub(super) async fn run(
        &self,
        state: &mut State,
        namespace: Option<&Namespace>,
        limits: &Limits<'_>,
    ) -> (Report, Option<Error>) {
        let _running = self.history.begin();
        let began = self.backend.clock.monotonic();
        let before = self.backend.meter.tidying();
        let mut report = Report::of_kinds(self.kinds.iter().map(|kind| kind.declaration().name));
        let span = tracing::info_span!("sweep", store = %self.backend.place, dry_run = limits.dry_run);
        let walk = self.walk(state, namespace, limits, &mut report).instrument(span);
        let walked = contained("a run of the sweeper", walk).await.unwrap_or_else(|panicked| {
            // How far it came is not known.
            state.pass = None;
            Err(panicked)
        });
        let (stopped_by, error) = match walked {
            Ok(stopped_by) => (stopped_by, None),
            Err(error) => {
                report.fail(&error);
                (StoppedBy::Error, Some(error))
            }
        };
        report.stopped_by = Some(stopped_by);
        report.requests = self.backend.meter.tidying() - before;
        let duration = self.backend.clock.monotonic().since(began);
        report.duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        if !limits.dry_run {
            let oldest = report.oldest_hour.as_ref().and_then(|hour| hour.parse::<Hour>().ok());
            let ended_at = self.backend.clock.wall();
            self.counters.ran(&report, ended_at, oldest.map(Hour::start));
            for kind in &self.kinds {
                let name = kind.declaration().name;
                let swept = report.of(name);
                self.swept.locked().entry(name).or_default().add(&swept);
                kind.swept(&swept);
            }
            self.history.add(Run { ended_at, by_hand: limits.by_hand, report: report.clone() });
        }
        (report, error)
    }

    async fn walk(
        &self,
        state: &mut State,
        namespace: Option<&Namespace>,
        limits: &Limits<'_>,
        report: &mut Report,
    ) -> Result<StoppedBy> {
        self.backend.refresh_time().await?;
        self.backend.trust_clock(self.max_clock_skew).await?;
        let State { pass, pace, .. } = state;
        let pass = match pass {
            Some(pass) => pass,
            None => {
                if let Some(stopped_by) = self.next_op(pace, limits, report).await {
                    return Ok(stopped_by);
                }
                pass.insert(self.begin(namespace, report).await?)
            }
        };
        let cx = Arc::new(Context::new(Arc::clone(&self.backend)).sweeping(
            limits.dry_run,
            limits.until,
            limits.stop.clone(),
        ));
        while !pass.stops.is_empty() {
            let at = pass.next % pass.stops.len();
            let stop = &mut pass.stops[at];
            let came = match &stop.work {
                Work::Folder(_) => self.walk_folder(stop, pace, limits, &cx, report).await,
                Work::Chore(chore) => self.walk_chore(&stop.kind, chore, pace, limits, &cx, report).await,
            };
            match came {
                Ok(Came::Stopped(stopped_by)) => return Ok(stopped_by),
                Ok(Came::Back) => pass.next = at + 1,
                Ok(Came::ToItsEnd) => pass.leave(at),
                Err(error) => {
                    if let Some(earlier) = pass.failed.replace(error) {
                        report.fail(&earlier);
                    }
                    pass.leave(at);
                }
            }
        }
        let failed = pass.failed.take();
        state.pass = None;
        failed.map_or(Ok(StoppedBy::Complete), Err)
    }

    /// Finds out what there is to walk: one listing for all kinds. In any order: a process that restarts after every run
    /// must not meet the same huge namespace before the same small one each time.
    async fn begin(&self, namespace: Option<&Namespace>, report: &mut Report) -> Result<Pass> {
        let tops = match namespace {
            Some(namespace) => vec![namespace.to_string()],
            None => {
                report.lists += 1;
                self.backend.folders("").await?
            }
        };
        let mut stops = Vec::new();
        for kind in &self.kinds {
            let folders = tops.iter().flat_map(|top| (kind.declaration().folders)(top));
            let entries = folders.filter(|folder| folder.content == Content::Entries);
            stops.extend(entries.map(|folder| Stop::folder(kind, folder)));
            stops.extend(kind.chores(&tops).into_iter().map(|chore| Stop::chore(kind, chore)));
        }
        for last in (1..stops.len()).rev() {
            stops.swap(last, u32::from_le_bytes(self.backend.generator.bytes()) as usize % (last + 1));
        }
        Ok(Pass { stops, next: 0, failed: None })
    }

    /// Waits until the next entry may be looked at, or the next page be listed, unless the run ends before.
    pub(super) async fn next_op(&self, pace: &Pace, limits: &Limits<'_>, report: &Report) -> Option<StoppedBy> {
        if let Some(stopped_by) = self.must_stop(limits, report) {
            return Some(stopped_by);
        }
        tokio::select! {
            biased;
            () = pace.next() => {}
            () = limits.stop.cancelled() => return Some(StoppedBy::Stop),
        }
        // An operation may have been called while we waited.
        self.must_stop(limits, report)
    }

    /// Over for long enough, by this machine's clock and by the store's.
    pub(super) fn is_due(&self, hour: Hour) -> bool {
        self.backend.clocks().have_reached(due(hour, self.settings.hour_grace))
    }

    pub(super) fn must_stop(&self, limits: &Limits<'_>, report: &Report) -> Option<StoppedBy> {
        if limits.stop.is_cancelled() {
            return Some(StoppedBy::Stop);
        }
        if limits.idle_since.is_some_and(|since| self.activity.last() > since) {
            return Some(StoppedBy::Activity);
        }
        let ops = if limits.by_hand { report.entries_seen } else { report.ops() };
        if ops >= limits.max_ops {
            return Some(StoppedBy::Ops);
        }
        if limits.until.is_some_and(|until| self.backend.clock.monotonic() >= until) {
            return Some(StoppedBy::Time);
        }
        None
    }
}

/// When an hour may be swept: no write that was filed under it can still land.
pub(crate) fn due(hour: Hour, hour_grace: Duration) -> Timestamp {
    hour.end().plus(hour_grace)
}
