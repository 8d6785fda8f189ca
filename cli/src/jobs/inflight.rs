//! inflight: what runs, where, and since when.

use super::{existing, job::all, text};
use crate::{
    config::Config,
    duration,
    exit::Outcome,
    output::{self, Format},
    target::Embedded,
    view::{self, printable},
};
use clap::Args;
use leasehold::job::{JobInfo, JobState};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct Inflight {
    /// Only of this queue
    queue: Option<String>,
    /// Only what runs for longer than its queue's stuck_after
    #[arg(long)]
    stuck: bool,
    /// So many of each queue at the most
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: usize,
}

#[derive(Debug, Serialize)]
struct Running {
    queue: String,
    stuck: bool,
    #[serde(flatten)]
    job: JobInfo,
}

impl Inflight {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let queues = opened.store.queues(config.namespace.value.clone())?;
        let names = match &self.queue {
            Some(name) => {
                existing(&opened, config, name).await?;
                vec![name.clone()]
            }
            None => queues.list().await?,
        };
        let now = opened.store.time().unwrap_or_else(view::now);
        let mut running = Vec::new();
        for name in names {
            let queue = queues.queue(&name)?;
            let settings = queue.settings().await?;
            for job in all(&queue, JobState::Running, self.limit).await? {
                let longest = settings.stuck_after_of(job.kind.as_deref());
                let stuck = job.running_since.is_some_and(|since| now.since(since) > longest);
                if stuck || !self.stuck {
                    running.push(Running { queue: name.clone(), stuck, job });
                }
            }
        }
        match config.output.value {
            Format::Json => output::json(&running)?,
            Format::Table if running.is_empty() && self.stuck => output::say("nothing is stuck"),
            Format::Table if running.is_empty() => output::say("nothing runs"),
            Format::Table => {
                let lines = running.iter().map(|Running { queue, stuck, job }| {
                    [
                        printable(queue),
                        job.id.to_string(),
                        text(job.kind.as_deref()),
                        job.attempts.to_string(),
                        text(job.owner.as_deref()),
                        job.running_since.map(|since| duration::short(now.since(since))).unwrap_or_default(),
                        if *stuck { "stuck".to_owned() } else { String::new() },
                    ]
                });
                output::table(["QUEUE", "JOB", "KIND", "ATTEMPT", "OWNER", "FOR", ""], lines)?;
            }
        }
        Ok(0)
    }
}
