//! What this process knows without asking the store: who holds what, what happened lately, how many requests were made.
//! All of it is bounded.

use crate::{
    view::printable,
    wire::{HeldBy, KeyStatus, Lease, Problem},
};
use leasehold::{
    Key, Namespace, Store,
    clock::{Clock, Timestamp},
    layout::KeyJson,
    lease::{Grant, Status},
    store::{RequestKind, Requests},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use utoipa::ToSchema;

/// Of how many leases something is remembered. Beyond that only the index knows of them.
const LEASES: usize = 10_000;

/// How many events are remembered.
const EVENTS: usize = 200;

/// How many samples are kept, and how far they are apart: ten minutes.
const SAMPLES: usize = 120;
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// A key in its namespace, as JSON has it.
type Name = (String, Option<String>, Option<String>);

/// Something that happened to a lease.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Event {
    pub(super) at_ms: i64,
    /// `granted`, `released`, `lost` or `expired`.
    pub(super) what: &'static str,
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_b64: Option<String>,
    pub(super) owner: String,
    pub(super) fence: u64,
}

/// How many requests to the store were made in a while, by kind.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub(super) struct Sample {
    pub(super) at_ms: i64,
    pub(super) get: u64,
    pub(super) put: u64,
    pub(super) list: u64,
    pub(super) delete: u64,
}

#[derive(Debug)]
pub(super) struct Board(Mutex<Inner>);

/// A lease that is held, as far as is known.
#[derive(Debug, Clone)]
struct Known {
    held: HeldBy,
    /// Whether it is granted and renewed by this process, which then knows when it ends. One that was read may have been
    /// renewed by another process since.
    ours: bool,
}

#[derive(Debug, Default)]
struct Inner {
    leases: BTreeMap<Name, Known>,
    events: VecDeque<Event>,
    /// Keys that were last seen free: what the index says of them is old.
    free: BTreeSet<Name>,
    samples: VecDeque<Sample>,
    counted: Requests,
}

impl Inner {
    fn tell(&mut self, at_ms: i64, what: &'static str, name: &Name, owner: &str, fence: u64) {
        let (namespace, key, key_b64) = name.clone();
        self.events.push_front(Event { at_ms, what, namespace, key, key_b64, owner: owner.to_owned(), fence });
        self.events.truncate(EVENTS);
    }

    /// Takes a lease off the board, if it is the one that is there.
    fn remove(&mut self, name: &Name, lease_id: &str) -> Option<HeldBy> {
        self.leases.get(name).filter(|known| known.held.lease_id == lease_id)?;
        self.free(name)
    }

    fn free(&mut self, name: &Name) -> Option<HeldBy> {
        if self.free.len() >= LEASES {
            self.free.clear();
        }
        self.free.insert(name.clone());
        self.leases.remove(name).map(|known| known.held)
    }

    fn put(&mut self, name: Name, held: HeldBy, ours: bool) {
        self.free.remove(&name);
        self.leases.insert(name, Known { held, ours });
        if self.leases.len() > LEASES {
            // A tenth at a time, those first that end first: looking for them is not cheap.
            let mut ends: Vec<i64> = self.leases.values().map(|known| known.held.expires_ms).collect();
            let (_, &mut last, _) = ends.select_nth_unstable(LEASES / 10);
            self.leases.retain(|_, known| known.held.expires_ms > last);
        }
    }
}

