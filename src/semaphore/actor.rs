//! Who looks after one semaphore in a process: one task, while there is anything to look after. It makes all writes, so that
//! one is in flight at a time, and puts into each whatever there is to do.

use super::{
    cell::{Asker, Cell, Op, Reply},
    core::{Base, Core},
    engine::Engine,
    record::{Record, SemaphoreSlot},
    rules::{Renewal, Told, Wishes},
    types::SlotRenewed,
};
use crate::{
    Error, Hour, LeaseId, Result, Ttl, WriteId, clock::Moment, generator::GeneratorExt, kind::Verdict, lease::Grant,
    record::Change, storage::cas::Seen,
};
use futures_util::FutureExt;
use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A slot that is to be given back.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) id: LeaseId,
    pub(super) reply: Option<Reply<()>>,
    /// Until when it is tried; then its time to live frees it.
    pub(super) give_up: Moment,
    _token: Option<TaskTrackerToken>,
}

/// A renewal by the id.
#[derive(Debug)]
pub(super) struct Renew {
    pub(super) id: LeaseId,
    pub(super) ttl: Option<Ttl>,
    pub(super) old: Option<Grant>,
    pub(super) reply: Reply<SlotRenewed>,
}

/// What callers are told if this attempt is the one that landed.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) sent: Moment,
    pub(super) write_id: WriteId,
    pub(super) renewals: Vec<(LeaseId, Told)>,
    pub(super) grants: Vec<(LeaseId, Told)>,
    pub(super) cleared: u64,
    /// What was there, where nothing was written.
    pub(super) there: Option<Seen<Record>>,
}

pub(super) struct Actor {
    pub(super) engine: Arc<Engine>,
    pub(super) cell: Arc<Cell>,
    pub(super) core: Core,
    pub(super) tries: Vec<Asker>,
    pub(super) waiters: VecDeque<Asker>,
    pub(super) renews: Vec<Renew>,
    pub(super) releases: Vec<Release>,
    pub(super) resizes: Vec<(u32, Reply<u32>)>,
    pub(super) settles: Vec<(Hour, bool, Reply<Verdict>)>,
    /// A write whose fate is not known, and since when.
    pub(super) doubt: Option<(Change<SemaphoreSlot, Arc<Ticket>>, Moment)>,
    /// When those who wait look again; how often they have in vain; and the record that they saw.
    look_at: Moment,
    pub(super) looks: u32,
    pub(super) saw: u64,
    /// Not before this anything is tried again that failed.
    retry_at: Moment,
    /// How many slots were last asked for.
    size: Option<u32>,
    /// Tried once to leave the line, since no caller waits any more.
    left_line: bool,
}

