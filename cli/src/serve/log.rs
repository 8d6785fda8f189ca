//! What an operator finds in the log after a bad night: with `-v` every grant, release and refusal, and always that the store
//! fails. (That a lease was lost, and why, is told by the library.) Nothing here is secret: no token, no lease id that
//! could be used.

use crate::{
    view::printable,
    wire::{HeldBy, Problem},
};
use axum::{http::Method, response::Response};
use leasehold::{Key, clock::Timestamp, lease::Grant};
use std::sync::{Mutex, PoisonError};

/// A lease was granted, perhaps after another holder had let it expire.
pub(super) fn granted(grant: &Grant, before: Option<&HeldBy>) {
    let (namespace, key, owner, fence) = (grant.namespace(), grant.key(), printable(grant.owner()), grant.fence());
    let ttl_ms = crate::duration::millis(grant.ttl());
    match before {
        Some(before) => {
            let from = printable(&before.owner);
            tracing::info!(%namespace, %key, owner, %fence, ttl_ms, from, "taken over: the lease before it had expired");
        }
        None => tracing::info!(%namespace, %key, owner, %fence, ttl_ms, "granted"),
    }
}

/// A lease was given back.
pub(super) fn released(key: &Key, lease_id: &str) {
    tracing::info!(%key, lease = shortened(lease_id), "released");
}

/// Enough to tell leases apart, and not enough to give one back.
fn shortened(lease_id: &str) -> String {
    lease_id.chars().take(8).collect()
}

/// Whether the store fails, so that this is told once and its end as well.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Option<Failing>>);

#[derive(Debug)]
struct Failing {
    since: Timestamp,
    requests: u64,
}

/// The codes that blame the store.
const THE_STORE: [&str; 5] =
    ["store_unavailable", "unknown_outcome", "store_denied", "store_misconfigured", "store_regressed"];

impl Trouble {
    /// What came of asking the store.
    pub(super) fn note(&self, now: Timestamp, answer: &Result<(), Problem>) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (answer, failing.as_mut()) {
            (Err(problem), None) if THE_STORE.contains(&problem.code.as_str()) => {
                tracing::warn!(
                    why = printable(&problem.detail),
                    "the store fails: leases that are not renewed in time end"
                );
                *failing = Some(Failing { since: now, requests: 1 });
            }
            (Err(problem), Some(failing)) if THE_STORE.contains(&problem.code.as_str()) => failing.requests += 1,
            (Ok(()), Some(over)) => {
                let (since, requests) = (over.since, over.requests);
                tracing::warn!(%since, requests, "the store answers again");
                *failing = None;
            }
            _ => {}
        }
    }

    /// Tells of a request that failed, and notes what it says about the store.
    pub(super) fn answered(&self, now: Timestamp, method: &Method, route: &str, response: &Response) {
        let Some(problem) = response.extensions().get::<Problem>() else {
            // Only what has been to the store says that it is well.
            if matches!(route, "/v1/acquire" | "/v1/renew" | "/v1/release" | "/v1/lease" | "/v1/elections/campaign") {
                self.note(now, &Ok(()));
            }
            return;
        };
        // /readyz answers with what was found a while ago.
        if route != "/readyz" {
            self.note(now, &Err(problem.clone()));
        }
        let (code, status, detail) = (&problem.code, problem.status, printable(&problem.detail));
        match code.as_str() {
            // Told with its reason already, or the everyday answer to one who asks for what another has.
            "lost" | "held" | "timed_out" => tracing::debug!(%method, route, status, code, detail, "refused"),
            _ => tracing::info!(%method, route, status, code, detail, "a request failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_is_told_of_once_and_counted_until_it_answers() {
        let trouble = Trouble::default();
        let at = Timestamp::from_millis;
        let failing =
            |trouble: &Trouble| trouble.0.lock().unwrap().as_ref().map(|failing| (failing.since, failing.requests));
        trouble.note(at(1), &Err(Problem::new("held", "")));
        assert_eq!(failing(&trouble), None, "the store has answered");
        trouble.note(at(2), &Err(Problem::new("store_unavailable", "")));
        trouble.note(at(3), &Err(Problem::new("unknown_outcome", "")));
        trouble.note(at(4), &Err(Problem::new("held", "")));
        assert_eq!(failing(&trouble), Some((at(2), 2)));
        trouble.note(at(5), &Ok(()));
        assert_eq!(failing(&trouble), None);
    }

    #[test]
    fn a_lease_in_the_log_cannot_be_given_back() {
        assert_eq!(shortened("0123456789abcdef0123456789abcdef"), "01234567");
    }
}
