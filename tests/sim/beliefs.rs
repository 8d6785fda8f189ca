//! Who believes in what, and whether that is right.

use crate::{
    auditor::{Auditor, Place, State},
    records::{Lease, id},
};
use leasehold::{
    Clock, LeaseId,
    clock::Timestamp,
    lease::{Grant, Guard, Held},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How far a clock drifts while a lease is granted, if it is not set.
const DRIFT: Duration = Duration::from_millis(300);

/// How far a clock may be ahead of the store's without any expiry being cut for it.
const AHEAD: Duration = Duration::from_millis(900);

/// What monotonic clocks make of the longest lease.
const SLACK: i64 = 100_000;

/// How exactly a guard knows for how long it has been held.
const SOON: i64 = 20_000;

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
pub struct Belief {
    pub machine: usize,
    key: String,
    pub lease: LeaseId,
    hold: Hold,
    /// When it was asked for.
    asked: i64,
    /// It is not renewed beyond this.
    hold_until: Option<i64>,
    /// It was found to be over.
    over: bool,
    /// Since when it is being renewed, in true time and by its machine's wall clock.
    pub renewing: Option<(i64, Timestamp)>,
}

/// A client that has asked for a lease, and what was known then.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: i64,
    place: Place,
    highest: u64,
    stalled: u64,
}

impl Auditor {
    /// Whether a machine can know when its belief ends. One whose monotonic clock stood still has nothing but its wall
    /// clock to go by, and what the record says by the clocks of all who wrote it.
    fn can_know(&self, state: &State, belief: &Belief) -> bool {
        let by_wall = self.world.sound_since(belief.machine, belief.asked)
            && !state.tainted.contains(belief.lease.as_bytes().as_slice());
        self.world.awake_since(belief.machine, belief.asked) || by_wall
    }

    /// A client that considers its lease valid is right, whatever any wall clock says.
    pub fn check_beliefs(&self, state: &mut State, key: &str) -> Vec<String> {
        let now = self.world.now();
        let lease = state.records.get(key).and_then(|record| record.lease.clone());
        let mut problems = Vec::new();
        let mut beliefs = std::mem::take(&mut state.beliefs);
        for belief in beliefs.values_mut().filter(|belief| belief.key == key) {
            let machine = belief.machine;
            let Some(grant) = belief.hold.grant() else {
                belief.over = true;
                continue;
            };
            if belief.over {
                problems.push(format!("machine {machine} believes again in {grant:?}, which was over"));
            }
            if state.released.contains(&belief.lease) || !self.can_know(state, belief) {
                continue;
            }
            if belief.hold_until.is_some_and(|until| now > until) && self.world.awake_since(machine, belief.asked) {
                problems.push(format!("{grant:?} is believed in for longer than it was to be held"));
            }
            if self.world.awake_since(machine, belief.asked) {
                problems.extend(self.too_long(state, lease.as_ref(), &grant));
            }
            match lease.as_ref().filter(|lease| lease.id == belief.lease.as_bytes()) {
                None => problems.push(format!(
                    "exclusion: machine {machine} believes in {grant:?} at {}, and {key} has {:?}",
                    Timestamp::from_micros(now),
                    lease.as_ref().map(|lease| (id(lease), lease.fence, &lease.owner))
                )),
                Some(lease) if lease.session.is_none() && lease.expires_ms < grant.expires_at().as_millis() => problems
                    .push(format!(
                        "exclusion: machine {machine} believes in {grant:?}, and {key} has it until {} only",
                        Timestamp::from_millis(lease.expires_ms)
                    )),
                Some(_) => {}
            }
        }
        state.beliefs = beliefs;
        problems
    }

    /// By its monotonic clock no client considers a lease valid for longer than the record says that it lasts, counted from
    /// when its last renewal was sent: a process that takes it over goes by that.
    fn too_long(&self, state: &State, lease: Option<&Lease>, grant: &Grant) -> Option<String> {
        // Under a session it is not renewed by itself, and says nothing of how long it lasts.
        let lease = lease.filter(|lease| lease.id == grant.lease_id().as_bytes() && lease.session.is_none())?;
        let since = self.world.now() - state.sent.get(&lease.beat)?.at;
        let lasts = i64::try_from(lease.lasts_ms.unwrap_or(lease.ttl_ms)).ok()?.saturating_mul(1000);
        let left = i64::try_from(self.world.without_wall(|| grant.time_left()).as_micros()).ok()?;
        (left > lasts - since + SLACK).then(|| {
            let longest = (lasts - since) / 1000;
            format!("{grant:?} is believed in for {} ms more, and can last for {longest} ms", left / 1000)
        })
    }

