//! What goes wrong, and when: by script for a named test, by seed for a simulation.

use super::generator::bytes;
use leasehold::Generator;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// A write, conditional or not.
    Put,
    /// A read of one object, body or head.
    Get,
    /// One page of a listing.
    List,
    /// A delete, of one object or in bulk.
    Delete,
}

/// What the client receives for a request that went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// An HTTP status, such as 409, 412, 429, 500 or 503.
    Status(u16),
    /// The connection is closed without an answer.
    Drop,
    /// No answer, however long the client waits.
    Hang,
}

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not applied.
    Refuse(Answer),
    /// Applied, and the client is not told of its success.
    Lose(Answer),
    /// The client is answered at once; the request is applied, its condition checked, after this time.
    Late(Duration, Answer),
    /// Applied twice, one after the other; the client sees the second answer.
    Duplicate,
    /// Applied and answered as it should be, after this time.
    Delay(Duration),
    /// Applied at once and answered after this time: what was read is old by then.
    Slow(Duration),
    /// Applied, and the answer breaks off: in the proxy in the middle, elsewhere before its first byte.
    Truncate,
    /// A listing in no order.
    Shuffle,
    /// A listing from which entries are missing.
    Gap,
    /// A listing that does not have the latest writes.
    Stale,
    /// A body with a flipped bit.
    Corrupt,
}

impl Fault {
    /// A stable name, for counting faults by kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refuse(Answer::Status(409)) => "refuse_409",
            Self::Refuse(Answer::Status(412)) => "refuse_412",
            Self::Refuse(Answer::Status(429)) => "refuse_429",
            Self::Refuse(Answer::Status(500)) => "refuse_500",
            Self::Refuse(Answer::Status(503)) => "refuse_503",
            Self::Refuse(_) => "refuse",
            Self::Lose(_) => "lose",
            Self::Late(..) => "late",
            Self::Duplicate => "duplicate",
            Self::Delay(_) => "delay",
            Self::Slow(_) => "slow",
            Self::Truncate => "truncate",
            Self::Shuffle => "shuffle",
            Self::Gap => "gap",
            Self::Stale => "stale",
            Self::Corrupt => "corrupt",
        }
    }

    fn suits(&self, op: Op) -> bool {
        match self {
            Self::Refuse(_) | Self::Delay(_) | Self::Slow(_) | Self::Truncate => true,
            Self::Lose(_) | Self::Late(..) | Self::Duplicate => matches!(op, Op::Put | Op::Delete),
            Self::Shuffle | Self::Gap | Self::Stale => op == Op::List,
            Self::Corrupt => op == Op::Get,
        }
    }
}

/// A permanent defect of a store. A store with any of these is not safe for leases: the probe refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flaw {
    /// Every conditional write is carried out as if it had no condition.
    IgnoresPreconditions,
    /// The condition is checked, and the write made a moment later, with no lock around the two: racing writers all win.
    ChecksThenWrites,
    /// An update of an object that does not exist creates it.
    UpdatesTheMissing,
    /// The first read after an overwrite returns what was there before.
    StaleReads,
}

/// A scripted fault: the requests of one kind whose name contains `name`, after the first `skip` of them, `times` long.
#[derive(Debug, Clone)]
pub struct Rule {
    op: Op,
    name: String,
    skip: usize,
    times: usize,
    fault: Fault,
}

impl Rule {
    /// Once, at the next request of this kind.
    pub fn once(op: Op, fault: Fault) -> Self {
        Self { op, name: String::new(), skip: 0, times: 1, fault }
    }

    /// At every request of this kind from now on.
    pub fn always(op: Op, fault: Fault) -> Self {
        Self { times: usize::MAX, ..Self::once(op, fault) }
    }

    /// Only for objects whose name contains this.
    #[must_use]
    pub fn on(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Lets so many matching requests pass first.
    #[must_use]
    pub fn after(mut self, requests: usize) -> Self {
        self.skip = requests;
        self
    }

    /// So many times, one after the other.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }
}

/// How often each seeded fault happens, in thousandths of the requests that it suits.
#[derive(Debug, Clone, Default)]
pub struct Rates(Vec<(Fault, u32)>);

impl Rates {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a fault that happens to `per_mille` of the requests that it suits.
    #[must_use]
    pub fn with(mut self, fault: Fault, per_mille: u32) -> Self {
        self.0.push((fault, per_mille));
        self
    }
}

/// Decides what goes wrong with each request: scripted rules first, then chance.
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    dice: Option<(Box<dyn Generator>, Rates)>,
    injected: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Nothing goes wrong until told so.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a rule; of several that match, the oldest one acts.
    pub fn script(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// From now on faults also happen at random, at these rates.
    pub fn roll(&self, generator: impl Generator, rates: Rates) {
        self.lock().dice = Some((Box::new(generator), rates));
    }

    /// Nothing goes wrong any more.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.rules.clear();
        state.dice = None;
    }

    /// How many faults of each kind have happened.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.lock().injected.clone()
    }

    /// The fault for a request that has just come in, if any.
    pub fn next(&self, op: Op, name: &str) -> Option<Fault> {
        let mut state = self.lock();
        let fault = state.scripted(op, name).or_else(|| state.rolled(op))?;
        *state.injected.entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn scripted(&mut self, op: Op, name: &str) -> Option<Fault> {
        self.rules.retain(|rule| rule.times > 0);
        for rule in self.rules.iter_mut().filter(|rule| rule.op == op && name.contains(&rule.name)) {
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times = if rule.times == usize::MAX { usize::MAX } else { rule.times - 1 };
            return Some(rule.fault);
        }
        None
    }

    fn rolled(&mut self, op: Op) -> Option<Fault> {
        let (generator, rates) = self.dice.as_ref()?;
        let mut roll = u32::from_le_bytes(bytes(&**generator)) % 1000;
        for (fault, per_mille) in rates.0.iter().filter(|(fault, _)| fault.suits(op)) {
            if roll < *per_mille {
                return Some(*fault);
            }
            roll -= per_mille;
        }
        None
    }
}
