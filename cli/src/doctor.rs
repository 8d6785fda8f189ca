//! doctor: whether a store is safe for leases, what is missing, and what to do.

use crate::{
    config::Config,
    duration::millis,
    exit::{FAILED, Outcome, UNAVAILABLE},
    output::{self, Format},
    target,
};
use clap::Args;
use leasehold::store::{Check, Diagnosis, Percentiles, Verdict};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the smallest IAM policy and a lifecycle rule for the bucket
    #[arg(long)]
    fix_hint: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    store: String,
    verdict: &'static str,
    checks: Vec<ShownCheck>,
    skew_ms: Option<u64>,
    max_clock_skew_ms: u64,
    reads: Option<Latency>,
    writes: Option<Latency>,
    requests: u64,
    /// How far apart the store's own clocks were found.
    spread_ms: u64,
    /// What an operator should know although nothing failed.
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ShownCheck {
    name: &'static str,
    /// `None` if it was not tried.
    ok: Option<bool>,
    /// What it is good for, or what is missing.
    detail: String,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50_ms: f64,
    p99_ms: f64,
}

impl From<Percentiles> for Latency {
    fn from(times: Percentiles) -> Self {
        let ms = |time: Duration| (time.as_secs_f64() * 100_000.).round() / 100.;
        Self { p50_ms: ms(times.p50), p99_ms: ms(times.p99) }
    }
}

impl Doctor {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        target::no_service(config)?;
        let builder = target::builder(config)?;
        let bar = output::spinner();
        bar.set_message("looking at the store");
        let diagnosed = builder.diagnose().await;
        bar.finish_and_clear();
        let diagnosis = diagnosed.map_err(|error| target::explain(config, error))?;
        let shown = Shown {
            store: diagnosis.place.clone(),
            verdict: verdict(diagnosis.verdict()).0,
            checks: diagnosis.checks.iter().map(|check| shown(check, config)).collect(),
            skew_ms: diagnosis.skew.map(millis),
            max_clock_skew_ms: millis(diagnosis.max_clock_skew),
            reads: diagnosis.reads.map(Latency::from),
            writes: diagnosis.writes.map(Latency::from),
            requests: diagnosis.requests,
            spread_ms: millis(diagnosis.spread),
            remarks: diagnosis.remarks.clone(),
        };
        match config.output.value {
            Format::Json => output::json(&shown)?,
            Format::Table => table(&shown, &diagnosis)?,
        }
        if self.fix_hint {
            output::say(hint(&diagnosis.place));
        }
        Ok(match diagnosis.verdict() {
            Verdict::Safe => 0,
            Verdict::Unreachable => UNAVAILABLE,
            _ => FAILED,
        })
    }
}

fn table(shown: &Shown, diagnosis: &Diagnosis) -> Result<(), crate::exit::Failure> {
    let mut rows = vec![("store", shown.store.clone())];
    rows.extend(shown.checks.iter().map(|check| {
        let mark = match check.ok {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "not tried",
        };
        (check.name, format!("{mark}: {}", check.detail))
    }));
    let skew = shown.skew_ms.map_or_else(|| "not known".to_owned(), |skew| format!("{skew} ms"));
    rows.push((
        "skew",
        format!("{skew} against the store's clock, {} ms allowed between machines", shown.max_clock_skew_ms),
    ));
    for (name, latency) in [("reads", &shown.reads), ("writes", &shown.writes)] {
        rows.extend(latency.as_ref().map(|times| (name, format!("p50 {} ms, p99 {} ms", times.p50_ms, times.p99_ms))));
    }
    if shown.spread_ms > 0 {
        rows.push((
            "spread",
            format!("{} ms between the store's own clocks: leases end later by as much", shown.spread_ms),
        ));
    }
    rows.extend(shown.remarks.iter().map(|remark| ("remark", remark.clone())));
    rows.push(("requests", format!("{} made to find out", shown.requests)));
    rows.push(("verdict", verdict(diagnosis.verdict()).1.to_owned()));
    output::object(Format::Table, shown, &rows)
}

