//! Objects in `seg/`, which only the ledger names: jobs that go back with changed parts, retries that no longer fit into the
//! ledger, and what nobody names any more.

use super::{Pending, Shard};
use crate::{
    Error, Result, WriteId,
    clock::Timestamp,
    job::{
        apply::{Caps, Home, Moving, Op, Spill},
        id::{Class, SegmentId},
        layout::{Place, SegmentName},
        ledger::{JobRef, Ledger, Millis},
        segment::{Encoded, Head, NewJob, encode},
        whole::{self, Wanted},
    },
    storage::{Name, bodies::Way},
};
use bytes::Bytes;
use std::sync::Arc;

/// How often one object is sent.
const TRIES: u32 = 4;

/// A part of a job that changes when it goes back to the queue: its new content, or none if it is cleared.
pub(crate) type PartChange = (String, Option<Bytes>);

/// A job whose parts change with its answer.
#[derive(Debug, Clone)]
pub(crate) struct Patch {
    /// Which of the operations it belongs to.
    pub(crate) op: usize,
    pub(crate) job: Wanted,
    pub(crate) changes: Vec<PartChange>,
}

/// A name for an object of `seg/` that nobody has had.
pub(super) fn new_segment(shard: &Shard, class: Class) -> SegmentId {
    let mut ids = shard.queue.shared.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let now = Timestamp::from_millis(shard.now());
    ids.next(now, shard.number, class, &*shard.queue.backend().generator)
}

impl Shard {
    /// Writes the jobs whose parts change, and puts into each answer where its job lives on.
    pub(super) async fn patch(&self, ledger: &Ledger, pending: &mut [Pending]) -> Result<()> {
        for class in Class::ALL {
            let mut places = Vec::new();
            for (at, one) in pending.iter().enumerate() {
                let mine = one.patches.iter().filter(|patch| patch.job.name.id.class() == class);
                places.extend(mine.map(|patch| (at, patch.clone())));
            }
            if places.is_empty() {
                continue;
            }
            let wanted: Vec<Wanted> = places.iter().map(|(_, patch)| patch.job.clone()).collect();
            let mut jobs = whole::read(&self.queue, &wanted).await?;
            for (job, (_, patch)) in jobs.iter_mut().zip(&places) {
                for (name, content) in &patch.changes {
                    job.parts.retain(|(known, _)| known.as_ref() != name);
                    job.parts.extend(content.iter().map(|content| (name.as_str().into(), content.clone())));
                }
            }
            let (segment, encoded) = self.put_seg(class, &jobs).await?;
            let count = u16::try_from(jobs.len()).unwrap_or(u16::MAX);
            for ((at, patch), (job, index)) in places.iter().zip(jobs.iter().zip(&encoded.indexes)) {
                let id = job.history.id.unwrap_or_else(|| patch.job.name.id.job(patch.job.index));
                let home = Home { segment, jobs: count, index: *index, epoch: ledger.gc_epoch, id };
                if let Some(Op::Answer(answer)) = pending[*at].ops.get_mut(patch.op) {
                    answer.into = Some(home);
                }
            }
        }
        Ok(())
    }

    /// Writes retries that no longer fit into the ledger to objects of their own.
    pub(super) async fn spill(&self, ledger: &Ledger, now: Millis) -> Result<Vec<Op>> {
        let all = ledger.to_spill(now, &Caps::default());
        let mut ops = Vec::new();
        for class in Class::ALL {
            let mine: Vec<_> = all.iter().filter(|one| one.job.segment.class() == class).collect();
            let mut wanted = Vec::with_capacity(mine.len());
            for one in &mine {
                let Some(row) = ledger.row_of(one.job.segment) else { continue };
                wanted.push(Wanted { name: row.name, index: one.job.index, inline: row.inline.clone() });
            }
            if mine.is_empty() || wanted.len() != mine.len() {
                continue;
            }
            let mut jobs = whole::read(&self.queue, &wanted).await?;
            for (job, one) in jobs.iter_mut().zip(&mine) {
                job.due = Timestamp::from_millis(one.due);
                job.priority = one.priority;
                job.history.attempts = one.attempts;
                job.history.stalls = one.stalls;
                job.history.group = one.group;
                job.history.fence = ledger.fence_last;
            }
            let (segment, encoded) = self.put_seg(class, &jobs).await?;
            let moving = |(one, index): (&&crate::job::apply::ToSpill, &u16)| Moving {
                job: one.job,
                attempts: one.attempts,
                due: one.due,
                index: *index,
            };
            let mut moving: Vec<Moving> = mine.iter().zip(&encoded.indexes).map(moving).collect();
            moving.sort_unstable_by_key(|one| one.index);
            let ids = || jobs.iter().filter_map(|job| job.history.id);
            let Some(span) = ids().min().zip(ids().max()) else { continue };
            let jobs = u16::try_from(jobs.len()).unwrap_or(u16::MAX);
            ops.push(Op::Spill(Arc::new(Spill { segment, epoch: ledger.gc_epoch, jobs, moving, span })));
        }
        Ok(ops)
    }

    /// Creates an object in `seg/` under a name that nobody has had. Named only after it is known to be there.
    pub(crate) async fn put_seg(&self, class: Class, jobs: &[NewJob]) -> Result<(SegmentId, Encoded)> {
        let backend = self.queue.backend();
        let now = Timestamp::from_millis(self.now());
        let segment = new_segment(self, class);
        let write_id = WriteId::random(&*backend.generator);
        let pack = self.queue.shared.options.pack;
        let head = Head { segment, write_id, made: now, txn: None, request: false, source: None, pack };
        let encoded = encode(&head, jobs)?;
        let name = SegmentName { id: segment, place: Place::Seg, jobs: 0 };
        let Some(path) = self.queue.layout.segment(&name).map(Name::new) else {
            return Err(Error::invalid("a segment needs a place"));
        };
        self.put_confirmed(&path, &encoded.body).await?;
        Ok((segment, encoded))
    }

    /// Creates an object whose content follows from its name. Anything but Ok is read back.
    pub(super) async fn put_confirmed(&self, path: &Name, body: &Bytes) -> Result<()> {
        let backend = self.queue.backend();
        let mut tries = 0;
        loop {
            let refusal = match backend.create(path, body.clone()).await {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            };
            let there = backend.get_range(path, 0..body.len().max(1), Way::First).await;
            if let Ok(Some(piece)) = there
                && (piece.whole as usize) == body.len()
                && piece.body == *body
            {
                return Ok(());
            }
            tries += 1;
            if tries >= TRIES || !(refusal.error.is_retryable() || refusal.conflict) {
                return Err(refusal.error);
            }
            backend.pause(tries).await;
        }
    }

    /// Lists what stands in `seg/` and the ledger does not name.
    pub(super) async fn orphans(&self, ledger: &Ledger) -> Result<Option<Op>> {
        let folder = self.queue.layout.seg(self.number);
        let page = self.queue.backend().page(&folder, None, 1000).await?;
        let ids = page.names.iter().filter_map(|name| self.queue.layout.parse_seg(name.as_str()));
        let candidates: Vec<SegmentId> = ids.filter(|id| ledger.row_of(*id).is_none()).collect();
        Ok((!candidates.is_empty()).then_some(Op::RaiseEpoch { candidates }))
    }

    /// The place of a job of this ledger.
    pub(super) fn wanted(ledger: &Ledger, row: u32, index: u16) -> Option<(JobRef, Wanted)> {
        let row = ledger.row(row)?;
        let job = JobRef { segment: row.name.id, index };
        Some((job, Wanted { name: row.name, index, inline: row.inline.clone() }))
    }
}
