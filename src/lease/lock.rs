//! The front door: a lock that is kept alive, asked for in one line.

use super::{
    Leases,
    guard::Guard,
    types::{Acquired, Request},
};
use crate::{Error, Key, Namespace, Result};
use bytes::Bytes;
use std::{pin::Pin, sync::OnceLock, time::Duration};

/// What waiting for a [`Lock`] or a [`TryLock`] is.
pub type LockFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A lock that is about to be asked for; `.await` it to wait for the lock. Made by [`Store::lock`](crate::Store::lock) and
/// [`Leases::lock`].
///
/// It waits for ever, unless [`within`](Self::within) says for how long: then a key that is still held is an error of the
/// kind [`Held`](crate::ErrorKind::Held), and [`Error::held`] says by whom. While it waits, a store that is unavailable is
/// retried, also for ever: after three failures in a row that is logged as a warning, once until the store answers again,
/// and with [`within`](Self::within) the store's own error ends the waiting. Any other error ends it at once. Dropping the
/// future gives up, and leaves no lease behind.
///
/// The lease lasts 30 seconds without being renewed, belongs to `user@host:pid` and is in the namespace `default`, unless
/// something else is said. Nothing said here is checked before it is awaited.
///
/// ```
/// use leasehold::Store;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let store = Store::open("memory://").await?;
/// let guard = store
///     .lock("reports/monthly")
///     .ttl(Duration::from_secs(10))
///     .within(Duration::from_secs(5))
///     .owner("worker-7")
///     .note("building the report")
///     .await?;
/// assert_eq!(guard.grant().owner(), "worker-7");
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct Lock {
    wanted: Wanted,
    wait: Duration,
}

/// One try to get a lock; `.await` it for `Some` guard, or `None` if another process holds the key. Made by
/// [`Store::try_lock`](crate::Store::try_lock) and [`Leases::try_lock`].
///
/// The lease lasts 30 seconds without being renewed, belongs to `user@host:pid` and is in the namespace `default`, unless
/// something else is said. Nothing said here is checked before it is awaited.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let store = leasehold::Store::open("memory://").await?;
/// let Some(guard) = store.try_lock("reports/monthly").await? else {
///     return Ok(()); // another process is at it
/// };
/// assert!(store.try_lock("reports/monthly").await?.is_none());
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryLock {
    wanted: Wanted,
}

/// What is asked for, or what is wrong with it.
#[derive(Debug)]
struct Wanted {
    leases: Leases,
    key: Result<Key>,
    /// Another one than that of the leases.
    namespace: Option<Result<Namespace>>,
    owner: Option<String>,
    request: Request,
}

impl Leases {
    /// Waits for the lock on a key, and keeps it alive until the [`Guard`] is released, dropped or lost; see [`Lock`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let store = leasehold::Store::open("memory://").await?;
    /// let leases = store.leases("billing")?;
    /// let guard = leases.lock("invoices/2026-01").await?;
    /// assert_eq!(guard.grant().namespace().as_str(), "billing");
    /// guard.release().await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock<K>(&self, key: K) -> Lock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Lock { wanted: Wanted::new(self.clone(), key), wait: Duration::MAX }
    }

    /// Tries once to lock a key, and keeps the lock alive from then on; see [`TryLock`].
    pub fn try_lock<K>(&self, key: K) -> TryLock
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        TryLock { wanted: Wanted::new(self.clone(), key) }
    }
}

impl Wanted {
    fn new<K>(leases: Leases, key: K) -> Self
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into);
        Self { leases, key, namespace: None, owner: None, request: Request::default() }
    }

    /// Everything that was said, checked as far as it can be without the store.
    fn checked(self) -> Result<(Leases, Key, Request)> {
        let Self { mut leases, key, namespace, owner, request } = self;
        if let Some(namespace) = namespace {
            leases.namespace = namespace?;
        }
        // By the default owner no other process could repeat it: it would find the key held, by itself.
        if request.request_id.is_some() && owner.is_none() {
            return Err(Error::invalid(
                "a request id needs an owner that every process which repeats it names: set .owner()",
            ));
        }
        let owner = owner.unwrap_or_else(|| default_owner().to_owned());
        Ok((leases, key?, request.owner(owner)))
    }
}

