//! A queue that has a capacity: producers count what is there now and then, and refuse, wait or go elsewhere.
//!
//! Enqueuing touches nothing shared, so the limit is approximate: within one `capacity_check` every process may add what it
//! believes to have room for. A call that finds room is taken whole.

use super::core::Core;
use crate::{Error, Result, clock::Moment};
use std::{sync::Arc, time::Duration};

/// What a process knows of how full a queue is.
#[derive(Debug, Default)]
pub(crate) struct Room(tokio::sync::Mutex<Option<Counted>>);

#[derive(Debug, Clone, Copy)]
struct Counted {
    at: Moment,
    /// What was there, and what this process has added since.
    load: u64,
}

impl Room {
    /// What waits and runs, as of one `capacity_check` ago at the latest; counts `adding` in if that is below `most`.
    async fn take(&self, core: &Arc<Core>, most: u64, every: Duration, adding: u64) -> Result<Option<u64>> {
        let mut counted = self.0.lock().await;
        let now = core.shared.now();
        let known = counted.filter(|known| now.since(known.at) < every);
        let mut known = match known {
            Some(known) => known,
            None => Counted { at: now, load: super::depth::depth(core).await?.load() },
        };
        let full = known.load >= most;
        if !full {
            known.load = known.load.saturating_add(adding);
        }
        *counted = Some(known);
        Ok(full.then_some(known.load))
    }
}

/// The queue that takes `jobs` that are due now: the one itself, or the one that takes what it has no room for.
pub(crate) async fn admit(core: &Arc<Core>, jobs: u64, wait: Duration) -> Result<Arc<Core>> {
    let deadline = core.shared.now().plus(wait);
    loop {
        let known = core.settings().await?;
        let settings = &known.record().settings;
        let Some(most) = settings.capacity.filter(|_| jobs > 0) else { return Ok(Arc::clone(core)) };
        let every = settings.capacity_check;
        let Some(load) = core.room.take(core, most, every, jobs).await? else { return Ok(Arc::clone(core)) };
        if let Some(overflow) = &settings.overflow {
            return core.shared.core(&core.namespace, overflow);
        }
        let left = deadline.since(core.shared.now());
        if left.is_zero() {
            return Err(Error::unavailable(format!(
                "queue {:?} is full: {load} jobs wait or run, {most} are allowed; try again later, wait for room, or raise \
                 its capacity",
                core.name
            )));
        }
        core.backend().clock.sleep(left.min(every.max(Duration::from_millis(10)))).await;
    }
}
