//! What a lease under a session is believed in by: the session of this process, as grants and requests know it.

use super::record::SessionName;
use crate::{Ttl, clock::Timestamp};
use std::{fmt::Debug, time::Duration};

/// The session that a new lease is to be held under, as its own process sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Under {
    pub(crate) name: SessionName,
    /// When the session ends unless it is renewed, for people who look.
    pub(crate) expires: Timestamp,
    pub(crate) ttl: Ttl,
}

/// A session of this process.
pub(crate) trait Alive: Debug + Send + Sync {
    /// What a lease under it says of it.
    fn under(&self) -> Under;

    /// How long this process may still believe in it, and so in everything that is held under it.
    fn time_left(&self) -> Duration;
}
