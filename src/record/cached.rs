//! What a process has last seen of a record, with a check that the store does not go back.

use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    storage::cas::{Record, Seen},
};
use std::sync::Arc;

/// The last that was seen of a record.
#[derive(Debug)]
pub(crate) enum Known<R> {
    /// It has to be read.
    Nothing,
    /// It was not there, or is taken to be missing.
    Absent,
    /// This was there.
    Record(Arc<Seen<R>>),
}

/// What is known of a record. Good enough to base a write on, which fails if it is out of date; never an answer.
#[derive(Debug)]
pub(crate) struct Cached<R> {
    known: Known<R>,
    /// The highest revision that was seen since it was last forgotten.
    revision: u64,
    /// How often the store has told something about the record.
    learnt: u64,
}

impl<R> Default for Cached<R> {
    fn default() -> Self {
        Self { known: Known::Nothing, revision: 0, learnt: 0 }
    }
}

impl<R: Record> Cached<R> {
    /// Takes note of what the store answered, or fails if that is older than what was seen before.
    ///
    /// The right to change the record is held from before a read is sent until here, so whatever was seen was seen
    /// before.
    pub(crate) fn learn(&mut self, there: Option<Seen<R>>) -> Result<()> {
        self.learnt += 1;
        let Some(seen) = there else {
            self.forget();
            self.known = Known::Absent;
            return Ok(());
        };
        let revision = seen.record().revision();
        if revision < self.revision {
            let error = Error::new(
                ErrorKind::Regressed,
                format!(
                    "a record went back from revision {} to {revision}: a backup was restored, or something in between \
                     answers from a cache; fences go on rising from what this process has seen",
                    self.revision
                ),
            );
            // Reported once: the next operation goes on from what the store has.
            self.forget();
            return Err(error);
        }
        self.revision = revision;
        self.known = Known::Record(Arc::new(seen));
        Ok(())
    }

    /// What is known must not be used any more.
    pub(crate) fn forget(&mut self) {
        self.revision = 0;
        self.known = Known::Nothing;
    }

    /// Takes the record to be missing, without having asked. A write on that fails if it is not.
    pub(crate) fn assume_absent(&mut self) {
        self.known = Known::Absent;
    }

    pub(crate) fn known(&self) -> &Known<R> {
        &self.known
    }

    /// How often the store has told something about the record.
    pub(crate) fn learnt(&self) -> u64 {
        self.learnt
    }

    /// The highest revision that was seen since it was last forgotten.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn record(&self) -> Option<&R> {
        self.seen().map(|seen| seen.record())
    }

    /// When the store received what is known, if that was read.
    pub(crate) fn modified(&self) -> Option<Timestamp> {
        self.seen().and_then(|seen| seen.modified())
    }

    /// What a write is to be based on.
    pub(crate) fn base(&self) -> Option<Arc<Seen<R>>> {
        self.seen().map(Arc::clone)
    }

    fn seen(&self) -> Option<&Arc<Seen<R>>> {
        match &self.known {
            Known::Record(seen) => Some(seen),
            Known::Nothing | Known::Absent => None,
        }
    }
}
