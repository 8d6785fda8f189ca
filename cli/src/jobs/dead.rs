//! dead list, get, redrive and purge: jobs that failed for good.

use super::{existing, job::word, text};
use crate::{
    config::Config,
    duration::relative,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
    view::{self, printable},
};
use clap::{Args, Subcommand, ValueEnum};
use leasehold::{
    clock::Timestamp,
    job::{DeadFilter, DeadLetter, DeadReason, JobId},
};
use serde::Serialize;
use std::{collections::BTreeMap, io::Write};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show dead letters, those that expire first in front
    List(List),
    /// Show a dead letter with what it carries
    Get(Get),
    /// Put dead letters back into their queue, with their attempts forgotten
    Redrive(Redrive),
    /// Give dead letters up for good
    Purge(Purge),
}

/// Which of them are meant.
#[derive(Debug, Args)]
struct Which {
    /// Only of this kind
    #[arg(long, value_name = "TEXT")]
    kind: Option<String>,
    /// Only on behalf of this tenant
    #[arg(long, value_name = "TEXT")]
    tenant: Option<String>,
    /// Only for this reason
    #[arg(long, value_enum)]
    reason: Option<Reason>,
    /// Only what died before this time: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = super::time)]
    before: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reason {
    /// It failed as often as it may
    Exhausted,
    /// Its command said that another attempt is of no use
    ForGood,
    /// It was alone when its process died, again and again
    Stalled,
    /// It cannot be read
    Damaged,
    /// It hangs on a transaction that nobody remembers
    Forgotten,
}

impl From<Reason> for DeadReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Exhausted => Self::Exhausted,
            Reason::ForGood => Self::ForGood,
            Reason::Stalled => Self::Stalled,
            Reason::Damaged => Self::Damaged,
            Reason::Forgotten => Self::Forgotten,
        }
    }
}

impl Which {
    fn says_nothing(&self) -> bool {
        self.kind.is_none() && self.tenant.is_none() && self.reason.is_none() && self.before.is_none()
    }

    fn filter(&self, ids: &[JobId]) -> DeadFilter {
        let mut filter = if ids.is_empty() { DeadFilter::all() } else { DeadFilter::ids(ids.iter().copied()) };
        if let Some(kind) = &self.kind {
            filter = filter.kind(kind);
        }
        if let Some(tenant) = &self.tenant {
            filter = filter.tenant(tenant);
        }
        if let Some(reason) = self.reason {
            filter = filter.reason(reason.into());
        }
        match self.before {
            Some(before) => filter.died_before(before),
            None => filter,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The queue
    queue: String,
    #[command(flatten)]
    which: Which,
    /// So many at the most
    #[arg(long, value_name = "N", default_value = "100")]
    limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The queue
    queue: String,
    /// The job
    id: JobId,
    /// Print this part of it and nothing else; args is the payload
    #[arg(long, value_name = "NAME")]
    part: Option<String>,
}

/// Which jobs: some by their ids, those that fit, or all.
#[derive(Debug, Args)]
struct Meant {
    /// The queue
    queue: String,
    /// Only these jobs
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<JobId>,
    /// All of them
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
    /// Only say how many there are
    #[arg(long)]
    dry_run: bool,
}

impl Meant {
    fn filter(&self, config: &Config, verb: &str) -> Result<DeadFilter, Failure> {
        if self.ids.is_empty() && self.which.says_nothing() && !self.all {
            let list = config.command(&["dead", "list", &self.queue]);
            return Err(Failure::usage(format!(
                "say which to {verb}: by their ids, by --kind, --tenant, --reason or --before, or with --all; there are: {list}"
            )));
        }
        Ok(self.which.filter(&self.ids))
    }
}

#[derive(Debug, Args)]
pub(crate) struct Redrive {
    #[command(flatten)]
    meant: Meant,
    /// So many are due in each second [default: all at once]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_second: Option<u32>,
    /// So many at the most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    meant: Meant,
    /// You mean it: they are gone
    #[arg(long, conflicts_with = "dry_run")]
    confirm: bool,
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::List(list) => list.run(config).await,
            Self::Get(get) => get.run(config).await,
            Self::Redrive(redrive) => redrive.run(config).await,
            Self::Purge(purge) => purge.run(config).await,
        }
    }
}

