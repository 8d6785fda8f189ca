//! What the verbs talk to: a store that this process opens itself, or a lock service.

use crate::{
    config::Config,
    duration,
    exit::{Failure, LOST, UNAVAILABLE},
    remote::{Refused, Remote, RemoteGuard},
    view::{Grant, Holder, Status, printable},
    wire::DEFAULT_TTL,
};
use futures_util::{StreamExt, stream::BoxStream};
use leasehold::{
    Clock, Error, Key, LeaseId, Leases, Namespace, Settings, Store, StoreBuilder, SystemClock,
    decision::{Answer, Decided, Decision, TxnId},
    lease::{self, Acquired, LossReason, MAX_TTL, Renewed, Request},
    semaphore::{self, SlotAcquired},
    store::Probing,
};
use std::time::Duration;

/// Where leases and decisions are.
#[derive(Debug)]
pub(crate) enum Target {
    /// In a store that this process opens.
    Embedded(Embedded),
    /// Behind a lock service.
    Service(Remote),
}

/// A store that this process has opened, and the leases of one namespace in it.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) store: Store,
    pub(crate) leases: Leases,
    /// For requests that name none.
    default_ttl: Duration,
}

/// The usual time to live, or what comes nearest to it within the limits of the store.
pub(crate) fn default_ttl(store: &Store, settings: &Settings) -> Duration {
    DEFAULT_TTL.max(settings.min_ttl).min(store.shared_settings().of(&MAX_TTL))
}

/// What is asked for, whoever is asked.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// What fits the store, if it is not said.
    pub(crate) ttl: Option<Duration>,
    pub(crate) owner: String,
    pub(crate) note: Option<String>,
    pub(crate) request_id: Option<String>,
}

impl Wanted {
    fn request(&self, embedded: &Embedded) -> Request {
        let mut request = Request::new(self.ttl.unwrap_or(embedded.default_ttl)).owner(self.owner.clone());
        if let Some(note) = &self.note {
            request = request.note(note.clone());
        }
        match &self.request_id {
            Some(id) => request.request_id(id.clone()),
            None => request,
        }
    }
}

/// A lease that is kept alive.
#[derive(Debug)]
pub(crate) enum Guard {
    Embedded(lease::Guard),
    /// A slot of a semaphore.
    Slot(semaphore::Permit),
    Service(RemoteGuard),
}

/// What became of a request for one.
#[derive(Debug)]
pub(crate) enum Locked {
    Granted(Guard),
    /// By whom, and when to ask again.
    Held(Option<Holder>, Duration),
}

impl Guard {
    pub(crate) fn lease_id(&self) -> String {
        match self {
            Self::Embedded(guard) => guard.grant().lease_id().to_string(),
            Self::Slot(permit) => permit.slot().lease_id().to_string(),
            Self::Service(guard) => guard.lease_id(),
        }
    }

    pub(crate) fn fence(&self) -> u64 {
        match self {
            Self::Embedded(guard) => guard.fence().get(),
            Self::Slot(permit) => permit.fence().get(),
            Self::Service(guard) => guard.fence(),
        }
    }

    /// Which slot of a semaphore it is.
    pub(crate) fn slot(&self) -> Option<u32> {
        match self {
            Self::Slot(permit) => Some(permit.number()),
            Self::Embedded(_) | Self::Service(_) => None,
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Embedded(guard) => guard.is_valid(),
            Self::Slot(permit) => permit.is_valid(),
            Self::Service(guard) => guard.is_valid(),
        }
    }

    /// Resolves when it is lost, with why.
    pub(crate) async fn lost(&self) -> String {
        match self {
            // An owner and a reason are what others wrote.
            Self::Embedded(guard) => printable(&guard.lost().await.to_string()),
            Self::Slot(permit) => printable(&permit.lost().await.to_string()),
            Self::Service(guard) => guard.lost().await,
        }
    }

