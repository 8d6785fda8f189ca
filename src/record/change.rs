//! A change that is nothing but a plan: what to write, by what is there.

use super::repeat::{Attempted, Attempts, Changed, Patience, repeat};
use crate::{
    Error, ErrorKind, Result,
    storage::{
        Backend,
        cas::{Cas, Outcome, Seen, Slot, Stamp},
    },
};
use std::sync::Arc;

/// What is to be done about a record.
pub(crate) enum Plan<R, O> {
    /// Write this. It must carry the stamp that the plan was given.
    Write(R),
    /// Nothing: this is the outcome.
    Stop(O),
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
    #[cfg_attr(not(test), allow(dead_code, reason = "for kinds that go on with a change"))]
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Plans and writes until a write has landed, the plan stops, or the patience is over.
    ///
    /// The plan is asked again before every attempt: on the same base after an answer that left doubt, on what is there
    /// after a conflict. It must not stop while a write may yet land: that is an error, as is everything else that leaves
    /// it open. An error says `Unknown` if a write may have landed; calling again goes on from there.
    pub(crate) async fn run<O>(
        &mut self,
        plan: impl FnMut(Option<&Seen<S::Record>>, Stamp) -> Result<(T, Plan<S::Record, O>)>,
    ) -> Result<Changed<S::Record, T, O>> {
        let backend = Arc::clone(&self.backend);
        let patience = self.patience;
        let mut planned = Planned { change: self, plan, _outcome: [] };
        let changed = repeat(&backend, patience, &mut planned).await;
        let name = self.slot.name();
        match changed {
            // What was sent may still land: stopping here would say that it cannot.
            Ok(Changed::Stopped(_)) if self.in_doubt => {
                Err(Error::unknown(format!("whether {name} was changed is not known: look at it again")))
            }
            // A store that went back is told as that: what has become of the write is not the question any more.
            Err(error) if error.kind() == ErrorKind::Regressed => Err(error),
            changed => changed.map_err(|error| error.in_doubt(self.in_doubt, &name, "changed")),
        }
    }
}

struct Planned<'a, S: Slot, T, F, O> {
    change: &'a mut Change<S, T>,
    plan: F,
    /// Only a type: what the plan comes to if it stops.
    _outcome: [fn() -> O; 0],
}

impl<S, T, F, O> Attempts for Planned<'_, S, T, F, O>
where
    S: Slot + Clone,
    T: Clone,
    F: FnMut(Option<&Seen<S::Record>>, Stamp) -> Result<(T, Plan<S::Record, O>)>,
{
    type Slot = S;
    type Ticket = T;
    type Outcome = O;

    async fn attempt(&mut self) -> Result<Attempted<S::Record, T, O>> {
        let Change { cas, in_doubt, .. } = &mut *self.change;
        let stamp = cas.stamp()?;
        let (ticket, record) = match (self.plan)(cas.seen(), stamp)? {
            (ticket, Plan::Write(record)) => (ticket, record),
            (_, Plan::Stop(outcome)) => return Ok(Attempted::Stopped(outcome)),
        };
        // From before it is sent: this future may be dropped.
        *in_doubt = true;
        let outcome = cas.send(ticket, record).await;
        *in_doubt = matches!(outcome, Outcome::Unknown(_)) && cas.is_in_doubt();
        Ok(Attempted::Sent(outcome))
    }

    fn lost(&mut self, there: Option<Seen<S::Record>>) -> Result<()> {
        let Change { backend, slot, cas, .. } = &mut *self.change;
        *cas = Cas::sharing(Arc::clone(backend), slot.clone(), there.map(Arc::new));
        Ok(())
    }

    fn what(&self) -> (String, &'static str) {
        (self.change.slot.name().to_string(), "changed")
    }
}
