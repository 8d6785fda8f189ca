//! What callers hand in and get back.

use super::{
    alive::{Alive, Under},
    record::{LONGEST_NOTE, Lease},
};
use crate::{
    Clock, Error, ErrorKind, Fence, Key, LeaseId, Namespace, Result, SessionId, Ttl,
    clock::{Moment, Timestamp},
    duration::millis,
    ttl::in_words,
};
use bytes::Bytes;
use serde::{Serialize, Serializer};
use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// The longest owner and request id, in bytes.
const LONGEST_NAME: usize = 256;

/// How long a lease lasts if the caller does not say.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What is asked for when a lease is acquired.
///
/// Setters never fail: the values are checked when the lease is asked for, and a wrong one is
/// [`Invalid`](crate::ErrorKind::Invalid).
///
/// ```
/// use leasehold::lease::Request;
/// use std::time::Duration;
///
/// let request = Request::new(Duration::from_secs(30)).owner("worker-7").note("rebuilding the index");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Request {
    /// The usual one, within the limits of the store, if it is not said.
    ttl: Option<Duration>,
    pub(crate) owner: Arc<str>,
    pub(crate) request_id: Option<String>,
    pub(crate) note: Option<Bytes>,
    pub(crate) new_key: bool,
    pub(crate) max_hold: Option<Duration>,
    /// The session that it is to be held under.
    pub(crate) session: Option<Arc<dyn Alive>>,
}

/// A lease of 30 seconds, or of what comes nearest to that within the limits of the store, for an owner without a name.
impl Default for Request {
    fn default() -> Self {
        Self {
            ttl: None,
            owner: "".into(),
            request_id: None,
            note: None,
            new_key: false,
            max_hold: None,
            session: None,
        }
    }
}

impl Request {
    /// A lease that ends by itself after `ttl` unless it is renewed.
    ///
    /// One that is shorter than [`min_ttl`](crate::Settings::min_ttl) or longer than the store's
    /// [`max_ttl`](crate::lease::MAX_TTL) is refused when it is asked for.
    pub fn new(ttl: Duration) -> Self {
        Self::default().ttl(ttl)
    }

    /// How long the lease lasts without being renewed; see [`new`](Self::new).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Who asks, for people and for [`request_id`](Self::request_id); up to 256 bytes.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into().into();
        self
    }

    /// The caller's own name for this request, up to 256 bytes, which makes it safe to repeat: while the lease that it was
    /// granted is alive, the same id and owner get that lease again, from any process.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// A note for people who look at the lease, up to 4 KiB.
    pub fn note(mut self, note: impl Into<Bytes>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Hint that the key has never been locked, which saves the first read. A wrong hint costs one more request.
    pub fn new_key(mut self) -> Self {
        self.new_key = true;
        self
    }

    /// Stops a guard from keeping the lease alive for longer than this, however well renewing goes.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// The session that the lease is to be held under, as it stands now.
    pub(super) fn under(&self) -> Option<Under> {
        self.session.as_ref().map(|session| session.under())
    }

    /// The same, to be held under a session.
    pub(super) fn held_under(&self, session: &Arc<dyn Alive>) -> Result<Self> {
        let not = |what: &str| {
            Err(Error::invalid(format!(
                "a lease under a session has no {what}: it is held for as long as the session is"
            )))
        };
        match self {
            Self { ttl: Some(_), .. } => not("TTL of its own"),
            Self { max_hold: Some(_), .. } => not("max_hold"),
            Self { request_id: Some(_), .. } => not("request id"),
            _ => Ok(Self { session: Some(Arc::clone(session)), ..self.clone() }),
        }
    }

    /// The time to live that is asked for, if one is.
    pub(super) fn asked_ttl(&self) -> Result<Option<Ttl>> {
        self.ttl.map(Ttl::new).transpose()
    }

    /// The time to live that is asked for, or the usual one.
    pub(super) fn ttl_or_default(&self) -> Result<Ttl> {
        Ttl::new(self.ttl.unwrap_or(DEFAULT_TTL))
    }

    /// What no store can be asked for.
    pub(super) fn validate(&self) -> Result<()> {
        let longer = |what: &str, bytes: usize, most: usize| {
            Err(Error::invalid(format!("{what} of {bytes} bytes is too long: at most {most} are allowed")))
        };
        let note = self.note.as_ref().map_or(0, Bytes::len);
        match (self.owner.len(), self.request_id.as_ref().map_or(0, String::len)) {
            (owner, _) if owner > LONGEST_NAME => longer("an owner", owner, LONGEST_NAME),
            (_, id) if id > LONGEST_NAME => longer("a request id", id, LONGEST_NAME),
            _ if note > LONGEST_NOTE => longer("a note", note, LONGEST_NOTE),
            _ => Ok(()),
        }
    }
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
    /// The session that it is held under: then that is what is believed in.
    pub(crate) session: Option<Weak<dyn Alive>>,
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
        let left = match &self.session {
            None => self.deadline.since(self.clock.monotonic()).min(self.expires.since(self.clock.wall())),
            Some(session) => session.upgrade().map_or(Duration::ZERO, |session| session.time_left()),
        };
        if left.is_zero() {
            self.over.store(true, Relaxed);
        }
        left
    }
}

