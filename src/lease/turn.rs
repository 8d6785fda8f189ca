//! How the sweepers of a cluster take turns: by a lease of the library's own.

use super::{
    acquire::acquire,
    engine::Engine,
    release::release,
    types::{Acquired, Request},
};
use crate::{
    Key, LeaseId, Namespace, Result,
    storage::layout::OURS,
    sweep::{Turn, TurnTaken},
};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};

/// The lease by which the processes of a cluster take turns at sweeping.
#[derive(Debug)]
pub(crate) struct LeaseTurn(pub(crate) Arc<Engine>);

#[async_trait]
impl Turn for LeaseTurn {
    async fn take(&self, longest: Duration) -> Result<Option<Box<dyn TurnTaken>>> {
        let engine = &self.0;
        let entry = engine.keys.get(&Namespace::trusted(OURS), &Key::new("sweeper")?);
        let request = Request::new(longest).owner("sweeper");
        Ok(match acquire(engine, &entry, &request).await? {
            Acquired::Granted(grant) => {
                Some(Box::new(Taken { engine: Arc::clone(engine), id: grant.id, fence: grant.fence().get() }))
            }
            Acquired::Held(_) => None,
        })
    }
}

struct Taken {
    engine: Arc<Engine>,
    id: LeaseId,
    fence: u64,
}

#[async_trait]
impl TurnTaken for Taken {
    fn number(&self) -> u64 {
        self.fence
    }

    async fn give_back(self: Box<Self>) {
        let Ok(key) = Key::new("sweeper") else { return };
        let entry = self.engine.keys.get(&Namespace::trusted(OURS), &key);
        if let Err(error) = release(&self.engine, &entry, self.id).await {
            tracing::debug!(%error, "the sweeper's turn could not be given back: it ends by itself");
        }
    }
}