impl Board {
    /// Nothing is known, and nothing counted.
    pub(super) fn new(store: &Store) -> Self {
        Self(Mutex::new(Inner { counted: store.requests(), ..Inner::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease was granted, or asked for again by the one who has it. Hands back whose it was before, if that one let it expire.
    pub(super) fn granted(&self, now: Timestamp, grant: &Grant, note: Option<&str>) -> Option<HeldBy> {
        let (name, now) = (name_of(grant), now.as_millis());
        let mut inner = self.lock();
        let before = inner.leases.get(&name).map(|known| known.held.clone());
        let again = before.as_ref().filter(|held| held.lease_id == grant.lease_id().to_string());
        let held = HeldBy { granted_ms: again.map_or(now, |held| held.granted_ms), ..held(grant, now, note) };
        let mut expired = None;
        if again.is_none() {
            // Nobody else can have been given it while the one before it was alive and had not given it back. A hand-over
            // may be told by the one who takes before the one who gives.
            if let Some(gone) = before {
                let what = if gone.expires_ms <= now { "expired" } else { "released" };
                inner.tell(gone.expires_ms.min(now), what, &name, &gone.owner, gone.fence);
                expired = (gone.expires_ms <= now).then_some(gone);
            }
            inner.tell(now, "granted", &name, &held.owner, held.fence);
        }
        inner.put(name, held, true);
        expired
    }

    pub(super) fn renewed(&self, now: Timestamp, grant: &Grant) {
        let name = name_of(grant);
        let mut inner = self.lock();
        let before = inner.leases.get(&name).map(|known| known.held.clone());
        let held = match before.filter(|held| held.lease_id == grant.lease_id().to_string()) {
            Some(before) => HeldBy { granted_ms: before.granted_ms, note: before.note, ..held(grant, 0, None) },
            None => held(grant, now.as_millis(), None),
        };
        inner.put(name, held, true);
    }

    pub(super) fn released(&self, now: Timestamp, name: Name, lease_id: &str) {
        let mut inner = self.lock();
        if let Some(gone) = inner.remove(&name, lease_id) {
            inner.tell(now.as_millis(), "released", &name, &gone.owner, gone.fence);
        }
    }

    /// A renewal found that the lease is gone.
    pub(super) fn lost(&self, now: Timestamp, name: Name, lease_id: &str, problem: &Problem) {
        let mut inner = self.lock();
        if let Some(gone) = inner.remove(&name, lease_id) {
            inner.tell(now.as_millis(), "lost", &name, &gone.owner, gone.fence);
        }
        if let Some(taken) = &problem.holder {
            inner.put(name, (**taken).clone(), false);
        }
    }

    /// Somebody has read a key: what is there replaces what was known.
    pub(super) fn seen(&self, status: &KeyStatus) {
        let name = (status.namespace.clone(), status.key.clone(), status.key_b64.clone());
        let mut inner = self.lock();
        match &status.holder {
            Some(held) => {
                let known = inner.leases.get(&name).filter(|known| known.held.lease_id == held.lease_id);
                let ours = known.is_some_and(|known| known.ours);
                inner.put(name, held.clone(), ours);
            }
            None => drop(inner.free(&name)),
        }
    }

    /// Takes what has ended off the board. `now` is by the clock of this machine, which grants by it too. Nothing is told
    /// of a lease that another process may have renewed: it is not known any more, that is all.
    pub(super) fn prune(&self, now: Timestamp) {
        let mut inner = self.lock();
        let now = now.as_millis();
        inner.leases.retain(|_, known| known.ours || known.held.expires_ms > now);
        let ended = inner.leases.iter().filter(|(_, known)| known.held.expires_ms <= now);
        let ended: Vec<(Name, HeldBy)> = ended.map(|(name, known)| (name.clone(), known.held.clone())).collect();
        for (name, gone) in ended {
            inner.free(&name);
            let (namespace, key, _) = &name;
            let key = printable(key.as_deref().unwrap_or("(not UTF-8)"));
            tracing::info!(namespace, key, owner = printable(&gone.owner), fence = gone.fence, "expired");
            inner.tell(gone.expires_ms, "expired", &name, &gone.owner, gone.fence);
        }
    }

    /// Counts the requests since the last sample.
    pub(super) fn sample(&self, now: Timestamp, store: &Store) {
        let requests = store.requests();
        let mut inner = self.lock();
        let added = requests.since(&inner.counted);
        inner.counted = requests;
        let sample = Sample {
            at_ms: now.as_millis(),
            get: added.of(RequestKind::Get),
            put: added.of(RequestKind::Put),
            list: added.of(RequestKind::List),
            delete: added.of(RequestKind::Delete),
        };
        inner.samples.push_back(sample);
        if inner.samples.len() > SAMPLES {
            inner.samples.pop_front();
        }
    }

    pub(super) fn held(&self) -> usize {
        self.lock().leases.len()
    }

    /// A page of those whose namespace, key or owner has the text in it, in the order of their keys, and how many there
    /// are.
    pub(super) fn leases(&self, find: &str, skip: usize, limit: usize) -> (Vec<KeyStatus>, usize) {
        let find = find.to_lowercase();
        let fits = |text: &str| text.to_lowercase().contains(&find);
        let inner = self.lock();
        let leases = inner.leases.iter().map(|(name, known)| (name, &known.held));
        let fitting = leases.filter(|((namespace, key, key_b64), held)| {
            find.is_empty()
                || [Some(namespace), key.as_ref(), key_b64.as_ref(), Some(&held.owner)]
                    .into_iter()
                    .flatten()
                    .any(|text| fits(text))
        });
        let found: Vec<_> = fitting.collect();
        let total = found.len();
        let status = |(name, held): (&Name, &HeldBy)| KeyStatus {
            namespace: name.0.clone(),
            key: name.1.clone(),
            key_b64: name.2.clone(),
            holder: Some(held.clone()),
            last_fence: Some(held.fence),
            waited_for: false,
            written_ms: None,
        };
        (found.into_iter().skip(skip).take(limit).map(status).collect(), total)
    }

    /// Whether a key is held, as far as is known here.
    pub(super) fn knows(&self, namespace: &str, key: &KeyJson) -> Option<bool> {
        let (inner, name) = (self.lock(), (namespace.to_owned(), key.key.clone(), key.key_b64.clone()));
        inner.leases.contains_key(&name).then_some(true).or_else(|| inner.free.contains(&name).then_some(false))
    }

    pub(super) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.lock().events.iter().cloned().collect();
        // That a lease has expired is found out some time after it has.
        events.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
        events
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        self.lock().samples.iter().copied().collect()
    }
}

/// The name under which a lease stands on the board.
pub(super) fn name_of(grant: &Grant) -> Name {
    name(grant.namespace(), grant.key())
}

/// However a request has spelt it.
pub(super) fn name(namespace: &Namespace, key: &Key) -> Name {
    let KeyJson { key, key_b64 } = key.clone().into();
    (namespace.to_string(), key, key_b64)
}

fn held(grant: &Grant, now: i64, note: Option<&str>) -> HeldBy {
    let Lease { lease_id, owner, fence, expires_ms, ttl_ms, .. } = Lease::of(grant, Duration::ZERO);
    HeldBy { lease_id, owner, fence, granted_ms: now, expires_ms, ttl_ms, note: note.map(ToOwned::to_owned) }
}

/// What a read has shown, for whoever asked and for the board.
pub(super) fn seen(board: &Board, namespace: &Namespace, status: &Status) -> KeyStatus {
    let status = KeyStatus::of(namespace, status);
    board.seen(&status);
    status
}

/// Samples and prunes until the service ends.
pub(super) async fn keep(app: super::App) {
    loop {
        app.clock.sleep(SAMPLE_EVERY).await;
        app.board.prune(app.clock.wall());
        app.board.sample(app.clock.wall(), &app.store);
        // Histograms keep what they were given until somebody looks.
        app.metrics.run_upkeep();
    }
}
