//! What leases are configured with: by this process, and by all of them alike.

use crate::{
    kind::SharedSetting,
    shared::{Rules, SharedSettings, Stop},
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
}

impl Shared {
    pub(crate) fn of(shared: &SharedSettings) -> Self {
        Self { epoch: shared.epoch, max_clock_skew: shared.max_clock_skew, max_ttl: shared.of(&MAX_TTL) }
    }
}