/// For programs, and for people.
fn verdict(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Safe => ("safe", "safe for leases"),
        Verdict::Untidy => {
            ("untidy", "safe for leases, but what has ended is not tidied: listing and deleting are needed for that")
        }
        Verdict::WrongClock => ("wrong_clock", "wrong clock: set this machine's clock before anything else"),
        Verdict::Unsafe => ("unsafe", "NOT safe for leases: two could hold one lock"),
        Verdict::Unusable => ("unusable", "cannot be used: see what failed above"),
        Verdict::Unreachable => ("unreachable", "does not answer"),
        _ => ("unknown", "not known: use a newer version of this program"),
    }
}

fn shown(check: &Check, config: &Config) -> ShownCheck {
    let detail = match (&check.result, check.name) {
        (None, _) => "an earlier check failed".to_owned(),
        (Some(Ok(())), "credentials") => "the store knows them".to_owned(),
        (Some(Ok(())), "reach") => "it answers".to_owned(),
        (Some(Ok(())), "get") => "objects can be read".to_owned(),
        (Some(Ok(())), "put") => "objects can be written".to_owned(),
        (Some(Ok(())), "list") => "objects can be listed".to_owned(),
        (Some(Ok(())), "delete") => "objects can be deleted".to_owned(),
        (Some(Ok(())), "conditions") => "of racing writes exactly one wins".to_owned(),
        (Some(Ok(())), _) => "it agrees with the store's".to_owned(),
        (Some(Err(error)), name) => {
            let said = target::explain(config, error.clone()).message;
            match permission(name).filter(|_| error.kind() == leasehold::ErrorKind::Denied) {
                Some(missing) => format!("{missing} is missing. {said}"),
                None => said,
            }
        }
    };
    ShownCheck { name: check.name, ok: check.result.as_ref().map(Result::is_ok), detail }
}

/// What clouds call it.
fn permission(check: &str) -> Option<&'static str> {
    Some(match check {
        "get" => "the permission to read (s3:GetObject, storage.objects.get)",
        "put" => "the permission to write (s3:PutObject, storage.objects.create and .delete)",
        "list" => "the permission to list (s3:ListBucket, storage.objects.list)",
        "delete" => "the permission to delete (s3:DeleteObject, storage.objects.delete)",
        _ => return None,
    })
}

/// The least that S3 must allow, and what keeps old versions from piling up.
fn hint(place: &str) -> String {
    let parsed = url::Url::parse(place).ok().filter(|url| matches!(url.scheme(), "s3" | "s3a"));
    let Some(url) = parsed else {
        return format!(
            "{place} is not on S3: it needs the right to read, write, list and delete objects; see docs/OPERATIONS.md"
        );
    };
    let bucket = url.host_str().unwrap_or("BUCKET");
    let prefix = url.path().trim_matches('/');
    let inside = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let condition = if prefix.is_empty() {
        String::new()
    } else {
        format!(",\n      \"Condition\": {{\"StringLike\": {{\"s3:prefix\": [\"{inside}*\"]}}}}")
    };
    format!(
        r#"The smallest IAM policy:
{{
  "Version": "2012-10-17",
  "Statement": [
    {{
      "Effect": "Allow",
      "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
      "Resource": "arn:aws:s3:::{bucket}/{inside}*"
    }},
    {{
      "Effect": "Allow",
      "Action": "s3:ListBucket",
      "Resource": "arn:aws:s3:::{bucket}"{condition}
    }}
  ]
}}

A lifecycle rule, for a bucket that keeps versions (never one that expires current objects: records hold the fences):
{{
  "Rules": [
    {{
      "ID": "leasehold-old-versions",
      "Status": "Enabled",
      "Filter": {{"Prefix": "{inside}"}},
      "NoncurrentVersionExpiration": {{"NoncurrentDays": 7}},
      "Expiration": {{"ExpiredObjectDeleteMarker": true}}
    }}
  ]
}}"#
    )
}
