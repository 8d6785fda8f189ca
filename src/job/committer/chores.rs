//! What a ledger wants to have done beside what callers ask for: deletes that nobody confirmed, entries that may leave the
//! finished list, names that came back.

use super::{Desk, Shard, publish};
use crate::job::{
    apply::Op,
    id::SegmentId,
    inbox::{Age, Look},
    ledger::{Ledger, Millis},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How often a shard is tidied while it is worked on.
const EVERY: Duration = Duration::from_secs(10);

/// How often `seg/` is looked at for objects that nobody names.
const ORPHANS: Duration = Duration::from_secs(600);

fn confirms(op: &Op) -> Option<SegmentId> {
    match op {
        Op::Confirm { segment, .. } => Some(*segment),
        _ => None,
    }
}

pub(super) struct Chores<'a> {
    pub(super) shard: &'a Arc<Shard>,
    pub(super) ledger: &'a Ledger,
    pub(super) now: Millis,
    pub(super) look: Option<&'a Look>,
}

impl Chores<'_> {
    /// Adds what is to be committed, and starts what is to be done outside of a commit.
    pub(super) async fn gather(&self, desk: &mut Desk, extra: &mut Vec<Op>, tail: &mut Vec<Op>, age: &mut Option<Age>) {
        let backend = self.shard.queue.backend();
        let moment = backend.clock.monotonic();
        let due = desk.tidied.is_none_or(|last| moment.since(last) >= EVERY);
        if due {
            desk.tidied = Some(moment);
            // What is confirmed by this very commit is not deleted once more.
            let confirmed: HashSet<_> = extra.iter().filter_map(confirms).collect();
            let deletes = self.ledger.to_delete(self.now).into_iter();
            let deletes = deletes.filter(|(name, _)| !confirmed.contains(&name.id));
            self.shard.delete(deletes.map(|(name, since)| (name, Some(since))).collect());
            if let Some(known) = self.shard.known() {
                self.shard.write_plans(&known);
            }
        }
        match self.shard.spill(self.ledger, self.now).await {
            Ok(spills) => extra.extend(spills),
            Err(error) => tracing::warn!(%error, "retries could not be spilled: the next commit tries again"),
        }
        match publish::spill(self.shard, self.ledger).await {
            Ok(spill) => extra.extend(spill),
            Err(error) => {
                tracing::warn!(%error, "events could not be moved out of the ledger: the next commit tries again")
            }
        }
        if desk.swept.is_none_or(|last| moment.since(last) >= ORPHANS) && desk.swept.replace(moment).is_some() {
            match self.shard.orphans(self.ledger).await {
                Ok(orphans) => extra.extend(orphans),
                Err(error) => tracing::debug!(%error, "what nobody names could not be listed"),
            }
        }
        let Some(look) = self.look else { return };
        let before = tail.len();
        self.names_that_came_back(look, tail);
        if due {
            let layout = &self.shard.queue.layout;
            let mut segments = Vec::new();
            for listing in look.listings.iter() {
                segments.extend(self.ledger.to_forget(layout, listing, self.now));
            }
            if !segments.is_empty() {
                tail.push(Op::Forget { segments });
            }
        }
        if tail.len() > before && age.is_none_or(|known| known.of(backend) < look.age.of(backend)) {
            *age = Some(look.age);
        }
    }

    /// A name whose delete was confirmed and that a listing shows is made unconfirmed before it is deleted again.
    fn names_that_came_back(&self, look: &Look, tail: &mut Vec<Op>) {
        let confirmed: HashMap<_, _> = self
            .ledger
            .finished
            .iter()
            // A listing from before the delete shows what was there then.
            .filter(|entry| entry.confirmed.is_some_and(|at| look.age.is_later_than(at)))
            .map(|entry| (entry.name.id, entry.name))
            .collect();
        if confirmed.is_empty() {
            return;
        }
        for name in look.names.iter() {
            match confirmed.get(&name.id) {
                Some(known) if known == name => tail.push(Op::Unconfirm { segment: name.id }),
                Some(known) => tracing::warn!(?name, ?known, "a name in the inbox has the id of another: it is left"),
                None => {}
            }
        }
    }
}
