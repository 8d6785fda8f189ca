//! The whole transition of a ledger, without any input or output: `apply(ledger, operations) -> (ledger, outcomes)`.
//!
//! A committer gathers the operations that have come while its last compare-and-swap was on its way, applies them to
//! the ledger that it knows, and writes the result. If it has lost, it applies the same operations to what it finds
//! instead: every operation names what it is about, so it means the same on any base, and what no longer holds is refused
//! by content. An outcome counts only when the write that it belongs to is known to have landed.

mod absorb;
mod answer;
mod cancel;
mod claim;
mod dead;
mod doubt;
mod finished;
mod letters;
mod limits;
mod look;
mod next;
mod outbox;
mod owner;
mod recover;
mod slots;
mod spill;
mod track;
mod verbs;
mod work;

pub(crate) use absorb::{HORIZON, unread_of};
pub(crate) use answer::{Answer, Answered, Home};
pub(crate) use claim::Taken;
pub(crate) use doubt::{Attempt, Verdict, verdict};
pub(crate) use letters::{Redrive, TakeLetters};
pub(crate) use look::{Depth, Found, HOUR, jobs_of};
pub(crate) use next::ToSpill;
pub(crate) use owner::WAITS;
pub(crate) use slots::{Backfill, DueSlots, LONGEST_INLINE};
pub(crate) use spill::{Moving, Spill};
pub(crate) use track::{Begin, Begun};

use super::{
    id::SegmentId,
    layout::SegmentName,
    ledger::{ClaimId, JobRef, Ledger, Millis, Policy, Reason, Schedule, Session, SessionId},
    segment::Facts,
};
use crate::{Fence, WriteId, clock::Timestamp};
use std::sync::Arc;
use work::Work;

/// What a committer wants of a ledger.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// A segment that the inbox shows is taken in.
    Absorb {
        name: SegmentName,
        facts: Arc<Facts>,
    },
    /// A segment that the inbox shows, and that cannot be or must not be run, is buried as it is.
    BuryRaw {
        name: SegmentName,
        reason: Reason,
    },
    /// Jobs of a live segment that were unread become claimable.
    Open {
        facts: Arc<Facts>,
    },
    /// Up to `want` jobs for this process.
    Claim {
        claim: ClaimId,
        want: u32,
        /// It has nothing in hand from other ledgers.
        idle_elsewhere: bool,
    },
    /// Jobs that another system runs are in hand of this process from now on.
    Begin(Begin),
    /// What has become of one claimed job.
    Answer(Answer),
    /// A session has ended for good, which somebody has proved: what it had in hand comes back.
    Recover {
        session: SessionId,
    },
    /// Waiting jobs go to a segment of their own in `seg/`.
    Spill(Arc<Spill>),
    /// One job is not to be run any more. `in_inbox`: a listing has shown its segment.
    Cancel {
        job: JobRef,
        in_inbox: bool,
    },
    /// A segment that was never taken in is gone: cancels of its jobs mean nothing any more.
    Unmark {
        segment: SegmentId,
    },
    /// One waiting job is held back, or no longer.
    Pause {
        job: JobRef,
        paused: bool,
    },
    /// One job of a live segment that is unread becomes claimable, however late it is due.
    OpenOne {
        index: u16,
        facts: Arc<Facts>,
    },
    /// One waiting job is due now.
    RunNow {
        job: JobRef,
    },
    /// Everything that waits is ended as cancelled.
    Purge,
    /// A segment that the inbox shows is ended as cancelled, and never read.
    Discard {
        name: SegmentName,
    },
    /// Dead letters are taken out of their object: put back into the queue, or given up.
    TakeLetters(Arc<TakeLetters>),
    /// The delete of an object of dead letters was confirmed.
    LettersGone {
        plan: WriteId,
    },
    /// How many jobs of a key may run at once; none for what the queue says.
    Limit {
        key: u64,
        name: Arc<str>,
        most: Option<u32>,
    },
    /// Jobs of a key that wait for their next attempt run at once.
    Unblock {
        key: u64,
    },
    /// The delete of a finished segment, unconfirmed since then, was confirmed for that very name.
    Confirm {
        segment: SegmentId,
        since: Millis,
    },
    /// A listing shows a name whose delete was confirmed: it has to be deleted again.
    Unconfirm {
        segment: SegmentId,
    },
    /// These were not shown by a listing from the folder's start that is at most 30 s old.
    Forget {
        segments: Vec<SegmentId>,
    },
    /// The object of a plan of dead letters is there.
    DeadWritten {
        plan: WriteId,
    },
    /// The segment that takes a job to another queue is there.
    MoveWritten {
        job: JobRef,
        target: SegmentId,
    },
    /// These objects in `seg/` are to be deleted unless the ledger names them.
    /// Events from the first of the outbox up to this one stand in an object of `seg/`, written under this `gc_epoch`.
    SpillEvents {
        segment: SegmentId,
        epoch: u64,
        from: u64,
        through: u64,
    },
    /// The events of such an object have been published.
    SpillPublished {
        segment: SegmentId,
    },
    RaiseEpoch {
        candidates: Vec<SegmentId>,
    },
    /// A schedule is added or changed. `at_start`: a new one has its first slot now.
    PutSchedule {
        schedule: Arc<Schedule>,
        at_start: bool,
    },
    RemoveSchedule {
        schedule: [u8; 16],
    },
    /// A schedule inserts nothing more, or goes on with its `next` slot.
    PauseSchedule {
        schedule: [u8; 16],
        paused: bool,
        next: Option<Millis>,
    },
    /// Slots of a schedule are due: their jobs are inserted, each once.
    Insert(Arc<DueSlots>),
    /// Slots that were missed are inserted after all, each once.
    Backfill(Arc<Backfill>),
    /// Events up to this one have left the outbox.
    Published {
        through: u64,
    },
    /// This process has nothing in hand and none of its commits is in doubt: its row goes.
    Close,
}

