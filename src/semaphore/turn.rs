//! One turn: find out what is there as far as it must be known, write what there is to do, and answer all callers.

use super::{
    actor::{Actor, Ticket},
    cell::Handed,
    engine::Engine,
    layout,
    permit::believed,
    record::Record,
    rules::{self, Believed, Ending, Planned, Told, Wishes},
    types::{Full, Slot, SlotHolder, SlotRenewed},
};
use crate::{
    Error, ErrorKind, Hour, LeaseId, Result,
    clock::{self, Timestamp},
    generator::GeneratorExt,
    kind::Verdict,
    lease::{Holder, Loss, LossReason, ended},
    record::{Change, Changed, Patience, Plan},
    storage::cas::{Seen, Stamp},
    timing::LONGEST_WRITE,
};
use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

/// So many writes in a row may come too late because of others.
const CONFLICTS: u32 = 32;

/// From when a turn files its entries until its last attempt is built.
const TURN: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) async fn turn(&mut self) -> Result<()> {
        let terms = self.engine.terms.clone();
        terms.announce()?;
        let wants_slots = !self.tries.is_empty() || !self.waiters.is_empty();
        if wants_slots {
            terms.trust_clock().await?;
        }
        let mut read = false;
        if self.doubt.is_none() {
            if self.must_read() {
                read = true;
                self.read().await?;
            }
            self.rename();
            let unserved = !self.dry_run()?.is_served();
            if unserved && !read {
                self.read().await?;
                self.rename();
            }
            if unserved || !self.settles.is_empty() {
                self.core.second_look(&self.cell.slot, &terms).await?;
            }
        }
        let wishes = self.wishes();
        self.file(&wishes).await?;
        self.commit(&wishes).await?;
        self.tried_to_leave();
        self.look_again();
        Ok(())
    }

    /// Whether what is known is not good enough to base a write on.
    fn must_read(&self) -> bool {
        let known = |id: LeaseId| self.core.record().is_some_and(|record| record.holder(id).is_some());
        self.knows_nothing()
            || !self.settles.is_empty()
            || !self.waiters.is_empty()
            || !self.resizes.is_empty()
            || self.releases.iter().any(|release| !known(release.id))
            || self.renews.iter().any(|renew| !known(renew.id))
    }

    /// What a write on what is known would come to.
    fn dry_run(&mut self) -> Result<Planned> {
        let wishes = self.wishes();
        let record = self.core.record();
        let stamp = Stamp { write_id: [0; 16].into(), revision: record.map_or(0, |record| record.revision) + 1 };
        rules::plan(record, &wishes, &self.core.facts_now(&self.engine.terms), &self.engine.terms, stamp)
    }

    /// Writes the index entries of the hours in which what is granted or renewed now will end. Only an Ok counts.
    async fn file(&mut self, wishes: &Wishes) -> Result<()> {
        let terms = &self.engine.terms;
        let (moment, wall) = terms.now();
        let record = self.core.record();
        let renewed = wishes.renewals.iter().filter_map(|renewal| {
            let lease = &record?.holder(renewal.id)?.lease;
            let expires = terms.expiry(moment, wall, renewal.ttl.unwrap_or(lease.ttl)).ok()?;
            Some(expires.max(lease.expires))
        });
        let granted = wishes.grants.iter().filter_map(|wish| terms.expiry(moment, wall, wish.ttl).ok());
        let mut hours: BTreeSet<(Hour, Timestamp)> = BTreeSet::new();
        for expires in renewed.chain(granted) {
            hours.insert((Hour::of(expires)?, expires));
            hours.insert((Hour::of(expires.plus(TURN))?, expires));
        }
        let filed = record.and_then(|record| record.hour);
        let mut last = None;
        for (hour, expires) in hours {
            if last == Some(hour) || filed == Some(hour) || self.core.indexed.contains(&hour) {
                continue;
            }
            last = Some(hour);
            let slot = &self.cell.slot;
            let name = layout::entry(&slot.namespace, &slot.key, hour);
            terms.backend().file(&name, layout::entry_body(&slot.key, expires)).await?;
            self.core.indexed.insert(hour);
            while self.core.indexed.len() > 4 {
                self.core.indexed.pop_first();
            }
        }
        Ok(())
    }

    /// Writes until it is known what became of it, or for as long as that is worth it.
    async fn commit(&mut self, wishes: &Wishes) -> Result<()> {
        let terms = self.engine.terms.clone();
        let timeout = terms.settings().request_timeout;
        let patience = Patience { within: 3 * timeout, conflicts: CONFLICTS };
        let (mut change, since) = self.doubt.take().unwrap_or_else(|| {
            (Change::new(terms.backend(), self.cell.slot.clone(), self.core.seen(), patience), terms.now().0)
        });
        let shortest =
            wishes.renewals.iter().filter_map(|renewal| Some(self.core.record()?.holder(renewal.id)?.lease.ttl));
        let shortest = shortest.chain(wishes.grants.iter().map(|wish| wish.ttl)).min();
        // Far below the time to live.
        let limit = shortest.map_or(4 * timeout, |ttl| (ttl.as_duration() / 2).min(4 * timeout));
        // Where a write may have landed already, only another one on the same base settles it.
        let mut sent_on = change.is_in_doubt().then_some(None);
        let core = &self.core;
        let key = &self.cell.slot.key;
        let ran = {
            let run = change.run(|there: Option<&Seen<Record>>, stamp| {
                let record = there.map(Seen::record);
                record.map_or(Ok(()), |record| record.may_change(key, terms.shared().epoch))?;
                let facts = core.facts(&terms, there.and_then(Seen::modified));
                let planned = rules::plan(record, wishes, &facts, &terms, stamp)?;
                let filed_under = record.and_then(|record| record.hour);
                planned.must_be_filed(stamp, |hour| core.indexed.contains(&hour) || filed_under == Some(hour))?;
                let base = Some(record.map(|record| record.write_id));
                let writes = planned.changed || sent_on == Some(None) || sent_on == Some(base);
                let ticket = Arc::new(planned.ticket(wishes, facts.moment, stamp, there.filter(|_| !writes)));
                if !writes {
                    return Ok((Arc::clone(&ticket), Plan::Stop(ticket)));
                }
                sent_on = Some(base);
                Ok((ticket, Plan::Write(planned.record)))
            });
            self.watching_the_clock(limit, run).await
        };
        match ran {
            Some(Ok(changed)) => self.landed(changed, wishes),
            failed => {
                let late = || Error::unavailable(format!("{key} was not changed in time: no answer within {limit:?}"));
                let error = failed.and_then(Result::err).unwrap_or_else(late);
                let doubtful = change.is_in_doubt() && terms.now().0.since(since) < LONGEST_WRITE;
                if doubtful && error.kind() != ErrorKind::Regressed {
                    self.doubt = Some((change, since));
                } else {
                    self.core.forget();
                }
                Err(error)
            }
        }
    }

    /// Answers all callers: the state of the store is known now.
    fn landed(&mut self, changed: Changed<Record, Arc<Ticket>, Arc<Ticket>>, wishes: &Wishes) -> Result<()> {
        let terms = self.engine.terms.clone();
        let ticket = match changed {
            Changed::Won(seen, ticket) => {
                self.core.learn(Some(seen), &terms)?;
                self.core.wrote(ticket.write_id, ticket.sent);
                self.engine.counters.cleared(ticket.cleared);
                ticket
            }
            Changed::Stopped(ticket) => {
                self.core.learn(ticket.there.clone(), &terms)?;
                ticket
            }
        };
        self.tell(&ticket, wishes);
        Ok(())
    }

    /// However long the store takes, belief ends when it must.
    async fn watching_the_clock<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let backend = self.engine.terms.backend();
        let mut work = pin!(clock::within(&*backend.clock, limit, work));
        loop {
            let left = self.cell.lock().kept.iter().map(|kept| kept.time_left()).min().unwrap_or(Duration::MAX);
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = backend.clock.sleep(left) => self.cell.end_beliefs(),
            }
        }
    }

    /// Answers all callers by the attempt that landed.
    fn tell(&mut self, ticket: &Ticket, wishes: &Wishes) {
        self.tell_askers(ticket);
        self.tell_renewals(ticket);
        let Some(record) = self.core.record().cloned() else {
            self.releases.drain(..).filter_map(|release| release.reply).for_each(|reply| drop(reply.send(Ok(()))));
            let key = self.cell.slot.key.clone();
            let none =
                || Error::config(format!("there is no semaphore {key}: it is made when a slot is first asked for"));
            self.resizes.drain(..).for_each(|(_, reply)| drop(reply.send(Err(none()))));
            self.settles.drain(..).for_each(|(_, _, reply)| drop(reply.send(Ok(Verdict::Stale))));
            return;
        };
        for release in std::mem::take(&mut self.releases) {
            if record.holder(release.id).is_some() {
                self.releases.push(release);
                continue;
            }
            self.engine.counters.released(1);
            release.reply.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
        }
        // Only the first was tried; the others have their turn.
        if wishes.resize.is_some() && wishes.resize == Some(record.size) && !self.resizes.is_empty() {
            let (size, reply) = self.resizes.remove(0);
            drop(reply.send(Ok(size)));
        }
        for (hour, dry_run, reply) in std::mem::take(&mut self.settles) {
            drop(reply.send(Ok(self.verdict(&record, hour, dry_run, ticket.cleared > 0))));
        }
    }

    fn verdict(&self, record: &Record, hour: Hour, dry_run: bool, cleared: bool) -> Verdict {
        let filed = |expires: Timestamp| Hour::of(expires).is_ok_and(|of| of <= hour);
        let left: Vec<_> = record.holders.iter().filter(|holding| filed(holding.lease.expires)).collect();
        let facts = self.core.facts_now(&self.engine.terms);
        let ended = |ending: Ending| if dry_run { ending != Ending::Held } else { ending == Ending::Ended };
        match left.is_empty() {
            true if cleared => Verdict::Cleared,
            true => Verdict::Stale,
            false if dry_run && left.iter().all(|holding| ended(facts.ending(holding, &self.engine.terms))) => {
                Verdict::Cleared
            }
            false => Verdict::Kept,
        }
    }

    fn tell_askers(&mut self, ticket: &Ticket) {
        let told = |id: LeaseId| ticket.grants.iter().find(|(of, _)| *of == id).map(|(_, told)| told.clone());
        let full = self.full();
        self.cell.lock().full.clone_from(&full);
        let askers = std::mem::take(&mut self.waiters).into_iter().chain(std::mem::take(&mut self.tries));
        for asker in askers.collect::<Vec<_>>() {
            let (id, waits, size) = (asker.wish.id, asker.wish.waits, asker.wish.size);
            let answer = match (told(id), &full) {
                (Some(Told::Granted), _) => match self.granted(id, ticket) {
                    Ok(slot) => Ok(Handed::new(&self.cell, Ok(slot))),
                    Err(error) => {
                        self.unwanted(id);
                        Err(error)
                    }
                },
                (Some(Told::WrongSize(there)), _) => Err(Engine::wrong_size(&self.cell, there, size)),
                (Some(Told::Full), Some(full)) if !waits => {
                    self.engine.counters.refused(1);
                    Ok(Handed::new(&self.cell, Err(full.clone())))
                }
                // It goes on waiting; or it came after the write was made.
                _ if waits => {
                    self.waiters.push_back(asker);
                    continue;
                }
                _ => {
                    self.tries.push(asker);
                    continue;
                }
            };
            // A slot whose caller has gone away is given back.
            drop(asker.reply.send(answer));
        }
    }

    fn granted(&self, id: LeaseId, ticket: &Ticket) -> Result<Slot> {
        let key = &self.cell.slot.key;
        let Some(holding) = self.core.record().and_then(|record| record.holder(id)) else {
            return Err(Error::unavailable(format!("a slot of {key} was freed as soon as it was granted")));
        };
        let deadline = Believed::renewed(None, ticket.sent, holding.lease.ttl.as_duration(), holding.lease.expires);
        let slot = self.engine.slot(&self.cell, &holding.lease, holding.number, deadline, None);
        if !slot.is_valid() {
            return Err(Error::unavailable(format!("a slot of {key} was granted too late to be of use")));
        }
        self.engine.counters.granted(1);
        Ok(slot)
    }

    fn tell_renewals(&mut self, ticket: &Ticket) {
        let told = |id: LeaseId| ticket.renewals.iter().find(|(of, _)| *of == id).map(|(_, told)| told.clone());
        let kept: Vec<_> = self.cell.lock().kept.clone();
        for kept in kept {
            let before = kept.slot();
            match told(before.lease_id()) {
                Some(outcome) => match self.renewed(before.lease_id(), outcome, ticket, Some(&before)) {
                    SlotRenewed::Renewed(slot) => kept.renewed(slot),
                    SlotRenewed::Lost(loss) => kept.lose(loss),
                },
                None => continue,
            }
        }
        for renew in std::mem::take(&mut self.renews) {
            let Some(outcome) = told(renew.id) else {
                self.renews.push(renew);
                continue;
            };
            let before = renew.old.as_ref().map(|old| Slot { grant: old.clone(), number: 0 });
            let renewed = self.renewed(renew.id, outcome, ticket, before.as_ref());
            drop(renew.reply.send(Ok(renewed)));
        }
    }

    fn renewed(&self, id: LeaseId, told: Told, ticket: &Ticket, before: Option<&Slot>) -> SlotRenewed {
        let record = self.core.record();
        let fence = record.and_then(|record| record.last_fence);
        let lost = |reason| SlotRenewed::Lost(Loss { taken_by: None, fence, reason });
        let holding = record.and_then(|record| record.holder(id));
        match (told, holding) {
            (Told::Lost(reason), _) => lost(reason),
            (_, None) => lost(LossReason::Released),
            (_, Some(holding)) => {
                let lease = &holding.lease;
                let believed = before.map(believed).filter(|believed| !believed.over);
                let deadline = Believed::renewed(believed, ticket.sent, lease.ttl.as_duration(), lease.expires);
                let old = before.map(|before| &before.grant);
                let slot = self.engine.slot(&self.cell, lease, holding.number, deadline, old);
                match slot.is_valid() {
                    true => {
                        self.engine.counters.renewed(1);
                        SlotRenewed::Renewed(slot)
                    }
                    false => lost(LossReason::Expired { failing: None }),
                }
            }
        }
    }

    /// What is known of who has the slots.
    fn full(&self) -> Option<Full> {
        let terms = &self.engine.terms;
        let record = self.core.record()?;
        let facts = self.core.facts_now(terms);
        let free_in = record.holders.iter().map(|holding| {
            let wall = ended::wall_waits(&holding.lease, facts.wall, &facts.bounds);
            let seconds = facts.known(holding, terms).seconds(&rules::view(holding), &holding.lease);
            let second = ended::seconds_wait(seconds, &holding.lease, &facts.bounds);
            wall.max(second.unwrap_or_else(|| ended::watch_for(&holding.lease, &facts.bounds)))
        });
        let least = terms.settings().poll_interval;
        let jitter = terms.backend().generator.between(Duration::ZERO, least);
        Some(Full {
            size: record.size,
            held_by: held_by(record, |holding| facts.ending(holding, terms)),
            waiting: record.waiting.len(),
            retry_after: free_in.min().unwrap_or_default().max(least) + jitter,
        })
    }
}

