//! Noting in `store.json` how far the stamps of the store's own clocks were found apart.

use super::open::CONFLICTS;
use crate::{
    Result,
    record::{Change, Patience, Plan},
    storage::{Backend, cas, store_json::StoreSlot},
};
use futures_util::{FutureExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

/// Notes a larger spread than is noted, and leaves everything else as it is. One try: the next time object tries again.
pub(super) fn note(backend: Arc<Backend>, spread: Duration) -> BoxFuture<'static, Result<()>> {
    async move {
        let known = cas::read(&backend, &StoreSlot).await?;
        let patience = Patience { within: Duration::ZERO, conflicts: CONFLICTS };
        let mut change = Change::new(&backend, StoreSlot, known.map(Arc::new), patience);
        let changed = change.run(|there, stamp| {
            let now = backend.store_time();
            let noted = there.filter(|there| there.record().spread(now) < spread).zip(now);
            Ok((
                (),
                match noted {
                    Some((there, now)) => Plan::Write(there.record().spread_out(stamp, spread, now)),
                    None => Plan::Stop(()),
                },
            ))
        });
        changed.await.map(drop)
    }
    .boxed()
}
