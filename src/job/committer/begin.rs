//! What trackers begin: written to one object of `seg/` and claimed by the same commit, however many callers there are.

use super::{Desk, Given, Granted, Pending, Shard, Waits, claim_id};
use crate::{
    Error, Result,
    clock::Timestamp,
    job::{
        apply::{Begin, Begun, Op, Outcome},
        duty::InHand,
        id::Class,
        ledger::{Ledger, Range},
        segment::NewJob,
        session::Session,
    },
};
use std::{collections::HashSet, sync::Arc};
use tokio::sync::oneshot;

/// Jobs that one object has at the most, and about as many bytes.
pub(crate) const MOST_JOBS: usize = 2000;
pub(crate) const MOST_BYTES: usize = 4 << 20;

/// A job to be begun, with the hash of its id.
#[derive(Debug, Clone)]
pub(crate) struct ToBegin {
    pub(crate) hash: u64,
    pub(crate) job: NewJob,
}

impl ToBegin {
    pub(crate) fn weight(&self) -> usize {
        96 + self.job.parts.iter().map(|(name, body)| name.len() + body.len() + 16).sum::<usize>()
    }
}

/// Makes it durable that this process has these jobs in hand. Withdrawn if the caller goes away before it is sent.
pub(crate) async fn begin(shard: &Arc<Shard>, jobs: Vec<ToBegin>) -> Result<Granted> {
    let (reply, told) = oneshot::channel();
    let claim = claim_id(&*shard.queue.backend().generator);
    shard.submit(Pending::new(Vec::new(), Waits::Begin { claim, jobs, reply }));
    match shard.wait_for(told, "begun").await? {
        Given::Jobs(granted) => Ok(granted),
        Given::Nothing { .. } => Err(Error::unavailable("nothing was begun: try again")),
    }
}

pub(super) fn has_begins(pending: &[Pending]) -> bool {
    pending.iter().any(|pending| matches!(pending.waits, Waits::Begin { .. }))
}

/// Writes what is begun to one object, anew for each commit that is prepared: an earlier one may be gone.
///
/// An id that two callers begin at the same time is in two commits: each attempt has a fence of its own.
pub(super) async fn write(shard: &Shard, ledger: &Ledger, pending: &mut [Pending]) -> Result<()> {
    let now = Timestamp::from_millis(shard.now());
    let (mut places, mut jobs) = (Vec::new(), Vec::new());
    let (mut hashes, mut known, mut bytes) = (Vec::new(), HashSet::new(), 0);
    for (at, pending) in pending.iter_mut().enumerate() {
        let Waits::Begin { jobs: mine, claim, .. } = &pending.waits else { continue };
        pending.ops.clear();
        let weight: usize = mine.iter().map(ToBegin::weight).sum();
        let full = jobs.len() + mine.len() > MOST_JOBS || bytes + weight > MOST_BYTES;
        if !jobs.is_empty() && (full || mine.iter().any(|one| known.contains(&one.hash))) {
            continue;
        }
        let from = hashes.len();
        for one in mine {
            hashes.push(one.hash);
            known.insert(one.hash);
            // Callers have read the clock at different times: a segment is sorted by due time, and these must stay in order.
            jobs.push(NewJob { due: now, ..one.job.clone() });
        }
        bytes += weight;
        places.push((at, *claim, from..hashes.len()));
    }
    if places.is_empty() {
        return Ok(());
    }
    let (segment, encoded) = shard.put_seg(Class::Normal, &jobs).await?;
    // All are alike in priority and due time, so they stay in their order.
    let in_order = encoded.indexes.iter().enumerate().all(|(at, index)| at == usize::from(*index));
    if !in_order {
        return Err(Error::corrupt("a segment of tracked jobs is not in the order in which they were begun"));
    }
    let begun = Arc::new(Begun { segment, epoch: ledger.gc_epoch, hashes });
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    for (at, claim, range) in places {
        let range = Range { from: short(range.start), to: short(range.end) };
        pending[at].ops = vec![Op::Begin(Begin { claim, begun: Arc::clone(&begun), range })];
    }
    Ok(())
}

/// What has become of what was begun; handed back if it has to be written again.
pub(super) fn tell(
    shard: &Arc<Shard>,
    desk: &mut Desk,
    pending: Pending,
    outcomes: &[Outcome],
    session: Option<&Arc<Session>>,
) -> Option<Pending> {
    let outcome = outcomes.first();
    let again = match outcome {
        None | Some(Outcome::WriteAgain | Outcome::NothingToClaim(_)) => true,
        Some(Outcome::Full(_)) => {
            desk.full = true;
            true
        }
        Some(_) => false,
    };
    if again {
        return Some(pending);
    }
    let Waits::Begin { reply, .. } = pending.waits else { return None };
    let (Some(Outcome::Claimed { claim, fence, jobs }), Some(session)) = (outcome, session) else {
        drop(reply.send(Err(Error::unknown(format!("what was begun got the outcome {outcome:?}: look at it")))));
        return None;
    };
    if !session.is_valid() {
        drop(reply.send(Err(Error::unavailable("the session ended while jobs were begun: begin them again"))));
        return None;
    }
    desk.hand.insert(*claim, InHand::new(&shard.queue));
    let (jobs, session) = (jobs.clone(), Arc::clone(session));
    let granted = Granted { claim: *claim, fence: *fence, jobs, session, shard: Arc::clone(shard) };
    // Not heard by anybody, it is handed back as it is dropped.
    drop(reply.send(Ok(Given::Jobs(granted))));
    None
}
