//! What follows from a commit that has landed: callers are told, and finished segments are deleted.

use super::{Desk, Given, Granted, Pending, Shard, Waits, begin, plan::Sent, publish};
use crate::{
    Error,
    job::{
        apply::{Op, Outcome},
        duty::InHand,
        layout::{Place, SegmentName},
        ledger::Millis,
        session::Session,
    },
    storage::Name,
};
use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, PoisonError},
};

/// Names that one bulk delete may have.
const BULK: usize = 1000;

/// What is to be deleted, each with what its confirmation has to say.
#[derive(Debug, Default)]
pub(in crate::job) struct Deletes {
    names: Vec<(SegmentName, Option<Millis>)>,
    running: bool,
}

impl Desk {
    /// Another session, or none: what was claimed under the last one is not in hand any more.
    pub(super) fn use_session(&mut self, session: Option<Arc<Session>>) {
        self.session = session;
        self.has_row = false;
        self.hand.clear();
    }
}

impl Shard {
    /// A commit is in the store.
    pub(super) fn landed(
        self: &Arc<Self>,
        desk: &mut Desk,
        pending: Vec<Pending>,
        spans: &[Range<usize>],
        sent: &Sent,
        session: Option<&Arc<Session>>,
    ) {
        sent.done.count(&self.queue.shared.counters);
        sent.recovered.iter().for_each(|recovery| recovery.tell(&self.queue.name, self.number));
        let Some(known) = self.known() else { return };
        let ledger = known.seen.record();
        if sent.with_session
            && let Some(session) = session
        {
            // The row of a session that has nothing in hand may go at any time.
            desk.has_row = ledger.claims.iter().any(|claim| claim.session == session.id);
            if !sent.closing {
                self.queue.shared.sessions.note_row(self);
            }
            let claims = sent.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Claimed { .. }));
            if claims && ledger.is_owned_by_another(Some(session.id), ledger.now) {
                desk.guest_win = Some((ledger.revision, self.queue.backend().clock.monotonic()));
            }
        }
        if sent.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Recovered(_))) {
            self.queue.news.notify_waiters();
        }
        self.tell(desk, pending, spans, &sent.outcomes, session);
        if !desk.hand.is_empty() {
            let live: HashSet<_> = ledger.claims.iter().map(|claim| claim.id).collect();
            desk.hand.retain(|claim, _| live.contains(claim));
        }
        // While it is known by which ids those jobs were enqueued.
        publish::publish(self, ledger);
        self.queue.shared.segments.forget(sent.finished.iter().map(|name| name.id));
        let mut deletes: Vec<(SegmentName, Option<Millis>)> = Vec::new();
        for name in &sent.finished {
            deletes.extend(ledger.unconfirmed_since(name.id).map(|since| (*name, Some(since))));
        }
        for outcome in &sent.outcomes {
            match outcome {
                Outcome::Delete(names) => {
                    for name in names {
                        deletes.extend(ledger.unconfirmed_since(name.id).map(|since| (*name, Some(since))));
                    }
                }
                Outcome::Orphans(orphans) => deletes.extend(orphans.iter().map(|id| (seg(*id), None))),
                _ => {}
            }
        }
        deletes.extend(sent.unnamed.iter().map(|id| (seg(*id), None)));
        self.delete(deletes);
        self.write_plans(&known);
    }

    /// Tells everybody what has become of what they asked for.
    pub(super) fn tell(
        self: &Arc<Self>,
        desk: &mut Desk,
        pending: Vec<Pending>,
        spans: &[Range<usize>],
        outcomes: &[Outcome],
        session: Option<&Arc<Session>>,
    ) {
        let wakes_at = self.wakes_at();
        let mut left = Vec::new();
        for (pending, span) in pending.into_iter().zip(spans) {
            let outcomes = outcomes.get(span.clone()).unwrap_or_default();
            match pending.waits {
                Waits::Begin { .. } => left.extend(begin::tell(self, desk, pending, outcomes, session)),
                Waits::Claim { reply, .. } => match (outcomes.first(), session) {
                    (Some(Outcome::Claimed { claim, fence, jobs }), Some(session)) => {
                        // It looks again after the commit: what it no longer believes in is not started.
                        if !session.is_valid() {
                            let error = Error::unavailable("the session ended while jobs were claimed: claim again");
                            drop(reply.send(Err(error)));
                            continue;
                        }
                        desk.hand.insert(*claim, InHand::new(&self.queue));
                        let session = Arc::clone(session);
                        let granted = {
                            let (jobs, shard) = (jobs.clone(), Arc::clone(self));
                            Granted { claim: *claim, fence: *fence, jobs, session, shard }
                        };
                        if reply.send(Ok(Given::Jobs(granted))).is_err() {
                            // Its caller has gone: the next commit gives it back.
                            desk.hand.remove(claim);
                            self.nudge();
                        }
                    }
                    _ => drop(reply.send(Ok(Given::Nothing { wakes_at }))),
                },
                Waits::Answers(_) | Waits::Asked(_) | Waits::Nobody | Waits::Duty => {
                    if let Some(again) = pending.hear(outcomes) {
                        desk.full = true;
                        left.push(again);
                    }
                }
            }
        }
        if !left.is_empty() {
            self.put_back(left);
        }
    }

    /// Deletes what nobody may write any more: one bulk request at a time, and what comes meanwhile is the next.
    pub(super) fn delete(self: &Arc<Self>, names: Vec<(SegmentName, Option<Millis>)>) {
        if names.is_empty() {
            return;
        }
        let mut deleting = self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
        deleting.names.extend(names);
        if std::mem::replace(&mut deleting.running, true) {
            return;
        }
        let shard = Arc::clone(self);
        let shared = &self.queue.shared;
        shared.tasks.spawn_on(async move { shard.run_deletes().await }, &shared.runtime);
    }

    async fn run_deletes(self: Arc<Self>) {
        loop {
            let bulk: Vec<(SegmentName, Option<Millis>)> = {
                let mut deleting = self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
                let count = deleting.names.len().min(BULK);
                if count == 0 {
                    deleting.running = false;
                    return;
                }
                deleting.names.drain(..count).collect()
            };
            let layout = &self.queue.layout;
            let paths: Vec<Name> = bulk.iter().filter_map(|(name, _)| layout.segment(name)).map(Name::new).collect();
            let deleted = self.queue.backend().delete(&paths).await;
            if let Some(error) = deleted.error {
                tracing::warn!(%error, "finished segments could not be deleted: they are tried again in a minute");
            }
            self.queue.shared.counters.deleted(u64::try_from(deleted.gone.len()).unwrap_or(0));
            let confirmed = bulk.iter().filter_map(|(name, since)| {
                let path = Name::new(layout.segment(name)?);
                let since = (*since)?;
                deleted.gone.contains(&path).then_some(Op::Confirm { segment: name.id, since })
            });
            self.ride(confirmed.collect::<Vec<_>>());
        }
    }
}

fn seg(id: crate::job::id::SegmentId) -> SegmentName {
    SegmentName { id, place: Place::Seg, jobs: 0 }
}
