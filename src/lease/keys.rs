//! The keys that this process has lately used, each with what is known of it and who waits for it.

use super::{
    queue::{Queue, Waiter},
    record::KeySlot,
    state::KeyState,
    tries::Tries,
    types::{Grant, Request},
};
use crate::{Key, LeaseId, Namespace, record::Line, sync::Locked as _};
use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::BTreeSet,
    fmt, mem,
    sync::{Arc, Mutex, atomic::AtomicU32},
};

/// One key, as this process sees it. There is one entry for a key at a time.
#[derive(Debug)]
pub(super) struct KeyEntry {
    pub(super) slot: KeySlot,
    /// Locked over every change: one write in flight for each key and process.
    pub(super) state: Arc<Line<KeyState>>,
    /// Operations of this process that wait for a read by another one.
    pub(super) tries: Tries,
    /// Those of this process that wait for the lease.
    pub(super) queue: Queue,
    /// How many guards keep a lease on the key alive.
    pub(super) guards: AtomicU32,
}

impl KeyEntry {
    /// Nothing is known of it, and nothing is being done about it.
    pub(super) fn new(slot: KeySlot) -> Self {
        Self {
            slot,
            state: Arc::default(),
            tries: Tries::default(),
            queue: Queue::default(),
            guards: AtomicU32::default(),
        }
    }
}

/// A waiter that was taken out of the queue to be granted the lease. Unless that happens it is put back when this is
/// dropped, wherever that is.
pub(super) struct HandOver {
    entry: Arc<KeyEntry>,
    waiter: Option<Waiter>,
}

impl HandOver {
    /// The first who still waits for the key, to be given the lease with this id.
    pub(super) fn to_next(entry: &Arc<KeyEntry>, id: LeaseId) -> Option<Self> {
        let waiter = entry.queue.pop(id)?;
        Some(Self { entry: Arc::clone(entry), waiter: Some(waiter) })
    }

    /// What the waiter asked for, and the lease that it will have.
    pub(super) fn wanted(&self) -> Option<(&Request, LeaseId)> {
        self.waiter.as_ref().map(|waiter| (&waiter.request, waiter.id))
    }

    /// Gives the waiter what was won for it. A grant that it does not take any more comes back.
    pub(super) fn deliver(mut self, grant: Grant) -> Option<Grant> {
        match self.waiter.take() {
            Some(waiter) => waiter.grant.send(grant).err(),
            None => Some(grant),
        }
    }
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandOver").field(&self.waiter).finish()
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.entry.queue.put_back(waiter);
            self.entry.queue.wake();
        }
    }
}

/// The entries of all keys that this process has lately used: bounded, in two generations. What is in use stays.
#[derive(Debug)]
pub(super) struct Keys {
    generations: Mutex<Generations>,
    capacity: usize,
}

/// An element of the set, ordered by the entry's own namespace and key, so that names are not stored twice.
#[derive(Debug)]
struct Named(Arc<KeyEntry>);

/// What entries are ordered by.
trait ByName {
    fn name(&self) -> (&Namespace, &Key);
}

impl ByName for Named {
    fn name(&self) -> (&Namespace, &Key) {
        (&self.0.slot.namespace, &self.0.slot.key)
    }
}

impl ByName for (&Namespace, &Key) {
    fn name(&self) -> (&Namespace, &Key) {
        *self
    }
}

impl Ord for dyn ByName + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl PartialOrd for dyn ByName + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn ByName + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn ByName + '_ {}

impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Named {}

impl<'a> Borrow<dyn ByName + 'a> for Named {
    fn borrow(&self) -> &(dyn ByName + 'a) {
        self
    }
}

#[derive(Debug, Default)]
struct Generations {
    young: BTreeSet<Named>,
    old: BTreeSet<Named>,
    /// Entries that stayed at the last rotation because they were in use; the next rotation waits for twice as many.
    stayed: usize,
}

