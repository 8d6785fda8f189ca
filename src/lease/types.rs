//! What callers hand in and get back.

use super::{
    loss::Loss,
    record::{LONGEST_NOTE, Lease},
};
use crate::{
    Clock, Error, Fence, Key, LeaseId, Namespace, Result, Ttl,
    clock::{Moment, Timestamp},
};
use bytes::Bytes;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// The longest owner and request id, in bytes.
const LONGEST_NAME: usize = 256;

/// What is asked for when a lease is acquired.
///
/// ```
/// use leasehold::lease::Request;
/// use std::time::Duration;
///
/// let request = Request::new(Duration::from_secs(30))?.owner("worker-7")?.note("rebuilding the index")?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Request {
    pub(crate) ttl: Ttl,
    pub(crate) owner: Arc<str>,
    pub(crate) request_id: Option<String>,
    pub(crate) note: Option<Bytes>,
    pub(crate) new_key: bool,
    pub(crate) max_hold: Option<Duration>,
}

impl Request {
    /// A lease that ends by itself after `ttl` unless it is renewed.
    ///
    /// One that is shorter than [`min_ttl`](crate::Settings::min_ttl) or longer than the store's
    /// [`max_ttl`](crate::lease::MAX_TTL) is refused, as [`Invalid`](crate::ErrorKind::Invalid), when it is
    /// asked for.
    pub fn new(ttl: Duration) -> Result<Self> {
        let owner = "".into();
        Ok(Self { ttl: Ttl::new(ttl)?, owner, request_id: None, note: None, new_key: false, max_hold: None })
    }

    /// Who asks, for people and for [`request_id`](Self::request_id).
    pub fn owner(mut self, owner: impl Into<String>) -> Result<Self> {
        self.owner = named("an owner", owner.into())?.into();
        Ok(self)
    }

    /// The caller's own name for this request, which makes it safe to repeat: while the lease that it was granted is
    /// alive, the same id and owner get that lease again, from whatever process they ask.
    pub fn request_id(mut self, id: impl Into<String>) -> Result<Self> {
        self.request_id = Some(named("a request id", id.into())?);
        Ok(self)
    }

    /// A word for whoever looks at the lease, up to 4 KiB.
    pub fn note(mut self, note: impl Into<Bytes>) -> Result<Self> {
        let note = note.into();
        if note.len() > LONGEST_NOTE {
            return Err(Error::invalid(format!(
                "a note of {} bytes is too long: at most {LONGEST_NOTE} are allowed",
                note.len()
            )));
        }
        self.note = Some(note);
        Ok(self)
    }

    /// Says that this key was never used, which saves a read. If it was, that costs one.
    pub fn new_key(mut self) -> Self {
        self.new_key = true;
        self
    }

    /// Stops a guard from keeping the lease alive for longer than this, however well renewing goes.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }
}

fn named(what: &str, name: String) -> Result<String> {
    if name.len() > LONGEST_NAME {
        return Err(Error::invalid(format!(
            "{what} of {} bytes is too long: at most {LONGEST_NAME} are allowed",
            name.len()
        )));
    }
    Ok(name)
}

