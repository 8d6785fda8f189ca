//! What callers hand in and get back.

use crate::{
    Error, ErrorKind, Fence, Key, LeaseId, Namespace,
    clock::Timestamp,
    duration::millis,
    lease::{Grant, Holder, Loss},
    ttl::in_words,
};
use serde::Serialize;
use std::{fmt, time::Duration};

/// A slot that was granted, and how long to believe in it.
#[derive(Debug, Clone)]
pub struct Slot {
    pub(super) grant: Grant,
    pub(super) number: u32,
}

impl Slot {
    /// The name of the semaphore.
    pub fn name(&self) -> &Key {
        self.grant.key()
    }

    /// The namespace that the semaphore is in.
    pub fn namespace(&self) -> &Namespace {
        self.grant.namespace()
    }

    /// Which lease this is.
    pub fn lease_id(&self) -> LeaseId {
        self.grant.lease_id()
    }

    /// Which slot it is: a number from 0 on that no other holder has at the same time.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The fence: higher than that of every grant before it, of any slot.
    pub fn fence(&self) -> Fence {
        self.grant.fence()
    }

    /// Who holds it.
    pub fn owner(&self) -> &str {
        self.grant.owner()
    }

    /// How long it lasts without being renewed.
    pub fn ttl(&self) -> Duration {
        self.grant.ttl()
    }

    /// When it ends by the wall clock, unless it is renewed.
    pub fn expires_at(&self) -> Timestamp {
        self.grant.expires_at()
    }

    /// Whether this process may still believe in it, by its monotonic clock and by its wall clock.
    pub fn is_valid(&self) -> bool {
        self.grant.is_valid()
    }

    /// How long this process may still believe in it, if it is not paused in between.
    pub fn time_left(&self) -> Duration {
        self.grant.time_left()
    }
}

/// One who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlotHolder {
    /// The number of the slot.
    pub slot: u32,
    /// Who, and until when.
    #[serde(flatten)]
    pub holder: Holder,
    /// Whether this machine's clock says that the holder's time is over, and nothing else says so yet.
    pub may_have_ended: bool,
}

/// Why no slot was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Full {
    /// How many slots there are.
    pub size: u32,
    /// Who has them. Fewer than there are slots if the rest is reserved for processes that wait.
    pub held_by: Vec<SlotHolder>,
    /// How many processes wait.
    pub waiting: usize,
    /// When to ask again.
    #[serde(rename = "retry_after_ms", serialize_with = "millis::serialize")]
    pub retry_after: Duration,
}

/// Printed, it is the rest of a sentence about the semaphore: `full: 3 of 3 slots are held, by a (fence 1), …; retry in 2s`.
impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, size) = (self.held_by.len(), self.size);
        write!(f, "full: {held} of {size} slots are held")?;
        for (at, by) in self.held_by.iter().take(3).enumerate() {
            write!(f, "{}{}", if at == 0 { ", by " } else { ", " }, by.holder)?;
        }
        if held > 3 {
            write!(f, " and {} more", held - 3)?;
        }
        if self.waiting > 0 {
            write!(f, "; waiting processes: {}", self.waiting)?;
        }
        let millis = u64::try_from(self.retry_after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        write!(f, "; retry in {}", in_words(Duration::from_millis(millis)))
    }
}

impl std::error::Error for Full {}

impl Full {
    pub(super) fn into_error(self, name: &Key) -> Error {
        Error::new(ErrorKind::Held, format!("the semaphore {name} is {self}")).with_source(self)
    }
}

impl Error {
    /// Who holds the slots of a semaphore, if this is [`ErrorKind::Held`] of one.
    pub fn full(&self) -> Option<&Full> {
        std::error::Error::source(self)?.downcast_ref()
    }
}

/// What became of a request for a slot.
#[derive(Debug, Clone)]
#[must_use = "a slot that was granted is held until it is released or ends"]
pub enum SlotAcquired {
    /// It is yours.
    Granted(Slot),
    /// There is none, until the deadline if there was one.
    Full(Full),
}

impl SlotAcquired {
    /// The slot, if there is one.
    pub fn granted(self) -> Option<Slot> {
        match self {
            Self::Granted(slot) => Some(slot),
            Self::Full(_) => None,
        }
    }
}

/// What became of a slot that was to be renewed.
#[derive(Debug, Clone)]
#[must_use = "the slot may be lost: what it protects must be stopped then"]
pub enum SlotRenewed {
    /// It is still yours, for another while.
    Renewed(Slot),
    /// It is not yours any more. Stop what it protects.
    Lost(Loss),
}

/// What is known of a semaphore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Its name.
    #[serde(flatten)]
    pub name: Key,
    /// How many may hold it at once.
    pub size: u32,
    /// Who holds it now, by slot.
    pub held_by: Vec<SlotHolder>,
    /// How many processes wait.
    pub waiting: usize,
    /// The fence of the last grant; `None` if there never was one.
    pub last_fence: Option<Fence>,
    /// When it was last changed, by the clock of who changed it.
    #[serde(rename = "written_ms")]
    pub written_at: Timestamp,
}

/// The error of a lost slot.
pub(super) fn lost(loss: Loss, name: &Key) -> Error {
    Error::new(ErrorKind::Lost, format!("the slot of the semaphore {name} is lost: {loss}; stop what it protects"))
        .with_source(loss)
}
