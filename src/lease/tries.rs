//! One read answers all who wait for it: tries and looks at a key that another operation of this process is busy with.
//!
//! Whoever gets the right to change the key first finds out for all who were waiting *before it sent anything*; an answer
//! is never given to one who came later. What the answer does not settle is done by each in turn: a grant, a clearing.

use super::{
    cell::{Cell, Core, Known},
    ended::State,
    engine::{Engine, repeats},
    judge::status,
    types::{Held, Request, Status},
};
use crate::record::Right;
use crate::{Error, ErrorKind, Result};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Who of this process waits to hear of a key.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// The number of the last who came. Never falls, also when all have gone.
    last: u64,
    asked: BTreeMap<u64, Asked>,
}

/// What somebody wants to hear, and where to tell it.
#[derive(Debug)]
pub(super) enum Asked {
    /// Whether the key can be had. One with a request id may have it already, and is named for that.
    Try(Option<Box<Request>>, oneshot::Sender<Result<Held>>),
    /// What there is.
    Look(oneshot::Sender<Result<Status>>),
}

/// What becomes of waiting.
#[allow(clippy::large_enum_variant, reason = "taken apart as soon as it is made")]
pub(super) enum Turn<A> {
    /// Somebody else has found out.
    Told(A),
    /// It is this one's turn to find out, for others as well.
    Ours(Right<Core>),
}

/// Who had come, and what was known, before an operation sent anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    last: u64,
    learnt: u64,
}

/// A place among those who wait. Leaving it leaves no trace.
struct Place<'a, A> {
    tries: &'a Tries,
    number: u64,
    answer: oneshot::Receiver<Result<A>>,
}

impl Asked {
    pub(super) fn to_try(request: &Request, answer: oneshot::Sender<Result<Held>>) -> Self {
        Self::Try(request.request_id.is_some().then(|| Box::new(request.clone())), answer)
    }
}

impl Tries {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join<A>(&self, ask: impl FnOnce(oneshot::Sender<Result<A>>) -> Asked) -> Place<'_, A> {
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.lock();
        waiting.last += 1;
        let number = waiting.last;
        waiting.asked.insert(number, ask(sender));
        Place { tries: self, number, answer }
    }

    /// Tells those up to a number what there is to tell each of them. Who is told nothing goes on waiting.
    fn tell(
        &self,
        last: u64,
        held: impl Fn(Option<&Request>) -> Option<Result<Held>>,
        status: impl Fn() -> Option<Result<Status>>,
    ) {
        let mut waiting = self.lock();
        let later = waiting.asked.split_off(&(last + 1));
        let told = std::mem::replace(&mut waiting.asked, later);
        for (number, asked) in told {
            // One that has just gone needs no answer.
            let waits_on = match asked {
                Asked::Try(request, answer) => match held(request.as_deref()) {
                    Some(held) => {
                        let _ = answer.send(held);
                        None
                    }
                    None => Some(Asked::Try(request, answer)),
                },
                Asked::Look(answer) => match status() {
                    Some(status) => {
                        let _ = answer.send(status);
                        None
                    }
                    None => Some(Asked::Look(answer)),
                },
            };
            waiting.asked.extend(waits_on.map(|asked| (number, asked)));
        }
    }
}

impl<A> Drop for Place<'_, A> {
    fn drop(&mut self) {
        self.tries.lock().asked.remove(&self.number);
    }
}

impl Engine {
    /// Waits until it is this one's turn to find out about a key, or somebody else has. At once where nobody is busy with
    /// the key.
    pub(super) async fn turn<A>(
        &self,
        cell: &Cell,
        ask: impl FnOnce(oneshot::Sender<Result<A>>) -> Asked,
    ) -> Result<Turn<A>> {
        if let Some(core) = cell.core.try_take() {
            return Ok(Turn::Ours(core));
        }
        let mut place = cell.tries.join(ask);
        let held = tokio::select! {
            biased;
            Ok(answer) = &mut place.answer => return answer.map(Turn::Told),
            held = self.hold(cell) => held,
        };
        match place.answer.try_recv() {
            Ok(answer) => answer.map(Turn::Told),
            Err(_) => held.map(Turn::Ours),
        }
    }

    /// To be taken with the right to change the key in hand, before anything is sent.
    pub(super) fn before(&self, cell: &Cell, core: &Core) -> Before {
        Before { last: cell.tries.lock().last, learnt: core.learnt() }
    }

    /// Tells all who were waiting before what the store has answered since, as far as that settles what they ask.
    pub(super) fn tell_others(&self, cell: &Cell, core: &Core, before: Before) {
        if core.learnt() == before.learnt || cell.tries.lock().asked.is_empty() {
            return;
        }
        // It could not be made use of.
        if matches!(core.known, Known::Nothing) {
            return;
        }
        let now = self.now();
        let state = self.judge(core, now, None);
        let held = |request: Option<&Request>| {
            // Whoever finds it free takes it.
            let lease = state.held()?;
            if request.is_some_and(|request| repeats(core, request, lease, now)) {
                return None;
            }
            self.counters.refused(1);
            Some(Ok(self.held(core, now)))
        };
        // Whoever looks at an ended lease clears it.
        let settled = !matches!(state, State::Ended(_));
        cell.tries.tell(before.last, held, || settled.then(|| Ok(status(&cell.slot.key, core.record(), state))));
    }

    /// Tells all who were waiting before that the store does not answer: each of them would hear the same, one after the
    /// other.
    pub(super) fn fail_others(&self, cell: &Cell, core: &Core, before: Before, error: &Error) {
        if core.learnt() == before.learnt && error.kind() == ErrorKind::Unavailable {
            cell.tries.tell(before.last, |_| Some(Err(error.clone())), || Some(Err(error.clone())));
        }
    }
}
