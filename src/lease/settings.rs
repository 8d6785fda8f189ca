//! What leases are configured with: by this process, and by all of them alike.

use super::types::Request;
use crate::{
    Error, Result, Ttl,
    kind::SharedSetting,
    shared::{Rules, SharedSettings, Stop},
    ttl::in_words,
};
use std::time::Duration;

/// The longest time to live that a lease can have without being renewed. Shared by all processes.
pub const MAX_TTL: SharedSetting = SharedSetting {
    required: true,
    ..SharedSetting::new("max_ttl", Duration::from_secs(3600), "The longest time to live of a lease")
};

pub(super) const RULES: Rules = Rules {
    settings: &[MAX_TTL],
    may_change: |_, _| Ok(()),
    stop: |old, _| Stop { time: old.of(&MAX_TTL) + old.margin, why: "max_ttl + margin" },
};

/// What this process has set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseSettings {
    pub(crate) request_timeout: Duration,
    pub(crate) min_ttl: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) max_poll_interval: Duration,
    pub(crate) cached_keys: usize,
}

/// What all processes have alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) epoch: u64,
    pub(crate) max_clock_skew: Duration,
    pub(crate) max_ttl: Duration,
    /// The highest record format that may be written.
    pub(crate) record_format: u32,
}

impl Shared {
    pub(crate) fn of(shared: &SharedSettings) -> Self {
        Self {
            epoch: shared.epoch,
            max_clock_skew: shared.max_clock_skew,
            max_ttl: shared.of(&MAX_TTL),
            record_format: shared.record_format,
        }
    }
}

/// The times to live that may be asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) min_ttl: Duration,
    pub(super) max_ttl: Duration,
}

impl Limits {
    /// The shortest and the longest.
    pub(super) fn both(&self) -> (Duration, Duration) {
        (self.min_ttl.min(self.max_ttl), self.max_ttl)
    }

    /// Checks, before anything is sent, that what is asked for is possible here.
    pub(super) fn allow_request(&self, request: &Request) -> Result<()> {
        request.validate()?;
        request.asked_ttl()?.map_or(Ok(()), |ttl| self.allow(ttl))
    }

    /// Refuses a time to live that the limits do not allow: a lease that ends long before its holder expects it to is
    /// worse than none.
    pub(super) fn allow(&self, ttl: Ttl) -> Result<()> {
        let asked = ttl.as_duration();
        let (shortest, longest) = self.both();
        let way_out = match asked {
            longer if longer > longest => {
                "an operator can allow longer ones in the store: leasehold store set --max-ttl"
            }
            shorter if shorter < shortest => "the setting min_ttl allows shorter ones",
            _ => return Ok(()),
        };
        let (shortest, longest, asked) = (in_words(shortest), in_words(longest), in_words(asked));
        Err(Error::invalid(format!("TTL must be between {shortest} and {longest} (got {asked}); {way_out}")))
    }

    /// How long a lease may last that is there already, or that the library takes for itself.
    pub(super) fn clamp(&self, ttl: Ttl) -> Result<Ttl> {
        Ok(ttl.clamp(Ttl::new(self.min_ttl)?, Ttl::new(self.max_ttl)?))
    }
}
