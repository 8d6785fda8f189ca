//! The loop: plan on what is there, write, and on a conflict plan again on what came first.

use crate::{
    Error, ErrorKind, Result,
    storage::{
        Backend,
        cas::{Cas, Outcome, Seen, Slot, Stamp},
    },
};
use std::{sync::Arc, time::Duration};

/// How long a change goes on trying.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// No attempt is sent later than this after the first.
    pub(crate) within: Duration,
    /// How many writes in a row may come too late because of somebody else's.
    pub(crate) conflicts: u32,
}

/// What is to be done about a record.
pub(crate) enum Plan<R, O> {
    /// Write this. It must carry the stamp that the plan was given.
    Write(R),
    /// Nothing: this is the outcome.
    Stop(O),
}

/// How a change ended.
pub(crate) enum Changed<R, T, O> {
    /// The record is in the store, with the ticket of the attempt that landed.
    Won(Seen<R>, T),
    /// The plan had nothing to write, and nothing that was written before can land any more.
    Stopped(O),
}

/// A change of one record. All its attempts are remembered here, so that one whose answer was lost is recognised.
#[derive(Debug)]
pub(crate) struct Change<S: Slot, T> {
    backend: Arc<Backend>,
    slot: S,
    cas: Cas<S, T>,
    patience: Patience,
    /// An attempt may have landed, or may yet.
    in_doubt: bool,
}

impl<S: Slot + Clone, T: Clone> Change<S, T> {
    /// `base` is what was read or won last, or `None` if the record is taken to be missing.
    pub(crate) fn new(backend: &Arc<Backend>, slot: S, base: Option<Arc<Seen<S::Record>>>, patience: Patience) -> Self {
        let cas = Cas::sharing(Arc::clone(backend), slot.clone(), base);
        Self { backend: Arc::clone(backend), slot, cas, patience, in_doubt: false }
    }

    /// Whether a write of this change may have landed, or may yet.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Plans and writes until a write has landed, the plan stops, or the patience is over.
    ///
    /// The plan is asked again before every attempt: on the same base after an answer that left doubt, on what is there
    /// after a conflict. An error says `Unknown` if a write may have landed; calling again goes on from there.
    pub(crate) async fn run<O>(
        &mut self,
        mut plan: impl FnMut(Option<&Seen<S::Record>>, Stamp) -> Result<(T, Plan<S::Record, O>)>,
    ) -> Result<Changed<S::Record, T, O>> {
        let name = self.slot.name();
        let give_up = self.backend.clock.monotonic().plus(self.patience.within);
        let (mut conflicts, mut retries) = (0, 0);
        loop {
            let planned = self.cas.stamp().and_then(|stamp| plan(self.cas.seen(), stamp));
            let (ticket, record) = match planned.map_err(|error| error.in_doubt(self.in_doubt, &name, "changed"))? {
                (ticket, Plan::Write(record)) => (ticket, record),
                (_, Plan::Stop(outcome)) if !self.in_doubt => return Ok(Changed::Stopped(outcome)),
                // What was sent may still land: stopping here would say that it cannot.
                (_, Plan::Stop(_)) => {
                    return Err(Error::unknown(format!("whether {name} was changed is not known: look at it again")));
                }
            };
            self.in_doubt = true;
            match self.cas.send(ticket, record).await {
                Outcome::Won(seen, ticket) => {
                    self.in_doubt = false;
                    return Ok(Changed::Won(seen, ticket));
                }
                Outcome::Lost(there) => {
                    self.in_doubt = false;
                    let base = there.map(Arc::new);
                    self.cas = Cas::sharing(Arc::clone(&self.backend), self.slot.clone(), base);
                    conflicts += 1;
                    if conflicts == self.patience.conflicts {
                        return Err(Error::unavailable(format!(
                            "{name} changes too fast: {conflicts} writes in a row came too late; try again later"
                        )));
                    }
                    self.backend.pause(conflicts / 4).await;
                }
                Outcome::Unknown(error) => {
                    self.in_doubt = self.cas.is_in_doubt();
                    let over = self.backend.clock.monotonic() >= give_up;
                    if over || !error.is_retryable() || error.kind() == ErrorKind::Regressed {
                        return Err(error.in_doubt(self.in_doubt, &name, "changed"));
                    }
                    self.backend.pause(retries).await;
                    retries += 1;
                }
            }
        }
    }
}
