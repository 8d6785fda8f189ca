//! Transaction decisions: a write-once register for each transaction.
//!
//! The first to decide decides for all: [`decide`](Decisions::decide) creates a marker if there is none, and all
//! read the same answer from then on. So a participant that waits for a dead coordinator need not wait for ever: it
//! decides to abort, and either that is the answer, or the coordinator was faster and its answer is.
//!
//! # How long an answer can be had
//! A transaction can be decided for `max_txn_age` after it began (1 h), and a decision can be read for 24 h after it was
//! made. Later the answer is [`Forgotten`](Answer::Forgotten), which **does not mean aborted**: a participant that was away
//! for that long must stop and ask an operator.

mod check;
mod counters;
mod decide;
mod kind;
pub(crate) mod layout;
mod marker;
mod txn;

pub(crate) use counters::Counts;
pub(crate) use kind::{DECLARATION, DecisionKind};
pub use kind::{MARKER_RETENTION, MAX_TXN_AGE};
pub(crate) use marker::{Ages, Bounds, MarkerSlot};
pub use txn::TxnId;

pub(crate) use self::marker::Marker;
use self::{counters::Counters, decide::Deciding};
use crate::{
    Error, Result,
    clock::Timestamp,
    shared::SharedSettings,
    storage::{
        Backend, Name,
        bodies::Way,
        cas::{self, Seen},
    },
    sweep::Activity,
    sync::Locked as _,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

/// How many decisions are remembered. They never change, so none is ever wrong.
const REMEMBERED: usize = 10_000;

/// What can be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// All of it happens.
    Commit,
    /// None of it does.
    Abort,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit => "commit",
            Self::Abort => "abort",
        })
    }
}

/// The result of [`Decisions::decide`]: the decision that stands from now on, made by this call or by an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the decision may be another one than was asked for"]
pub enum Decided {
    /// This is the decision; another process may have made it.
    Decision(Decision),
    /// The transaction is too old to be decided, and no decision is known. It does not mean aborted.
    TooOld,
}

impl Decided {
    /// The decision, if there is one.
    pub fn decision(self) -> Option<Decision> {
        match self {
            Self::Decision(decision) => Some(decision),
            Self::TooOld => None,
        }
    }
}

/// The result of [`Decisions::get`]: what is known of a transaction, decided or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// It is not decided yet.
    Undecided,
    /// Committed, for good.
    Committed,
    /// Aborted, for good.
    Aborted,
    /// There is no decision any more, if there ever was one. It does not mean aborted: stop and ask.
    Forgotten,
}

impl Answer {
    /// The decision, if there is one.
    pub fn decision(self) -> Option<Decision> {
        match self {
            Self::Committed => Some(Decision::Commit),
            Self::Aborted => Some(Decision::Abort),
            Self::Undecided | Self::Forgotten => None,
        }
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Commit => Self::Committed,
            Decision::Abort => Self::Aborted,
        }
    }
}

/// The decisions of a store. Cheap to clone.
///
/// ```
/// use leasehold::{Store, decision::{Answer, Decided, Decision}};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = Store::open("memory://").await?;
/// let decisions = store.decisions();
/// let txn = decisions.begin();
/// assert_eq!(decisions.get(txn).await?, Answer::Undecided);
/// assert_eq!(decisions.decide(txn, Decision::Abort).await?, Decided::Decision(Decision::Abort));
/// // Too late: it is decided.
/// assert_eq!(decisions.decide(txn, Decision::Commit).await?.decision(), Some(Decision::Abort));
/// assert_eq!(decisions.get(txn).await?, Answer::Aborted);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Decisions {
    shared: Arc<Shared>,
    by: String,
}

#[derive(Debug)]
pub(crate) struct Shared {
    backend: Arc<Backend>,
    bounds: Bounds,
    counters: Counters,
    patience: Duration,
    activity: Arc<Activity>,
    remembered: Mutex<Remembered>,
}

/// Two generations of what was read, with when it ends.
#[derive(Debug, Default)]
struct Remembered {
    young: BTreeMap<TxnId, (Decision, Timestamp)>,
    old: BTreeMap<TxnId, (Decision, Timestamp)>,
}

impl Remembered {
    fn insert(&mut self, txn: TxnId, known: (Decision, Timestamp)) {
        self.young.insert(txn, known);
        if self.young.len() >= REMEMBERED / 2 {
            self.old = mem::take(&mut self.young);
        }
    }

    fn get(&self, txn: TxnId) -> Option<(Decision, Timestamp)> {
        self.young.get(&txn).or_else(|| self.old.get(&txn)).copied()
    }
}

/// What is in the store for a transaction.
enum MarkerRead {
    Nothing,
    Marker(Marker),
    /// Received too late to count.
    Void,
}

