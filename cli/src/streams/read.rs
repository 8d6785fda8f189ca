//! stream read and tail.

use super::existing;
use crate::{
    config::Config,
    duration,
    exit::{Failure, HELD, Outcome, UNAVAILABLE},
    output::{self, Format},
    target::Embedded,
    view::printable,
};
use clap::Args;
use leasehold::{
    Clock, SystemClock,
    stream::{Batch, GroupName, Message, Position, Reader, Stream, StreamName},
};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Read {
    /// The stream
    stream: StreamName,
    /// Where to begin: earliest, latest, an offset, or a time such as 2026-12-24T18:00:00Z. A group that is there goes on
    /// where it is
    #[arg(long, value_name = "WHERE", default_value = "earliest", value_parser = position)]
    from: Position,
    /// Only this partition [default: one after the other]
    #[arg(long, value_name = "N")]
    partition: Option<u16>,
    /// So many messages at the most
    #[arg(long, value_name = "N", conflicts_with = "group")]
    limit: Option<u64>,
    /// Read on behalf of a group, which remembers what was printed; 4 if another process reads for it
    #[arg(long, value_name = "NAME")]
    group: Option<GroupName>,
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The stream
    stream: StreamName,
    /// Where to begin: earliest, latest, an offset, or a time such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "WHERE", default_value = "latest", value_parser = position)]
    from: Position,
    /// Only this partition [default: all]
    #[arg(long, value_name = "N")]
    partition: Option<u16>,
    /// How often to look for more: one request for each partition
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s")]
    every: Duration,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

fn position(text: &str) -> Result<Position, String> {
    match text {
        "earliest" => Ok(Position::Earliest),
        "latest" => Ok(Position::Latest),
        _ => match text.parse() {
            Ok(offset) => Ok(Position::Offset(offset)),
            Err(_) => crate::jobs::time(text).map(Position::Time).map_err(|_| {
                "it is earliest, latest, an offset such as 42, or a time such as 2026-12-24T18:00:00Z".to_owned()
            }),
        },
    }
}

/// A message, with the fields of a line of the archive.
#[derive(Debug, Serialize)]
struct Line<'a> {
    message_id: String,
    subject: &'a str,
    timestamp: String,
    partition: u16,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_b64: Option<String>,
}

fn show(config: &Config, partition: u16, message: &Message) -> Result<(), Failure> {
    let text = std::str::from_utf8(&message.payload).ok();
    match config.output.value {
        Format::Table => {
            let shown = text
                .map_or_else(|| format!("base64: {}", base64(message)), |text| printable(text.trim_end_matches('\n')));
            let place = if partition == 0 { String::new() } else { format!("{partition}/") };
            output::print(format_args!(
                "{place}{}  {}  {}  {shown}",
                message.offset,
                message.time,
                printable(&message.subject)
            ))
        }
        Format::Json => {
            let payload = serde_json::from_slice(&message.payload).ok();
            let payload_b64 = payload.is_none().then(|| base64(message));
            output::json(&Line {
                message_id: message.id.to_string(),
                subject: &message.subject,
                timestamp: message.time.to_string(),
                partition,
                seq: message.offset,
                key: message.key.as_deref(),
                trace_id: message.trace_id.as_deref(),
                payload,
                payload_b64,
            })
        }
    }
}

fn base64(message: &Message) -> String {
    crate::jobs::base64(&message.payload)
}

/// Prints a batch, up to a number of messages.
fn show_all(config: &Config, partition: u16, batch: &Batch, left: &mut u64) -> Result<(), Failure> {
    if batch.missed > 0 {
        output::say(format_args!(
            "warning: {} messages before these were trimmed before they could be read",
            batch.missed
        ));
    }
    for message in &batch.messages {
        if *left == 0 {
            break;
        }
        show(config, partition, message)?;
        *left -= 1;
    }
    Ok(())
}

/// The partitions that are meant.
async fn partitions(stream: &Stream, only: Option<u16>) -> Result<Vec<u16>, Failure> {
    Ok(match only {
        Some(number) => vec![number],
        None => (0..stream.settings().await?.partitions).collect(),
    })
}

impl Read {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let opened = match self.group {
            Some(_) => Embedded::existing(config).await?,
            None => Embedded::looking(config).await?,
        };
        let stream = existing(&opened, config, &self.stream).await?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        for partition in partitions(&stream, self.partition).await? {
            match &self.group {
                Some(group) => self.consume(config, &stream, group, partition).await?,
                None => {
                    let mut reader = stream.read_partition(partition, self.from).await?;
                    while left > 0
                        && let Some(batch) = reader.next().await?
                    {
                        show_all(config, partition, &batch, &mut left)?;
                    }
                }
            }
        }
        Ok(0)
    }

    /// What a group has not read yet. Printed first and acknowledged then: what was printed and not acknowledged is printed
    /// again.
    async fn consume(
        &self,
        config: &Config,
        stream: &Stream,
        group: &GroupName,
        partition: u16,
    ) -> Result<(), Failure> {
        let handle = stream.group(group.as_str())?.start(self.from);
        let Some(mut consumer) = handle.consume(partition).await? else {
            return Err(Failure::new(
                HELD,
                format!("another process reads {} for the group {group}: wait until it has ended", self.stream),
            ));
        };
        while let Some(batch) = consumer.next().await? {
            let mut all = u64::MAX;
            show_all(config, partition, &batch, &mut all)?;
            consumer.ack(&batch).await?;
        }
        Ok(consumer.close().await?)
    }
}

impl Tail {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let opened = Embedded::looking(config).await?;
        let stream = existing(&opened, config, &self.stream).await?;
        let mut readers: Vec<(u16, Reader)> = Vec::new();
        for partition in partitions(&stream, self.partition).await? {
            readers.push((partition, stream.read_partition(partition, self.from).await?));
        }
        let clock = SystemClock::new();
        let (mut left, mut failing) = (self.limit.unwrap_or(u64::MAX), false);
        loop {
            let mut more = false;
            for (partition, reader) in &mut readers {
                match reader.next().await.map_err(Failure::from) {
                    Ok(Some(batch)) => {
                        more = true;
                        show_all(config, *partition, &batch, &mut left)?;
                    }
                    Ok(None) => failing = false,
                    Err(failure) if failure.code == UNAVAILABLE => {
                        if !std::mem::replace(&mut failing, true) {
                            output::say(format_args!("warning: {failure}; trying again"));
                        }
                    }
                    Err(failure) => return Err(failure),
                }
                if left == 0 {
                    return Ok(0);
                }
            }
            if !more {
                clock.sleep(self.every).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_stream_is_a_word_a_number_or_a_time() {
        assert_eq!(position("earliest"), Ok(Position::Earliest));
        assert_eq!(position("42"), Ok(Position::Offset(42)));
        assert!(matches!(position("2026-12-24T18:00:00Z"), Ok(Position::Time(_))));
        assert!(position("yesterday").unwrap_err().contains("earliest"));
    }
}
