//! stream publish.

use super::streams;
use crate::{
    config::Config,
    exit::{Failure, Outcome},
    output::{self, Format},
    target::Embedded,
};
use clap::Args;
use leasehold::{
    clock::Timestamp,
    stream::{Draft, MessageId, Published, Stream, StreamName},
};
use serde::Serialize;
use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
};

/// So many lines of a file are sent together.
const MESSAGES: usize = 1000;

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// What the message is about: words separated by dots, such as events.audit.login
    subject: String,
    /// What it says: text, or - for what comes on standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    payload: Option<String>,
    /// A message for each line of a file; - for standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The stream to append to; made if there is none [default: one that is called as the subject]
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Messages of one key stay in order, also in a stream of several partitions
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// What it belongs to, for whoever follows a request through several systems
    #[arg(long, value_name = "TEXT")]
    trace_id: Option<String>,
    /// When it happened, if that was not just now: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = crate::jobs::time)]
    time: Option<Timestamp>,
    /// Your own id, a UUID: publishing again with it lets readers drop the second
    #[arg(long, value_name = "UUID", conflicts_with = "file")]
    id: Option<MessageId>,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    message_id: String,
    stream: &'a str,
    partition: u16,
    offset: u64,
}

impl Publish {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let name: StreamName = self.stream.as_deref().unwrap_or(&self.subject).parse()?;
        let payload = match self.payload.as_deref() {
            Some("-") => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                read.map_err(|error| Failure::failed(format!("standard input cannot be read: {error}")))?;
                Some(bytes)
            }
            text => text.map(|text| text.as_bytes().to_vec()),
        };
        let opened = Embedded::open(config).await?;
        let streams = streams(&opened, config)?;
        let stream = streams.stream(name.as_str())?;
        // A stream that is made here has what the configuration says, from its first message on.
        if let Some(settings) = config.streams.best(name.as_str())
            && !streams.names().await?.contains(&name)
        {
            stream.configure(settings.clone()).await?;
        }
        match (payload, &self.file) {
            (Some(payload), _) => self.send(config, &stream, vec![payload]).await?,
            (None, Some(file)) => self.send_file(config, &stream, file).await?,
            (None, None) => return Err(Failure::usage("say what the message says")),
        }
        Ok(0)
    }

    fn draft(&self, payload: Vec<u8>) -> Draft {
        let mut draft = Draft::new(&self.subject, payload);
        if let Some(key) = &self.key {
            draft = draft.key(key);
        }
        if let Some(trace_id) = &self.trace_id {
            draft = draft.trace_id(trace_id);
        }
        if let Some(time) = self.time {
            draft = draft.time(time);
        }
        match self.id {
            Some(id) => draft.id(id),
            None => draft,
        }
    }

    async fn send_file(&self, config: &Config, stream: &Stream, file: &PathBuf) -> Result<(), Failure> {
        let unreadable = |error: std::io::Error| Failure::failed(format!("{} cannot be read: {error}", file.display()));
        let input: Box<dyn Read + Send> = match file.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(std::fs::File::open(file).map_err(unreadable)?),
        };
        let mut lines = Vec::new();
        for line in BufReader::new(input).lines() {
            let line = line.map_err(unreadable)?;
            if line.is_empty() {
                continue;
            }
            lines.push(line.into_bytes());
            if lines.len() >= MESSAGES {
                self.send(config, stream, std::mem::take(&mut lines)).await?;
            }
        }
        self.send(config, stream, lines).await
    }

    async fn send(&self, config: &Config, stream: &Stream, payloads: Vec<Vec<u8>>) -> Result<(), Failure> {
        let drafts = payloads.into_iter().map(|payload| self.draft(payload));
        for published in stream.publish_many(drafts).await? {
            let Published { id, partition, offset, .. } = published;
            match config.output.value {
                Format::Table => output::print(offset)?,
                Format::Json => {
                    let stream = stream.name().as_str();
                    output::json(&Line { message_id: id.to_string(), stream, partition, offset })?;
                }
            }
        }
        Ok(())
    }
}
