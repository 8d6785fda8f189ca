//! What the verbs talk to. Today a store that this process opens itself.

use crate::{
    config::Config,
    exit::{Failure, LOST, UNAVAILABLE},
    view::{Grant, Holder, Status},
};
use futures_util::{Stream, StreamExt};
use leasehold::{
    Clock, Error, Key, LeaseId, Leases, Store, StoreBuilder, SystemClock, Ttl,
    decision::{Answer, Decided, Decision, TxnId},
    lease::{self, Acquired, Cursor, Renewed, Request},
    store::Probing,
};
use std::time::Duration;

/// Where leases and decisions are.
#[derive(Debug)]
pub(crate) enum Target {
    /// In a store that this process opens.
    Embedded(Embedded),
}

/// A store that this process has opened, and the leases of one namespace in it.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) store: Store,
    pub(crate) leases: Leases,
}

/// How long a write in doubt may take to be settled when the user wants to go.
const GOODBYE: Duration = Duration::from_secs(10);

/// What became of a request for a lease.
#[derive(Debug)]
pub(crate) enum Asked {
    Granted(Grant),
    /// By whom, and when to ask again.
    Held(Option<Holder>, Duration),
}

/// How a store is opened by this program, with everything that is configured.
pub(crate) fn builder(config: &Config) -> StoreBuilder {
    let builder = Store::builder().url(&config.store.value).settings(config.settings.clone());
    config.options.iter().fold(builder, |builder, (name, value)| builder.option(name, value))
}

/// The same error, with what the store cannot know: that it was asked without credentials.
pub(crate) fn explain(config: &Config, error: Error) -> Failure {
    let s3 = config.store.value.starts_with("s3");
    let given = |name: &str| std::env::var_os(name).is_some() || config.options.contains_key(&name.to_lowercase());
    let anonymous = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
    let mut failure = Failure::from(error);
    if s3 && failure.code == UNAVAILABLE && !anonymous.into_iter().any(given) {
        failure.message.push_str(
            ". No credentials are set, so those of the machine were asked for: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT for a store that is not Amazon's",
        );
    }
    failure
}

impl Embedded {
    /// Opens the store, or makes it.
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        Self::with(config, builder(config)).await
    }

    /// Opens a store that must be there already: looking at a store must not make one where a URL is misspelt.
    pub(crate) async fn existing(config: &Config) -> Result<Self, Failure> {
        Self::with(config, builder(config).must_exist()).await
    }

    /// The same for whoever changes nothing: that needs no proof that the store is safe, and no right to write.
    pub(crate) async fn looking(config: &Config) -> Result<Self, Failure> {
        Self::with(config, builder(config).must_exist().probing(Probing::Never)).await
    }

    /// For a user who wants to go while a request for a key is under way: leaves no lease behind that nobody knows of.
    pub(crate) async fn say_goodbye(&self, key: &Key) {
        // What was dropped is settled in the background, which holds the key until then: reading waits for it.
        let clock = SystemClock::new();
        tokio::select! {
            _ = self.leases.get(key) => {}
            () = clock.sleep(GOODBYE) => {}
        }
    }

    async fn with(config: &Config, builder: StoreBuilder) -> Result<Self, Failure> {
        let store = builder.open().await.map_err(|error| explain(config, error))?;
        let leases = store.leases(config.namespace.value.clone())?;
        Ok(Self { store, leases })
    }
}

