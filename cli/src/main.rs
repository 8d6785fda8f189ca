//! The `leasehold` program.

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
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Doctor { store } = Cli::parse().command;
    match doctor(&store).await {
        Ok(report) => print(&report),
        Err(error) => fail(&error),
    }
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
