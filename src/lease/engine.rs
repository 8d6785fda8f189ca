//! What the leases of one opened store share, and what every operation on them needs.

use super::{
    counters::{Counters, Counts},
    ended::{self, Bounds, State},
    keeper::Keeper,
    keys::{KeyEntry, Keys},
    living::Unsettled,
    loss::{Losses, Lost},
    plan::{Facts, Now, Readings, Rules, View},
    record::{KeySlot, Lease, Record, SessionName},
    sessions::Sessions,
    settings::{LeaseSettings, Limits, Shared},
    state::KeyState,
    types::{Held, Holder, Status},
};
use crate::{
    Error, Fence, Key, Result, WriteId,
    clock::{self, Timestamp},
    generator::GeneratorExt,
    id::ProcessId,
    record::{Order, Right},
    storage::Backend,
    sweep::Activity,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio_util::task::TaskTracker;

/// What the leases of one opened store share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) backend: Arc<Backend>,
    pub(super) rules: Rules,
    pub(super) limits: Limits,
    pub(super) settings: LeaseSettings,
    pub(super) counters: Counters,
    pub(super) keys: Keys,
    pub(super) activity: Arc<Activity>,
    pub(super) runtime: tokio::runtime::Handle,
    /// Tasks that dropped operations have left behind.
    pub(crate) leftovers: TaskTracker,
    pub(super) keeper: Arc<Keeper>,
    losses: Losses,
    pub(super) sessions: Sessions,
    /// The highest record format that the store allows.
    record_format: AtomicU32,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<Backend>,
        shared: Shared,
        settings: LeaseSettings,
        activity: Arc<Activity>,
    ) -> Arc<Self> {
        let Shared { epoch, max_clock_skew, max_ttl, record_format } = shared;
        let host = backend.is_on_this_host();
        let rules = Rules {
            process: ProcessId::random(&*backend.generator),
            boot: backend.clock.boot().filter(|_| host),
            host,
            epoch,
            max_clock_skew,
            max_ttl,
        };
        Arc::new(Self {
            rules,
            limits: Limits { min_ttl: settings.min_ttl, max_ttl },
            keys: Keys::new(settings.cached_keys),
            keeper: Arc::default(),
            losses: Losses::default(),
            sessions: Sessions::default(),
            record_format: AtomicU32::new(record_format),
            runtime: tokio::runtime::Handle::current(),
            leftovers: TaskTracker::new(),
            backend,
            settings,
            counters: Counters::new(),
            activity,
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// The shortest and the longest time to live that may be asked for.
    pub(crate) fn ttl_limits(&self) -> (Duration, Duration) {
        self.limits.both()
    }

    pub(super) fn now(&self) -> Now {
        let moment = self.backend.clock.monotonic();
        Now { moment, wall: self.backend.clock.wall() }
    }

    /// What the rules go by, for these readings of the two clocks.
    pub(super) fn view<'a>(&'a self, facts: Facts<'a>, now: Now) -> View<'a> {
        let store_upper = self.backend.store_interval().map(|store| store.upper);
        let readings = Readings { now, store_upper, stamp_slack: self.backend.stamp_slack() };
        View { facts, readings, rules: &self.rules }
    }

    /// What the rules about the end of a lease go by.
    pub(super) fn bounds(&self) -> Bounds {
        let Rules { max_clock_skew, max_ttl, .. } = self.rules;
        Bounds { max_clock_skew, max_ttl, stamp_slack: self.backend.stamp_slack() }
    }

    /// What a record means that was read outside of all changes, when `time` was the latest known stamp.
    pub(super) fn judge_read<'a>(
        &'a self,
        record: Option<&'a Record>,
        modified: Option<Timestamp>,
        time: Option<Timestamp>,
        watched: Option<WriteId>,
    ) -> State<'a> {
        self.view(Facts::read(record, modified, time), self.now()).state(watched)
    }

    /// Fails while clocks cannot be trusted that granting and taking over need.
    pub(super) async fn trust_clock(&self) -> Result<()> {
        self.backend.announce(self.rules.process)?;
        self.backend.trust_clock(self.rules.max_clock_skew).await
    }

    /// Checks one reading of the wall clock by what is known of the store's. Done again for the reading that a grant is
    /// made by: the clock may have been set while the operation waited.
    pub(super) fn check_clock(&self, wall: Timestamp) -> Result<()> {
        self.backend.check_clock(self.rules.max_clock_skew, wall)
    }

    /// The store allows this record format from now on.
    pub(crate) fn allow(&self, record_format: u32) {
        self.record_format.fetch_max(record_format, Relaxed);
    }

    /// The highest record format that the store is known to allow.
    pub(crate) fn record_format(&self) -> u32 {
        self.record_format.load(Relaxed)
    }

    /// Refuses to write a format that the store does not allow: older versions may use it.
    pub(super) fn must_allow(&self, record_format: u32) -> Result<()> {
        let allowed = self.record_format();
        if allowed >= record_format {
            return Ok(());
        }
        Err(Error::config(format!(
            "this store allows record format {allowed}, and leases under a session need {record_format}: once every process \
             that uses the store is new enough, an operator allows it: leasehold store set --record-format {record_format}"
        )))
    }

    /// How long an operation goes on trying.
    pub(super) fn operation_timeout(&self) -> Duration {
        3 * self.settings.request_timeout
    }

    /// Locks a key for a change; other operations of this process may have to end first.
    pub(super) async fn lock_key(&self, entry: &KeyEntry) -> Result<Right<KeyState>> {
        self.lock_in_order(entry, Order::InTurn).await
    }

    /// Locks a key ahead of all operations that neither keep a lease alive nor give one back.
    pub(super) async fn lock_key_first(&self, entry: &KeyEntry) -> Result<Right<KeyState>> {
        self.lock_in_order(entry, Order::First).await
    }

    async fn lock_in_order(&self, entry: &KeyEntry, order: Order) -> Result<Right<KeyState>> {
        let timeout = self.operation_timeout();
        let locked = clock::within(&*self.backend.clock, timeout, Arc::clone(&entry.state).take(order)).await;
        locked.ok_or_else(|| {
            let (key, timeout) = (&entry.slot.key, humantime::format_duration(timeout));
            Error::unavailable(format!(
                "other operations of this process on {key} did not come to an end within {timeout}: try again later"
            ))
        })
    }

    /// Refuses to write over what a later version, or a process with other settings, has written.
    pub(super) fn may_change(&self, key: &Key, record: &Record) -> Result<()> {
        record.must_be_ours(key)?;
        if record.epoch > self.rules.epoch {
            return Err(Error::config(format!(
                "the record of {key} goes by epoch {} of the store's settings, this process by {}: an operator has changed \
                 them, so restart this process",
                record.epoch, self.rules.epoch
            )));
        }
        Ok(())
    }

    /// How much longer the second witness will take, as far as the dates of answers say.
    pub(super) fn second_waits(&self, view: &View<'_>, record: &Record, lease: &Lease) -> Option<Duration> {
        let mut known = view.known();
        if !self.rules.host {
            // Stamps are cut to whole seconds, and so is what they are compared with.
            let whole = |at: Timestamp| Timestamp::from_millis(at.as_millis().div_euclid(1000) * 1000);
            known.time = known.time.max(self.backend.store_time().map(whole));
        }
        ended::seconds_wait(known.seconds(record, lease), lease, &view.bounds())
    }

    /// When a lease that is held can have ended, by both witnesses or, where there is no second one, by watching it.
    pub(super) fn free_in(&self, view: &View<'_>) -> Duration {
        let Some((record, lease)) = view.facts.record.zip(view.lease()) else { return Duration::ZERO };
        if let Some(session) = lease.session {
            let until = self.sessions.seen(session).map_or(view.readings.now.moment, |seen| seen.until);
            return until.since(view.readings.now.moment);
        }
        let bounds = view.bounds();
        let second = self.second_waits(view, record, lease);
        let second = second.unwrap_or_else(|| ended::watch_for(lease, &bounds));
        ended::wall_waits(lease, view.readings.now.wall, &bounds).max(second)
    }

    /// Who holds a key, and when it is worth trying again: not for all at the same time, if many are told.
    pub(super) fn held_by(&self, view: &View<'_>) -> Held {
        let by = view.lease().map(Holder::from);
        let jitter = self.backend.generator.between(Duration::ZERO, self.settings.poll_interval);
        let retry_after = self.free_in(view).max(self.settings.poll_interval) + jitter;
        Held { by, retry_after }
    }

    /// Counts and logs a loss, once for each lease.
    pub(super) fn tell_loss(&self, slot: &KeySlot, lost: &Lost) {
        if !self.losses.is_news(lost.id) {
            return;
        }
        self.counters.lost(1);
        tracing::warn!(
            namespace = %slot.namespace,
            key = %slot.key,
            owner = lost.owner.as_deref(),
            fence = lost.fence.map(Fence::get),
            lease = %lost.id,
            reason = %lost.loss,
            "a lease was lost"
        );
    }

    /// Frees a lease in a task of its own, again and again until that has worked.
    /// Where it is held under a session, nothing expires by itself: for as long as that lives.
    pub(super) fn retry_soon<F>(
        self: &Arc<Self>,
        entry: &Arc<KeyEntry>,
        under: Option<SessionName>,
        free: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = Result<()>> + Send,
    {
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        let freeing = async move {
            // For as long as the longest lease could still be there.
            let give_up = engine.now().moment.plus(engine.rules.max_ttl);
            let mut retries = 0;
            let unsettled = under.and_then(|session| engine.sessions.of(session)).and_then(Unsettled::of);
            while let Err(error) = free().await {
                if unsettled.as_ref().is_some_and(Unsettled::goes_on) {
                    retries += 1;
                    engine.backend.pause(retries).await;
                    continue;
                }
                if !error.is_retryable() || engine.now().moment >= give_up {
                    tracing::warn!(key = %entry.slot.key, %error, "a lease that nobody wants could not be released: it will expire");
                    return;
                }
                retries += 1;
                engine.backend.pause(retries).await;
            }
        };
        self.leftovers.spawn_on(freeing, &self.runtime);
    }
}

/// What people are shown of a key.
pub(super) fn status(key: &Key, record: Option<&Record>, state: State<'_>) -> Status {
    Status {
        key: key.clone(),
        holder: state.held().map(Holder::from),
        may_have_ended: matches!(state, State::MayHaveEnded(_)),
        last_fence: record.and_then(|record| record.last_fence),
        waited_for: record.is_some_and(|record| record.waiting.is_some()),
        written_at: record.map(|record| record.written),
    }
}
