//! What an engine knows of the end of a lease, and how it finds out more: the rules of [`ended`] with a store around them.

use super::{
    cell::Core,
    ended::{self, Bounds, Second, State},
    engine::{Change, Engine, Now},
    flight::Flight,
    record::{Boot, Lease, Record},
    types::{Held, Holder, Status},
};
use crate::{
    Error, ErrorKind, Key, Result, Ttl, WriteId,
    clock::{Moment, Timestamp},
    generator::GeneratorExt,
    ttl::in_words,
};
use std::{sync::Arc, time::Duration};

/// By so much longer than a lease lasts the wall clock must be past its expiry before the store is asked for a stamp
/// although its dates say that it is too early: they may be those of a proxy whose clock is behind.
const LATE: Duration = Duration::from_secs(10);

impl Engine {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            max_clock_skew: self.shared.max_clock_skew,
            max_ttl: self.shared.max_ttl,
            stamp_slack: self.backend.stamp_slack(),
        }
    }

    fn known(&self, core: &Core, now: Moment) -> ended::Known {
        ended::Known {
            modified: core.modified(),
            time: core.time,
            own: core.own,
            gone: core.gone,
            now,
            host: self.backend.is_on_this_host(),
            boot: self.boot,
        }
    }

    /// What is known of a key means this now. `watched` is a beat that was watched for long enough.
    pub(super) fn judge<'a>(&self, core: &'a Core, now: Now, watched: Option<WriteId>) -> State<'a> {
        ended::judge(core.record(), now.wall, &self.known(core, now.moment), watched, &self.bounds())
    }

    /// What a record means that was read outside of all changes, when `time` was the latest known stamp.
    pub(super) fn judge_read<'a>(
        &self,
        record: Option<&'a Record>,
        modified: Option<Timestamp>,
        time: Option<Timestamp>,
        watched: Option<WriteId>,
    ) -> State<'a> {
        let now = self.now();
        let known = ended::Known { modified, time, ..self.known(&Core::default(), now.moment) };
        ended::judge(record, now.wall, &known, watched, &self.bounds())
    }

    /// Asks for the second witness where the first has said that a lease is over and it may be: by a time object that is
    /// written before the lease is read again, or by the lock that the holder's process keeps.
    pub(super) async fn second_look(&self, flight: &mut Flight, watched: Option<WriteId>) -> Result<()> {
        let now = self.now();
        let core = flight.core();
        let State::MayHaveEnded(lease) = self.judge(core, now, watched) else { return Ok(()) };
        let (beat, process) = (lease.beat, lease.process);
        let Some(record) = core.record() else { return Ok(()) };
        if self.backend.is_on_this_host() {
            // Where no clock will ever speak.
            let [_, other] = self.known(core, now.moment).seconds(record, lease);
            if other == Second::Missing && self.backend.has_ended(process).await {
                flight.core().gone = Some(beat);
            }
            return Ok(());
        }
        if !self.is_worth_asking(core, record, lease, now) {
            return Ok(());
        }
        flight.core().asked = Some(now.moment);
        self.backend.write_time().await?;
        let cell = Arc::clone(&flight.cell);
        self.read(&cell, flight.core()).await
    }

    /// Whether a time object would end a lease now, as far as the dates of answers say.
    fn is_worth_asking(&self, core: &Core, record: &Record, lease: &Lease, now: Now) -> bool {
        let bounds = self.bounds();
        let long_over = lease.expires.plus(ended::longest_belief(lease, &bounds)).plus(LATE) < now.wall;
        // Not with every look: it may be the holder's clock that is behind, and the lease be renewed all the time.
        let rarely = core.asked.is_none_or(|asked| now.moment.since(asked) >= lease.lasts(bounds.max_ttl) / 2);
        long_over && rarely && bounds.stamp_slack.is_some()
            || self.second_waits(core, record, lease, now) == Some(Duration::ZERO)
    }

    /// How much longer the second witness will take, as far as the dates of answers say.
    fn second_waits(&self, core: &Core, record: &Record, lease: &Lease, now: Now) -> Option<Duration> {
        let mut known = self.known(core, now.moment);
        if !self.backend.is_on_this_host() {
            // Stamps are cut to whole seconds, and so is what they are compared with.
            let whole = |at: Timestamp| Timestamp::from_millis(at.as_millis().div_euclid(1000) * 1000);
            known.time = known.time.max(self.backend.store_time().map(whole));
        }
        ended::seconds_wait(known.seconds(record, lease), lease, &self.bounds())
    }

    /// When a lease that is held can have ended, by both witnesses or, where there is no second one, by watching it.
    pub(super) fn free_in(&self, core: &Core, now: Now) -> Duration {
        let Some((record, lease)) = core.record().and_then(|record| Some((record, record.lease.as_ref()?))) else {
            return Duration::ZERO;
        };
        let bounds = self.bounds();
        let second = self.second_waits(core, record, lease, now);
        let second = second.unwrap_or_else(|| ended::watch_for(lease, &bounds));
        ended::wall_waits(lease, now.wall, &bounds).max(second)
    }

    /// Somebody else has it: who, and when it is worth trying again. Not all at once, if many are told.
    pub(super) fn held(&self, core: &Core, now: Now) -> Held {
        let by = core.record().and_then(|record| record.lease.as_ref()).map(Holder::from);
        let jitter = self.backend.generator.between(Duration::ZERO, self.settings.poll_interval);
        let retry_after = self.free_in(core, now).max(self.settings.poll_interval) + jitter;
        Held { by, retry_after }
    }

    /// When a lease ends by the wall clock: not much later than by the store's, or a dead holder whose clock was ahead
    /// would keep a key closed for as long.
    pub(super) fn expiry(&self, now: Now, ttl: Ttl) -> Result<Timestamp> {
        let latest = self.backend.store_interval().map(|store| store.upper.plus(self.shared.max_clock_skew));
        let expires = ttl.expiry(latest.map_or(now.wall, |latest| now.wall.min(latest)))?;
        if expires <= now.wall {
            return Err(Error::new(
                ErrorKind::Clock,
                format!(
                    "this machine's clock says {}, which is so far ahead of the store's that a lease of {} would be over \
                     before it is granted: set the clock, for instance by NTP",
                    now.wall,
                    in_words(ttl.as_duration())
                ),
            ));
        }
        Ok(expires)
    }

    /// It is not later than this, by the store's clock.
    pub(super) fn store_upper(&self, wall: Timestamp) -> Timestamp {
        self.backend.store_interval().map_or(wall, |store| store.upper)
    }

    pub(super) fn boot_at(&self, moment: Moment) -> Option<Boot> {
        self.boot.map(|id| Boot { id, at: moment.since(Moment::default()) })
    }

    /// The same lease for longer, held by whichever process asks. Its expiry never moves back, and whoever waits goes on
    /// waiting.
    pub(super) fn again(&self, core: &Core, lease: &Lease, now: Now, ttl: Ttl) -> Result<Change> {
        let record = core.record();
        let lasts = ended::lasts_after_renewal(lease, ttl.as_duration(), core.own, now.moment, self.shared.max_ttl);
        let expires = match self.expiry(now, ttl) {
            Ok(expires) => expires.max(lease.expires),
            // Renewing goes on however wrong the clock is; what is believed of the lease is another matter.
            Err(error) if error.kind() == ErrorKind::Clock => lease.expires,
            Err(error) => return Err(error),
        };
        let renewed = Lease {
            expires,
            ttl,
            process: self.process,
            lasts: Some(lasts),
            boot: self.boot_at(now.moment),
            ..lease.clone()
        };
        Ok(Change {
            beats: true,
            lease: Some(renewed),
            waiting: record.and_then(|record| record.waiting),
            last_fence: record.and_then(|record| record.last_fence),
            forced: None,
        })
    }

    /// Refuses to write over what a later version, or a process with other settings, has written.
    pub(super) fn may_change(&self, key: &Key, record: &Record) -> Result<()> {
        record.must_be_ours(key)?;
        if record.epoch > self.shared.epoch {
            return Err(Error::config(format!(
                "the record of {key} goes by epoch {} of the store's settings, this process by {}: an operator has changed \
                 them, so restart this process",
                record.epoch, self.shared.epoch
            )));
        }
        Ok(())
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
