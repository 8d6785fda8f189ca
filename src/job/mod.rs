//! Jobs: queues on nothing but an object store.
//!
//! *Enqueuing touches nothing shared; one compare-and-swap per cycle does everything else, for a whole batch at once.*
//!
//! # Where a job is
//!
//! An enqueue creates one immutable object, a **segment** with up to some thousand jobs, in the inbox of one of the queue's
//! shards. Nobody is asked, nothing is read: when the create is answered, the jobs are safe. A job's id is its segment's id
//! with its index in it (`id`, `layout`, `segment`).
//!
//! Everything that changes stands in the shard's **ledger** (`ledger`), a record of some ten kilobytes that is replaced as
//! a whole by compare-and-swap. Each job is in exactly one place:
//!
//! | state | where | how it leaves |
//! |---|---|---|
//! | enqueued | its segment in `in/` or `at/`, unknown to the ledger | absorbed; buried if it cannot be read |
//! | scheduled, unread | an *unread* range of its row | read into a run a minute before it is due |
//! | available, scheduled, retrying, paused | a *run* of its row: neighbours that are alike | claimed, cancelled, spilled |
//! | running | an *item* of a claim: a run with a bit for each job that is not answered for | finished, failed, snoozed, given back, cancelled, moved; or its process dies |
//! | spilled | an unread range of a segment in `seg/`, its own row's *moved* ranges remember it | as scheduled |
//! | being buried | the *dead* list, with the name of the object to be written | the object is there |
//! | being moved | the list of *moves*, with the name of the segment to be written | the segment is there |
//! | finished, dead, cancelled, dropped as a duplicate, moved | nowhere: a counter | |
//!
//! When the last job of a segment has ended, its row goes; a segment of an inbox enters the *finished list* in the same
//! commit, so that a stale listing or a late create cannot bring it back, and stays there until its name can no longer be met.
//!
//! # The cycle
//!
//! A process that works on a shard has one committer for it. Operations (`apply::Op`) that come while a
//! compare-and-swap is on its way wait for the next one:
//!
//! 1. Take the ledger that is known, or read it. If commits of one's own are in doubt, `apply::verdict` says by the
//!    session's last `write_id` which of them landed: only the operations of that ticket are answered.
//! 2. Add what the ledger asks for (`Ledger::to_open`, `to_spill`, `to_delete`, `to_forget`,
//!    `dead_to_write`, `moves_to_write`, `to_look_at`, `to_give_back`) and what a listing has shown.
//! 3. `apply::apply`: a pure function from a ledger and operations to a ledger and outcomes. Nothing it says counts yet.
//! 4. Write. Won: the outcomes are told, the claimed jobs start, finished names are deleted. Lost: the same operations
//!    on what is there now. Unknown: step 1.
//!
//! Nobody cleans up behind others in the background: whoever commits next settles what has ended, and an idle process
//! knows from `wakes_after` when to look again.
//!
//! # What holds
//!
//! No job that was acknowledged is lost, and none is in two places: every transition conserves them, and no clock can void
//! one; errors lean towards running twice. Each attempt has a higher fence than the one before. A process that lives is
//! never robbed, however long its job runs; one that has died answers for nothing that somebody else has claimed since. A cap that
//! is full stops what would fill it further, and drops nothing.

mod answer;
pub(crate) mod apply;
mod attempt;
mod capacity;
mod check;
mod claiming;
mod committer;
mod core;
mod counters;
mod dead;
mod depth;
mod duty;
mod enqueue;
mod events;
mod fetch;
#[cfg(any(test, feature = "_internals"))]
pub(crate) mod fuzz;
pub(crate) mod id;
mod inbox;
mod info;
mod keys;
mod kind;
pub(crate) mod layout;
pub(crate) mod ledger;
mod list;
mod manage;
mod new;
mod options;
mod queue;
mod queues;
mod rebuild;
mod redrive;
mod schedule;
pub(crate) mod segment;
mod session;
mod settings;
mod slot;
mod together;
mod tracker;
mod transaction;
mod whole;
pub(crate) mod worker;

pub use answer::{Answering, AttemptEnd, StaleAttempt};
pub use attempt::Job;
pub use claiming::Claim;
pub(crate) use core::Shared;
pub use dead::{DeadFilter, DeadJob, DeadLetter, DeadLetters, DeadList, DeadPage};
pub use depth::QueueDepth;
pub use enqueue::{Enqueue, EnqueueError, EnqueueInTransaction, EnqueueOne, Enrolled, Fate};
pub use id::JobId;
pub use info::{Cancelled, JobInfo, JobState};
pub use keys::{KeyLimit, Keys};
pub(crate) use kind::{DECLARATION, JobKind};
pub use ledger::{Backoff, JobEvents, Reason as DeadReason, Shape as BackoffShape};
pub use list::{JobList, JobPage};
pub use manage::{JobChange, Purge, Purged};
pub use new::{ARGS, NewJob};
pub use options::JobOptions;
pub use queue::Queue;
pub(crate) use queue::open as open_queue;
pub use queues::Queues;
pub use rebuild::Rebuilt;
pub use redrive::{DeadPurge, Redriven, Redriving};
pub use schedule::{NewSchedule, ScheduleChange, ScheduleInfo, Schedules};
pub use settings::{KindSettings, QueueSettings};
pub use tracker::{InFlight, NewTracked, Recovered, RecoveredJob, Recovery, Tracked, Tracker};
pub use worker::{
    CancelReason, IntoOutcome, JobContext, JobOutcome, KindOptions, RunningJob, Worker, WorkerBuilder, WorkerHealth,
    WorkerState, typed, with_state,
};
