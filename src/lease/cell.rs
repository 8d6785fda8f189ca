//! What this process knows of a key, and who of it is changing or waiting for it.

use super::{
    record::{KeySlot, Lease, Record},
    tries::Tries,
    wait::Queue,
};
use crate::record::Line;
use crate::{
    Error, ErrorKind, Fence, Hour, Key, LeaseId, Namespace, Result, WriteId,
    clock::{Moment, Timestamp},
    storage::cas::{Record as _, Seen},
};
use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::BTreeSet,
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

/// The last that was seen of a record. Good enough to base a write on, which fails if it is old; never an answer.
#[derive(Debug, Default)]
pub(super) enum Known {
    #[default]
    Nothing,
    Absent,
    Record(Arc<Seen<Record>>),
}

/// Of writes in doubt that are remembered for a key.
const MOST_DOUBTFUL: usize = 16;

/// One key, as this process sees it. There is one cell for a key at a time.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) slot: KeySlot,
    /// Held over every change: one write in flight for each key and process.
    pub(super) core: Arc<Line<Core>>,
    /// Who waits to hear of it.
    pub(super) tries: Tries,
    pub(super) queue: Queue,
    /// How many guards keep a lease on the key alive.
    pub(super) kept: AtomicU32,
}

/// How long a lease may be believed in by the monotonic clock, and the expiry that this goes with.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    pub(super) id: LeaseId,
    pub(super) deadline: Moment,
    pub(super) expires: Timestamp,
    /// Set when it was found to be over, for all grants of the lease.
    pub(super) over: Arc<AtomicBool>,
}

impl Cell {
    /// Nothing is known of it, and nobody does anything about it.
    pub(super) fn new(slot: KeySlot) -> Self {
        Self {
            slot,
            core: Arc::default(),
            tries: Tries::default(),
            queue: Queue::default(),
            kept: AtomicU32::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) known: Known,
    /// The highest fence and revision that this process has seen, also where the record is gone or older now.
    pub(super) fence: Option<Fence>,
    revision: u64,
    /// How often the store has told something about the key.
    learnt: u64,
    /// What this process may believe of the lease that it was last given or renewed.
    pub(super) belief: Option<Belief>,
    /// The stamp of a time object that was written before what is known was read.
    pub(super) time: Option<Timestamp>,
    /// The last beat that this process wrote, and its monotonic clock before it was sent.
    pub(super) own: Option<(WriteId, Moment)>,
    /// The revision of the record in which that beat was seen.
    own_revision: u64,
    /// Beats of this process whose fate nobody waited for, with the same.
    tried: Vec<(WriteId, Moment)>,
    /// When a time object was last written for the key.
    pub(super) asked: Option<Moment>,
    /// A beat whose process was found to have ended.
    pub(super) gone: Option<WriteId>,
    /// The hour in which this process knows the key's entry to be.
    pub(super) indexed: Option<Hour>,
    /// How often the lease went from hand to hand in this process while somebody else's mark stood.
    pub(super) turns: u32,
    /// Until when this process leaves the key to others.
    pub(super) stay_back: Option<Moment>,
}

impl Belief {
    /// Whether somebody found that it is over.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// When it ends by the monotonic clock if its expiry has moved to this: it never moves further than the expiry did.
    pub(super) fn deadline_at(&self, expires: Timestamp) -> Moment {
        self.deadline.plus(expires.since(self.expires))
    }
}

impl Core {
    /// Takes note of what the store answered.
    ///
    /// The lock on the core is held from before a read is sent until here, so whatever was seen was seen before.
    pub(super) fn learn(&mut self, there: Option<Seen<Record>>) -> Result<()> {
        self.learnt += 1;
        let Some(seen) = there else {
            // Somebody removed the record. The fence is remembered: the next grant must be above it. The entry is not:
            // whoever removed the one may have removed the other.
            self.forget();
            self.known = Known::Absent;
            return Ok(());
        };
        let (fence, revision) = (seen.record().last_fence, seen.record().revision());
        if revision < self.revision {
            let error = Error::new(
                ErrorKind::Regressed,
                format!(
                    "a record went back from revision {} to {revision}: a backup was restored, or something in between \
                     answers from a cache; fences go on rising from what this process has seen",
                    self.revision
                ),
            );
            // Reported once: the next operation goes on from what the store has.
            self.forget();
            return Err(error);
        }
        self.revision = revision;
        self.fence = self.fence.max(fence);
        if seen.record().waiting.is_none() {
            self.turns = 0;
        }
        if let Some(lease) = &seen.record().lease
            && let Some(tried) = self.tried.iter().find(|(beat, _)| *beat == lease.beat)
        {
            self.own = Some(*tried);
            self.own_revision = revision;
        }
        self.known = Known::Record(Arc::new(seen));
        Ok(())
    }

    /// How often the store has told something about the key.
    pub(super) fn learnt(&self) -> u64 {
        self.learnt
    }

    /// A write of this process has landed, with this beat if it had one. Whatever was in doubt cannot land any more.
    pub(super) fn wrote(&mut self, beat: Option<(WriteId, Moment)>, revision: u64) {
        if beat.is_some() {
            self.own = beat;
            self.own_revision = revision;
        }
        self.tried.clear();
    }

    /// Writes of this process may have landed, or may yet.
    pub(super) fn doubtful(&mut self, beats: impl Iterator<Item = (WriteId, Moment)>) {
        self.tried.extend(beats);
        if self.tried.len() > MOST_DOUBTFUL {
            // The first to be sent is the likeliest to have landed. From here on it cannot be told which are our own.
            self.tried.truncate(MOST_DOUBTFUL);
            self.own = None;
        }
    }

