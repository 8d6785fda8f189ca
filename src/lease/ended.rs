//! When other processes may treat a lease as ended: two independent clocks must say so, or one process must have watched it.
//!
//! The first witness is the wall clock, past the expiry and the skew. A wall clock can be wrong by any amount, so it never
//! ends a lease alone. The second one is a clock that the first has nothing to do with ([`Second`]). Whoever has watched
//! a lease do nothing for as long as anybody can believe in it needs no clock but its own monotonic one.
//!
//! All of it may be late and is never early: a holder reads its monotonic clock before it sends a grant or a renewal, and
//! stops to believe when `lasts` has passed since.
//!
//! A lease that is held under a session has no end of its own: it has ended when its session has, and that must be proven
//! ([`Known::session_over`]). No clock ends it, and nobody's watching.

use super::record::{Boot, Lease, Record, SessionName};
use crate::{
    BootId, WriteId,
    clock::{Moment, Timestamp},
};
use std::time::Duration;

/// What the rules go by that is the same for every lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max_clock_skew: Duration,
    pub(crate) max_ttl: Duration,
    /// What stamps may be apart; `None` where they end nothing.
    pub(crate) stamp_slack: Option<Duration>,
}

impl Bounds {
    fn skew(&self) -> Duration {
        self.max_clock_skew
    }

    fn slack(&self) -> Option<Duration> {
        self.stamp_slack
    }
}

/// The second witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Second {
    /// The store's own times: of an object that was written before the lease was read, and of the lease's last beat.
    Stamps { time: Timestamp, beat: Timestamp },
    /// This process wrote the last beat, and read its monotonic clock before that.
    Own { sent: Moment, now: Moment },
    /// The boot-time clock of the host that the holder and this process share.
    Host { beat: Duration, now: Duration },
    /// The process that wrote the last beat has ended.
    Gone,
    /// There is none: the lease ends by being watched.
    Missing,
}

/// What is known about a lease beside the record itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// When the store received the record, if it was read.
    pub(crate) modified: Option<Timestamp>,
    /// The stamp of a time object that was written before the record was read.
    pub(crate) time: Option<Timestamp>,
    /// The last beat that this process wrote, and its monotonic clock before it was sent.
    pub(crate) own: Option<(WriteId, Moment)>,
    /// A beat whose process was found to have ended.
    pub(crate) gone: Option<WriteId>,
    /// A session whose end was proven: see [`super::others`].
    pub(crate) session_over: Option<SessionName>,
    pub(crate) now: Moment,
    /// Whether leases end by the clock of the host, as in a local directory, and which start of it this process counts from.
    pub(crate) host: bool,
    pub(crate) boot: Option<BootId>,
}

impl Known {
    /// The witnesses for the lease of a record: any of them will do. Our own clock may have stood still while this machine
    /// was suspended, and then the store's may say more.
    pub(crate) fn seconds(&self, record: &Record, lease: &Lease) -> [Second; 2] {
        let own = self.own.filter(|(beat, _)| *beat == lease.beat);
        let own = own.map_or(Second::Missing, |(_, sent)| Second::Own { sent, now: self.now });
        [own, self.second(record, lease)]
    }

    /// The witness that is not this process itself.
    fn second(&self, record: &Record, lease: &Lease) -> Second {
        if let Some(Boot { id, at }) = lease.boot.filter(|_| self.host) {
            let now = self.now.since(Moment::default());
            // A reading that is later than our own comes from another clock. Where the clock is shared it is the only
            // witness: a process may have ended for whose client, or for whoever it shares a request id with, the lease goes on.
            return match self.boot == Some(id) && at <= now {
                true => Second::Host { beat: at, now },
                false if self.gone == Some(lease.beat) => Second::Gone,
                false => Second::Missing,
            };
        }
        if self.gone == Some(lease.beat) {
            return Second::Gone;
        }
        match (self.time, record.beat_stamp.or(self.modified)) {
            (Some(time), Some(beat)) => Second::Stamps { time, beat },
            _ => Second::Missing,
        }
    }
}

