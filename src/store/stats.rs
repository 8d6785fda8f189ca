//! What has happened in this process, as a plain snapshot.

use crate::{
    archive, decision, lease, semaphore, storage, stream,
    sweep::{Sweeper, Swept},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// What has happened in this process since a store was opened, for those without a metrics exporter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that were granted.
    pub leases_granted: u64,
    /// Requests that found the lease held by another.
    pub acquires_refused: u64,
    /// Leases that went from one holder of this process to the next in a single write.
    pub leases_handed_over: u64,
    /// Leases that were renewed.
    pub leases_renewed: u64,
    /// Leases that were lost, however that was found out: by the answer to a renewal, by time or by force.
    pub leases_lost: u64,
    /// Leases that were given back.
    pub leases_released: u64,
    /// Ended leases that an operation cleared or took over on its way.
    pub leases_cleared_by_operation: u64,
    /// Ended leases that the sweeper cleared.
    pub leases_cleared_by_sweeper: u64,
    /// Slots of semaphores that were granted.
    pub slots_granted: u64,
    /// Requests that found all slots of a semaphore held.
    pub slots_refused: u64,
    /// Slots of semaphores that were renewed.
    pub slots_renewed: u64,
    /// Slots of semaphores that were lost, however that was found out.
    pub slots_lost: u64,
    /// Slots of semaphores that were given back.
    pub slots_released: u64,
    /// Slots of ended holders that were cleared or taken over.
    pub slots_cleared: u64,
    /// Decisions made by this process.
    pub decisions_made: u64,
    /// Decisions whose time was over and that an operation deleted on its way.
    pub markers_deleted_by_operation: u64,
    /// Decisions whose time was over and that the sweeper deleted.
    pub markers_deleted_by_sweeper: u64,
    /// Messages that were appended to streams.
    pub messages_appended: u64,
    /// Messages that were read from streams.
    pub messages_read: u64,
    /// Messages that were written to the archive.
    pub messages_archived: u64,
    /// Index entries that were filed, for leases and for decisions.
    pub entries_filed: u64,
    /// Index entries that the sweeper deleted.
    pub entries_deleted: u64,
    /// Index entries that the sweeper left for the next pass.
    pub entries_kept: u64,
    /// Records that the sweeper could not read or settle, and deletes that failed.
    pub sweep_failures: u64,
    /// Runs that ended because there was nothing left.
    pub sweeps_complete: u64,
    /// Runs that ended because they had looked at as many entries as a run may.
    pub sweeps_ended_by_ops: u64,
    /// Runs that ended because they had taken as long as a run may.
    pub sweeps_ended_by_time: u64,
    /// Runs that ended because the process became active.
    pub sweeps_ended_by_activity: u64,
    /// Runs that were told to stop.
    pub sweeps_stopped: u64,
    /// Runs that ended because the store failed.
    pub sweeps_failed: u64,
    /// Requests that were refused because this machine's clock and the store's differ.
    pub clock_refusals: u64,
    /// Writes whose answer was not Ok and that turned out to have landed.
    pub doubts_won: u64,
    /// Writes whose answer was not Ok and that were lost to another.
    pub doubts_lost: u64,
    /// Writes whose fate could not be read back at once.
    pub doubts_open: u64,
    /// What the sweeper did about each kind of record, by its name.
    pub swept: BTreeMap<&'static str, Swept>,
}

impl Stats {
    pub(super) fn of(
        storage: storage::Counts,
        lease: lease::Counts,
        decision: decision::Counts,
        stream: stream::Counts,
        archive: archive::Counts,
        semaphore: semaphore::Counts,
        sweeper: &Sweeper,
    ) -> Self {
        let sweeps = sweeper.counts();
        Self {
            leases_granted: lease.granted,
            slots_granted: semaphore.granted,
            slots_refused: semaphore.refused,
            slots_renewed: semaphore.renewed,
            slots_lost: semaphore.lost,
            slots_released: semaphore.released,
            slots_cleared: semaphore.cleared,
            acquires_refused: lease.refused,
            leases_handed_over: lease.handed_over,
            leases_renewed: lease.renewed,
            leases_lost: lease.lost,
            leases_released: lease.released,
            leases_cleared_by_operation: lease.cleared_by_operation,
            leases_cleared_by_sweeper: lease.cleared_by_sweeper,
            decisions_made: decision.made,
            markers_deleted_by_operation: decision.deleted_by_operation,
            markers_deleted_by_sweeper: decision.deleted_by_sweeper,
            messages_appended: stream.appended,
            messages_read: stream.read,
            messages_archived: archive.messages,
            entries_filed: storage.entries_filed,
            entries_deleted: sweeps.entries_deleted,
            entries_kept: sweeps.entries_kept,
            sweep_failures: sweeps.failures,
            sweeps_complete: sweeps.complete,
            sweeps_ended_by_ops: sweeps.ended_by_ops,
            sweeps_ended_by_time: sweeps.ended_by_time,
            sweeps_ended_by_activity: sweeps.ended_by_activity,
            sweeps_stopped: sweeps.stopped,
            sweeps_failed: sweeps.failed,
            clock_refusals: storage.clock_refusals,
            doubts_won: storage.doubts_won,
            doubts_lost: storage.doubts_lost,
            doubts_open: storage.doubts_open,
            swept: sweeper.swept(),
        }
    }
}
