//! The ledger as a record that is changed by compare-and-swap: where it stands, and how a lost answer is recognised.

use super::{
    layout::Layout,
    ledger::{self, Ledger, Unusable},
};
use crate::{
    Error, Result, WriteId,
    storage::{
        Name,
        cas::{Record, Slot},
    },
};
use bytes::Bytes;
use std::sync::Arc;

/// No ledger is longer; one that would be is not sent.
const LONGEST: usize = 1 << 20;

impl Record for Ledger {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn carries(&self, id: WriteId) -> bool {
        self.carries(id)
    }
}

/// The place of one shard's ledger.
#[derive(Debug, Clone)]
pub(crate) struct LedgerSlot {
    pub(crate) layout: Arc<Layout>,
    pub(crate) queue: Arc<str>,
    pub(crate) shard: u8,
}

impl Slot for LedgerSlot {
    type Record = Ledger;

    fn name(&self) -> Name {
        Name::new(self.layout.ledger(self.shard))
    }

    fn encode(&self, ledger: &Ledger) -> Result<Bytes> {
        let body = ledger::encode(ledger);
        if body.len() > LONGEST {
            let (name, length) = (self.name(), body.len());
            return Err(Error::config(format!(
                "{name} would have {length} bytes, at most {LONGEST} are allowed: let workers take jobs from it first"
            )));
        }
        Ok(body)
    }

    fn decode(&self, body: Bytes) -> Result<Ledger> {
        let name = self.name();
        let ledger = ledger::decode(&body).map_err(|unusable| match unusable {
            Unusable::Later(_) => Error::config(format!("{name} cannot be used: {unusable}")),
            Unusable::Damaged(_) => Error::corrupt(format!(
                "{name} cannot be read: {unusable}; nothing is run from it until it is repaired"
            )),
        })?;
        if *ledger.queue != *self.queue || ledger.shard != self.shard {
            return Err(Error::corrupt(format!(
                "{name} is the ledger of shard {} of {:?}: it was copied or restored to the wrong place",
                ledger.shard, ledger.queue
            )));
        }
        Ok(ledger)
    }
}
