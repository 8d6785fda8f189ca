//! A lease that is held under a session: believed in for as long as the session is, and given back by itself.

use super::{
    engine::Engine,
    keys::KeyEntry,
    living::{Living, Losable},
    loss::{Loss, LossReason, Lost},
    record::KeySlot,
    release::{release, release_soon},
    types::Grant,
};
use crate::{Fence, Key, LeaseId, Result, Ttl, clock::Timestamp, sync::Locked as _};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// A lease that is held under a session of this process. As small as can be: there may be very many.
pub(super) struct HeldUnder {
    engine: Arc<Engine>,
    /// Not what this process knows of the key, which may be forgotten meanwhile: giving it back costs one read then.
    slot: KeySlot,
    /// Nothing, if it was gone before there was a guard: then it is lost from the beginning.
    session: Option<Arc<dyn Living>>,
    id: LeaseId,
    fence: Fence,
    owner: Arc<str>,
    ttl: Ttl,
    expires: Timestamp,
    state: Mutex<State>,
    /// Made on demand, which for most is never.
    lost: OnceLock<CancellationToken>,
}

#[derive(Default)]
struct State {
    /// Why it is lost while its session goes on.
    loss: Option<Box<Loss>>,
    /// The guard is closed: it is given back, or about to be.
    closed: bool,
    released: bool,
}

impl HeldUnder {
    pub(super) fn new(
        engine: &Arc<Engine>,
        entry: &Arc<KeyEntry>,
        session: Option<Arc<dyn Living>>,
        grant: &Grant,
    ) -> Arc<Self> {
        let held = Arc::new(Self {
            engine: Arc::clone(engine),
            slot: entry.slot.clone(),
            session: session.clone(),
            id: grant.id,
            fence: grant.fence,
            owner: grant.owner.clone(),
            ttl: grant.ttl,
            expires: grant.expires,
            state: Mutex::default(),
            lost: OnceLock::new(),
        });
        let losable: Arc<dyn Losable> = Arc::clone(&held) as Arc<dyn Losable>;
        if let Some(session) = session {
            session.hold(grant.id, Arc::downgrade(&losable));
        }
        held
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    fn entry(&self) -> Arc<KeyEntry> {
        self.engine.keys.get(&self.slot.namespace, &self.slot.key)
    }

    pub(super) fn key(&self) -> &Key {
        &self.slot.key
    }

    pub(super) fn fence(&self) -> Fence {
        self.fence
    }

    /// How long its session may still be believed in.
    fn time_left(&self) -> Duration {
        self.session.as_ref().map_or(Duration::ZERO, |session| session.time_left())
    }

    pub(super) fn grant(&self) -> Grant {
        let under = self.session.as_ref().map(|session| session.under());
        let session = under.map(|under| self.engine.sessions.alive_or_gone(under.name));
        Grant {
            namespace: self.slot.namespace.clone(),
            key: self.slot.key.clone(),
            id: self.id,
            fence: self.fence,
            owner: self.owner.clone(),
            ttl: self.ttl,
            expires: under.map_or(self.expires, |under| under.expires.max(self.expires)),
            deadline: self.engine.now().moment.plus(self.time_left()),
            repeatable: false,
            over: Arc::new(self.is_lost().into()),
            clock: Arc::clone(&self.engine.backend.clock),
            session,
        }
    }

    /// Whether it is lost, by itself or with its session.
    pub(super) fn is_lost(&self) -> bool {
        let state = self.lock();
        state.loss.is_some() || !state.closed && self.time_left().is_zero()
    }

    pub(super) fn loss(&self) -> Loss {
        match &self.lock().loss {
            Some(loss) => (**loss).clone(),
            None => Loss { taken_by: None, fence: Some(self.fence), ..self.session_loss() },
        }
    }

    fn session_loss(&self) -> Loss {
        self.session.as_ref().map_or_else(|| Loss::new(LossReason::SessionReleased, None), |session| session.loss())
    }

    /// Cancelled when it is lost, or its session is.
    pub(super) fn token(&self) -> &CancellationToken {
        let token = self.lost.get_or_init(|| match &self.session {
            Some(session) => session.lost().child_token(),
            None => CancellationToken::new(),
        });
        if self.session.is_none() || self.lock().loss.is_some() {
            token.cancel();
        }
        token
    }

    fn close(&self) -> bool {
        if std::mem::replace(&mut self.lock().closed, true) {
            return false;
        }
        if let Some(session) = &self.session {
            session.let_go(self.id, None);
        }
        self.engine.activity.touch(&*self.engine.backend.clock);
        true
    }

    /// Whether the record of the key may still carry the lease: not where it was lost alone, which whoever took it away has
    /// settled, nor where it is over with its session.
    fn is_there(&self) -> bool {
        let state = self.lock();
        !state.released && state.loss.is_none() && !self.time_left().is_zero()
    }

    pub(super) async fn release(&self) -> Result<()> {
        self.close();
        if self.is_there() {
            release(&self.engine, &self.entry(), self.id).await?;
        }
        self.lock().released = true;
        Ok(())
    }

    /// Gives it back in the background.
    pub(super) fn abandon(&self) {
        self.close();
        if self.is_there() {
            release_soon(&self.engine, &self.entry(), self.id, self.session.as_ref().map(|session| session.name()));
        }
    }
}

impl Losable for HeldUnder {
    fn lose(&self, loss: Loss) {
        {
            let mut state = self.lock();
            if state.closed || state.loss.is_some() {
                return;
            }
            state.loss = Some(Box::new(loss.clone()));
        }
        if let Some(token) = self.lost.get() {
            token.cancel();
        }
        let lost = Lost { loss, id: self.id, owner: Some(self.owner.clone()), fence: Some(self.fence) };
        self.engine.tell_loss(&self.slot, &lost);
    }
}

impl fmt::Debug for HeldUnder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldUnder").field("key", &self.slot.key).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// Why a lease is lost that was given back although its guard was there.
pub(super) fn given_back(fence: Option<Fence>) -> Loss {
    Loss::new(LossReason::Released, fence)
}
