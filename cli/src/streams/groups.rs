//! stream groups.

use super::existing;
use crate::{
    config::Config,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
};
use clap::Args;
use leasehold::stream::{GroupName, StreamName};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct Groups {
    /// The stream
    stream: StreamName,
    /// Let this group expire at once: it keeps no messages from being trimmed any more
    #[arg(long, value_name = "NAME")]
    remove: Option<GroupName>,
}

#[derive(Debug, Serialize)]
struct Line {
    group: String,
    partition: u16,
    /// The next message that it has not acknowledged.
    offset: u64,
    /// How many it has not.
    lag: u64,
    expired_at: Option<String>,
}

impl Groups {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let opened = match self.remove {
            Some(_) => Embedded::existing(config).await?,
            None => Embedded::looking(config).await?,
        };
        let stream = existing(&opened, config, &self.stream).await?;
        let partitions = stream.settings().await?.partitions;
        if let Some(name) = &self.remove {
            let group = stream.group(name.as_str())?;
            if group.lag(0).await?.is_none() {
                let list = config.command(&["stream", "groups", self.stream.as_str()]);
                return Err(Failure::failed(format!("{} has no group {name}; those there are: {list}", self.stream)));
            }
            group.remove().await?;
            output::say(format_args!("the group {name} keeps nothing of {} any more", self.stream));
            return Ok(0);
        }
        let mut lines = Vec::new();
        for partition in 0..partitions {
            for name in stream.groups(partition).await? {
                let Some(lag) = stream.group(name.as_str())?.lag(partition).await? else { continue };
                let expired_at = lag.expired.map(|at| at.to_string());
                lines.push(Line {
                    group: name.to_string(),
                    partition,
                    offset: lag.offset,
                    lag: lag.messages,
                    expired_at,
                });
            }
        }
        match config.output.value {
            Format::Json => output::json(&lines)?,
            Format::Table if lines.is_empty() => output::say("no groups"),
            Format::Table => {
                let lines = lines.into_iter().map(|line| {
                    let expired = line.expired_at.map(|at| format!("expired {at}")).unwrap_or_default();
                    [line.group, line.partition.to_string(), line.offset.to_string(), line.lag.to_string(), expired]
                });
                output::table(["GROUP", "PARTITION", "NEXT OFFSET", "BEHIND", ""], lines)?;
            }
        }
        Ok(0)
    }
}
