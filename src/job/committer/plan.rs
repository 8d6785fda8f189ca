//! One commit: planned on what is there, written, and recognised if its answer was lost.

use super::{Desk, Pending, Shard, Waits};
use crate::{
    Error, ErrorKind, Result,
    job::{
        apply::{Attempt, Caps, Context, Op, Outcome, Refused, Verdict, apply, verdict},
        core::Known,
        id::SegmentId,
        inbox::Age,
        layout::SegmentName,
        ledger::Ledger,
        session::Session,
        slot::LedgerSlot,
    },
    record::{Change, Changed, Patience, Plan},
    storage::cas::{Seen, Stamp},
};
use std::{ops::Range, sync::Arc};

/// What a commit is made of.
pub(super) struct Prepared {
    pub(super) seen: Arc<Seen<Ledger>>,
    pub(super) settings: Arc<Known>,
    pub(super) session: Option<Arc<Session>>,
    /// Beside what was asked for.
    pub(super) extra: Vec<Op>,
    /// What rests on a listing, and its age.
    pub(super) tail: Vec<Op>,
    pub(super) age: Option<Age>,
    /// How many jobs are taken in.
    pub(super) absorbing: u64,
}

/// What an attempt means if it has landed.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) finished: Vec<SegmentName>,
    pub(super) unnamed: Vec<SegmentId>,
    /// It was made under the session.
    pub(super) with_session: bool,
    pub(super) closing: bool,
}

/// Why nothing is written.
enum Stop {
    /// There is nothing to write, and this is what there is to say.
    Unchanged(Vec<Outcome>),
    Refused(Refused),
    /// Whether what was sent has landed cannot be found out any more.
    Unknowable,
}

struct Planner<'a> {
    shard: &'a Shard,
    settings: &'a Known,
    session: Option<&'a Session>,
    had_row: bool,
    ops: Vec<Op>,
    /// What comes after these rests on a listing.
    firm: usize,
    age: Option<Age>,
    attempts: Vec<Attempt>,
    /// One of the attempts was made without the session's ticket, because the session was over by then.
    unsigned: bool,
    has_answers: bool,
}

impl Planner<'_> {
    fn plan(&mut self, seen: Option<&Seen<Ledger>>, stamp: Stamp) -> Result<(Arc<Sent>, Plan<Ledger, Stop>)> {
        let ledger = seen.map(Seen::record).ok_or_else(|| self.shard.missing())?;
        let stop = |stop| Ok((Arc::default(), Plan::Stop(stop)));
        if self.attempts.first().is_some_and(|first| first.base != ledger.revision) {
            // Somebody else's commit is there instead. Is ours below it?
            let valid = self.session.is_some_and(Session::is_valid);
            // What was sent without the session's ticket is not in its row, even if that is there.
            let session = self.session.map(|session| session.id).filter(|_| !self.unsigned);
            match verdict(ledger, session, &self.attempts, self.had_row, valid) {
                Verdict::Unknowable if self.has_answers || self.session.is_some() => return stop(Stop::Unknowable),
                // What is asked for without a session means the same however often it is done.
                _ => {
                    self.attempts.clear();
                    self.unsigned = false;
                }
            }
        }
        let backend = self.shard.queue.backend();
        let usable = self.age.is_none_or(|age| age.is_usable(backend));
        let ops = if usable { &self.ops[..] } else { &self.ops[..self.firm] };
        let ticket = self.session.filter(|session| session.is_valid()).map(|session| session.ticket(self.had_row));
        let with_session = ticket.is_some();
        let context = Context {
            now: crate::clock::Timestamp::from_millis(self.shard.now()),
            write_id: stamp.write_id,
            session: ticket,
            settings: self.settings.revision(),
            policy: Arc::clone(&self.settings.policy),
            epoch: self.shard.queue.shared.epoch,
            caps: Caps::default(),
        };
        let applied = match apply(ledger, ops, &context) {
            Ok(applied) => applied,
            Err(refused) => return stop(Stop::Refused(refused)),
        };
        if !applied.changed {
            return stop(Stop::Unchanged(applied.outcomes));
        }
        self.attempts.push(Attempt { write_id: stamp.write_id, base: ledger.revision });
        self.unsigned |= !with_session;
        let closing = ops.iter().any(|op| matches!(op, Op::Close));
        let (outcomes, finished, unnamed) = (applied.outcomes, applied.finished, applied.unnamed);
        let sent = Sent { outcomes, finished, unnamed, with_session, closing };
        Ok((Arc::new(sent), Plan::Write(applied.ledger)))
    }
}

