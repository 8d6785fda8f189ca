//! Which of one's own commits have landed, when an answer was lost.

use crate::{
    WriteId,
    job::ledger::{Ledger, SessionId},
};

/// A commit that was sent and whose answer is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) write_id: WriteId,
    /// The revision of the ledger that it was made on.
    pub(crate) base: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This one; the operations of its ticket are answered, and no others.
    Landed(usize),
    /// None, and none can any more: the same operations go into the next commit.
    NotLanded,
    /// Its base is still there, so it may yet land: it is sent again on that base.
    Pending,
    /// The row by which it would be recognised is gone. The operations are answered *unknown*, never *stale*.
    Unknowable,
}

/// Judges attempts by a ledger that was read after they were sent.
///
/// `had_row`: an earlier commit of this session is known to have landed here. `valid`: the session is still believed in,
/// after the read. A session that is valid was never recovered, so a row that was never there has not been removed either.
pub(crate) fn verdict(
    read: &Ledger,
    session: Option<SessionId>,
    attempts: &[Attempt],
    had_row: bool,
    valid: bool,
) -> Verdict {
    let own = session.and_then(|session| read.session(session));
    let is_there = |attempt: &Attempt| {
        read.write_id == attempt.write_id || own.is_some_and(|own| own.last_write == attempt.write_id)
    };
    if let Some(at) = attempts.iter().position(is_there) {
        return Verdict::Landed(at);
    }
    if attempts.iter().any(|attempt| attempt.base >= read.revision) {
        return Verdict::Pending;
    }
    if own.is_some() || (session.is_some() && !had_row && valid) {
        return Verdict::NotLanded;
    }
    Verdict::Unknowable
}
