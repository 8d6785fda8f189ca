//! Segments that hang on a transaction: taken in when it is committed, removed when it is aborted, looked at again while it
//! is not decided, and buried when nobody remembers it.
//!
//! What a crash leaves, whoever crashes, with the order enqueue, then decide:
//!
//! | crash | what is there | what becomes of the jobs |
//! |---|---|---|
//! | before the create of the segment | nothing | they never were; the transaction is aborted, or forgotten |
//! | after it, before the decision | a segment, no marker | whoever decides to abort has it removed; else it is buried when the transaction is forgotten |
//! | after the index entry, before the marker | the same | the same |
//! | after the marker | a segment and its marker, which is kept while the segment is there | they run, or are removed |
//! | a worker, after it read the marker | the same | the next worker reads the same |
//! | a worker, after its commit has taken the segment in | a row in the ledger | as any other job; the marker is not needed any more |
//! | a worker, after it removed an aborted segment | a marker that nobody waits for | nothing is left of them |
//!
//! In the other order, a create that lands after the decision (its answer was lost, or its process stood still), the segment
//! is met by a marker that may not name it: it is treated by that marker while there is one, and buried later. The only way to
//! lose committed work is to decide before enqueue was answered, and that is what enqueue must be awaited for.

use super::{
    apply::Op,
    committer::{Found, Shard},
    id::SegmentId,
    layout::SegmentName,
    ledger::{Ledger, Reason},
};
use crate::{
    clock::Moment,
    decision::{Answer, TxnId},
    storage::Name,
};
use std::{collections::HashMap, sync::PoisonError, time::Duration};

/// The first pause before an undecided segment is looked at again, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Undecided segments that are remembered; beyond that all are looked at soon.
const MOST: usize = 10_000;

/// How often segments were found undecided.
#[derive(Debug, Default)]
pub(crate) struct Undecided(HashMap<SegmentId, u32>);

impl Undecided {
    /// How long a segment is left alone after it was found undecided once more: 1, 2, 4 … 60 s.
    fn pause(&mut self, segment: SegmentId) -> Duration {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let tries = self.0.entry(segment).or_default();
        let pause = FIRST.saturating_mul(1 << (*tries).min(6)).min(LONGEST);
        *tries += 1;
        pause
    }
}

/// What a segment of a transaction is to its ledger now; none if it is left where it is, or is gone.
pub(super) async fn decided(
    shard: &Shard,
    ledger: &Ledger,
    name: &SegmentName,
    txn: [u8; 16],
    committed: Found,
    now: Moment,
) -> Option<Found> {
    let Some(txn) = TxnId::from_bytes(txn) else { return Some(Found::Bury(Reason::Damaged)) };
    let found = match shard.queue.shared.decisions.get(txn).await {
        Ok(Answer::Committed) => Some(committed),
        Ok(Answer::Forgotten) => {
            tracing::warn!(segment = %name.id, %txn, "jobs of a forgotten transaction go to the dead letters");
            Some(Found::Bury(Reason::Forgotten))
        }
        Ok(Answer::Aborted) => {
            remove_aborted(shard, ledger, name).await;
            None
        }
        Ok(Answer::Undecided) => {
            leave_undecided(shard, name, now);
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, segment = %name.id, %txn, "whether a transaction is decided cannot be found out");
            leave_undecided(shard, name, now);
            return None;
        }
    };
    shard.undecided.lock().unwrap_or_else(PoisonError::into_inner).0.remove(&name.id);
    found
}

fn leave_undecided(shard: &Shard, name: &SegmentName, now: Moment) {
    let pause = shard.undecided.lock().unwrap_or_else(PoisonError::into_inner).pause(name.id);
    shard.left.lock().unwrap_or_else(PoisonError::into_inner).insert(name.id, now.plus(pause));
}

/// Nobody will ever take it in: its decision is final, and its name belongs to this transaction alone.
async fn remove_aborted(shard: &Shard, ledger: &Ledger, name: &SegmentName) {
    let Some(path) = shard.queue.layout.segment(name).map(Name::new) else { return };
    let deleted = shard.queue.backend().delete(std::slice::from_ref(&path)).await;
    if let Some(error) = deleted.error {
        tracing::warn!(%error, name = %path, "an aborted segment could not be removed: it is tried again");
    }
    shard.queue.shared.segments.forget(std::iter::once(name.id));
    if ledger.cancelling.iter().any(|job| job.segment == name.id) {
        shard.ride([Op::Unmark { segment: name.id }]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::id::Class;

    #[test]
    fn an_undecided_segment_is_left_alone_for_longer_and_longer() {
        let mut undecided = Undecided::default();
        let segment = SegmentId::of_request("q", "r", 0, 0, Class::Normal);
        let pauses: Vec<u64> = (0..9).map(|_| undecided.pause(segment).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
