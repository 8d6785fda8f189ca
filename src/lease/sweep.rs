//! How the sweeper settles leases, and how it takes turns by one.

use super::{
    engine::Engine,
    flight::{Flight, Intent},
    record::{self, Record, State},
    types::{Acquired, Request},
};
use crate::{
    Bucket, Error, Key, LeaseId, Namespace, Result, index,
    store::{
        Name,
        cas::{self, Outcome, Slot},
    },
    sweep::{Entry, Shelf, Sweepable, Turn, TurnTaken, Verdict},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

#[derive(Debug)]
pub(crate) struct LeaseSweep(pub(crate) Arc<Engine>);

/// A record found by its name: an entry may stand for a key whose name is a hash.
#[derive(Debug)]
struct Named {
    name: Name,
}

impl Slot for Named {
    type Record = Keyed;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn encode(&self, _: &Keyed) -> Result<Bytes> {
        Err(Error::corrupt("a record is not written by its name"))
    }

    fn decode(&self, body: Bytes) -> Result<Keyed> {
        let (key, record) = record::decode(body)
            .map_err(|why| Error::corrupt(format!("the record {} cannot be read: {why}", self.name)))?;
        Ok(Keyed { key, record })
    }
}

#[derive(Debug, Clone)]
struct Keyed {
    key: Key,
    record: Record,
}

impl cas::Record for Keyed {
    fn write_id(&self) -> crate::WriteId {
        self.record.write_id
    }

    fn revision(&self) -> u64 {
        self.record.revision
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
        Key::from_name(entry.name).map_err(|error| Error::corrupt(error.to_string()))?;
        let name = Name::new(format!("{}/meta/{}.pb", entry.shelf.label, entry.name));
        let Some(seen) = cas::read(&engine.backend, &Named { name: name.clone() }).await? else {
            return Ok(Verdict::Stale);
        };
        let Keyed { key, record } = seen.record();
        if key.name() != entry.name {
            return Err(Error::corrupt(format!("the record {name} is that of another key, {key}")));
        }
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
        record.must_be_ours(key)?;
        let namespace = Namespace::trusted(&entry.shelf.label);
        let cell = engine.cells.get(&namespace, key);
        let core = engine.hold(&cell).await?;
        let mut flight = Flight::new(engine, &cell, core, Intent::Nothing);
        // On exactly what was read and judged. Whoever was faster has renewed it or taken it over, and filed it anew.
        flight.core().learn(Some(seen.map(|keyed| keyed.record)))?;
        let now = engine.now();
        let build = |base: Option<&Record>, stamp| {
            let mut record = Record::after(base, stamp, now.wall);
            record.lease = None;
            record.waiting = None;
            record
        };
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
