//! The `leasehold` program.

mod serve;
mod wire;

use clap::{Parser, Subcommand};
use leasehold::{Error, ErrorKind, Store, store::Probing};
use std::process::ExitCode;

/// Leases on nothing but an object store.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find out whether a store is safe for leases: reach it, race conditional writes on it, compare its clock
    Doctor {
        /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///absolute/folder or memory://
        #[arg(long, env = "LEASEHOLD_STORE", value_name = "URL")]
        store: String,
    },
    /// Run the lock service: HTTP and JSON for those who don't write Rust, and a page for people
    Serve {
        /// The store; a folder of this user if left out
        #[arg(long, env = "LEASEHOLD_STORE", value_name = "URL")]
        store: Option<String>,
        #[command(flatten)]
        args: serve::Args,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Doctor { store } => match doctor(&store).await {
            Ok(report) => print(&report),
            Err(error) => fail(&error),
        },
        Command::Serve { store, args } => serve(store, args).await,
    }
}

async fn serve(store: Option<String>, args: serve::Args) -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let served = match store.map_or_else(default_store, Ok) {
        Ok(store) => serve::run(&store, leasehold::Settings::default(), args).await,
        Err(error) => Err(error.into()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<Error>() {
            Ok(error) => fail(&error),
            Err(error) => complain(&*error),
        },
    }
}

/// The store of whoever names none: a folder of this user.
fn default_store() -> std::io::Result<String> {
    let home = |name, below: &str| std::env::var_os(name).map(|home| std::path::PathBuf::from(home).join(below));
    let folder = home("XDG_DATA_HOME", "leasehold").or_else(|| home("HOME", ".local/share/leasehold"));
    let folder = folder.filter(|folder| folder.is_absolute());
    let folder = folder.ok_or_else(|| std::io::Error::other("there is no home folder: give --store"))?;
    std::fs::create_dir_all(&folder)?;
    let url = url::Url::from_directory_path(&folder);
    Ok(url.map_err(|()| std::io::Error::other("the home folder has no URL: give --store"))?.to_string())
}

#[expect(clippy::print_stderr, reason = "everything else goes to stderr")]
fn complain(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

async fn doctor(url: &str) -> Result<String, Error> {
    let store = Store::builder().url(url).probing(Probing::Always).open().await?;
    let agreed = store.agreement();
    let skew = store.skew().map_or("not known".to_owned(), |skew| format!("{} ms", skew.as_millis()));
    let verdict = match store.trusts_clock() {
        true => "safe for leases",
        false => "safe for leases, but nothing is granted here until this machine's clock is mended",
    };
    Ok(format!(
        "store      {store}\n\
         verdict    {verdict}\n\
         skew       {skew} against the store's clock, {} ms allowed between machines\n\
         requests   {} made to find out",
        agreed.max_clock_skew.as_millis(),
        store.requests().total(),
    ))
}

#[expect(clippy::print_stdout, reason = "data goes to stdout")]
fn print(report: &str) -> ExitCode {
    println!("{report}");
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "everything else goes to stderr")]
fn fail(error: &Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(match error.kind() {
        ErrorKind::Invalid => 2,
        ErrorKind::Unavailable | ErrorKind::Unknown => 5,
        _ => 1,
    })
}