    /// Whether what is known carries a beat that this process wrote. An older record, as a restored backup has it, may have an
    /// earlier one; where the process remembers none of its own it cannot tell.
    pub(super) fn is_own(&self, lease: &Lease) -> bool {
        self.revision <= self.own_revision || self.own.is_none_or(|(own, _)| own == lease.beat)
    }

    /// What is known is not good for anything any more; fences are.
    pub(super) fn forget(&mut self) {
        self.revision = 0;
        self.known = Known::Nothing;
        self.indexed = None;
    }

    /// What this process believes of a lease, if it was the last that it had to do with.
    pub(super) fn belief_in(&self, lease: &Lease) -> Option<&Belief> {
        self.belief.as_ref().filter(|belief| belief.id == lease.id)
    }

    /// When the store received what is known, if that was read.
    pub(super) fn modified(&self) -> Option<Timestamp> {
        match &self.known {
            Known::Record(seen) => seen.modified(),
            Known::Nothing | Known::Absent => None,
        }
    }

    pub(super) fn record(&self) -> Option<&Record> {
        match &self.known {
            Known::Record(seen) => Some(seen.record()),
            Known::Nothing | Known::Absent => None,
        }
    }

    pub(super) fn base(&self) -> Option<Arc<Seen<Record>>> {
        match &self.known {
            Known::Record(seen) => Some(Arc::clone(seen)),
            Known::Nothing | Known::Absent => None,
        }
    }
}

/// All cells of a process: bounded, in two generations. Whatever is in use stays.
#[derive(Debug)]
pub(super) struct Cells {
    generations: Mutex<Generations>,
    capacity: usize,
}

/// Found by its name, which it has in itself: there may be very many.
#[derive(Debug)]
struct Named(Arc<Cell>);

/// What cells are ordered by.
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
    /// How many of the young were in use when the old ones went, and stayed for that.
    stayed: usize,
}

impl Cells {
    pub(super) fn new(capacity: usize) -> Self {
        Self { generations: Mutex::default(), capacity }
    }

    #[allow(clippy::mutable_key_type, reason = "ordered by names, which do not change")]
    pub(super) fn get(&self, namespace: &Namespace, key: &Key) -> Arc<Cell> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let name: &dyn ByName = &(namespace, key);
        if let Some(Named(cell)) = generations.young.get(name) {
            return Arc::clone(cell);
        }
        let cell = generations.old.take(name).map_or_else(
            || {
                let slot = KeySlot { namespace: namespace.clone(), key: key.clone() };
                Arc::new(Cell::new(slot))
            },
            |Named(cell)| cell,
        );
        generations.young.insert(Named(Arc::clone(&cell)));
        // Where more are in use than there is room for, they must not be looked through with every new one.
        if generations.young.len() > (self.capacity / 2).max(2 * generations.stayed) {
            let aged = mem::take(&mut generations.young);
            let before = mem::replace(&mut generations.old, aged);
            // Two cells for one key could write at once: one that is in use, or whose core is, may not go.
            let in_use = before
                .into_iter()
                .filter(|Named(cell)| Arc::strong_count(cell) > 1 || Arc::strong_count(&cell.core) > 1);
            generations.young.extend(in_use);
            generations.stayed = generations.young.len();
        }
        cell
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
        let cells = Cells::new(10);
        let namespace = Namespace::default();
        let key = |number: usize| Key::new(format!("key-{number}")).unwrap();
        let held: Vec<_> = (0..1000).map(|number| cells.get(&namespace, &key(number))).collect();
        for (number, cell) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(cell, &cells.get(&namespace, &key(number))), "two cells for one key");
        }
        drop(held);
        for number in 1000..20_000 {
            cells.get(&namespace, &key(number));
        }
        assert!(cells.len() <= 12, "what was in use makes room: {}", cells.len());
    }

    #[test]
    fn a_cell_whose_core_somebody_still_writes_with_stays() {
        let cells = Cells::new(10);
        let namespace = Namespace::default();
        let key = |name: &str| Key::new(name).unwrap();
        let core = Arc::clone(&cells.get(&namespace, &key("busy")).core);
        for number in 0..100 {
            cells.get(&namespace, &key(&format!("key-{number}")));
        }
        assert!(Arc::ptr_eq(&core, &cells.get(&namespace, &key("busy")).core), "two cores for one key");
    }

    #[test]
    fn what_was_used_lately_is_still_known() {
        let cells = Cells::new(10);
        let namespace = Namespace::default();
        let key = |number: usize| Key::new(format!("key-{number}")).unwrap();
        let known: Vec<_> = (0..5).map(|number| Arc::downgrade(&cells.get(&namespace, &key(number)))).collect();
        for number in 5..10 {
            cells.get(&namespace, &key(number));
            assert!(known.iter().all(|cell| cell.upgrade().is_some()), "forgotten for the {number}th");
        }
        for number in 10..20 {
            cells.get(&namespace, &key(number));
        }
        assert!(known.iter().all(|cell| cell.upgrade().is_none()), "kept for nobody");
    }

    #[test]
    fn the_cells_are_bounded_and_what_is_in_use_stays() {
        let cells = Cells::new(100);
        let namespace = Namespace::default();
        let kept = cells.get(&namespace, &Key::new("kept").unwrap());
        for number in 0..1000 {
            cells.get(&namespace, &Key::new(format!("key-{number}")).unwrap());
        }
        assert!(cells.len() <= 102, "{}", cells.len());
        let again = cells.get(&namespace, &Key::new("kept").unwrap());
        assert!(Arc::ptr_eq(&kept, &again), "two cells for one key");
    }
}
