//! One run: from the oldest hour on, a page at a time, until there is nothing left or something says stop.

use super::{
    Activity, Entry, Report, Run, Shelf, StoppedBy, SweepSettings, Sweepable, SweeperState, Verdict, history::History,
    pace::Pace,
};
use crate::{
    Bucket, Error, ErrorKind, Namespace, Result,
    clock::{Moment, Timestamp},
    generator::GeneratorExt,
    index,
    planted::{Planted, planted},
    stats::Counters,
    store::{Agreement, AnswerKind, Backend, Name},
};
use async_trait::async_trait;
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

/// One sweeper at a time in a cluster, for whoever wants that: taken for one run. It saves requests and is never needed
/// for safety.
#[async_trait]
pub(crate) trait Turn: fmt::Debug + Send + Sync {
    /// `None` if another process has it.
    async fn take(&self, longest: Duration) -> Result<Option<Box<dyn TurnTaken>>>;
}

/// The turn, until it is given back.
#[async_trait]
pub(crate) trait TurnTaken: Send + Sync {
    async fn give_back(self: Box<Self>);
}

/// How a single pass is made by hand.
#[derive(Default)]
#[must_use]
pub struct SweepOptions {
    pub(super) dry_run: bool,
    pub(super) namespace: Option<Namespace>,
    pub(super) op_delay: Option<Duration>,
    pub(super) max_ops: Option<u32>,
    pub(super) heed_activity: bool,
    pub(super) progress: Option<Progress>,
}

type Progress = Box<dyn Fn(&Report) + Send + Sync>;

impl SweepOptions {
    /// One whole pass over everything, at the pace of the settings, whether or not anybody is active.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only says what would be done.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Only the leases of one namespace.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Another pace than the settings'.
    pub fn op_delay(mut self, delay: Duration) -> Self {
        self.op_delay = Some(delay);
        self
    }

    /// Looks at so many entries at the most.
    pub fn max_ops(mut self, entries: u32) -> Self {
        self.max_ops = Some(entries);
        self
    }

    /// Stops when somebody asks for something.
    pub fn heed_activity(mut self) -> Self {
        self.heed_activity = true;
        self
    }

    /// Is told after every entry what has been done so far.
    pub fn progress(mut self, tell: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }
}

impl fmt::Debug for SweepOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepOptions")
            .field("dry_run", &self.dry_run)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// What bounds a run.
pub(super) struct Limits<'a> {
    pub(super) max_ops: u64,
    pub(super) until: Option<Moment>,
    /// Stops when somebody has asked for something since.
    pub(super) idle_since: Option<Moment>,
    pub(super) dry_run: bool,
    pub(super) by_hand: bool,
    pub(super) stop: &'a CancellationToken,
    pub(super) progress: Option<&'a Progress>,
}

/// One walk over all shelves. It lives across runs, so that entries that were left behind are met again by the next pass
/// and do not stall this one.
#[derive(Debug)]
pub(super) struct Pass {
    stops: Vec<Stop>,
    /// Whose turn it is: one page each, so that none starves.
    next: usize,
    /// Why a shelf was left out of it: one that cannot be listed must not keep the others waiting.
    failed: Option<Error>,
}

#[derive(Debug)]
struct Stop {
    kind: Arc<dyn Sweepable>,
    shelf: Shelf,
    cursor: Option<Name>,
}

/// What one page has come to, to be deleted in one or two requests.
#[derive(Debug, Default)]
struct Judged {
    entries: Vec<Name>,
    /// Objects that go first, each with its entry.
    over: Vec<(Name, Name)>,
}