impl Keys {
    pub(super) fn new(capacity: usize) -> Self {
        Self { generations: Mutex::default(), capacity }
    }

    #[allow(clippy::mutable_key_type, reason = "ordered by names, which do not change")]
    pub(super) fn get(&self, namespace: &Namespace, key: &Key) -> Arc<KeyEntry> {
        let mut generations = self.generations.locked();
        let name: &dyn ByName = &(namespace, key);
        if let Some(Named(entry)) = generations.young.get(name) {
            return Arc::clone(entry);
        }
        let entry = generations.old.take(name).map_or_else(
            || {
                let slot = KeySlot { namespace: namespace.clone(), key: key.clone() };
                Arc::new(KeyEntry::new(slot))
            },
            |Named(entry)| entry,
        );
        generations.young.insert(Named(Arc::clone(&entry)));
        // Where more are in use than there is room for, they must not be scanned with every new one.
        if generations.young.len() > (self.capacity / 2).max(2 * generations.stayed) {
            let aged = mem::take(&mut generations.young);
            let before = mem::replace(&mut generations.old, aged);
            // Two entries for one key could write at once: one that is in use, or whose state is, must stay.
            let in_use = before
                .into_iter()
                .filter(|Named(entry)| Arc::strong_count(entry) > 1 || Arc::strong_count(&entry.state) > 1);
            generations.young.extend(in_use);
            generations.stayed = generations.young.len();
        }
        entry
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let generations = self.generations.lock().unwrap();
        generations.young.len() + generations.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_in_use_than_there_is_room_for_stay_and_are_found() {
        let keys = Keys::new(10);
        let namespace = Namespace::default();
        let key = |number: usize| Key::new(format!("key-{number}")).unwrap();
        let held: Vec<_> = (0..1000).map(|number| keys.get(&namespace, &key(number))).collect();
        for (number, entry) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(entry, &keys.get(&namespace, &key(number))), "two entries for one key");
        }
        drop(held);
        for number in 1000..20_000 {
            keys.get(&namespace, &key(number));
        }
        assert!(keys.len() <= 12, "what was in use makes room: {}", keys.len());
    }

    #[test]
    fn an_entry_whose_state_is_still_written_with_stays() {
        let keys = Keys::new(10);
        let namespace = Namespace::default();
        let key = |name: &str| Key::new(name).unwrap();
        let state = Arc::clone(&keys.get(&namespace, &key("busy")).state);
        for number in 0..100 {
            keys.get(&namespace, &key(&format!("key-{number}")));
        }
        assert!(Arc::ptr_eq(&state, &keys.get(&namespace, &key("busy")).state), "two states for one key");
    }

    #[test]
    fn what_was_used_lately_is_still_known() {
        let keys = Keys::new(10);
        let namespace = Namespace::default();
        let key = |number: usize| Key::new(format!("key-{number}")).unwrap();
        let known: Vec<_> = (0..5).map(|number| Arc::downgrade(&keys.get(&namespace, &key(number)))).collect();
        for number in 5..10 {
            keys.get(&namespace, &key(number));
            assert!(known.iter().all(|entry| entry.upgrade().is_some()), "forgotten for the {number}th");
        }
        for number in 10..20 {
            keys.get(&namespace, &key(number));
        }
        assert!(known.iter().all(|entry| entry.upgrade().is_none()), "kept for nobody");
    }

    #[test]
    fn the_entries_are_bounded_and_what_is_in_use_stays() {
        let keys = Keys::new(100);
        let namespace = Namespace::default();
        let kept = keys.get(&namespace, &Key::new("kept").unwrap());
        for number in 0..1000 {
            keys.get(&namespace, &Key::new(format!("key-{number}")).unwrap());
        }
        assert!(keys.len() <= 102, "{}", keys.len());
        let again = keys.get(&namespace, &Key::new("kept").unwrap());
        assert!(Arc::ptr_eq(&kept, &again), "two entries for one key");
    }
}
