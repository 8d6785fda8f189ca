//! What goes into a commit: what was asked for, what the inbox shows, and what the ledger wants to have done.

use super::{Desk, Pending, Shard, Waits, begin, chores::Chores, guest, plan::Prepared};
use crate::{
    Error, Result,
    clock::Moment,
    job::{
        apply::{Caps, Op},
        fetch::{Loaded, Read},
        inbox::{Age, Look, USABLE, unknown},
        layout::SegmentName,
        ledger::{Ledger, Millis, Reason, SessionId},
        schedule,
        session::{Other, Session},
        transaction,
    },
};
use futures_util::{StreamExt, stream};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Reads of segments that are on their way at once.
const READS: usize = 32;
/// A cycle commits what it has read when so much of a listing's time is used up.
const READING: Duration = Duration::from_secs(10);
/// However much is ready, the inbox is looked at this often: there may be something urgent in it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a segment that cannot be absorbed is left before it is read again.
const LEFT: Duration = Duration::from_secs(60);
/// Sessions of others that are looked at in one cycle.
const LOOKS: usize = 16;

/// A segment that was read and is not absorbed yet.
#[derive(Debug)]
pub(in crate::job) struct Ahead {
    pub(super) name: SegmentName,
    pub(super) age: Age,
    pub(super) found: Found,
}

/// What a segment of the inbox is to its ledger.
#[derive(Debug)]
pub(crate) enum Found {
    Loaded(Arc<Loaded>),
    /// An operator has ended it.
    Discarded,
    /// It goes to the dead letters as it is.
    Bury(Reason),
}

/// What claims want together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    want: u64,
    since: u64,
    /// All of them leave to the shard's owner what is young.
    pub(super) patient: bool,
}

impl Shard {
    /// One commit. On an error, what was not answered.
    pub(super) async fn cycle(
        self: &Arc<Self>,
        desk: &mut Desk,
        mut pending: Vec<Pending>,
        riders: Vec<Op>,
    ) -> Result<(), (Error, Vec<Pending>)> {
        let hold = self.queue.shared.sessions.hold();
        match self.prepare(desk, &mut pending, riders).await {
            Ok(prepared) => {
                let (demand, absorbing) = (demand(&pending), prepared.absorbing.clone());
                let ahead = self.look_ahead(demand, &absorbing);
                let (done, ()) = tokio::join!(self.commit(desk, pending, prepared), ahead);
                drop(hold);
                done
            }
            Err(error) => Err((error, pending)),
        }
    }

    /// A session that is believed in, by a clock that can be.
    async fn ready_to_claim(self: &Arc<Self>, desk: &mut Desk) -> Result<()> {
        let shared = &self.queue.shared;
        shared.backend.trust_clock(shared.max_clock_skew).await?;
        let settings = self.queue.settings().await?;
        let session = shared.sessions.ensure(settings.record().settings.session_ttl).await?;
        if desk.session.as_ref().is_none_or(|known| known.id != session.id) {
            desk.use_session(Some(session));
        }
        Ok(())
    }

    async fn prepare(
        self: &Arc<Self>,
        desk: &mut Desk,
        pending: &mut Vec<Pending>,
        riders: Vec<Op>,
    ) -> Result<Prepared> {
        let backend = self.queue.backend();
        let settings = self.queue.settings().await?;
        if backend.store_time().is_none() {
            backend.ask_time().await?;
        }
        let is_valid = |session: &Arc<Session>| session.is_valid();
        let mut session = desk.session.clone().filter(is_valid);
        let own = session.as_ref().map(|session| session.id);
        let (seen, now) = (guest::base(self, pending, own).await?, self.now());
        let ledger = seen.record();
        let mut extra = riders;
        let (mut tail, mut age, mut look) = (Vec::new(), None, None);
        self.forget_known(ledger);
        let mut demand = demand(pending);
        let on_duty = pending.iter().any(|pending| matches!(pending.waits, Waits::Duty));
        let recovers =
            if demand.is_some() || on_duty { self.recover(desk, ledger, own, now).await } else { Vec::new() };
        if let Some(wanted) = demand {
            look = self.look_for(wanted, ledger, now).await?;
            let leaves = wanted.patient && recovers.is_empty();
            if let Some(until) = guest::leaves_to_owner(self, desk, ledger, look.as_ref(), now).filter(|_| leaves) {
                guest::tell_to_wait(self, pending, until);
                demand = None;
                if pending.is_empty() {
                    // They are no reason for a commit.
                    self.ride(std::mem::take(&mut extra));
                }
            }
        }
        extra.extend(recovers);
        if let Some(demand) = demand {
            if let Some(look) = &look {
                let enough = demand.want.saturating_sub(ledger.depth(now).ready).max(1);
                self.fetch(ledger, look, enough, &[]).await?;
            }
            extra.extend(schedule::slots(ledger, now));
            extra.extend(self.open(ledger, now).await?);
            // An idle process keeps no session: it is made when there is something to claim.
            if ledger.depth(now).ready + self.jobs_ahead() > 0 || !extra.is_empty() {
                self.ready_to_claim(desk).await?;
                session = desk.session.clone().filter(is_valid);
            }
        }
        if begin::has_begins(pending) {
            self.ready_to_claim(desk).await?;
            session = desk.session.clone().filter(is_valid);
            begin::write(self, ledger, pending).await?;
        }
        self.patch(ledger, pending).await?;
        let absorbing = self.absorb(&mut tail, &mut age);
        let chores = Chores { shard: self, ledger, now, look: look.as_ref() };
        chores.gather(desk, &mut extra, &mut tail, &mut age).await;
        Ok(Prepared { seen, settings, session, extra, tail, age, absorbing })
    }

