//! The ledger: the one record of a shard that says what is in flight, changed by compare-and-swap only.
//!
//! A segment that was absorbed has a **row**. Each of its jobs is in exactly one place: in the row's *unread* ranges (the
//! ledger knows only when the first of them is due), in the row's *runs* (neighbours that are alike, waiting to be claimed),
//! under a *claim*, on the *dead* list, on the list of *moves*, or in the row's *moved* ranges (its jobs live on in a
//! segment of `seg/`). What is in none of them has ended. So a finished job costs nothing, and a thousand jobs that were
//! enqueued together cost about as much as one.

mod bits;
mod check;
mod codec;
mod columns;
mod policy;
mod run;
pub(crate) mod wire;

pub(crate) use bits::Bits;
pub(crate) use check::Totals;
pub(crate) use codec::{CHECKSUM_TAG, FORMAT, Unusable, decode, encode};
pub use policy::{Backoff, JobEvents, Shape};
pub(crate) use policy::{KindPolicy, Policy};
pub(crate) use run::{Range, Run, Traits, Why, insert_range};

use super::{
    id::{JobId, SegmentId},
    layout::SegmentName,
};
use crate::{Fence, WriteId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Milliseconds since 1970. The ledger counts in nothing finer.
pub(crate) type Millis = i64;

/// Names one claim: what one process took in one commit. Random, so that nobody answers for a claim that is not its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClaimId(pub(crate) std::num::NonZeroU64);

impl ClaimId {
    pub(crate) fn new(number: u64) -> Option<Self> {
        std::num::NonZeroU64::new(number).map(Self)
    }

    pub(crate) fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Names a session: the random key of its lease, which is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(crate) [u8; 16]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// One job by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobRef {
    pub(crate) segment: SegmentId,
    pub(crate) index: u16,
}

impl fmt::Debug for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.segment, self.index)
    }
}

impl From<JobId> for JobRef {
    fn from(id: JobId) -> Self {
        Self { segment: id.segment(), index: id.index() }
    }
}

/// Jobs of a row that nobody has read into runs yet: all of one priority, in the order of their due times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) range: Range,
    pub(crate) priority: i16,
    /// Of the first.
    pub(crate) due: Millis,
}

/// A segment that is live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// Rises with every row, so rows are in the order of absorption.
    pub(crate) number: u32,
    pub(crate) name: SegmentName,
    /// Jobs of it that have neither ended nor moved.
    pub(crate) open: u16,
    pub(crate) request: bool,
    pub(crate) unread: Vec<Unread>,
    pub(crate) runs: Vec<Run>,
    /// What lives on elsewhere, in order.
    pub(crate) moved: Vec<Range>,
    /// The least and the greatest id among its jobs, where they were enqueued under other ids.
    pub(crate) span: Option<(JobId, JobId)>,
    /// The arguments of a job that has no object.
    pub(crate) inline: Option<Bytes>,
    /// Hashes of the ids that a tracker began.
    pub(crate) tracked: Vec<u64>,
}

/// Jobs of one row that were claimed together, and which of them are not answered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) row: u32,
    pub(crate) run: Run,
    /// By position in the run.
    pub(crate) open: Bits,
    /// It was all that its session had in hand.
    pub(crate) alone: bool,
}

/// What one process took in one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) id: ClaimId,
    pub(crate) session: SessionId,
    pub(crate) fence: Fence,
    pub(crate) at: Millis,
    /// By row and index.
    pub(crate) items: Vec<Item>,
}

/// A process that commits here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Of its lease: a record with another one has ended.
    pub(crate) lease: [u8; 16],
    pub(crate) owner: Arc<str>,
    /// The write id of its last commit: a lost answer is found by it also under the commits of others.
    pub(crate) last_write: WriteId,
    /// When its lease ends at the earliest, as it knew at its last commit. It says when to look, and proves nothing.
    pub(crate) until: Millis,
    /// Until when it is the shard's owner; 0 if it is not. It saves requests: nothing rests on it.
    pub(crate) owns_until: Millis,
}

/// A session that ended, kept for one session TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) session: SessionId,
    pub(crate) at: Millis,
    /// It had something in hand.
    pub(crate) held: bool,
}

/// A segment of `in/` or `at/` of which all jobs have ended or moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) name: SegmentName,
    /// Since when its delete is not confirmed.
    pub(crate) since: Millis,
    /// When its delete was confirmed.
    pub(crate) confirmed: Option<Millis>,
    pub(crate) request: bool,
}

