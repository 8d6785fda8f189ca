//! A lock service in place of a store: the same verbs over HTTP.

mod guard;
mod watch;

pub(crate) use guard::RemoteGuard;

use crate::{
    config::{Config, Value},
    exit::{FAILED, Failure, HELD, LOST, TIMED_OUT, UNAVAILABLE, USAGE},
    target::Wanted,
    view::printable,
    wire::{self, Problem, millis},
};
use leasehold::{
    Clock, Key, LeaseId, Namespace, OsGenerator, SystemClock,
    clock::Moment,
    decision::{Decision, TxnId},
    layout::KeyJson,
};
use reqwest::{Certificate, Client, Method, RequestBuilder, Url};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long one request waits inside of the service. Longer waits are made of several.
const SLICE: Duration = Duration::from_secs(20);

/// How long an answer may take, beyond what was asked to be waited for.
const ANSWER: Duration = Duration::from_secs(30);

/// How often a request is repeated when no answer comes. Each of them is safe to repeat.
const RETRIES: u32 = 4;

/// Why there is no answer of the kind that was asked for.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The service says so.
    Problem(Box<Problem>),
    /// The service says nothing.
    Silent(String),
}

impl Refused {
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Problem(problem) => &problem.code,
            Self::Silent(_) => "",
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 429 | 503),
            Self::Silent(_) => true,
        }
    }
}

/// For a sentence.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It may quote what somebody else has written.
            Self::Problem(problem) => f.write_str(&printable(&problem.detail)),
            Self::Silent(why) => f.write_str(why),
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Silent(why) => Self::new(UNAVAILABLE, why),
            Refused::Problem(problem) => {
                let code = match (problem.code.as_str(), problem.status) {
                    ("held", _) => HELD,
                    ("timed_out", _) => TIMED_OUT,
                    ("lost", _) => LOST,
                    (_, 400) => USAGE,
                    (_, 429 | 503) => UNAVAILABLE,
                    _ => FAILED,
                };
                let hint = match problem.code.as_str() {
                    "unauthorized" => "; set LEASEHOLD_TOKEN, or LEASEHOLD_TOKEN_FILE",
                    _ => "",
                };
                Self::new(code, format!("{}{hint}", printable(&problem.detail)))
            }
        }
    }
}

/// A lock service, and the namespace in it.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    base: Url,
    token: Option<String>,
    namespace: Namespace,
    client: Client,
    clock: SystemClock,
    /// The request for a lease that has no answer yet, under a key that only we know.
    asking: Arc<Mutex<Option<(Key, Wanted)>>>,
}