    /// What was read ahead and has been taken in since, by whomever.
    fn forget_known(&self, ledger: &Ledger) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if !ahead.is_empty() {
            let names: Vec<SegmentName> = ahead.iter().map(|ahead| ahead.name).collect();
            let new = unknown(ledger, &names, u64::MAX);
            ahead.retain(|ahead| new.contains(&ahead.name));
        }
    }

    /// The lower end of the store's time.
    pub(super) fn now(&self) -> Millis {
        let backend = self.queue.backend();
        backend.store_time().unwrap_or_else(|| backend.clock.wall()).as_millis()
    }

    /// A look at the inbox, if there is less to hand out than is wanted or the last one was a while ago.
    pub(super) async fn look_for(&self, demand: Demand, ledger: &Ledger, now: Millis) -> Result<Option<Look>> {
        let queue = &self.queue;
        let backend = queue.backend();
        let depth = ledger.depth(now);
        let enough = depth.ready + self.jobs_ahead() >= demand.want;
        if enough && queue.inbox.looked_within(backend, LOOK_EVERY).await {
            return Ok(None);
        }
        // Looks of the last second serve for what is only a precaution.
        let recent = enough.then_some(LOOK_EVERY);
        queue.inbox.look(backend, &queue.layout, self.number, demand.since, recent).await.map(Some)
    }

    fn jobs_ahead(&self) -> u64 {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.iter().map(|ahead| u64::from(ahead.name.jobs)).sum()
    }

    /// Reads segments that the inbox shows and the ledger does not know, until they have `enough` jobs.
    async fn fetch(&self, ledger: &Ledger, look: &Look, enough: u64, without: &[SegmentName]) -> Result<()> {
        let here: Vec<SegmentName> = {
            let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            ahead.iter().map(|ahead| ahead.name).collect()
        };
        let enough = enough.saturating_sub(here.iter().map(|name| u64::from(name.jobs)).sum());
        let queue = &self.queue;
        let moment = queue.backend().clock.monotonic();
        let left = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.retain(|_, until| *until > moment);
            left.clone()
        };
        let is_new =
            |name: &&SegmentName| !here.contains(name) && !without.contains(name) && !left.contains_key(&name.id);
        let new: Vec<SegmentName> = look.names.iter().filter(is_new).copied().collect();
        let mut names = unknown(ledger, &new, u64::MAX).into_iter();
        let (backend, segments) = (queue.backend(), &queue.shared.segments);
        let mut wanted = enough;
        // What is left in the inbox must not hide what comes after it: as much again is read instead.
        while wanted > 0 {
            let mut next = Vec::new();
            while wanted > 0
                && let Some(name) = names.next()
            {
                wanted = wanted.saturating_sub(u64::from(name.jobs));
                next.push(name);
            }
            if next.is_empty() {
                break;
            }
            let reads = stream::iter(next)
                .map(|name| async move { (name, segments.read(backend, &queue.layout, &name).await) })
                .buffered(READS);
            let mut reads = std::pin::pin!(reads);
            while let Some((name, read)) = reads.next().await {
                match found(self, ledger, &name, read?, moment).await {
                    Some(found) => {
                        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
                        ahead.push(Ahead { name, age: look.age, found });
                    }
                    None => wanted += u64::from(name.jobs),
                }
                if look.age.of(backend) >= READING {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What was read and may still be used.
    fn absorb(&self, tail: &mut Vec<Op>, age: &mut Option<Age>) -> Vec<SegmentName> {
        let backend = self.queue.backend();
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = Vec::new();
        for Ahead { name, age: listed, found } in ahead.drain(..) {
            let listed_for = listed.of(backend);
            if listed_for >= USABLE {
                continue;
            }
            if age.is_none_or(|known: Age| known.of(backend) < listed_for) {
                *age = Some(listed);
            }
            names.push(name);
            tail.push(match found {
                Found::Loaded(loaded) => Op::Absorb { name, facts: Arc::clone(&loaded.facts) },
                Found::Discarded => Op::Discard { name },
                Found::Bury(reason) => Op::BuryRaw { name, reason },
            });
        }
        names
    }

    /// Opens what is due soon and unread.
    async fn open(&self, ledger: &Ledger, now: Millis) -> Result<Vec<Op>> {
        let queue = &self.queue;
        let mut ops = Vec::new();
        for segment in ledger.to_open(now, &Caps::default()).into_iter().take(READS) {
            let Some(row) = ledger.row_of(segment) else { continue };
            match queue.shared.segments.read(queue.backend(), &queue.layout, &row.name).await? {
                Read::Loaded(loaded) => ops.push(Op::Open { facts: Arc::clone(&loaded.facts) }),
                read => tracing::error!(%segment, ?read, "a live segment cannot be read: its jobs wait"),
            }
        }
        Ok(ops)
    }

    /// What is in the hands of processes that have died comes back.
    async fn recover(&self, desk: &mut Desk, ledger: &Ledger, own: Option<SessionId>, now: Millis) -> Vec<Op> {
        desk.alive.retain(|_, until| *until > now);
        let sessions = ledger.to_look_at(own, now).filter(|session| !desk.alive.contains_key(&session.id));
        let looks: Vec<_> = sessions.take(LOOKS).map(|session| (session.id, session.lease)).collect();
        let mut ops = Vec::new();
        for (id, lease) in looks {
            match self.queue.shared.sessions.look(id, lease).await {
                Ok(Other::Ended) => ops.push(Op::Recover { session: id }),
                Ok(Other::Alive(until)) => drop(desk.alive.insert(id, until)),
                // What cannot be read means held.
                Err(error) => {
                    tracing::warn!(%error, session = ?id, "whether a session has ended cannot be found out");
                    desk.alive.insert(id, now.saturating_add(2000));
                }
            }
        }
        *self.next_look.lock().unwrap_or_else(PoisonError::into_inner) = desk.alive.values().min().copied();
        ops
    }

    /// While a commit is on its way: reads what the next one will need.
    async fn look_ahead(self: &Arc<Self>, demand: Option<Demand>, absorbing: &[SegmentName]) {
        let (Some(demand), Some(known)) = (demand, self.known()) else { return };
        let ledger = known.seen.record();
        let coming: u64 = absorbing.iter().map(|name| u64::from(name.jobs)).sum();
        // Only where something was taken in: a queue that is worked off as it fills needs no second look.
        if coming == 0 || ledger.depth(self.now()).ready + coming >= 3 * demand.want {
            return;
        }
        let queue = &self.queue;
        let backend = queue.backend();
        let looks = queue.inbox.looks();
        let look = queue.inbox.look(backend, &queue.layout, self.number, looks, Some(READING)).await;
        let Ok(look) = look else { return };
        if let Err(error) = self.fetch(ledger, &look, demand.want, absorbing).await {
            tracing::debug!(%error, "reading ahead failed: the next commit reads for itself");
        }
    }
}

pub(super) fn demand(pending: &[Pending]) -> Option<Demand> {
    let mut all: Option<Demand> = None;
    for pending in pending {
        let Some(Op::Claim { want, .. }) = pending.ops.first() else { continue };
        if let Waits::Claim { since, patient, .. } = pending.waits {
            let want = u64::from(*want);
            all = Some(all.map_or(Demand { want, since, patient }, |known| Demand {
                want: known.want + want,
                since: known.since.max(since),
                patient: known.patient && patient,
            }));
        }
    }
    all
}

/// What a segment that was read is to its ledger; none if it cannot be taken in now.
async fn found(shard: &Shard, ledger: &Ledger, name: &SegmentName, read: Read, now: Moment) -> Option<Found> {
    match read {
        Read::Loaded(loaded) => match loaded.table.txn {
            None => return Some(Found::Loaded(loaded)),
            Some(txn) => return transaction::decided(shard, ledger, name, txn, Found::Loaded(loaded), now).await,
        },
        Read::Damaged(why) => {
            tracing::error!(segment = %name.id, %why, "a damaged segment goes to the dead letters as it is");
            return Some(Found::Bury(Reason::Damaged));
        }
        Read::Missing => {}
        Read::Later(format) => {
            tracing::warn!(segment = %name.id, format, "a segment of a later format is left for a later version");
        }
    }
    // It must not hide what comes after it.
    shard.left.lock().unwrap_or_else(PoisonError::into_inner).insert(name.id, now.plus(LEFT));
    None
}