    /// Leaves it to its time to live: this process is about to end, and nothing is to be given back.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    pub(crate) async fn release(self) -> Result<(), Failure> {
        match self {
            Self::Embedded(guard) => Ok(guard.release().await?),
            Self::Slot(permit) => Ok(permit.release().await?),
            Self::Service(guard) => Ok(guard.release().await?),
        }
    }
}

/// How long a write in doubt may take to be settled when the user wants to go, and when nobody answers anyway.
pub(crate) const GOODBYE: Duration = Duration::from_secs(10);
pub(crate) const SHORT_GOODBYE: Duration = Duration::from_secs(1);

/// What comes of it, unless it takes longer than somebody has patience who has said how much.
pub(crate) async fn in_time<T>(
    config: &Config,
    patience: Option<Duration>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(patience) = patience else { return work.await };
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        done = work => done,
        () = clock.sleep(patience) => {
            let who = if config.server.is_some() { "the service" } else { "the store" };
            let waited = duration::short(patience);
            Err(Failure::new(UNAVAILABLE, format!("{who} did not answer within {waited}: try again later")))
        }
    }
}

/// How long opening may take for somebody who waits: nothing can be asked for before, however short the wait.
pub(crate) fn to_open(config: &Config, wait: Option<Duration>) -> Option<Duration> {
    wait.map(|wait| wait.max(config.settings.request_timeout))
}

/// How long asking for a key may take in all: one answer may be under way when the wait is over.
pub(crate) fn to_ask(config: &Config, wait: Option<Duration>) -> Option<Duration> {
    wait.map(|wait| wait.saturating_add(config.settings.request_timeout))
}

/// What became of a request for a lease.
#[derive(Debug)]
pub(crate) enum Asked {
    Granted(Grant),
    /// By whom, and when to ask again.
    Held(Option<Holder>, Duration),
}

/// The service that is asked in place of a store.
fn remote(config: &Config) -> Result<Option<Remote>, Failure> {
    config.server.as_ref().map(|server| Remote::new(&server.value, config)).transpose()
}

/// For what only somebody at the store can do.
pub(crate) fn no_service(config: &Config) -> Result<(), Failure> {
    match &config.server {
        Some(server) => Err(Failure::usage(format!(
            "this cannot be done through a service ({}): name the store itself with --store",
            server.origin
        ))),
        None => Ok(()),
    }
}

/// That somebody else has it is an answer; all else is a failure.
fn held_elsewhere(refused: Refused) -> Result<Asked, Failure> {
    match refused {
        Refused::Problem(problem) if matches!(problem.code.as_str(), "held" | "timed_out") => {
            let again = Duration::from_millis(problem.retry_after_ms.unwrap_or_default());
            Ok(Asked::Held(problem.holder.as_deref().map(Holder::from), again))
        }
        refused => Err(refused.into()),
    }
}

/// How a store that others can share is opened by this program, with everything that is configured.
pub(crate) fn builder(config: &Config) -> Result<StoreBuilder, Failure> {
    let memory = url::Url::parse(&config.store.value).is_ok_and(|url| url.scheme() == "memory");
    match memory {
        true => Err(Failure::usage(format!(
            "store = {:?} ({}): memory is not shared between processes and ends with this one, so nothing would be \
             locked; name a folder such as /var/lib/leases or a bucket such as s3://bucket/prefix (only serve and bench \
             work in memory)",
            config.store.value, config.store.origin
        ))),
        false => Ok(any_builder(config)),
    }
}

/// A builder that allows a store that ends with this process: for `serve`, which many ask, and for `bench`.
pub(crate) fn any_builder(config: &Config) -> StoreBuilder {
    let builder = Store::builder().url(&config.store.value).settings(config.settings.clone());
    // A folder has no certificates.
    let inside = ["file:", "memory:"].iter().any(|scheme| config.store.value.starts_with(scheme));
    let builder = match config.ca.as_ref().filter(|_| !inside) {
        Some(ca) => builder.option("ca_file", &ca.value),
        None => builder,
    };
    config.options.iter().fold(builder, |builder, (name, value)| builder.option(name, value))
}

