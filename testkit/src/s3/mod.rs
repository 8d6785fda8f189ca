//! An S3 server in this process, on loopback, whose faults and clock a test controls.
//!
//! It exists because the most dangerous behaviour sits between a store and its client library: retries that meet their
//! own write, connections that close after the request has landed. Only real HTTP through the real client shows that,
//! and only a server of our own can count the requests and break them one by one.

mod bucket;
mod call;
mod connection;
mod handler;
mod list;
mod log;
mod reply;
#[cfg(test)]
mod tests;
mod xml;

use self::{bucket::Bucket, log::Log};
use super::{Faults, Flaw, Op};
use bytes::Bytes;
use leasehold::{Clock, clock::Timestamp};
use std::{
    collections::BTreeSet,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};
use tokio::{net::TcpListener, task::JoinSet};

pub use self::log::Request;

/// An S3 server in this process, on loopback, with one bucket. Dropping it stops it and closes its connections.
///
/// It has what a client needs for leases: conditional puts, reads, listings (version 2), single and bulk deletes.
/// ETags are the MD5 of the body, so that equal bodies have equal ETags. Signatures are not verified.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use leasehold::SystemClock;
/// use leasehold_testkit::{Answer, Fault, Op, Rule, S3Server};
/// use std::sync::Arc;
///
/// let server = S3Server::start(Arc::new(SystemClock::new())).await?;
/// // The next write of a record lands, and its writer is not told.
/// server.faults().script(Rule::once(Op::Put, Fault::Lose(Answer::Drop)).on("/meta/"));
/// # Ok(())
/// # }
/// ```
pub struct S3Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl S3Server {
    /// The name of the one bucket.
    pub const BUCKET: &'static str = "bucket";
    /// The access key id that requests must be signed with.
    pub const ACCESS_KEY_ID: &'static str = "leasehold";

    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// The system has no free port.
    pub async fn start(clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            clock,
            date_offset: AtomicI64::new(0),
            hides_date: AtomicBool::new(false),
            checks_signature_time: AtomicBool::new(false),
            bucket_removed: AtomicBool::new(false),
            faults: Faults::none(),
            bucket: Mutex::default(),
            denied: Mutex::default(),
            log: Log::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
        });
        shared.spawn(connection::accept(Arc::clone(&shared), listener));
        Ok(Self { address, shared })
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What `object_store` must be told in order to reach it, but for the bucket: keys that `AmazonS3ConfigKey` parses.
    pub fn options(&self) -> Vec<(String, String)> {
        [
            ("aws_endpoint", self.endpoint().as_str()),
            ("aws_access_key_id", Self::ACCESS_KEY_ID),
            ("aws_secret_access_key", "not verified"),
            ("aws_region", "us-east-1"),
            ("aws_allow_http", "true"),
            ("aws_virtual_hosted_style_request", "false"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// What goes wrong. The name of a listing is its prefix, that of a bulk delete its first object.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Sets the server's clock so many milliseconds ahead of the one that it was started with. `Date` and the times of objects
    /// come from it.
    pub fn set_date(&self, offset_millis: i64) {
        self.shared.date_offset.store(offset_millis, Ordering::SeqCst);
    }

    /// Whether answers lack the `Date` header, as behind a proxy that drops it.
    pub fn hide_date(&self, hide: bool) {
        self.shared.hides_date.store(hide, Ordering::SeqCst);
    }

    /// Whether requests signed more than 15 minutes from the server's time are refused. Not at first: clients sign
    /// with the machine's clock, and test clocks are far from it.
    pub fn check_signature_time(&self, check: bool) {
        self.shared.checks_signature_time.store(check, Ordering::SeqCst);
    }

    /// Removes the bucket: from now on requests are answered with 404 `NoSuchBucket`.
    pub fn remove_bucket(&self) {
        self.shared.bucket_removed.store(true, Ordering::SeqCst);
    }

    /// Every request received so far, in the order in which they had been read to their end.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    /// Forgets the requests received so far.
    pub fn clear_requests(&self) {
        self.shared.log.clear();
    }

    /// The object as it is stored, whatever clients are told.
    pub fn object(&self, name: &str) -> Option<Bytes> {
        self.shared.bucket().objects().get(name).map(|object| object.body.clone())
    }

    /// The names of all objects, in byte order.
    pub fn names(&self) -> Vec<String> {
        self.shared.bucket().objects().keys().cloned().collect()
    }

    /// Writes an object as an operator would: no request, no fault, no condition.
    pub fn put_object(&self, name: &str, body: impl Into<Bytes>) {
        let now = self.shared.now();
        self.shared.bucket().write(name, body.into(), now);
    }

    /// Removes an object as an operator would.
    pub fn delete_object(&self, name: &str) {
        self.shared.bucket().delete([name]);
    }

    /// From now on the server is unsafe in this way.
    pub fn break_rule(&self, flaw: Flaw) {
        self.shared.bucket().break_rule(flaw);
    }

    /// Requests of this kind are answered 403 `AccessDenied`; a bulk delete, as on S3, 200 with that for every name.
    pub fn deny(&self, op: Op) {
        self.shared.denied().insert(op);
    }

    /// Requests of this kind are allowed again.
    pub fn allow(&self, op: Op) {
        self.shared.denied().remove(&op);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // The tasks hold what they are held by: taking them out ends that, and keeps new ones from being started.
        drop(lock(&self.shared.tasks).take());
    }
}

impl fmt::Debug for S3Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What the connections and the test share.
struct Shared {
    clock: Arc<dyn Clock>,
    date_offset: AtomicI64,
    hides_date: AtomicBool,
    checks_signature_time: AtomicBool,
    bucket_removed: AtomicBool,
    faults: Faults,
    bucket: Mutex<Bucket>,
    denied: Mutex<BTreeSet<Op>>,
    log: Log,
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Shared {
    /// The server's time.
    fn now(&self) -> Timestamp {
        let offset = self.date_offset.load(Ordering::SeqCst).saturating_mul(1000);
        Timestamp::from_micros(self.clock.wall().as_micros().saturating_add(offset))
    }

    /// The server's time for the `Date` header; `None` if it is hidden.
    fn date(&self) -> Option<Timestamp> {
        (!self.hides_date.load(Ordering::SeqCst)).then(|| self.now())
    }

    fn checks_signature_time(&self) -> bool {
        self.checks_signature_time.load(Ordering::SeqCst)
    }

    fn is_denied(&self, op: Op) -> bool {
        self.denied().contains(&op)
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        lock(&self.bucket)
    }

    fn denied(&self) -> MutexGuard<'_, BTreeSet<Op>> {
        lock(&self.denied)
    }

    /// Runs until it is done or the server is dropped; not at all if it has been.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = lock(&self.tasks).as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
