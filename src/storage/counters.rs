//! What storage counts of itself, beside the requests.

use metrics::{Unit, describe_counter};
use std::sync::Once;

crate::counters::counters! {
    /// Index entries that were filed.
    entries_filed => "leasehold_index_entries_filed_total", "Index entries filed";
    /// Requests that were refused because this machine's clock and the store's differ.
    clock_refusals => "leasehold_clock_refusals_total", "Requests refused because the clocks differ";
    /// Writes whose answer was not Ok and that turned out to have landed.
    doubts_won => "leasehold_cas_doubts_total" { "verdict" = "won" }, "Conditional writes not answered with Ok, by what reading back showed";
    /// Writes whose answer was not Ok and that were lost to another.
    doubts_lost => "leasehold_cas_doubts_total" { "verdict" = "lost" }, "Conditional writes not answered with Ok, by what reading back showed";
    /// Writes whose fate could not be read back at once.
    doubts_open => "leasehold_cas_doubts_total" { "verdict" = "unknown" }, "Conditional writes not answered with Ok, by what reading back showed";
}

/// Says what the counts of requests mean.
pub(super) fn describe_requests() {
    static DESCRIBED: Once = Once::new();
    DESCRIBED.call_once(|| {
        describe_counter!("leasehold_store_requests_total", Unit::Count, "Requests to the store, by kind and answer");
    });
}
