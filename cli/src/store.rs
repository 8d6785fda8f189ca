//! store show and set: what all processes on a store have agreed on.

use crate::{
    config::Config,
    duration::{self, millis},
    exit::{Failure, Outcome},
    output,
    target::{builder, no_service},
};
use clap::{Args, Subcommand};
use leasehold::store::{Agreement, AgreementChange, Probing};
use serde::Serialize;
use std::time::Duration;

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

/// What all processes agree on.
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
    fn change(&self) -> AgreementChange {
        AgreementChange {
            max_clock_skew: self.max_clock_skew,
            max_txn_age: self.max_txn_age,
            margin: self.margin,
            marker_retention: self.marker_retention,
            max_ttl: self.max_ttl,
        }
    }
}

#[derive(Debug, Serialize)]
struct Shown {
    store: String,
    format: u32,
    revision: u64,
    epoch: u64,
    max_clock_skew_ms: u64,
    max_txn_age_ms: u64,
    margin_ms: u64,
    marker_retention_ms: u64,
    max_ttl_ms: u64,
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
    let agreed = info.agreement;
    let shown = Shown {
        store: store.to_string(),
        format: info.format,
        revision: info.revision,
        epoch: agreed.epoch,
        max_clock_skew_ms: millis(agreed.max_clock_skew),
        max_txn_age_ms: millis(agreed.max_txn_age),
        margin_ms: millis(agreed.margin),
        marker_retention_ms: millis(agreed.marker_retention),
        max_ttl_ms: millis(agreed.max_ttl),
        probed_at: info.probed_at.map(|at| at.to_string()),
        probed_by: info.probed_by,
    };
    let mut rows = vec![("store", shown.store.clone()), ("epoch", agreed.epoch.to_string())];
    rows.extend(values(&agreed));
    let probed = shown.probed_at.clone().unwrap_or_else(|| "never".to_owned());
    rows.push(("probed_at", probed));
    output::object(config.output.value, &shown, &rows)?;
    Ok(0)
}

fn values(agreed: &Agreement) -> [(&'static str, String); 5] {
    let text = |duration: Duration| humantime::format_duration(duration).to_string();
    [
        ("max_clock_skew", text(agreed.max_clock_skew)),
        ("max_txn_age", text(agreed.max_txn_age)),
        ("margin", text(agreed.margin)),
        ("marker_retention", text(agreed.marker_retention)),
        ("max_ttl", text(agreed.max_ttl)),
    ]
}

impl Set {
    async fn run(&self, config: &Config) -> Outcome {
        let change = self.values.change();
        if change == AgreementChange::default() {
            return Err(Failure::usage("say what to change, such as --max-ttl 2h; see leasehold store set --help"));
        }
        no_service(config)?;
        let store = builder(config)?.must_exist().open().await?;
        let old = *store.agreement();
        let stop = change.needs_a_stop_of(&old);
        let why = if stop == old.max_ttl + old.margin { "max_ttl + margin" } else { "the new max_txn_age + margin" };
        if !self.all_processes_stopped {
            return Err(Failure::usage(format!(
                "nothing was changed. Processes that go by different settings could both hold one lock: stop every process \
                 that uses {store}, wait for {} ({why}), and say so with --all-processes-stopped",
                duration::short(stop)
            )));
        }
        let new = store.change_agreement(&change, &config.owner.value).await?;
        output::say(format_args!("changed; epoch {} -> {}. Processes may be started again", old.epoch, new.epoch));
        show(config).await
    }
}

impl Mend {
    async fn run(&self, config: &Config) -> Outcome {
        no_service(config)?;
        let repair = builder(config)?.must_exist().repair_settings(&self.values.change()).await?;
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
            let stop = repair.agreement().max_ttl + repair.agreement().margin;
            return Err(Failure::usage(format!(
                "nothing was written. What is left of the old settings says something else of {}: stop every process that \
                 uses the store, wait for {} (max_ttl + margin), and say so with --all-processes-stopped",
                repair.contradicted().join(", "),
                duration::short(stop)
            )));
        }
        let written = repair.write(reason, &config.owner.value).await?;
        output::say(format_args!("written; epoch {}", written.epoch));
        show(config).await
    }
}
