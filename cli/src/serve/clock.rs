//! Whether the clock of this machine is wrong, in words for whoever looks after it.

use leasehold::Store;
use serde::Serialize;
use std::fmt;
use utoipa::ToSchema;

/// This machine's clock and the store's, certainly further apart than they may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct WrongClock {
    ours_ms: i64,
    theirs_ms: i64,
    /// In the words of `/readyz`.
    what: String,
}

impl WrongClock {
    /// `None` if the clock is right, as far as is known.
    pub(super) fn of(store: &Store) -> Option<Self> {
        let state = store.clock_state();
        let (ours, theirs) = (state.ours, state.theirs.filter(|_| state.is_wrong)?);
        Some(Self {
            ours_ms: ours.as_millis(),
            theirs_ms: theirs.as_millis(),
            what: format!(
                "wrong clock: this machine's says {ours}, the store's says {theirs}, and they may differ by {} ms; set this \
                 machine's clock (chrony, systemd-timesyncd)",
                state.allowed.as_millis()
            ),
        })
    }
}

impl fmt::Display for WrongClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