/// Why a job is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It failed as often as it may.
    Exhausted,
    /// Its handler said that another try is of no use.
    ForGood,
    /// It was alone when its process died, again and again.
    Stalled,
    /// Its segment cannot be read.
    Damaged,
    /// It hangs on a transaction that nobody remembers.
    Forgotten,
}

impl Reason {
    const ALL: [Self; 5] = [Self::Exhausted, Self::ForGood, Self::Stalled, Self::Damaged, Self::Forgotten];

    /// As records have it.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Exhausted => 0,
            Self::ForGood => 1,
            Self::Stalled => 2,
            Self::Damaged => 3,
            Self::Forgotten => 4,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == number)
    }

    /// In words.
    pub fn as_text(self) -> &'static str {
        match self {
            Self::Exhausted => "it failed as often as it may",
            Self::ForGood => "it failed for good",
            Self::Stalled => "its process died with it again and again",
            Self::Damaged => "its segment cannot be read",
            Self::Forgotten => "its transaction is forgotten",
        }
    }
}

/// What was taken out of an object of dead letters. The object itself is never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Letters {
    /// Names the object, with its hour.
    pub(crate) plan: WriteId,
    pub(crate) hour: u64,
    /// How many jobs it has.
    pub(crate) jobs: u16,
    /// Redriven or purged, in order.
    pub(crate) taken: Vec<Range>,
    /// When the delete of the object was confirmed.
    pub(crate) gone: Option<Millis>,
}

impl Letters {
    pub(crate) fn is_taken(&self, index: u16) -> bool {
        self.taken.iter().any(|range| range.contains(index))
    }

    pub(crate) fn left(&self) -> u16 {
        self.jobs.saturating_sub(self.taken.iter().map(|range| range.len()).sum())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadJob {
    pub(crate) row: u32,
    pub(crate) index: u16,
    pub(crate) reason: Reason,
    pub(crate) attempts: u32,
    pub(crate) stalls: u8,
    pub(crate) fence: Option<Fence>,
    pub(crate) error: Option<Arc<str>>,
}

/// An object of dead letters that has to be written: what it holds and how it is called is decided here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadPlan {
    /// The write id of the commit that made it.
    pub(crate) id: WriteId,
    /// `YYYYMMDDHH` of its expiry.
    pub(crate) hour: u64,
    pub(crate) at: Millis,
    pub(crate) jobs: Vec<DeadJob>,
    /// The row's segment is buried as it is, all of it; `jobs` is empty then.
    pub(crate) raw: Option<(u32, Reason)>,
}

/// A job on its way to another queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MovePlan {
    pub(crate) row: u32,
    pub(crate) index: u16,
    pub(crate) queue: Arc<str>,
    /// Of the segment with this one job in the other queue.
    pub(crate) target: SegmentName,
    pub(crate) priority: i16,
    pub(crate) due: Millis,
    pub(crate) fence: Fence,
    pub(crate) at: Millis,
}

/// A unique key that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unique {
    pub(crate) hash: [u8; 16],
    pub(crate) job: JobRef,
    /// Where its job was at first, if it lives on in another place.
    pub(crate) first: Option<JobRef>,
    /// When its job ended; it stays taken for the queue's `unique_period` after that.
    pub(crate) ended: Option<Millis>,
}

/// How many jobs of one key may run at once, where that differs from the queue's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) key: u64,
    pub(crate) most: u32,
    /// The key itself, for people who look.
    pub(crate) name: Arc<str>,
}

/// A job that was dropped because another one had its unique key. Kept while its segment is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) job: JobRef,
    pub(crate) of: JobRef,
}

/// A schedule: what it inserts and when, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Schedule {
    pub(crate) id: [u8; 16],
    /// The last slot that was inserted or passed over; when it was added, before there was one.
    pub(crate) slot: Millis,
    /// The slot after that one, which nobody has inserted yet.
    pub(crate) next: Option<Millis>,
    /// Changes with everything that an operator says of it.
    pub(crate) version: u64,
    pub(crate) name: Arc<str>,
    /// When its slots are, as text.
    pub(crate) spec: Arc<str>,
    pub(crate) paused: bool,
    /// How late a slot may be inserted.
    pub(crate) look_back: Millis,
    /// A slot is left out while the job of one before it has not ended.
    pub(crate) single: bool,
    pub(crate) priority: i16,
    /// A segment with the one job that each slot inserts.
    pub(crate) job: Bytes,
    /// Slots that nobody inserted, as times from (inclusive) and to (exclusive), in order.
    pub(crate) missed: Vec<(Millis, Millis)>,
}

