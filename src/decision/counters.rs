//! What is counted of decisions.

crate::counters::counters! {
    /// Decisions made by this process.
    made => "leasehold_decisions_total", "Decisions made";
    /// Decisions whose time was over and that an operation deleted on its way.
    deleted_by_operation => "leasehold_markers_deleted_total" { "by" = "operation" }, "Decision markers deleted, by whom";
    /// Decisions whose time was over and that the sweeper deleted.
    deleted_by_sweeper => "leasehold_markers_deleted_total" { "by" = "sweeper" }, "Decision markers deleted, by whom";
}