/// What can be said about either of the two.
macro_rules! setters {
    () => {
        /// How long the lease lasts after this process has died (30 s, or what comes nearest to it within the limits of
        /// the store). It is renewed at a third of that.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.wanted.request = self.wanted.request.ttl(ttl);
            self
        }

        /// Who asks, for people who look (`user@host:pid`); up to 256 bytes.
        pub fn owner(mut self, owner: impl Into<String>) -> Self {
            self.wanted.owner = Some(owner.into());
            self
        }

        /// A note for people who look at the lease; up to 4 KiB.
        pub fn note(mut self, note: impl Into<Bytes>) -> Self {
            self.wanted.request = self.wanted.request.note(note);
            self
        }

        /// The namespace that the key is in.
        pub fn namespace<N>(mut self, namespace: N) -> Self
        where
            N: TryInto<Namespace>,
            N::Error: Into<Error>,
        {
            self.wanted.namespace = Some(namespace.try_into().map_err(Into::into));
            self
        }

        /// Stops the guard from keeping the lease alive for longer than this: then it is lost, with
        /// [`MaxHold`](super::LossReason::MaxHold) as the reason.
        pub fn max_hold(mut self, longest: Duration) -> Self {
            self.wanted.request = self.wanted.request.max_hold(longest);
            self
        }

        /// The caller's own name for this request, which makes it safe to repeat from any process; see
        /// [`Request::request_id`]. It needs an [`owner`](Self::owner).
        pub fn request_id(mut self, id: impl Into<String>) -> Self {
            self.wanted.request = self.wanted.request.request_id(id);
            self
        }
    };
}

impl Lock {
    setters!();

    /// Waits for at most this long; without it, for ever. See [`Lock`] for what happens then.
    pub fn within(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl TryLock {
    setters!();
}

impl IntoFuture for Lock {
    type Output = Result<Guard>;
    type IntoFuture = LockFuture<Guard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (leases, key, request) = self.wanted.checked()?;
            match leases.acquire_within(&key, &request, self.wait).await? {
                Acquired::Granted(grant) => Ok(leases.guard(grant, request.max_hold)),
                Acquired::Held(held) => Err(held.into_error(&key)),
            }
        })
    }
}

impl IntoFuture for TryLock {
    type Output = Result<Option<Guard>>;
    type IntoFuture = LockFuture<Option<Guard>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (leases, key, request) = self.wanted.checked()?;
            let granted = leases.acquire(&key, &request).await?.granted();
            Ok(granted.map(|grant| leases.guard(grant, request.max_hold)))
        })
    }
}

/// This process, for people who look: `user@host:pid`, or `host:pid` where no user is known.
pub(crate) fn default_owner() -> &'static str {
    static OWNER: OnceLock<String> = OnceLock::new();
    OWNER.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        #[cfg(unix)]
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        #[cfg(not(unix))]
        let host = variable("COMPUTERNAME").unwrap_or_else(|| "unknown".to_owned());
        owner(variable("USER").or_else(|| variable("LOGNAME")), &host, std::process::id())
    })
}

/// A name that an owner may have, however long the user's and the host's are.
fn owner(user: Option<String>, host: &str, process: u32) -> String {
    let cut = |name: &str| name.chars().take(48).collect::<String>();
    let user = user.map(|user| cut(&user) + "@").unwrap_or_default();
    format!("{user}{}:{process}", cut(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_owner_names_user_host_and_process_and_always_fits() {
        assert_eq!(owner(Some("alice".to_owned()), "laptop", 42), "alice@laptop:42");
        assert_eq!(owner(None, "laptop", 42), "laptop:42");
        let longest = owner(Some("ü".repeat(300)), &"ü".repeat(300), u32::MAX);
        assert!(longest.len() <= 256, "{longest}");
        assert!(default_owner().ends_with(&format!(":{}", std::process::id())));
    }
}