/// Held while a run is under way: one at a time in a process.
#[derive(Debug)]
pub(super) struct State {
    pub(super) pass: Option<Pass>,
    pub(super) pace: Pace,
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
    counters: Arc<Counters>,
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
        let state = Mutex::new(State { pass: None, pace });
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
        let mut state = State { pass: None, pace: Pace::new(Arc::clone(&self.backend.clock), delay) };
        let limits = Limits {
            max_ops: options.max_ops.map_or(u64::MAX, u64::from),
            until: None,
            idle_since: options.heed_activity.then(|| self.activity.last()),
            dry_run: options.dry_run,
            by_hand: true,
            stop: &CancellationToken::new(),
            progress: options.progress.as_ref(),
        };
        let (report, error) = self.run(&mut state, options.namespace.as_ref(), &limits).await;
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
        let before = self.backend.requests();
        let mut report = Report::default();
        let span = tracing::info_span!("sweep", store = %self.backend.place, dry_run = limits.dry_run);
        let walked = self.walk(state, namespace, limits, &mut report).instrument(span).await;
        let (stopped_by, error) = match walked {
            Ok(stopped_by) => (stopped_by, None),
            Err(error) => {
                report.fail(&error);
                (StoppedBy::Error, Some(error))
            }
        };
        report.stopped_by = Some(stopped_by);
        report.requests = self.backend.requests().since(&before).total();
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
        let State { pass, pace } = state;
        let pass = match pass {
            Some(pass) => pass,
            None => pass.insert(self.begin(namespace).await?),
        };
        while !pass.stops.is_empty() {
            if let Some(stopped_by) = self.must_stop(limits, report) {
                return Ok(stopped_by);
            }
            let at = pass.next % pass.stops.len();
            let stop = &mut pass.stops[at];
            let left = usize::try_from(limits.max_ops - report.entries_seen).unwrap_or(usize::MAX);
            let page = self.backend.page(&stop.shelf.folder, stop.cursor.as_ref(), self.settings.page_size.min(left));
            let page = match page.await {
                Ok(page) => page,
                Err(error) => {
                    if let Some(earlier) = pass.failed.replace(error) {
                        report.fail(&earlier);
                    }
                    pass.stops.remove(at);
                    pass.next = at;
                    continue;
                }
            };
            let mut judged = Judged::default();
            let walked = self.walk_page(stop, &page.names, pace, limits, report, &mut judged).await;
            let stopped = matches!(walked, Walked::Stopped(_));
            if !(stopped && planted(Planted::JudgedDropped)) {
                self.delete(judged, limits.dry_run, report).await;
            }
            match walked {
                Walked::Stopped(stopped_by) => return Ok(stopped_by),
                Walked::AllOfIt if page.more => pass.next = at + 1,
                // What is left is not over yet, or there is nothing left.
                Walked::AllOfIt | Walked::ToThePresent => {
                    pass.stops.remove(at);
                    pass.next = at;
                }
            }
        }
        let failed = pass.failed.take();
        state.pass = None;
        failed.map_or(Ok(StoppedBy::Complete), Err)
    }

    /// Finds out what there is to walk. In any order: a process that restarts after every run must not meet the same huge
    /// namespace before the same small one each time.
    async fn begin(&self, namespace: Option<&Namespace>) -> Result<Pass> {
        let mut stops = Vec::new();
        for kind in &self.kinds {
            let shelves = kind.shelves().await?;
            let wanted =
                shelves.into_iter().filter(|shelf| namespace.is_none_or(|wanted| wanted.as_str() == shelf.label));
            stops.extend(wanted.map(|shelf| Stop { kind: Arc::clone(kind), shelf, cursor: None }));
        }
        for last in (1..stops.len()).rev() {
            stops.swap(last, u32::from_le_bytes(self.backend.generator.bytes()) as usize % (last + 1));
        }
        Ok(Pass { stops, next: 0, failed: None })
    }

    async fn walk_page(
        &self,
        stop: &mut Stop,
        names: &[Name],
        pace: &mut Pace,
        limits: &Limits<'_>,
        report: &mut Report,
        judged: &mut Judged,
    ) -> Walked {
        for name in names {
            if let Some(stopped_by) = self.must_stop(limits, report) {
                return Walked::Stopped(stopped_by);
            }
            let Some((bucket, entry)) = index::parse_entry(&stop.shelf.folder, name) else {
                tracing::warn!(%name, "a name in the index that is none of ours: skipped");
                report.failures += 1;
                stop.cursor = Some(name.clone());
                continue;
            };
            if !self.is_due(bucket) {
                return Walked::ToThePresent;
            }
            tokio::select! {
                biased;
                () = pace.next() => {}
                () = limits.stop.cancelled() => return Walked::Stopped(StoppedBy::Stop),
            }
            // Somebody may have come while we waited.
            if let Some(stopped_by) = self.must_stop(limits, report) {
                return Walked::Stopped(stopped_by);
            }
            let hour = bucket.to_string();
            if report.oldest_hour.as_ref().is_none_or(|oldest| hour < *oldest) {
                report.oldest_hour = Some(hour);
            }
            report.entries_seen += 1;
            let throttled = self.backend.requests().answered(AnswerKind::Throttled);
            let entry = Entry { shelf: &stop.shelf, bucket, name: entry };
            self.judge(&*stop.kind, &entry, name, limits.dry_run, report, judged).await;
            pace.heard(self.backend.requests().answered(AnswerKind::Throttled) > throttled);
            stop.cursor = Some(name.clone());
            if let Some(tell) = limits.progress {
                tell(report);
            }
        }
        Walked::AllOfIt
    }

    async fn judge(
        &self,
        kind: &dyn Sweepable,
        entry: &Entry<'_>,
        name: &Name,
        dry_run: bool,
        report: &mut Report,
        judged: &mut Judged,
    ) {
        let span = tracing::debug_span!("settle", kind = kind.kind(), %name);
        match kind.settle(entry, dry_run).instrument(span).await {
            Ok(Verdict::Stale) => judged.entries.push(name.clone()),
            Ok(Verdict::Cleared) => {
                tracing::debug!(%name, kind = kind.kind(), "cleared");
                report.leases_cleared += 1;
                judged.entries.push(name.clone());
            }
            Ok(Verdict::Over(object)) => judged.over.push((object, name.clone())),
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
        if report.entries_seen >= limits.max_ops {
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

enum Walked {
    AllOfIt,
    ToThePresent,
    Stopped(StoppedBy),
}
