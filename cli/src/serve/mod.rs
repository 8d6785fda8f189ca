//! `leasehold serve`: the lock service, HTTP and JSON over the library, with its idle sweeper running.

#![allow(clippy::result_large_err, reason = "a problem is made once and sent as the answer")]

mod answer;
mod auth;
mod board;
mod clock;
mod decisions;
mod events;
mod health;
mod input;
mod jobs;
mod leases;
mod limits;
mod log;
mod openapi;
mod overview;
mod page;
mod places;
mod problem;
mod reload;
mod rights;
mod routes;
mod semaphores;
mod sweeps;

use self::{auth::Tokens, board::Board, health::Pulse, limits::Patience, overview::Index};
use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output, target,
};
use axum_server::{
    Handle, Server,
    accept::NoDelayAcceptor,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use leasehold::{Clock, Settings, Store, SystemClock, clock::Moment};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen. Beyond loopback a token is needed
    #[arg(long, env = "LEASEHOLD_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// A file with one token in each line, and what it may do; clients send one of them as `Authorization: Bearer TOKEN`
    #[arg(long, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The certificate chain, as PEM, to speak HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// For how long a request may wait for a lease, whatever it asks for
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    max_wait: Duration,
    /// How many requests may wait or watch at once
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_waiting: usize,
    /// How many connections may be open at once
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    max_connections: usize,
    /// How lines of the log on stderr are written: `text` or `json`
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// How long requests have to come to an end after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration::parse)]
    drain: Duration,
    /// How long nobody must have asked for anything before the sweeper begins [default: settings.sweep.idle_grace]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle_grace: Option<Duration>,
    /// How long the sweeper waits between two entries [default: settings.sweep.op_delay]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    op_delay: Option<Duration>,
    /// How often to see whether it is time for the sweeper [default: settings.sweep.tick]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    tick: Option<Duration>,
}

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object in each line, with its time.
    Json,
}

