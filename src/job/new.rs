//! A job as its producer describes it.

use super::segment::NewJob as Row;
use crate::clock::Timestamp;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

/// The name of the part that a job has if nothing else is said.
pub const ARGS: &str = "args";

/// A job to be enqueued: what it carries, and how it is to be run.
///
/// ```
/// use leasehold::job::NewJob;
/// use std::time::Duration;
///
/// let job = NewJob::new(r#"{"to":"ann@example.org"}"#)
///     .kind("welcome")
///     .priority(-1) // below 0 is urgent
///     .due_in(Duration::from_secs(60))
///     .part("attachment", vec![1, 2, 3]);
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct NewJob {
    pub(crate) row: Row,
    pub(crate) due: Due,
}

/// When a job is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Due {
    #[default]
    Now,
    In(Duration),
    At(Timestamp),
}

impl NewJob {
    /// A job with these arguments, due now.
    pub fn new(args: impl Into<Bytes>) -> Self {
        Self::default().part(ARGS, args)
    }

    /// A job with no parts at all.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A named part, which a claim can leave out and fetch later; up to 8. One of the same name is replaced.
    pub fn part(mut self, name: impl AsRef<str>, body: impl Into<Bytes>) -> Self {
        let name: Arc<str> = name.as_ref().into();
        self.row.parts.retain(|(known, _)| *known != name);
        self.row.parts.push((name, body.into()));
        self
    }

    /// Lower ones come first (0); below 0 is urgent, and is taken before everything that is not.
    pub fn priority(mut self, priority: i16) -> Self {
        self.row.priority = priority;
        self
    }

    /// Not before this time, by the store's clock.
    pub fn due_at(mut self, at: Timestamp) -> Self {
        self.due = Due::At(at);
        self
    }

    /// Not before so much later, by the store's clock.
    pub fn due_in(mut self, after: Duration) -> Self {
        self.due = Due::In(after);
        self
    }

    /// What kind of job it is, for its handler; up to 128 bytes.
    pub fn kind(mut self, kind: impl AsRef<str>) -> Self {
        self.row.kind = Some(kind.as_ref().into());
        self
    }

    /// On whose behalf: tenants take turns. Up to 128 bytes.
    pub fn tenant(mut self, tenant: impl AsRef<str>) -> Self {
        self.row.tenant = Some(tenant.as_ref().into());
        self
    }

    /// Jobs of one key are limited together, if the queue has a limit. Up to 128 bytes.
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        self.row.key = Some(key.as_ref().into());
        self
    }

    /// Dropped as a duplicate if another job of this unique key is queued or running when it is taken in, or ended within the
    /// queue's [`unique_period`](super::QueueSettings::unique_period). With a [`key`](Self::key) it holds among the jobs of
    /// that key. Up to 128 bytes.
    pub fn unique_key(mut self, key: impl AsRef<str>) -> Self {
        self.row.unique_key = Some(key.as_ref().into());
        self
    }

    /// The caller's own id, shown wherever the job is; up to 128 bytes.
    pub fn caller_id(mut self, id: impl AsRef<str>) -> Self {
        self.row.caller_id = Some(id.as_ref().into());
        self
    }

    /// How many attempts may fail, if not as many as the queue says.
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.row.max_attempts = Some(most);
        self
    }

    /// How long one attempt may take. For whoever runs it to enforce; whole milliseconds.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.row.timeout = Some(longest);
        self
    }

    /// Roughly how much of a segment it takes.
    pub(crate) fn weight(&self) -> usize {
        96 + self.row.parts.iter().map(|(name, body)| name.len() + body.len() + 16).sum::<usize>()
    }

    /// With its due time fixed.
    pub(crate) fn into_row(mut self, now: Timestamp) -> Row {
        self.row.due = match self.due {
            Due::Now => now,
            Due::In(after) => now.plus(after),
            Due::At(at) => at,
        };
        self.row
    }
}

impl<T: Into<Bytes>> From<T> for NewJob {
    fn from(args: T) -> Self {
        Self::new(args)
    }
}
