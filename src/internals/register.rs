//! One number under compare-and-swap: the smallest thing that can be wrong, for tests of stores.

use crate::{
    Error, Result, Store, WriteId,
    storage::{
        Backend, Name,
        cas::{self, Cas, Outcome, Record, Seen, Slot, Stamp},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A number in a store, changed only by compare-and-swap.
#[derive(Debug, Clone)]
pub struct Register {
    backend: Arc<Backend>,
    slot: NumberSlot,
}

/// What a register held, and the right to change it from there.
#[derive(Debug, Clone)]
pub struct Reading(Seen<Number>);

impl Reading {
    /// The number.
    pub fn value(&self) -> u64 {
        self.0.record().value
    }

    /// How often it was written.
    pub fn revision(&self) -> u64 {
        self.0.record().revision
    }

    /// Which attempt wrote it.
    pub fn write_id(&self) -> WriteId {
        self.0.record().write_id
    }
}

/// How an attempt to change a register ended.
#[derive(Debug)]
pub enum Verdict {
    /// The change is in the store; `attempt` says which of the swap's attempts it was, from 1.
    Won {
        /// What is in the store now.
        reading: Reading,
        /// The attempt that landed.
        attempt: u32,
    },
    /// Another writer changed it; this swap can change nothing any more.
    Lost(Option<Reading>),
    /// An attempt may have landed or may yet land.
    Unknown(Error),
}

impl Register {
    /// The register of this name (`[a-z0-9-]`).
    pub fn new(store: &Store, name: &str) -> Self {
        let slot = NumberSlot(Name::new(format!(".leasehold/register/{name}")));
        Self { backend: Arc::clone(store.backend()), slot }
    }

    /// The name of its object below the store's prefix.
    pub fn object_name(&self) -> String {
        self.slot.0.to_string()
    }

    /// What it holds; `None` if it was never written.
    pub async fn read(&self) -> Result<Option<Reading>> {
        Ok(cas::read(&self.backend, &self.slot).await?.map(Reading))
    }

    /// Begins to change it from what was read; from nothing if `base` is `None`.
    pub fn swap(&self, base: Option<Reading>) -> Swap {
        let cas = Cas::new(Arc::clone(&self.backend), self.slot.clone(), base.map(|base| base.0));
        Swap { cas, attempts: 0 }
    }

    /// Adds one, however often that takes, and returns the reading that this very call made.
    pub async fn increment(&self) -> Result<Reading> {
        loop {
            let mut swap = self.swap(self.read().await?);
            let value = swap.cas.base().map_or(0, |number| number.value) + 1;
            let mut retries = 0;
            loop {
                match swap.attempt(value).await {
                    Verdict::Won { reading, .. } => return Ok(reading),
                    Verdict::Lost(_) => break,
                    Verdict::Unknown(error) if error.is_retryable() && retries < 10 => {
                        self.backend.pause(retries).await;
                        retries += 1;
                    }
                    Verdict::Unknown(error) => return Err(error),
                }
            }
        }
    }
}

/// One change of a register, attempted until it is settled.
#[derive(Debug)]
pub struct Swap {
    cas: Cas<NumberSlot, u32>,
    attempts: u32,
}

impl Swap {
    /// Tries to write `value`.
    pub async fn attempt(&mut self, value: u64) -> Verdict {
        self.attempts += 1;
        let build = |_: Option<&Number>, Stamp { write_id, revision }| Number { write_id, revision, value };
        verdict(self.cas.attempt(self.attempts, build).await)
    }

    /// Looks what became of the attempts so far, without another one.
    pub async fn look(&mut self) -> Verdict {
        verdict(self.cas.settle(Error::unknown("not settled yet")).await)
    }
}

fn verdict(outcome: Outcome<Number, u32>) -> Verdict {
    match outcome {
        Outcome::Won(seen, attempt) => Verdict::Won { reading: Reading(seen), attempt },
        Outcome::Lost(seen) => Verdict::Lost(seen.map(Reading)),
        Outcome::Unknown(error) => Verdict::Unknown(error),
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Number {
    write_id: WriteId,
    revision: u64,
    value: u64,
}

impl Record for Number {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Debug, Clone)]
struct NumberSlot(Name);

impl Slot for NumberSlot {
    type Record = Number;

    fn name(&self) -> Name {
        self.0.clone()
    }

    fn encode(&self, number: &Number) -> Result<Bytes> {
        let body = serde_json::to_vec(number);
        Ok(body.map_err(|error| Error::corrupt("a register cannot be written down").with_source(error))?.into())
    }

    fn decode(&self, body: Bytes) -> Result<Number> {
        let number = serde_json::from_slice(&body);
        number.map_err(|error| Error::corrupt(format!("{} cannot be read", self.0)).with_source(error))
    }
}