impl Shared {
    pub(crate) fn new(
        backend: Arc<Backend>,
        shared: &SharedSettings,
        request_timeout: Duration,
        activity: Arc<Activity>,
    ) -> Arc<Self> {
        Arc::new(Self {
            backend,
            bounds: Bounds::of(shared),
            counters: Counters::new(),
            patience: 3 * request_timeout,
            activity,
            remembered: Mutex::default(),
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    fn recall(&self, txn: TxnId) -> Option<Decision> {
        let remembered = self.remembered.locked();
        let (decision, expires) = remembered.get(txn)?;
        (self.backend.clock.wall() < expires).then_some(decision)
    }

    fn remember(&self, marker: &Marker) {
        let mut remembered = self.remembered.locked();
        remembered.insert(marker.txn, (marker.decision, marker.expires()));
    }

    fn found(&self, txn: TxnId, seen: Option<Seen<Marker>>) -> MarkerRead {
        match seen {
            None => MarkerRead::Nothing,
            Some(seen) if Ages::of(txn, &self.bounds).is_void(seen.modified()) => MarkerRead::Void,
            Some(seen) => MarkerRead::Marker(seen.record().clone()),
        }
    }

    /// Whether a segment that hangs on the decision is still where it was enqueued.
    pub(crate) async fn is_waited_for(&self, marker: &Marker) -> Result<bool> {
        for segment in &marker.segments {
            if self.backend.get_range(&Name::new(segment.clone()), 0..1, Way::First).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn read(&self, txn: TxnId) -> Result<MarkerRead> {
        Ok(self.found(txn, cas::read(&self.backend, &MarkerSlot(txn)).await?))
    }
}

/// Segments that a marker may name.
const MOST_SEGMENTS: usize = 256;

fn names<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Result<Vec<String>> {
    let names: Vec<String> = segments.into_iter().map(Into::into).collect();
    if names.len() > MOST_SEGMENTS {
        let count = names.len();
        return Err(Error::invalid(format!("a decision names at most {MOST_SEGMENTS} segments (got {count})")));
    }
    let odd =
        |name: &&String| name.is_empty() || name.len() > 512 || name.starts_with('/') || !name.contains("/queue/");
    match names.iter().find(odd) {
        Some(name) => Err(Error::invalid(format!("{name:?} is no segment of a queue: take the names from enqueue"))),
        None => Ok(names),
    }
}

impl Decisions {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, by: String::new() }
    }

    /// Says who decides, for people who look.
    #[must_use]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = name.into();
        self
    }

    /// A new transaction, which begins now.
    pub fn begin(&self) -> TxnId {
        TxnId::begin(&*self.shared.backend.clock, &*self.shared.backend.generator)
    }

    fn ages(&self, txn: TxnId, now: Timestamp) -> Result<Ages> {
        let ages = Ages::of(txn, &self.shared.bounds);
        if !ages.has_begun(now) {
            return Err(Error::invalid(format!(
                "{txn} begins at {}, which is in the future: correct the clock of the machine that began it",
                txn.begun()
            )));
        }
        Ok(ages)
    }

    /// Decides a transaction, unless that was done already: then the answer is what was decided.
    ///
    /// An [unknown](crate::ErrorKind::Unknown) outcome is safe to repeat, with the same decision or another one: the
    /// answer is then what is in the store.
    pub async fn decide(&self, txn: TxnId, decision: Decision) -> Result<Decided> {
        self.decide_with(txn, decision, Vec::<String>::new()).await
    }

    /// Decides a transaction in which jobs were enqueued: those run if and only if it is committed.
    ///
    /// `segments` are the names that enqueuing in the transaction has returned, of all queues together; up to 256. The decision
    /// is kept for as long as one of them waits to be taken in, however long that is. If somebody else has decided before,
    /// its decision stands as it is.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use leasehold::decision::Decision;
    ///
    /// let store = leasehold::Store::open("memory://").await?;
    /// let (queue, decisions) = (store.queue("emails")?, store.decisions());
    /// let txn = decisions.begin();
    /// let welcome = queue.enqueue("ann").in_transaction(txn).await?;
    /// assert!(queue.claim(1).await?.is_empty(), "not decided yet");
    /// let _ = decisions.decide_with(txn, Decision::Commit, &welcome.segments).await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_with<S: Into<String>>(
        &self,
        txn: TxnId,
        decision: Decision,
        segments: impl IntoIterator<Item = S>,
    ) -> Result<Decided> {
        let segments = names(segments)?;
        let shared = &*self.shared;
        shared.activity.touch(&*shared.backend.clock);
        if let Some(decision) = shared.recall(txn) {
            return Ok(Decided::Decision(decision));
        }
        shared.backend.trust_clock(shared.bounds.max_clock_skew).await?;
        let ages = self.ages(txn, shared.backend.clock.wall())?;
        Deciding::new(self, txn, decision, ages).naming(segments).run().await
    }

    fn answered(&self, marker: &Marker) -> Decided {
        self.shared.remember(marker);
        Decided::Decision(marker.decision)
    }

    /// What is known of a transaction, without deciding it. A decision whose retention is over is deleted on the way.
    pub async fn get(&self, txn: TxnId) -> Result<Answer> {
        let shared = &*self.shared;
        shared.activity.touch(&*shared.backend.clock);
        // By the later clock: a machine whose own clock is slow reads on.
        let ages = self.ages(txn, shared.backend.clocks().latest())?;
        if let Some(decision) = shared.recall(txn) {
            return Ok(decision.into());
        }
        if shared.backend.store_time().is_none() {
            // A store that was handed in and has not told its time yet. Without it nothing is over.
            if let Err(error) = shared.backend.ask_time().await {
                tracing::debug!(%error, "the store's time is not known");
            }
        }
        // From before the read: an answer may be a while under way, and says nothing of what was decided since. And from
        // after it: what was there may have been forgotten by then.
        let was_over = ages.are_over(&shared.backend.clocks());
        let found = shared.read(txn).await?;
        let clocks = shared.backend.clocks();
        let past = match &found {
            MarkerRead::Marker(marker) => {
                clocks.are_past(marker.expires())
                    && ages.are_over(&clocks)
                    && shared.backend.check_clock(shared.bounds.max_clock_skew, clocks.wall).is_ok()
                    && !shared.is_waited_for(marker).await?
            }
            _ => false,
        };
        match found {
            MarkerRead::Marker(_) if past => {
                self.tidy(txn).await;
                Ok(Answer::Forgotten)
            }
            MarkerRead::Marker(marker) => {
                shared.remember(&marker);
                Ok(marker.decision.into())
            }
            MarkerRead::Void => {
                // It came after the sweeper had been there: nothing else will find it.
                let over = ages.are_over(&clocks);
                if over && shared.backend.check_clock(shared.bounds.max_clock_skew, clocks.wall).is_ok() {
                    self.tidy(txn).await;
                }
                Ok(Answer::Forgotten)
            }
            MarkerRead::Nothing if was_over => Ok(Answer::Forgotten),
            // Over by one clock and not by the other: it may have been decided and forgotten, and it may not.
            MarkerRead::Nothing if clocks.latest() > ages.ends() => {
                shared.backend.check_clock(shared.bounds.max_clock_skew, clocks.wall)?;
                Err(Error::unavailable(format!("{txn} is just about to be forgotten: ask again in a moment")))
            }
            MarkerRead::Nothing => Ok(Answer::Undecided),
        }
    }

    /// Deletes a marker that has expired by both clocks; a failure is left to the sweeper.
    async fn tidy(&self, txn: TxnId) {
        if let Err(error) = self.delete(txn).await {
            tracing::warn!(%txn, %error, "a decision whose time is over could not be deleted");
        }
    }

    /// Forgets a decision before its time: for a coordinator that knows that all participants have applied it.
    ///
    /// Refused while it could still be decided otherwise.
    pub async fn forget(&self, txn: TxnId) -> Result<()> {
        let shared = &*self.shared;
        shared.activity.touch(&*shared.backend.clock);
        shared.backend.trust_clock(shared.bounds.max_clock_skew).await?;
        let ages = self.ages(txn, shared.backend.clock.wall())?;
        if !ages.are_over(&shared.backend.clocks()) {
            return Err(Error::invalid(format!(
                "{txn} can be forgotten after {} only: until then somebody may still decide it",
                ages.ends()
            )));
        }
        if let MarkerRead::Marker(marker) = shared.read(txn).await?
            && shared.is_waited_for(&marker).await?
        {
            return Err(Error::invalid(format!(
                "{txn} cannot be forgotten yet: jobs of it wait to be taken in; forget it when they have run"
            )));
        }
        self.delete(txn).await
    }

    async fn delete(&self, txn: TxnId) -> Result<()> {
        let name = cas::Slot::name(&MarkerSlot(txn));
        let deleted = self.shared.backend.delete(std::slice::from_ref(&name)).await;
        if deleted.gone.contains(&name) {
            self.shared.counters.deleted_by_operation(1);
            let mut remembered = self.shared.remembered.locked();
            remembered.young.remove(&txn);
            remembered.old.remove(&txn);
            return Ok(());
        }
        Err(deleted.error.unwrap_or_else(|| Error::unavailable(format!("the decision on {txn} could not be deleted"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Clock,
        testkit::{SeededGenerator, TestClock},
    };

    #[test]
    fn what_is_remembered_is_bounded_and_the_latest_are_among_it() {
        let (clock, generator) = (TestClock::at(Timestamp::from_millis(0)), SeededGenerator::new(1));
        let txns: Vec<_> = (0..3 * REMEMBERED).map(|_| TxnId::begin(&clock, &generator)).collect();
        let mut remembered = Remembered::default();
        for (last, txn) in txns.iter().enumerate() {
            remembered.insert(*txn, (Decision::Commit, clock.wall()));
            assert!(remembered.young.len() + remembered.old.len() < REMEMBERED);
            let oldest = (last + 1).saturating_sub(REMEMBERED / 2);
            assert!(remembered.get(txns[oldest]).is_some() && remembered.get(*txn).is_some(), "{last}");
        }
    }
}
