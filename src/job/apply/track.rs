//! Jobs that another system runs: claimed from birth by the process that begins them.
//!
//! An id that is begun again is taken over: whoever had it before has it no more, and the new attempt has a higher fence.
//! Ids are compared by a hash of 64 bits, which the row keeps for each of its jobs.

use super::{
    Full, Idle, Outcome,
    work::{End, Work, count},
};
use crate::job::{
    id::SegmentId,
    layout::{Place, SegmentName},
    ledger::{Bits, ClaimId, Item, Range, Run, Traits},
};
use std::{collections::HashSet, sync::Arc};

/// An object of `seg/` that was written for what is begun together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) segment: SegmentId,
    /// The `gc_epoch` of the ledger that was read before the object was written.
    pub(crate) epoch: u64,
    /// Hashes of the ids, by index.
    pub(crate) hashes: Vec<u64>,
}

/// Jobs of one caller among those that are begun together.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) claim: ClaimId,
    pub(crate) begun: Arc<Begun>,
    pub(crate) range: Range,
}

pub(super) fn begin(work: &mut Work<'_>, begin: &Begin) -> Outcome {
    let Some(session) = work.context.session.as_ref().map(|ticket| ticket.id).filter(|_| !work.closing) else {
        return Outcome::NothingToClaim(Idle::NoSession);
    };
    if work.claim_position(begin.claim).is_some() {
        return Outcome::Nothing;
    }
    let Begun { segment, epoch, hashes } = &*begin.begun;
    let jobs = u16::try_from(hashes.len()).unwrap_or(0);
    if begin.range.to > jobs || begin.range.len() == 0 {
        return Outcome::Mismatch;
    }
    let at = match work.position(*segment) {
        // Others of the same commit stand in it.
        Some(at) if work.ledger.rows[at].number >= work.first_new => at,
        Some(_) => return Outcome::WriteAgain,
        None => {
            if *epoch != work.ledger.gc_epoch || segment.shard() != work.ledger.shard {
                return Outcome::WriteAgain;
            }
            if work.ledger.rows.len() >= work.context.caps.rows {
                return Outcome::Full(Full::Rows);
            }
            // What is in hand must be able to come back: 48 bytes each.
            if work.weight() + hashes.len() * 56 > work.context.caps.longest - (64 << 10) {
                return Outcome::Full(Full::Size);
            }
            let name = SegmentName { id: *segment, place: Place::Seg, jobs };
            let Some(at) = work.add_row(name) else { return Outcome::Full(Full::Rows) };
            work.ledger.rows[at].tracked.clone_from(hashes);
            at
        }
    };
    let own = usize::from(begin.range.from)..usize::from(begin.range.to);
    take_over(work, &hashes[own].iter().copied().collect());
    work.ledger.rows[at].open += begin.range.len();
    count(&mut work.ledger.counters.absorbed, begin.range.len());
    let traits = Traits { due: work.now, ..Traits::default() };
    let run = Run { from: begin.range.from, to: begin.range.to, traits };
    let open = Bits::first(begin.range.len());
    let item = Item { row: work.ledger.rows[at].number, run, open, alone: false };
    work.grant(begin.claim, session, vec![item])
}

/// Takes ids from whoever has them: from a process, dead or alive, or from those that wait to be recovered.
fn take_over(work: &mut Work<'_>, hashes: &HashSet<u64>) {
    let mut found = Vec::new();
    for (at, row) in work.ledger.rows.iter().enumerate() {
        let same = row.tracked.iter().enumerate().filter(|(_, known)| hashes.contains(known));
        found.extend(same.filter_map(|(index, _)| Some((at, u16::try_from(index).ok()?))));
    }
    for (at, index) in found {
        let number = work.ledger.rows[at].number;
        if work.take_waiting(at, index).is_some() {
            work.end(at, index, End::Moved, None);
            continue;
        }
        let has = |item: &&mut Item| {
            item.row == number && item.run.range().contains(index) && item.open.contains(index - item.run.from)
        };
        if let Some(item) = work.ledger.claims.iter_mut().flat_map(|claim| &mut claim.items).find(has) {
            item.open.take(index - item.run.from);
            work.end(at, index, End::Moved, None);
        }
    }
}