/// Adds to an error what the store cannot know: that it was asked without credentials.
pub(crate) fn explain(config: &Config, error: Error) -> Failure {
    let s3 = config.store.value.starts_with("s3");
    let given = |name: &str| std::env::var_os(name).is_some() || config.options.contains_key(&name.to_lowercase());
    let anonymous =
        ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
    let mut failure = Failure::from(error);
    if s3 && failure.code == UNAVAILABLE && !anonymous.into_iter().any(given) {
        failure.message.push_str(
            ". No credentials are set, so those of the machine were asked for: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT for a store that is not Amazon's",
        );
    }
    failure
}

impl Embedded {
    /// Opens the store, or makes it.
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        no_service(config)?;
        Self::with(config, builder(config)?).await
    }

    /// Opens the store, or makes it, also one that ends with this process.
    pub(crate) async fn open_any(config: &Config) -> Result<Self, Failure> {
        no_service(config)?;
        Self::with(config, any_builder(config)).await
    }

    /// Opens a store that must be there already: looking at a store must not make one where a URL is misspelt.
    pub(crate) async fn existing(config: &Config) -> Result<Self, Failure> {
        no_service(config)?;
        Self::with(config, builder(config)?.must_exist()).await
    }

    /// Opens an existing store for a command that changes nothing: that needs no proof that the store is safe, and no right to write.
    pub(crate) async fn looking(config: &Config) -> Result<Self, Failure> {
        no_service(config)?;
        Self::with(config, builder(config)?.must_exist().probing(Probing::Never)).await
    }

    async fn with(config: &Config, builder: StoreBuilder) -> Result<Self, Failure> {
        let store = builder.open().await.map_err(|error| explain(config, error))?;
        let leases = store.leases(config.namespace.value.clone())?;
        let default_ttl = default_ttl(&store, &config.settings);
        Ok(Self { store, leases, default_ttl })
    }
}