/// The bucket of the rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tokens {
    /// In thousandths of a job.
    pub(crate) milli: u64,
    pub(crate) at: Millis,
}

/// What leaves through the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    Finished,
    Dead(Reason),
    Cancelled,
    Recovered,
    /// An attempt failed, and there will be another.
    Retried,
    /// Dropped because that job had its unique key.
    Duplicate(JobRef),
}

/// An event, of neighbours if the same happened to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u64,
    pub(crate) segment: SegmentId,
    pub(crate) range: Range,
    pub(crate) what: Happened,
    pub(crate) at: Millis,
    pub(crate) fence: Option<Fence>,
}

/// How many jobs have come and gone since the ledger was made. `absorbed` is the sum of all that follow and of what is
/// in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub(crate) absorbed: u64,
    pub(crate) finished: u64,
    pub(crate) dead: u64,
    pub(crate) cancelled: u64,
    pub(crate) duplicates: u64,
    pub(crate) moved: u64,
    /// These are no ends of jobs: attempts that failed, jobs that came back from a dead process, stalls charged.
    pub(crate) failures: u64,
    pub(crate) recovered: u64,
    pub(crate) stalls: u64,
    pub(crate) claimed: u64,
}

/// The whole record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ledger {
    pub(crate) queue: Arc<str>,
    pub(crate) shard: u8,
    pub(crate) write_id: WriteId,
    pub(crate) revision: u64,
    /// Of the settings in `store.json` that its writer went by.
    pub(crate) epoch: u64,
    /// The store's time at the last commit, its lower end; never falls.
    pub(crate) now: Millis,
    pub(crate) fence_last: Option<Fence>,
    /// Raised before orphans in `seg/` are deleted.
    pub(crate) gc_epoch: u64,
    pub(crate) next_row: u32,
    /// The revision of `queue.json` that it goes by, and what must hold at once of it.
    pub(crate) settings: u64,
    pub(crate) policy: Policy,
    pub(crate) rows: Vec<Row>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) dead: Vec<DeadPlan>,
    pub(crate) moves: Vec<MovePlan>,
    /// Cancelled while running, or before they were absorbed.
    pub(crate) cancelling: Vec<JobRef>,
    pub(crate) unique: Vec<Unique>,
    pub(crate) duplicates: Vec<Duplicate>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) tokens: Tokens,
    /// The tenant that had the last turn.
    pub(crate) turn: u32,
    pub(crate) outbox: Vec<Event>,
    pub(crate) next_event: u64,
    /// Objects in `seg/` with events that did not fit.
    pub(crate) outbox_spills: Vec<SegmentId>,
    pub(crate) counters: Counters,
    /// Objects of dead letters of which something was redriven or purged.
    pub(crate) letters: Vec<Letters>,
}

impl Ledger {
    /// The first one of a shard.
    pub(crate) fn new(queue: &str, shard: u8, write_id: WriteId, settings: u64, policy: Policy) -> Self {
        Self {
            queue: queue.into(),
            shard,
            write_id,
            revision: 1,
            epoch: 0,
            now: 0,
            fence_last: None,
            gc_epoch: 0,
            next_row: 1,
            settings,
            policy,
            rows: Vec::new(),
            claims: Vec::new(),
            sessions: Vec::new(),
            ended: Vec::new(),
            finished: Vec::new(),
            dead: Vec::new(),
            moves: Vec::new(),
            cancelling: Vec::new(),
            unique: Vec::new(),
            duplicates: Vec::new(),
            limits: Vec::new(),
            schedules: Vec::new(),
            tokens: Tokens::default(),
            turn: 0,
            outbox: Vec::new(),
            next_event: 1,
            outbox_spills: Vec::new(),
            counters: Counters::default(),
            letters: Vec::new(),
        }
    }

    /// Whether a session's last commit here was this write, or the last commit of all was.
    pub(crate) fn carries(&self, id: WriteId) -> bool {
        self.write_id == id || self.sessions.iter().any(|session| session.last_write == id)
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// The row of a number.
    pub(crate) fn row(&self, number: u32) -> Option<&Row> {
        let at = self.rows.binary_search_by_key(&number, |row| row.number).ok()?;
        self.rows.get(at)
    }

    /// The row of a segment.
    pub(crate) fn row_of(&self, segment: SegmentId) -> Option<&Row> {
        self.rows.iter().find(|row| row.name.id == segment)
    }
}

#[cfg(test)]
pub(crate) mod tests;
