//! Jobs that are enqueued one by one from many places of a process share segments: group commit for producers.
//!
//! The first is sent at once. Those that come while one is on its way wait for its answer, at most for the linger of the
//! store, and then go together, in a call of their own: each has its own id, and its own error.

use super::{
    core::Core,
    enqueue::{EnqueueError, Fate, enqueue, failed, one},
    id::JobId,
    new::NewJob,
};
use crate::{Error, ErrorKind};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::oneshot;

/// How long jobs wait for each other where a request stays on the machine, and elsewhere.
const HERE: Duration = Duration::from_millis(2);
const ELSEWHERE: Duration = Duration::from_millis(20);
/// More do not fit into one segment.
const TOGETHER: usize = 2000;

type Told = Result<JobId, EnqueueError>;

#[derive(Debug)]
struct Waiting {
    job: NewJob,
    reply: oneshot::Sender<Told>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls on their way.
    sending: usize,
    waiting: Vec<Waiting>,
    /// How often those that wait were sent: whose time is over after that is none of theirs.
    round: u64,
}

/// The jobs of one queue that are enqueued one by one.
#[derive(Debug, Default)]
pub(crate) struct Singles(Mutex<State>);

impl Singles {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on its way. When it ends, however that is, those that have waited go.
struct Sending(Arc<Core>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.singles.lock().sending -= 1;
        send_waiting(&self.0, None);
    }
}

fn linger(core: &Core) -> Duration {
    let usual = if core.backend().is_here() { HERE } else { ELSEWHERE };
    core.shared.options.linger.unwrap_or(usual)
}

/// Enqueues one job, with others that come at the same time.
pub(super) async fn enqueue_one(core: Arc<Core>, job: NewJob) -> Told {
    let linger = linger(&core);
    if linger.is_zero() {
        return one(enqueue(core, vec![job]).await?);
    }
    let told = {
        let mut state = core.singles.lock();
        if state.sending == 0 {
            state.sending = 1;
            None
        } else {
            let (reply, told) = oneshot::channel();
            state.waiting.push(Waiting { job: job.clone(), reply });
            let (first, full, round) = (state.waiting.len() == 1, state.waiting.len() >= TOGETHER, state.round);
            drop(state);
            if full {
                send_waiting(&core, Some(round));
            } else if first {
                send_later(&core, linger, round);
            }
            Some(told)
        }
    };
    match told {
        None => {
            let _sending = Sending(Arc::clone(&core));
            one(enqueue(core, vec![job]).await?)
        }
        Some(told) => told.await.unwrap_or_else(|_| {
            let error = Error::unknown("the store was closed while a job was enqueued: whether it was is not known");
            Err(failed(error, 1))
        }),
    }
}

/// Those that wait by then are sent, whatever is on its way.
fn send_later(core: &Arc<Core>, linger: Duration, round: u64) {
    let core = Arc::clone(core);
    let shared = Arc::clone(&core.shared);
    let later = async move {
        core.backend().clock.sleep(linger).await;
        send_waiting(&core, Some(round));
    };
    shared.runtime.spawn(later);
}

/// Sends those that wait; of a round, if those of it still do.
fn send_waiting(core: &Arc<Core>, of: Option<u64>) {
    let waiting = {
        let mut state = core.singles.lock();
        if of.is_some_and(|of| of != state.round) {
            return;
        }
        // A job whose caller has gone was not sent, and is not.
        state.waiting.retain(|waiting| !waiting.reply.is_closed());
        if state.waiting.is_empty() {
            return;
        }
        state.round += 1;
        state.sending += 1;
        std::mem::take(&mut state.waiting)
    };
    let (sending, shared) = (Sending(Arc::clone(core)), Arc::clone(&core.shared));
    shared.tasks.spawn_on(async move { send(&sending, waiting).await }, &shared.runtime);
}

async fn send(sending: &Sending, waiting: Vec<Waiting>) {
    let core = &sending.0;
    let jobs: Vec<NewJob> = waiting.iter().map(|waiting| waiting.job.clone()).collect();
    match enqueue(Arc::clone(core), jobs).await {
        Ok(ids) => waiting.into_iter().zip(ids).for_each(|(waiting, id)| drop(waiting.reply.send(Ok(id)))),
        Err(error) => {
            for (waiting, fate) in waiting.into_iter().zip(error.fates()) {
                let told = match *fate {
                    Fate::Enqueued(id) => Ok(id),
                    // What one of them is refused for is not the others' error.
                    Fate::NotEnqueued if error.kind() == ErrorKind::Invalid => {
                        enqueue(Arc::clone(core), vec![waiting.job]).await.and_then(one)
                    }
                    fate => Err(EnqueueError::of_one(error.error(), fate)),
                };
                drop(waiting.reply.send(told));
            }
        }
    }
}
