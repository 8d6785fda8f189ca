//! How a lease was lost: what a holder, an operator and a log are told about it.

use super::{
    record::Record,
    types::{Grant, Holder},
};
use crate::{Error, ErrorKind, Fence, Key, LeaseId, clock::Timestamp, sync::Locked as _};
use serde::Serialize;
use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex},
};

/// How a lease was lost. Printed, it is one sentence without a full stop, for people:
///
/// ```text
/// taken by worker-7 (fence 12)
/// taken by force by alice: host is gone
/// its time was over: the store failed since 2026-01-01T12:00:03.123Z (connection refused)
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Loss {
    /// Who has the key now. `None` if the lease ended and was not taken, as far as is known.
    pub taken_by: Option<Holder>,
    /// The highest fence that is known for the key: the resource will refuse lower ones.
    pub fence: Option<Fence>,
    /// Why it is lost.
    pub reason: LossReason,
}

/// What became of a lease that was to be renewed.
#[derive(Debug, Clone)]
#[must_use = "the lease may be lost: what it protects must be stopped then"]
pub enum Renewed {
    /// It is still yours, for another while.
    Renewed(Grant),
    /// It is not yours any more. Stop what it protects.
    Lost(Loss),
}

/// Why a lease is lost. For programs (serde) it is an object whose `kind` is the name of the variant: `{"kind":"taken"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// Its time was over before it could be renewed.
    Expired {
        /// Since when and how the store failed the renewals of this process, if it did.
        failing: Option<Failing>,
    },
    /// Another process has it: [`Loss::taken_by`].
    Taken,
    /// An operator took it by force.
    Forced {
        /// Who did.
        by: String,
        /// Why.
        reason: String,
    },
    /// It was released by its id from elsewhere, or cleared after it had ended, or its record was removed.
    Released,
    /// It was held for as long as [`max_hold`](super::Request::max_hold) allows.
    MaxHold,
    /// It was renewed elsewhere under this process's own lease id, without a request id: this machine was cloned.
    Cloned,
    /// The session that it was held under was released.
    SessionReleased,
    /// The session that it was held under was given up: too many writes under it could not be settled, or the store went back.
    SessionGivenUp,
}

/// Since when and how a store fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failing {
    /// The first failure after the last renewal that worked, by this machine's clock.
    #[serde(rename = "since_ms")]
    pub since: Timestamp,
    /// What the last failure was.
    pub error: String,
}

impl Loss {
    /// No other holder is known.
    pub(super) fn new(reason: LossReason, fence: Option<Fence>) -> Self {
        Self { taken_by: None, fence, reason }
    }

    /// What a record says that does not carry the lease any more.
    pub(super) fn found(id: LeaseId, record: Option<&Record>, fence: Option<Fence>) -> Self {
        let taken_by = record.and_then(|record| record.lease.as_ref()).map(Holder::from);
        let forced = record.and_then(|record| record.forced.as_deref()).filter(|forced| forced.lease == id);
        let reason = match (forced, &taken_by) {
            (Some(forced), _) => LossReason::Forced { by: forced.by.clone(), reason: forced.reason.clone() },
            (None, Some(_)) => LossReason::Taken,
            (None, None) => LossReason::Released,
        };
        Self { taken_by, fence, reason }
    }

    /// Its time was over.
    pub(super) fn expired(failing: Option<Failing>, fence: Option<Fence>) -> Self {
        Self::new(LossReason::Expired { failing }, fence)
    }
}

impl std::error::Error for Loss {}

impl Loss {
    pub(super) fn into_error(self, key: &Key) -> Error {
        Error::new(ErrorKind::Lost, format!("the lease on {key} is lost: {self}; stop what it protects"))
            .with_source(self)
    }
}

impl Error {
    /// How the lease was lost, if this is [`ErrorKind::Lost`].
    pub fn loss(&self) -> Option<&Loss> {
        std::error::Error::source(self)?.downcast_ref()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, &self.taken_by) {
            (LossReason::Taken, Some(by)) => write!(f, "taken by {by}"),
            (reason, Some(by)) => write!(f, "{reason}; now held by {by}"),
            (reason, None) => write!(f, "{reason}"),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { failing: None } => f.write_str("its time was over before it was renewed"),
            Self::Expired { failing: Some(failing) } => write!(f, "its time was over: {failing}"),
            Self::Taken => f.write_str("taken by another process"),
            Self::Forced { by, reason } if reason.is_empty() => write!(f, "taken by force by {by}"),
            Self::Forced { by, reason } => write!(f, "taken by force by {by}: {reason}"),
            Self::Released => f.write_str("released from elsewhere, or cleared after it had ended"),
            Self::MaxHold => f.write_str("held for as long as its max_hold allows"),
            Self::SessionReleased => f.write_str("its session was released"),
            Self::SessionGivenUp => f.write_str("its session was given up, as what became of it could not be told"),
            Self::Cloned => f.write_str("renewed elsewhere under its own lease id: this machine was cloned"),
        }
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store failed since {} ({})", self.since, self.error)
    }
}

