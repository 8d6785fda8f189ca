//! Leases: acquire, renew, release, with a fence for every grant.
//!
//! A lease is not a mutex. Its holder can be paused for longer than it lasts and go on as if nothing had happened; no
//! lock service can prevent that. So every grant carries a [`Fence`](crate::Fence) that is higher than all before it,
//! and what the lease protects must refuse a fence that is lower than one that it has seen.

mod acquire;
pub(crate) mod alive;
mod ask;
mod check;
mod counters;
mod election;
pub(crate) mod ended;
mod engine;
mod filed;
mod get;
mod guard;
mod keeper;
mod keys;
mod kind;
mod late;
pub(crate) mod layout;
mod life;
mod living;
mod lock;
mod loss;
mod mark;
mod mend;
mod operation;
mod others;
pub(crate) mod plan;
mod queue;
pub(crate) mod record;
mod release;
mod renew;
mod sessions;
mod settings;
mod state;
mod tell;
mod terms;
mod tidy;
mod tries;
mod turn;
mod types;
mod under;
mod wait;
mod watch;
pub(crate) mod wire;

pub(crate) use counters::Counts;
pub(crate) use election::election_under;
pub use election::{Campaign, Election, Leaders, Leadership};
pub(crate) use engine::Engine;
pub use filed::{Filed, FiledKeys};
pub use guard::Guard;
pub(crate) use kind::{DECLARATION, LeaseKind};
pub(crate) use life::SessionLife;
pub(crate) use living::Living;
pub(crate) use lock::default_owner;
pub use lock::{Lock, LockFuture, TryLock};
pub use loss::{Failing, Loss, LossReason, Renewed};
pub use mend::Forced;
pub use settings::MAX_TTL;
pub(crate) use settings::{LeaseSettings, Shared};
pub(crate) use terms::Terms;
pub(crate) use turn::LeaseTurn;
pub use types::{Acquired, Grant, Held, Holder, Request, Status};
pub use watch::Watch;

use self::{alive::Alive, ended::Watched, engine::status, keys::KeyEntry, record::KeySlot};
use crate::{
    Key, LeaseId, Namespace, Result, Ttl,
    storage::{
        Name,
        cas::{self, Slot},
    },
};
use futures_util::{StreamExt, stream};
use std::{borrow::Cow, sync::Arc, time::Duration};

/// The leases of one namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leases {
    engine: Arc<Engine>,
    namespace: Namespace,
    /// What is locked is held under this session.
    session: Option<Arc<dyn Alive>>,
}

/// What became of a request for a guarded lease.
#[derive(Debug)]
#[must_use = "dropping a guard releases its lease"]
pub enum Locked {
    /// It is yours, and kept alive.
    Granted(Guard),
    /// It is not.
    Held(Held),
}

impl Locked {
    /// The guard, if there is one.
    pub fn granted(self) -> Option<Guard> {
        match self {
            Self::Granted(guard) => Some(guard),
            Self::Held(_) => None,
        }
    }
}

/// One page of keys.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listing {
    /// What is known of them, in the order of their names in the store; or why one of them cannot be read.
    pub keys: Vec<Result<Status>>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// A place in a listing. Its text can be handed around; [`Leases::cursor`] reads it.
#[derive(Debug, Clone)]
pub struct Cursor(Name);

/// Leases whose locks are held under a session. Not for callers: a grant without a guard would never end.
pub(crate) fn leases_under(session: &Arc<SessionLife>, engine: Arc<Engine>, namespace: Namespace) -> Leases {
    Leases { engine, namespace, session: Some(Arc::clone(session) as Arc<dyn Alive>) }
}

/// What is asked for, under the session if there is one.
fn under_session<'a>(session: Option<&Arc<dyn Alive>>, request: &'a Request) -> Result<Cow<'a, Request>> {
    Ok(match session {
        None => Cow::Borrowed(request),
        Some(session) => Cow::Owned(request.held_under(session)?),
    })
}

