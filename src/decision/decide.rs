//! Deciding a transaction: its index entry first, then its marker, which is created if there is none.

use super::{Ages, Decided, Decision, Decisions, Marker, MarkerRead, MarkerSlot, TxnId};
use crate::{
    Error, Result,
    record::{Attempted, Attempts, Changed, InFlight, Patience, repeat},
    storage::{
        Name,
        cas::{Outcome, Seen},
    },
};

/// One call to decide.
pub(super) struct Deciding<'a> {
    decisions: &'a Decisions,
    txn: TxnId,
    decision: Decision,
    /// Objects with jobs that hang on it.
    segments: Vec<String>,
    ages: Ages,
    writes: InFlight<MarkerSlot, ()>,
    /// The index entry that was written.
    filed: Option<Name>,
}

impl<'a> Deciding<'a> {
    pub(super) fn new(decisions: &'a Decisions, txn: TxnId, decision: Decision, ages: Ages) -> Self {
        let writes = InFlight::on(&decisions.shared.backend, MarkerSlot(txn), None);
        Self { decisions, txn, decision, segments: Vec::new(), ages, writes, filed: None }
    }

    pub(super) fn naming(self, segments: Vec<String>) -> Self {
        Self { segments, ..self }
    }

    pub(super) async fn run(mut self) -> Result<Decided> {
        let shared = &*self.decisions.shared;
        // Only a marker that is removed at once makes a conflict.
        let patience = Patience { within: shared.patience, conflicts: u32::MAX };
        match repeat(&shared.backend, patience, &mut self).await? {
            Changed::Won(seen, ()) => self.verdict(seen).await,
            Changed::Stopped(decided) => Ok(decided),
        }
    }

    /// What is told of a transaction that may not be decided any more: only what is there counts.
    async fn too_old(&self) -> Result<Decided> {
        match self.decisions.shared.read(self.txn).await? {
            MarkerRead::Marker(marker) => Ok(self.decisions.answered(&marker)),
            MarkerRead::Nothing if self.writes.may_land() => {
                Err(Error::unknown(format!("whether {} was decided is not known: ask for the decision", self.txn)))
            }
            MarkerRead::Nothing | MarkerRead::Void => Ok(Decided::TooOld),
        }
    }

    /// Writes the index entry, unless it was written before.
    async fn file(&mut self, entry: (Name, bytes::Bytes)) -> Result<()> {
        let (name, body) = entry;
        if self.filed.as_ref() != Some(&name) {
            self.decisions.shared.backend.file(&name, body).await?;
            self.filed = Some(name);
        }
        Ok(())
    }

    /// Whether the marker may still be sent: the entry may have taken its time, and the clock may have been set meanwhile.
    fn may_send(&self) -> Result<()> {
        let shared = &*self.decisions.shared;
        let clocks = shared.backend.clocks();
        shared.backend.check_clock(shared.bounds.max_clock_skew, clocks.wall)?;
        if clocks.latest() >= self.ages.closes() {
            return Err(Error::unavailable(format!("{} became too old while it was being decided", self.txn)));
        }
        Ok(())
    }

    /// What may be told of a marker that was written.
    async fn verdict(&self, seen: Seen<Marker>) -> Result<Decided> {
        let (shared, txn) = (&*self.decisions.shared, self.txn);
        // An Ok does not say when the store received it, by its own clock: shortly before the end it must be read. Where
        // answers have no date, a machine that was suspended with all its clocks does not even know that it is late.
        let unsure =
            shared.backend.clocks().latest() >= self.ages.closes() || shared.backend.must_be_asked_for_the_time();
        let void = match seen.modified() {
            None if unsure => {
                let found = shared.read(txn).await.map_err(|error| error.in_doubt(true, txn, "decided"))?;
                !matches!(found, MarkerRead::Marker(_))
            }
            modified => self.ages.is_void(modified),
        };
        // Verdicts by Ok and by read-back alike: a process that was suspended meanwhile must not trust them, nor one that
        // cannot tell because its clock was set.
        let clocks = shared.backend.clocks();
        let trusted = shared.backend.check_clock(shared.bounds.max_clock_skew, clocks.wall).is_ok();
        let late = void || !trusted || clocks.latest() >= self.ages.verdict_by();
        if late {
            return Err(Error::unknown(format!(
                "whether {txn} was decided in time is not known: ask for the decision"
            )));
        }
        shared.counters.made(1);
        Ok(self.decisions.answered(seen.record()))
    }
}

impl Attempts for Deciding<'_> {
    type Slot = MarkerSlot;
    type Ticket = ();
    type Outcome = Decided;

    async fn attempt(&mut self) -> Result<Attempted<Marker, (), Decided>> {
        let (shared, txn) = (&*self.decisions.shared, self.txn);
        shared.backend.trust_clock(shared.bounds.max_clock_skew).await?;
        if shared.backend.clocks().latest() >= self.ages.closes() {
            return self.too_old().await.map(Attempted::Stopped);
        }
        let decided = shared.backend.clock.wall();
        let expires = self.ages.expiry(decided);
        let filed = match MarkerSlot(txn).entry(expires) {
            Ok(entry) => self.file(entry).await,
            Err(error) => Err(error),
        };
        if let Err(error) = filed.and_then(|()| self.may_send()) {
            return Ok(Attempted::NotSent(error));
        }
        let (decision, by, segments) = (self.decision, &self.decisions.by, &self.segments);
        let build = |_: Option<&Seen<Marker>>, stamp: crate::storage::cas::Stamp| {
            Marker::new(txn, stamp.write_id, decision, by, decided, expires).naming(segments)
        };
        match self.writes.attempt(None, (), build).await {
            Some(Outcome::Lost(seen)) => match shared.found(txn, seen) {
                MarkerRead::Marker(marker) => Ok(Attempted::Stopped(self.decisions.answered(&marker))),
                MarkerRead::Void => Ok(Attempted::Stopped(Decided::TooOld)),
                MarkerRead::Nothing => {
                    let removed = Error::unavailable(format!("the decision on {txn} was removed just now"));
                    Ok(Attempted::NotSent(removed))
                }
            },
            Some(outcome) => Ok(Attempted::Sent(outcome)),
            None => Err(Error::unknown(format!("nothing was sent to decide {txn}"))),
        }
    }

    fn lost(&mut self, _: Option<Seen<Marker>>) -> Result<()> {
        Ok(())
    }

    fn what(&self) -> (String, &'static str) {
        (self.txn.to_string(), "decided")
    }
}