/// For programs: what others see of it too, by the names that [`Holder`] has.
impl Serialize for Grant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            namespace: &'a Namespace,
            #[serde(flatten)]
            key: &'a Key,
            lease_id: LeaseId,
            owner: &'a str,
            fence: Fence,
            expires_ms: Timestamp,
            #[serde(serialize_with = "millis::serialize")]
            ttl_ms: Duration,
        }
        let Self { namespace, key, id, owner, fence, expires, ttl, .. } = self;
        let (lease_id, fence, expires_ms, ttl_ms) = (*id, *fence, *expires, ttl.as_duration());
        Shown { namespace, key, lease_id, owner, fence, expires_ms, ttl_ms }.serialize(serializer)
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Which lease it is.
    pub lease_id: LeaseId,
    /// How the holder calls itself.
    pub owner: String,
    /// Its fence.
    pub fence: Fence,
    /// When it was granted, by the holder's clock.
    #[serde(rename = "granted_ms")]
    pub granted_at: Timestamp,
    /// When it ends unless it is renewed, by the holder's clock.
    #[serde(rename = "expires_ms")]
    pub expires_at: Timestamp,
    /// How long it lasts without being renewed.
    #[serde(rename = "ttl_ms", serialize_with = "millis::serialize")]
    pub ttl: Duration,
    /// What the holder has to say; for programs (serde) as far as it is UTF-8.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub note: Option<Bytes>,
    /// The session that it is held under. Then it goes on for as long as the session does, whatever `expires_at` says: that is
    /// when the session would have ended at the time of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

fn as_text<S: Serializer>(note: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(note.as_deref().unwrap_or_default()))
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
            session: lease.session.map(|session| session.id),
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Held {
    /// Who has it. `None` if it is free and another waiting process has the first turn.
    pub by: Option<Holder>,
    /// When to ask again: after this it is free, unless it was renewed.
    #[serde(rename = "retry_after_ms", serialize_with = "millis::serialize")]
    pub retry_after: Duration,
}

/// Printed, it is the rest of a sentence about the key: `held by worker-7 (fence 12) until …; retry in 29s`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(by) if by.session.is_some() => write!(f, "held by {by} under a session")?,
            Some(by) => write!(f, "held by {by} until {}", by.expires_at)?,
            None => f.write_str("free, but reserved for another process that waits")?,
        }
        // Whole milliseconds, rounded up: who comes back then must not be early.
        let millis = u64::try_from(self.retry_after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        write!(f, "; retry in {}", in_words(Duration::from_millis(millis)))
    }
}

impl std::error::Error for Held {}

impl Held {
    pub(super) fn into_error(self, key: &Key) -> Error {
        Error::new(ErrorKind::Held, format!("{key} is {self}")).with_source(self)
    }
}

impl Error {
    /// Who holds the key, if this is [`ErrorKind::Held`].
    ///
    /// ```
    /// # use leasehold::{ErrorKind, Store};
    /// # use std::time::Duration;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let store = Store::open("memory://").await?;
    /// let guard = store.lock("orders/42").owner("worker-7").await?;
    ///
    /// let error = store.lock("orders/42").within(Duration::from_millis(1)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Held);
    /// let holder = error.held().and_then(|held| held.by.as_ref()).unwrap();
    /// assert_eq!((holder.owner.as_str(), holder.fence), ("worker-7", guard.fence()));
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn held(&self) -> Option<&Held> {
        std::error::Error::source(self)?.downcast_ref()
    }
}

/// What became of a request for a lease.
#[derive(Debug, Clone)]
#[must_use = "a lease that was granted is held until it is released or ends"]
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

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The key.
    #[serde(flatten)]
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
    #[serde(rename = "written_ms")]
    pub written_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_the_names_and_numbers_that_the_service_has() {
        let at = Timestamp::from_micros(1_767_225_600_123_456);
        let holder = Holder {
            lease_id: LeaseId::from([1; 16]),
            owner: "me".to_owned(),
            fence: Fence::new(12).unwrap(),
            granted_at: at,
            expires_at: at.plus(Duration::from_secs(30)),
            ttl: Duration::from_secs(30),
            note: Some(Bytes::from_static(b"hello")),
            session: None,
        };
        let held = Held { by: Some(holder.clone()), retry_after: Duration::from_millis(1500) };
        let json = serde_json::to_value(&held).unwrap();
        assert_eq!((&json["retry_after_ms"], &json["by"]["owner"]), (&1500.into(), &"me".into()));
        let status = Status {
            key: Key::new("orders/42").unwrap(),
            holder: Some(Holder { note: None, ..holder }),
            may_have_ended: false,
            last_fence: None,
            waited_for: false,
            written_at: Some(at),
        };
        let said = r#"{"key":"orders/42","holder":{"lease_id":"01010101010101010101010101010101","owner":"me","fence":12,"granted_ms":1767225600123,"expires_ms":1767225630123,"ttl_ms":30000},"may_have_ended":false,"last_fence":null,"waited_for":false,"written_ms":1767225600123}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), said);
    }

    #[test]
    fn an_owner_and_a_request_are_called_by_at_most_256_bytes() {
        let request = Request::default;
        let (longest, longer) = ("é".repeat(128), "é".repeat(128) + "x");
        assert!(request().owner(&longest).request_id(&longest).validate().is_ok());
        for refused in [request().owner(&longer), request().request_id(&longer)] {
            let error = refused.validate().unwrap_err();
            assert!(error.to_string().contains("of 257 bytes is too long: at most 256"), "{error}");
        }
        assert!(request().note(vec![0; LONGEST_NOTE]).validate().is_ok());
        assert!(request().note(vec![0; LONGEST_NOTE + 1]).validate().is_err());
    }
}
