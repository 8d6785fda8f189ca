//! What sessions add to the rules: when one has ended, who may give back a lease that is held under it, and how its process
//! is asked for one.
//!
//! # What could go wrong
//! - *A renewal on its way revives a session* that looked expired, after a lease under it was taken over. So looking
//!   expired is not an end: whoever finds it clears the session's record by compare-and-swap first, which the renewal then
//!   loses to ([`standing`] knows no end by time).
//! - *The clear is in doubt.* Then it is not one, and nothing is taken over.
//! - *The record is not there.* A first grant, or a restored record, could still arrive; so the record is made, without a
//!   lease, by create-if-absent: only that proves it.
//! - *A lease under a living session is taken away, or given back from elsewhere*: its holder never touches that record
//!   again, and would go on for as long as its session. So others can only ask ([`ask`]); the request stands in the
//!   session's record until its process has met it ([`answered`]).

use super::Change;
use crate::{
    Error, LeaseId, ProcessId, Result,
    lease::record::{Asked, Lease, Record, SessionName},
};
use std::collections::BTreeSet;

/// So many requests stand in a session's record at the most. Its process meets them with its next renewal.
pub(crate) const MOST_ASKED: usize = 256;

/// What the record of a session says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// For good: nothing that is on its way can bring it back.
    Ended,
    /// There is no record. Making one proves that it has ended.
    Missing,
    /// It goes on, whatever clocks say, until its record is cleared.
    Alive,
}

/// What its record says about a session.
pub(crate) fn standing(record: Option<&Record>, session: SessionName) -> Standing {
    match record {
        None => Standing::Missing,
        Some(record) if record.lease.as_ref().is_some_and(|lease| lease.id == session.lease) => Standing::Alive,
        Some(_) => Standing::Ended,
    }
}

/// A lease under a session goes on with it, and must not get an end of its own.
pub(super) fn may_renew(lease: &Lease) -> Result<()> {
    match lease.session {
        None => Ok(()),
        Some(session) => Err(Error::invalid(format!(
            "the lease is held under the session {}, which keeps it alive: it is not renewed by itself",
            session.id
        ))),
    }
}

/// Only the process of a session gives back what is held under it: nothing would tell the holder.
pub(super) fn may_release(lease: &Lease, process: ProcessId) -> Result<()> {
    match lease.session {
        Some(session) if lease.process != process => Err(Error::invalid(format!(
            "the lease is held under the session {} of another process, which alone can give it back: force the release to \
             ask it to",
            session.id
        ))),
        _ => Ok(()),
    }
}

/// How asking for a lease ends if nothing is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAsked {
    /// The session has ended: there is no process to ask.
    Ended,
    /// The request stands there already.
    Already,
    /// There are too many.
    TooMany,
}

/// Whether a lease can be asked for in the record of its session, by a write that leaves the session's own lease alone.
pub(crate) fn ask(record: Option<&Record>, session: SessionName, lease: LeaseId) -> Option<NotAsked> {
    let Some(record) = record.filter(|record| standing(Some(record), session) == Standing::Alive) else {
        return Some(NotAsked::Ended);
    };
    if record.asked.iter().any(|asked| asked.away.lease == lease) {
        return Some(NotAsked::Already);
    }
    (record.asked.len() >= MOST_ASKED).then_some(NotAsked::TooMany)
}

/// The requests that a renewal leaves in the session's record: all that its process has not met yet.
pub(crate) fn answered(plan: &mut Change, met: &BTreeSet<LeaseId>) {
    plan.asked.retain(|asked: &Asked| !met.contains(&asked.away.lease));
}
