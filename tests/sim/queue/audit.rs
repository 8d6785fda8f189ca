//! What every job was told: that it is in the queue, who runs it with which fence, and that it has ended.

use super::rules::{Bound, Rules};
use crate::world::World;
use leasehold::{
    Fence,
    job::{AttemptEnd, Job, JobId},
};
use leasehold_testkit::{Applied, Op};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

/// A job in somebody's hands, as long as it is.
pub type Hand = Arc<Mutex<Option<Job>>>;

/// One attempt that has begun and is not known to be over.
struct Running {
    number: u64,
    machine: usize,
    since: i64,
    hand: Hand,
}

/// What a caller was told of its enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Told {
    /// Nothing yet, or that nobody knows.
    #[default]
    Unknown,
    Enqueued,
    NotEnqueued,
}

#[derive(Default)]
struct Known {
    told: Told,
    id: Option<JobId>,
    highest: Option<Fence>,
    running: Vec<Running>,
    /// Its end was acknowledged, and how.
    ended: Option<&'static str>,
    /// An end was asked for, and nobody was told whether it has come.
    may_have_ended: bool,
    /// A cancel was asked for: it may end the job whenever its attempt is over.
    cancelling: bool,
    attempts: u64,
}

/// All jobs, by the number that they carry.
#[derive(Default)]
pub struct Jobs {
    known: BTreeMap<u64, Known>,
    number: u64,
    names: BTreeSet<String>,
    pub rules: Rules,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Jobs {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A new job is about to be enqueued.
    pub fn sends(&mut self) -> u64 {
        self.number += 1;
        self.known.insert(self.number, Known::default());
        self.number
    }

    pub fn told(&mut self, number: u64, told: Told, id: Option<JobId>) -> Result<(), String> {
        let known = self.known.entry(number).or_default();
        known.told = told;
        let other = known.id.zip(id).is_some_and(|(known, id)| known != id);
        known.id = known.id.or(id);
        if other {
            return Err(format!("J1: job {number} has another id than its producer was told"));
        }
        if told == Told::NotEnqueued && known.attempts > 0 {
            return Err(format!("J1: job {number} was not enqueued, and runs"));
        }
        self.count(match told {
            Told::Enqueued => "enqueued",
            Told::NotEnqueued => "refused",
            Told::Unknown => "unknown",
        });
        Ok(())
    }

    /// A worker that believes in its session begins an attempt.
    pub fn starts(&mut self, number: u64, job: Job, machine: usize, world: &World) -> Result<(u64, Hand), String> {
        self.number += 1;
        let attempt = self.number;
        let (id, fence) = (job.id(), job.fence());
        let hand: Hand = Arc::new(Mutex::new(Some(job)));
        let Some(known) = self.known.get_mut(&number) else { return Err(format!("J1: nobody enqueued job {number}")) };
        known.attempts += 1;
        if known.told == Told::NotEnqueued {
            return Err(format!("J1: job {number} was not enqueued, and runs"));
        }
        if known.id.is_some_and(|known| known != id) {
            return Err(format!("J1: job {number} is there twice"));
        }
        known.id = Some(id);
        if let Some(how) = known.ended {
            return Err(format!("J3: job {number} was {how}, and runs again"));
        }
        if known.highest.is_some_and(|highest| highest >= fence) {
            let highest = known.highest;
            return Err(format!("J2: fences of one job rise: job {number} had {highest:?} and runs with {fence:?}"));
        }
        known.highest = Some(fence);
        for other in &known.running {
            // One that stood still cannot know how late it is: fences are for that.
            if world.awake_since(other.machine, other.since) && believes(&other.hand) {
                let by = other.machine;
                return Err(format!("J4: two believe in job {number}: machines {by} and {machine}"));
            }
        }
        self.check_rules(number, machine, world)?;
        let Some(known) = self.known.get_mut(&number) else { return Err(format!("J1: nobody enqueued job {number}")) };
        let again = known.attempts > 1;
        known.running.push(Running { number: attempt, machine, since: world.now(), hand: Arc::clone(&hand) });
        self.count(if again { "started again" } else { "started" });
        Ok((attempt, hand))
    }

    /// What its key and its transaction allow.
    fn check_rules(&mut self, number: u64, machine: usize, world: &World) -> Result<(), String> {
        self.rules.starts(number)?;
        for other in self.rules.others(number) {
            let Some(known) = self.known.get(&other) else { continue };
            let believed =
                known.running.iter().find(|one| world.awake_since(one.machine, one.since) && believes(&one.hand));
            if let Some(running) = believed {
                let (by, bound) = (running.machine, self.rules.bound(number));
                return Err(format!(
                    "J7: {bound:?} runs twice: job {other} on machine {by} and job {number} on machine {machine}"
                ));
            }
            let lives = known.attempts > 0 && known.ended.is_none() && !known.may_have_ended;
            if lives && matches!(self.rules.bound(number), Some(Bound::Unique(_))) {
                return Err(format!("J7: job {other} has not ended, and job {number} of its unique key runs"));
            }
        }
        Ok(())
    }

    /// The attempt is over for its worker, before it says so to the queue.
    pub fn stops(&mut self, number: u64, attempt: u64, ends: bool) {
        if let Some(known) = self.known.get_mut(&number) {
            known.running.retain(|running| running.number != attempt);
            known.may_have_ended |= ends;
        }
    }

    /// A worker heard what has become of its answer. `before`: it may have ended before this was sent.
    pub fn answered(
        &mut self,
        number: u64,
        fence: Fence,
        end: &AttemptEnd,
        before: bool,
        finishes: bool,
    ) -> Result<(), String> {
        let Some(known) = self.known.get_mut(&number) else { return Ok(()) };
        let how = match end {
            AttemptEnd::Finished { late: false } => "finished",
            AttemptEnd::Finished { late: true } => "finished late",
            AttemptEnd::Dead => "buried",
            AttemptEnd::Cancelled => "cancelled",
            AttemptEnd::Waits { .. } => "put back",
            AttemptEnd::AnsweredBefore => "answered before",
            _ => "stale",
        };
        let is_over = matches!(end, AttemptEnd::Finished { .. } | AttemptEnd::Dead | AttemptEnd::Cancelled);
        if is_over {
            if known.highest.is_some_and(|highest| highest > fence) {
                return Err(format!("J3: job {number} was {how} by an attempt that was taken away"));
            }
            if known.ended.is_some() {
                return Err(format!("J3: job {number} was {how} after it had ended"));
            }
            known.ended = Some(how);
        } else if finishes && matches!(end, AttemptEnd::Stale(_)) {
            // It changed nothing, so a later attempt or a cancel has to end it, and may have done so by now.
            let by_another = known.cancelling || known.highest.is_some_and(|highest| highest > fence);
            known.may_have_ended &= before || by_another;
        } else {
            known.may_have_ended |= before;
        }
        self.count(how);
        Ok(())
    }

    pub fn may_have_ended(&self, number: u64) -> bool {
        self.known.get(&number).is_some_and(|known| known.may_have_ended)
    }

    /// A cancel was sent, or was answered that the job has ended by it.
    pub fn cancelled(&mut self, number: u64, done: bool) {
        if let Some(known) = self.known.get_mut(&number) {
            known.may_have_ended = true;
            known.cancelling = true;
            if done && known.ended.is_none() {
                known.ended = Some("cancelled");
            }
        }
        self.count("cancelled by a caller");
    }

    /// When all is calm, the last process has claimed it and finishes it.
    pub fn worked_off(&mut self, number: u64) -> Result<(), String> {
        self.count("worked off in the end");
        let Some(known) = self.known.get_mut(&number) else { return Err(format!("J1: nobody enqueued job {number}")) };
        known.may_have_ended = true;
        match known.ended {
            Some(how) => Err(format!("J3: job {number} was {how}, and is there in the end")),
            None => Ok(()),
        }
    }

    /// Some job that its producer was told of, by chance.
    pub fn any(&self, roll: u64) -> Option<(u64, JobId)> {
        let ids: Vec<(u64, JobId)> =
            self.known.iter().filter_map(|(number, known)| Some((*number, known.id?))).collect();
        ids.get(usize::try_from(roll).ok()? % ids.len().max(1)).copied()
    }

    /// Nobody on it runs anything any more.
    pub fn crashed(&mut self, machine: usize) {
        for known in self.known.values_mut() {
            for running in known.running.iter().filter(|running| running.machine == machine) {
                // It goes without a word: what a dead process has in hand it does not give back.
                std::mem::forget(running.hand.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
            known.running.retain(|running| running.machine != machine);
        }
    }

    pub fn see(&mut self, applied: &Applied) {
        match applied.op {
            Op::Put => drop(self.names.insert(applied.name.clone())),
            _ => drop(self.names.remove(&applied.name)),
        }
    }

    /// When all is calm and the queue is empty: what was promised and never came.
    pub fn lost(&self) -> Vec<String> {
        let acknowledged = self.known.iter().filter(|(_, known)| known.told == Told::Enqueued);
        let lost = acknowledged.filter(|(number, known)| {
            known.ended.is_none() && !known.may_have_ended && !self.rules.may_vanish(**number)
        });
        lost.map(|(number, known)| {
            format!("J5: job {number} ({:?}) is lost after {} attempts", known.id, known.attempts)
        })
        .chain(self.rules.missing())
        .collect()
    }

    /// What is left in the inbox.
    pub fn left(&self) -> Vec<&String> {
        self.names.iter().filter(|name| name.contains("/in/") || name.contains("/at/")).collect()
    }
}

fn believes(hand: &Hand) -> bool {
    hand.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(Job::is_ours)
}