/// How long to try to give back a slot without a caller.
const GIVE_UP: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) fn new(engine: Arc<Engine>, cell: Arc<Cell>, core: Core) -> Self {
        Self {
            engine,
            cell,
            core,
            tries: Vec::new(),
            waiters: VecDeque::new(),
            renews: Vec::new(),
            releases: Vec::new(),
            resizes: Vec::new(),
            settles: Vec::new(),
            doubt: None,
            look_at: Moment::default(),
            looks: 0,
            saw: 0,
            retry_at: Moment::default(),
            size: None,
            left_line: false,
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.engine.terms.now().0
    }

    /// Works until there is nothing left to do. A store or a clock that was handed in may panic: that is one turn that failed.
    pub(super) async fn run(mut self) {
        loop {
            self.gather();
            self.cell.end_beliefs();
            if self.is_due() {
                let turn = AssertUnwindSafe(self.turn()).catch_unwind().await;
                let failed = match turn {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error),
                    Err(_) => {
                        self.core.forget();
                        self.doubt = None;
                        Some(Error::unknown(format!("a request to the semaphore {} panicked", self.cell.slot.key)))
                    }
                };
                if let Some(error) = failed {
                    self.fail(&error);
                }
                continue;
            }
            if self.is_idle() {
                match self.cell.retire(std::mem::take(&mut self.core)) {
                    None => return,
                    Some(core) => self.core = core,
                }
            }
            self.rest().await;
        }
    }

    /// Takes over what has come in, and lets go of those who have gone away.
    fn gather(&mut self) {
        let (tries, waiters, ops) = {
            let mut state = self.cell.lock();
            (std::mem::take(&mut state.tries), std::mem::take(&mut state.waiters), std::mem::take(&mut state.ops))
        };
        let now = self.now();
        if !waiters.is_empty() {
            (self.look_at, self.looks, self.left_line) = (now, 0, false);
        }
        self.tries.extend(tries);
        self.waiters.extend(waiters);
        self.tries.retain(|asker| !asker.reply.is_closed());
        self.waiters.retain(|asker| !asker.reply.is_closed());
        for op in ops {
            match op {
                Op::Renew { id, ttl, old, reply } => self.renews.push(Renew { id, ttl, old, reply }),
                Op::Release { id, reply, token } => {
                    self.releases.push(Release { id, reply, give_up: now.plus(GIVE_UP), _token: token });
                    self.retry_at = now;
                }
                Op::Resize { size, reply } => self.resizes.push((size, reply)),
                Op::Settle { hour, dry_run, reply } => self.settles.push((hour, dry_run, reply)),
            }
        }
        self.releases.retain(|release| now < release.give_up);
    }

    /// Gives back a slot without a caller.
    pub(super) fn unwanted(&mut self, id: LeaseId) {
        let give_up = self.now().plus(GIVE_UP);
        self.releases.push(Release { id, reply: None, give_up, _token: None });
    }

    fn stands_in_line(&self) -> bool {
        let me = self.engine.terms.process();
        self.core.record().is_some_and(|record| record.waiting.iter().any(|waiting| waiting.process == me))
    }

    fn leaves_line(&self) -> bool {
        self.waiters.is_empty() && !self.left_line && self.stands_in_line()
    }

    fn is_due(&self) -> bool {
        let now = self.now();
        let asked =
            !self.tries.is_empty() || !self.renews.is_empty() || !self.resizes.is_empty() || !self.settles.is_empty();
        let again = now >= self.retry_at && (!self.releases.is_empty() || self.doubt.is_some());
        let looks = !self.waiters.is_empty() && now >= self.look_at;
        asked || again || looks || self.leaves_line() || self.cell.lock().kept.iter().any(|kept| kept.renew_at() <= now)
    }

    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.releases.is_empty() && self.doubt.is_none()
    }

    /// Waits until something has happened, or is due.
    async fn rest(&self) {
        let now = self.now();
        let mut wait = Duration::MAX;
        if !self.waiters.is_empty() {
            wait = wait.min(self.look_at.since(now));
        }
        if !self.releases.is_empty() || self.doubt.is_some() {
            wait = wait.min(self.retry_at.since(now));
        }
        for kept in &self.cell.lock().kept {
            wait = wait.min(kept.renew_at().since(now)).min(kept.time_left());
        }
        let clock = Arc::clone(&self.engine.terms.backend().clock);
        tokio::select! {
            biased;
            () = self.cell.changed.notified() => {}
            () = clock.sleep(wait) => {}
        }
    }

    /// When those who wait look again: soon after something has changed or where they are first, less and less often else.
    pub(super) fn look_again(&mut self) {
        let settings = *self.engine.terms.settings();
        let me = self.engine.terms.process();
        let (ahead, size, revision) = self.core.record().map_or((0, 1, 0), |record| {
            let ahead = record.waiting.iter().position(|waiting| waiting.process == me);
            (ahead.unwrap_or(record.waiting.len()), record.size.max(1) as usize, record.revision)
        });
        self.looks = if revision == self.saw { self.looks.saturating_add(1) } else { 0 };
        self.saw = revision;
        let rounds = u32::try_from(1 + ahead / size).unwrap_or(u32::MAX).saturating_mul(1 << (self.looks.min(6) / 2));
        let longest =
            settings.poll_interval.saturating_mul(rounds).min(settings.max_poll_interval.max(settings.poll_interval));
        let pause = self.engine.terms.backend().generator.between(longest / 2, longest);
        self.look_at = self.now().plus(pause);
    }

    /// Everything that there is to do now.
    pub(super) fn wishes(&mut self) -> Wishes {
        let now = self.now();
        let kept: Vec<_> = self.cell.lock().kept.clone();
        let due = kept.iter().any(|kept| kept.renew_at() <= now);
        // If one is renewed, all others are renewed in the same write.
        let soon = |ttl: Duration| now.plus(ttl / 6);
        let kept = kept.iter().filter(|kept| due && !kept.is_over() && kept.renew_at() <= soon(kept.slot().ttl()));
        let kept = kept.map(|kept| Renewal {
            id: kept.slot().lease_id(),
            ttl: None,
            believed: Some(kept.believed()),
            kept: true,
        });
        let by_id = self.renews.iter().map(|renew| Renewal {
            id: renew.id,
            ttl: renew.ttl,
            believed: renew.old.as_ref().map(|old| super::rules::Believed {
                deadline: old.deadline,
                expires: old.expires,
                over: old.over.load(std::sync::atomic::Ordering::Relaxed),
            }),
            kept: false,
        });
        let grants = self.waiters.iter().chain(&self.tries).filter(|asker| !asker.reply.is_closed());
        let grants: Vec<_> = grants.map(|asker| asker.wish.clone()).collect();
        self.size = grants.first().map(|wish| wish.size).or(self.size);
        Wishes {
            renewals: kept.chain(by_id).collect(),
            releases: self.releases.iter().map(|release| release.id).collect(),
            resize: self.resizes.first().map(|(size, _)| *size),
            grants,
            size: self.size,
            clear: self.settles.iter().any(|(_, dry_run, _)| !dry_run),
            in_line: false,
        }
    }

    /// A turn has failed: those who asked once are told, the others try again.
    fn fail(&mut self, error: &Error) {
        let (now, wall) = self.engine.terms.now();
        self.left_line = true;
        self.retry_at = now.plus(self.engine.terms.settings().poll_interval.max(Duration::from_millis(50)));
        let in_doubt = self.doubt.is_some();
        let told = || error.clone().in_doubt(in_doubt, &self.cell.slot.key, "changed");
        let tries = std::mem::take(&mut self.tries);
        let unwanted: Vec<LeaseId> = tries.iter().map(|asker| asker.wish.id).collect();
        tries.into_iter().for_each(|asker| drop(asker.reply.send(Err(told()))));
        self.renews.drain(..).for_each(|renew| drop(renew.reply.send(Err(told()))));
        self.resizes.drain(..).for_each(|(_, reply)| drop(reply.send(Err(told()))));
        self.settles.drain(..).for_each(|(_, _, reply)| drop(reply.send(Err(told()))));
        for release in &mut self.releases {
            release.reply.take().into_iter().for_each(|reply| drop(reply.send(Err(told()))));
        }
        for kept in self.cell.lock().kept.iter().filter(|kept| kept.renew_at() <= now) {
            kept.failed(wall, error);
        }
        if in_doubt {
            // One of them may have been granted a slot, and its caller was not told.
            unwanted.into_iter().for_each(|id| self.unwanted(id));
        }
        if !error.is_retryable() {
            self.waiters.drain(..).for_each(|asker| drop(asker.reply.send(Err(error.clone()))));
        }
        self.look_again();
        self.look_at = self.look_at.max(self.retry_at);
    }

    pub(super) fn knows_nothing(&self) -> bool {
        matches!(self.core.base, Base::Unknown)
    }

    pub(super) fn tried_to_leave(&mut self) {
        self.left_line = self.waiters.is_empty();
    }

    /// An asker whose id turned up in the store although its grant was given up asks with another one.
    pub(super) fn rename(&mut self) {
        let generator = Arc::clone(&self.engine.terms.backend().generator);
        let mut used = Vec::new();
        if let Some(record) = self.core.record() {
            for asker in self.waiters.iter_mut().chain(&mut self.tries) {
                if record.holder(asker.wish.id).is_some() {
                    used.push(std::mem::replace(&mut asker.wish.id, LeaseId::random(&*generator)));
                }
            }
        }
        used.into_iter().for_each(|id| self.unwanted(id));
    }

    pub(super) async fn read(&mut self) -> Result<()> {
        self.core.read(&self.cell.slot, &self.engine.terms).await
    }
}
