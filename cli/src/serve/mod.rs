//! `leasehold serve`: the lock service, HTTP and JSON over the library, with its idle sweeper running.

mod auth;
mod board;
mod decisions;
mod events;
mod health;
mod input;
mod leases;
mod limits;
mod openapi;
mod overview;
mod page;
mod problem;
mod routes;
mod sweeps;

use self::{auth::Tokens, board::Board, health::Pulse, limits::Patience, overview::Index};
use axum_server::{Handle, Server, tls_rustls::RustlsConfig};
use hyper_util::rt::TokioTimer;
use leasehold::{Clock, Settings, Store, SystemClock, clock::Moment};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    error::Error,
    io::Write,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{signal::unix::SignalKind, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

type Failure = Box<dyn Error + Send + Sync>;

/// What the service is started with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Where to listen. Beyond loopback a token is needed
    #[arg(long, env = "LEASEHOLD_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// A file with one token in each line; clients send one of them as `Authorization: Bearer TOKEN`
    #[arg(long, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The certificate chain, as PEM, to speak HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// For how long a request may wait for a lease, whatever it asks for
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    max_wait: Duration,
    /// How many requests may wait or watch at once
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_waiting: usize,
    /// How many connections may be open at once
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    max_connections: usize,
    /// How long requests have to come to an end after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = humantime::parse_duration)]
    drain: Duration,
    /// How long nobody must have asked for anything before the sweeper begins
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    sweep_after: Duration,
    /// How often to see whether it is time for the sweeper
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    sweep_tick: Duration,
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
    /// Places to wait in, and how many there are.
    seats: Arc<Semaphore>,
    max_waiting: usize,
    board: Board,
    pulse: tokio::sync::Mutex<Pulse>,
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

/// Serves until SIGTERM or SIGINT, then drains.
pub(crate) async fn run(url: &str, settings: Settings, args: Args) -> Result<(), Failure> {
    let tokens = args.token_file.as_deref().map(Tokens::read).transpose()?.unwrap_or_default();
    let loopback_only = args.listen.ip().is_loopback();
    if !loopback_only && !tokens.are_required() {
        return Err(format!(
            "{} can be reached from other machines: give --token-file, or listen on 127.0.0.1",
            args.listen
        )
        .into());
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => {
            let mut config = (*RustlsConfig::from_pem_file(cert, key).await?.get_inner()).clone();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some(RustlsConfig::from_config(Arc::new(config)))
        }
        _ => None,
    };
    let listener = TcpListener::bind(args.listen).map_err(|error| format!("{} cannot be had: {error}", args.listen))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;

    let metrics = health::install()?;
    let mut settings = settings;
    settings.sweep.idle_grace = args.sweep_after;
    settings.sweep.tick = args.sweep_tick;
    let store = Store::builder().url(url).settings(settings).open().await?;
    let sweeper = store.start_sweeper();
    let clock = SystemClock::new();
    let app = App(Arc::new(Shared {
        clock,
        started: clock.monotonic(),
        tokens,
        loopback_only,
        max_wait: args.max_wait,
        idle_grace: args.sweep_after,
        seats: Arc::new(Semaphore::new(args.max_waiting.min(Semaphore::MAX_PERMITS))),
        max_waiting: args.max_waiting.min(Semaphore::MAX_PERMITS),
        board: Board::new(&store),
        pulse: Default::default(),
        index: Default::default(),
        sweeping: Default::default(),
        metrics,
        draining: CancellationToken::new(),
        tasks: TaskTracker::new(),
        store: store.clone(),
    }));
    let keeper = tokio::spawn(board::keep(app.clone()));
    say(&app, address, tls.is_some())?;

    let handle = Handle::new();
    tokio::spawn(drain(app.clone(), handle.clone(), args.drain));
    let service = routes::router(app.clone()).into_make_service();
    let plain = axum_server::from_tcp(listener)?.handle(handle);
    match tls {
        Some(tls) => {
            let acceptor = axum_server::tls_rustls::RustlsAcceptor::new(tls);
            tuned(plain.map(|_| Patience::new(acceptor, args.max_connections))).serve(service).await?;
        }
        None => tuned(plain.map(|inner| Patience::new(inner, args.max_connections))).serve(service).await?,
    }
    // What is left has a client that has gone.
    keeper.abort();
    let rest = async {
        app.tasks.close();
        app.tasks.wait().await;
        sweeper.stop().await;
        store.settle().await;
    };
    tokio::select! {
        biased;
        () = rest => {}
        () = clock.sleep(args.drain) => tracing::warn!("not everything came to an end in time; leases end by themselves"),
    }
    Ok(())
}

fn tuned<A>(server: Server<SocketAddr, A>) -> Server<SocketAddr, A> {
    let mut server = server.http1_only();
    let mut http = server.http_builder().http1();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME)
        .max_buf_size(limits::HEADERS)
        .max_headers(64);
    server
}

/// Waits for a signal, then lets no more in, sends home who waits, and lets the rest finish.
async fn drain(app: App, handle: Handle<SocketAddr>, longest: Duration) {
    let signal = |kind| async move {
        match tokio::signal::unix::signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signal(SignalKind::terminate()) => {}
        () = signal(SignalKind::interrupt()) => {}
    }
    tracing::info!("draining");
    app.draining.cancel();
    handle.graceful_shutdown(Some(longest));
}

fn say(app: &App, address: SocketAddr, tls: bool) -> std::io::Result<()> {
    let scheme = if tls { "https" } else { "http" };
    let token = if app.tokens.are_required() { "required" } else { "none: only this machine can call" };
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening  {scheme}://{address}")?;
    writeln!(out, "store      {}", app.store)?;
    writeln!(out, "token      {token}")?;
    writeln!(out, "page       {scheme}://{address}/")?;
    out.flush()
}
