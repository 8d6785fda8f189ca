//! How the sweeper settles leases, and how it takes turns by one.

use super::{
    engine::Engine,
    flight::{Flight, Intent},
    record::{self, Record, State},
    types::{Acquired, Request},
};
use crate::{
    Bucket, Decoded, Error, Key, LeaseId, Namespace, Result, index,
    store::{Name, cas::Outcome},
    sweep::{Entry, Shelf, Sweepable, Turn, TurnTaken, Verdict},
};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};

#[derive(Debug)]
pub(crate) struct LeaseSweep(pub(crate) Arc<Engine>);

impl LeaseSweep {
    /// The key that an entry stands for; where its name is a hash, only the record says. `None` if there is no record.
    async fn key(&self, entry: &Entry<'_>) -> Result<Option<Key>> {
        match Key::from_name(entry.name) {
            Ok(Decoded::Key(key)) => return Ok(Some(key)),
            Ok(Decoded::Hashed) => {}
            Err(error) => return Err(Error::corrupt(error.to_string())),
        }
        let name = Name::new(format!("{}/meta/{}.pb", entry.shelf.label, entry.name));
        let Some(fetched) = self.0.backend.get(&name).await? else { return Ok(None) };
        let unreadable = |why| Error::corrupt(format!("the record {name} cannot be read: {why}"));
        let (key, _) = record::decode(fetched.body).map_err(unreadable)?;
        if key.name() != entry.name {
            return Err(Error::corrupt(format!("the record {name} is that of another key, {key}")));
        }
        Ok(Some(key))
    }
}

#[async_trait]
impl Sweepable for LeaseSweep {
    fn kind(&self) -> &'static str {
        "lease"
    }

    async fn shelves(&self) -> Result<Vec<Shelf>> {
        let folders = self.0.backend.folders("").await?;
        let namespaces = folders.into_iter().filter(|folder| Namespace::new(folder).is_ok() || folder == super::OURS);
        Ok(namespaces.map(|label| Shelf { folder: index::lease_folder(&label), label }).collect())
    }

    async fn settle(&self, entry: &Entry<'_>, dry_run: bool) -> Result<Verdict> {
        let engine = &self.0;
        let key = match self.key(entry).await? {
            Some(key) => key,
            None => return Ok(Verdict::Stale),
        };
        let cell = engine.cells.get(&Namespace::trusted(&entry.shelf.label), &key);
        // From before the read until after the swap: nothing of this process comes in between.
        let core = engine.hold(&cell).await?;
        let mut flight = Flight::new(engine, &cell, core, Intent::Nothing);
        engine.read(&cell, flight.core()).await?;
        let Some(record) = flight.core().record() else { return Ok(Verdict::Stale) };
        let Some(lease) = &record.lease else { return Ok(Verdict::Stale) };
        if Bucket::of(lease.expires)? > entry.bucket {
            return Ok(Verdict::Stale);
        }
        if !matches!(engine.judge(Some(lease), engine.now().wall), State::Expired(_)) {
            return Ok(Verdict::Kept);
        }
        if dry_run {
            return Ok(Verdict::Cleared);
        }
        record.must_be_ours(&key)?;
        let now = engine.now();
        let build =
            |base: Option<&Record>, stamp| Record { waiting: None, ..Record::without_lease(base, stamp, now.wall) };
        let outcome = flight.attempt(engine.settings.request_timeout, now, build).await;
        flight.settled();
        match outcome {
            Outcome::Won(seen, _) => {
                flight.core().learn(Some(seen))?;
                Ok(Verdict::Cleared)
            }
            Outcome::Lost(there) => {
                flight.core().learn(there)?;
                Ok(Verdict::Kept)
            }
            Outcome::Unknown(error) => {
                flight.core().forget();
                Err(error)
            }
        }
    }
}

/// The lease by which the processes of a cluster take turns at sweeping.
#[derive(Debug)]
pub(crate) struct LeaseTurn(pub(crate) Arc<Engine>);

#[async_trait]
impl Turn for LeaseTurn {
    async fn take(&self, longest: Duration) -> Result<Option<Box<dyn TurnTaken>>> {
        let engine = &self.0;
        let cell = engine.cells.get(&Namespace::trusted(super::OURS), &Key::new("sweeper")?);
        let request = Request::new(longest)?.owner("sweeper")?;
        Ok(match engine.acquire(&cell, &request).await? {
            Acquired::Granted(grant) => Some(Box::new(Taken { engine: Arc::clone(engine), id: grant.id })),
            Acquired::Held(_) => None,
        })
    }
}

struct Taken {
    engine: Arc<Engine>,
    id: LeaseId,
}

#[async_trait]
impl TurnTaken for Taken {
    async fn give_back(self: Box<Self>) {
        let Ok(key) = Key::new("sweeper") else { return };
        let cell = self.engine.cells.get(&Namespace::trusted(super::OURS), &key);
        if let Err(error) = self.engine.release(&cell, self.id).await {
            tracing::debug!(%error, "the sweeper's turn could not be given back: it ends by itself");
        }
    }
}
