//! One committer per opened store and shard: gathers operations, and writes them together.
//!
//! Operations that come while a compare-and-swap is on its way form the next one. A task runs while there is something to
//! commit, and ends when there is not: an idle queue costs nothing.
//!
//! What has become of an attempt (finished, failed, snoozed, given back) stays queued until it is in the ledger or
//! refused by what stands there; who waits for it may go away. A claim whose caller has gone is withdrawn, or given back
//! once it is known to have landed.

mod after;
mod begin;
mod chores;
mod cycle;
mod guest;
mod patrol;
mod plan;
mod plans;
mod publish;
mod seg;
mod take_in;

pub(crate) use begin::{MOST_BYTES, MOST_JOBS, ToBegin, begin};
pub(crate) use cycle::Found;
pub(crate) use patrol::{next_end, patrol};
pub(crate) use seg::{PartChange, Patch};
pub(crate) use take_in::{Taking, take_in};

use super::{
    apply::{Op, Outcome, Taken},
    core::Core,
    duty::InHand,
    id::SegmentId,
    inbox::Age,
    ledger::{ClaimId, Ledger, Millis, SessionId},
    session::Session,
};
use crate::{
    Error, ErrorKind, Fence, Result,
    clock::{Moment, within},
    generator::GeneratorExt,
    storage::{
        bodies::Again,
        cas::{self, Seen},
    },
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

/// How long a committer pauses at the most after its store has failed it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a commit waits for room that others have to make.
const FULL: Duration = Duration::from_millis(50);

/// What a claim was given.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) claim: ClaimId,
    pub(crate) fence: Fence,
    pub(crate) jobs: Vec<Taken>,
    pub(crate) session: Arc<Session>,
    pub(crate) shard: Arc<Shard>,
}

/// Jobs that never reach their caller go back: it may go away after the claim was answered, or while parts are read.
impl Drop for Granted {
    fn drop(&mut self) {
        if !self.jobs.is_empty() {
            super::attempt::Attempt::new(&self.shard, self).give_back(&self.jobs);
        }
    }
}

/// What an answered claim says.
#[derive(Debug)]
pub(crate) enum Given {
    Jobs(Granted),
    /// Nothing can be claimed now; when the ledger says that there will be, by the store's time.
    Nothing {
        wakes_at: Option<Millis>,
    },
}

/// Operations that were asked for together, and who waits for what becomes of them.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ops: Vec<Op>,
    pub(super) waits: Waits,
    /// It was part of a write that may have landed.
    pub(super) sent: bool,
    /// Operations whose jobs go back with other parts.
    pub(super) patches: Vec<Patch>,
    /// What is known of those that are not in `ops` any more, and which places those have that are.
    got: Vec<Option<Outcome>>,
    places: Vec<usize>,
}

#[derive(Debug)]
pub(super) enum Waits {
    /// For jobs. The first `since` looks at the inbox are not used again. One that is `patient` leaves to the shard's owner
    /// what is young.
    Claim { since: u64, patient: bool, reply: oneshot::Sender<Result<Given>> },
    /// For jobs that another system runs to be in hand.
    Begin { claim: ClaimId, jobs: Vec<ToBegin>, reply: oneshot::Sender<Result<Given>> },
    /// For what has become of attempts: stays queued whatever happens.
    Answers(oneshot::Sender<Result<Vec<Outcome>>>),
    /// For something that must see the ledger as it is now, and that may fail.
    Asked(oneshot::Sender<Result<Vec<Outcome>>>),
    /// Nobody: tidying that goes along with the next commit.
    Nobody,
    /// Nobody: what dead processes held comes back, and what was left undone is done, if there is any of it.
    Duty,
}

impl Pending {
    pub(super) fn new(ops: Vec<Op>, waits: Waits) -> Self {
        let (got, places) = (vec![None; ops.len()], (0..ops.len()).collect());
        Self { ops, waits, sent: false, patches: Vec::new(), got, places }
    }

