//! Lock cycles: acquire, do nothing, release.

use crate::{Raw, Result, TTL, Tally, Task, shape::LockShape, work};
use futures_util::future::try_join_all;
use leasehold::{
    Clock, Key, Leases, SystemClock,
    clock::Moment,
    lease::{Acquired, Request},
};
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions, UpdateVersion, path::Path};
use std::{collections::HashMap, sync::Arc, time::Duration};

pub(crate) async fn run(task: &Arc<Task>) -> Result<serde_json::Value> {
    let mut workers = Vec::new();
    // One handle for all workers of a process, as a program would have it.
    let leases = match task.contender.as_str() {
        "ours" | "new" => Some(task.store().await?.leases("default")?),
        _ => None,
    };
    let (raw, shape) = (task.raw()?, LockShape::of(task).await?);
    for number in 0..task.concurrency {
        let way = match (task.contender.as_str(), &leases) {
            ("ours" | "new", Some(leases)) => Way::Ours(Ours::new(leases.clone(), task)?),
            ("raw", _) => Way::Raw(Plain::new(&raw, &shape, task)),
            ("naive", _) => Way::Naive(Plain::new(&raw, &shape, task)),
            ("lockd", _) => Way::Lockd(Plain::new(&raw, &shape, task)),
            (other, _) => return Err(format!("{other} is no contender").into()),
        };
        workers.push(Worker { number, way });
    }
    if task.contender == "lockd" {
        // In a store that is in use there are always some: MinIO refuses a write into a folder that it is about to remove.
        raw.put(&shape.entry.path(task.folder(), "another"), shape.entry.body(0)).await?;
    }
    // Connections are there, and so are keys that come again.
    if task.workload == "one" {
        workers[0].warm(task).await?;
    } else {
        try_join_all(workers.iter_mut().map(|worker| worker.warm(task))).await?;
    }
    let run = |mut worker: Worker, end: Moment| {
        let task = Arc::clone(task);
        async move { worker.run(&task, end).await }
    };
    work(workers, run, task).await
}

struct Worker {
    number: usize,
    way: Way,
}

/// How a lock is taken and given back.
enum Way {
    /// Two conditional writes, of what is known to be there: the least that a lock can cost.
    Raw(Plain),
    /// The library.
    Ours(Ours),
    /// A read before each of the two.
    Naive(Plain),
    /// The requests that lockd 0.9.0 makes for the same, one after another, as its source has them.
    Lockd(Plain),
}

impl Worker {
    async fn warm(&mut self, task: &Task) -> Result<()> {
        let far = SystemClock::new().monotonic().plus(Duration::from_secs(60));
        for turn in 0..task.turns() {
            self.cycle(&task.key(self.number, turn), far).await?;
        }
        if task.turns() == 0 {
            self.cycle(&format!("{}-warm-{:05}", task.prefix, self.number), far).await?;
        }
        Ok(())
    }

    async fn run(&mut self, task: &Task, end: Moment) -> Tally {
        let clock = SystemClock::new();
        let mut tally = Tally::default();
        let mut turn = 0;
        loop {
            let began = clock.monotonic();
            if began >= end {
                return tally;
            }
            let key = task.key(self.number, turn);
            tally.add(began, self.cycle(&key, end).await);
            turn += 1;
        }
    }

    /// False if it was still waiting when the time was up.
    async fn cycle(&mut self, key: &str, end: Moment) -> Result<bool> {
        match &mut self.way {
            Way::Ours(ours) => return ours.cycle(key, end).await,
            Way::Raw(plain) => plain.two_writes(key).await?,
            Way::Naive(plain) => plain.reads_before_writes(key).await?,
            Way::Lockd(plain) => plain.pattern_of_lockd(key).await?,
        }
        Ok(true)
    }
}

struct Ours {
    leases: Leases,
    request: Request,
    waits: bool,
}

impl Ours {
    fn new(leases: Leases, task: &Task) -> Result<Self> {
        let request = Request::new(TTL).owner("bench");
        let request = if task.contender == "new" { request.new_key() } else { request };
        Ok(Self { leases, request, waits: task.workload == "one" })
    }

    async fn cycle(&self, key: &str, end: Moment) -> Result<bool> {
        let key = Key::new(key)?;
        let acquired = if self.waits {
            let left = end.since(SystemClock::new().monotonic());
            self.leases.acquire_within(&key, &self.request, left).await?
        } else {
            self.leases.acquire(&key, &self.request).await?
        };
        match acquired {
            Acquired::Granted(grant) => self.leases.release(&grant).await?,
            Acquired::Held(_) if self.waits => return Ok(false),
            Acquired::Held(held) => return Err(format!("{key} is held: {held:?}").into()),
        }
        Ok(true)
    }
}

/// A handle, and what is known of the keys.
struct Plain {
    store: Raw,
    shape: LockShape,
    folder: String,
    versions: HashMap<String, UpdateVersion>,
    /// Keys that never come again are not remembered.
    remembers: bool,
    writes: u64,
}

impl Plain {
    fn new(store: &Raw, shape: &LockShape, task: &Task) -> Self {
        Self {
            store: store.clone(),
            shape: shape.clone(),
            folder: task.folder().to_owned(),
            versions: HashMap::new(),
            remembers: task.turns() > 0,
            writes: 0,
        }
    }

    fn record(&self, key: &str) -> Path {
        self.shape.held.path(&self.folder, key)
    }

    async fn put(
        &mut self,
        path: &Path,
        held: bool,
        version: Option<UpdateVersion>,
    ) -> Result<UpdateVersion, StoreError> {
        self.writes += 1;
        let body = if held { &self.shape.held } else { &self.shape.free }.body(self.writes);
        let mode = version.map_or(PutMode::Create, PutMode::Update);
        Ok(self.store.put_opts(path, body, PutOptions::from(mode)).await?.into())
    }

    async fn get(&self, path: &Path) -> Result<Option<UpdateVersion>, StoreError> {
        match self.store.get(path).await {
            Ok(found) => {
                let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                found.bytes().await?;
                Ok(Some(version))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn two_writes(&mut self, key: &str) -> Result<()> {
        let path = self.record(key);
        let known = self.versions.remove(key);
        let held = self.put(&path, true, known).await?;
        let free = self.put(&path, false, Some(held)).await?;
        if self.remembers {
            self.versions.insert(key.to_owned(), free);
        }
        Ok(())
    }

    async fn reads_before_writes(&mut self, key: &str) -> Result<()> {
        let path = self.record(key);
        for held in [true, false] {
            let known = self.get(&path).await?;
            self.put(&path, held, known).await?;
        }
        Ok(())
    }

    async fn pattern_of_lockd(&mut self, key: &str) -> Result<()> {
        let (path, entry) = (self.record(key), self.shape.entry.path(&self.folder, key));
        let held = match self.put(&path, true, None).await {
            Ok(held) => held,
            Err(StoreError::AlreadyExists { .. }) => {
                let known = self.get(&path).await?;
                self.put(&path, true, known).await?
            }
            Err(error) => return Err(error.into()),
        };
        self.store.put(&entry, self.shape.entry.body(0)).await?;
        self.put(&path, false, Some(held)).await?;
        self.store.delete(&entry).await?;
        Ok(())
    }
}
