//! Knows the truth: what the store applied and when, and who believes in what. Says when a promise was broken.

use crate::{
    register::Register,
    world::{SKEW_MICROS, World},
};
use leasehold::{
    Bucket, Clock, LeaseId,
    clock::Timestamp,
    decision::TxnId,
    lease::{Grant, Guard, Held},
    testkit::{Applied, Op},
};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What was read of a wall clock before a write is at most this old when the write is sent, if nobody slept: an
/// operation's patience, and the longest stalls.
const READ_BEFORE: i64 = 100_000_000;

/// How far a clock that nobody sets goes wrong while a lease is granted.
const DRIFT: Duration = Duration::from_millis(300);

// What stands in the store, as another tool would read it.

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bytes = "vec", tag = "3")]
    write_id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    revision: u64,
    #[prost(uint64, tag = "5")]
    last_fence: u64,
    #[prost(message, optional, tag = "6")]
    lease: Option<Lease>,
    #[prost(uint64, tag = "9")]
    hour: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(string, tag = "3")]
    owner: String,
    #[prost(uint64, tag = "6")]
    fence: u64,
    #[prost(int64, tag = "8")]
    expires_ms: i64,
    #[prost(bytes = "vec", tag = "10")]
    beat: Vec<u8>,
}

/// What a client has in its hands.
pub enum Hold {
    Grant(Grant),
    Guard(Arc<Mutex<Option<Guard>>>),
}

impl Hold {
    fn grant(&self) -> Option<Grant> {
        match self {
            Self::Grant(grant) => Some(grant.clone()).filter(Grant::is_valid),
            Self::Guard(guard) => {
                let guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
                guard.as_ref().filter(|guard| guard.is_valid()).map(Guard::grant)
            }
        }
    }
}

/// A client that believes, or believed, in a lease.
struct Belief {
    machine: usize,
    key: String,
    lease: LeaseId,
    hold: Hold,
    /// When it was asked for.
    asked: i64,
    /// Its machine's clock was right when it was granted.
    sound: bool,
    /// Since when it is being renewed, in true time and by its machine's wall clock.
    renewing: Option<(i64, Timestamp)>,
}

/// A client that has asked for a lease, and what was known then.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: i64,
    key: String,
    highest: u64,
    stalled: u64,
}

struct Sent {
    machine: usize,
    at: i64,
    sound: bool,
}

#[derive(Default)]
struct State {
    records: BTreeMap<String, Record>,
    entries: BTreeSet<String>,
    /// Who sent which write.
    sent: BTreeMap<Vec<u8>, Sent>,
    fences: BTreeMap<String, BTreeSet<u64>>,
    /// The highest fence that anybody was told, by key; and who was told of which lease.
    told: BTreeMap<String, u64>,
    known: BTreeSet<LeaseId>,
    beliefs: BTreeMap<u64, Belief>,
    number: u64,
    released: BTreeSet<LeaseId>,
    /// When a key was last taken by a machine whose clock is wrong, which nobody can prevent.
    robbed: BTreeMap<String, i64>,
    /// The highest fence that the resource has seen, by key.
    resource: BTreeMap<String, u64>,
    grants: u64,
    register: Register,
    violations: Vec<String>,
}

/// Shared by the store, the network and all clients.
#[derive(Clone)]
pub struct Auditor {
    world: World,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auditor")
    }
}