    /// Takes what was said of its operations. What had no room stays, and is tried again.
    pub(super) fn hear(mut self, outcomes: &[Outcome]) -> Option<Self> {
        let (ops, places) = (std::mem::take(&mut self.ops), std::mem::take(&mut self.places));
        let patches = std::mem::take(&mut self.patches);
        for (at, ((mut op, place), outcome)) in ops.into_iter().zip(places).zip(outcomes).enumerate() {
            let again = matches!(outcome, Outcome::Full(_) | Outcome::WriteAgain);
            if !again || !matches!(self.waits, Waits::Answers(_)) {
                self.got[place] = Some(outcome.clone());
                continue;
            }
            if let Op::Answer(answer) = &mut op {
                answer.into = None;
            }
            let patch = patches.iter().find(|patch| patch.op == at);
            self.patches.extend(patch.map(|patch| Patch { op: self.ops.len(), ..patch.clone() }));
            self.ops.push(op);
            self.places.push(place);
        }
        if !self.ops.is_empty() {
            return Some(self);
        }
        if let Waits::Answers(reply) | Waits::Asked(reply) = self.waits {
            drop(reply.send(Ok(self.got.into_iter().flatten().collect())));
        }
        None
    }

    /// Whether nobody wants it any more and it may be left out.
    fn is_withdrawn(&self) -> bool {
        match &self.waits {
            Waits::Claim { reply, .. } | Waits::Begin { reply, .. } => reply.is_closed() && !self.sent,
            Waits::Asked(reply) => reply.is_closed() && !self.sent,
            Waits::Answers(_) | Waits::Nobody | Waits::Duty => false,
        }
    }

    /// Tells whoever waits that it failed.
    fn fail(self, error: &Error) {
        match self.waits {
            Waits::Claim { reply, .. } | Waits::Begin { reply, .. } => drop(reply.send(Err(error.clone()))),
            Waits::Answers(reply) | Waits::Asked(reply) => drop(reply.send(Err(error.clone()))),
            Waits::Nobody | Waits::Duty => {}
        }
    }

    fn stays_queued(&self) -> bool {
        matches!(self.waits, Waits::Answers(_) | Waits::Nobody)
    }
}

/// A number for a claim that nobody has had.
fn claim_id(generator: &dyn crate::Generator) -> ClaimId {
    loop {
        if let Some(claim) = ClaimId::new(u64::from_le_bytes(generator.bytes())) {
            return claim;
        }
    }
}

/// What waits for the next commit.
#[derive(Debug, Default)]
struct Line {
    pending: Vec<Pending>,
    /// These ride along with the next commit and are no reason for one.
    riders: Vec<Op>,
    running: bool,
}

/// A ledger as it was read or written last.
#[derive(Debug, Clone)]
pub(super) struct KnownLedger {
    pub(super) seen: Arc<Seen<Ledger>>,
    pub(super) at: Age,
}

/// What only the running committer changes.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) session: Option<Arc<Session>>,
    /// A commit of the session is known to have landed here.
    pub(super) has_row: bool,
    /// Claims that a caller has, or is being told of.
    pub(super) hand: HashMap<ClaimId, InHand>,
    /// Sessions of others that were found alive, and until when.
    pub(super) alive: HashMap<SessionId, Millis>,
    pub(super) tidied: Option<Moment>,
    pub(super) committed: Option<Moment>,
    /// Something had no room: the next commit waits a moment.
    pub(super) full: bool,
    /// When `seg/` was last looked at for what nobody names.
    pub(super) swept: Option<Moment>,
    /// The last commit in which it took jobs from a shard that another process owns: its revision, and when that was.
    pub(super) guest_win: Option<(u64, Moment)>,
}

/// One shard of a queue, as one opened store works on it.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) queue: Arc<Core>,
    pub(crate) number: u8,
    line: Mutex<Line>,
    pub(super) desk: AsyncMutex<Desk>,
    known: Mutex<Option<KnownLedger>>,
    pub(super) ahead: Mutex<Vec<cycle::Ahead>>,
    pub(super) deleting: Mutex<after::Deletes>,
    /// Segments in the inbox that cannot be absorbed now, and until when they are left.
    pub(in crate::job) left: Mutex<HashMap<SegmentId, Moment>>,
    /// Events that are being published.
    pub(super) publishing: Mutex<publish::Publishing>,
    /// Segments of transactions that were not decided yet.
    pub(in crate::job) undecided: Mutex<super::transaction::Undecided>,
    /// Plans that are being carried out.
    pub(super) writing: Mutex<HashSet<[u8; 16]>>,
    /// When the session of somebody else has to be looked at again.
    pub(super) next_look: Mutex<Option<Millis>>,
}