/// What all handlers share. Cheap to clone.
#[derive(Debug, Clone)]
struct App(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Store,
    clock: SystemClock,
    started: Moment,
    tokens: Tokens,
    loopback_only: bool,
    max_wait: Duration,
    idle_grace: Duration,
    /// For requests that name none.
    default_ttl: Duration,
    /// Places to wait in, and how many there are.
    seats: Arc<Semaphore>,
    max_waiting: usize,
    board: Board,
    /// Memory for large bodies.
    room: Arc<Semaphore>,
    /// Who works through this service, and what they have in hand.
    work: jobs::Work,
    pulse: tokio::sync::Mutex<Pulse>,
    trouble: log::Trouble,
    places: places::Places,
    index: tokio::sync::Mutex<Index>,
    /// Held during a sweep by hand.
    sweeping: Arc<tokio::sync::Mutex<()>>,
    metrics: PrometheusHandle,
    /// Cancelled when the service begins to go down.
    draining: CancellationToken,
    /// What has to come to an end before the process does.
    tasks: TaskTracker,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Serve {
    /// Serves until SIGTERM or SIGINT, then drains.
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        target::no_service(config)?;
        let wrong = |error: std::io::Error| Failure::usage(error.to_string());
        let tokens = self.token_file.as_deref().map(Tokens::read).transpose().map_err(wrong)?.unwrap_or_default();
        if !self.listen.ip().is_loopback() && !tokens.are_required() {
            return Err(Failure::usage(format!(
                "{} can be reached from other machines: give --token-file, or listen on 127.0.0.1",
                self.listen
            )));
        }
        let tls =
            self.tls().await.map_err(|error| Failure::usage(format!("the certificate cannot be used: {error}")))?;
        let taken = |error| Failure::failed(format!("{} cannot be listened on: {error}", self.listen));
        let listener = TcpListener::bind(self.listen).map_err(taken)?;
        listener.set_nonblocking(true).map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let metrics = health::install().map_err(|error| Failure::failed(format!("nothing can be counted: {error}")))?;

        let mut settings = config.settings.clone();
        settings.sweep.idle_grace = self.idle_grace.unwrap_or(settings.sweep.idle_grace);
        settings.sweep.op_delay = self.op_delay.unwrap_or(settings.sweep.op_delay);
        settings.sweep.tick = self.tick.unwrap_or(settings.sweep.tick);
        let opened = target::any_builder(config).settings(settings.clone()).open().await;
        let store = opened.map_err(|error| target::explain(config, error))?;
        let sweeper = store.sweeper().start();
        let app = self.app(store.clone(), &settings, tokens, metrics);
        let keeper = tokio::spawn(board::keep(app.clone()));
        let reaper = tokio::spawn(jobs::reap(app.clone()));
        let handle = Handle::new();
        tokio::spawn(drain(app.clone(), handle.clone(), self.drain));
        tokio::spawn(reload::on_hangup(app.clone(), self.clone(), tls.clone()));
        say(&app, address, tls.is_some())?;

        let service = routes::router(app.clone()).into_make_service();
        let plain = axum_server::from_tcp(listener).map_err(taken)?.handle(handle);
        let served = match tls {
            Some(tls) => {
                let acceptor =
                    Patience::new(RustlsAcceptor::new(tls).acceptor(NoDelayAcceptor::new()), self.max_connections);
                tuned(plain.acceptor(acceptor)).serve(service).await
            }
            None => {
                tuned(plain.map(|_| Patience::new(NoDelayAcceptor::new(), self.max_connections))).serve(service).await
            }
        };
        served.map_err(taken)?;
        // What is left has a client that has gone.
        keeper.abort();
        reaper.abort();
        let rest = async {
            // Those who have them cannot be told: others take them at once, and a late answer hears of that.
            jobs::give_back(app.work.workers.leave_all()).await;
            app.tasks.close();
            app.tasks.wait().await;
            sweeper.stop().await;
            store.drain().await;
        };
        tokio::select! {
            biased;
            () = rest => {}
            () = app.clock.sleep(self.drain) => tracing::warn!("not everything ended in time; leases end by themselves"),
        }
        Ok(0)
    }

    async fn tls(&self) -> std::io::Result<Option<RustlsConfig>> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let config = RustlsConfig::from_pem_file(cert, key).await?;
        let mut inner = (*config.get_inner()).clone();
        inner.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.reload_from_config(Arc::new(inner));
        Ok(Some(config))
    }

    fn app(&self, store: Store, settings: &Settings, tokens: Tokens, metrics: PrometheusHandle) -> App {
        let clock = SystemClock::new();
        let max_waiting = self.max_waiting.min(Semaphore::MAX_PERMITS);
        App(Arc::new(Shared {
            clock,
            started: clock.monotonic(),
            tokens,
            loopback_only: self.listen.ip().is_loopback(),
            max_wait: self.max_wait,
            idle_grace: settings.sweep.idle_grace,
            default_ttl: target::default_ttl(&store, settings),
            seats: Arc::new(Semaphore::new(max_waiting)),
            max_waiting,
            board: Board::new(&store),
            room: Arc::new(Semaphore::new(limits::ROOM)),
            work: Default::default(),
            pulse: Default::default(),
            trouble: Default::default(),
            places: Default::default(),
            index: Default::default(),
            sweeping: Default::default(),
            metrics,
            draining: CancellationToken::new(),
            tasks: TaskTracker::new(),
            store,
        }))
    }
}

fn tuned<A>(server: Server<SocketAddr, A>) -> Server<SocketAddr, A> {
    let mut server = server.http1_only();
    let mut http = server.http_builder().http1();
    http.timer(TokioTimer::new())
        // Longer than ours for a first request: at the same moment hyper might hang up before it is answered.
        .header_read_timeout(2 * limits::HEADER_TIME)
        .max_buf_size(limits::HEADERS)
        .max_headers(64);
    server
}

/// Waits for a signal, then sends home who waits, lets workers answer for what they have in hand, lets no more in, and lets
/// the rest finish.
async fn drain(app: App, handle: Handle<SocketAddr>, longest: Duration) {
    tokio::select! {
        () = terminated() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("told to end: draining");
    app.draining.cancel();
    let mut left = longest;
    while app.work.workers.in_hand() > 0 && !left.is_zero() {
        let step = left.min(Duration::from_millis(100));
        app.clock.sleep(step).await;
        left -= step;
    }
    handle.graceful_shutdown(Some(longest));
}

#[cfg(unix)]
async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}

fn say(app: &App, address: SocketAddr, tls: bool) -> Result<(), Failure> {
    let scheme = if tls { "https" } else { "http" };
    let token = if app.tokens.are_required() { "required" } else { "none: only this machine can call" };
    output::print(format_args!(
        "listening  {scheme}://{address}\nstore      {}\ntoken      {token}\npage       {scheme}://{address}/",
        app.store
    ))
}
