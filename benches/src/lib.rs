//! What the benches share.

pub mod counted;

use leasehold::{
    Key, Leases, Store,
    clock::Timestamp,
    internals::bench::Sample,
    lease::{Acquired, Grant, Renewed, Request},
};
use object_store::{
    ObjectStore, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion, memory::InMemory, path::Path,
};
use std::{error::Error, future::Future, sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};

/// Whatever goes wrong ends a bench.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How long leases last here.
pub const TTL: Duration = Duration::from_secs(30);

/// A time to stand still at, where nothing depends on which.
pub fn some_time() -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000)
}

/// The key that is measured with.
pub fn some_key() -> Result<Key> {
    Ok(Key::new("orders/42")?)
}

/// What is asked for.
pub fn request() -> Result<Request> {
    Ok(Request::new(TTL).owner("worker-7"))
}

/// A record like those that [`request`] leads to.
pub fn sample() -> Result<Sample> {
    Ok(Sample::held(some_key()?, "worker-7", some_time(), TTL)?)
}

/// A runtime of one thread.
pub fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().map_err(Into::into)
}

/// Conditional writes without us: the same store, the same name, the same body.
pub struct Raw {
    store: Arc<dyn ObjectStore>,
    path: Path,
    sample: Sample,
    last: PutResult,
}

impl Raw {
    /// With the object in place.
    pub async fn new() -> Result<Self> {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let sample = sample()?;
        let path = Path::from(sample.name());
        let body = PutPayload::from_bytes(sample.encode()?);
        let last = store.put_opts(&path, body, PutOptions::from(PutMode::Create)).await?;
        Ok(Self { store, path, sample, last })
    }

    /// Writes the body once and puts it on the condition that what is there is what was put before.
    pub async fn put(&mut self) -> Result<()> {
        let body = PutPayload::from_bytes(self.sample.encode()?);
        let version = UpdateVersion { e_tag: self.last.e_tag.take(), version: self.last.version.take() };
        let mode = PutOptions::from(PutMode::Update(version));
        self.last = self.store.as_ref().put_opts(&self.path, body, mode).await?;
        Ok(())
    }
}

/// Our leases on the same kind of store, handed in, with one lease held.
pub struct Ours {
    pub store: Store,
    pub leases: Leases,
    pub key: Key,
    pub request: Request,
    pub grant: Grant,
}

impl Ours {
    /// With the lease renewed once, so that everything is warm.
    pub async fn new() -> Result<Self> {
        Self::on(Store::builder().object_store(Arc::new(InMemory::new())).shares_our_clock()).await
    }

    /// The same on another store.
    pub async fn on(builder: leasehold::StoreBuilder) -> Result<Self> {
        let store = builder.open().await?;
        let leases = store.leases("default")?;
        let (key, request) = (some_key()?, request()?);
        let grant = acquired(leases.acquire(&key, &request).await?)?;
        let mut ours = Self { store, leases, key, request, grant };
        ours.renew().await?;
        ours.cycle().await?;
        Ok(ours)
    }

    /// One renewal.
    pub async fn renew(&mut self) -> Result<()> {
        match self.leases.renew(&self.grant).await? {
            Renewed::Renewed(grant) => self.grant = grant,
            Renewed::Lost(loss) => return Err(format!("lost: {loss:?}").into()),
        }
        Ok(())
    }

    /// Gives the lease back and acquires it again.
    pub async fn cycle(&mut self) -> Result<()> {
        self.leases.release(&self.grant).await?;
        self.grant = acquired(self.leases.acquire(&self.key, &self.request).await?)?;
        Ok(())
    }
}

/// The grant, or an error.
pub fn acquired(acquired: Acquired) -> Result<Grant> {
    match acquired {
        Acquired::Granted(grant) => Ok(grant),
        Acquired::Held(held) => Err(format!("held: {held:?}").into()),
    }
}

/// Runs something that does not fail.
pub fn must<T>(runtime: &Runtime, future: impl Future<Output = Result<T>>) -> T {
    match runtime.block_on(future) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// What a program was asked for: one word, then `--name value` or `--name`.
#[derive(Debug, Default)]
pub struct Arguments {
    pub what: String,
    given: Vec<(String, Option<String>)>,
}

impl Arguments {
    /// From the command line, without the program's name.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = Self::default();
        for word in words {
            match (word.strip_prefix("--"), arguments.given.last_mut()) {
                (Some(name), _) => arguments.given.push((name.to_owned(), None)),
                (None, Some((_, value @ None))) => *value = Some(word),
                (None, None) if arguments.what.is_empty() => arguments.what = word,
                (None, _) => return Err(format!("{word:?} is one word too many").into()),
            }
        }
        Ok(arguments)
    }

    /// Whether this was said.
    pub fn flag(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| given == name)
    }

    /// What was given for this.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| given == name)?.1.as_deref()
    }

    /// The same as a number.
    pub fn number<N: std::str::FromStr>(&self, name: &str, otherwise: N) -> Result<N> {
        match self.text(name) {
            None => Ok(otherwise),
            Some(text) => text.parse().map_err(|_| format!("--{name} takes a number, not {text:?}").into()),
        }
    }
}
