//! What a run does at one place of its pass: a page of a folder of the index, or one step of a chore.

use super::{
    Report, StoppedBy,
    contain::contained,
    pace::Pace,
    pass::{Judged, Route, Stop, Walked, Work},
    run::{Limits, Sweeper},
};
use crate::{
    Error, ErrorKind, Hour, Result, index,
    kind::{Chore, Context, Entry, Kind, Step, Verdict},
    storage::{AnswerKind, Name},
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tracing::Instrument;

/// How a visit at one stop of a pass ended.
pub(super) enum Came {
    /// There is more to do here, after the others have had their turn.
    Back,
    /// Nothing is left to do here in this pass.
    ToItsEnd,
    /// The run ends.
    Stopped(StoppedBy),
}

impl Sweeper {
    /// One page of a folder: listed if need be, looked at, and what was judged deleted.
    pub(super) async fn walk_folder(
        &self,
        stop: &mut Stop,
        pace: &mut Pace,
        limits: &Limits<'_>,
        cx: &Arc<Context>,
        report: &mut Report,
    ) -> Result<Came> {
        let kind = stop.name();
        let Work::Folder(route) = &mut stop.work else { return Ok(Came::ToItsEnd) };
        if route.names.is_empty() && route.more {
            if let Some(stopped_by) = self.next_op(pace, limits, report).await {
                return Ok(Came::Stopped(stopped_by));
            }
            report.lists += 1;
            route.list(&self.backend, self.settings.page_size).await?;
        }
        let mut judged = Judged::default();
        let walked = self.walk_page(&stop.kind, route, pace, limits, cx, report, &mut judged).await;
        self.delete(kind, judged, limits.dry_run, report).await;
        Ok(match walked {
            Walked::Stopped(stopped_by) => Came::Stopped(stopped_by),
            Walked::AllOfIt if route.more => Came::Back,
            // What is left is not over yet, or there is nothing left.
            Walked::AllOfIt | Walked::ToThePresent => Came::ToItsEnd,
        })
    }

    /// One step of a chore. One that fails is left to the next pass, and does not delay the others.
    pub(super) async fn walk_chore(
        &self,
        kind: &Arc<dyn Kind>,
        chore: &Chore,
        pace: &mut Pace,
        limits: &Limits<'_>,
        cx: &Context,
        report: &mut Report,
    ) -> Result<Came> {
        if let Some(stopped_by) = self.next_op(pace, limits, report).await {
            return Ok(Came::Stopped(stopped_by));
        }
        report.chores += 1;
        let throttled = self.backend.requests().answered(AnswerKind::Throttled);
        let name = kind.declaration().name;
        let span = tracing::debug_span!("chore", kind = name, chore = chore.name);
        let step = contained("a chore", kind.step(chore, cx).instrument(span)).await.unwrap_or_else(Err);
        pace.heard(self.backend.requests().answered(AnswerKind::Throttled) > throttled);
        if let Some(tell) = limits.progress {
            tell(report);
        }
        match step {
            Ok(Step::More) => Ok(Came::Back),
            Ok(Step::Done) => Ok(Came::ToItsEnd),
            Err(error) => {
                tracing::warn!(kind = name, chore = chore.name, %error, "could not be done: left to the next pass");
                report.fail_of(name, &error);
                Ok(Came::ToItsEnd)
            }
        }
    }

    /// Looks at what has been listed of a folder, some of it side by side if the limits allow that. Whatever stops it, what
    /// is under way is finished.
    #[allow(clippy::too_many_arguments, reason = "what a run is about, one by one")]
    async fn walk_page(
        &self,
        kind: &Arc<dyn Kind>,
        route: &mut Route,
        pace: &mut Pace,
        limits: &Limits<'_>,
        cx: &Arc<Context>,
        report: &mut Report,
        judged: &mut Judged,
    ) -> Walked {
        let mut under_way: FuturesUnordered<BoxFuture<'_, (Name, Result<Verdict>)>> = FuturesUnordered::new();
        let mut throttled = self.backend.requests().answered(AnswerKind::Throttled);
        let mut ended = None;
        loop {
            let settled = if ended.is_none() && under_way.len() < limits.side_by_side {
                let hour = match self.next_entry(kind.declaration().name, route, limits, report) {
                    Ok(hour) => hour,
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
                            None => under_way.extend(self.settle(kind, route, hour, cx, report)),
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
            self.heed(kind.declaration().name, name, verdict, report, judged);
            let now = self.backend.requests().answered(AnswerKind::Throttled);
            pace.heard(now > throttled);
            throttled = now;
            if let Some(tell) = limits.progress {
                tell(report);
            }
        }
    }

    /// The hour of the next entry of the page, unless the walk over it ends here.
    fn next_entry(
        &self,
        kind: &'static str,
        route: &mut Route,
        limits: &Limits<'_>,
        report: &mut Report,
    ) -> Result<Hour, Walked> {
        while let Some(name) = route.names.front() {
            if let Some(stopped_by) = self.must_stop(limits, report) {
                return Err(Walked::Stopped(stopped_by));
            }
            match index::parse_entry(&route.folder.path, name) {
                Some((hour, _)) if self.is_due(hour) => return Ok(hour),
                Some(_) => return Err(Walked::ToThePresent),
                None => {
                    tracing::warn!(%name, "a name in the index that is none of ours: skipped");
                    report.failures += 1;
                    report.kind(kind).failures += 1;
                    route.advance();
                }
            }
        }
        Err(Walked::AllOfIt)
    }

    /// Begins to settle the first entry of the page.
    fn settle(
        &self,
        kind: &Arc<dyn Kind>,
        route: &mut Route,
        hour: Hour,
        cx: &Arc<Context>,
        report: &mut Report,
    ) -> Option<BoxFuture<'static, (Name, Result<Verdict>)>> {
        let name = route.names.front()?.clone();
        route.advance();
        let text = hour.to_string();
        if report.oldest_hour.as_ref().is_none_or(|oldest| text < *oldest) {
            report.oldest_hour = Some(text);
        }
        report.entries_seen += 1;
        report.kind(kind.declaration().name).entries_seen += 1;
        let (kind, folder, cx) = (Arc::clone(kind), Arc::clone(&route.folder), Arc::clone(cx));
        Some(Box::pin(async move {
            let span = tracing::debug_span!("settle", kind = kind.declaration().name, %name);
            let settle = async {
                let (_, entry) = index::parse_entry(&folder.path, &name).unwrap_or((hour, ""));
                kind.settle(&Entry { folder: &folder, hour, name: entry }, &cx).await
            };
            let verdict = contained("settling an entry", settle.instrument(span)).await;
            (name, verdict.unwrap_or_else(Err))
        }))
    }

    /// Notes what is to be done about an entry.
    fn heed(&self, kind: &'static str, name: Name, verdict: Result<Verdict>, report: &mut Report, judged: &mut Judged) {
        match verdict {
            Ok(Verdict::Stale) => judged.entries.push(name),
            Ok(Verdict::Cleared) => {
                tracing::debug!(%name, kind, "cleared");
                report.kind(kind).cleared += 1;
                judged.entries.push(name);
            }
            Ok(Verdict::Moved) => {
                tracing::debug!(%name, kind, "moved to a later hour");
                report.kind(kind).moved += 1;
                judged.entries.push(name);
            }
            Ok(Verdict::DeleteFirst(objects)) if objects.is_empty() => judged.entries.push(name),
            Ok(Verdict::DeleteFirst(objects)) => judged.first.push((objects, name)),
            Ok(Verdict::Kept) => {
                report.entries_kept += 1;
                report.kind(kind).entries_kept += 1;
            }
            Err(error) => {
                tracing::warn!(%name, kind, %error, "could not be settled: left alone");
                report.entries_kept += 1;
                report.kind(kind).entries_kept += 1;
                report.fail_of(kind, &error);
            }
        }
    }

    /// Deletes what was judged: what entries stand for first, and an entry only after that was confirmed.
    async fn delete(&self, kind: &'static str, judged: Judged, dry_run: bool, report: &mut Report) {
        let Judged { mut entries, first } = judged;
        let objects: Vec<Name> = first.iter().flat_map(|(objects, _)| objects).cloned().collect();
        if dry_run {
            let gone = (entries.len() + first.len()) as u64;
            report.kind(kind).deleted += objects.len() as u64;
            report.kind(kind).entries_deleted += gone;
            report.entries_deleted += gone;
            return;
        }
        if !objects.is_empty() {
            let deleted = self.backend.delete(&objects).await;
            report.kind(kind).deleted += deleted.gone.len() as u64;
            self.note(kind, deleted.error, report);
            let confirmed =
                first.into_iter().filter(|(objects, _)| objects.iter().all(|object| deleted.gone.contains(object)));
            entries.extend(confirmed.map(|(_, entry)| entry));
        }
        if !entries.is_empty() {
            let deleted = self.backend.delete(&entries).await;
            report.kind(kind).entries_deleted += deleted.gone.len() as u64;
            report.entries_deleted += deleted.gone.len() as u64;
            self.note(kind, deleted.error, report);
        }
    }

    fn note(&self, kind: &'static str, error: Option<Error>, report: &mut Report) {
        if let Some(error) = error {
            if error.kind() != ErrorKind::Denied {
                tracing::warn!(%error, "not everything could be deleted: the next pass will try again");
            } else if !self.said_that_deleting_is_denied.swap(true, Relaxed) {
                tracing::warn!(%error, "the sweeper may not delete, so index entries stay; nothing depends on it");
            }
            report.fail_of(kind, &error);
        }
    }
}
