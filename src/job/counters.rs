//! What is counted of jobs. What a commit has done is counted by the process whose commit it was, once it has landed.

use super::{QueueDepth, ledger};

crate::counters::counters! {
    /// Jobs that were enqueued.
    enqueued => "leasehold_jobs_enqueued_total", "Jobs enqueued";
    /// Roughly how many bytes they had.
    bytes_enqueued => "leasehold_job_bytes_enqueued_total", "Bytes of the jobs enqueued, before packing";
    /// Jobs that were claimed.
    claimed => "leasehold_jobs_claimed_total", "Jobs claimed";
    /// Jobs that are done.
    finished => "leasehold_jobs_ended_total" { "outcome" = "finished" }, "Jobs that have ended, by outcome";
    /// Jobs that went to the dead letters.
    buried => "leasehold_jobs_ended_total" { "outcome" = "dead" }, "Jobs that have ended, by outcome";
    /// Jobs that were cancelled.
    cancelled => "leasehold_jobs_ended_total" { "outcome" = "cancelled" }, "Jobs that have ended, by outcome";
    /// Jobs that were dropped because another one had their unique key.
    duplicates => "leasehold_jobs_ended_total" { "outcome" = "duplicate" }, "Jobs that have ended, by outcome";
    /// Jobs that moved to another queue, or were taken over by whoever began them again.
    moved => "leasehold_jobs_ended_total" { "outcome" = "moved" }, "Jobs that have ended, by outcome";
    /// Attempts that failed.
    failed => "leasehold_job_attempts_failed_total", "Attempts that failed; all but those of jobs that died are retried";
    /// Jobs that came back from a process that had died.
    recovered => "leasehold_jobs_recovered_total", "Jobs taken back from processes that had died";
    /// Jobs that were alone with a process when it died.
    stalled => "leasehold_job_stalls_total", "Jobs charged with the death of their process";
    /// Commits of ledgers that landed.
    commits => "leasehold_job_commits_total", "Commits of ledgers";
    /// Operations that they were made of.
    operations => "leasehold_job_commit_operations_total", "Operations in commits of ledgers: divided by the commits, the batch";
    /// Commits that found another one in their place, and were made again.
    conflicts => "leasehold_job_commit_conflicts_total", "Commits of ledgers that lost a race and were made again";
    /// Objects of jobs that have ended and were deleted.
    deleted => "leasehold_job_segments_deleted_total", "Objects of ended jobs that were deleted";
    /// Sessions that were begun.
    sessions_begun => "leasehold_sessions_total" { "event" = "begun" }, "Sessions of this process, by event";
    /// Sessions that were given up with nothing in hand.
    sessions_ended => "leasehold_sessions_total" { "event" = "ended" }, "Sessions of this process, by event";
    /// Sessions that were lost.
    sessions_lost => "leasehold_sessions_total" { "event" = "lost" }, "Sessions of this process, by event";
    /// Handlers that panicked.
    panics => "leasehold_worker_panics_total", "Handlers that panicked";
    /// Attempts that took longer than they may.
    timeouts => "leasehold_worker_timeouts_total", "Attempts that were over their time and did not stop within the grace";
    /// Jobs that ran for longer than `stuck_after`.
    stuck => "leasehold_worker_stuck_jobs_total", "Jobs that were reported as stuck";
    /// Jobs that were claimed and not started in time.
    given_back => "leasehold_worker_jobs_given_back_total", "Jobs that were claimed, could not be started soon and were given back";
    /// Times that the runtime did not run a worker for a second or more.
    starved => "leasehold_worker_starved_total", "Times that the runtime did not run a worker for a second or more";
    /// Answers for attempts that were over.
    stale => "leasehold_worker_stale_answers_total", "Answers for attempts that were over: somebody else had the job";
}

/// What a commit has done, by the ledgers before and after it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    after: ledger::Counters,
    before: ledger::Counters,
    operations: usize,
}

