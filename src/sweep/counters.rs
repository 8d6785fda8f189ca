//! What is counted of sweeping: by how runs ended, and by kind of record.

use super::{Report, StoppedBy};
use crate::clock::Timestamp;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use std::sync::Once;

crate::counters::counters! {
    /// Index entries that the sweeper deleted.
    entries_deleted => "leasehold_index_entries_deleted_total", "Index entries deleted";
    /// Index entries that the sweeper left for the next pass.
    entries_kept => "leasehold_index_entries_kept_total", "Index entries left for the next pass";
    /// Records that the sweeper could not read or settle, and deletes that failed.
    failures => "leasehold_sweep_failures_total", "Records that the sweeper could not read or settle, and failed deletes";
    /// Runs that ended because there was nothing left.
    complete => "leasehold_sweep_runs_total" { "ended" = "complete" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because they had looked at as many entries as a run may.
    ended_by_ops => "leasehold_sweep_runs_total" { "ended" = "ops" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because they had taken as long as a run may.
    ended_by_time => "leasehold_sweep_runs_total" { "ended" = "time" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because an operation was called.
    ended_by_activity => "leasehold_sweep_runs_total" { "ended" = "activity" }, "Runs of the sweeper, by how they ended";
    /// Runs that were told to stop.
    stopped => "leasehold_sweep_runs_total" { "ended" = "stop" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because the store failed.
    failed => "leasehold_sweep_runs_total" { "ended" = "error" }, "Runs of the sweeper, by how they ended";
}

/// One count of one kind of record.
const SETTLED: &str = "leasehold_sweep_settled_total";

impl Counters {
    /// With a series for each of these kinds.
    pub(super) fn of_kinds(kinds: impl Iterator<Item = &'static str>) -> Self {
        static DESCRIBED: Once = Once::new();
        DESCRIBED.call_once(describe);
        counter!("leasehold_sweep_requests_total").increment(0);
        gauge!("leasehold_sweep_request_share").set(0.);
        for kind in kinds {
            for (outcome, _) in crate::kind::Swept::default().counts() {
                counter!(SETTLED, "kind" => kind, "outcome" => outcome).increment(0);
            }
        }
        Self::new()
    }

    /// Which part of this process's requests sweeping takes.
    pub(super) fn share(&self, share: f64) {
        gauge!("leasehold_sweep_request_share").set(share);
    }

    /// A run has ended.
    pub(super) fn ran(&self, report: &Report, ended: Timestamp, oldest: Option<Timestamp>) {
        let seconds = |at: Timestamp| at.as_millis() as f64 / 1000.;
        for (kind, swept) in &report.kinds {
            for (outcome, count) in swept.counts().into_iter().filter(|(_, count)| *count > 0) {
                counter!(SETTLED, "kind" => *kind, "outcome" => outcome).increment(count);
            }
        }
        self.entries_deleted(report.entries_deleted);
        self.entries_kept(report.entries_kept);
        self.failures(report.failures);
        histogram!("leasehold_sweep_duration_seconds").record(report.duration_ms as f64 / 1000.);
        if let Some(oldest) = oldest {
            gauge!("leasehold_sweep_oldest_hour_timestamp_seconds").set(seconds(oldest));
        }
        match report.stopped_by {
            Some(StoppedBy::Complete) => {
                self.complete(1);
                gauge!("leasehold_sweep_last_completed_timestamp_seconds").set(seconds(ended));
            }
            Some(StoppedBy::Ops) => self.ended_by_ops(1),
            Some(StoppedBy::Time) => self.ended_by_time(1),
            Some(StoppedBy::Activity) => {
                self.ended_by_activity(1);
                counter!("leasehold_sweep_aborts_total").increment(1);
            }
            Some(StoppedBy::Stop) => self.stopped(1),
            Some(StoppedBy::Error) | None => self.failed(1),
        }
    }
}

fn describe() {
    describe_counter!(SETTLED, Unit::Count, "What the sweeper did, by kind of record and outcome");
    describe_counter!("leasehold_sweep_aborts_total", Unit::Count, "Runs that stopped because traffic resumed");
    describe_counter!("leasehold_sweep_requests_total", Unit::Count, "Requests to the store made for sweeping");
    describe_gauge!(
        "leasehold_sweep_request_share",
        Unit::Count,
        "The part of this process's requests that sweeping has taken over the last one to two hours: 0 to 1"
    );
    describe_histogram!("leasehold_sweep_duration_seconds", Unit::Seconds, "How long runs of the sweeper took");
    describe_gauge!(
        "leasehold_sweep_last_completed_timestamp_seconds",
        Unit::Seconds,
        "When the sweeper last completed a pass"
    );
    describe_gauge!(
        "leasehold_sweep_oldest_hour_timestamp_seconds",
        Unit::Seconds,
        "The beginning of the oldest hour that the last run saw entries of"
    );
}
