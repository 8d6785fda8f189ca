//! Records that are sealed JSON: a body of any kind, beside what compare-and-swap needs of every record.

use super::{Change, Changed, Patience, Plan};
use crate::{
    Error, Result, WriteId,
    storage::{
        Backend, Name,
        cas::{self, Record, Seen, Slot},
        seal::{seal, unseal},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{fmt::Debug, sync::Arc, time::Duration};

/// How long a change of such a record goes on trying.
const PATIENCE: Patience = Patience { within: Duration::from_secs(30), conflicts: 16 };

/// What a record says.
pub(crate) trait Body: Serialize + DeserializeOwned + Debug + Clone + Send + Sync {
    /// The format that this version writes. A later one is refused.
    const FORMAT: u32;
    /// How messages call such a record.
    const WHAT: &'static str;
}

/// A record with its body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sealed<T> {
    format: u32,
    write_id: WriteId,
    revision: u64,
    #[serde(flatten)]
    pub(crate) body: T,
}

impl<T: Body> Record for Sealed<T> {
    fn write_id(&self) -> WriteId {
        self.write_id
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

/// Where one stands. The body is never there: it only says which kind of record this is.
#[derive(Debug, Clone)]
struct Place<T>(Name, Option<T>);

impl<T: Body> Slot for Place<T> {
    type Record = Sealed<T>;

    fn name(&self) -> Name {
        self.0.clone()
    }

    fn encode(&self, record: &Sealed<T>) -> Result<Bytes> {
        let body = seal(record);
        Ok(body
            .map_err(|error| Error::corrupt(format!("{} cannot be written down", T::WHAT)).with_source(error))?
            .into())
    }

    fn decode(&self, body: Bytes) -> Result<Sealed<T>> {
        let unreadable = |error| {
            Error::corrupt(format!("{} {} cannot be read; an operator must look at it", T::WHAT, self.0))
                .with_source(error)
        };
        // A later format may be sealed in another way.
        let Head { format } = serde_json::from_slice(&body).map_err(unreadable)?;
        if format > T::FORMAT {
            return Err(Error::config(format!(
                "{} {} has format {format}, this version knows {}: use a newer version of leasehold",
                T::WHAT,
                self.0,
                T::FORMAT
            )));
        }
        unseal(&body).map_err(unreadable)
    }
}

/// A record as it was read or won.
pub(crate) type Base<T> = Arc<Seen<Sealed<T>>>;

/// How a change ended.
pub(crate) enum Ended<T: Body, O> {
    /// The record is in the store.
    Won(Base<T>),
    /// The plan had nothing to write.
    Stopped(O),
}

/// What a read or won record says.
pub(crate) fn body<T: Body>(base: &Base<T>) -> &T {
    &base.record().body
}

/// Reads a record.
pub(crate) async fn read<T: Body>(backend: &Backend, name: &Name) -> Result<Option<Base<T>>> {
    Ok(cas::read(backend, &Place::<T>(name.clone(), None)).await?.map(Arc::new))
}

/// Changes a record, or makes it: the plan is given the record that the write will be based on, and is asked again
/// after a conflict.
pub(crate) async fn change<T: Body, O>(
    backend: &Arc<Backend>,
    name: &Name,
    base: Option<Base<T>>,
    mut plan: impl FnMut(Option<&Sealed<T>>) -> Result<Plan<T, O>>,
) -> Result<Ended<T, O>> {
    let mut change: Change<_, ()> = Change::new(backend, Place::<T>(name.clone(), None), base, PATIENCE);
    let ended = change.run(|seen, stamp| {
        Ok(match plan(seen.map(Seen::record))? {
            Plan::Write(body) => {
                let record = Sealed { format: T::FORMAT, write_id: stamp.write_id, revision: stamp.revision, body };
                ((), Plan::Write(record))
            }
            Plan::Stop(outcome) => ((), Plan::Stop(outcome)),
        })
    });
    Ok(match ended.await? {
        Changed::Won(seen, ()) => Ended::Won(Arc::new(seen)),
        Changed::Stopped(outcome) => Ended::Stopped(outcome),
    })
}
