//! Publishing the events of jobs: after the commit in which they happened, beside the next one. While their stream cannot be
//! written, they move from the ledger to objects of `seg/`, so that the ledger does not grow.

use super::{Shard, seg::new_segment};
use crate::{
    Result,
    job::{
        apply::Op,
        events::{self, Told},
        id::{Class, SegmentId},
        layout::{Place, SegmentName},
        ledger::Ledger,
    },
    storage::Name,
    stream::Streams,
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, MutexGuard, PoisonError},
};

/// More events than this do not wait in the ledger.
const WAITING: usize = 1000;

/// What of the outbox this process has in hand.
#[derive(Debug, Default)]
pub(in crate::job) struct Publishing {
    /// Events up to this one are in hand or published.
    taken: u64,
    /// Events up to this one are published.
    published: u64,
    /// What is to be published, with the number of its last event.
    batches: Vec<(u64, Vec<Told>)>,
    /// Objects of `seg/` that are to be published, and all that were taken.
    spills: Vec<SegmentId>,
    seen: HashSet<SegmentId>,
    /// The last try has failed.
    failing: bool,
    running: bool,
}

fn state(shard: &Shard) -> MutexGuard<'_, Publishing> {
    shard.publishing.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(shard: &Shard, ledger: &Ledger, after: u64) -> Option<(u64, Vec<Told>)> {
    let segments = &shard.queue.shared.segments;
    let id = |segment: SegmentId, index: u16| {
        let known = segments.known(segment).and_then(|loaded| loaded.table.id(index));
        known.unwrap_or_else(|| segment.job(index))
    };
    let new = || ledger.outbox.iter().filter(|event| event.number > after);
    let last = new().next_back()?.number;
    Some((last, new().flat_map(|event| events::told(&shard.queue.name, shard.number, event, id)).collect()))
}

/// Takes what is new in the outbox, while it is known which jobs it is about, and publishes it.
pub(super) fn publish(shard: &Arc<Shard>, ledger: &Ledger) {
    let mut publishing = state(shard);
    if ledger.next_event <= publishing.taken {
        // Another ledger than the one that was known: it was made anew.
        (publishing.taken, publishing.published) = (0, 0);
    }
    if ledger.outbox.first().is_some_and(|event| event.number <= publishing.published) {
        // The commit that should have taken them out has failed.
        shard.ride([Op::Published { through: publishing.published }]);
    }
    publishing.seen.retain(|spill| ledger.outbox_spills.contains(spill));
    for spill in &ledger.outbox_spills {
        if publishing.seen.insert(*spill) {
            publishing.spills.push(*spill);
        }
    }
    // What has left the outbox is published, or will be from the object that it stands in now.
    let oldest = ledger.outbox.first().map_or(ledger.next_event, |event| event.number);
    publishing.batches.retain(|(last, _)| *last >= oldest);
    if let Some(batch) = tell(shard, ledger, publishing.taken) {
        publishing.taken = batch.0;
        publishing.batches.push(batch);
    }
    let idle = publishing.batches.is_empty() && publishing.spills.is_empty();
    if idle || std::mem::replace(&mut publishing.running, true) {
        return;
    }
    drop(publishing);
    let shared = &shard.queue.shared;
    shared.tasks.spawn_on(run(Arc::clone(shard)), &shared.runtime);
}

/// One object, or all that waits in the ledger, at a time, and what is older first.
async fn run(shard: Arc<Shard>) {
    loop {
        let (spill, batches) = {
            let mut publishing = state(&shard);
            publishing.failing = false;
            let spill = (!publishing.spills.is_empty()).then(|| publishing.spills.remove(0));
            let batches = if spill.is_some() { Vec::new() } else { std::mem::take(&mut publishing.batches) };
            if spill.is_none() && batches.is_empty() {
                publishing.running = false;
                return;
            }
            (spill, batches)
        };
        let done = match spill {
            Some(spill) => publish_spill(&shard, spill).await,
            None => append(&shard, batches.iter().flat_map(|(_, told)| told)).await,
        };
        if let Err(error) = done {
            // They stay in the ledger as well: whoever commits after this process publishes them.
            tracing::warn!(%error, queue = %shard.queue.name, "events of jobs could not be published: tried again after the next commit");
            let mut publishing = state(&shard);
            (publishing.failing, publishing.running) = (true, false);
            publishing.spills.splice(0..0, spill);
            publishing.batches.splice(0..0, batches);
            return;
        }
        match spill {
            Some(segment) => shard.ride([Op::SpillPublished { segment }]),
            None => {
                let through = batches.last().map_or(0, |(through, _)| *through);
                state(&shard).published = through;
                shard.ride([Op::Published { through }]);
            }
        }
    }
}

async fn append(shard: &Shard, told: impl Iterator<Item = &Told>) -> Result<()> {
    let streams = Streams::new(Arc::clone(&shard.queue.shared.streams), shard.queue.namespace.clone());
    let mut by_stream: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for told in told {
        by_stream.entry(&told.stream).or_default().push(told.draft());
    }
    for (stream, drafts) in by_stream {
        streams.stream(stream)?.publish_many(drafts).await?;
    }
    Ok(())
}

fn path(shard: &Shard, segment: SegmentId) -> Option<Name> {
    shard.queue.layout.segment(&SegmentName { id: segment, place: Place::Seg, jobs: 0 }).map(Name::new)
}

async fn publish_spill(shard: &Shard, segment: SegmentId) -> Result<()> {
    let Some(path) = path(shard, segment) else { return Ok(()) };
    let Some(there) = shard.queue.backend().get_large(&path).await? else {
        tracing::error!(%path, "events that waited for their stream are gone");
        return Ok(());
    };
    append(shard, events::from_lines(&there.body)?.iter()).await
}

/// Moves events that cannot be published to an object, if there are many.
pub(super) async fn spill(shard: &Shard, ledger: &Ledger) -> Result<Option<Op>> {
    if ledger.outbox.len() <= WAITING || !state(shard).failing {
        return Ok(None);
    }
    let Some((from, (through, told))) = ledger.outbox.first().map(|first| first.number).zip(tell(shard, ledger, 0))
    else {
        return Ok(None);
    };
    let segment = new_segment(shard, Class::Normal);
    let Some(path) = path(shard, segment) else { return Ok(None) };
    shard.put_confirmed(&path, &events::to_lines(&told)?).await?;
    Ok(Some(Op::SpillEvents { segment, epoch: ledger.gc_epoch, from, through }))
}