impl Op {
    /// Whether the operation may be sent again after its session's row was found to be gone, when nobody can say whether
    /// it has landed. What names an object of `seg/` may have landed, ended, and its object been deleted.
    pub(crate) fn may_be_sent_again_in_doubt(&self) -> bool {
        match self {
            Self::Spill(_) | Self::Begin(_) | Self::SpillEvents { .. } => false,
            Self::TakeLetters(take) => take.into.is_none(),
            Self::Answer(answer) => answer.into.is_none(),
            _ => true,
        }
    }
}

/// What has become of an operation, if its commit lands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// Done as asked.
    Done,
    /// There was nothing to do: it has been done before, or there is no such thing.
    Nothing,
    Absorbed {
        dropped: Vec<(u16, JobRef)>,
    },
    /// Live or finished under this very name. `confirmed`: finished, and its delete was confirmed, so it must be
    /// made unconfirmed before it is deleted again.
    Known {
        confirmed: bool,
    },
    /// The id is known under another name: reported and left, never deleted.
    KnownOtherwise(SegmentName),
    /// The table is not that of the name, or not of this shard.
    Mismatch,
    /// No room now: the caller keeps the operation, or leaves the segment in the inbox.
    Full(Full),
    Claimed {
        claim: ClaimId,
        fence: Fence,
        jobs: Vec<Taken>,
    },
    /// Nothing can be claimed.
    NothingToClaim(Idle),
    /// The attempt has ended by this answer. `late`: it had been taken away, and nobody has claimed the job since.
    Ended {
        late: bool,
    },
    /// The job waits until then.
    Waits {
        due: Millis,
    },
    /// The job is on the dead list.
    Buried,
    /// A cancel came before; the job has ended as cancelled.
    CancelledInstead,
    /// This attempt has answered for the job before.
    AnsweredBefore,
    /// The attempt is over.
    StaleAttempt(Stale),
    /// The object of `seg/` that it names may be gone: it must be written again under a new name.
    WriteAgain,
    Recovered(Recovered),
    Spilled {
        moved: u16,
    },
    /// So many waiting jobs were ended.
    Purged {
        jobs: u64,
    },
    /// These were taken out of an object of dead letters, by index; so many others are left in it.
    LettersTaken {
        taken: Vec<u16>,
        left: u16,
    },
    /// What it is about is being written: try again.
    NotYet,
    /// So many jobs of a key need not wait any longer.
    Unblocked {
        jobs: u32,
    },
    /// So many missed slots were inserted.
    Backfilled {
        inserted: u32,
    },
    /// Marked; its handler is told.
    Asked,
    /// Lives on in a segment of `seg/` whose span covers its id.
    Elsewhere,
    /// The job is unread: open its segment first.
    ReadFirst,
    NotFound,
    /// Delete these names, once the commit is known to have landed.
    Delete(Vec<SegmentName>),
    /// Delete these objects of `seg/`, once the commit is known to have landed.
    Orphans(Vec<SegmentId>),
}

/// What has no room left. Nothing is dropped for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Full {
    Size,
    Rows,
    /// Rows with nothing but jobs of keys at their limit and paused ones; one of the keys.
    Blocked {
        key: u64,
    },
    FinishedList,
    UniqueKeys,
    DeadList,
    Moves,
    Cancels,
    /// Objects of dead letters of which only a part was taken.
    Letters,
    /// Keys with a limit of their own.
    Limits,
    Schedules,
}

/// Why a claim was given nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Idle {
    /// Nothing is due that could run.
    NothingDue,
    Paused,
    /// A job that is suspected of killing its process is run alone.
    RunsAlone,
    /// Too many retries stand in the ledger: they have to be spilled first.
    SpillFirst,
    /// The rate lets none start now.
    Rate,
    /// The ledger could not take back what it would hand out.
    NoRoom,
    NoSession,
    /// The fences are used up.
    NoFence,
}

