//! One read answers all who wait for it: requests and reads of a key that another operation of this process has locked.
//!
//! The operation that locks the key next finds out for all who were waiting *before it sent anything*; an answer is never
//! given to one who came later. What the answer does not settle is done by each in turn: a grant, a clearing.

use super::{
    state::KeyState,
    types::{Held, Request, Status},
};
use crate::{Result, record::Right, sync::Locked as _};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::oneshot;

/// Operations of this process that wait to be told about a key.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// The number of the last one. Never falls, also when all have gone.
    last: u64,
    asked: BTreeMap<u64, Asked>,
}

/// What an operation asks, and where to send the answer.
#[derive(Debug)]
pub(super) enum Asked {
    /// Whether the key can be had. One with a request id may have it already, which is compared.
    Try(Option<Box<Request>>, oneshot::Sender<Result<Held>>),
    /// What is known of the key.
    Look(oneshot::Sender<Result<Status>>),
}

/// How waiting ended.
#[allow(clippy::large_enum_variant, reason = "taken apart as soon as it is made")]
pub(super) enum Turn<A> {
    /// Another operation has found out.
    Told(A),
    /// This operation has locked the key, and finds out for others as well.
    Ours(Right<KeyState>),
}

/// Who was waiting, and what was known, before an operation sent anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    pub(super) last: u64,
    pub(super) learnt: u64,
}

/// A place among those who wait. Dropping it leaves no trace.
pub(super) struct Place<'a, A> {
    tries: &'a Tries,
    number: u64,
    pub(super) answer: oneshot::Receiver<Result<A>>,
}

impl Asked {
    pub(super) fn to_try(request: &Request, answer: oneshot::Sender<Result<Held>>) -> Self {
        Self::Try(request.request_id.is_some().then(|| Box::new(request.clone())), answer)
    }
}

impl Tries {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.locked()
    }

    pub(super) fn join<A>(&self, ask: impl FnOnce(oneshot::Sender<Result<A>>) -> Asked) -> Place<'_, A> {
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.lock();
        waiting.last += 1;
        let number = waiting.last;
        waiting.asked.insert(number, ask(sender));
        Place { tries: self, number, answer }
    }

    /// The number of the last one that has come.
    pub(super) fn last(&self) -> u64 {
        self.lock().last
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().asked.is_empty()
    }

    /// Answers those up to a number, each as far as there is an answer. The others go on waiting.
    pub(super) fn tell(
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