impl Target {
    /// Where something may be made that was not there.
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        match remote(config)? {
            Some(remote) => Ok(Self::Service(remote)),
            None => Embedded::open(config).await.map(Self::Embedded),
        }
    }

    /// For a user who wants to go while a request for a key is under way: leaves no lease behind that nobody knows of.
    pub(crate) async fn say_goodbye(&self, key: &Key, within: Duration) {
        let settled = async {
            match self {
                // What was dropped is settled in the background, which holds the key until then: reading waits for it.
                Self::Embedded(Embedded { leases, .. }) => drop(leases.get(key).await),
                Self::Service(remote) => remote.take_back(key).await,
            }
        };
        let clock = SystemClock::new();
        tokio::select! {
            () = settled => {}
            () = clock.sleep(within) => {}
        }
    }

    /// Where something must be there already.
    pub(crate) async fn existing(config: &Config) -> Result<Self, Failure> {
        match remote(config)? {
            Some(remote) => Ok(Self::Service(remote)),
            None => Embedded::existing(config).await.map(Self::Embedded),
        }
    }

    /// For whoever changes nothing.
    pub(crate) async fn looking(config: &Config) -> Result<Self, Failure> {
        match remote(config)? {
            Some(remote) => Ok(Self::Service(remote)),
            None => Embedded::looking(config).await.map(Self::Embedded),
        }
    }

    pub(crate) async fn acquire(&self, key: &Key, wanted: &Wanted, wait: Duration) -> Result<Asked, Failure> {
        let embedded = match self {
            Self::Embedded(embedded) => embedded,
            Self::Service(remote) => {
                return match remote.acquire(key, wanted, wait).await {
                    Ok((lease, _)) => Ok(Asked::Granted(Grant::try_from(&lease)?)),
                    Err(refused) => held_elsewhere(refused),
                };
            }
        };
        let request = wanted.request(embedded);
        let acquired = match wait.is_zero() {
            true => embedded.leases.acquire(key, &request).await?,
            false => embedded.leases.acquire_within(key, &request, wait).await?,
        };
        Ok(match acquired {
            Acquired::Granted(grant) => Asked::Granted(Grant::from(&grant)),
            Acquired::Held(held) => Asked::Held(held.by.as_ref().map(Holder::from), held.retry_after),
        })
    }

    /// A lease that is kept alive from then on.
    pub(crate) async fn lock(&self, key: &Key, wanted: &Wanted, wait: Duration) -> Result<Locked, Failure> {
        match self {
            Self::Embedded(embedded) => {
                Ok(match embedded.leases.lock_within(key, &wanted.request(embedded), wait).await? {
                    lease::Locked::Granted(guard) => Locked::Granted(Guard::Embedded(guard)),
                    lease::Locked::Held(held) => Locked::Held(held.by.as_ref().map(Holder::from), held.retry_after),
                })
            }
            Self::Service(remote) => match remote.acquire(key, wanted, wait).await {
                Ok((lease, sent)) => {
                    let guard = RemoteGuard::new(remote.clone(), key.clone(), &lease, sent);
                    Ok(Locked::Granted(Guard::Service(guard)))
                }
                Err(refused) => match held_elsewhere(refused)? {
                    Asked::Held(holder, again) => Ok(Locked::Held(holder, again)),
                    Asked::Granted(_) => Ok(Locked::Held(None, Duration::ZERO)),
                },
            },
        }
    }

    /// One of `size` slots of a semaphore, kept alive from then on.
    pub(crate) async fn slot(
        &self,
        namespace: &Namespace,
        (key, size): (&Key, u32),
        wanted: &Wanted,
        wait: Duration,
    ) -> Result<Locked, Failure> {
        let Self::Embedded(embedded) = self else {
            return Err(Failure::usage("a semaphore (-n) needs the store itself: use --store in place of --server"));
        };
        let semaphores = embedded.store.semaphores(namespace.clone())?;
        Ok(match semaphores.acquire(key, size, &wanted.request(embedded), wait).await? {
            SlotAcquired::Granted(slot) => Locked::Granted(Guard::Slot(semaphores.permit(slot, None))),
            SlotAcquired::Full(full) => {
                Locked::Held(full.held_by.first().map(|by| Holder::from(&by.holder)), full.retry_after)
            }
        })
    }

    pub(crate) async fn renew(&self, key: &Key, id: LeaseId, ttl: Option<Duration>) -> Result<Grant, Failure> {
        match self {
            Self::Embedded(Embedded { leases, .. }) => match leases.renew_by_id(key, id, ttl).await? {
                Renewed::Renewed(grant) => Ok(Grant::from(&grant)),
                Renewed::Lost(loss) => Err(lost(key, id, &why(&loss))),
            },
            Self::Service(remote) => match remote.renew(key, &id.to_string(), ttl, None).await {
                Ok(lease) => Ok(Grant::try_from(&lease)?),
                Err(Refused::Problem(problem)) if problem.code == "lost" => Err(lost(key, id, problem.why())),
                Err(refused) => Err(refused.into()),
            },
        }
    }

    pub(crate) async fn release(&self, key: &Key, id: LeaseId) -> Result<(), Failure> {
        let holder = match self {
            Self::Embedded(Embedded { leases, .. }) => leases.peek(key).await?.holder.as_ref().map(Holder::from),
            Self::Service(remote) => remote.get(key, true).await?.holder.as_ref().map(Holder::from),
        };
        let carried = holder.as_ref().is_some_and(|holder| holder.lease_id == id.to_string());
        // Also what is not held: a lease that has ended is cleared on the way.
        match self {
            Self::Embedded(Embedded { leases, .. }) => leases.release_by_id(key, id).await?,
            Self::Service(remote) => remote.release(key, &id.to_string()).await?,
        }
        match carried {
            true => Ok(()),
            false => Err(not_held(key, id, holder.as_ref())),
        }
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Status, Failure> {
        match self {
            // Looking needs no right to write.
            Self::Embedded(Embedded { leases, .. }) => Ok(Status::from(&leases.peek(key).await?)),
            Self::Service(remote) => Ok(Status::try_from(&remote.get(key, false).await?)?),
        }
    }

    /// What there is, and every change. An error that is not the last item is followed by more.
    pub(crate) fn watch(&self, key: &Key) -> BoxStream<'static, Result<Status, Failure>> {
        match self {
            Self::Embedded(Embedded { leases, .. }) => leases.watch(key).map(|seen| Ok(Status::from(&seen?))).boxed(),
            Self::Service(remote) => remote.watch(key),
        }
    }

    /// One page of keys; those that cannot be read are errors of their own.
    pub(crate) async fn list(&self, prefix: &[u8], after: Option<&str>) -> Result<Page, Failure> {
        match self {
            Self::Embedded(Embedded { leases, .. }) => {
                let after = after.map(|text| leases.cursor(text)).transpose()?;
                let page = leases.list(prefix, after.as_ref(), 500).await?;
                let keys = page.keys.into_iter().map(|status| Ok(Status::from(&status?))).collect();
                Ok(Page { keys, next: page.next.map(|next| next.to_string()) })
            }
            Self::Service(remote) => {
                let page = remote.list(prefix, after).await?;
                let read = page.keys.iter().map(|status| Ok(Status::try_from(status)?));
                let unreadable = page.unreadable.into_iter().map(|why| Err(Failure::failed(why)));
                Ok(Page { keys: read.chain(unreadable).collect(), next: page.next })
            }
        }
    }
}

