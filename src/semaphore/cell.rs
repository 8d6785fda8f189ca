//! One semaphore as this process sees it: what is asked of it, who waits, and which permits are kept.

use super::{
    core::Core,
    permit::Kept,
    record::SemaphoreSlot,
    rules::Wish,
    types::{Full, Slot, SlotRenewed},
};
use crate::{Hour, LeaseId, Result, Ttl, kind::Verdict, lease::Grant, sync::Locked as _};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Where an answer goes. A caller that has gone away has dropped the other end.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// One who asks for a slot.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) wish: Wish,
    pub(super) reply: Reply<Handed>,
}

/// What is asked of a semaphore, other than a slot.
#[derive(Debug)]
pub(super) enum Op {
    Renew { id: LeaseId, ttl: Option<Ttl>, old: Option<Grant>, reply: Reply<SlotRenewed> },
    Release { id: LeaseId, reply: Option<Reply<()>>, token: Option<TaskTrackerToken> },
    Resize { size: u32, reply: Reply<u32> },
    Settle { hour: Hour, dry_run: bool, reply: Reply<Verdict> },
}

/// The answer to a caller. A slot that is not taken out of it is given back.
#[derive(Debug)]
pub(super) struct Handed {
    answer: Option<std::result::Result<Slot, Full>>,
    cell: Arc<Cell>,
}

impl Handed {
    pub(super) fn new(cell: &Arc<Cell>, answer: std::result::Result<Slot, Full>) -> Self {
        Self { answer: Some(answer), cell: Arc::clone(cell) }
    }

    /// From here on the caller has it.
    pub(super) fn take(mut self) -> Option<std::result::Result<Slot, Full>> {
        self.answer.take()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(Ok(slot)) = self.answer.take() {
            self.cell.submit(Op::Release { id: slot.lease_id(), reply: None, token: None });
        }
    }
}

/// One semaphore, as this process sees it.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) slot: SemaphoreSlot,
    state: Mutex<State>,
    pub(super) changed: Notify,
    /// Starts the actor.
    pub(super) start: Box<dyn Start>,
}

/// Starts what looks after a cell.
pub(super) trait Start: std::fmt::Debug + Send + Sync {
    fn start(&self, cell: Arc<Cell>, core: Core);
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tries: Vec<Asker>,
    /// In the order of their coming.
    pub(super) waiters: VecDeque<Asker>,
    pub(super) ops: Vec<Op>,
    pub(super) kept: Vec<Arc<Kept>>,
    /// What is known, while no task runs for it.
    pub(super) core: Option<Core>,
    pub(super) running: bool,
    /// The last that was seen of a full semaphore.
    pub(super) full: Option<Full>,
    /// The handle of the cell itself, for what is started from it.
    this: std::sync::Weak<Cell>,
}

impl Cell {
    pub(super) fn new(slot: SemaphoreSlot, start: Box<dyn Start>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            slot,
            state: Mutex::new(State { this: this.clone(), ..State::default() }),
            changed: Notify::new(),
            start,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    /// Changes what there is to do, and starts a task for it if none runs.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, start) = {
            let mut state = self.lock();
            let changed = change(&mut state);
            let start = (!std::mem::replace(&mut state.running, true))
                .then(|| (state.this.upgrade(), state.core.take().unwrap_or_default()));
            (changed, start)
        };
        match start {
            Some((Some(this), core)) => self.start.start(this, core),
            Some((None, _)) | None => self.changed.notify_one(),
        }
        changed
    }

    pub(super) fn submit(&self, op: Op) {
        self.with(|state| state.ops.push(op));
    }

    /// A holder whose time is over has lost its slot, whether or not it could be renewed.
    pub(super) fn end_beliefs(&self) {
        let kept: Vec<_> = self.lock().kept.clone();
        for kept in kept {
            kept.is_lost();
        }
        self.lock().kept.retain(|kept| !kept.is_over());
    }

    /// Puts the core back if there is nothing to do; otherwise it is returned.
    pub(super) fn retire(&self, core: Core) -> Option<Core> {
        let mut state = self.lock();
        if state.tries.is_empty() && state.waiters.is_empty() && state.ops.is_empty() && state.kept.is_empty() {
            state.running = false;
            state.core = Some(core);
            return None;
        }
        Some(core)
    }

    /// Whether anybody of this process has to do with it.
    pub(super) fn is_idle(&self) -> bool {
        !self.lock().running
    }
}
