//! What is counted of leases.

crate::counters::counters! {
    /// Leases that were granted.
    granted => "leasehold_lease_acquires_total" { "outcome" = "granted" }, "Requests for a lease, by outcome";
    /// Requests that found the lease held by another.
    refused => "leasehold_lease_acquires_total" { "outcome" = "held" }, "Requests for a lease, by outcome";
    /// Leases that went from one holder of this process to the next in a single write.
    handed_over => "leasehold_lease_hand_overs_total", "Leases handed over inside of a process in one write";
    /// Leases that were renewed.
    renewed => "leasehold_lease_renewals_total", "Leases renewed";
    /// Leases that were lost, however that was found out: by the answer to a renewal, by time or by force.
    lost => "leasehold_leases_lost_total", "Leases that their holders lost";
    /// Leases that were given back.
    released => "leasehold_lease_releases_total", "Leases given back";
    /// Ended leases that an operation cleared or took over on its way.
    cleared_by_operation => "leasehold_leases_cleared_total" { "by" = "operation" }, "Ended leases that were cleared, by whom";
    /// Ended leases that the sweeper cleared.
    cleared_by_sweeper => "leasehold_leases_cleared_total" { "by" = "sweeper" }, "Ended leases that were cleared, by whom";
}
