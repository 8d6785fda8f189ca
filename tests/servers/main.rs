//! One suite for every kind of store, run unchanged: memory, a local directory, the testkit's S3 server, and whatever
//! store `LEASEHOLD_TEST_STORE` names. `tests/servers/run` starts real servers and runs it on each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "these are tests")]

mod place;

mod azurite;
mod budget;
#[cfg(unix)]
mod chaos;
mod conformance;
mod decisions;
mod fenced;
mod leases;
mod listing;
#[cfg(unix)]
mod minio;
mod proxied;
mod queues;
#[path = "../shared/said.rs"]
mod said;
mod sweeper;
mod tracked;

/// One set of tests for each kind of place. Those on the given store need its URL, and are run by `tests/servers/run`.
macro_rules! suite {
    ($place:ident $attribute:tt) => {
        suite! { $place $attribute
            conformance: keeps_the_contract, proves_itself_to_every_process_that_asks;
            leases: a_lease_is_granted_renewed_and_released_and_fences_rise,
                of_many_processes_exactly_one_gets_the_lease,
                a_waiter_of_another_process_gets_the_lease_when_it_is_released,
                a_lease_that_ended_is_taken_over_and_its_holder_is_told,
                a_guard_keeps_a_lease_alive,
                a_request_repeated_by_another_process_gets_its_lease_again,
                nobody_counts_twice_under_the_lock;
            decisions: the_first_decision_stands_for_everybody,
                those_that_decide_at_once_agree,
                a_decision_can_be_read_until_its_time_is_over;
            fenced: a_paused_holders_write_after_a_newer_ones_is_refused,
                of_many_that_write_at_once_the_highest_fence_stays;
            sweeper: what_ended_in_a_past_hour_is_tidied_and_nothing_else,
                every_namespace_gets_its_turn,
                decisions_whose_time_is_over_are_deleted,
                a_dry_run_changes_nothing;
            budget: leases_cost_what_the_budget_says,
                decisions_cost_what_the_budget_says,
                a_page_of_stale_entries_is_deleted_in_bulk;
            listing: two_thousand_keys_are_listed_in_pages_and_swept,
                nasty_keys_are_told_apart,
                keys_are_listed_in_one_order_whatever_the_store_thinks_of_slashes;
            queues: a_job_is_enqueued_claimed_and_finished,
                what_failed_runs_again_and_what_is_dead_is_redriven,
                what_is_due_later_runs_then_and_not_before,
                the_jobs_of_a_dead_process_come_back_and_its_answer_is_not_accepted,
                ten_thousand_jobs_are_each_run_once_by_two_processes,
                nasty_names_of_queues_are_told_apart;
        }
    };
    ($place:ident $attribute:tt $($room:ident: $($test:ident),+;)+) => {
        mod $place {
            $(mod $room {
                $(
                    #[test]
                    #$attribute
                    fn $test() {
                        crate::place::run(crate::place::Kind::$place, crate::$room::$test);
                    }
                )+
            })+
        }
    };
}

suite! { memory [cfg(all())] }
suite! { directory [cfg(all())] }
suite! { testkit [cfg(all())] }
suite! { given [ignore = "needs LEASEHOLD_TEST_STORE: see tests/servers/run"] }
