//! Knows the truth: what the store applied and when, and who believes in what. Says when a promise was broken.

use crate::{
    beliefs::Belief,
    plan::Plan,
    queue::Jobs,
    records::{Lease, Record, hour_of, id},
    register::Register,
    sessions::ended_early,
    slots::Slots,
    world::{SKEW_MICROS, World},
};
use leasehold::{Hour, Key, LeaseId, clock::Timestamp, decision::TxnId};
use leasehold_testkit::{Applied, Op};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What was read of a wall clock before a write is at most this old when the write is sent, if the process did not sleep: an
/// operation's patience, and the longest stalls.
const READ_BEFORE: i64 = 100_000_000;

/// How long after its end an hour is swept at the earliest, less what clocks may be wrong by.
const HOUR_GRACE: i64 = 120_000_000;

/// A key in its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub namespace: &'static str,
    pub key: Key,
}

impl Place {
    /// As the names of its objects have it.
    pub fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.key.name())
    }
}

pub struct Sent {
    pub machine: usize,
    pub at: i64,
    pub sound: bool,
}

#[derive(Default)]
pub struct State {
    pub records: BTreeMap<String, Record>,
    entries: BTreeSet<String>,
    entries_under: BTreeSet<String>,
    /// Who sent which write.
    pub sent: BTreeMap<Vec<u8>, Sent>,
    fences: BTreeMap<String, BTreeSet<u64>>,
    /// The highest fence that any client was told, by key; and which client was told of which lease.
    pub told: BTreeMap<String, (Place, u64)>,
    pub known: BTreeSet<LeaseId>,
    pub beliefs: BTreeMap<u64, Belief>,
    pub number: u64,
    pub released: BTreeSet<LeaseId>,
    /// Leases whose expiry says nothing: some machine whose clock was wrong has granted or renewed them.
    pub tainted: BTreeSet<Vec<u8>>,
    /// Leases that came after their hour was swept, and who wrote them.
    pub late: BTreeMap<String, (usize, Vec<u8>)>,
    /// Keys that an operator has asked to be freed.
    forced: BTreeSet<String>,
    /// The highest fence that the resource has seen, by key.
    pub resource: BTreeMap<String, u64>,
    pub grants: u64,
    pub slots: Slots,
    register: Register,
    jobs: Jobs,
    violations: Vec<String>,
}

/// Shared by the store, the network and all clients.
#[derive(Clone)]
pub struct Auditor {
    pub world: World,
    /// Some machine is misled about what time it is by a proxy of its own: it may tidy away what is still needed to
    /// tidy, but nothing else.
    pub misled: bool,
    /// How far the store's slowest front end is from true time, in microseconds.
    slowest: i64,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auditor")
    }
}

impl Auditor {
    pub fn new(world: World, plan: &Plan) -> Self {
        let slowest = plan.store_offset() + plan.front_ends().into_iter().min().unwrap_or(0).min(0);
        Self { world, misled: plan.is_misled(), slowest: slowest * 1000, state: Arc::default() }
    }

    /// What time it is by the store's slowest clock.
    pub fn store_time(&self) -> Timestamp {
        Timestamp::from_micros(self.world.now() + self.slowest)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub fn is_content(&self) -> bool {
        self.lock().violations.is_empty()
    }

    pub fn grants(&self) -> u64 {
        let state = self.lock();
        state.grants + state.slots.grants
    }

    pub fn accuse(&self, what: impl Into<String>) {
        let what = what.into();
        self.world.note(format_args!("VIOLATION {what}"));
        self.lock().violations.push(what);
    }

    /// Decisions have rules of their own.
    pub fn register<T>(&self, judge: impl FnOnce(&mut Register, i64) -> Result<T, String>) -> Option<T> {
        let now = self.world.now();
        let judged = judge(&mut self.lock().register, now);
        judged.map_err(|what| self.accuse(what)).ok()
    }

    /// So have jobs.
    pub fn jobs<T>(&self, judge: impl FnOnce(&mut Jobs) -> Result<T, String>) -> Option<T> {
        let judged = judge(&mut self.lock().jobs);
        judged.map_err(|what| self.accuse(what)).ok()
    }

    pub fn job_counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().jobs.counts.clone()
    }

    /// A machine sends a write.
    pub fn sent(&self, machine: usize, name: &str, body: &[u8]) {
        let at = self.world.now();
        if name.contains("/meta/")
            && let Ok(record) = Record::decode(body)
        {
            let sound = self.world.sound_since(machine, at - READ_BEFORE);
            self.lock().sent.insert(record.write_id, Sent { machine, at, sound });
        }
        if let Some(txn) = name.strip_prefix(".txn-decisions/m/")
            && self.world.has_a_clock(machine)
        {
            self.register(|register, now| register.sent(txn, now));
        }
    }