impl Shard {
    pub(crate) fn new(queue: &Arc<Core>, number: u8) -> Arc<Self> {
        Arc::new(Self {
            queue: Arc::clone(queue),
            number,
            line: Mutex::default(),
            desk: AsyncMutex::default(),
            known: Mutex::default(),
            ahead: Mutex::default(),
            deleting: Mutex::default(),
            left: Mutex::default(),
            undecided: Mutex::default(),
            publishing: Mutex::default(),
            writing: Mutex::default(),
            next_look: Mutex::default(),
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues operations, and starts a committer unless one runs.
    pub(super) fn submit(self: &Arc<Self>, pending: Pending) {
        let mut line = self.line();
        line.pending.push(pending);
        self.start(line);
    }

    fn start(self: &Arc<Self>, mut line: MutexGuard<'_, Line>) {
        if !std::mem::replace(&mut line.running, true) {
            let shard = Arc::clone(self);
            let shared = &self.queue.shared;
            shared.tasks.spawn_on(async move { shard.run().await }, &shared.runtime);
        }
    }

    /// Lets operations ride along with the next commit.
    pub(in crate::job) fn ride(&self, operations: impl IntoIterator<Item = Op>) {
        self.line().riders.extend(operations);
    }

    /// Claims up to `want` jobs. Dropped before it is answered, it is withdrawn or what it was given is given back.
    pub(crate) async fn claim(self: &Arc<Self>, want: u32, since: u64, patient: bool) -> Result<Given> {
        let (reply, told) = oneshot::channel();
        let claim = claim_id(&*self.queue.backend().generator);
        let op = Op::Claim { claim, want, idle_elsewhere: true };
        self.submit(Pending::new(vec![op], Waits::Claim { since, patient, reply }));
        self.wait_for(told, "claimed").await
    }

    /// Says what has become of attempts. Queued at once, whether or not the future is awaited.
    pub(crate) fn answer(
        self: &Arc<Self>,
        ops: Vec<Op>,
        patches: Vec<Patch>,
    ) -> oneshot::Receiver<Result<Vec<Outcome>>> {
        let (reply, told) = oneshot::channel();
        self.submit(Pending { patches, ..Pending::new(ops, Waits::Answers(reply)) });
        told
    }

    /// Asks for something that must see the ledger as it is now.
    pub(crate) async fn ask(self: &Arc<Self>, ops: Vec<Op>) -> Result<Vec<Outcome>> {
        let (reply, told) = oneshot::channel();
        self.submit(Pending::new(ops, Waits::Asked(reply)));
        self.wait_for(told, "changed").await
    }

    /// Commits soon, also if nobody waits for anything.
    pub(super) fn nudge(self: &Arc<Self>) {
        self.submit(Pending::new(Vec::new(), Waits::Nobody));
    }

    /// What comes of it within the time that anybody waits for an answer.
    pub(crate) async fn wait_for<T>(&self, told: oneshot::Receiver<Result<T>>, done: &str) -> Result<T> {
        let limit = self.queue.shared.options.answer_timeout;
        let name = || format!("shard {} of queue {:?}", self.number, self.queue.name);
        match within(&*self.queue.backend().clock, limit, told).await {
            Some(Ok(told)) => told,
            Some(Err(_)) => Err(Error::unknown(format!("{} was closed: whether it was {done} is not known", name()))),
            None => Err(Error::unknown(format!(
                "no answer for {} within {limit:?}: whether it was {done} is not known yet; it stays queued",
                name()
            ))),
        }
    }

    /// Takes the session's row out, with whatever else waits.
    pub(crate) async fn close_session(self: &Arc<Self>, session: &Arc<Session>) {
        {
            let desk = self.desk.lock().await;
            let mine = desk.session.as_ref().is_some_and(|known| known.id == session.id);
            let there = self.known().is_some_and(|known| known.seen.record().session(session.id).is_some());
            if !mine || !there || !desk.hand.is_empty() || !session.is_valid() {
                return;
            }
        }
        if let Err(error) = self.ask(vec![Op::Close]).await {
            tracing::debug!(%error, "the row of a session stays: whoever looks at it next takes it out");
        }
    }

    /// When the ledger has to be looked at again, as far as was seen.
    pub(crate) fn wakes_at(&self) -> Option<Millis> {
        let now = self.now();
        let ledgers = self.known().and_then(|known| known.seen.record().wakes_after(now));
        let look = patrol::next_look(self).filter(|at| *at > now);
        [ledgers, look].into_iter().flatten().min()
    }

    /// Everything that waits, in the order of their coming; `None` when there is nothing and the committer must end.
    fn take(&self) -> Option<(Vec<Pending>, Vec<Op>)> {
        let mut line = self.line();
        line.pending.retain(|pending| !pending.is_withdrawn());
        if line.pending.is_empty() {
            line.running = false;
            return None;
        }
        Some((std::mem::take(&mut line.pending), std::mem::take(&mut line.riders)))
    }

    /// The committer: runs while anything waits.
    async fn run(self: Arc<Self>) {
        let mut failures = 0;
        let mut desk = self.desk.lock().await;
        while let Some((pending, riders)) = self.take() {
            self.space(&desk).await;
            let Err((error, left)) = self.cycle(&mut desk, pending, riders).await else {
                failures = 0;
                if std::mem::take(&mut desk.full) {
                    self.queue.backend().clock.sleep(FULL).await;
                }
                continue;
            };
            let left = if error.kind() == ErrorKind::Regressed {
                plan::went_back(&self, &mut desk, left, &error)
            } else {
                left
            };
            let (stay, told): (Vec<_>, Vec<_>) = left.into_iter().partition(Pending::stays_queued);
            for pending in told {
                pending.fail(&error);
            }
            let stay: Vec<Pending> = stay.into_iter().filter(|pending| !pending.ops.is_empty()).collect();
            if stay.is_empty() {
                continue;
            }
            tracing::warn!(%error, queue = %self.queue.name, shard = self.number, "a commit failed: it is tried again");
            self.put_back(stay);
            failures += 1;
            let longest = Duration::from_millis(50u64 << failures.min(8)).min(LONGEST_PAUSE);
            let backend = self.queue.backend();
            backend.clock.sleep(backend.generator.between(longest / 2, longest)).await;
        }
    }

    /// Some stores take only so many writes to one name.
    async fn space(&self, desk: &Desk) {
        let backend = self.queue.backend();
        let interval = self.queue.shared.options.commit_interval.unwrap_or_else(|| backend.spacing());
        if let Some(last) = desk.committed {
            let left = interval.saturating_sub(backend.clock.monotonic().since(last));
            if !left.is_zero() {
                backend.clock.sleep(left).await;
            }
        }
    }

    /// What is known of the ledger.
    pub(super) fn known(&self) -> Option<KnownLedger> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a ledger that was read or written, unless a later one is known.
    pub(crate) fn learn(&self, seen: Arc<Seen<Ledger>>, at: Age) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let later = known.as_ref().is_some_and(|known| known.seen.record().revision > seen.record().revision);
        if !later {
            *known = Some(KnownLedger { seen, at });
        }
    }

    pub(super) fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The ledger as it is now: one read, which says at once if nothing has changed.
    pub(crate) async fn look(&self) -> Result<Arc<Seen<Ledger>>> {
        let (backend, slot) = (self.queue.backend(), self.queue.ledger_slot(self.number));
        let at = Age::now(backend);
        let before = self.known().map(|known| known.seen.record().revision);
        let seen = match self.known() {
            None => cas::read(backend, &slot).await?,
            Some(known) => match backend.read_again(&slot, &known.seen).await? {
                Again::Same => {
                    self.learn(Arc::clone(&known.seen), at);
                    return Ok(known.seen);
                }
                Again::Now(seen) => seen,
            },
        };
        let Some(seen) = seen else {
            // Made with the queue, or lost since.
            self.queue.settings().await?;
            let again = cas::read(backend, &slot).await?.ok_or_else(|| self.missing())?;
            let again = Arc::new(again);
            self.learn(Arc::clone(&again), at);
            return Ok(again);
        };
        // By what was known before the read was sent: a commit of our own may have landed meanwhile.
        let found = seen.record().revision;
        if let Some(before) = before.filter(|before| found < *before) {
            self.forget();
            let name = self.queue.layout.ledger(self.number);
            return Err(Error::new(
                ErrorKind::Regressed,
                format!(
                    "{name} went back from revision {before} to {found}: a backup was restored, or something in between \
                     answers from a cache; jobs that have ended since may run again"
                ),
            ));
        }
        let seen = Arc::new(seen);
        self.learn(Arc::clone(&seen), at);
        Ok(seen)
    }

    pub(super) fn missing(&self) -> Error {
        let name = self.queue.layout.ledger(self.number);
        Error::corrupt(format!("{name} is gone: nothing is run from this shard until an operator has made it again"))
    }
}
