//! A session of this process: one lease that is kept alive, and what is held under it.

use super::{
    Leases,
    alive::{Alive, Under},
    engine::Engine,
    guard::Guard,
    living::{Living, Losable},
    loss::{Loss, LossReason},
    record::{Asked, SESSION_FORMAT, SessionName},
    release::release_soon,
    under::given_back,
};
use crate::{
    Error, LeaseId, Namespace, Result, SessionId, Ttl, generator::GeneratorExt, lease::types::Request,
    storage::layout::OURS, sync::Locked as _,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// So many writes may wait to be settled. A process that would have to remember more gives up its session.
const MOST_UNSETTLED: usize = 10_000;

/// A session of this process. It is kept alive for as long as this is, and given back when it is dropped.
pub(crate) struct SessionLife {
    name: SessionName,
    engine: Arc<Engine>,
    guard: Guard,
    /// Why it was ended by this process, if it was.
    over: OnceLock<LossReason>,
    lost: CancellationToken,
    held: Mutex<BTreeMap<LeaseId, Weak<dyn Losable>>>,
    met: Mutex<BTreeSet<LeaseId>>,
    unsettled: AtomicUsize,
}

impl SessionLife {
    /// Makes a session, under a key that was never used.
    pub(crate) async fn begin(engine: &Arc<Engine>, ttl: Option<Duration>, owner: &str) -> Result<Arc<Self>> {
        engine.must_allow(SESSION_FORMAT)?;
        let id = SessionId::from(engine.backend.generator.bytes());
        let leases = Leases::new(Arc::clone(engine), Namespace::trusted(OURS));
        let mut request = Request::default().owner(owner).new_key();
        if let Some(ttl) = ttl {
            request = request.ttl(ttl);
        }
        let key = super::layout::session_key(id)?;
        let granted = leases.acquire(&key, &request).await?.granted();
        let grant = granted.ok_or_else(|| Error::unavailable("the key of a new session is held: try again"))?;
        let name = SessionName { id, lease: grant.id };
        let guard = leases.guard(grant, None);
        let life = Arc::new(Self {
            name,
            engine: Arc::clone(engine),
            lost: guard.cancellation(),
            guard,
            over: OnceLock::new(),
            held: Mutex::default(),
            met: Mutex::default(),
            unsettled: AtomicUsize::new(0),
        });
        let living: Arc<dyn Living> = Arc::clone(&life) as Arc<dyn Living>;
        engine.sessions.add(id, Arc::downgrade(&living));
        let (lost, weak) = (life.lost.clone(), Arc::downgrade(&life));
        engine.runtime.spawn(async move {
            lost.cancelled().await;
            if let Some(life) = weak.upgrade() {
                life.ended();
            }
        });
        Ok(life)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Weak<dyn Losable>>> {
        self.held.locked()
    }

    /// How many leases are held under it.
    pub(crate) fn leases(&self) -> usize {
        self.held().len()
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// It is over: told once for all, and its record freed at once, which frees all that names it.
    fn ended(&self) {
        let held = std::mem::take(&mut *self.held()).len() as u64;
        if self.over.get().is_none() {
            self.engine.counters.lost(held);
            let (session, reason) = (self.name.id, self.loss());
            tracing::warn!(%session, leases = held, %reason, "a session was lost, with every lease under it");
            self.release_own();
        }
    }

    /// Frees its own record in the background.
    fn release_own(&self) {
        if let Ok(key) = self.name.key() {
            let entry = self.engine.keys.get(&Namespace::trusted(OURS), &key);
            release_soon(&self.engine, &entry, self.name.lease, None);
        }
    }

    /// Ends belief in everything that is held under it, before anything is sent.
    fn end(&self, why: LossReason) {
        let _ = self.over.set(why);
        self.lost.cancel();
    }

    /// Gives it back, and with it everything that is held under it.
    pub(crate) async fn release(&self) -> Result<()> {
        self.end(LossReason::SessionReleased);
        self.guard.release_shared().await
    }
}

impl Alive for SessionLife {
    fn under(&self) -> Under {
        let grant = self.guard.grant();
        let ttl: Ttl = grant.ttl;
        Under { name: self.name, expires: grant.expires, ttl }
    }

    fn time_left(&self) -> Duration {
        match self.over.get() {
            Some(_) => Duration::ZERO,
            None => self.guard.time_left(),
        }
    }
}

impl Living for SessionLife {
    fn name(&self) -> SessionName {
        self.name
    }

    fn loss(&self) -> Loss {
        match self.over.get() {
            Some(reason) => Loss::new(reason.clone(), None),
            None => self.guard.loss(),
        }
    }

    fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    fn hold(&self, id: LeaseId, held: Weak<dyn Losable>) {
        let before = self.held().insert(id, held);
        // One lease has one guard: the one before must not give back what this one holds.
        if let Some(before) = before.and_then(|before| before.upgrade()) {
            before.lose(given_back(None));
        }
    }

    fn holds(&self, id: LeaseId) -> bool {
        self.held().contains_key(&id)
    }

    fn let_go(&self, id: LeaseId, loss: Option<Loss>) {
        let held = self.held().remove(&id);
        if let (Some(loss), Some(held)) = (loss, held.and_then(|held| held.upgrade())) {
            held.lose(loss);
        }
    }

    fn meet(self: Arc<Self>, asked: &[Asked]) {
        let news: Vec<&Asked> = {
            let mut met = self.met.locked();
            let known = std::mem::replace(&mut *met, asked.iter().map(|asked| asked.away.lease).collect());
            asked.iter().filter(|asked| !known.contains(&asked.away.lease)).collect()
        };
        for Asked { namespace, key, away } in news {
            let reason = LossReason::Forced { by: away.by.clone(), reason: away.reason.clone() };
            // Nothing is believed of it any more before it is given back.
            self.let_go(away.lease, Some(Loss::new(reason, None)));
            release_soon(&self.engine, &self.engine.keys.get(namespace, key), away.lease, Some(self.name));
        }
    }

    fn met(&self) -> BTreeSet<LeaseId> {
        self.met.locked().clone()
    }

    fn one_more(&self) -> bool {
        self.unsettled.fetch_add(1, Relaxed) < MOST_UNSETTLED
    }

    fn one_less(&self) {
        self.unsettled.fetch_sub(1, Relaxed);
    }

    fn give_up(self: Arc<Self>, why: &str) {
        if self.over.get().is_some() {
            return;
        }
        let held = self.leases() as u64;
        self.end(LossReason::SessionGivenUp);
        self.engine.counters.lost(held);
        tracing::warn!(session = %self.name.id, leases = held, reason = why, "a session was given up, with every lease under it");
        self.release_own();
    }
}

impl Drop for SessionLife {
    fn drop(&mut self) {
        self.lost.cancel();
    }
}

impl fmt::Debug for SessionLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLife").field("id", &self.name.id).field("leases", &self.leases()).finish_non_exhaustive()
    }
}