impl Remote {
    pub(crate) fn new(url: &str, config: &Config) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::usage(format!("the service {url:?} cannot be used: {why}"));
        let base = Url::parse(url).map_err(|error| wrong(format!("{error}; write it like http://127.0.0.1:7420")))?;
        if !matches!(base.scheme(), "http" | "https") || !matches!(base.path(), "" | "/") {
            return Err(wrong("write it like http://127.0.0.1:7420".to_owned()));
        }
        // A proxy that buffers would turn waiting into silence.
        let trusted = config.ca.as_ref().map(trusted).transpose()?.unwrap_or_default();
        let client =
            Client::builder().no_proxy().tls_certs_merge(trusted).build().map_err(|error| wrong(error.to_string()))?;
        let token = config.token.clone();
        Ok(Self {
            base,
            token,
            namespace: config.namespace.value.clone(),
            client,
            clock: SystemClock::new(),
            asking: Arc::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        let request = self.client.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn post(&self, path: &str, body: &impl Serialize) -> RequestBuilder {
        let body = serde_json::to_string(body).unwrap_or_default();
        self.request(Method::POST, path).header("content-type", "application/json").body(body)
    }

    /// The query of a key: its bytes, whatever they are.
    fn about(&self, path: &str, pairs: &[(&str, &[u8])]) -> RequestBuilder {
        let mut query = format!("namespace={}", self.namespace);
        for (name, value) in pairs {
            let value = percent_encoding::percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
            query += &format!("&{name}={value}");
        }
        let mut url = self.base.clone();
        url.set_path(path);
        url.set_query(Some(&query));
        let request = self.client.request(Method::GET, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder, within: Duration) -> Result<T, Refused> {
        let silent = |why: String| Refused::Silent(format!("{} did not answer: {why}", self.base));
        let response = request.timeout(within).send().await.map_err(|error| silent(innermost(&error)))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| silent(innermost(&error)))?;
        if status.is_success() {
            // An answer without a body is as good as `null`.
            let body = if body.is_empty() { b"null" } else { &body[..] };
            return serde_json::from_slice(body).map_err(|error| silent(format!("this is no lock service: {error}")));
        }
        Err(match serde_json::from_slice(&body) {
            Ok(problem) => Refused::Problem(Box::new(problem)),
            Err(_) => silent(format!("the answer was {status}")),
        })
    }

    /// Asks until there is an answer, a few times.
    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder, within: Duration) -> Result<T, Refused> {
        self.ask_when(request, within).await.map(|(answer, _)| answer)
    }

    /// The answer to a request, with when that request was sent.
    async fn ask_when<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        within: Duration,
    ) -> Result<(T, Moment), Refused> {
        let mut tries = 0;
        loop {
            let sent = self.clock.monotonic();
            let answer = match request.try_clone() {
                Some(again) => self.send(again, within).await,
                None => return self.send(request, within).await.map(|answer| (answer, sent)),
            };
            match answer {
                Err(refused) if refused.is_retryable() && tries < RETRIES => {
                    self.clock.sleep(Duration::from_millis(100) * 2u32.pow(tries)).await;
                    tries += 1;
                }
                answer => return answer.map(|answer| (answer, sent)),
            }
        }
    }

    /// Acquires a lease, and says from when on its time counts. A lost answer is asked for again by the same key.
    pub(crate) async fn acquire(
        &self,
        key: &Key,
        wanted: &Wanted,
        wait: Duration,
    ) -> Result<(wire::Lease, Moment), Refused> {
        let id = wanted.request_id.clone().unwrap_or_else(|| self.id_of(key));
        if wanted.request_id.is_none() {
            self.note(Some((key.clone(), Wanted { request_id: Some(id.clone()), ..wanted.clone() })));
        }
        let KeyJson { key, key_b64 } = key.clone().into();
        let until = self.clock.monotonic().plus(wait);
        loop {
            let left = until.since(self.clock.monotonic());
            let slice = left.min(SLICE);
            let body = wire::Acquire {
                namespace: Some(self.namespace.to_string()),
                key: key.clone(),
                key_b64: key_b64.clone(),
                owner: wanted.owner.clone(),
                ttl_ms: wanted.ttl.map(millis),
                wait_ms: u32::try_from(slice.as_millis()).unwrap_or(u32::MAX),
                note: wanted.note.clone(),
            };
            let mut request = self.post("/v1/acquire", &body).header(wire::IDEMPOTENCY_KEY, &id);
            if left > slice {
                request = request.header(wire::WAIT, wire::CONTINUES);
            }
            match self.ask_when(request, slice + ANSWER).await {
                // The service may have waited for less than it was asked to.
                Err(refused) if matches!(refused.code(), "held" | "timed_out") && self.clock.monotonic() < until => {}
                answer => {
                    // With no answer, or one that the outcome is not known, it may have been granted.
                    if !answer.as_ref().is_err_and(Refused::is_retryable) {
                        self.note(None);
                    }
                    return answer;
                }
            }
        }
    }

    /// The key by which a request is repeated: that of one before it that has not been answered, or a new one. A grant that
    /// was not heard of would stand in the way of its own holder.
    fn id_of(&self, key: &Key) -> String {
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let unanswered =
            asking.as_ref().filter(|(asked, _)| asked == key).and_then(|(_, wanted)| wanted.request_id.clone());
        unanswered.unwrap_or_else(|| LeaseId::random(&OsGenerator::new()).to_string())
    }

    fn note(&self, asking: Option<(Key, Wanted)>) {
        *self.asking.lock().unwrap_or_else(PoisonError::into_inner) = asking;
    }

