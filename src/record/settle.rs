//! Finding out what became of writes whose outcome nothing waits for any more.

use super::{Attempted, Attempts, Changed, InFlight, Patience, repeat};
use crate::{
    Error, Result,
    storage::{
        Backend,
        cas::{Outcome, Seen, Slot, Stamp},
    },
    timing::LONGEST_WRITE,
};

/// What became of writes that were in doubt.
#[derive(Debug)]
pub(crate) enum Settled<R, T> {
    /// One of them has landed, with its ticket; this is there.
    Landed(Seen<R>, T),
    /// None of them can land any more; this is there.
    Lost(Option<Seen<R>>),
}

/// A write that leaves a record as it is, for [`settle`].
pub(crate) trait Unchanged<S: Slot, T> {
    /// The ticket of an attempt that is about to be sent.
    fn ticket(&self) -> T;

    /// The record that follows the base and says the same.
    fn record(&self, ticket: &T, base: Option<&Seen<S::Record>>, stamp: Stamp) -> S::Record;
}

/// Settles writes in doubt by writing their base once more, without changing anything: whichever of them lands, no other
/// can.
///
/// To be called with the right to change the record in hand. Goes on for as long as a write may be under way. A store that
/// shows something older than the base is an error at once: it was asked before, so it was set back, and the write with it.
pub(crate) async fn settle<S: Slot, T: Clone>(
    backend: &Backend,
    in_flight: &mut InFlight<S, T>,
    unchanged: &impl Unchanged<S, T>,
) -> Result<Settled<S::Record, T>> {
    let patience = Patience { within: LONGEST_WRITE, conflicts: 1 };
    Ok(match repeat(backend, patience, &mut Settling { in_flight, unchanged }).await? {
        Changed::Won(seen, ticket) => Settled::Landed(seen, ticket),
        Changed::Stopped(there) => Settled::Lost(there),
    })
}

struct Settling<'a, S: Slot, T, U> {
    in_flight: &'a mut InFlight<S, T>,
    unchanged: &'a U,
}

impl<S: Slot, T: Clone, U: Unchanged<S, T>> Attempts for Settling<'_, S, T, U> {
    type Slot = S;
    type Ticket = T;
    type Outcome = Option<Seen<S::Record>>;

    async fn attempt(&mut self) -> Result<Attempted<S::Record, T, Self::Outcome>> {
        let ticket = self.unchanged.ticket();
        let build = |base: Option<&Seen<S::Record>>, stamp| self.unchanged.record(&ticket, base, stamp);
        let sent = self.in_flight.attempt(None, ticket.clone(), build).await;
        match sent.ok_or_else(|| Error::unknown("nothing was sent"))? {
            Outcome::Lost(there) => Ok(Attempted::Stopped(there)),
            outcome => Ok(Attempted::Sent(outcome)),
        }
    }

    fn lost(&mut self, _: Option<Seen<S::Record>>) -> Result<()> {
        Ok(())
    }

    fn what(&self) -> (String, &'static str) {
        ("a record".to_owned(), "changed")
    }
}
