//! What has happened in this process: counted once, told twice, as metrics and as a plain snapshot.

use crate::sweep::{Report, StoppedBy};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering::Relaxed},
};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident => $name:literal $({ $label:literal = $value:literal })?, $help:literal;)*) => {
        /// What has happened in this process since a store was opened, for those without a metrics exporter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// The living counts behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($field: AtomicU64,)*
        }

        impl Counters {
            $(pub(crate) fn $field(&self, by: u64) {
                if by > 0 {
                    self.$field.fetch_add(by, Relaxed);
                    counter!($name $(, $label => $value)?).increment(by);
                }
            })*

            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($field: self.$field.load(Relaxed),)* }
            }
        }

        /// A counter that is not there until something has happened hides the first time that it does.
        fn begin_counters() {
            $(counter!($name $(, $label => $value)?).increment(0);)*
        }

        fn describe_counters() {
            $(describe_counter!($name, Unit::Count, $help);)*
        }

        /// Every counter's name.
        #[cfg(test)]
        const NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
    /// Leases that were granted.
    leases_granted => "leasehold_lease_acquires_total" { "outcome" = "granted" }, "Requests for a lease, by outcome";
    /// Requests that found the lease held by another.
    leases_held => "leasehold_lease_acquires_total" { "outcome" = "held" }, "Requests for a lease, by outcome";
    /// Leases that went from one holder of this process to the next in a single write.
    leases_handed_over => "leasehold_lease_hand_overs_total", "Leases handed over inside of a process in one write";
    /// Leases that were renewed.
    leases_renewed => "leasehold_lease_renewals_total", "Leases renewed";
    /// Leases that were lost, however that was found out: by the answer to a renewal, by time or by force.
    leases_lost => "leasehold_leases_lost_total", "Leases that their holders lost";
    /// Leases that were given back.
    leases_released => "leasehold_lease_releases_total", "Leases given back";
    /// Ended leases that an operation cleared or took over on its way.
    leases_cleared_by_operation => "leasehold_leases_cleared_total" { "by" = "operation" }, "Ended leases that were cleared, by whom";
    /// Ended leases that the sweeper cleared.
    leases_cleared_by_sweeper => "leasehold_leases_cleared_total" { "by" = "sweeper" }, "Ended leases that were cleared, by whom";
    /// Decisions made by this process.
    decisions_made => "leasehold_decisions_total", "Decisions made";
    /// Decisions whose time was over and that an operation deleted on its way.
    markers_deleted_by_operation => "leasehold_markers_deleted_total" { "by" = "operation" }, "Decision markers deleted, by whom";
    /// Decisions whose time was over and that the sweeper deleted.
    markers_deleted_by_sweeper => "leasehold_markers_deleted_total" { "by" = "sweeper" }, "Decision markers deleted, by whom";
    /// Index entries that were filed, for leases and for decisions.
    entries_filed => "leasehold_index_entries_filed_total", "Index entries filed";
    /// Index entries that the sweeper deleted.
    entries_deleted => "leasehold_index_entries_deleted_total", "Index entries deleted";
    /// Index entries that the sweeper left for the next pass.
    entries_kept => "leasehold_index_entries_kept_total", "Index entries left for the next pass";
    /// Records that the sweeper could not read or settle, and deletes that failed.
    sweep_failures => "leasehold_sweep_failures_total", "Records that the sweeper could not read or settle, and failed deletes";
    /// Runs that ended because there was nothing left.
    sweeps_complete => "leasehold_sweep_runs_total" { "ended" = "complete" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because they had looked at as many entries as a run may.
    sweeps_ended_by_ops => "leasehold_sweep_runs_total" { "ended" = "ops" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because they had taken as long as a run may.
    sweeps_ended_by_time => "leasehold_sweep_runs_total" { "ended" = "time" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because somebody asked for something.
    sweeps_ended_by_activity => "leasehold_sweep_runs_total" { "ended" = "activity" }, "Runs of the sweeper, by how they ended";
    /// Runs that were told to stop.
    sweeps_stopped => "leasehold_sweep_runs_total" { "ended" = "stop" }, "Runs of the sweeper, by how they ended";
    /// Runs that ended because the store failed.
    sweeps_failed => "leasehold_sweep_runs_total" { "ended" = "error" }, "Runs of the sweeper, by how they ended";
    /// Requests that were refused because this machine's clock and the store's differ.
    clock_refusals => "leasehold_clock_refusals_total", "Requests refused because the clocks differ";
    /// Writes whose answer was not Ok and that turned out to have landed.
    doubts_won => "leasehold_cas_doubts_total" { "verdict" = "won" }, "Conditional writes not answered with Ok, by what reading back showed";
    /// Writes whose answer was not Ok and that were lost to another.
    doubts_lost => "leasehold_cas_doubts_total" { "verdict" = "lost" }, "Conditional writes not answered with Ok, by what reading back showed";
    /// Writes whose fate could not be read back at once.
    doubts_open => "leasehold_cas_doubts_total" { "verdict" = "unknown" }, "Conditional writes not answered with Ok, by what reading back showed";
}

impl Counters {
    pub(crate) fn new() -> Self {
        static DESCRIBED: Once = Once::new();
        DESCRIBED.call_once(|| {
            describe_counters();
            describe_counter!(
                "leasehold_store_requests_total",
                Unit::Count,
                "Requests to the store, by kind and answer"
            );
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
        });
        begin_counters();
        counter!("leasehold_sweep_requests_total").increment(0);
        gauge!("leasehold_sweep_request_share").set(0.);
        Self::default()
    }

    /// How many index entries this process has filed.
    pub(crate) fn filed(&self) -> u64 {
        self.entries_filed.load(Relaxed)
    }

    /// Which part of this process's requests sweeping takes.
    pub(crate) fn sweep_share(&self, share: f64) {
        gauge!("leasehold_sweep_request_share").set(share);
    }

    /// A run of the sweeper has ended.
    pub(crate) fn swept(&self, report: &Report, now_seconds: f64, oldest_seconds: Option<f64>) {
        self.leases_cleared_by_sweeper(report.leases_cleared);
        self.markers_deleted_by_sweeper(report.markers_deleted);
        self.entries_deleted(report.entries_deleted);
        self.entries_kept(report.entries_kept);
        self.sweep_failures(report.failures);
        histogram!("leasehold_sweep_duration_seconds").record(report.duration_ms as f64 / 1000.);
        if let Some(oldest) = oldest_seconds {
            gauge!("leasehold_sweep_oldest_hour_timestamp_seconds").set(oldest);
        }
        match report.stopped_by {
            Some(StoppedBy::Complete) => {
                self.sweeps_complete(1);
                gauge!("leasehold_sweep_last_completed_timestamp_seconds").set(now_seconds);
            }
            Some(StoppedBy::Ops) => self.sweeps_ended_by_ops(1),
            Some(StoppedBy::Time) => self.sweeps_ended_by_time(1),
            Some(StoppedBy::Activity) => {
                self.sweeps_ended_by_activity(1);
                counter!("leasehold_sweep_aborts_total").increment(1);
            }
            Some(StoppedBy::Stop) => self.sweeps_stopped(1),
            Some(StoppedBy::Error) | None => self.sweeps_failed(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_prometheus_names() {
        for name in NAMES {
            assert!(name.starts_with("leasehold_") && name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn a_snapshot_shows_what_was_counted() {
        let counters = Counters::new();
        counters.leases_granted(2);
        counters.entries_deleted(0);
        assert_eq!((counters.snapshot().leases_granted, counters.snapshot().entries_deleted), (2, 0));
    }
}