/// Who has the slots, by their numbers.
pub(super) fn held_by(record: &Record, ending: impl Fn(&super::record::Holding) -> Ending) -> Vec<SlotHolder> {
    let holders = record.holders.iter().map(|holding| (ending(holding), holding));
    let mut held: Vec<SlotHolder> = holders
        .filter(|(ending, _)| *ending != Ending::Ended)
        .map(|(ending, holding)| SlotHolder {
            slot: holding.number,
            holder: Holder::from(&holding.lease),
            may_have_ended: ending == Ending::MayHaveEnded,
        })
        .collect();
    held.sort_by_key(|holder| holder.slot);
    held
}

impl Planned {
    /// Whether every caller that asks for a slot gets one.
    fn is_served(&self) -> bool {
        self.grants.iter().all(|told| *told != Told::Full)
    }

    /// A holder whose hour has no entry would not be found by any sweep.
    fn must_be_filed(&self, stamp: Stamp, filed: impl Fn(Hour) -> bool) -> Result<()> {
        let beats = self.record.holders.iter().filter(|holding| holding.lease.beat == stamp.write_id);
        for holding in beats {
            if !filed(Hour::of(holding.lease.expires)?) {
                return Err(Error::unavailable("the hour of a slot's end has no entry yet: try again"));
            }
        }
        Ok(())
    }

    fn ticket(&self, wishes: &Wishes, sent: clock::Moment, stamp: Stamp, there: Option<&Seen<Record>>) -> Ticket {
        let renewals = wishes.renewals.iter().map(|renewal| renewal.id).zip(self.renewals.iter().cloned()).collect();
        let grants = wishes.grants.iter().map(|wish| wish.id).zip(self.grants.iter().cloned()).collect();
        let cleared = self.cleared;
        Ticket { sent, write_id: stamp.write_id, renewals, grants, cleared, there: there.cloned() }
    }
}
