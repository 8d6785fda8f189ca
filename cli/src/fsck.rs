//! fsck: what is damaged in a store, and its repair.

use crate::{
    config::Config,
    duration,
    exit::{FAILED, Outcome, UNAVAILABLE},
    output::{self, Format},
    target::Embedded,
    view::printable,
};
use clap::Args;
use leasehold::fsck::{Checked, Finding, FsckOptions, Report};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// Repair what can be repaired: write missing entries, move records aside that cannot be read
    #[arg(long)]
    repair: bool,
    /// Leases of all namespaces, decisions, and names that are none of ours
    #[arg(long)]
    all_namespaces: bool,
}

impl Fsck {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let opened = match self.repair {
            true => Embedded::existing(config).await?,
            false => Embedded::looking(config).await?,
        };
        let store = opened.store;
        let bar = output::spinner();
        let mut options = FsckOptions::new().progress({
            let bar = bar.clone();
            move |report: &Report| {
                bar.set_message(format!(
                    "{} records, {} entries, {} open",
                    report.records, report.entries, report.open
                ));
            }
        });
        if self.repair {
            options = options.repair(config.owner.value.clone());
        }
        if !self.all_namespaces {
            options = options.namespace(config.namespace.value.clone());
        }
        let checked = store.fsck(options).await;
        bar.finish_and_clear();
        let report = checked?;
        match config.output.value {
            Format::Json => output::json(&report)?,
            Format::Table => {
                report.findings.iter().try_for_each(|finding| output::print(lines(finding)))?;
                output::object(Format::Table, &report, &rows(&report))?;
            }
        }
        if let Some(error) = &report.last_error {
            output::complain(error);
        }
        Ok(match () {
            () if report.is_clean() => 0,
            () if report.failures > 0 && report.open == 0 => UNAVAILABLE,
            () => FAILED,
        })
    }
}

/// What is wrong with which object, and below it what was done or is to be done.
fn lines(finding: &Finding) -> String {
    let done = match (&finding.repaired, &finding.advice) {
        (Some(done), _) => format!("repaired: {done}"),
        (None, Some(advice)) if finding.harmless => format!("harmless: {advice}"),
        (None, Some(advice)) => format!("open: {advice}"),
        (None, None) => if finding.harmless { "harmless" } else { "open" }.to_owned(),
    };
    let (name, detail) = (printable(&finding.name), printable(&finding.detail));
    format!("{}  {name}: {detail}\n    {}", finding.damage, printable(&done))
}

fn rows(report: &Report) -> Vec<(&'static str, String)> {
    let of_kind = |(kind, checked): (&&str, &Checked)| format!("{} of {kind}", checked.records);
    let there = report.kinds.iter().filter(|(_, checked)| checked.records > 0);
    let kinds = there.map(of_kind).collect::<Vec<_>>().join(", ");
    let kinds = if kinds.is_empty() { kinds } else { format!(" ({kinds})") };
    let looked = format!("{} records{kinds}, {} entries", report.records, report.entries);
    let found: u64 = report.found.values().sum();
    vec![
        ("looked at", looked),
        ("found", format!("{found}: {} harmless, {} repaired, {} open", report.harmless, report.repaired, report.open)),
        ("requests", report.requests.to_string()),
        ("duration", duration::short(Duration::from_millis(report.duration_ms))),
        ("verdict", if report.is_clean() { "nothing is wrong" } else { "something is wrong" }.to_owned()),
    ]
}
