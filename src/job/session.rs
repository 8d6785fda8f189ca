//! The session of an opened store: one lease, kept alive while jobs are in hand, on which all claims hang.
//!
//! A session that was lost is never renewed or granted again: the next claim makes a new one, under a new random key.
//! Whether the session of somebody else has ended is never guessed from a time: its record is cleared first, by
//! compare-and-swap, so that a renewal on its way cannot revive it.

use super::{
    apply::Ticket,
    committer::Shard,
    counters::{Counters, SESSIONS_ALIVE},
    ledger::{Millis, SessionId},
};
use crate::{
    Key, LeaseId, Leases, Result,
    clock::Timestamp,
    generator::GeneratorExt,
    lease::{Acquired, Guard, Locked, Request},
    storage::Backend,
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// What the keys of sessions begin with, in the library's own namespace.
pub(crate) const KEYS: &str = crate::lease::layout::SESSIONS;

/// A session of this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    lease: LeaseId,
    owner: Arc<str>,
    lost: CancellationToken,
    /// Its end was counted.
    noted: AtomicBool,
    guard: Mutex<Option<Guard>>,
}

impl Session {
    fn guard(&self) -> MutexGuard<'_, Option<Guard>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process may still believe in it.
    pub(crate) fn is_valid(&self) -> bool {
        self.guard().as_ref().is_some_and(Guard::is_valid)
    }

    /// Cancelled when the session is lost.
    pub(crate) fn cancellation(&self) -> CancellationToken {
        self.lost.child_token()
    }

    /// For how long this process may believe in it without a renewal.
    pub(crate) fn time_left(&self) -> Duration {
        self.guard().as_ref().map_or(Duration::ZERO, |guard| guard.grant().time_left())
    }

    /// Under which a commit is made.
    pub(crate) fn ticket(&self, has_row: bool) -> Ticket {
        let until = self.guard().as_ref().map_or(0, |guard| guard.grant().expires_at().as_millis());
        Ticket { id: self.id, lease: *self.lease.as_bytes(), owner: Arc::clone(&self.owner), until, has_row }
    }

    /// Keeps the lease alive no longer. Nothing hangs on it, so nobody waits for its end.
    fn let_end(&self) {
        if let Some(guard) = self.guard().take() {
            guard.let_end();
        }
    }

    /// Gives the lease back.
    async fn release(&self) {
        let guard = self.guard().take();
        if let Some(guard) = guard
            && let Err(error) = guard.release().await
        {
            tracing::debug!(%error, "a session could not be released: it ends by itself");
        }
    }
}

/// The session of an opened store, if it has one now.
#[derive(Debug)]
pub(crate) struct Sessions {
    leases: Leases,
    backend: Arc<Backend>,
    owner: Arc<str>,
    counters: Arc<Counters>,
    current: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// Claims in hand or on their way, over all queues.
    in_hand: AtomicUsize,
    /// How often something was taken in hand.
    holds: AtomicUsize,
    /// Shards that have a row of it.
    shards: Mutex<Vec<Weak<Shard>>>,
    /// Somebody waits for the time to give it up.
    closing: AtomicBool,
}

/// Keeps the session from being given up.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Sessions>);

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.in_hand.fetch_sub(1, SeqCst) == 1 {
            Sessions::close_soon(&self.0);
        }
    }
}

/// What is known of somebody else's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    /// For good.
    Ended,
    /// Until then at the least, by the clock of its holder.
    Alive(Millis),
}

fn key(id: SessionId) -> Result<Key> {
    Key::new(format!("{KEYS}{:032x}", u128::from_be_bytes(id.0)))
}

impl Sessions {
    pub(crate) fn new(leases: Leases, backend: Arc<Backend>, owner: Arc<str>, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            leases,
            backend,
            owner,
            counters,
            current: tokio::sync::Mutex::new(None),
            in_hand: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            shards: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    /// Keeps the session, if there is one or will be.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.in_hand.fetch_add(1, SeqCst);
        self.holds.fetch_add(1, SeqCst);
        Hold(Arc::clone(self))
    }

