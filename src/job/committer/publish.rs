//! Publishing the events of jobs: after the commit in which they happened, beside the next one.

use super::Shard;
use crate::{
    Result,
    job::{apply::Op, events, id::SegmentId, ledger::Ledger},
    stream::{Draft, Streams},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
};

/// What of the outbox this process has in hand.
#[derive(Debug, Default)]
pub(in crate::job) struct Publishing {
    /// Events up to this one are in hand or published.
    taken: u64,
    /// Events up to this one are published.
    published: u64,
    /// The last event of each batch, and its messages with their streams.
    drafts: Vec<(u64, Vec<(String, Draft)>)>,
    running: bool,
}

fn state(shard: &Shard) -> MutexGuard<'_, Publishing> {
    shard.publishing.lock().unwrap_or_else(PoisonError::into_inner)
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
    let taken = publishing.taken;
    let new: Vec<_> = ledger.outbox.iter().filter(|event| event.number > taken).collect();
    if let Some(last) = new.last() {
        let segments = &shard.queue.shared.segments;
        let id = |segment: SegmentId, index: u16| {
            let known = segments.known(segment).and_then(|loaded| loaded.table.id(index));
            known.unwrap_or_else(|| segment.job(index))
        };
        let drafts = new.iter().flat_map(|event| events::drafts(&shard.queue.name, shard.number, event, id));
        publishing.taken = last.number;
        publishing.drafts.push((last.number, drafts.collect()));
    }
    if publishing.drafts.is_empty() || std::mem::replace(&mut publishing.running, true) {
        return;
    }
    drop(publishing);
    let shared = &shard.queue.shared;
    shared.tasks.spawn_on(run(Arc::clone(shard)), &shared.runtime);
}

async fn run(shard: Arc<Shard>) {
    loop {
        let batch = {
            let mut publishing = state(&shard);
            if publishing.drafts.is_empty() {
                publishing.running = false;
                return;
            }
            std::mem::take(&mut publishing.drafts)
        };
        match append(&shard, &batch).await {
            Ok(()) => {
                let through = batch.iter().map(|(through, _)| *through).max().unwrap_or(0);
                state(&shard).published = through;
                shard.ride([Op::Published { through }]);
            }
            Err(error) => {
                // They stay in the ledger as well: whoever commits after this process publishes them.
                tracing::warn!(%error, queue = %shard.queue.name, "events of jobs could not be published: tried again after the next commit");
                let mut publishing = state(&shard);
                publishing.running = false;
                let newer = std::mem::replace(&mut publishing.drafts, batch);
                publishing.drafts.extend(newer);
                return;
            }
        }
    }
}

async fn append(shard: &Shard, batch: &[(u64, Vec<(String, Draft)>)]) -> Result<()> {
    let streams = Streams::new(Arc::clone(&shard.queue.shared.streams), shard.queue.namespace.clone());
    let mut by_stream: BTreeMap<&str, Vec<Draft>> = BTreeMap::new();
    for (stream, draft) in batch.iter().flat_map(|(_, drafts)| drafts) {
        by_stream.entry(stream).or_default().push(draft.clone());
    }
    for (stream, drafts) in by_stream {
        streams.stream(stream)?.publish_many(drafts).await?;
    }
    Ok(())
}
