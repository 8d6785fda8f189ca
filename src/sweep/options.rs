//! How a single pass is made by hand.

use super::Report;
use crate::Namespace;
use std::{fmt, time::Duration};

/// How a single pass is made by hand.
#[derive(Default)]
#[must_use]
pub struct SweepOptions {
    pub(super) dry_run: bool,
    pub(super) namespace: Option<Namespace>,
    pub(super) op_delay: Option<Duration>,
    pub(super) max_ops: Option<u32>,
    pub(super) heed_activity: bool,
    pub(super) progress: Option<Progress>,
}

pub(super) type Progress = Box<dyn Fn(&Report) + Send + Sync>;

impl SweepOptions {
    /// One whole pass over everything, at the pace of the settings, whether or not anybody is active.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to say only what would be done.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Only what is in one namespace; everything with `None`.
    pub fn namespace(mut self, namespace: impl Into<Option<Namespace>>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Another pace than the settings'.
    pub fn op_delay(mut self, delay: Duration) -> Self {
        self.op_delay = Some(delay);
        self
    }

    /// Looks at so many entries at the most, or at all of them with `None`. Listings are not counted here.
    pub fn max_ops(mut self, entries: impl Into<Option<u32>>) -> Self {
        self.max_ops = entries.into();
        self
    }

    /// Whether to stop when a user asks for something.
    pub fn heed_activity(mut self, heed: bool) -> Self {
        self.heed_activity = heed;
        self
    }

    /// Is told after every entry what has been done so far.
    pub fn progress(mut self, tell: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }
}

impl fmt::Debug for SweepOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepOptions")
            .field("dry_run", &self.dry_run)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
