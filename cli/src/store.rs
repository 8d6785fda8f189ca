//! store show, set and repair: what all processes on a store have alike.

use crate::{
    config::Config,
    duration::{self, millis},
    exit::{Failure, HELD, Outcome},
    output,
    target::{builder, no_service},
    view::Holder,
};
use clap::{Args, Subcommand};
use leasehold::{
    Store,
    decision::{MARKER_RETENTION, MAX_TXN_AGE},
    lease::MAX_TTL,
    store::{MARGIN, MAX_CLOCK_SKEW, Probing, SharedSettings, SharedSettingsChange},
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in store.json
    Show,
    /// Change it, and raise the epoch; every other process must have been stopped for long enough
    Set(Set),
    /// Write a store.json that was lost or damaged again
    Repair(Mend),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(flatten)]
    values: Values,
    /// Allow records of this format, which older versions refuse to change; 3 is what sessions need. You vouch for it: no older
    /// version uses the store. Nothing has to be stopped, and it cannot be taken back
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["all_processes_stopped"])]
    record_format: Option<u32>,
    /// You vouch for it: every process that uses the store has been stopped for max_ttl + margin, or for the new
    /// max_txn_age + margin if that is longer
    #[arg(long)]
    all_processes_stopped: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Mend {
    #[command(flatten)]
    values: Values,
    /// You vouch for it: the values that are shown without this are those that every running process goes by
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// You vouch for it: every process that uses the store has been stopped for max_ttl + margin
    #[arg(long)]
    all_processes_stopped: bool,
    /// Why, for the record that is kept in the store
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// What all processes have alike.
#[derive(Debug, Args)]
struct Values {
    /// How far the clocks of any two machines may differ
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_clock_skew: Option<Duration>,
    /// For how long after it began a transaction may be decided
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_txn_age: Option<Duration>,
    /// Skew, and the longest write that may still land
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    margin: Option<Duration>,
    /// For how long a decision can be read after it was made
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    marker_retention: Option<Duration>,
    /// The longest time to live of a lease
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_ttl: Option<Duration>,
}

impl Values {
    fn change(&self) -> SharedSettingsChange {
        SharedSettingsChange::default()
            .set_if(&MAX_CLOCK_SKEW, self.max_clock_skew)
            .set_if(&MAX_TXN_AGE, self.max_txn_age)
            .set_if(&MARGIN, self.margin)
            .set_if(&MARKER_RETENTION, self.marker_retention)
            .set_if(&MAX_TTL, self.max_ttl)
    }
}

#[derive(Debug, Serialize)]
struct Shown {
    store: String,
    format: u32,
    revision: u64,
    epoch: u64,
    /// The highest format of records that may be written, where an operator has raised it.
    #[serde(skip_serializing_if = "Option::is_none")]
    record_format: Option<u32>,
    /// Every shared setting, in milliseconds.
    #[serde(flatten)]
    shared: BTreeMap<String, u64>,
    probed_at: Option<String>,
    probed_by: Option<String>,
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::Show => show(config).await,
            Self::Set(set) => set.run(config).await,
            Self::Repair(mend) => mend.run(config).await,
        }
    }
}

async fn show(config: &Config) -> Outcome {
    // Looking needs no proof, and no right to write.
    no_service(config)?;
    let store = builder(config)?.must_exist().probing(Probing::Never).open().await?;
    let info = store.info().await?;
    let shared = info.shared_settings;
    let shown = Shown {
        store: store.to_string(),
        format: info.format,
        revision: info.revision,
        epoch: shared.epoch,
        record_format: Some(shared.record_format).filter(|format| *format > 2),
        shared: shared.values().map(|(name, value)| (format!("{name}_ms"), millis(value))).collect(),
        probed_at: info.probed_at.map(|at| at.to_string()),
        probed_by: info.probed_by,
    };
    let mut rows = vec![("store", shown.store.clone()), ("epoch", shared.epoch.to_string())];
    rows.extend(shown.record_format.map(|format| ("record_format", format.to_string())));
    rows.extend(values(&shared));
    let probed = shown.probed_at.clone().unwrap_or_else(|| "never".to_owned());
    rows.push(("probed_at", probed));
    output::object(config.output.value, &shown, &rows)?;
    Ok(0)
}

