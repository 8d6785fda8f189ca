//! The names and bodies that the library writes, taken from it: whoever runs beside it writes the same bytes to the same
//! kind of place.

use crate::{Result, TTL, Task, wall};
use bytes::Bytes;
use futures_util::TryStreamExt;
use leasehold::{
    Key, Store,
    decision::Decision,
    lease::{Acquired, Request},
};
use leasehold_testkit::TestClock;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};
use std::sync::Arc;

/// One kind of object: where it goes, and what is in it.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    /// The name in two parts, with that of the key or transaction between them.
    name: (String, String),
    body: Bytes,
}

impl Kind {
    async fn find(store: &InMemory, place: &str, key: &str) -> Result<Self> {
        let all: Vec<_> = store.list(None).try_collect().await?;
        let found = all.into_iter().map(|object| object.location).find(|path| {
            let path = path.as_ref();
            path.contains(place) && path.contains(key)
        });
        let path = found.ok_or_else(|| format!("the library wrote nothing to {place}"))?;
        let body = store.get(&path).await?.bytes().await?;
        let (before, after) = path.as_ref().split_once(key).ok_or("a name without its key")?;
        Ok(Self { name: (before.to_owned(), after.to_owned()), body })
    }

    pub(crate) fn path(&self, folder: &str, key: &str) -> Path {
        Path::from(format!("{folder}/{}{key}{}", self.name.0, self.name.1))
    }

    /// Different from one number to the next, as ids make every record differ.
    pub(crate) fn body(&self, number: u64) -> PutPayload {
        let mut body = self.body.to_vec();
        let number = number.to_le_bytes();
        let at = body.len().saturating_sub(number.len());
        if at > 0 {
            body[at..].copy_from_slice(&number);
        }
        PutPayload::from(body)
    }
}

/// What a lock cycle leaves behind.
#[derive(Debug, Clone)]
pub(crate) struct LockShape {
    pub(crate) held: Kind,
    pub(crate) free: Kind,
    pub(crate) entry: Kind,
}

impl LockShape {
    pub(crate) async fn of(task: &Task) -> Result<Self> {
        let memory = Arc::new(InMemory::new());
        let leases = in_memory(&memory).await?.leases("default")?;
        let name = task.key(0, 0);
        let key = Key::new(&name)?;
        let request = Request::new(TTL).owner("bench");
        // Its second time: the first is shorter, without a fence before it.
        let mut held = None;
        for _ in 0..2 {
            let Acquired::Granted(grant) = leases.acquire(&key, &request).await? else {
                return Err("a key that nobody else knows is held".into());
            };
            held = Some(Kind::find(&memory, "/meta/", &name).await?);
            leases.release(&grant).await?;
        }
        Ok(Self {
            held: held.ok_or("nothing was acquired")?,
            free: Kind::find(&memory, "/meta/", &name).await?,
            entry: Kind::find(&memory, "/.lease-index/", &name).await?,
        })
    }
}

/// What a decision leaves behind.
#[derive(Debug, Clone)]
pub(crate) struct DecisionShape {
    pub(crate) marker: Kind,
    pub(crate) entry: Kind,
}

impl DecisionShape {
    pub(crate) async fn of() -> Result<Self> {
        let memory = Arc::new(InMemory::new());
        let decisions = in_memory(&memory).await?.decisions().by("bench");
        let txn = decisions.begin();
        let _ = decisions.decide(txn, Decision::Commit).await?;
        let name = txn.to_string();
        Ok(Self {
            marker: Kind::find(&memory, ".txn-decisions/m/", &name).await?,
            entry: Kind::find(&memory, ".txn-decisions/e/", &name).await?,
        })
    }
}

async fn in_memory(memory: &Arc<InMemory>) -> Result<Store> {
    let store = Store::builder().object_store(Arc::clone(memory) as _).shares_our_clock();
    Ok(store.clock(Arc::new(TestClock::at(wall()))).open().await?)
}