/// What a record means to processes other than the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State<'a> {
    /// Anybody may have it.
    Free,
    /// It cannot be granted to others yet. Its own holder may already have stopped believing in it.
    Held(&'a Lease),
    /// The wall clock says that it is over, and the second witness does not yet: held.
    MayHaveEnded(&'a Lease),
    /// The next operation on it clears it.
    Ended(&'a Lease),
}

impl<'a> State<'a> {
    /// The lease, unless it has ended.
    pub(crate) fn held(self) -> Option<&'a Lease> {
        match self {
            Self::Held(lease) | Self::MayHaveEnded(lease) => Some(lease),
            Self::Free | Self::Ended(_) => None,
        }
    }
}

/// How long after its last beat no holder can believe in a lease any more, by a clock that is right to 1 in 1,000.
pub(crate) fn longest_belief(lease: &Lease, bounds: &Bounds) -> Duration {
    let lasts = lease.lasts(bounds.max_ttl);
    lasts + lasts / 1000 + bounds.skew()
}

/// How much longer the second witness has to wait, whichever is first; `None` where none will ever say anything.
pub(crate) fn seconds_wait(seconds: [Second; 2], lease: &Lease, bounds: &Bounds) -> Option<Duration> {
    seconds.into_iter().filter_map(|second| second_waits(second, lease, bounds)).min()
}

/// How much longer one witness has to wait.
pub(crate) fn second_waits(second: Second, lease: &Lease, bounds: &Bounds) -> Option<Duration> {
    let least = longest_belief(lease, bounds);
    let (passed, least) = match second {
        Second::Stamps { time, beat } => (time.since(beat), least + bounds.slack()?),
        Second::Own { sent, now } => (now.since(sent), least),
        Second::Host { beat, now } => (now.saturating_sub(beat), least),
        Second::Gone => return Some(Duration::ZERO),
        Second::Missing => return None,
    };
    // Strictly longer.
    Some((least + Duration::from_millis(1)).saturating_sub(passed))
}

/// How much longer the wall clock has to wait.
pub(crate) fn wall_waits(lease: &Lease, wall: Timestamp, bounds: &Bounds) -> Duration {
    lease.expires.plus(bounds.skew()).plus(Duration::from_millis(1)).since(wall)
}

/// The settling rule. `watched` is a beat that was watched for as long as anybody can believe in it.
pub(crate) fn judge<'a>(
    record: Option<&'a Record>,
    wall: Timestamp,
    known: &Known,
    watched: Option<WriteId>,
    bounds: &Bounds,
) -> State<'a> {
    let Some((record, lease)) = record.and_then(|record| Some((record, record.lease.as_ref()?))) else {
        return State::Free;
    };
    if let Some(session) = lease.session {
        return if known.session_over == Some(session) { State::Ended(lease) } else { State::Held(lease) };
    }
    if watched == Some(lease.beat) {
        return State::Ended(lease);
    }
    if !wall_waits(lease, wall, bounds).is_zero() {
        return State::Held(lease);
    }
    match seconds_wait(known.seconds(record, lease), lease, bounds) {
        Some(Duration::ZERO) => State::Ended(lease),
        _ => State::MayHaveEnded(lease),
    }
}

/// For how long a lease must have been seen to do nothing, from the arrival of one answer to the sending of the next
/// request.
pub(crate) fn watch_for(lease: &Lease, bounds: &Bounds) -> Duration {
    longest_belief(lease, bounds)
}

/// A beat that is being watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) beat: WriteId,
    /// When the first answer arrived that showed it.
    pub(crate) since: Moment,
    /// For how long it must do nothing.
    wait: Duration,
}

impl Watched {
    pub(crate) fn new(lease: &Lease, arrived: Moment, bounds: &Bounds) -> Self {
        Self { beat: lease.beat, since: arrived, wait: watch_for(lease, bounds) }
    }

    /// What was seen at first if this shows the same beat, else this.
    pub(crate) fn or_since(self, first: Option<Self>) -> Self {
        first.filter(|first| first.beat == self.beat).unwrap_or(self)
    }

    /// The beat, if a request that is sent now and finds it again proves that its holder has stopped believing in it.
    pub(crate) fn long_enough(self, now: Moment) -> Option<WriteId> {
        (now.since(self.since) >= self.wait).then_some(self.beat)
    }

    /// When that will be.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.wait.saturating_sub(now.since(self.since))
    }
}

/// How long a renewed lease lasts: no holder that believed in it so far believes in it for less. Those may be others, who were
/// given the lease by its request id, so it is what is left of the record's own time and not of one's own belief.
pub(crate) fn lasts_after_renewal(
    lease: &Lease,
    ttl: Duration,
    own: Option<(WriteId, Moment)>,
    now: Moment,
    max_ttl: Duration,
) -> Duration {
    let lasts = lease.lasts(max_ttl);
    let left = match own {
        Some((beat, sent)) if beat == lease.beat => {
            let passed = now.since(sent);
            lasts.saturating_sub(passed - passed / 1000)
        }
        _ => lasts,
    };
    // Written down in milliseconds, and never less than it is.
    let left = Duration::from_millis(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
    ttl.max(left).min(max_ttl)
}

#[cfg(test)]
mod tests;