fn values(shared: &SharedSettings) -> impl Iterator<Item = (&'static str, String)> {
    shared.values().map(|(name, value)| (name, humantime::format_duration(value).to_string()))
}

impl Set {
    async fn run(&self, config: &Config) -> Outcome {
        let change = self.values.change();
        if let Some(format) = self.record_format {
            if !change.is_empty() {
                return Err(Failure::usage("allow a record format by itself: nothing has to be stopped for that"));
            }
            no_service(config)?;
            let store = builder(config)?.must_exist().open().await?;
            store.allow_record_format(format, &config.owner.value).await?;
            output::say(format_args!("record format {format} is allowed; no process has to be started again"));
            return show(config).await;
        }
        if change.is_empty() {
            return Err(Failure::usage("say what to change, such as --max-ttl 2h; see leasehold store set --help"));
        }
        no_service(config)?;
        let store = builder(config)?.must_exist().open().await?;
        let old = store.shared_settings();
        let stop = change.needs_a_stop_of(old)?;
        if !self.all_processes_stopped {
            return Err(Failure::usage(format!(
                "nothing was changed. Processes that go by different settings could both hold one lock: stop every process \
                 that uses {store}, wait for {} ({}), and say so with --all-processes-stopped",
                duration::short(stop.time),
                stop.why
            )));
        }
        nothing_held(&store).await?;
        let new = store.change_shared_settings(&change, &config.owner.value).await?;
        output::say(format_args!("changed; epoch {} -> {}. Processes may be started again", old.epoch, new.epoch));
        show(config).await
    }
}

/// A lease that lives is a process that was not stopped, or not for long enough, whatever somebody has vouched for.
async fn nothing_held(store: &Store) -> Result<(), Failure> {
    const NAMED: usize = 5;
    let mut held = Vec::new();
    for namespace in store.namespaces().await? {
        let leases = store.leases(namespace.clone())?;
        let mut after = None;
        loop {
            let page = leases.list(b"", after.as_ref(), 500).await?;
            for status in page.keys {
                let status = status?;
                held.extend(status.holder.map(|holder| {
                    format!("{} in namespace {namespace}, by {}", status.key, Holder::from(&holder).who())
                }));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    if held.is_empty() {
        return Ok(());
    }
    let more = held.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    held.truncate(NAMED);
    Err(Failure::new(
        HELD,
        format!(
            "nothing was changed: not every process has been stopped for long enough, for leases are held: {}{more}; stop \
             their holders, or wait until the leases have ended, and try again",
            held.join("; ")
        ),
    ))
}

impl Mend {
    async fn run(&self, config: &Config) -> Outcome {
        no_service(config)?;
        let repair = builder(config)?.must_exist().repair_shared_settings(&self.values.change()).await?;
        let (Some(reason), true) = (&self.reason, self.confirm) else {
            for (name, value, source) in repair.values() {
                output::say(format_args!("{name:18}{:10}{source}", duration::exact(value)));
            }
            return Err(Failure::usage(
                "nothing was written. Processes that go by different settings could both hold one lock: make sure that \
                 these are the values that every process on this store goes by (name those that differ, such as \
                 --max-clock-skew 5s), and say so with --confirm --reason TEXT",
            ));
        };
        if !repair.contradicted().is_empty() && !self.all_processes_stopped {
            let stop = repair.shared_settings().stop_needed();
            return Err(Failure::usage(format!(
                "nothing was written. What is left of the old settings says something else of {}: stop every process that \
                 uses the store, wait for {} ({}), and say so with --all-processes-stopped",
                repair.contradicted().join(", "),
                duration::short(stop.time),
                stop.why
            )));
        }
        let written = repair.write(reason, &config.owner.value).await?;
        output::say(format_args!("written; epoch {}", written.epoch));
        show(config).await
    }
}
