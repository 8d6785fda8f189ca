//! What a process knows of a key: the record as it was last seen, and what it did itself.

use super::{
    plan::{Belief, Facts},
    record::{Lease, Record, SessionName},
};
use crate::{
    Fence, Hour, Result, SessionId, WriteId,
    clock::{Moment, Timestamp},
    record::Cached,
    storage::cas::Seen,
};

/// How many writes in doubt are remembered for a key.
const MOST_DOUBTFUL: usize = 16;

/// What this process knows of a key.
#[derive(Debug, Default)]
pub(super) struct KeyState {
    pub(super) cached: Cached<Record>,
    /// The highest fence that this process has seen, also where the record is gone or older now.
    pub(super) fence: Option<Fence>,
    /// What this process may believe of the lease that it was last given or renewed.
    pub(super) belief: Option<Belief>,
    /// The stamp of a time object that was written before what is known was read.
    pub(super) time: Option<Timestamp>,
    /// The last beat that this process wrote, and its monotonic clock before it was sent.
    pub(super) own: Option<(WriteId, Moment)>,
    /// The revision of the record in which that beat was seen.
    own_revision: u64,
    /// Beats of this process that may have landed, or may yet, and whose outcome nothing waits for.
    tried: Vec<(WriteId, Moment)>,
    /// When a time object was last written for the key.
    pub(super) asked: Option<Moment>,
    /// A beat whose process was found to have ended.
    pub(super) gone: Option<WriteId>,
    /// The hour in which this process knows the key's entry to be.
    pub(super) indexed: Option<Hour>,
    /// The session in whose folder this process knows the key's entry to be.
    pub(super) indexed_under: Option<SessionId>,
    /// A session whose end was proven, under which the lease was held.
    pub(super) session_over: Option<SessionName>,
    /// How often the lease was handed over inside of this process while another process's mark stood.
    pub(super) turns: u32,
    /// Until when this process leaves the key to others.
    pub(super) stay_back: Option<Moment>,
}

impl KeyState {
    /// Takes note of what the store answered; see [`Cached::learn`].
    pub(super) fn learn(&mut self, there: Option<Seen<Record>>) -> Result<()> {
        let learnt = self.cached.learn(there);
        let Some(record) = self.cached.record() else {
            // The record was removed, or went back. The fence is remembered: the next grant must be above it. The entry
            // is not: it may have been removed with the record.
            self.indexed = None;
            self.indexed_under = None;
            return learnt;
        };
        self.fence = self.fence.max(record.last_fence);
        if record.waiting.is_none() {
            self.turns = 0;
        }
        if let Some(lease) = &record.lease
            && let Some(tried) = self.tried.iter().find(|(beat, _)| *beat == lease.beat)
        {
            self.own = Some(*tried);
            self.own_revision = record.revision;
        }
        learnt
    }

    /// A write of this process has landed, with this beat if it had one. What was in doubt cannot land any more.
    pub(super) fn wrote(&mut self, beat: Option<(WriteId, Moment)>, revision: u64) {
        if beat.is_some() {
            self.own = beat;
            self.own_revision = revision;
        }
        self.tried.clear();
    }

    /// Writes of this process may have landed, or may yet.
    pub(super) fn doubtful(&mut self, beats: impl Iterator<Item = (WriteId, Moment)>) {
        self.tried.extend(beats);
        if self.tried.len() > MOST_DOUBTFUL {
            // The first to be sent is the likeliest to have landed. From here on it cannot be told which are our own.
            self.tried.truncate(MOST_DOUBTFUL);
            self.own = None;
        }
    }

    /// What is known must not be used any more; fences are remembered.
    pub(super) fn forget(&mut self) {
        self.cached.forget();
        self.indexed = None;
        self.indexed_under = None;
    }

    pub(super) fn record(&self) -> Option<&Record> {
        self.cached.record()
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.record().and_then(|record| record.lease.as_ref())
    }

    /// What the rules go by.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            record: self.record(),
            modified: self.cached.modified(),
            time: self.time,
            fence: self.fence,
            belief: self.belief.as_ref(),
            own: self.own,
            // An older record, as a restored backup has it, may have an earlier beat of ours.
            is_older_than_own: self.cached.revision() <= self.own_revision,
            gone: self.gone,
            session_over: self.session_over,
        }
    }
}