    /// The store has changed.
    pub fn observe(&self, applied: &Applied) {
        let name = applied.name.as_str();
        let how = if applied.op == Op::Put { "wrote" } else { "deleted" };
        self.world.note(format_args!("    the store {how} {name}"));
        let problems = if let Some(problems) = self.observe_slots(applied) {
            problems
        } else if name.contains("/queue/") {
            self.lock().jobs.see(applied);
            Vec::new()
        } else if let Some((namespace, key)) = name.split_once("/meta/") {
            let key = key.strip_suffix(".pb").unwrap_or(key);
            self.world.watching(|| self.see_record(namespace, key, applied))
        } else if name.contains("/.session-index/") {
            let mut state = self.lock();
            match applied.op == Op::Put {
                true => state.entries_under.insert(name.to_owned()),
                false => state.entries_under.remove(name),
            };
            Vec::new()
        } else if let Some((namespace, filed)) = name.split_once("/.lease-index/") {
            self.see_entry(namespace, filed, applied)
        } else if name.starts_with(".txn-decisions/") {
            self.lock().register.see(applied)
        } else {
            Vec::new()
        };
        problems.into_iter().for_each(|problem| self.accuse(problem));
    }

    fn see_entry(&self, namespace: &str, filed: &str, applied: &Applied) -> Vec<String> {
        let mut state = self.lock();
        let name = &applied.name;
        if applied.op == Op::Put {
            state.entries.insert(name.clone());
            return Vec::new();
        }
        state.entries.remove(name);
        let Some((hour, key)) = filed.split_once('/') else { return vec![format!("{name} is no entry")] };
        let record = state.records.get(&format!("{namespace}/{key}"));
        match record.and_then(|record| record.lease.as_ref()) {
            Some(lease) if lease.session.is_none() && hour_of(lease) == hour && !self.misled => {
                vec![format!("I7: {name} was deleted while the lease {} is filed there", id(lease))]
            }
            _ => Vec::new(),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one rule after the other")]
    fn see_record(&self, namespace: &str, name: &str, applied: &Applied) -> Vec<String> {
        let now = self.world.now();
        let mut state = self.lock();
        let state = &mut *state;
        let key = &format!("{namespace}/{name}");
        let Some(body) = &applied.body else {
            // The key of a session is never used again; its record goes once it is free.
            let free =
                key.starts_with(".leasehold/session") && state.records.get(key).is_some_and(|old| old.lease.is_none());
            state.records.remove(key);
            return if free { Vec::new() } else { vec![format!("I1: the record of {key} was deleted")] };
        };
        let Ok(record) = Record::decode(body.clone()) else { return vec![format!("{key} cannot be read")] };
        let before = state.records.insert(key.clone(), record.clone()).unwrap_or_default();
        let Some(writer) = state.sent.get(&record.write_id) else {
            return vec![format!("nobody sent what {key} has now: {record:?}")];
        };
        let (machine, sent_at, sound) = (writer.machine, writer.at, writer.sound);
        let mut problems = Vec::new();
        let mut must = |is_so: bool, what: &str| {
            if !is_so {
                problems.push(format!("{what}: {key} was {before:?} and is {record:?}"));
            }
        };
        must(record.revision == before.revision + 1, "revisions rise one by one");
        must(record.last_fence >= before.last_fence, "I1: fences do not fall");
        let freed = before.lease.is_some() && record.lease.is_none() && record.last_fence > before.last_fence;
        if freed && let Ok(forced) = lease_id(before.lease.as_ref()) {
            must(state.forced.contains(key), "nobody asked for this lease to be taken away");
            // Its holder is not asked, and fences are what keeps it out.
            state.released.insert(forced);
        }
        if let Some(lease) = &record.lease {
            match before.lease.as_ref().filter(|old| old.id == lease.id) {
                Some(old) => {
                    must(old.fence == lease.fence, "I2: a lease keeps its fence");
                    must(old.expires_ms <= lease.expires_ms, "I6: an expiry does not move back");
                }
                None => {
                    must(
                        lease.fence > before.last_fence && lease.fence == record.last_fence,
                        "I1: a grant has a new fence",
                    );
                    must(state.fences.entry(key.clone()).or_default().insert(lease.fence), "I2: a fence is used once");
                }
            }
            let under = lease.session.is_some();
            must(under || record.hour.to_string() == hour_of(lease), "I7: a record knows its hour");
            let entry = entry_of(namespace, name, lease);
            let filed = self.misled || state.entries.contains(&entry) || state.entries_under.contains(&entry);
            // Its writer was suspended as it sent it, and the hour was swept: it frees the lease or files it again.
            let late = now > swept_from(lease) && !under;
            if !filed && late {
                state.late.insert(key.clone(), (machine, lease.id.clone()));
            }
            must(filed || late, "I7: no lease without an entry");
            let beats = before.lease.as_ref().is_none_or(|old| old.beat != lease.beat);
            if beats && !sound {
                state.tainted.insert(lease.id.clone());
            }
        }
        if let (Some(old), Some(lease)) = (&before.lease, &record.lease)
            && old.id == lease.id
            && old.beat != lease.beat
        {
            let renewing = state.beliefs.values().filter(|belief| belief.lease.as_bytes() == old.id.as_slice());
            let late = renewing.filter(|belief| belief.machine == machine).filter_map(|belief| belief.renewing).find(
                |(since, wall)| {
                    sent_at >= *since && wall.as_millis() >= old.expires_ms && self.world.unset_since(machine, *since)
                },
            );
            must(late.is_none(), "a lease is not renewed after its end");
        }
        if let Some(old) = &before.lease
            && record.lease.as_ref().is_none_or(|lease| lease.id != old.id)
            && let Ok(old_id) = lease_id(Some(old))
            && !state.released.contains(&old_id)
            && old.session.is_some()
            && !state.forced.contains(key)
            && state.known.contains(&old_id)
            && let Some(early) = ended_early(state, old)
        {
            must(false, &early);
        }
        if let Some(old) = &before.lease
            && record.lease.as_ref().is_none_or(|lease| lease.id != old.id)
            && let Ok(old_id) = lease_id(Some(old))
            && !state.released.contains(&old_id)
            && old.session.is_none()
            && state.known.contains(&old_id)
            && sound
            && !state.tainted.contains(&old.id)
        {
            let free = old.expires_ms * 1000 + SKEW_MICROS / 2;
            let by = format!("by machine {machine} at {}", Timestamp::from_micros(sent_at));
            must(now > free, &format!("I6: no lease is ended before its time ({by})"));
        }
        problems.extend(self.check_beliefs(state, key));
        problems
    }

    /// An operator is about to take a lease away.
    pub fn forcing(&self, place: &Place) {
        self.lock().forced.insert(place.id());
    }

    /// A client that stays alive leaves no lease behind that no sweep would find.
    pub fn check_late(&self) {
        let state = self.lock();
        let mut left = Vec::new();
        for (key, (machine, late)) in &state.late {
            let lease = state.records.get(key).and_then(|record| record.lease.as_ref());
            let Some((namespace, name)) = key.split_once('/') else { continue };
            if let Some(lease) = lease.filter(|lease| lease.id == *late)
                && !state.entries.contains(&format!("{namespace}/.lease-index/{}/{name}", hour_of(lease)))
            {
                left.push(format!("I7: machine {machine} left a lease of {key} without an entry"));
            }
        }
        drop(state);
        left.into_iter().for_each(|problem| self.accuse(problem));
    }

    /// What is in the store in the end.
    pub fn left(&self) -> Left {
        let state = self.lock();
        let entries = state.entries.iter().chain(&state.slots.entries);
        let entries = entries.chain(state.register.entries()).cloned().collect();
        let highest = state.told.values().cloned().collect();
        Left { entries, markers: state.register.markers(), highest }
    }
}

/// See [`Auditor::left`].
#[derive(Debug)]
pub struct Left {
    pub entries: Vec<String>,
    pub markers: Vec<(TxnId, bool)>,
    pub highest: Vec<(Place, u64)>,
}

/// Where the entry of a lease must be.
fn entry_of(namespace: &str, name: &str, lease: &Lease) -> String {
    match &lease.session {
        None => format!("{namespace}/.lease-index/{}/{name}", hour_of(lease)),
        Some(session) => {
            let digits: String = session.id.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{namespace}/.session-index/{digits}/{name}")
        }
    }
}

/// From when on the hour of a lease may have been swept.
fn swept_from(lease: &Lease) -> i64 {
    let end = Hour::of(Timestamp::from_millis(lease.expires_ms)).map_or(0, |hour| hour.end().as_micros());
    end + HOUR_GRACE
}

fn lease_id(lease: Option<&Lease>) -> Result<LeaseId, ()> {
    let id = lease.and_then(|lease| <[u8; 16]>::try_from(lease.id.as_slice()).ok());
    id.map(LeaseId::from).ok_or(())
}
