//! Clients that hold many leases under one session, and whether those end with it and not before.

use crate::{
    auditor::{Place, State},
    beliefs::Hold,
    client::{Client, millis},
    records::{Lease, id},
};
use leasehold::{
    Clock, LeaseId,
    lease::Guard,
    session::{RECORD_FORMAT, Session},
};
use rand::{RngExt, seq::IndexedRandom};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A lease that is held under a session, as its client has it in hand.
struct Held {
    belief: u64,
    lease: LeaseId,
    guard: Arc<Mutex<Option<Guard>>>,
}

impl Held {
    fn take(&self) -> Option<Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Client {
    /// Begins a session, and locks, holds and gives back under it for a while.
    pub async fn session(&mut self) {
        let store = self.store.clone();
        if self.patience(async move { store.allow_record_format(RECORD_FORMAT, "sim").await }).await.is_none() {
            return;
        }
        let ttl = *[3000, 6000, 12_000].choose(&mut self.dice).unwrap_or(&6000);
        let beginning = self.store.session().ttl(Duration::from_millis(ttl)).owner(&self.name).into_future();
        let session = match self.patience(beginning).await {
            Some(Ok(session)) => session,
            Some(Err(error)) => return self.world.note(format_args!("{}: no session: {:?}", self.name, error.kind())),
            None => return,
        };
        self.world.note(format_args!("{} begins the session {}", self.name, session.id()));
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..self.dice.random_range(2..9) {
            if self.dice.random_range(0..3) > 0 {
                held.extend(self.lock_under(&session).await);
            }
            if self.plan.has("force") && self.dice.random_range(0..8) == 0 {
                self.force().await;
            }
            let pause = millis(&mut self.dice, 50..4000);
            self.clock.sleep(pause).await;
            held.iter().for_each(|held| self.auditor.write(held.belief));
            if !held.is_empty() && self.dice.random_range(0..3) == 0 {
                let one = held.swap_remove(self.dice.random_range(0..held.len()));
                self.give_back(one).await;
            }
        }
        held.iter().for_each(|held| self.auditor.releasing(held.lease));
        match self.dice.random_range(0..3) {
            0 => {
                let _ = self.patience(session.release()).await;
            }
            1 => drop(session),
            _ => std::mem::drop(self.patience(self.clock.clone().sleep(Duration::from_secs(1))).await),
        }
        for one in held {
            self.auditor.forget(one.belief);
            drop(one.take());
        }
    }

    async fn lock_under(&mut self, session: &Session) -> Option<Held> {
        let place: Place = self.place();
        let asked = self.auditor.asked(&place);
        self.world.note(format_args!("{} asks for {} under its session", self.name, place.id()));
        let (key, namespace) = (place.key.clone(), place.namespace);
        let guard = match self.dice.random_range(0..2) {
            0 => self.patience(session.try_lock(key).namespace(namespace).into_future()).await?.ok()??,
            _ => {
                let wait = millis(&mut self.dice, 100..8000);
                self.patience(session.lock(key).namespace(namespace).within(wait).into_future()).await?.ok()?
            }
        };
        let (lease, grant) = (guard.grant().lease_id(), guard.grant());
        let guard = Arc::new(Mutex::new(Some(guard)));
        let belief = self.auditor.granted(self.machine, &asked, &grant, Hold::Guard(Arc::clone(&guard)), None);
        Some(Held { belief, lease, guard })
    }

    async fn give_back(&mut self, held: Held) {
        self.auditor.releasing(held.lease);
        self.auditor.forget(held.belief);
        let Some(guard) = held.take() else { return };
        if self.dice.random_range(0..3) > 0 {
            let _ = self.patience(guard.release()).await;
        }
    }
}

/// What is wrong with the end of a lease that was held under a session: the session must have ended before, for good.
pub fn ended_early(state: &State, lease: &Lease) -> Option<String> {
    let session = lease.session.as_ref()?;
    let digits: String = session.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let own = state.records.get(&format!(".leasehold/session!2fleases!2f{digits}"))?;
    let alive = own.lease.as_ref().filter(|own| own.id == session.lease)?;
    Some(format!(
        "a lease under a session ended before it: {} under {}, which carries {}",
        id(lease),
        digits,
        id(alive)
    ))
}