    /// Claims in hand or on their way.
    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand.load(SeqCst)
    }

    /// A session that is believed in, made now if need be. The caller has a [hold](Self::hold).
    pub(crate) async fn ensure(&self, ttl: Duration) -> Result<Arc<Session>> {
        let mut current = self.current.lock().await;
        if let Some(session) = current.as_ref().filter(|session| session.is_valid()) {
            return Ok(Arc::clone(session));
        }
        if let Some(lost) = current.take() {
            // Whoever finds its own session over frees its record at once.
            self.note_lost(&lost);
            drop(lost.guard().take());
        }
        let id = SessionId(self.backend.generator.bytes());
        let request = Request::new(ttl).owner(self.owner.as_ref()).new_key();
        let guard = match self.leases.lock_within(&key(id)?, &request, Duration::ZERO).await? {
            Locked::Granted(guard) => guard,
            Locked::Held(held) => {
                return Err(crate::Error::unavailable(format!("the key of a new session is {held}: try again")));
            }
        };
        let lease = guard.grant().lease_id();
        let (owner, lost) = (Arc::clone(&self.owner), guard.cancellation());
        let session =
            Arc::new(Session { id, lease, owner, lost, noted: AtomicBool::new(false), guard: Mutex::new(Some(guard)) });
        self.shards().clear();
        self.counters.sessions_begun(1);
        metrics::gauge!(SESSIONS_ALIVE).increment(1.0);
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// It was found over: never used again, and its record is freed at once.
    pub(crate) fn lose(&self, session: &Session) {
        self.note_lost(session);
        drop(session.guard().take());
    }

    /// Told and counted once, however it was found out.
    fn note_lost(&self, session: &Session) {
        if !session.noted.swap(true, SeqCst) {
            self.counters.sessions_lost(1);
            metrics::gauge!(SESSIONS_ALIVE).decrement(1.0);
        }
        session.lost.cancel();
    }

    fn shards(&self) -> MutexGuard<'_, Vec<Weak<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shard has a row of the session now.
    pub(crate) fn note_row(&self, shard: &Arc<Shard>) {
        let shard = Arc::downgrade(shard);
        let mut shards = self.shards();
        if !shards.iter().any(|known| known.ptr_eq(&shard)) {
            shards.push(shard);
        }
    }

    /// Gives the session up in a while, if nothing is in hand then. That costs no request: its lease ends by itself, and the
    /// rows of a session that has nothing in hand go by themselves.
    fn close_soon(self: &Arc<Self>) {
        // Without a session there is nothing to give up; while it is being made, there is something in hand.
        if self.current.try_lock().is_ok_and(|current| current.is_none()) || self.closing.swap(true, SeqCst) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let sessions = Arc::clone(self);
        runtime.spawn(async move {
            let clock = Arc::clone(&sessions.backend.clock);
            // Somebody who works on has nothing in hand between two claims: only who had none for all that time is idle.
            loop {
                let holds = sessions.holds.load(SeqCst);
                clock.sleep(LINGER).await;
                if sessions.in_hand() > 0 || sessions.holds.load(SeqCst) == holds {
                    break;
                }
            }
            sessions.closing.store(false, SeqCst);
            if let Some(session) = sessions.take_if_idle().await {
                sessions.shards().clear();
                session.let_end();
            }
        });
    }

    /// The session, which is not used any more, if nothing is in hand.
    async fn take_if_idle(&self) -> Option<Arc<Session>> {
        let mut current = self.current.lock().await;
        if self.in_hand.load(SeqCst) > 0 { None } else { current.take() }
    }

    /// Takes the session's rows out of the ledgers and gives its lease back, if nothing is in hand.
    ///
    /// Nothing is awaited with the lock held: a committer that is about to make a session waits for it, and has the desk of
    /// its shard, which closing needs as well.
    pub(crate) async fn close_if_idle(&self) {
        let Some(session) = self.take_if_idle().await else { return };
        let shards: Vec<Arc<Shard>> = self.shards().drain(..).filter_map(|shard| shard.upgrade()).collect();
        for shard in shards {
            shard.close_session(&session).await;
        }
        if !session.noted.swap(true, SeqCst) {
            self.counters.sessions_ended(1);
            metrics::gauge!(SESSIONS_ALIVE).decrement(1.0);
        }
        session.release().await;
    }

    /// Whether the session of another process has ended. Clears its record if it has.
    pub(crate) async fn look(&self, id: SessionId, lease: [u8; 16]) -> Result<Other> {
        let key = key(id)?;
        let status = self.leases.peek(&key).await?;
        match &status.holder {
            Some(holder) if *holder.lease_id.as_bytes() != lease => Ok(Other::Ended),
            Some(holder) if !status.may_have_ended => {
                Ok(Other::Alive(holder.expires_at.as_millis().max(self.soon().as_millis())))
            }
            // Free, over, or not there at all: only a write of our own proves that nothing of it can come any more.
            _ => self.take_and_free(&key).await,
        }
    }

    fn soon(&self) -> Timestamp {
        self.backend.store_time().unwrap_or_else(|| self.backend.clock.wall()).plus(Duration::from_secs(2))
    }

    async fn take_and_free(&self, key: &Key) -> Result<Other> {
        let request = Request::default().owner(self.owner.as_ref());
        match self.leases.acquire(key, &request).await? {
            Acquired::Granted(grant) => {
                self.leases.release(&grant).await?;
                Ok(Other::Ended)
            }
            Acquired::Held(_) => Ok(Other::Alive(self.soon().as_millis())),
        }
    }
}

/// How long a session is kept with nothing in hand: the next claim would need it again. Less than it takes until the first
/// renewal, so that what is done at once needs none.
const LINGER: Duration = Duration::from_secs(5);
