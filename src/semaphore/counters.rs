//! What is counted of semaphores.

crate::counters::counters! {
    /// Slots that were granted.
    granted => "leasehold_semaphore_acquires_total" { "outcome" = "granted" }, "Requests for a slot of a semaphore, by outcome";
    /// Requests that found all slots held.
    refused => "leasehold_semaphore_acquires_total" { "outcome" = "full" }, "Requests for a slot of a semaphore, by outcome";
    /// Slots that were renewed.
    renewed => "leasehold_semaphore_renewals_total", "Slots of semaphores renewed";
    /// Slots that were lost, however that was found out.
    lost => "leasehold_semaphore_slots_lost_total", "Slots of semaphores that their holders lost";
    /// Slots that were given back.
    released => "leasehold_semaphore_releases_total", "Slots of semaphores given back";
    /// Slots of ended holders that were cleared or taken over.
    cleared => "leasehold_semaphore_slots_cleared_total", "Slots of semaphores whose holders had ended and that were cleared";
}
