//! The sessions that an opened store knows: its own, and what it has found out about those of others.

use super::{
    alive::{Alive, Under},
    ended::Watched,
    layout,
    living::Living,
    record::{KeySlot, Record, SessionName},
};
use crate::{LeaseId, SessionId, clock::Moment, sync::Locked as _};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

/// Of so many sessions the end is remembered; it is found out again for others.
const MOST_ENDED: usize = 4096;

/// So many sessions of others are watched at once.
const MOST_SEEN: usize = 4096;

/// The sessions that an opened store knows.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    own: Mutex<BTreeMap<SessionId, Weak<dyn Living>>>,
    others: Mutex<Others>,
}

#[derive(Debug, Default)]
struct Others {
    /// For good.
    ended: BTreeSet<SessionName>,
    order: VecDeque<SessionName>,
    seen: BTreeMap<SessionName, SeenAlive>,
}

/// A session that was found alive.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenAlive {
    /// It need not be looked at before.
    pub(super) until: Moment,
    /// Since when it has done nothing.
    pub(super) watched: Watched,
}

/// A session that is not there any more; there never is one of these.
#[derive(Debug)]
enum Gone {}

impl Alive for Gone {
    fn under(&self) -> Under {
        match *self {}
    }

    fn time_left(&self) -> Duration {
        match *self {}
    }
}

impl Sessions {
    fn own(&self) -> MutexGuard<'_, BTreeMap<SessionId, Weak<dyn Living>>> {
        self.own.locked()
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.locked()
    }

    pub(super) fn add(&self, id: SessionId, session: Weak<dyn Living>) {
        let mut own = self.own();
        own.retain(|_, session| session.strong_count() > 0);
        own.insert(id, session);
    }

    /// A session of this process, believed in or not.
    pub(super) fn of(&self, session: SessionName) -> Option<Arc<dyn Living>> {
        let living = self.own().get(&session.id)?.upgrade()?;
        (living.name() == session).then_some(living)
    }

    /// What a grant under a session of this process is believed in by; nothing, if that is gone.
    pub(super) fn alive_or_gone(&self, session: SessionName) -> Weak<dyn Alive> {
        match self.of(session) {
            Some(living) => {
                let alive: Arc<dyn Alive> = living;
                Arc::downgrade(&alive)
            }
            None => Weak::<Gone>::new(),
        }
    }

    /// The session of this process whose own lease has this key.
    pub(super) fn at(&self, slot: &KeySlot) -> Option<Arc<dyn Living>> {
        let id = layout::session_of(slot.namespace.as_str(), &slot.key)?;
        self.own().get(&id)?.upgrade()
    }

    /// Whether it is a session of this process, which it believes in.
    pub(super) fn is_live(&self, session: SessionName) -> bool {
        self.of(session).is_some_and(|living| !living.time_left().is_zero())
    }

    /// The requests in a session's record that need not stand there any more.
    pub(super) fn met(&self, slot: &KeySlot) -> BTreeSet<LeaseId> {
        self.at(slot).map(|living| living.met()).unwrap_or_default()
    }

    /// What is known of the record of a session of this process may ask for leases under it.
    pub(super) fn meet(&self, slot: &KeySlot, record: Option<&Record>) {
        if let Some((record, living)) = record.zip(self.at(slot)) {
            living.meet(&record.asked);
        }
    }

    /// Whether the end of a session was proven before.
    pub(super) fn is_ended(&self, session: SessionName) -> bool {
        self.others().ended.contains(&session)
    }

    /// The end of a session was proven.
    pub(super) fn ended(&self, session: SessionName) {
        let mut others = self.others();
        others.seen.remove(&session);
        if others.ended.insert(session) {
            others.order.push_back(session);
            if others.order.len() > MOST_ENDED
                && let Some(oldest) = others.order.pop_front()
            {
                others.ended.remove(&oldest);
            }
        }
    }

    /// What was seen of a session that was alive then.
    pub(super) fn seen(&self, session: SessionName) -> Option<SeenAlive> {
        self.others().seen.get(&session).copied()
    }

    /// A session was found alive just now.
    pub(super) fn alive(&self, session: SessionName, until: Moment, there: Watched) {
        let mut others = self.others();
        if others.seen.len() >= MOST_SEEN && !others.seen.contains_key(&session) {
            others.seen.pop_first();
        }
        let first = others.seen.get(&session).map(|seen| seen.watched);
        others.seen.insert(session, SeenAlive { until, watched: there.or_since(first) });
    }
}
