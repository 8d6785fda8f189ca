//! One commit: planned on what is there, written, and recognised if its answer was lost.

use super::{Desk, Pending, Shard, Waits};
use crate::{
    Error, ErrorKind, Result,
    job::{
        apply::{Attempt, Caps, Context, Op, Outcome, Recovered, Refused, Verdict, apply, verdict},
        core::Known,
        counters::Done,
        id::SegmentId,
        inbox::Age,
        layout::SegmentName,
        ledger::{Ledger, Millis},
        session::Session,
        slot::LedgerSlot,
    },
    record::{Change, Changed, Patience, Plan},
    storage::cas::{Seen, Stamp},
};
use std::{ops::Range, sync::Arc, time::Duration};

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
    /// What is taken in.
    pub(super) absorbing: Vec<SegmentName>,
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
    pub(super) done: Done,
    pub(super) recovered: Vec<Recovery>,
}

/// What came back from one dead process, for whoever reads the log.
#[derive(Debug)]
pub(super) struct Recovery {
    owner: Arc<str>,
    what: Recovered,
    /// Since its session was to end at the earliest.
    late: Duration,
}

impl Recovery {
    pub(super) fn tell(&self, queue: &str, shard: u8) {
        let Self { owner, what, late } = self;
        let Recovered { waiting, cancelled, buried, charged } = *what;
        if waiting + cancelled + buried > 0 {
            tracing::info!(
                %owner, queue, shard, jobs = waiting, buried, cancelled, charged, ?late,
                "a process has died: its jobs are taken back"
            );
        }
    }
}

/// What was taken back by a commit, by the ledger before it.
fn recoveries(ledger: &Ledger, now: Millis, ops: &[Op], outcomes: &[Outcome]) -> Vec<Recovery> {
    let recovery = |(op, outcome): (&Op, &Outcome)| match (op, outcome) {
        (Op::Recover { session }, Outcome::Recovered(what)) => {
            let session = ledger.session(*session)?;
            let late = Duration::from_millis(u64::try_from(now.saturating_sub(session.until)).unwrap_or(0));
            Some(Recovery { owner: Arc::clone(&session.owner), what: *what, late })
        }
        _ => None,
    };
    ops.iter().zip(outcomes).filter_map(recovery).collect()
}

/// Why nothing is written.
enum Stop {
    /// There is nothing to write, and this is what there is to say.
    Unchanged(Vec<Outcome>),
    Refused(Refused),
    /// Whether what was sent has landed cannot be found out any more.
    Unknowable,
}

/// The operations of a commit.
struct Operations {
    ops: Vec<Op>,
    /// Which of them each of those who wait has asked for.
    spans: Vec<Range<usize>>,
    /// How many of them do not rest on a listing.
    firm: usize,
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
    /// A write was planned before.
    planned: bool,
    /// When the first attempt was planned.
    began: Age,
}

