//! Semaphores in the simulated world: what clients do with them, and what must hold. Every semaphore has two slots.

use crate::{
    auditor::{Auditor, Place},
    client::{Client, millis},
    run::Run,
    world::World,
};
use leasehold::{
    Clock, Hour, LeaseId, Result, Semaphores, Store,
    clock::Timestamp,
    lease::Request,
    semaphore::{Permit, Slot, SlotAcquired, SlotRenewed},
};
use leasehold_testkit::{Applied, Op};
use prost::Message;
use rand::{RngExt, seq::IndexedRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const SIZE: u32 = 2;

/// How long after its end an hour is swept at the earliest, less what clocks may be wrong by.
const HOUR_GRACE: i64 = 120_000_000;

/// The record as another tool would read it.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    #[prost(uint64, tag = "4")]
    revision: u64,
    #[prost(uint32, tag = "5")]
    size: u32,
    #[prost(uint64, tag = "6")]
    last_fence: u64,
    #[prost(message, repeated, tag = "7")]
    slots: Vec<Holding>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Holding {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(message, optional, tag = "2")]
    lease: Option<crate::records::Lease>,
}

impl Record {
    fn leases(&self) -> impl Iterator<Item = &crate::records::Lease> {
        self.slots.iter().filter_map(|slot| slot.lease.as_ref())
    }

    fn of(&self, id: &[u8]) -> Option<&crate::records::Lease> {
        self.leases().find(|lease| lease.id == id)
    }
}

/// What a client has in its hands.
pub enum Have {
    Slot(Slot),
    Permit(Arc<Mutex<Option<Permit>>>),
}

impl Have {
    fn slot(&self) -> Option<Slot> {
        match self {
            Self::Slot(slot) => Some(slot.clone()).filter(Slot::is_valid),
            Self::Permit(permit) => {
                let permit = permit.lock().unwrap_or_else(PoisonError::into_inner);
                permit.as_ref().filter(|permit| permit.is_valid()).map(Permit::slot)
            }
        }
    }
}

struct Belief {
    machine: usize,
    key: String,
    id: LeaseId,
    have: Have,
    asked: i64,
    over: bool,
}

/// What is known of all semaphores.
#[derive(Default)]
pub struct Slots {
    records: BTreeMap<String, Record>,
    pub entries: BTreeSet<String>,
    fences: BTreeMap<String, BTreeSet<u64>>,
    highest: BTreeMap<String, (Place, u64)>,
    beliefs: BTreeMap<u64, Belief>,
    number: u64,
    released: BTreeSet<LeaseId>,
    pub grants: u64,
}

impl Slots {
    /// Whoever believes in a slot has it, and never more believe than there are slots.
    fn check(&mut self, world: &World, key: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let record = self.records.get(key).cloned().unwrap_or_default();
        let mut believers = 0;
        for belief in self.beliefs.values_mut().filter(|belief| belief.key == key) {
            let Some(slot) = belief.have.slot() else {
                belief.over = true;
                continue;
            };
            let machine = belief.machine;
            if belief.over {
                problems.push(format!("machine {machine} believes again in {slot:?}, which was over"));
            }
            // Whose monotonic clock stood still cannot know; fences are for that.
            if self.released.contains(&belief.id) || !world.awake_since(machine, belief.asked) {
                continue;
            }
            believers += 1;
            if record.of(belief.id.as_bytes()).is_none() {
                problems.push(format!(
                    "exclusion of slots: machine {machine} believes in {slot:?}, and {key} is {record:?}"
                ));
            }
        }
        if believers > SIZE {
            problems.push(format!("exclusion of slots: {believers} believe at once in {key}"));
        }
        problems
    }

    fn see_record(
        &mut self,
        world: &World,
        misled: bool,
        namespace: &str,
        name: &str,
        applied: &Applied,
    ) -> Vec<String> {
        let key = format!("{namespace}/{name}");
        let Some(body) = &applied.body else { return vec![format!("the semaphore {key} was deleted")] };
        let Ok(record) = Record::decode(body.clone()) else { return vec![format!("{key} cannot be read")] };
        let before = self.records.insert(key.clone(), record.clone()).unwrap_or_default();
        let mut problems = Vec::new();
        let mut must = |is_so: bool, what: &str| {
            if !is_so {
                problems.push(format!("slots, {what}: {key} was {before:?} and is {record:?}"));
            }
        };
        must(record.revision == before.revision + 1, "revisions rise one by one");
        must(record.last_fence >= before.last_fence, "fences do not fall");
        must(record.slots.len() <= SIZE as usize && record.size == SIZE, "there are as many as there may be");
        let numbers: BTreeSet<u32> = record.slots.iter().map(|slot| slot.number).collect();
        must(numbers.len() == record.slots.len(), "no two have one number");
        for lease in record.leases() {
            match before.of(&lease.id) {
                Some(old) => {
                    must(old.fence == lease.fence, "a slot keeps its fence");
                    must(old.expires_ms <= lease.expires_ms, "an expiry does not move back");
                }
                None => {
                    must(
                        lease.fence > before.last_fence && lease.fence <= record.last_fence,
                        "a grant has a new fence",
                    );
                    must(self.fences.entry(key.clone()).or_default().insert(lease.fence), "a fence is used once");
                }
            }
            let hour = Hour::of(Timestamp::from_millis(lease.expires_ms)).expect("an expiry has an hour");
            let filed = self.entries.contains(&format!("{namespace}/.semaphore-index/{hour}/{name}"));
            let late = world.now() > hour.end().as_micros() + HOUR_GRACE;
            must(filed || late || misled, "no holder is without an entry");
        }
        problems.extend(self.check(world, &key));
        problems
    }