/// Where a job is whose attempt is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stale {
    /// Another attempt has it.
    Held { owner: Arc<str>, session: SessionId, since: Timestamp, fence: Fence },
    /// It waits to be claimed again.
    Waiting,
    /// It has ended, is about to be buried or moved, or lives on in a segment of `seg/`.
    Gone,
}

/// What came back from a dead process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Recovered {
    pub(crate) waiting: u32,
    pub(crate) cancelled: u32,
    pub(crate) buried: u32,
    pub(crate) charged: u32,
}

/// The session under which a commit is made.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) id: SessionId,
    pub(crate) lease: [u8; 16],
    pub(crate) owner: Arc<str>,
    pub(crate) until: Millis,
    /// An earlier commit of it is known to have landed here: its row must be there.
    pub(crate) has_row: bool,
}

/// What may stand in a ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    /// Above this nothing is absorbed.
    pub(crate) size: usize,
    /// Above this nothing is claimed.
    pub(crate) longest: usize,
    pub(crate) rows: usize,
    pub(crate) blocked: usize,
    /// Runs that are open at once.
    pub(crate) runs: usize,
    /// Runs of jobs that have been claimed before; above it they have to be spilled.
    pub(crate) retries: usize,
    pub(crate) finished: usize,
    pub(crate) sessions: usize,
    pub(crate) dead: usize,
    pub(crate) moves: usize,
    pub(crate) unique: usize,
    pub(crate) cancels: usize,
    pub(crate) letters: usize,
    /// Of all error texts together.
    pub(crate) errors: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            size: 256 << 10,
            longest: 1 << 20,
            rows: 1024,
            blocked: 1024,
            runs: 8192,
            retries: 2000,
            finished: 4096,
            sessions: 1024,
            dead: 4096,
            moves: 1024,
            unique: 16_384,
            cancels: 4096,
            letters: 512,
            errors: 64 << 10,
        }
    }
}

/// With what a commit is made.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// The lower end of the store's time.
    pub(crate) now: Timestamp,
    /// Of this attempt, fresh.
    pub(crate) write_id: WriteId,
    /// None for operations of the program, which are idempotent by content.
    pub(crate) session: Option<Ticket>,
    /// The revision of `queue.json` that this process goes by, and what it says.
    pub(crate) settings: u64,
    pub(crate) policy: Arc<Policy>,
    /// Of `store.json`.
    pub(crate) epoch: u64,
    pub(crate) caps: Caps,
}

/// Why nothing at all may be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The ledger goes by later settings: read `queue.json` again. If that is not later, it was restored from a backup.
    OlderSettings { ours: u64, ledgers: u64 },
    /// Somebody found this session to have ended.
    SessionEnded,
    /// No room for one more session.
    SessionsFull,
}

/// A ledger to be written, and what it means.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) ledger: Ledger,
    /// As many as operations, in their order.
    pub(crate) outcomes: Vec<Outcome>,
    /// Whether it differs from its base in more than time: otherwise there is nothing to write.
    pub(crate) changed: bool,
    /// Finished by this commit: to be deleted once it is known to have landed.
    pub(crate) finished: Vec<SegmentName>,
    /// Segments of `seg/` that are not named any more: to be deleted once it is known to have landed.
    pub(crate) unnamed: Vec<SegmentId>,
}

/// Applies the operations to a ledger. Claims come last, whatever their place in the list: they may take what the others
/// have brought.
pub(crate) fn apply(base: &Ledger, operations: &[Op], context: &Context) -> Result<Applied, Refused> {
    if context.settings < base.settings {
        return Err(Refused::OlderSettings { ours: context.settings, ledgers: base.settings });
    }
    if let Some(ticket) = &context.session {
        let known = base.session(ticket.id).is_some();
        if base.ended.iter().any(|ended| ended.session == ticket.id) || (ticket.has_row && !known) {
            return Err(Refused::SessionEnded);
        }
        // What the same commit recovers makes room, or a list full of the dead would keep everybody out.
        let leaves = |session: &&Session| {
            operations.iter().any(|operation| matches!(operation, Op::Recover { session: gone } if *gone == session.id))
        };
        let staying = || base.sessions.len() - base.sessions.iter().filter(leaves).count();
        if !known && base.sessions.len() >= context.caps.sessions && staying() >= context.caps.sessions {
            return Err(Refused::SessionsFull);
        }
    }
    let mut work = Work::new(base, context);
    let mut outcomes = vec![Outcome::Nothing; operations.len()];
    for claims in [false, true] {
        for (operation, outcome) in operations.iter().zip(&mut outcomes) {
            if matches!(operation, Op::Claim { .. }) == claims {
                *outcome = work.carry_out(operation);
            }
        }
    }
    Ok(work.close(outcomes))
}

#[cfg(test)]
mod tests;