    /// Gives back what a request that was given up may have been granted: the same one again says what it was.
    pub(crate) async fn take_back(&self, key: &Key) {
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((_, wanted)) = asking else { return };
        if let Ok((lease, _)) = self.acquire(key, &wanted, Duration::ZERO).await
            && let Err(refused) = self.release(key, &lease.lease_id).await
        {
            tracing::warn!(%key, %refused, "a lease that nobody wants could not be given back: it will expire");
        }
    }

    pub(crate) async fn renew(
        &self,
        key: &Key,
        lease_id: &str,
        ttl: Option<Duration>,
        once_within: Option<Duration>,
    ) -> Result<wire::Lease, Refused> {
        let KeyJson { key, key_b64 } = key.clone().into();
        let namespace = Some(self.namespace.to_string());
        let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let body = wire::Renew { namespace, key, key_b64, lease_id: lease_id.to_owned(), ttl_ms };
        let request = self.post("/v1/renew", &body);
        match once_within {
            Some(within) => self.send(request, within).await,
            None => self.ask(request, ANSWER).await,
        }
    }

    pub(crate) async fn release(&self, key: &Key, lease_id: &str) -> Result<(), Refused> {
        let KeyJson { key, key_b64 } = key.clone().into();
        let namespace = Some(self.namespace.to_string());
        let body = wire::Release { namespace, key, key_b64, lease_id: lease_id.to_owned() };
        self.ask::<serde_json::Value>(self.post("/v1/release", &body), ANSWER).await.map(drop)
    }

    pub(crate) async fn get(&self, key: &Key, peek: bool) -> Result<wire::KeyStatus, Refused> {
        let peek: &[u8] = if peek { b"true" } else { b"false" };
        self.ask(self.about("/v1/lease", &[("key", key.as_bytes()), ("peek", peek)]), ANSWER).await
    }

    pub(crate) async fn list(&self, prefix: &[u8], after: Option<&str>) -> Result<wire::KeyList, Refused> {
        let mut pairs = vec![("prefix", prefix), ("limit", b"500")];
        pairs.extend(after.map(|after| ("after", after.as_bytes())));
        self.ask(self.about("/v1/leases", &pairs), 2 * ANSWER).await
    }

    pub(crate) async fn begin(&self) -> Result<wire::Txn, Refused> {
        self.ask(self.post("/v1/txns", &json!({})), ANSWER).await
    }

    pub(crate) async fn decide(&self, txn: TxnId, decision: Decision, by: &str) -> Result<wire::Decided, Refused> {
        let body = wire::Decide { decision, by: by.to_owned() };
        self.ask(self.post(&format!("/v1/txns/{txn}/decide"), &body), ANSWER).await
    }

    pub(crate) async fn decision(&self, txn: TxnId) -> Result<wire::Txn, Refused> {
        self.ask(self.request(Method::GET, &format!("/v1/txns/{txn}")), ANSWER).await
    }

    pub(crate) async fn forget(&self, txn: TxnId) -> Result<(), Refused> {
        self.ask(self.request(Method::DELETE, &format!("/v1/txns/{txn}")), ANSWER).await
    }

    /// However long it takes; it goes on in the service if we go.
    pub(crate) async fn sweep(&self, sweep: &wire::Sweep) -> Result<wire::SweepReport, Refused> {
        self.send(self.post("/v1/sweep", sweep), Duration::from_secs(3600)).await
    }
}

/// The authorities in a file.
fn trusted(file: &Value<String>) -> Result<Vec<Certificate>, Failure> {
    let wrong = |why: String| Failure::usage(format!("ca = {:?} ({}) cannot be used: {why}", file.value, file.origin));
    let pem = std::fs::read(&file.value).map_err(|error| wrong(error.to_string()))?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
    match found.is_empty() {
        true => Err(wrong("there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)".to_owned())),
        false => Ok(found),
    }
}

/// What went wrong at the bottom of it: the rest only says that a request was sent.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_timeout() { "time ran out".to_owned() } else { cause.to_string() }
}