impl Leases {
    pub(crate) fn new(engine: Arc<Engine>, namespace: Namespace) -> Self {
        Self { engine, namespace, session: None }
    }

    fn entry(&self, key: &Key) -> Arc<KeyEntry> {
        self.engine.keys.get(&self.namespace, key)
    }

    #[cfg(feature = "_internals")]
    pub(crate) fn look_up(&self, key: &Key) {
        self.entry(key);
    }

    /// A grant knows its own namespace, which may be another one.
    fn entry_of(&self, grant: &Grant) -> Arc<KeyEntry> {
        self.engine.keys.get(&grant.namespace, &grant.key)
    }

    fn touch(&self) {
        self.engine.activity.touch(&*self.engine.backend.clock);
    }

    /// Tries once to get the lease.
    ///
    /// Takes over a lease that has ended, in the same write. That is judged by this machine's clock, which must agree with
    /// the store's.
    ///
    /// # Cancellation
    /// Dropped in the middle of its write, it leaves a task behind that finds out what became of it and frees a lease
    /// that nobody wants. One with a [request id](Request::request_id) is left to be asked for again.
    pub async fn acquire(&self, key: &Key, request: &Request) -> Result<Acquired> {
        self.engine.limits.allow_request(request)?;
        let request = under_session(self.session.as_ref(), request)?;
        self.touch();
        acquire::acquire(&self.engine, &self.entry(key), &request).await
    }

    /// Waits for the lease, for at most `wait`.
    ///
    /// Those who wait in one process are served in their order, one of them looking after the key for all; a release
    /// in this process hands over in a single write. Waiters in other processes get a turn as well.
    pub async fn acquire_within(&self, key: &Key, request: &Request, wait: Duration) -> Result<Acquired> {
        self.engine.limits.allow_request(request)?;
        let request = under_session(self.session.as_ref(), request)?;
        self.touch();
        let entry = self.entry(key);
        let deadline = self.engine.now().moment.plus(wait);
        wait::acquire_within(&self.engine, &entry, &request, deadline).await
    }

    /// Waits for the lease, for at most `wait` (tries once if that is zero), and keeps it alive from then on. For callers
    /// that want to know who holds the key as an outcome instead of an error; [`lock`](Self::lock) is shorter.
    pub async fn lock_within(&self, key: &Key, request: &Request, wait: Duration) -> Result<Locked> {
        let acquired = if wait.is_zero() {
            self.acquire(key, request).await?
        } else {
            self.acquire_within(key, request, wait).await?
        };
        Ok(match acquired {
            Acquired::Granted(grant) => Locked::Granted(self.guard(grant, request.max_hold)),
            Acquired::Held(held) => Locked::Held(held),
        })
    }

    /// Keeps a lease alive that was acquired without a guard.
    pub fn guard(&self, grant: Grant, max_hold: Option<Duration>) -> Guard {
        Guard::new(&self.engine, &self.entry_of(&grant), grant, max_hold)
    }

    /// Renews a lease for its time to live from now. One that has ended is lost, even if it was not taken.
    ///
    /// When the outcome is unknown, go on believing in the old grant until it ends, and try again.
    pub async fn renew(&self, grant: &Grant) -> Result<Renewed> {
        self.touch();
        renew::renew(&self.engine, &self.entry_of(grant), grant.id, None, Some(grant)).await
    }

    /// Renews a lease by its id, for callers that keep nothing but that; `ttl` replaces its time to live, within the limits
    /// of the store.
    pub async fn renew_by_id(&self, key: &Key, id: LeaseId, ttl: Option<Duration>) -> Result<Renewed> {
        let ttl = ttl.map(Ttl::new).transpose()?;
        ttl.map_or(Ok(()), |ttl| self.engine.limits.allow(ttl))?;
        self.touch();
        renew::renew(&self.engine, &self.entry(key), id, ttl, None).await
    }

