//! The writes of one operation on one record, from before the first is sent until they are known to have landed or not.

use crate::{
    WriteId,
    storage::{
        Backend,
        cas::{Cas, Outcome, Seen, Slot, Stamp},
    },
};
use std::{sync::Arc, time::Duration};

/// The writes of one operation on one base. An attempt whose future is dropped stays here, and is recognised if it landed.
#[derive(Debug)]
pub(crate) struct InFlight<S: Slot, T> {
    cas: Option<Cas<S, T>>,
    in_doubt: bool,
}

impl<S: Slot, T> Default for InFlight<S, T> {
    fn default() -> Self {
        Self { cas: None, in_doubt: false }
    }
}

impl<S: Slot, T: Clone> InFlight<S, T> {
    /// Nothing is sent yet; the attempts will be based on this.
    pub(crate) fn on(backend: &Arc<Backend>, slot: S, base: Option<Arc<Seen<S::Record>>>) -> Self {
        Self { cas: Some(Cas::sharing(Arc::clone(backend), slot, base)), in_doubt: false }
    }

    /// Whether a base was given and is still the one.
    pub(crate) fn has_base(&self) -> bool {
        self.cas.is_some()
    }

    /// Sends one write, and waits no longer than `limit` for its answer, or than for the one before. `build` makes the
    /// record from the base and the stamp that it must carry. `None` if there is no base.
    pub(crate) async fn attempt(
        &mut self,
        limit: Option<Duration>,
        ticket: T,
        build: impl FnOnce(Option<&Seen<S::Record>>, Stamp) -> S::Record,
    ) -> Option<Outcome<S::Record, T>> {
        let cas = self.cas.as_mut()?;
        self.in_doubt = true;
        limit.into_iter().for_each(|limit| cas.set_limit(limit));
        Some(match cas.stamp() {
            Ok(stamp) => {
                let record = build(cas.seen(), stamp);
                cas.send(ticket, record).await
            }
            Err(error) => Outcome::Unknown(error),
        })
    }

    /// They are won or lost: none of them can land any more.
    pub(crate) fn settled(&mut self) {
        *self = Self::default();
    }

    /// Whether the last attempt is not known to have been won or lost.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether an attempt so far may have landed, or may yet: one that was refused has not, whatever it was refused for.
    pub(crate) fn may_land(&self) -> bool {
        self.cas.as_ref().is_some_and(Cas::is_in_doubt)
    }

    /// The ticket of an attempt.
    pub(crate) fn ticket(&self, id: WriteId) -> Option<&T> {
        self.cas.as_ref()?.ticket(id)
    }

    /// All attempts so far.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = (WriteId, &T)> {
        self.cas.iter().flat_map(Cas::tickets)
    }
}