impl Target {
    /// Where something may be made that was not there.
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        Embedded::open(config).await.map(Self::Embedded)
    }

    /// See [`Embedded::say_goodbye`].
    pub(crate) async fn say_goodbye(&self, key: &Key) {
        let Self::Embedded(opened) = self;
        opened.say_goodbye(key).await;
    }

    /// Where something must be there already.
    pub(crate) async fn existing(config: &Config) -> Result<Self, Failure> {
        Embedded::existing(config).await.map(Self::Embedded)
    }

    /// For whoever changes nothing.
    pub(crate) async fn looking(config: &Config) -> Result<Self, Failure> {
        Embedded::looking(config).await.map(Self::Embedded)
    }

    pub(crate) async fn acquire(&self, key: &Key, request: &Request, wait: Duration) -> Result<Asked, Failure> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        let acquired = match wait.is_zero() {
            true => leases.acquire(key, request).await?,
            false => leases.acquire_within(key, request, wait).await?,
        };
        Ok(match acquired {
            Acquired::Granted(grant) => Asked::Granted(Grant::from(&grant)),
            Acquired::Held(held) => Asked::Held(held.by.as_ref().map(Holder::from), held.retry_after),
        })
    }

    pub(crate) async fn renew(&self, key: &Key, id: LeaseId, ttl: Option<Ttl>) -> Result<Grant, Failure> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        match leases.renew_by_id(key, id, ttl).await? {
            Renewed::Renewed(grant) => Ok(Grant::from(&grant)),
            Renewed::Lost(loss) => Err(lost(key, id, &loss)),
        }
    }

    pub(crate) async fn release(&self, key: &Key, id: LeaseId) -> Result<(), Failure> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        let holder = leases.peek(key).await?.holder;
        let carried = holder.as_ref().is_some_and(|holder| holder.lease_id == id);
        // Also what is not held: a lease that has ended is cleared on the way.
        leases.release_by_id(key, id).await?;
        match carried {
            true => Ok(()),
            false => Err(not_held(key, id, holder.as_ref())),
        }
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Status, Failure> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        Ok(Status::from(&leases.get(key).await?))
    }

    pub(crate) fn watch(&self, key: &Key) -> impl Stream<Item = leasehold::Result<Status>> + Unpin + use<> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        leases.watch(key).map(|seen| seen.map(|status| Status::from(&status)))
    }

    /// One page of keys; those that cannot be read are errors of their own.
    pub(crate) async fn list(&self, prefix: &[u8], after: Option<&Cursor>) -> Result<Page, Failure> {
        let Self::Embedded(Embedded { leases, .. }) = self;
        let page = leases.list(prefix, after, 500).await?;
        let keys = page.keys.into_iter().map(|status| Ok(Status::from(&status?))).collect();
        Ok(Page { keys, next: page.next })
    }
}

impl Target {
    pub(crate) fn begin(&self) -> TxnId {
        let Self::Embedded(Embedded { store, .. }) = self;
        store.decisions().begin()
    }

    pub(crate) async fn decide(&self, txn: TxnId, decision: Decision, by: &str) -> Result<Decided, Failure> {
        let Self::Embedded(Embedded { store, .. }) = self;
        Ok(store.decisions().by(by).decide(txn, decision).await?)
    }

    pub(crate) async fn decision(&self, txn: TxnId) -> Result<Answer, Failure> {
        let Self::Embedded(Embedded { store, .. }) = self;
        Ok(store.decisions().decision(txn).await?)
    }

    pub(crate) async fn forget(&self, txn: TxnId) -> Result<(), Failure> {
        let Self::Embedded(Embedded { store, .. }) = self;
        Ok(store.decisions().forget(txn).await?)
    }
}

/// One page of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Result<Status, Failure>>,
    pub(crate) next: Option<Cursor>,
}

fn lost(key: &Key, id: LeaseId, loss: &lease::Loss) -> Failure {
    let now = match &loss.taken_by {
        Some(holder) => format!("it is held by {}", Holder::from(holder).who()),
        None => "it has ended, or was never granted".to_owned(),
    };
    let message = format!("the lease {id} on {key} is lost: {now}; stop what it protects, and acquire it anew");
    Failure::new(LOST, message)
}

fn not_held(key: &Key, id: LeaseId, holder: Option<&lease::Holder>) -> Failure {
    let now = match holder {
        Some(holder) => format!("held by {}, under another lease", Holder::from(holder).who()),
        None => "free".to_owned(),
    };
    Failure::new(LOST, format!("there is nothing to release: {key} is not held by the lease {id}; it is {now}"))
}
