//! sweep: one pass now.

use crate::{
    config::Config,
    duration,
    exit::{FAILED, Failure, Outcome},
    output,
    target::{Embedded, Target},
    wire::{self, SweepReport},
};
use clap::Args;
use leasehold::{
    Store,
    sweep::{Report, StoppedBy, SweepOptions},
};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// How long to wait between two entries [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    op_delay: Option<Duration>,
    /// Look at so many entries at the most
    #[arg(long, value_name = "COUNT")]
    max_ops: Option<u32>,
    /// Leases of all namespaces, and decisions
    #[arg(long)]
    all_namespaces: bool,
}

impl Sweep {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let report = match Target::existing(config).await? {
            Target::Embedded(Embedded { store, .. }) => self.embedded(config, &store).await?,
            Target::Service(_) if self.op_delay.is_some() => {
                return Err(Failure::usage("--op-delay is for a store: a service sweeps at its own pace"));
            }
            Target::Service(remote) => {
                let namespace = (!self.all_namespaces).then(|| config.namespace.value.to_string());
                let sweep = wire::Sweep { dry_run: self.dry_run, namespace, max_ops: self.max_ops };
                remote.sweep(&sweep).await?
            }
        };
        output::object(config.output.value, &report, &rows(&report))?;
        if self.dry_run {
            output::say("nothing was changed: this was a dry run");
        }
        if let Some(error) = &report.last_error {
            output::complain(error);
        }
        let well = report.failures == 0 && report.stopped_by.as_deref() != Some(StoppedBy::Error.as_str());
        Ok(if well { 0 } else { FAILED })
    }

    async fn embedded(&self, config: &Config, store: &Store) -> Result<SweepReport, Failure> {
        let bar = output::spinner();
        let namespace = (!self.all_namespaces).then(|| config.namespace.value.clone());
        let options = SweepOptions::new()
            .dry_run(self.dry_run)
            .namespace(namespace)
            .op_delay(self.op_delay.unwrap_or_default())
            .max_ops(self.max_ops)
            .progress({
                let bar = bar.clone();
                move |report: &Report| bar.set_message(progress(report))
            });
        let swept = store.sweeper().run_once(options).await;
        bar.finish_and_clear();
        Ok(swept?.into())
    }
}

fn progress(report: &Report) -> String {
    let hour = report.oldest_hour.as_deref().unwrap_or("");
    let swept = report.total();
    format!("{} entries seen, {} cleared, {} deleted {hour}", report.entries_seen, swept.cleared, swept.deleted)
}

fn rows(report: &SweepReport) -> Vec<(&'static str, String)> {
    let changed = report.kinds.iter().filter(|(_, swept)| swept.cleared + swept.moved + swept.deleted > 0);
    let kinds = changed.map(|(kind, swept)| {
        format!("{kind}: {} cleared, {} moved, {} deleted", swept.cleared, swept.moved, swept.deleted)
    });
    let kinds = kinds.collect::<Vec<_>>().join("; ");
    vec![
        ("entries_seen", report.entries_seen.to_string()),
        ("kinds", if kinds.is_empty() { "nothing to settle".to_owned() } else { kinds }),
        ("entries_deleted", report.entries_deleted.to_string()),
        ("entries_kept", report.entries_kept.to_string()),
        ("failures", report.failures.to_string()),
        ("requests", report.requests.to_string()),
        ("duration", duration::short(Duration::from_millis(report.duration_ms))),
        ("stopped_by", report.stopped_by.clone().unwrap_or_default()),
    ]
}
