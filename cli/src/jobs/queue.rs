//! queue list, show, pause, resume, set and purge.

use super::{existing, queue, set};
use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
    view::{self, printable},
};
use clap::{Args, Subcommand};
use leasehold::{
    clock::Timestamp,
    job::{Queue, QueueDepth, QueueSettings},
};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show all queues, and how many jobs they have
    List,
    /// Show how many jobs a queue has, and what it is set to
    Show(Name),
    /// Hand out no jobs of a queue, in any process; what runs goes on
    Pause(Pause),
    /// Hand out its jobs again
    Resume(Name),
    /// Change what a queue is set to, for every process
    Set(Set),
    /// End all jobs of a queue that wait. What runs goes on, and dead letters stay
    Purge(Purge),
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// The queue
    queue: String,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// The queue
    queue: String,
    /// For how long [default: until it is resumed]
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse, conflicts_with = "until")]
    time: Option<Duration>,
    /// Until when: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = super::time)]
    until: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// The queue; made if there is none
    queue: String,
    /// What to set, such as max_attempts=5, backoff.base=10s, capacity=10000, kinds.mail.timeout=1m, or rate=none for no
    /// limit. `queue show` has all names
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = set::parse)]
    values: Vec<set::Change>,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// The queue
    queue: String,
    /// Only say how many there are
    #[arg(long, conflicts_with = "confirm")]
    dry_run: bool,
    /// You mean it: the jobs are gone
    #[arg(long)]
    confirm: bool,
}

/// A line of the list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    queue: &'a str,
    #[serde(flatten)]
    depth: QueueDepth,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    queue: &'a str,
    depth: QueueDepth,
    settings: &'a QueueSettings,
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::List => list(config).await,
            Self::Show(Name { queue: name }) => {
                let opened = Embedded::looking(config).await?;
                show(config, name, &existing(&opened, config, name).await?).await
            }
            Self::Pause(pause) => pause.run(config).await,
            Self::Resume(Name { queue: name }) => {
                let opened = Embedded::existing(config).await?;
                existing(&opened, config, name).await?.resume().await?;
                output::say(format_args!("jobs of {} are handed out again", printable(name)));
                Ok(0)
            }
            Self::Set(set) => set.run(config).await,
            Self::Purge(purge) => purge.run(config).await,
        }
    }
}

async fn list(config: &Config) -> Outcome {
    let opened = Embedded::looking(config).await?;
    let queues = opened.store.queues(config.namespace.value.clone())?;
    let names = queues.list().await?;
    let mut listed = Vec::new();
    for name in &names {
        listed.push(Listed { queue: name, depth: queues.queue(name)?.depth().await? });
    }
    match config.output.value {
        Format::Json => output::json(&listed)?,
        Format::Table if listed.is_empty() => output::say("no queues"),
        Format::Table => {
            let lines = listed.iter().map(|Listed { queue, depth }| {
                let oldest = if depth.oldest_age.is_zero() { String::new() } else { duration::short(depth.oldest_age) };
                [
                    printable(queue),
                    at_least(depth.available, depth.at_least),
                    depth.running.to_string(),
                    depth.retrying.to_string(),
                    at_least(depth.scheduled, depth.scheduled_at_least),
                    at_least(depth.dead, depth.dead_at_least),
                    oldest,
                    if depth.queue_paused { "paused".to_owned() } else { String::new() },
                ]
            });
            let header = ["QUEUE", "AVAILABLE", "RUNNING", "RETRYING", "SCHEDULED", "DEAD", "OLDEST", ""];
            output::table(header, lines)?;
        }
    }
    Ok(0)
}

fn at_least(count: u64, more: bool) -> String {
    if more { format!("{count}+") } else { count.to_string() }
}

async fn show(config: &Config, name: &str, queue: &Queue) -> Outcome {
    let (depth, settings) = (queue.depth().await?, queue.settings().await?);
    let mut rows = vec![("queue".to_owned(), printable(name))];
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("available", at_least(depth.available, depth.at_least));
    row("running", depth.running.to_string());
    row("retrying", depth.retrying.to_string());
    row("scheduled", at_least(depth.scheduled, depth.scheduled_at_least));
    row("paused", depth.paused.to_string());
    row("dead", at_least(depth.dead + depth.burying, depth.dead_at_least));
    if !depth.oldest_age.is_zero() {
        row("oldest", format!("due for {}", duration::short(depth.oldest_age)));
    }
    if let Some(next) = depth.next_due {
        row("next_due", duration::relative(next, view::now()));
    }
    if depth.queue_paused {
        let until = settings.paused_until.map_or_else(|| "until it is resumed".to_owned(), |at| format!("until {at}"));
        row("state", format!("paused {until}"));
    }
    rows.extend(set::rows(&settings)?.into_iter().map(|(name, value)| (format!("set.{name}"), value)));
    let rows: Vec<(&str, String)> = rows.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    output::object(config.output.value, &Shown { queue: name, depth, settings: &settings }, &rows)?;
    Ok(0)
}

impl Pause {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let queue = existing(&opened, config, &self.queue).await?;
        let until = self.time.map(|time| opened.store.time().unwrap_or_else(view::now).plus(time)).or(self.until);
        match until {
            Some(until) => queue.pause_until(until).await?,
            None => queue.pause().await?,
        }
        let until = match until {
            Some(until) => format!("until {until}"),
            None => format!("until: {}", config.command(&["queue", "resume", &self.queue])),
        };
        output::say(format_args!("no jobs of {} are handed out {until}", printable(&self.queue)));
        Ok(0)
    }
}

impl Set {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::open(config).await?;
        let queue = queue(&opened, config, &self.queue)?;
        // Found out before anything is written.
        set::changed(&queue.settings().await?, &self.values)?;
        let change = |settings: &mut QueueSettings| {
            if let Ok(changed) = set::changed(settings, &self.values) {
                *settings = changed;
            }
        };
        queue.update_settings(change).await?;
        show(config, &self.queue, &queue).await
    }
}

impl Purge {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let queue = existing(&opened, config, &self.queue).await?;
        let purged = queue.purge().dry_run(!self.confirm).await?;
        if !self.confirm && !self.dry_run {
            return Err(Failure::usage(format!(
                "nothing was changed: {} of its jobs would be gone for good; say so with --confirm",
                purged.jobs
            )));
        }
        output::object(config.output.value, &purged, &[("jobs", purged.jobs.to_string())])?;
        if self.dry_run {
            output::say("nothing was changed: this was a dry run");
        }
        if purged.more {
            output::say("there are more than can be ended at once: run it again in a minute or two");
        }
        Ok(0)
    }
}
