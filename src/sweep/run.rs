//! One run: from the oldest hour on, a page at a time, until there is nothing left or something says stop.

use super::{
    Activity, Entry, Report, Run, StoppedBy, SweepOptions, SweepSettings, Sweepable, SweeperState, Verdict,
    contain::contained,
    history::History,
    options::Progress,
    pace::Pace,
    pass::{Judged, Pass, Stop, Walked},
};
use crate::{
    Bucket, Error, ErrorKind, Namespace, Result,
    clock::{Moment, Timestamp},
    generator::GeneratorExt,
    index,
    planted::{Planted, planted},
    stats::Counters,
    store::{Agreement, AnswerKind, Backend, Name, tidying},
};
use async_trait::async_trait;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
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
    /// One more than that of the turn before, whoever had it.
    fn number(&self) -> u64;

    async fn give_back(self: Box<Self>);
}

/// What bounds a run.
pub(super) struct Limits<'a> {
    pub(super) max_ops: u64,
    pub(super) until: Option<Moment>,
    /// Stops when somebody has asked for something since.
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
    pub(super) agreement: Agreement,
    pub(super) settings: SweepSettings,
    kinds: Vec<Arc<dyn Sweepable>>,
    pub(super) turn: Arc<dyn Turn>,
    pub(super) activity: Arc<Activity>,
    pub(super) counters: Arc<Counters>,
    pub(super) state: Mutex<State>,
    /// Somebody has been told: once is enough.
    said_that_deleting_is_denied: AtomicBool,
    pub(super) history: History,
}

impl Sweeper {
    pub(crate) fn new(
        backend: Arc<Backend>,
        agreement: Agreement,
        settings: SweepSettings,
        kinds: Vec<Arc<dyn Sweepable>>,
        turn: Arc<dyn Turn>,
        activity: Arc<Activity>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let pace = Pace::new(Arc::clone(&backend.clock), settings.op_delay);
        let state = Mutex::new(State { pass: None, pace, turn: None });
        let said_that_deleting_is_denied = AtomicBool::new(false);
        Arc::new(Self {
            backend,
            agreement,
            settings,
            kinds,
            turn,
            activity,
            counters,
            state,
            said_that_deleting_is_denied,
            history: History::default(),
        })
    }