/// A lease that was granted, and how long to believe in it.
#[derive(Clone)]
pub struct Grant {
    pub(crate) namespace: Namespace,
    pub(crate) key: Key,
    pub(crate) id: LeaseId,
    pub(crate) fence: Fence,
    pub(crate) owner: Arc<str>,
    pub(crate) ttl: Ttl,
    pub(crate) expires: Timestamp,
    /// The end by the monotonic clock of this process, counted from before the request was sent.
    pub(crate) deadline: Moment,
    /// It has a request id, by which another process may have been given it too.
    pub(crate) repeatable: bool,
    /// Set when it was found to be over: then it is over for good, and for every copy.
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Grant {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The namespace that the key is in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Which lease this is.
    pub fn lease_id(&self) -> LeaseId {
        self.id
    }

    /// The fence: hand it to the resource with every write, and let the resource refuse lower ones than it has seen.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Who holds it.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How long it lasts without being renewed.
    pub fn ttl(&self) -> Duration {
        self.ttl.as_duration()
    }

    /// When it ends by the wall clock, unless it is renewed.
    pub fn expires_at(&self) -> Timestamp {
        self.expires
    }

    /// Whether this process may still believe in it, by its monotonic clock and by its wall clock.
    ///
    /// True says nothing about the next moment: a process can be paused right after it asked. That is what the
    /// [fence](Self::fence) is for.
    pub fn is_valid(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// How long this process may still believe in it, if it is not paused in between. Once that was nothing it stays
    /// nothing, whatever the clocks are set to.
    pub fn time_left(&self) -> Duration {
        if self.over.load(Relaxed) {
            return Duration::ZERO;
        }
        let monotonic = self.deadline.since(self.clock.monotonic());
        let left = monotonic.min(self.expires.since(self.clock.wall()));
        if left.is_zero() {
            self.over.store(true, Relaxed);
        }
        left
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("key", &format_args!("{}/{}", self.namespace, self.key))
            .field("lease", &self.id)
            .field("fence", &self.fence)
            .field("owner", &self.owner)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Who holds a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Which lease it is.
    pub lease_id: LeaseId,
    /// How the holder calls itself.
    pub owner: String,
    /// Its fence.
    pub fence: Fence,
    /// When it was granted, by the holder's clock.
    pub granted_at: Timestamp,
    /// When it ends unless it is renewed, by the holder's clock.
    pub expires_at: Timestamp,
    /// How long it lasts without being renewed.
    pub ttl: Duration,
    /// What the holder has to say.
    pub note: Option<Bytes>,
}

impl From<&Lease> for Holder {
    fn from(lease: &Lease) -> Self {
        Self {
            lease_id: lease.id,
            owner: lease.owner.as_ref().to_owned(),
            fence: lease.fence,
            granted_at: lease.granted,
            expires_at: lease.expires,
            ttl: lease.ttl.as_duration(),
            note: lease.note.clone(),
        }
    }
}

/// For a sentence: who, and the fence.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = if self.owner.is_empty() { "another process" } else { &self.owner };
        write!(f, "{owner} (fence {})", self.fence)
    }
}

/// Why a lease was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Who has it. `None` if nobody does and it is another process's turn to take it.
    pub by: Option<Holder>,
    /// When to ask again: after this it is free, unless it was renewed.
    pub retry_after: Duration,
}

/// What became of a request for a lease.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// It is yours.
    Granted(Grant),
    /// It is not, until the deadline if there was one.
    Held(Held),
}

impl Acquired {
    /// The grant, if there is one.
    pub fn granted(self) -> Option<Grant> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Held(_) => None,
        }
    }
}

/// What became of a lease that was to be renewed.
#[derive(Debug, Clone)]
pub enum Renewed {
    /// It is still yours, for another while.
    Renewed(Grant),
    /// It is not yours any more. Stop what it protects.
    Lost(Loss),
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The key.
    pub key: Key,
    /// Who holds it now.
    pub holder: Option<Holder>,
    /// Whether this machine's clock says that the holder's time is over, and nothing else says so yet: it is held until
    /// something does. An [`acquire`](crate::Leases::acquire) or a [`get`](crate::Leases::get) finds out.
    pub may_have_ended: bool,
    /// The fence of the last grant; `None` if there never was one.
    pub last_fence: Option<Fence>,
    /// Whether another process has asked for a turn.
    pub waited_for: bool,
    /// When it was last changed, by the clock of who changed it.
    pub written_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_and_a_request_are_called_by_at_most_256_bytes() {
        let request = || Request::new(Duration::from_secs(30)).unwrap();
        let (longest, longer) = ("é".repeat(128), "é".repeat(128) + "x");
        assert!(request().owner(&longest).is_ok() && request().request_id(&longest).is_ok());
        for refused in [request().owner(&longer), request().request_id(&longer)] {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains("of 257 bytes is too long: at most 256"), "{error}");
        }
    }
}