/// A lease that was lost, as far as is known here: one that is renewed by its id may never have been seen.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) loss: Loss,
    pub(super) id: LeaseId,
    pub(super) owner: Option<Arc<str>>,
    pub(super) fence: Option<Fence>,
}

/// The leases that were found to be lost, so that each is told of once, however often and by whom it is found out.
#[derive(Debug, Default)]
pub(super) struct Losses(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    ids: BTreeSet<LeaseId>,
    order: VecDeque<LeaseId>,
}

impl Losses {
    /// Of more than these none is asked for again.
    const MOST: usize = 4096;

    /// Whether this one was not told of before.
    pub(super) fn is_news(&self, id: LeaseId) -> bool {
        let mut told = self.0.locked();
        let news = told.ids.insert(id);
        if news {
            told.order.push_back(id);
            if told.order.len() > Self::MOST
                && let Some(oldest) = told.order.pop_front()
            {
                told.ids.remove(&oldest);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn holder(owner: &str) -> Option<Holder> {
        let at = Timestamp::from_millis(1_767_225_600_123);
        Some(Holder {
            lease_id: LeaseId::from([1; 16]),
            owner: owner.to_owned(),
            fence: Fence::new(12).unwrap(),
            granted_at: at,
            expires_at: at.plus(Duration::from_secs(30)),
            ttl: Duration::from_secs(30),
            note: None,
            session: None,
        })
    }

    #[test]
    fn a_lost_lease_is_news_once_and_only_the_last_ones_are_remembered() {
        let losses = Losses::default();
        let id = |number: u32| LeaseId::from(u128::from(number).to_le_bytes());
        assert!(losses.is_news(id(0)) && !losses.is_news(id(0)));
        let most = u32::try_from(Losses::MOST).unwrap();
        assert!((1..=most).all(|number| losses.is_news(id(number))));
        assert!(!losses.is_news(id(most)) && !losses.is_news(id(1)));
        assert!(losses.is_news(id(0)), "forgotten");
        assert_eq!(losses.0.lock().unwrap().ids.len(), Losses::MOST);
    }

    #[test]
    fn programs_read_why_a_lease_was_lost() {
        let failing = Failing { since: Timestamp::from_millis(7), error: "refused".to_owned() };
        let expired = LossReason::Expired { failing: Some(failing) };
        let forced = LossReason::Forced { by: "alice".to_owned(), reason: "host is gone".to_owned() };
        for (reason, said) in [
            (expired, r#"{"kind":"expired","failing":{"since_ms":7,"error":"refused"}}"#),
            (LossReason::Taken, r#"{"kind":"taken"}"#),
            (forced, r#"{"kind":"forced","by":"alice","reason":"host is gone"}"#),
            (LossReason::MaxHold, r#"{"kind":"max_hold"}"#),
        ] {
            let loss = serde_json::to_string(&Loss::new(reason, Fence::new(12).ok())).unwrap();
            assert_eq!(loss, format!(r#"{{"taken_by":null,"fence":12,"reason":{said}}}"#));
        }
    }

    #[test]
    fn a_loss_is_told_in_one_plain_sentence() {
        let since = Timestamp::from_millis(1_767_225_600_123);
        let failing = Failing { since, error: "connection refused".to_owned() };
        let forced = |reason: &str| LossReason::Forced { by: "alice".to_owned(), reason: reason.to_owned() };
        let cases = [
            (LossReason::Taken, holder("worker-7"), "taken by worker-7 (fence 12)"),
            (LossReason::Taken, holder(""), "taken by another process (fence 12)"),
            (LossReason::Expired { failing: None }, None, "its time was over before it was renewed"),
            (
                LossReason::Expired { failing: Some(failing) },
                holder("worker-7"),
                "its time was over: the store failed since 2026-01-01T00:00:00.123Z (connection refused); \
                 now held by worker-7 (fence 12)",
            ),
            (forced("host is gone"), None, "taken by force by alice: host is gone"),
            (forced(""), None, "taken by force by alice"),
            (LossReason::Released, None, "released from elsewhere, or cleared after it had ended"),
            (LossReason::MaxHold, None, "held for as long as its max_hold allows"),
            (LossReason::Cloned, None, "renewed elsewhere under its own lease id: this machine was cloned"),
        ];
        for (reason, taken_by, said) in cases {
            assert_eq!(Loss { taken_by, ..Loss::new(reason, None) }.to_string(), said);
        }
    }
}