impl Done {
    pub(crate) fn new(before: &ledger::Counters, after: &ledger::Counters, operations: usize) -> Self {
        Self { after: *after, before: *before, operations }
    }

    /// Counts it: the commit has landed.
    pub(crate) fn count(&self, counters: &Counters) {
        let Self { after, before, operations } = self;
        counters.commits(1);
        counters.operations(u64::try_from(*operations).unwrap_or(0));
        counters.claimed(after.claimed.saturating_sub(before.claimed));
        counters.finished(after.finished.saturating_sub(before.finished));
        counters.buried(after.dead.saturating_sub(before.dead));
        counters.cancelled(after.cancelled.saturating_sub(before.cancelled));
        counters.duplicates(after.duplicates.saturating_sub(before.duplicates));
        counters.moved(after.moved.saturating_sub(before.moved));
        counters.failed(after.failures.saturating_sub(before.failures));
        counters.recovered(after.recovered.saturating_sub(before.recovered));
        counters.stalled(after.stalls.saturating_sub(before.stalls));
    }
}

/// For how long jobs run, and how long after they were due they start.
pub(crate) const RUN_SECONDS: &str = "leasehold_job_run_seconds";
pub(crate) const DELAY_SECONDS: &str = "leasehold_job_delay_seconds";
/// How many jobs a queue has, and for how long the oldest of them is due. Set whenever its depth is asked for.
pub(crate) const QUEUE_JOBS: &str = "leasehold_queue_jobs";
pub(crate) const QUEUE_OLDEST: &str = "leasehold_queue_oldest_seconds";
pub(crate) const QUEUE_DEAD_BYTES: &str = "leasehold_queue_dead_bytes";
/// Whether this process has a session.
pub(crate) const SESSIONS_ALIVE: &str = "leasehold_sessions_alive";

/// Counters at zero, and everything known to the exporter.
pub(crate) fn new() -> Counters {
    metrics::describe_histogram!(RUN_SECONDS, metrics::Unit::Seconds, "For how long handlers ran");
    metrics::describe_histogram!(
        DELAY_SECONDS,
        metrics::Unit::Seconds,
        "How long after they were due jobs were started"
    );
    metrics::describe_gauge!(
        QUEUE_JOBS,
        metrics::Unit::Count,
        "Jobs of a queue by state, when its depth was last asked for"
    );
    metrics::describe_gauge!(
        QUEUE_OLDEST,
        metrics::Unit::Seconds,
        "For how long the oldest waiting job of a queue is due, when its depth was last asked for"
    );
    metrics::describe_gauge!(
        QUEUE_DEAD_BYTES,
        metrics::Unit::Bytes,
        "Bytes of the dead letters of a queue, when its depth was last asked for"
    );
    metrics::describe_gauge!(SESSIONS_ALIVE, metrics::Unit::Count, "Sessions that this process keeps");
    Counters::new()
}

/// Shows how many jobs a queue has.
pub(crate) fn show_depth(queue: &str, depth: &QueueDepth) {
    let states = [
        ("available", depth.available),
        ("scheduled", depth.scheduled),
        ("retrying", depth.retrying),
        ("paused", depth.paused),
        ("running", depth.running),
        ("dead", depth.dead),
    ];
    for (state, jobs) in states {
        let jobs = u32::try_from(jobs).map_or(f64::from(u32::MAX), f64::from);
        metrics::gauge!(QUEUE_JOBS, "queue" => queue.to_owned(), "state" => state).set(jobs);
    }
    metrics::gauge!(QUEUE_OLDEST, "queue" => queue.to_owned()).set(depth.oldest_age.as_secs_f64());
    let bytes = u32::try_from(depth.dead_bytes).map_or(f64::from(u32::MAX), f64::from);
    metrics::gauge!(QUEUE_DEAD_BYTES, "queue" => queue.to_owned()).set(bytes);
}