impl Shard {
    /// Writes until it is in, or there is nothing to write. On an error, nothing of what is handed back has landed.
    pub(super) async fn commit(
        self: &Arc<Self>,
        desk: &mut Desk,
        mut pending: Vec<Pending>,
        prepared: Prepared,
    ) -> Result<(), (Error, Vec<Pending>)> {
        let Prepared { seen, settings, session, extra, tail, age, .. } = prepared;
        let (mut ops, mut spans): (Vec<Op>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for pending in &pending {
            let from = ops.len();
            ops.extend(pending.ops.iter().cloned());
            spans.push(from..ops.len());
        }
        ops.extend(extra);
        if let Some(session) = &session {
            // Nothing of ours is on its way: a claim that is there and that nobody has in hand is given back.
            ops.extend(seen.record().to_give_back(session.id, |claim, _| desk.hand.contains_key(&claim)));
        }
        let firm = ops.len();
        ops.extend(tail);
        let has_answers = ops.iter().any(|op| matches!(op, Op::Answer(_) | Op::Spill(_)));
        let mut planner = Planner {
            shard: self,
            settings: &settings,
            session: session.as_deref(),
            had_row: desk.has_row,
            ops,
            firm,
            age,
            attempts: Vec::new(),
            unsigned: false,
            has_answers,
        };
        let backend = self.queue.backend();
        let began = Age::now(backend);
        desk.committed = Some(backend.clock.monotonic());
        let patience = Patience { within: 3 * backend.request_timeout, conflicts: 32 };
        let slot = self.queue.ledger_slot(self.number);
        let mut change: Change<LedgerSlot, Arc<Sent>> = Change::new(backend, slot, Some(seen), patience);
        let mut retries = 1;
        let done = loop {
            match change.run(|seen, stamp| planner.plan(seen, stamp)).await {
                Ok(done) => break done,
                // It may have landed: nothing else is written until that is known.
                Err(error) if change.is_in_doubt() && error.kind() != ErrorKind::Regressed => {
                    tracing::warn!(%error, queue = %self.queue.name, shard = self.number, "a commit is in doubt");
                    pending.iter_mut().for_each(|pending| pending.sent = true);
                    backend.pause(retries).await;
                    retries += 1;
                }
                Err(error) => {
                    self.forget();
                    let doubtful = change.is_in_doubt();
                    return Err((error, if doubtful { unknown(pending) } else { pending }));
                }
            }
        };
        match done {
            Changed::Won(seen, sent) => {
                self.learn(Arc::new(seen), began);
                self.landed(desk, pending, &spans, &sent, session.as_ref());
                Ok(())
            }
            Changed::Stopped(Stop::Unchanged(outcomes)) => {
                self.tell(desk, pending, &spans, &outcomes, session.as_ref());
                Ok(())
            }
            Changed::Stopped(Stop::Refused(refused)) => self.refused(desk, pending, refused).await,
            Changed::Stopped(Stop::Unknowable) => {
                self.forget();
                self.give_up_session(desk);
                self.put_back(unknown(pending));
                Ok(())
            }
        }
    }

    async fn refused(
        self: &Arc<Self>,
        desk: &mut Desk,
        pending: Vec<Pending>,
        refused: Refused,
    ) -> Result<(), (Error, Vec<Pending>)> {
        match refused {
            Refused::OlderSettings { ledgers, .. } => match self.queue.settings_now().await {
                Ok(known) if known.revision() >= ledgers => {}
                Ok(_) => {
                    let name = self.queue.layout.settings();
                    let text = format!("{name} is older than a ledger: it was restored from a backup; set it again");
                    return Err((Error::new(ErrorKind::Regressed, text), pending));
                }
                Err(error) => return Err((error, pending)),
            },
            Refused::SessionEnded => self.give_up_session(desk),
            Refused::SessionsFull => {
                desk.use_session(None);
                let text = "too many processes have jobs of this shard in hand: try again later";
                return Err((Error::unavailable(text), pending));
            }
        }
        self.put_back(pending);
        Ok(())
    }

    /// Somebody has found the session over, or nobody can tell: it is never used again.
    fn give_up_session(&self, desk: &mut Desk) {
        if let Some(session) = &desk.session {
            self.queue.shared.sessions.lose(session);
        }
        desk.use_session(None);
    }

    /// The same operations go into the next commit.
    pub(super) fn put_back(&self, pending: Vec<Pending>) {
        self.line().pending.splice(0..0, pending);
    }
}

/// Answers for attempts that may have landed are unknown, and never stale; the rest may be done again.
fn unknown(pending: Vec<Pending>) -> Vec<Pending> {
    let mut rest = Vec::new();
    for mut pending in pending {
        let answers = matches!(pending.waits, Waits::Answers(_));
        pending.ops.retain(|op| !answers && op.may_be_sent_again_in_doubt());
        if answers {
            let text = "the answer for a job may have been written, and its session is over: look at the job";
            pending.fail(&Error::unknown(text));
        } else {
            rest.push(pending);
        }
    }
    rest
}