    fn see_entry(&mut self, misled: bool, namespace: &str, filed: &str, applied: &Applied) -> Vec<String> {
        if applied.op == Op::Put {
            self.entries.insert(applied.name.clone());
            return Vec::new();
        }
        self.entries.remove(&applied.name);
        let Some((hour, name)) = filed.split_once('/') else { return vec![format!("{} is no entry", applied.name)] };
        let there = self.records.get(&format!("{namespace}/{name}"));
        let still = there.is_some_and(|there| there.leases().any(|lease| crate::records::hour_of(lease) == hour));
        match still && !misled {
            true => vec![format!("slots, {} was deleted while a holder is filed there", applied.name)],
            false => Vec::new(),
        }
    }
}

impl Auditor {
    /// The store has changed something of a semaphore; `None` if it was something else.
    pub fn observe_slots(&self, applied: &Applied) -> Option<Vec<String>> {
        let name = applied.name.as_str();
        if let Some((namespace, record)) = name.split_once("/semaphore/") {
            let record = record.strip_suffix(".pb").unwrap_or(record);
            let (world, misled) = (&self.world, self.misled);
            return Some(world.watching(|| self.lock().slots.see_record(world, misled, namespace, record, applied)));
        }
        let (namespace, filed) = name.split_once("/.semaphore-index/")?;
        Some(self.lock().slots.see_entry(self.misled, namespace, filed, applied))
    }

    fn has_slot(&self, machine: usize, asked: i64, place: &Place, slot: &Slot, have: Have) -> u64 {
        let key = place.id();
        self.world.note(format_args!("{machine}: has slot {} of {key} with {}", slot.number(), slot.fence()));
        let (number, problems) = self.world.watching(|| {
            let mut state = self.lock();
            let slots = &mut state.slots;
            slots.grants += 1;
            let highest = slots.highest.entry(key.clone()).or_insert_with(|| (place.clone(), 0));
            highest.1 = highest.1.max(slot.fence().get());
            slots.number += 1;
            let belief = Belief { machine, key: key.clone(), id: slot.lease_id(), have, asked, over: false };
            slots.beliefs.insert(slots.number, belief);
            (slots.number, slots.check(&self.world, &key))
        });
        problems.into_iter().for_each(|problem| self.accuse(problem));
        number
    }

    fn look_at_slot(&self, number: u64, renewed: Option<Slot>) {
        let problems = self.world.watching(|| {
            let mut state = self.lock();
            let slots = &mut state.slots;
            let Some(belief) = slots.beliefs.get_mut(&number) else { return Vec::new() };
            if let Some(slot) = renewed {
                (belief.have, belief.over) = (Have::Slot(slot), false);
            }
            let key = belief.key.clone();
            slots.check(&self.world, &key)
        });
        problems.into_iter().for_each(|problem| self.accuse(problem));
    }

    fn leaves_slot(&self, number: u64, id: LeaseId) {
        let belief = {
            let mut state = self.lock();
            state.slots.released.insert(id);
            state.slots.beliefs.remove(&number)
        };
        drop(belief);
    }

    /// A machine is gone, and what it believed with it.
    pub fn slots_crashed(&self, machine: usize) {
        let gone: Vec<Belief> = {
            let mut state = self.lock();
            let beliefs = std::mem::take(&mut state.slots.beliefs);
            let (gone, left): (BTreeMap<_, _>, BTreeMap<_, _>) =
                beliefs.into_iter().partition(|(_, belief)| belief.machine == machine);
            state.slots.beliefs = left;
            gone.into_values().collect()
        };
        drop(gone);
    }
}

