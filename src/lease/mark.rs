//! Asking the holder's process for a turn, by a mark in the record.

use super::{
    engine::Engine,
    keys::KeyEntry,
    operation::Operation,
    plan::Now,
    record::{KeySlot, Mark, Record},
    state::KeyState,
};
use crate::{
    ErrorKind, Result,
    clock::{Moment, Timestamp},
    record::{Attempted, Attempts, Changed, Patience, Right, repeat},
    storage::cas::{Outcome, Seen, Stamp},
};
use std::{sync::Arc, time::Duration};

/// How often it is tried at once. The next poll tries again.
const TRIES: u32 = 4;

/// Puts a mark into the record by a write that leaves the lease as it is. A key that is handed over without a pause changes
/// between nearly every read and the write after it, so one try would seldom do. Each try goes by what the one before has
/// read: to wait in between would only make that old again.
pub(super) async fn mark(
    engine: &Arc<Engine>,
    state: Right<KeyState>,
    entry: &Arc<KeyEntry>,
    interval: Duration,
) -> Result<()> {
    let operation = Operation::new(engine, entry, state);
    let give_up = engine.now().moment.plus(engine.settings.request_timeout);
    let mut marking = Marking { operation, interval, give_up, time: None };
    // Without the stamp of the base the mark would make the lease look younger than it is: it is read first.
    if marking.is_wanted() && marking.lacks_stamp() {
        marking.operation.read().await?;
    }
    let patience = Patience { within: Duration::ZERO, conflicts: TRIES };
    let marked = repeat(&engine.backend, patience, &mut marking).await;
    // In doubt it is let go: if it lands, the next write on the key meets it.
    marking.operation.settled();
    match marked {
        Ok(Changed::Won(seen, _)) => marking.operation.state().learn(Some(seen)),
        Ok(Changed::Stopped(())) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Regressed => Err(error),
        Err(_) => Ok(()),
    }
}

struct Marking {
    operation: Operation,
    interval: Duration,
    /// Other operations of this process may be waiting for the key.
    give_up: Moment,
    /// The latest stamp before the last attempt was sent.
    time: Option<Timestamp>,
}

impl Marking {
    /// Whether another process holds the key, and no other one has asked for a turn.
    fn is_wanted(&self) -> bool {
        let record = self.operation.known().record().filter(|record| record.waiting.is_none());
        let lease = record.and_then(|record| record.lease.as_ref());
        lease.is_some_and(|lease| lease.process != self.operation.engine.rules.process)
    }

    fn lacks_stamp(&self) -> bool {
        let known = self.operation.known();
        known.cached.modified().is_none() && known.record().is_some_and(|record| record.beat_stamp.is_none())
    }
}

impl Attempts for Marking {
    type Slot = KeySlot;
    type Ticket = Now;
    type Outcome = ();

    async fn attempt(&mut self) -> Result<Attempted<Record, Now, ()>> {
        let engine = Arc::clone(&self.operation.engine);
        let now = engine.now();
        if !self.is_wanted() || now.moment >= self.give_up || self.lacks_stamp() {
            return Ok(Attempted::Stopped(()));
        }
        let mark = Mark { process: engine.rules.process, since: now.wall, interval: self.interval };
        let build = move |base: Option<&Seen<Record>>, stamp: Stamp| {
            let modified = base.and_then(Seen::modified);
            let mut record = Record::after(base.map(Seen::record), modified, stamp, mark.since);
            record.waiting = Some(mark);
            record
        };
        self.time = engine.backend.latest_stamp();
        let outcome: Outcome<Record, Now> = self.operation.attempt(engine.settings.request_timeout, now, build).await;
        Ok(Attempted::Sent(outcome))
    }

    fn lost(&mut self, there: Option<Seen<Record>>) -> Result<()> {
        self.operation.settled();
        self.operation.state().learn(there)?;
        self.operation.state().time = self.time;
        Ok(())
    }

    fn what(&self) -> (String, &'static str) {
        (self.operation.entry.slot.key.to_string(), "marked")
    }
}
