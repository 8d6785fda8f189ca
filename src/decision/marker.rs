//! The marker of a decision, and the arithmetic of its age, in one place.

use super::{Decision, MARKER_RETENTION, MAX_TXN_AGE, TxnId, layout};
use crate::{
    Error, Hour, Result, WriteId,
    clock::Timestamp,
    shared::SharedSettings,
    storage::{
        Clocks, Name,
        cas::{Record, Slot},
        seal::{seal, unseal},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The format of a marker that names no segments.
const FORMAT: u32 = 1;

/// The format of one that does: an earlier version would delete it while they wait, so it must refuse it.
const NAMING_SEGMENTS: u32 = 2;

/// What stands under `.txn-decisions/m/<txn>`: written once and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) format: u32,
    pub(crate) txn: TxnId,
    pub(crate) write_id: WriteId,
    pub(crate) decision: Decision,
    /// Who decided, as it calls itself.
    pub(crate) by: String,
    pub(crate) decided_ms: i64,
    pub(crate) expires_ms: i64,
    /// Objects with jobs that hang on the decision: it is kept for as long as one of them is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) segments: Vec<String>,
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Marker {
    pub(crate) fn new(
        txn: TxnId,
        write_id: WriteId,
        decision: Decision,
        by: &str,
        decided: Timestamp,
        expires: Timestamp,
    ) -> Self {
        let (decided_ms, expires_ms, by) = (decided.as_millis(), expires.as_millis(), by.to_owned());
        Self { format: FORMAT, txn, write_id, decision, by, decided_ms, expires_ms, segments: Vec::new() }
    }

    /// Jobs hang on it.
    pub(crate) fn naming(self, segments: &[String]) -> Self {
        let format = if segments.is_empty() { FORMAT } else { NAMING_SEGMENTS };
        Self { format, segments: segments.to_vec(), ..self }
    }

    pub(crate) fn expires(&self) -> Timestamp {
        Timestamp::from_millis(self.expires_ms)
    }
}

impl Record for Marker {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    // Written once.
    fn revision(&self) -> u64 {
        1
    }
}

/// What all processes have alike for decisions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max_clock_skew: Duration,
    pub(crate) margin: Duration,
    pub(crate) max_txn_age: Duration,
    pub(crate) retention: Duration,
}

impl Bounds {
    pub(crate) fn of(shared: &SharedSettings) -> Self {
        Self {
            max_clock_skew: shared.max_clock_skew,
            margin: shared.margin,
            max_txn_age: shared.of(&MAX_TXN_AGE),
            retention: shared.of(&MARKER_RETENTION),
        }
    }
}

/// The ages of one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ages {
    begun: Timestamp,
    bounds: Bounds,
}

impl Ages {
    pub(crate) fn of(txn: TxnId, bounds: &Bounds) -> Self {
        Self { begun: txn.begun(), bounds: *bounds }
    }

    /// From here on no decision may be written any more.
    pub(crate) fn closes(&self) -> Timestamp {
        self.begun.plus(self.bounds.max_txn_age)
    }

    /// From here on no write can land any more that anybody could believe in: what is not there now is forgotten.
    pub(crate) fn ends(&self) -> Timestamp {
        self.closes().plus(self.bounds.margin)
    }

    /// A verdict that is reached from here on comes too late to be believed: another process may already have answered
    /// that there is no decision.
    pub(crate) fn verdict_by(&self) -> Timestamp {
        self.ends().minus(self.bounds.max_clock_skew)
    }

    /// Ids from the future are refused: their age would be wrong.
    pub(crate) fn has_begun(&self, now: Timestamp) -> bool {
        self.begun <= now.plus(self.bounds.max_clock_skew)
    }

    /// Until when a marker that is written now must live.
    pub(crate) fn expiry(&self, decided: Timestamp) -> Timestamp {
        self.ends().max(decided.plus(self.bounds.retention))
    }

    /// It cannot be decided any more, and what the store receives from now on is void.
    pub(crate) fn are_over(&self, clocks: &Clocks) -> bool {
        // A store rounds its times down: what comes within a grain of the end looks punctual.
        clocks.are_past(self.ends()) && clocks.store_is_past(self.ends().plus(clocks.grain))
    }

    /// A marker that the store received after the end is void, also our own: its writer was suspended between its
    /// check and its write, or its clock is slow.
    pub(crate) fn is_void(&self, modified: Option<Timestamp>) -> bool {
        modified.is_some_and(|modified| modified > self.ends())
    }
}

/// Where the marker of a transaction stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkerSlot(pub(crate) TxnId);

impl MarkerSlot {
    /// Its entry in the hour in which it expires.
    pub(crate) fn entry(&self, expires: Timestamp) -> Result<(Name, Bytes)> {
        let hour = Hour::of(expires)?;
        Ok((layout::entry(self.0, hour), layout::entry_body(self.0, expires)))
    }
}

impl Slot for MarkerSlot {
    type Record = Marker;

    fn name(&self) -> Name {
        layout::marker(self.0)
    }

    fn encode(&self, marker: &Marker) -> Result<Bytes> {
        let body = seal(marker);
        Ok(body.map_err(|error| Error::corrupt("a decision cannot be written down").with_source(error))?.into())
    }

    fn decode(&self, body: Bytes) -> Result<Marker> {
        let unreadable = |error| {
            let advice = "nothing is decided about it until an operator has looked";
            Error::corrupt(format!("the decision {} cannot be read; {advice}", self.name())).with_source(error)
        };
        // A later format may be sealed in another way.
        let Head { format } = serde_json::from_slice(&body).map_err(unreadable)?;
        if format > NAMING_SEGMENTS {
            return Err(Error::config(format!(
                "the decision {} has format {format}, this version knows {NAMING_SEGMENTS}: use a newer version of leasehold",
                self.name(),
            )));
        }
        let marker: Marker = unseal(&body).map_err(unreadable)?;
        if marker.txn != self.0 {
            return Err(Error::corrupt(format!(
                "the decision {} is that of another transaction, {}: it was copied or restored to the wrong place",
                self.name(),
                marker.txn
            )));
        }
        Ok(marker)
    }
}
