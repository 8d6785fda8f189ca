//! Sessions: many leases that are kept alive by one renewal.
//!
//! A lease by itself costs a write every third of its time to live. A [`Session`] is one such lease, and any number of
//! locks can be held under it: their records name the session, and they are held for as long as it lives. All of them are
//! lost at once when it is.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let store = leasehold::Store::open("memory://").await?;
//! # store.allow_record_format(leasehold::session::RECORD_FORMAT, "docs").await?;
//! let session = store.session().await?;
//! let one = session.lock("orders/42").await?;
//! let two = session.lock("orders/43").await?;
//! assert!(one.is_valid() && two.is_valid());
//! one.release().await?;
//! session.release().await?; // everything that is still held under it
//! assert!(!two.is_valid());
//! # Ok::<(), leasehold::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Records that name a session have a format of their own, which older versions of this library refuse to write. So the
//! store must allow it: an operator does that once, when every process that uses the store is new enough, with
//! `leasehold store set --record-format 3` or [`Store::allow_record_format`](crate::Store::allow_record_format).
//!
//! - The fence is the key's own, and rises with every grant as always.
//! - A lock under a session has no time to live, request id or `max_hold` of its own.
//! - [`force_release`](crate::Leases::force_release) asks the session's process for a key, which reports it lost and gives it
//!   back with its next renewal.
//! - A session that was lost is over for good: begin a new one.

use crate::{
    Error, Key, Namespace, Result, SessionId,
    lease::{self, Election, Engine, Leases, Living, Lock, LockFuture, Loss, SessionLife, TryLock},
};
use std::{fmt, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// The record format that the store must allow: see [`Store::allow_record_format`](crate::Store::allow_record_format).
pub const RECORD_FORMAT: u32 = lease::record::SESSION_FORMAT;

/// A session of this process. Cheap to clone; it lives for as long as a clone of it or a guard under it does, or until it is
/// [released](Self::release) or lost.
#[derive(Clone)]
#[must_use = "dropping a session releases it"]
pub struct Session {
    life: Arc<SessionLife>,
    engine: Arc<Engine>,
}

/// A session that is about to begin; `.await` it. Made by [`Store::session`](crate::Store::session).
#[must_use = "nothing begins until it is awaited"]
pub struct NewSession {
    engine: Arc<Engine>,
    allowed: LockFuture<u32>,
    ttl: Option<Duration>,
    owner: Option<String>,
}

impl NewSession {
    /// `allowed` says which record format the store allows, if that is not known to be enough.
    pub(crate) fn new(engine: Arc<Engine>, allowed: LockFuture<u32>) -> Self {
        Self { engine, allowed, ttl: None, owner: None }
    }

    /// How long everything under it stays held after this process has died (30 s, or what comes nearest to it within the
    /// limits of the store). It is renewed at a third of that.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Whose session it is, for people who look (`user@host:pid`); up to 256 bytes.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }
}

impl IntoFuture for NewSession {
    type Output = Result<Session>;
    type IntoFuture = LockFuture<Session>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { engine, allowed, ttl, owner } = self;
            if engine.record_format() < RECORD_FORMAT {
                // An operator may have allowed it since the store was opened.
                engine.allow(allowed.await?);
            }
            let owner = owner.unwrap_or_else(|| lease::default_owner().to_owned());
            let life = SessionLife::begin(&engine, ttl, &owner).await?;
            Ok(Session { life, engine })
        })
    }
}

impl fmt::Debug for NewSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSession").field("ttl", &self.ttl).field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Session {
    fn leases(&self, namespace: Namespace) -> Leases {
        lease::leases_under(&self.life, Arc::clone(&self.engine), namespace)
    }

    /// Which session it is.
    pub fn id(&self) -> SessionId {
        self.life.name().id
    }

    /// Waits for the lock on a key, which is held until its guard is released or dropped, or the session is over. See
    /// [`Lock`] for what else can be said; a TTL, a request id or a `max_hold` is refused.
    pub fn lock<K>(&self, key: K) -> Lock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.leases(Namespace::default()).lock(key)
    }

    /// Tries once to lock a key; `None` if it is held.
    pub fn try_lock<K>(&self, key: K) -> TryLock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.leases(Namespace::default()).try_lock(key)
    }

    /// An election of the namespace `default` in which `candidate` stands; whoever wins leads until it resigns, or its session
    /// is over. Candidates with and without a session may stand in one election.
    pub fn election<K>(&self, name: K, candidate: impl Into<String>) -> Result<Election>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        lease::election_under(self.leases(Namespace::default()), name, candidate)
    }

    /// Whether this process may still believe in the session, and so in what is held under it. Looks at the clocks, not at the
    /// network.
    pub fn is_valid(&self) -> bool {
        self.life.is_valid()
    }

    /// How many guards there are under it.
    pub fn held(&self) -> usize {
        self.life.leases()
    }

    /// Resolves when the session is over, and with it everything that is held under it.
    pub async fn lost(&self) -> Loss {
        self.life.lost().cancelled().await;
        self.life.loss()
    }

    /// Cancelled when the session is over: for code that stops by a token.
    pub fn cancellation(&self) -> CancellationToken {
        self.life.lost().child_token()
    }

    /// Gives the session back, and with it everything that is still held under it, in one write: all its guards are lost
    /// before it is sent, and others can have the keys at once.
    ///
    /// On an error the session may still be in the store; it ends by itself.
    pub async fn release(self) -> Result<()> {
        self.life.release().await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).field("held", &self.held()).finish_non_exhaustive()
    }
}
