//! The `leasehold` program.

mod bench;
#[cfg(test)]
#[path = "../../fuzz/bodies.rs"]
mod bodies;
mod config;
mod doctor;
mod duration;
mod examples;
mod exit;
mod fsck;
mod jobs;
mod lease;
mod lock;
mod output;
mod process;
mod put;
mod remote;
mod semaphore;
mod serve;
mod settings;
mod shell;
mod signals;
mod store;
mod streams;
mod sweep;
mod target;
mod txn;
mod usage;
mod view;
mod waiting;
mod watch;
mod wire;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use config::{Config, Global};
use exit::{Failure, Outcome};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// Leases on nothing but an object store: locks, leader election and decisions for people and scripts.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command while holding a key
    Lock(lock::Lock),
    /// Run a command for as long as this candidate leads, and stand again after a loss
    Elect(lock::Elect),
    /// Get a lease on a key
    Acquire(lease::Acquire),
    /// Make a lease last longer
    Renew(lease::Renew),
    /// Give a lease back, or take one away
    Release(lease::Release),
    /// Show who holds a key
    Get(lease::Get),
    /// Show who holds a key, or all keys with a prefix, and every change of holder
    Watch(watch::Watch),
    /// Show what is held
    List(lease::List),
    /// Put jobs into a queue
    Enqueue(jobs::Enqueue),
    /// Run a command for each job of a queue
    Work(jobs::Work),
    /// Queues: how many jobs they have, what they are set to, pausing them
    #[command(subcommand)]
    Queue(jobs::QueueCommand),
    /// Jobs: looking at them, cancelling them, running them now
    #[command(subcommand)]
    Job(jobs::JobCommand),
    /// Dead letters: jobs that failed for good
    #[command(subcommand)]
    Dead(jobs::DeadCommand),
    /// Show what runs, where, and since when
    Inflight(jobs::Inflight),
    /// Streams: messages in order, and groups that remember how far they have read
    #[command(subcommand)]
    Stream(streams::Command),
    /// The archive of streams: every message in exactly one file
    #[command(subcommand)]
    Archive(streams::ArchiveCommand),
    /// Write an object that refuses a fence older than one that it was written with
    Put(put::Put),
    /// See or change how many may hold a key at once (`lock -n`)
    #[command(subcommand)]
    Semaphore(semaphore::Command),
    /// Decide transactions: commit or abort, once and for all
    #[command(subcommand)]
    Txn(txn::Command),
    /// Tidy what has ended, now
    Sweep(sweep::Sweep),
    /// Find out whether a store is safe for leases, what is missing, and what to do
    Doctor(doctor::Doctor),
    /// Find out what is damaged in a store, and repair it
    Fsck(fsck::Fsck),
    /// What all processes on a store have agreed on
    #[command(subcommand)]
    Store(store::Command),
    /// Run the lock service: HTTP and JSON for those who don't write Rust, and a page for people
    Serve(serve::Serve),
    /// Find out how fast a store is, and what that costs
    Bench(bench::Bench),
    /// How this program is configured
    #[command(subcommand)]
    Config(config::Command),
    /// Print a script that completes commands in your shell
    Completions(shell::Completions),
    /// Print the manual page
    Man,
}

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = process::supervisor::main() {
        return code;
    }
    output::write_errors_as(usage::format_asked_for(std::env::args_os()));
    let cli = match examples::with_examples(Cli::command()).try_get_matches().and_then(|it| Cli::from_arg_matches(&it))
    {
        Ok(cli) => cli,
        Err(error) => return usage::end(&error),
    };
    let as_json = matches!(&cli.command, Command::Serve(serve) if serve.log_format == serve::LogFormat::Json);
    log(&cli.global, as_json);
    output::be_quiet(cli.global.quiet);
    exit::end(run(cli))
}

fn run(cli: Cli) -> Outcome {
    match &cli.command {
        Command::Completions(completions) => return completions.run(examples::with_examples(Cli::command())),
        Command::Man => return shell::man(examples::with_examples(Cli::command())),
        _ => {}
    }
    let config = Config::load(&cli.global)?;
    output::write_errors_as(config.output.value);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("no threads can be started: {error}")))?;
    let outcome = runtime.block_on(dispatch(&cli.command, &config));
    // What was left behind (a release that nobody waits for) has a moment to end.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome.map_err(|failure| failure.pasteable(&config))
}

async fn dispatch(command: &Command, config: &Config) -> Outcome {
    match command {
        Command::Lock(lock) => lock.run(config).await,
        Command::Elect(elect) => elect.run(config).await,
        Command::Acquire(acquire) => acquire.run(config).await,
        Command::Renew(renew) => renew.run(config).await,
        Command::Release(release) => release.run(config).await,
        Command::Get(get) => get.run(config).await,
        Command::Watch(watch) => watch.run(config).await,
        Command::List(list) => list.run(config).await,
        Command::Enqueue(enqueue) => enqueue.run(config).await,
        Command::Work(work) => work.run(config).await,
        Command::Queue(queue) => queue.run(config).await,
        Command::Job(job) => job.run(config).await,
        Command::Dead(dead) => dead.run(config).await,
        Command::Inflight(inflight) => inflight.run(config).await,
        Command::Stream(stream) => stream.run(config).await,
        Command::Archive(archive) => archive.run(config).await,
        Command::Put(put) => put.run(config).await,
        Command::Semaphore(semaphore) => semaphore.run(config).await,
        Command::Txn(txn) => txn.run(config).await,
        Command::Sweep(sweep) => sweep.run(config).await,
        Command::Serve(serve) => serve.run(config).await,
        Command::Doctor(doctor) => doctor.run(config).await,
        Command::Fsck(fsck) => fsck.run(config).await,
        Command::Store(store) => store.run(config).await,
        Command::Bench(bench) => bench.run(config).await,
        Command::Config(config::Command::Show) => config.show(),
        Command::Completions(_) | Command::Man => Ok(0),
    }
}

/// What the library has to say goes to stderr, like everything that is not data.
fn log(global: &Global, as_json: bool) {
    use std::io::IsTerminal;
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    if as_json {
        return log.json().flatten_event(true).init();
    }
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal();
    log.with_ansi(colour).without_time().init();
}