impl List {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let dead = existing(&opened, config, &self.queue).await?.dead();
        let (mut letters, mut next): (Vec<DeadLetter>, Option<String>) = (Vec::new(), None);
        while letters.len() < self.limit {
            let limit = (self.limit - letters.len()).min(1000);
            let page = dead.list().filter(self.which.filter(&[])).limit(limit).after(next).await?;
            letters.extend(page.letters);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        match config.output.value {
            Format::Json => output::json(&letters)?,
            Format::Table if letters.is_empty() => output::say("no dead letters"),
            Format::Table => {
                let now = view::now();
                let lines = letters.iter().map(|letter| {
                    [
                        letter.id.map_or_else(|| letter.object.clone(), |id| id.to_string()),
                        word(&letter.reason),
                        text(letter.kind.as_deref()),
                        letter.attempts.to_string(),
                        relative(letter.died_at, now),
                        printable(letter.error.lines().last().unwrap_or_default()),
                    ]
                });
                output::table(["JOB", "REASON", "KIND", "ATTEMPTS", "DIED", "ERROR"], lines)?;
                if next.is_some() {
                    output::say(format_args!("there are more: --limit {}", self.limit.saturating_mul(10)));
                }
            }
        }
        Ok(0)
    }
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    /// What is text, as text.
    parts: BTreeMap<&'a str, String>,
    /// The rest, in base 64.
    parts_b64: BTreeMap<&'a str, String>,
}

impl Get {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let dead = existing(&opened, config, &self.queue).await?.dead();
        let Some(job) = dead.get(self.id).await? else {
            let list = config.command(&["dead", "list", &self.queue]);
            return Err(Failure::failed(format!(
                "{} has no dead letter {}; those there are: {list}",
                printable(&self.queue),
                self.id
            )));
        };
        if let Some(name) = &self.part {
            let names: Vec<&str> = job.parts.keys().map(String::as_str).collect();
            let part = job.parts.get(name).ok_or_else(|| {
                Failure::failed(format!("job {} has no part {name}; its parts: {}", self.id, names.join(", ")))
            })?;
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(part).and_then(|()| stdout.flush());
            written.map_err(|error| Failure::failed(format!("cannot write to stdout: {error}")))?;
            return Ok(0);
        }
        let mut shown = Shown { letter: &job.letter, parts: BTreeMap::new(), parts_b64: BTreeMap::new() };
        for (name, bytes) in &job.parts {
            match std::str::from_utf8(bytes) {
                Ok(text) => shown.parts.insert(name, text.to_owned()),
                Err(_) => shown.parts_b64.insert(name, super::base64(bytes)),
            };
        }
        let mut rows = rows(&job.letter);
        rows.extend(shown.parts.iter().map(|(name, text)| (*name, printable(text))));
        rows.extend(shown.parts_b64.iter().map(|(name, text)| (*name, format!("base64: {text}"))));
        output::object(config.output.value, &shown, &rows)?;
        Ok(0)
    }
}

fn rows(letter: &DeadLetter) -> Vec<(&'static str, String)> {
    let now = view::now();
    let mut rows = vec![
        ("id", letter.id.map_or_else(|| "not known".to_owned(), |id| id.to_string())),
        ("reason", word(&letter.reason)),
        ("error", printable(&letter.error)),
        ("attempts", letter.attempts.to_string()),
        ("died_at", relative(letter.died_at, now)),
        ("kept_until", relative(letter.kept_until, now)),
    ];
    rows.extend(letter.fence.map(|fence| ("fence", fence.to_string())));
    for (name, value) in
        [("kind", &letter.kind), ("tenant", &letter.tenant), ("key", &letter.key), ("caller_id", &letter.caller_id)]
    {
        rows.extend(value.as_ref().map(|value| (name, printable(value))));
    }
    rows
}

impl Redrive {
    async fn run(&self, config: &Config) -> Outcome {
        let Meant { queue, dry_run, .. } = &self.meant;
        let filter = self.meant.filter(config, "redrive")?;
        let opened = Embedded::existing(config).await?;
        let mut redrive = existing(&opened, config, queue).await?.dead().redrive(filter).dry_run(*dry_run);
        if let Some(jobs) = self.per_second {
            redrive = redrive.per_second(jobs);
        }
        if let Some(most) = self.limit {
            redrive = redrive.limit(most);
        }
        let bar = output::spinner();
        bar.set_message("redriving");
        let redriven = redrive.await;
        bar.finish_and_clear();
        let redriven = redriven?;
        let rows = [("jobs", redriven.jobs.to_string()), ("left", redriven.left.to_string())];
        output::object(config.output.value, &redriven, &rows)?;
        if *dry_run {
            output::say("nothing was changed: this was a dry run");
        }
        Ok(0)
    }
}

impl Purge {
    async fn run(&self, config: &Config) -> Outcome {
        let filter = self.meant.filter(config, "purge")?;
        let opened = Embedded::existing(config).await?;
        let dead = existing(&opened, config, &self.meant.queue).await?.dead();
        let purged = dead.purge(filter).dry_run(!self.confirm).await?;
        if !self.confirm && !self.meant.dry_run {
            return Err(Failure::usage(format!(
                "nothing was changed: {} of its dead letters would be gone for good; say so with --confirm",
                purged.jobs
            )));
        }
        output::object(config.output.value, &purged, &[("jobs", purged.jobs.to_string())])?;
        if self.meant.dry_run {
            output::say("nothing was changed: this was a dry run");
        }
        Ok(0)
    }
}
