//! What is said to the queue of an attempt, by how it ended and whether it was asked to stop. A pure rule.

use super::{context::CancelReason, handler::JobOutcome};
use std::time::Duration;

/// What a worker says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Finished,
    Failed { error: String, for_good: bool },
    Snoozed(Duration),
    GivenBack,
    Cancelled,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its handler returned.
    Returned(JobOutcome),
    /// Its handler panicked.
    Panicked(String),
    /// It was over its time and did not stop within the grace.
    DidNotStop { timeout: Duration, grace: Duration },
    /// The worker shut down and it did not stop.
    LeftBehind,
}

/// What is said of it. An attempt that stopped because its worker shuts down has not failed; one that was cancelled ends as
/// that; one whose time was over has failed, whatever it calls it.
pub(super) fn verdict(ended: Ended, asked: Option<&CancelReason>) -> Said {
    let failed = |error: String| Said::Failed { error, for_good: false };
    match (ended, asked) {
        (Ended::LeftBehind, _) => Said::GivenBack,
        (Ended::Panicked(message), _) => failed(format!("panicked: {message}")),
        (Ended::DidNotStop { timeout, grace }, _) => {
            failed(format!("timed out after {timeout:?}, and did not stop within {grace:?}"))
        }
        (Ended::Returned(JobOutcome::Done), _) => Said::Finished,
        (Ended::Returned(JobOutcome::FailForGood(error)), _) => Said::Failed { error, for_good: true },
        (Ended::Returned(JobOutcome::Snooze(pause)), _) => Said::Snoozed(pause),
        (Ended::Returned(JobOutcome::Failed(_) | JobOutcome::Cancelled), Some(CancelReason::Shutdown)) => {
            Said::GivenBack
        }
        (Ended::Returned(outcome), Some(CancelReason::TimedOut { timeout })) => match outcome {
            JobOutcome::Failed(error) => failed(format!("timed out after {timeout:?}: {error}")),
            _ => failed(format!("timed out after {timeout:?}")),
        },
        (Ended::Returned(JobOutcome::Failed(_)), Some(CancelReason::Asked)) => Said::Cancelled,
        (Ended::Returned(JobOutcome::Failed(error)), _) => failed(error),
        // Nobody has cancelled it: it is the queue's again.
        (Ended::Returned(JobOutcome::Cancelled), Some(CancelReason::SessionLost)) => Said::GivenBack,
        (Ended::Returned(JobOutcome::Cancelled), _) => Said::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(3);

    fn said(outcome: JobOutcome, asked: Option<CancelReason>) -> Said {
        verdict(Ended::Returned(outcome), asked.as_ref())
    }

    fn failed(error: &str) -> Said {
        Said::Failed { error: error.into(), for_good: false }
    }

    #[test]
    fn what_a_handler_says_is_what_the_queue_hears() {
        assert_eq!(said(JobOutcome::Done, None), Said::Finished);
        assert_eq!(said(JobOutcome::Failed("x".into()), None), failed("x"));
        assert_eq!(said(JobOutcome::FailForGood("x".into()), None), Said::Failed { error: "x".into(), for_good: true });
        assert_eq!(said(JobOutcome::Snooze(TIME), None), Said::Snoozed(TIME));
        assert_eq!(said(JobOutcome::Cancelled, None), Said::Cancelled);
    }

    #[test]
    fn stopping_because_of_a_shutdown_is_no_failure_and_no_cancel() {
        for outcome in [JobOutcome::Failed("stopped".into()), JobOutcome::Cancelled] {
            assert_eq!(said(outcome, Some(CancelReason::Shutdown)), Said::GivenBack);
        }
        assert_eq!(said(JobOutcome::Done, Some(CancelReason::Shutdown)), Said::Finished);
        assert_eq!(verdict(Ended::LeftBehind, Some(&CancelReason::Shutdown)), Said::GivenBack);
    }

    #[test]
    fn what_was_over_its_time_has_failed_whatever_it_calls_it() {
        let asked = || Some(CancelReason::TimedOut { timeout: TIME });
        assert_eq!(said(JobOutcome::Cancelled, asked()), failed("timed out after 3s"));
        assert_eq!(said(JobOutcome::Failed("stopped".into()), asked()), failed("timed out after 3s: stopped"));
        assert_eq!(said(JobOutcome::Done, asked()), Said::Finished);
        let ended = Ended::DidNotStop { timeout: TIME, grace: TIME };
        assert_eq!(verdict(ended, asked().as_ref()), failed("timed out after 3s, and did not stop within 3s"));
    }

    #[test]
    fn a_job_that_somebody_cancelled_ends_as_that() {
        assert_eq!(said(JobOutcome::Failed("stopped".into()), Some(CancelReason::Asked)), Said::Cancelled);
        assert_eq!(said(JobOutcome::Cancelled, Some(CancelReason::Asked)), Said::Cancelled);
        assert_eq!(said(JobOutcome::Cancelled, Some(CancelReason::SessionLost)), Said::GivenBack);
    }

    #[test]
    fn a_panic_is_a_failure_of_its_job() {
        assert_eq!(verdict(Ended::Panicked("oh".into()), None), failed("panicked: oh"));
    }
}
