//! A proxy between a client and a real server, which breaks what passes through it.
//!
//! A server of our own can be told what to do wrong; a real one cannot. The proxy makes the network in between go wrong
//! instead, and above all at the worst moment: after the server has carried a request out and before its client is told.

mod connection;
mod exchange;
#[cfg(test)]
mod tests;

use super::Faults;
use leasehold::Clock;
use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// An HTTP proxy on loopback in front of one server. Dropping it closes its connections.
///
/// What goes wrong is said with [`Faults`], by script or by seed. All faults of writes and of connections work; those
/// of a store's contents ([`Shuffle`](super::Fault::Shuffle), [`Gap`](super::Fault::Gap), [`Stale`](super::Fault::Stale),
/// [`Corrupt`](super::Fault::Corrupt)) are a store's own business and do nothing here. The name that a rule looks at is
/// the path of the request, bucket and all, as it is on the wire.
///
/// The `Host` of a request is left as it is, so that signatures hold.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use leasehold::SystemClock;
/// use leasehold_testkit::{Answer, Fault, Proxy, Rates, SeededGenerator};
/// use std::sync::Arc;
///
/// let proxy = Proxy::start("http://127.0.0.1:9000", Arc::new(SystemClock::new())).await?;
/// // Five percent of the writes are applied and not answered.
/// proxy.faults().roll(SeededGenerator::new(7), Rates::none().with(Fault::Lose(Answer::Drop), 50));
/// # Ok(())
/// # }
/// ```
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 for a server at `http://host:port`, which need not be there yet.
    ///
    /// # Errors
    /// `upstream` is no such address, or the system has no port.
    pub async fn start(upstream: &str, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let url = url::Url::parse(upstream).map_err(io::Error::other)?;
        let host = url.host_str().filter(|_| url.scheme() == "http");
        let host = host.ok_or_else(|| io::Error::other(format!("{upstream} is no plain http:// address")))?;
        let upstream = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            clock,
            faults: Faults::none(),
            cuts: watch::Sender::new(()),
            blocked: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            tasks: Mutex::new(Some(JoinSet::new())),
        });
        shared.spawn(connection::accept(Arc::clone(&shared), listener));
        Ok(Self { address, shared })
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Closes every connection now. What the server has received by then, it goes on with.
    pub fn cut(&self) {
        self.shared.cuts.send_replace(());
    }

    /// Whether the network is down: connections are closed, and new ones as soon as they are made.
    pub fn block(&self, blocked: bool) {
        self.shared.blocked.store(blocked, Ordering::SeqCst);
        if blocked {
            self.cut();
        }
    }

    /// How many requests have come in so far.
    pub fn requests(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The tasks hold what they are held by: taking them out ends that, and keeps new ones from being started.
        drop(self.shared.tasks().take());
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .field("upstream", &self.shared.upstream)
            .finish_non_exhaustive()
    }
}

/// What the connections and the test share.
struct Shared {
    upstream: String,
    clock: Arc<dyn Clock>,
    faults: Faults,
    cuts: watch::Sender<()>,
    blocked: AtomicBool,
    passed: AtomicU64,
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Shared {
    /// Runs until it is done or the proxy is dropped; not at all if it has been.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.tasks().as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