impl Target {
    pub(crate) async fn begin(&self) -> Result<TxnId, Failure> {
        match self {
            Self::Embedded(Embedded { store, .. }) => Ok(store.decisions().begin()),
            Self::Service(remote) => Ok(remote.begin().await?.txn.parse()?),
        }
    }

    pub(crate) async fn decide(&self, txn: TxnId, decision: Decision, by: &str) -> Result<Decided, Failure> {
        match self {
            Self::Embedded(Embedded { store, .. }) => Ok(store.decisions().by(by).decide(txn, decision).await?),
            Self::Service(remote) => match remote.decide(txn, decision, by).await {
                Ok(decided) => Ok(Decided::Decision(decided.decision)),
                Err(refused) if refused.code() == "too_old" => Ok(Decided::TooOld),
                Err(refused) => Err(refused.into()),
            },
        }
    }

    pub(crate) async fn decision(&self, txn: TxnId) -> Result<Answer, Failure> {
        match self {
            Self::Embedded(Embedded { store, .. }) => Ok(store.decisions().get(txn).await?),
            Self::Service(remote) => Ok(remote.decision(txn).await?.answer.into()),
        }
    }

    pub(crate) async fn forget(&self, txn: TxnId) -> Result<(), Failure> {
        match self {
            Self::Embedded(Embedded { store, .. }) => Ok(store.decisions().forget(txn).await?),
            Self::Service(remote) => Ok(remote.forget(txn).await?),
        }
    }
}

/// One page of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Result<Status, Failure>>,
    pub(crate) next: Option<String>,
}

/// Why a lease cannot be renewed. It may be somebody's who names one that never was.
fn why(loss: &lease::Loss) -> String {
    match (&loss.reason, &loss.taken_by) {
        (LossReason::Taken, Some(by)) => format!("it is held by {}", Holder::from(by).who()),
        (LossReason::Released, None) => "it has ended, or was never granted".to_owned(),
        _ => loss.to_string(),
    }
}

fn lost(key: &Key, id: LeaseId, why: &str) -> Failure {
    let why = printable(why);
    let message = format!("the lease {id} on {key} is lost: {why}; stop what it protects, and acquire it anew");
    Failure::new(LOST, message)
}

fn not_held(key: &Key, id: LeaseId, holder: Option<&Holder>) -> Failure {
    let now = match holder {
        Some(holder) => format!("held by {}, under another lease", holder.who()),
        None => "free".to_owned(),
    };
    Failure::new(LOST, format!("there is nothing to release: {key} is not held by the lease {id}; it is {now}"))
}
