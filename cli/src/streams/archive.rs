//! archive run, status and verify.

use super::streams;
use crate::{
    config::Config,
    duration,
    exit::{FAILED, Failure, Outcome},
    output::{self, Format},
    signals::Signals,
    target::Embedded,
};
use clap::{Args, Subcommand};
use futures_util::future::join_all;
use leasehold::{
    CancellationToken, Store,
    archive::{ArchiveSettings, Archived, Archiver, Lag, Verified},
};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy streams to their archive until told to go, or once
    Run(Run),
    /// Show how far the archive is behind; 1 if that is too far
    Status(Domains),
    /// Read the archive, and say what is missing, double or damaged; 1 if something is
    Verify(Domains),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    domains: Domains,
    /// Copy everything that is there, and end
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Domains {
    /// Domains of the archive [default: all that the configuration or a stream names]
    #[arg(value_name = "DOMAIN")]
    domains: Vec<String>,
}

#[derive(Debug, Serialize)]
struct File<'a> {
    domain: &'a str,
    stream: &'a str,
    partition: u16,
    count: u64,
    destination: &'a str,
}

#[derive(Debug, Serialize)]
struct Status<'a> {
    domain: &'a str,
    behind: bool,
    #[serde(flatten)]
    lag: Lag,
}

#[derive(Debug, Serialize)]
struct Checked<'a> {
    domain: &'a str,
    #[serde(flatten)]
    verified: Verified,
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::Run(run) => run.run(config).await,
            Self::Status(domains) => domains.status(config).await,
            Self::Verify(domains) => domains.verify(config).await,
        }
    }
}

impl Domains {
    /// Those that were named, or all that there are.
    async fn all(&self, opened: &Embedded, config: &Config) -> Result<Vec<String>, Failure> {
        if !self.domains.is_empty() {
            return Ok(self.domains.clone());
        }
        let mut domains: BTreeSet<String> = config.archive.keys().cloned().collect();
        let streams = streams(opened, config)?;
        for name in streams.names().await? {
            domains.extend(streams.stream(name.as_str())?.settings().await?.archive);
        }
        if domains.is_empty() {
            return Err(Failure::usage(
                "no stream is archived: name a domain for some in the configuration, such as [streams.\"events.>\"] with \
                 archive = \"events\", and give it to them with: leasehold stream apply",
            ));
        }
        Ok(domains.into_iter().collect())
    }

    async fn status(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let mut all = Vec::new();
        let domains = self.all(&opened, config).await?;
        for domain in &domains {
            let settings = settings(config, domain)?;
            let lag = archiver(&opened.store, config, domain, None)?.lag().await?;
            let behind = lag.messages > settings.alert_messages || lag.oldest > settings.alert_age;
            all.push(Status { domain, behind, lag });
        }
        let late = all.iter().any(|status| status.behind);
        match config.output.value {
            Format::Json => output::json(&all)?,
            Format::Table => {
                let lines = all.iter().map(|Status { domain, behind, lag }| {
                    let oldest = if lag.messages == 0 { String::new() } else { duration::short(lag.oldest) };
                    [
                        (*domain).to_owned(),
                        lag.messages.to_string(),
                        lag.bytes.to_string(),
                        oldest,
                        if *behind { "behind".to_owned() } else { String::new() },
                    ]
                });
                output::table(["DOMAIN", "MESSAGES", "BYTES", "OLDEST", ""], lines)?;
            }
        }
        Ok(if late { FAILED } else { 0 })
    }

    async fn verify(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let domains = self.all(&opened, config).await?;
        let mut wrong = false;
        let mut all = Vec::new();
        for domain in &domains {
            let bar = output::spinner();
            bar.set_message(format!("reading {domain}"));
            let destination = destination(config, domain).await?;
            let verified = archiver(&opened.store, config, domain, destination.as_ref())?.verify().await;
            bar.finish_and_clear();
            let verified = verified?;
            wrong |= !verified.problems.is_empty();
            verified.problems.iter().for_each(|problem| output::complain(format_args!("{domain}: {problem}")));
            all.push(Checked { domain, verified });
        }
        match config.output.value {
            Format::Json => output::json(&all)?,
            Format::Table => {
                let lines = all.iter().map(|Checked { domain, verified }| {
                    let problems = verified.problems.len().to_string();
                    [(*domain).to_owned(), verified.files.to_string(), verified.messages.to_string(), problems]
                });
                output::table(["DOMAIN", "FILES", "MESSAGES", "PROBLEMS"], lines)?;
            }
        }
        Ok(if wrong { FAILED } else { 0 })
    }
}

fn settings(config: &Config, domain: &str) -> Result<ArchiveSettings, Failure> {
    config
        .archive
        .get(domain)
        .map_or_else(|| Ok(ArchiveSettings::default()), |rule| rule.settings().map_err(Failure::usage))
}

/// The store that the files of a domain go to, if it is another one.
async fn destination(config: &Config, domain: &str) -> Result<Option<Store>, Failure> {
    let Some(url) = config.archive.get(domain).and_then(|rule| rule.destination.clone()) else { return Ok(None) };
    let mut other = config.clone();
    other.store.value = crate::config::store_url(&url).map_err(Failure::usage)?;
    Ok(Some(Embedded::open(&other).await?.store))
}

fn archiver(store: &Store, config: &Config, domain: &str, to: Option<&Store>) -> Result<Archiver, Failure> {
    let archiver = store.archiver(domain, settings(config, domain)?)?.namespace(config.namespace.value.clone())?;
    Ok(match to {
        Some(store) => archiver.to(&store.destination()),
        None => archiver,
    })
}

impl Run {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let domains = self.domains.all(&opened, config).await?;
        let mut archivers = Vec::new();
        for domain in &domains {
            let to = destination(config, domain).await?;
            archivers.push((domain, archiver(&opened.store, config, domain, to.as_ref())?));
        }
        match self.once {
            true => once(config, archivers).await,
            false => until_told(archivers).await,
        }
    }
}

async fn once(config: &Config, archivers: Vec<(&String, Archiver)>) -> Outcome {
    let (mut failed, mut count) = (false, 0);
    for (domain, mut archiver) in archivers {
        let report = archiver.flush().await?;
        for Archived { stream, partition, count, destination, .. } in &report.files {
            match config.output.value {
                Format::Table => output::print(destination)?,
                Format::Json => {
                    output::json(&File { domain, stream, partition: *partition, count: *count, destination })?;
                }
            }
        }
        count += report.files.len();
        failed |= !report.failures.is_empty();
        report.failures.iter().for_each(|failure| output::complain(format_args!("{domain}: {failure}")));
    }
    if count == 0 && !failed {
        output::say("everything is archived");
    }
    Ok(if failed { FAILED } else { 0 })
}

/// Until somebody wants to go: then everything is written that waits.
async fn until_told(archivers: Vec<(&String, Archiver)>) -> Outcome {
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let mut archivers = archivers;
    let running = join_all(archivers.iter_mut().map(|(domain, archiver)| {
        tracing::info!(domain = domain.as_str(), "archiving");
        archiver.run(stop.clone())
    }));
    tokio::pin!(running);
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut running => break ended,
            signal = signals.next() => {
                if stop.is_cancelled() {
                    return Ok(signal.exit_code());
                }
                output::say("writing what waits; tell me again to end at once");
                stop.cancel();
            }
        }
    };
    for result in ended {
        result?;
    }
    Ok(0)
}