impl Auditor {
    pub fn new(world: World) -> Self {
        Self { world, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub fn is_content(&self) -> bool {
        self.lock().violations.is_empty()
    }

    pub fn grants(&self) -> u64 {
        self.lock().grants
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
        let problems = if let Some(key) = name.strip_prefix("default/meta/").and_then(|name| name.strip_suffix(".pb")) {
            self.world.watching(|| self.see_record(key, applied))
        } else if name.starts_with("default/.lease-index/") {
            self.see_entry(name, applied)
        } else if name.starts_with(".txn-decisions/") {
            self.lock().register.see(applied)
        } else {
            Vec::new()
        };
        problems.into_iter().for_each(|problem| self.accuse(problem));
    }

    fn see_entry(&self, name: &str, applied: &Applied) -> Vec<String> {
        let mut state = self.lock();
        if applied.op == Op::Put {
            state.entries.insert(name.to_owned());
            return Vec::new();
        }
        state.entries.remove(name);
        let filed = name.trim_start_matches("default/.lease-index/").split_once('/');
        let Some((hour, key)) = filed else { return vec![format!("{name} is no entry")] };
        let lease = state.records.get(key).and_then(|record| record.lease.as_ref());
        match lease {
            Some(lease) if hour_of(lease) == hour => {
                vec![format!("I7: {name} was deleted while the lease {} is filed there", id(lease))]
            }
            _ => Vec::new(),
        }
    }

    fn see_record(&self, key: &str, applied: &Applied) -> Vec<String> {
        let now = self.world.now();
        let mut state = self.lock();
        let Some(body) = &applied.body else { return vec![format!("I1: the record of {key} was deleted")] };
        let Ok(record) = Record::decode(body.clone()) else { return vec![format!("{key} cannot be read")] };
        let before = state.records.insert(key.to_owned(), record.clone()).unwrap_or_default();
        let mut problems = Vec::new();
        let mut must = |is_so: bool, what: &str| {
            if !is_so {
                problems.push(format!("{what}: {key} was {before:?} and is {record:?}"));
            }
        };
        must(record.revision == before.revision + 1, "revisions rise one by one");
        must(record.last_fence >= before.last_fence, "I1: fences do not fall");
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
                    must(
                        state.fences.entry(key.to_owned()).or_default().insert(lease.fence),
                        "I2: a fence is used once",
                    );
                }
            }
            must(record.hour.to_string() == hour_of(lease), "I7: a record knows its hour");
            let entry = format!("default/.lease-index/{}/{key}", hour_of(lease));
            must(state.entries.contains(&entry), "I7: no lease without an entry");
        }
        let writer = state.sent.get(&record.write_id);
        let Some(writer) = writer else { return vec![format!("nobody sent what {key} has now: {record:?}")] };
        let sound = writer.sound;
        if let (Some(old), Some(lease)) = (&before.lease, &record.lease)
            && old.id == lease.id
            && old.beat != lease.beat
        {
            let machine = writer.machine;
            let renewing = state.beliefs.values().filter(|belief| belief.lease.as_bytes() == old.id.as_slice());
            let late = renewing.filter(|belief| belief.machine == machine).filter_map(|belief| belief.renewing).find(
                |(since, wall)| {
                    writer.at >= *since && wall.as_millis() >= old.expires_ms && self.world.unset_since(machine, *since)
                },
            );
            must(late.is_none(), "a lease is not renewed after its end");
        }
        if let Some(old) = &before.lease
            && record.lease.as_ref().is_none_or(|lease| lease.id != old.id)
            && let Ok(old_id) = <[u8; 16]>::try_from(old.id.as_slice()).map(LeaseId::from)
            && !state.released.contains(&old_id)
            && state.known.contains(&old_id)
            && sound
            && state.sent.get(&old.beat).is_some_and(|sent| sent.sound)
        {
            let free = old.expires_ms * 1000 + SKEW_MICROS / 2;
            let by = format!("by machine {} at {}", writer.machine, Timestamp::from_micros(writer.at));
            must(now > free, &format!("I6: no lease is ended before its time ({by})"));
        }
        if sound {
            problems.extend(self.check_beliefs(&state, key));
        } else if record.lease.as_ref().map(|lease| &lease.id) != before.lease.as_ref().map(|lease| &lease.id) {
            state.robbed.insert(key.to_owned(), now);
            state.beliefs.values_mut().filter(|belief| belief.key == key).for_each(|belief| belief.sound = false);
        }
        problems
    }

    /// Whoever believes in a lease is right.
    fn check_beliefs(&self, state: &State, key: &str) -> Vec<String> {
        let now = self.world.now();
        let lease = state.records.get(key).and_then(|record| record.lease.as_ref());
        let mut problems = Vec::new();
        for belief in state.beliefs.values().filter(|belief| belief.key == key && belief.sound) {
            if state.released.contains(&belief.lease) {
                continue;
            }
            // A machine whose monotonic clock stood still has nothing but its wall clock to go by.
            let machine = belief.machine;
            if !self.world.awake_since(machine, belief.asked) && !self.world.sound_since(machine, belief.asked) {
                continue;
            }
            let Some(grant) = belief.hold.grant() else { continue };
            match lease.filter(|lease| lease.id == belief.lease.as_bytes()) {
                None => problems.push(format!(
                    "exclusion: machine {machine} believes in {grant:?} at {}, and {key} has {:?}",
                    Timestamp::from_micros(now),
                    lease.map(|lease| (id(lease), lease.fence, &lease.owner))
                )),
                Some(lease) if lease.expires_ms < grant.expires_at().as_millis() => problems.push(format!(
                    "exclusion: machine {machine} believes in {grant:?}, and {key} has it until {} only",
                    Timestamp::from_millis(lease.expires_ms)
                )),
                Some(_) => {}
            }
        }
        problems
    }

    /// Somebody is about to ask for a lease.
    pub fn asked(&self, key: &str) -> Asked {
        let highest = self.lock().told.get(key).copied().unwrap_or(0);
        Asked { at: self.world.now(), key: key.to_owned(), highest, stalled: self.world.stalled() }
    }

    /// Somebody was granted a lease. Returns the name of the belief.
    pub fn granted(&self, machine: usize, asked: &Asked, grant: &Grant, hold: Hold) -> u64 {
        self.world.note(format_args!("{machine}: has {} of {}", grant.fence(), asked.key));
        let problems = self.world.watching(|| {
            let mut state = self.lock();
            let state = &mut *state;
            let mut problems = Vec::new();
            let fence = grant.fence().get();
            let known = !state.known.insert(grant.lease_id());
            state.grants += u64::from(!known);
            if fence < asked.highest || fence == asked.highest && !known {
                problems.push(format!("I3: {fence} was granted after {} was known", asked.highest));
            }
            // Nobody can look at two clocks at once: a stall between the two looks is what fences are for.
            if !grant.is_valid() && asked.stalled == self.world.stalled() {
                problems.push(format!("{grant:?} had ended when it was returned"));
            }
            // The monotonic clock is read first, so that a stall between the two shortens belief by it.
            let wall = self.world.clock(machine).wall();
            let by_wall = grant.expires_at().since(wall);
            let by_monotonic = self.world.without_wall(|| grant.time_left());
            let undisturbed = self.world.unset_since(machine, asked.at) && self.world.awake_since(machine, asked.at);
            if by_monotonic > by_wall + DRIFT && undisturbed {
                problems.push(format!("{grant:?} is believed in for {by_monotonic:?}, and lasts for {by_wall:?}"));
            }
            let told = state.told.entry(asked.key.clone()).or_default();
            *told = fence.max(*told);
            let robbed = state.robbed.get(&asked.key).is_some_and(|at| *at >= asked.at);
            state.number += 1;
            let belief = Belief {
                machine,
                key: asked.key.clone(),
                lease: grant.lease_id(),
                hold,
                asked: asked.at,
                sound: self.world.sound_since(machine, asked.at) && !robbed,
                renewing: None,
            };
            state.beliefs.insert(state.number, belief);
            problems.extend(self.check_beliefs(state, &asked.key));
            problems
        });
        problems.into_iter().for_each(|problem| self.accuse(problem));
        self.lock().number
    }

    /// A client is about to renew its lease.
    pub fn renewing(&self, number: u64) {
        let now = self.world.now();
        let mut state = self.lock();
        if let Some(belief) = state.beliefs.get_mut(&number) {
            let wall = self.world.watching(|| self.world.clock(belief.machine).wall());
            belief.renewing = Some((now, wall));
        }
    }

    /// What came of it, if it was renewed.
    pub fn renewed(&self, number: u64, grant: Option<Grant>) {
        let problems = self.world.watching(|| {
            let mut state = self.lock();
            let Some(belief) = state.beliefs.get_mut(&number) else { return Vec::new() };
            belief.renewing = None;
            if let Some(grant) = grant {
                belief.hold = Hold::Grant(grant);
            }
            let key = belief.key.clone();
            self.check_beliefs(&state, &key)
        });
        problems.into_iter().for_each(|problem| self.accuse(problem));
    }

    /// From now on whoever has this lease cannot count on it.
    pub fn releasing(&self, lease: LeaseId) {
        self.lock().released.insert(lease);
    }

    /// A client has forgotten its lease.
    pub fn forget(&self, number: u64) {
        let belief = self.lock().beliefs.remove(&number);
        drop(belief);
    }

    /// A machine is gone, and what it believed with it.
    pub fn crashed(&self, machine: usize) {
        let gone: Vec<Belief> = {
            let mut state = self.lock();
            let (gone, left) =
                std::mem::take(&mut state.beliefs).into_iter().partition(|(_, belief)| belief.machine == machine);
            state.beliefs = left;
            let gone: BTreeMap<u64, Belief> = gone;
            gone.into_values().collect()
        };
        drop(gone);
    }

    /// A client was told that somebody else has the key.
    pub fn held(&self, owner: &str, held: &Held) {
        if held.by.as_ref().is_some_and(|by| by.owner == owner) {
            self.accuse(format!("{owner} was told that it is held by another: {held:?}"));
        }
    }

    /// A client writes to what the lease protects, at the very moment at which it looked at its lease.
    pub fn write(&self, number: u64) {
        let problem = self.world.watching(|| {
            let mut state = self.lock();
            let state = &mut *state;
            let belief = state.beliefs.get(&number)?;
            let grant = belief.hold.grant()?;
            let seen = state.resource.entry(belief.key.clone()).or_default();
            let fence = grant.fence().get();
            let refused = fence < *seen;
            *seen = fence.max(*seen);
            let awake = self.world.awake_since(belief.machine, belief.asked);
            let certain = belief.sound && (awake || self.world.sound_since(belief.machine, belief.asked));
            // A refusal is what fences are for; who believed in its lease with good reason is never refused.
            (refused && certain && !state.released.contains(&belief.lease))
                .then(|| format!("I4: {grant:?} was refused, the resource has seen {seen}"))
        });
        problem.into_iter().for_each(|problem| self.accuse(problem));
    }

    /// What is in the store in the end.
    pub fn left(&self) -> Left {
        let state = self.lock();
        let entries = state.entries.iter().chain(state.register.entries()).cloned().collect();
        let highest = state.told.clone();
        Left { entries, markers: state.register.markers(), highest }
    }
}

/// See [`Auditor::left`].
#[derive(Debug)]
pub struct Left {
    pub entries: Vec<String>,
    pub markers: Vec<(TxnId, bool)>,
    pub highest: BTreeMap<String, u64>,
}

fn hour_of(lease: &Lease) -> String {
    Bucket::of(Timestamp::from_millis(lease.expires_ms)).map_or_else(|error| error.to_string(), |hour| hour.to_string())
}

fn id(lease: &Lease) -> String {
    lease.id.iter().map(|byte| format!("{byte:02x}")).collect()
}
