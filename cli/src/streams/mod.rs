//! Streams: publishing, reading, their groups, what is kept of them, and their archive.

mod archive;
mod groups;
mod publish;
mod read;
mod rules;

pub(crate) use archive::Command as ArchiveCommand;
pub(crate) use rules::{ArchiveRules, StreamFile, load};

use crate::{
    config::Config,
    duration,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
};
use clap::{Args, Subcommand};
use leasehold::stream::{Stream, StreamName, StreamSettings, Streams};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Append a message, or one for each line of a file
    Publish(publish::Publish),
    /// Print the messages that are there
    Read(read::Read),
    /// Print messages as they come
    Tail(read::Tail),
    /// Show all streams, what is kept of them, and where they are archived
    List,
    /// Show the groups of a stream, and how far they are behind
    Groups(groups::Groups),
    /// Delete what is old enough, and what nobody has yet to read. Sweeping does this as well
    Trim(Trim),
    /// Give streams the settings that the configuration file has for them, by pattern
    Apply,
}

#[derive(Debug, Args)]
pub(crate) struct Trim {
    /// The stream
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    stream: Option<StreamName>,
    /// All streams
    #[arg(long)]
    all: bool,
}

fn streams(opened: &Embedded, config: &Config) -> Result<Streams, Failure> {
    Ok(opened.store.streams(config.namespace.value.clone())?)
}

/// A stream that is there: looking at one must not make it where its name is misspelt.
async fn existing(opened: &Embedded, config: &Config, name: &StreamName) -> Result<Stream, Failure> {
    let streams = streams(opened, config)?;
    let names = streams.names().await?;
    if names.contains(name) {
        return Ok(streams.stream(name.as_str())?);
    }
    let known = match names.len() {
        0 => "there are none yet".to_owned(),
        1..=5 => format!("there are: {}", names.iter().map(StreamName::as_str).collect::<Vec<_>>().join(", ")),
        count => format!("there are {count}: {}", config.command(&["stream", "list"])),
    };
    let namespace = &config.namespace.value;
    Err(Failure::failed(format!(
        "there is no stream {name} in the namespace {namespace} ({known}): the first message makes it"
    )))
}

#[derive(Debug, Serialize)]
struct Listed {
    stream: String,
    /// The offset of the next message, by partition.
    ends: Vec<u64>,
    settings: StreamSettings,
}

#[derive(Debug, Serialize)]
struct Trimmed {
    stream: String,
    #[serde(flatten)]
    trimmed: leasehold::stream::Trimmed,
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::Publish(publish) => publish.run(config).await,
            Self::Read(read) => read.run(config).await,
            Self::Tail(tail) => tail.run(config).await,
            Self::List => list(config).await,
            Self::Groups(groups) => groups.run(config).await,
            Self::Trim(trim) => trim.run(config).await,
            Self::Apply => apply(config).await,
        }
    }
}

async fn list(config: &Config) -> Outcome {
    let opened = Embedded::looking(config).await?;
    let streams = streams(&opened, config)?;
    let mut listed = Vec::new();
    for name in streams.names().await? {
        let stream = streams.stream(name.as_str())?;
        let settings = stream.settings().await?;
        let mut ends = Vec::new();
        for partition in 0..settings.partitions {
            ends.push(stream.end(partition).await?);
        }
        listed.push(Listed { stream: name.to_string(), ends, settings });
    }
    match config.output.value {
        Format::Json => output::json(&listed)?,
        Format::Table if listed.is_empty() => output::say("no streams"),
        Format::Table => {
            let lines = listed.into_iter().map(|Listed { stream, ends, settings }| {
                let published: u64 = ends.iter().sum();
                let partitions = ends.len().to_string();
                [stream, published.to_string(), partitions, kept(&settings), settings.archive.unwrap_or_default()]
            });
            output::table(["STREAM", "PUBLISHED", "PARTITIONS", "KEPT", "ARCHIVE"], lines)?;
        }
    }
    Ok(0)
}

/// What is kept of a stream, in words.
fn kept(settings: &StreamSettings) -> String {
    let retention = &settings.retention;
    let age = retention.max_age.map(duration::exact);
    let bytes = retention.max_bytes.map(|bytes| format!("{bytes} bytes"));
    let messages = retention.max_messages.map(|messages| format!("{messages} messages"));
    let limits: Vec<String> = [age, bytes, messages].into_iter().flatten().collect();
    if limits.is_empty() { "everything".to_owned() } else { limits.join(", ") }
}

impl Trim {
    async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::existing(config).await?;
        let chosen = match &self.stream {
            Some(name) => vec![existing(&opened, config, name).await?],
            None => {
                let streams = streams(&opened, config)?;
                let names = streams.names().await?;
                names.iter().map(|name| streams.stream(name.as_str())).collect::<Result<_, _>>()?
            }
        };
        let mut all = Vec::new();
        for stream in chosen {
            let name = stream.name().to_string();
            all.extend(stream.trim().await?.into_iter().map(|trimmed| Trimmed { stream: name.clone(), trimmed }));
        }
        match config.output.value {
            Format::Json => output::json(&all)?,
            Format::Table if all.is_empty() => output::say("no streams"),
            Format::Table => {
                let lines = all.into_iter().map(|Trimmed { stream, trimmed }| {
                    [
                        stream,
                        trimmed.partition.to_string(),
                        trimmed.first_offset.to_string(),
                        trimmed.segments.to_string(),
                        trimmed.held_by.unwrap_or_default(),
                    ]
                });
                output::table(["STREAM", "PARTITION", "FIRST OFFSET", "SEGMENTS DELETED", "HELD BY"], lines)?;
            }
        }
        Ok(0)
    }
}

async fn apply(config: &Config) -> Outcome {
    if config.streams.iter().next().is_none() {
        return Err(Failure::usage(
            "the configuration has no streams: write such as [streams.\"events.>\"] with retention = { max_age = \"7d\" } \
             into it; leasehold config show says where it is",
        ));
    }
    let opened = Embedded::existing(config).await?;
    let changed = streams(&opened, config)?.apply(&config.streams).await?;
    let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
    match config.output.value {
        Format::Json => output::json(&changed)?,
        Format::Table if changed.is_empty() => output::say("every stream is as configured"),
        Format::Table => output::print(changed.join("\n"))?,
    }
    Ok(0)
}