impl Planner<'_> {
    fn plan(&mut self, seen: Option<&Seen<Ledger>>, stamp: Stamp) -> Result<(Arc<Sent>, Plan<Ledger, Stop>)> {
        let ledger = seen.map(Seen::record).ok_or_else(|| self.shard.missing())?;
        let stop = |stop| Ok((Arc::default(), Plan::Stop(stop)));
        if self.attempts.first().is_some_and(|first| first.base != ledger.revision) {
            // Somebody else's commit is there instead. Is ours below it?
            let valid = self.session.is_some_and(Session::is_valid);
            // The row of a session that has nothing in hand goes after a while: then nothing follows from its absence.
            let valid = valid && self.began.is_usable(self.shard.queue.backend());
            // What was sent without the session's ticket is not in its row, even if that is there.
            let session = self.session.map(|session| session.id).filter(|_| !self.unsigned);
            // One that takes its row out cannot tell by its absence that it has not landed.
            let had_row = self.had_row || self.ops.iter().any(|op| matches!(op, Op::Close));
            match verdict(ledger, session, &self.attempts, had_row, valid) {
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
        // While an attempt on this base is in doubt, only another write on it finds out which of them counts.
        if !applied.changed && self.attempts.is_empty() {
            return stop(Stop::Unchanged(applied.outcomes));
        }
        if !self.attempts.is_empty() || self.planned {
            self.shard.queue.shared.counters.conflicts(1);
        }
        self.planned = true;
        self.attempts.push(Attempt { write_id: stamp.write_id, base: ledger.revision });
        self.unsigned |= !with_session;
        let closed = |(op, outcome): (&Op, &Outcome)| matches!((op, outcome), (Op::Close, Outcome::Done));
        let closing = ops.iter().zip(&applied.outcomes).any(closed);
        let (outcomes, finished, unnamed) = (applied.outcomes, applied.finished, applied.unnamed);
        let done = Done::new(&ledger.counters, &applied.ledger.counters, ops.len());
        let recovered = recoveries(ledger, self.shard.now(), ops, &outcomes);
        let sent = Sent { outcomes, finished, unnamed, with_session, closing, done, recovered };
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
        let Operations { ops, spans, firm } = self.operations(desk, &pending, &prepared);
        let Prepared { seen, settings, session, age, .. } = prepared;
        let backend = self.queue.backend();
        let began = Age::now(backend);
        let has_answers = ops.iter().any(|op| matches!(op, Op::Answer(_) | Op::Spill(_) | Op::Begin(_)));
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
            planned: false,
            began,
        };
        desk.committed = Some(backend.clock.monotonic());
        let patience = Patience { within: 3 * backend.request_timeout, conflicts: 32 };
        let slot = self.queue.ledger_slot(self.number);
        let mut change: Change<LedgerSlot, Arc<Sent>> = Change::new(backend, slot, Some(seen), patience);
        let done = match self.settle(&mut change, &mut planner, &mut pending).await {
            Ok(done) => done,
            Err(error) => {
                self.forget();
                // What was sent may have landed, and is gone with what was there: it is told as what it is.
                let doubtful = change.is_in_doubt() && error.kind() != ErrorKind::Regressed;
                return Err((error, if doubtful { unknown(pending) } else { pending }));
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

    /// Everything that a commit is made of, in the order of [`Planner::ops`].
    fn operations(&self, desk: &Desk, pending: &[Pending], prepared: &Prepared) -> Operations {
        let (mut ops, mut spans): (Vec<Op>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for pending in pending {
            let from = ops.len();
            ops.extend(pending.ops.iter().cloned());
            spans.push(from..ops.len());
        }
        // One that is suspected of killing its process runs alone: nothing may be in hand from other ledgers either.
        let alone = self.queue.shared.sessions.in_hand() <= desk.hand.len() + 1;
        for op in &mut ops {
            if let Op::Claim { idle_elsewhere, .. } = op {
                *idle_elsewhere = alone;
            }
        }
        ops.extend(prepared.extra.iter().cloned());
        if let Some(session) = &prepared.session {
            // Nothing of ours is on its way: a claim that is there and that nobody has in hand is given back.
            let ledger = prepared.seen.record();
            ops.extend(ledger.to_give_back(session.id, |claim, _| desk.hand.contains_key(&claim)));
        }
        let firm = ops.len();
        ops.extend(prepared.tail.iter().cloned());
        Operations { ops, spans, firm }
    }

    /// Goes on until it is known what became of the commit.
    async fn settle(
        &self,
        change: &mut Change<LedgerSlot, Arc<Sent>>,
        planner: &mut Planner<'_>,
        pending: &mut [Pending],
    ) -> Result<Changed<Ledger, Arc<Sent>, Stop>> {
        let mut retries = 1;
        loop {
            match change.run(|seen, stamp| planner.plan(seen, stamp)).await {
                // It may have landed: nothing else is written until that is known.
                Err(error) if change.is_in_doubt() && error.kind() != ErrorKind::Regressed => {
                    tracing::warn!(%error, queue = %self.queue.name, shard = self.number, "a commit is in doubt");
                    pending.iter_mut().for_each(|pending| pending.sent = true);
                    self.queue.backend().pause(retries).await;
                    retries += 1;
                }
                done => return done,
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

/// The ledger went back: a backup was restored under living processes. Everybody who waits is told so; what was said of
/// jobs is said again of what is there now. What this process has in hand may be given to others: its session is over.
pub(super) fn went_back(shard: &Shard, desk: &mut Desk, pending: Vec<Pending>, error: &Error) -> Vec<Pending> {
    tracing::error!(%error, queue = %shard.queue.name, shard = shard.number, "a ledger went back");
    shard.give_up_session(desk);
    let mut stay = Vec::new();
    for mut pending in pending {
        let again = pending.ops.iter().all(Op::may_be_sent_again_in_doubt);
        if let Waits::Answers(reply) = &mut pending.waits {
            let (nobody, _) = tokio::sync::oneshot::channel();
            drop(std::mem::replace(reply, nobody).send(Err(error.clone())));
            if !again {
                continue;
            }
        }
        stay.push(pending);
    }
    stay
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
        } else if matches!(pending.waits, Waits::Begin { .. }) {
            // Never sent again: it may have landed, been recovered and ended since.
            let text = "whether jobs were begun is not known, and their session is over: begin them again";
            pending.fail(&Error::unknown(text));
        } else {
            rest.push(pending);
        }
    }
    rest
}