    /// Gives a lease back. Giving back what one does not have is fine.
    pub async fn release(&self, grant: &Grant) -> Result<()> {
        self.touch();
        release::release(&self.engine, &self.entry_of(grant), grant.id).await
    }

    /// Gives a lease back by its id.
    pub async fn release_by_id(&self, key: &Key, id: LeaseId) -> Result<()> {
        self.touch();
        release::release(&self.engine, &self.entry(key), id).await
    }

    /// What there is now. A lease that has ended is cleared on the way.
    pub async fn get(&self, key: &Key) -> Result<Status> {
        self.touch();
        get::get(&self.engine, &self.entry(key)).await
    }

    /// What there is now, without writing anything. Not activity: for operators and their tools.
    pub async fn peek(&self, key: &Key) -> Result<Status> {
        Ok(self.peek_watched(key, None).await?.0)
    }

    /// A [`peek`](Self::peek) that knows a beat which was watched; also says which beat is there.
    async fn peek_watched(&self, key: &Key, watched: Option<Watched>) -> Result<(Status, Option<Watched>)> {
        let slot = KeySlot { namespace: self.namespace.clone(), key: key.clone() };
        let engine = &self.engine;
        let time = engine.backend.latest_stamp();
        let watched = watched.and_then(|watched| watched.long_enough(engine.now().moment));
        let seen = cas::read(&engine.backend, &slot).await?;
        let arrived = engine.now().moment;
        let record = seen.as_ref().map(cas::Seen::record);
        let modified = seen.as_ref().and_then(cas::Seen::modified);
        let state = others::judge_read(engine, record, modified, time, watched).await?;
        // One under a session ends with that, and not by being watched.
        let lease = record.and_then(|record| record.lease.as_ref()).filter(|lease| lease.session.is_none());
        let beat = lease.map(|lease| Watched::new(lease, arrived, &engine.bounds()));
        Ok((status(key, record, state), beat))
    }

    /// Lists keys that begin with `prefix`, a page at a time, without writing anything: one listing, and one read for
    /// each key. Not activity.
    ///
    /// Keys with very long names are stored under a hash; they are found by what their names have left of the prefix and
    /// sorted out after they were read.
    pub async fn list(&self, prefix: &[u8], after: Option<&Cursor>, limit: usize) -> Result<Listing> {
        let backend = &self.engine.backend;
        let start = layout::records(self.namespace.as_str()) + &Key::name_prefix(prefix);
        let page = backend.page(&start, after.map(|cursor| &cursor.0), limit.clamp(1, 1000)).await?;
        let next = page.names.last().filter(|_| page.more).cloned().map(Cursor);
        let keys: Vec<Option<Result<Status>>> =
            stream::iter(page.names).map(|name| listed(self, name, prefix)).buffered(16).collect().await;
        Ok(Listing { keys: keys.into_iter().flatten().collect(), next })
    }
}

/// What is known of a key that was found in a listing, if it begins with the prefix.
async fn listed(leases: &Leases, name: Name, prefix: &[u8]) -> Option<Result<Status>> {
    let time = leases.engine.backend.latest_stamp();
    let fetched = match leases.engine.backend.get(&name).await {
        Ok(fetched) => fetched?,
        Err(error) => return Some(Err(error)),
    };
    let decoded = record::decode(fetched.body).and_then(|(key, record)| {
        let slot = KeySlot { namespace: leases.namespace.clone(), key };
        if slot.name() != name {
            return Err(format!("it is that of another key, {}", slot.key));
        }
        Ok((slot.key, record))
    });
    match decoded {
        Ok((key, record)) if key.as_bytes().starts_with(prefix) => {
            let (engine, modified) = (&leases.engine, Some(fetched.modified));
            let state = others::judge_read(engine, Some(&record), modified, time, None).await;
            Some(state.map(|state| status(&key, Some(&record), state)))
        }
        Ok(_) => None,
        Err(why) => Some(Err(crate::Error::corrupt(format!("the record {name} cannot be read: {why}")))),
    }
}