    /// What it is doing, and how its last runs ended.
    pub(crate) fn state(&self) -> SweeperState {
        self.history.state(&*self.backend.clock)
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
        let mut report = Report::default();
        let span = tracing::info_span!("sweep", store = %self.backend.place, dry_run = limits.dry_run);
        let walk = self.walk(state, namespace, limits, &mut report).instrument(span);
        let walked = contained("a run of the sweeper", walk).await.unwrap_or_else(|panicked| {
            // Nobody knows how far it came.
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
            let seconds = |at: Timestamp| at.as_millis() as f64 / 1000.;
            let oldest = report.oldest_hour.as_ref().and_then(|hour| hour.parse::<Bucket>().ok());
            let ended_at = self.backend.clock.wall();
            self.counters.swept(&report, seconds(ended_at), oldest.map(|hour| seconds(hour.start())));
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
        self.backend.trust_clock(&self.agreement).await?;
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
        while !pass.stops.is_empty() {
            let at = pass.next % pass.stops.len();
            let stop = &mut pass.stops[at];
            if stop.names.is_empty() && stop.more {
                if let Some(stopped_by) = self.next_op(pace, limits, report).await {
                    return Ok(stopped_by);
                }
                report.lists += 1;
                if let Err(error) = stop.list(&self.backend, self.settings.page_size).await {
                    if let Some(earlier) = pass.failed.replace(error) {
                        report.fail(&earlier);
                    }
                    pass.leave(at);
                    continue;
                }
            }
            let mut judged = Judged::default();
            let walked = self.walk_page(stop, pace, limits, report, &mut judged).await;
            let stopped = matches!(walked, Walked::Stopped(_));
            if !(stopped && planted(Planted::JudgedDropped)) {
                self.delete(judged, limits.dry_run, report).await;
            }
            match walked {
                Walked::Stopped(stopped_by) => return Ok(stopped_by),
                Walked::AllOfIt if stop.more => pass.next = at + 1,
                // What is left is not over yet, or there is nothing left.
                Walked::AllOfIt | Walked::ToThePresent => pass.leave(at),
            }
        }
        let failed = pass.failed.take();
        state.pass = None;
        failed.map_or(Ok(StoppedBy::Complete), Err)
    }

    /// Finds out what there is to walk. In any order: a process that restarts after every run must not meet the same huge
    /// namespace before the same small one each time.
    async fn begin(&self, namespace: Option<&Namespace>, report: &mut Report) -> Result<Pass> {
        let folders = match namespace {
            Some(namespace) => vec![namespace.to_string()],
            None => {
                report.lists += 1;
                self.backend.folders("").await?
            }
        };
        let mut stops = Vec::new();
        for kind in &self.kinds {
            stops.extend(kind.shelves(&folders).into_iter().map(|shelf| Stop::new(Arc::clone(kind), shelf)));
        }
        for last in (1..stops.len()).rev() {
            stops.swap(last, u32::from_le_bytes(self.backend.generator.bytes()) as usize % (last + 1));
        }
        Ok(Pass { stops, next: 0, failed: None })
    }

    /// Looks at what has been listed of a shelf, some of it side by side if the limits allow that. Whatever stops it, what
    /// is under way is finished.
    async fn walk_page(
        &self,
        stop: &mut Stop,
        pace: &mut Pace,
        limits: &Limits<'_>,
        report: &mut Report,
        judged: &mut Judged,
    ) -> Walked {
        let mut under_way: FuturesUnordered<BoxFuture<'_, (Name, Result<Verdict>)>> = FuturesUnordered::new();
        let mut throttled = self.backend.requests().answered(AnswerKind::Throttled);
        let mut ended = None;
        loop {
            let settled = if ended.is_none() && under_way.len() < limits.side_by_side {
                let bucket = match self.next_entry(stop, limits, report) {
                    Ok(bucket) => bucket,
                    Err(walked) => {
                        ended = Some(walked);
                        continue;
                    }
                };
                tokio::select! {
                    biased;
                    stopped = self.next_op(pace, limits, report) => {
                        match stopped {
                            Some(stopped_by) => ended = Some(Walked::Stopped(stopped_by)),
                            None => under_way.extend(self.settle(stop, bucket, limits.dry_run, report)),
                        }
                        continue;
                    }
                    Some(settled) = under_way.next() => settled,
                }
            } else {
                match under_way.next().await {
                    Some(settled) => settled,
                    None => return ended.unwrap_or(Walked::AllOfIt),
                }
            };
            let (name, verdict) = settled;
            self.heed(&*stop.kind, name, verdict, report, judged);
            let now = self.backend.requests().answered(AnswerKind::Throttled);
            pace.heard(now > throttled);
            throttled = now;
            if let Some(tell) = limits.progress {
                tell(report);
            }
        }
    }

    /// The hour of the next entry of the page, unless the walk over it ends here.
    fn next_entry(&self, stop: &mut Stop, limits: &Limits<'_>, report: &mut Report) -> Result<Bucket, Walked> {
        while let Some(name) = stop.names.front() {
            if let Some(stopped_by) = self.must_stop(limits, report) {
                return Err(Walked::Stopped(stopped_by));
            }
            match index::parse_entry(&stop.shelf.folder, name) {
                Some((bucket, _)) if self.is_due(bucket) => return Ok(bucket),
                Some(_) => return Err(Walked::ToThePresent),
                None => {
                    tracing::warn!(%name, "a name in the index that is none of ours: skipped");
                    report.failures += 1;
                    stop.advance();
                }
            }
        }
        Err(Walked::AllOfIt)
    }

    /// Waits until the next entry may be looked at, or the next page be listed, unless the run ends before.
    async fn next_op(&self, pace: &Pace, limits: &Limits<'_>, report: &Report) -> Option<StoppedBy> {
        if let Some(stopped_by) = self.must_stop(limits, report) {
            return Some(stopped_by);
        }
        tokio::select! {
            biased;
            () = pace.next() => {}
            () = limits.stop.cancelled() => return Some(StoppedBy::Stop),
        }
        // Somebody may have come while we waited.
        self.must_stop(limits, report)
    }

    /// Begins to settle the first entry of the page.
    fn settle(
        &self,
        stop: &mut Stop,
        bucket: Bucket,
        dry_run: bool,
        report: &mut Report,
    ) -> Option<BoxFuture<'static, (Name, Result<Verdict>)>> {
        let name = stop.names.front()?.clone();
        stop.advance();
        let hour = bucket.to_string();
        if report.oldest_hour.as_ref().is_none_or(|oldest| hour < *oldest) {
            report.oldest_hour = Some(hour);
        }
        report.entries_seen += 1;
        let (kind, shelf) = (Arc::clone(&stop.kind), Arc::clone(&stop.shelf));
        Some(Box::pin(async move {
            let span = tracing::debug_span!("settle", kind = kind.kind(), %name);
            let settle = async {
                let (_, entry) = index::parse_entry(&shelf.folder, &name).unwrap_or((bucket, ""));
                kind.settle(&Entry { shelf: &shelf, bucket, name: entry }, dry_run).await
            };
            let verdict = contained("settling an entry", settle.instrument(span)).await;
            (name, verdict.unwrap_or_else(Err))
        }))
    }

    /// Notes what is to be done about an entry.
    fn heed(
        &self,
        kind: &dyn Sweepable,
        name: Name,
        verdict: Result<Verdict>,
        report: &mut Report,
        judged: &mut Judged,
    ) {
        match verdict {
            Ok(Verdict::Stale) => judged.entries.push(name),
            Ok(Verdict::Cleared) => {
                tracing::debug!(%name, kind = kind.kind(), "cleared");
                report.leases_cleared += 1;
                judged.entries.push(name);
            }
            Ok(Verdict::Over(object)) => judged.over.push((object, name)),
            Ok(Verdict::Kept) => report.entries_kept += 1,
            Err(error) => {
                tracing::warn!(%name, kind = kind.kind(), %error, "could not be settled: left alone");
                report.entries_kept += 1;
                report.fail(&error);
            }
        }
    }

    /// Deletes what was judged: what entries stand for first, and an entry only after that was confirmed.
    async fn delete(&self, judged: Judged, dry_run: bool, report: &mut Report) {
        let Judged { mut entries, over } = judged;
        if dry_run {
            report.markers_deleted += over.len() as u64;
            report.entries_deleted += (entries.len() + over.len()) as u64;
            return;
        }
        if !over.is_empty() {
            let objects: Vec<Name> = over.iter().map(|(object, _)| object.clone()).collect();
            let deleted = self.backend.delete(&objects).await;
            report.markers_deleted += deleted.gone.len() as u64;
            self.note(deleted.error, report);
            let confirmed = over
                .into_iter()
                .filter(|(object, _)| deleted.gone.contains(object) || planted(Planted::EntryBeforeMarker));
            entries.extend(confirmed.map(|(_, entry)| entry));
        }
        if !entries.is_empty() {
            let deleted = self.backend.delete(&entries).await;
            report.entries_deleted += deleted.gone.len() as u64;
            self.note(deleted.error, report);
        }
    }

    fn note(&self, error: Option<Error>, report: &mut Report) {
        if let Some(error) = error {
            if error.kind() != ErrorKind::Denied {
                tracing::warn!(%error, "not everything could be deleted: the next pass will try again");
            } else if !self.said_that_deleting_is_denied.swap(true, Relaxed) {
                tracing::warn!(%error, "the sweeper may not delete, so index entries stay; leases are right without it");
            }
            report.fail(&error);
        }
    }

    /// Over for long enough, by this machine's clock and by the store's.
    fn is_due(&self, bucket: Bucket) -> bool {
        let due = match planted(Planted::CurrentHourSwept) {
            true => bucket.start(),
            false => due(bucket, self.settings.hour_grace),
        };
        self.backend.clocks().have_reached(due)
    }

    fn must_stop(&self, limits: &Limits<'_>, report: &Report) -> Option<StoppedBy> {
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
pub(crate) fn due(bucket: Bucket, hour_grace: Duration) -> Timestamp {
    bucket.end().plus(hour_grace)
}