impl Client {
    /// What clients do in a run about semaphores.
    #[allow(clippy::too_many_lines, reason = "one arm for each action")]
    pub async fn semaphore(&mut self) {
        match self.dice.random_range(0..12) {
            0 if self.plan.has("sweep") => return self.sweep().await,
            1 => {
                let place = self.place();
                let semaphores = self.store.semaphores(place.namespace).expect("a good name");
                drop(self.patience(async move { semaphores.peek(&place.key).await.map(drop) }).await);
                return;
            }
            _ => {}
        }
        let place = self.place();
        let semaphores = self.store.semaphores(place.namespace).expect("a good name");
        let ttl = *[1000, 1500, 3000, 6000, 12_000, 25_000, 60_000].choose(&mut self.dice).unwrap_or(&3000);
        let request = Request::new(Duration::from_millis(ttl)).owner(&self.name);
        let wait = if self.dice.random_range(0..2) == 0 { Duration::ZERO } else { millis(&mut self.dice, 100..12_000) };
        let asked = self.world.now();
        self.world.note(format_args!("{} asks for a slot of {}, waits {} ms", self.name, place.id(), wait.as_millis()));
        let (asking, name) = (semaphores.clone(), place.key.clone());
        let slot = match self.patience(async move { asking.acquire(&name, SIZE, &request, wait).await }).await {
            Some(Ok(SlotAcquired::Granted(slot))) => slot,
            Some(Err(error)) => return self.world.note(format_args!("{}: {:?}", self.name, error.kind())),
            Some(Ok(SlotAcquired::Full(_))) | None => return,
        };
        if self.plan.has("guard") && self.dice.random_range(0..2) == 0 {
            return self.keep_slot(&semaphores, slot, asked, &place).await;
        }
        self.hold_slot(semaphores, slot, asked, &place).await;
    }

    async fn keep_slot(&mut self, semaphores: &Semaphores, slot: Slot, asked: i64, place: &Place) {
        let id = slot.lease_id();
        let permit = semaphores.permit(slot.clone(), None);
        let lost = permit.cancellation();
        let shared = Arc::new(Mutex::new(Some(permit)));
        let belief = self.auditor.has_slot(self.machine, asked, place, &slot, Have::Permit(Arc::clone(&shared)));
        for _ in 0..self.dice.random_range(1..6) {
            let pause = millis(&mut self.dice, 50..5000);
            tokio::select! {
                biased;
                () = lost.cancelled() => break,
                () = self.clock.sleep(pause) => self.auditor.look_at_slot(belief, None),
            }
        }
        let permit = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.auditor.leaves_slot(belief, id);
        if let Some(permit) = permit
            && self.dice.random_range(0..4) > 0
        {
            let _ = self.patience(permit.release()).await;
        }
    }

    async fn hold_slot(&mut self, semaphores: Semaphores, slot: Slot, asked: i64, place: &Place) {
        let id = slot.lease_id();
        let belief = self.auditor.has_slot(self.machine, asked, place, &slot, Have::Slot(slot.clone()));
        let mut slot = slot;
        for _ in 0..self.dice.random_range(0..4) {
            let pause = slot.ttl().mul_f64(self.dice.random_range(0.01..0.6)).min(Duration::from_secs(8));
            self.clock.sleep(pause).await;
            let by_id = self.plan.has("by_id") && self.dice.random_range(0..2) == 0;
            let (renewing, held) = (semaphores.clone(), slot.clone());
            let renewed = self
                .patience(async move {
                    match by_id {
                        true => renewing.renew_by_id(held.name(), held.lease_id(), None).await,
                        false => renewing.renew(&held).await,
                    }
                })
                .await;
            match renewed {
                Some(Ok(SlotRenewed::Renewed(renewed))) => {
                    slot = renewed.clone();
                    self.auditor.look_at_slot(belief, Some(renewed));
                }
                Some(Ok(SlotRenewed::Lost(_))) => break,
                Some(Err(_)) | None => self.auditor.look_at_slot(belief, None),
            }
        }
        if self.dice.random_range(0..3) == 0 {
            // Holds on to it for as long as it may, and lets it run out.
            while !self.world.watching(|| slot.time_left()).is_zero() {
                let pause = millis(&mut self.dice, 50..2000);
                self.clock.sleep(pause).await;
                self.auditor.look_at_slot(belief, None);
            }
            return self.auditor.leaves_slot(belief, id);
        }
        self.auditor.leaves_slot(belief, id);
        let _ = self.patience(async move { semaphores.release_by_id(slot.name(), id).await }).await;
    }
}

impl Run {
    /// In the end every slot can be had, with a higher fence than any before.
    pub fn inspect_slots(&mut self) {
        let keys: Vec<(Place, u64)> = self.auditor.lock().slots.highest.values().cloned().collect();
        self.ask(move |store| all_can_be_had(store, keys));
    }
}

async fn all_can_be_had(store: Store, keys: Vec<(Place, u64)>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (place, highest) in keys {
        let semaphores = store.semaphores(place.namespace)?;
        let request = Request::new(Duration::from_secs(30));
        let mut had = Vec::new();
        for _ in 0..SIZE {
            // Long enough to see that a holder does nothing, whatever the clocks said that it was written by.
            match semaphores.acquire(&place.key, SIZE, &request, Duration::from_secs(150)).await? {
                SlotAcquired::Granted(slot) => had.push(slot),
                SlotAcquired::Full(full) => problems.push(format!("slots, {} is stuck: {full:?}", place.id())),
            }
        }
        if had.iter().any(|slot| slot.fence().get() <= highest) {
            problems.push(format!("slots, {} was granted below {highest}: {had:?}", place.id()));
        }
        for slot in had {
            semaphores.release_by_id(&place.key, slot.lease_id()).await?;
        }
    }
    Ok(problems)
}