    /// A client is about to ask for a lease.
    pub fn asked(&self, place: &Place) -> Asked {
        let highest = self.lock().told.get(&place.id()).map_or(0, |(_, highest)| *highest);
        Asked { at: self.world.now(), place: place.clone(), highest, stalled: self.world.stalled() }
    }

    /// A client was granted a lease, to be held for no longer than `max_hold`. Returns the name of the belief.
    pub fn granted(&self, machine: usize, asked: &Asked, grant: &Grant, hold: Hold, max_hold: Option<Duration>) -> u64 {
        let key = asked.place.id();
        self.world.note(format_args!("{machine}: has {} of {key}", grant.fence()));
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
            // Two clocks cannot be read at once: a stall between the two looks is what fences are for.
            if !grant.is_valid() && asked.stalled == self.world.stalled() {
                problems.push(format!("{grant:?} had ended when it was returned"));
            }
            // The monotonic clock is read first, so that a stall between the two shortens belief by it.
            let wall = self.world.clock(machine).wall();
            let by_wall = grant.expires_at().since(wall);
            let by_monotonic = self.world.without_wall(|| grant.time_left());
            // Who has stood still takes the store for behind, and its expiry is not beyond what it takes that for. What
            // others of its process have believed in before may have begun by another clock.
            let undisturbed = self.world.unset_since(machine, asked.at) && self.world.awake_since(machine, 0);
            // Where the machine's clock is ahead of the store's, its expiry is not: belief ends by whichever is first.
            let ahead = wall.since(self.store_time()) > AHEAD;
            if by_monotonic > by_wall + DRIFT && undisturbed && !ahead && !known && !self.misled {
                problems.push(format!("{grant:?} is believed in for {by_monotonic:?}, and lasts for {by_wall:?}"));
            }
            let told = state.told.entry(key.clone()).or_insert_with(|| (asked.place.clone(), 0));
            told.1 = fence.max(told.1);
            let longest = max_hold.map(|longest| i64::try_from(longest.as_micros()).unwrap_or(i64::MAX));
            state.number += 1;
            let belief = Belief {
                machine,
                key: key.clone(),
                lease: grant.lease_id(),
                hold,
                asked: asked.at,
                hold_until: longest.map(|longest| self.world.now().saturating_add(longest).saturating_add(SOON)),
                over: false,
                renewing: None,
            };
            state.beliefs.insert(state.number, belief);
            problems.extend(self.check_beliefs(state, &key));
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
                belief.over = false;
            }
            let key = belief.key.clone();
            self.check_beliefs(&mut state, &key)
        });
        problems.into_iter().for_each(|problem| self.accuse(problem));
    }

    /// From now on the holder of this lease cannot count on it.
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
        self.slots_crashed(machine);
        let gone: Vec<Belief> = {
            let mut state = self.lock();
            let (gone, left) =
                std::mem::take(&mut state.beliefs).into_iter().partition(|(_, belief)| belief.machine == machine);
            state.beliefs = left;
            state.late.retain(|_, (writer, _)| *writer != machine);
            let gone: BTreeMap<u64, Belief> = gone;
            gone.into_values().collect()
        };
        drop(gone);
        self.jobs(|jobs| {
            jobs.crashed(machine);
            Ok(())
        });
    }

    /// A client was told that another one has the key.
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
            let belief = state.beliefs.get_mut(&number)?;
            let grant = belief.hold.grant();
            let again = belief.over && grant.is_some();
            belief.over |= grant.is_none();
            let grant = grant?;
            if again {
                return Some(format!("machine {} believes again in {grant:?}, which was over", belief.machine));
            }
            let (lease, key) = (belief.lease, belief.key.clone());
            let certain = self.can_know(state, state.beliefs.get(&number)?);
            let seen = state.resource.entry(key).or_default();
            let fence = grant.fence().get();
            let refused = fence < *seen;
            *seen = fence.max(*seen);
            // A refusal is what fences are for; who believed in its lease with good reason is never refused.
            (refused && certain && !state.released.contains(&lease))
                .then(|| format!("I4: {grant:?} was refused, the resource has seen {seen}"))
        });
        problem.into_iter().for_each(|problem| self.accuse(problem));
    }
}
