//! Events of jobs: what a ledger's outbox says, as messages of a stream.
//!
//! An event stands in the ledger from the commit in which it happened until a later commit knows that it was published. So
//! none is lost, and one that is published twice has the same id both times.

use super::{
    id::{JobId, SegmentId, hash},
    ledger::{Event, Happened, JobEvents, Millis, Reason},
};
use crate::{
    Error, Result,
    clock::Timestamp,
    stream::{Draft, MessageId, StreamName},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the names of these streams begin with.
const JOBS: &str = "jobs";

/// The stream of the ends of a queue's jobs, and the one of what happens to them before. A queue whose name no stream can
/// have is called by a hash of it; every message names the queue itself.
pub(crate) fn streams(queue: &str) -> [String; 2] {
    let name = |word: &str, last: &str| format!("{JOBS}.{word}.{last}");
    let fits = |word: &str| name(word, "terminal").parse::<StreamName>().is_ok();
    let word = if fits(queue) {
        queue.to_owned()
    } else {
        format!("q-{:032x}", u128::from_be_bytes(hash(&[queue.as_bytes()])))
    };
    [name(&word, "terminal"), name(&word, "retry")]
}

/// Whether a job has ended with it.
fn is_terminal(what: Happened) -> bool {
    match what {
        Happened::Finished | Happened::Dead(_) | Happened::Cancelled | Happened::Duplicate(_) => true,
        Happened::Recovered | Happened::Retried => false,
    }
}

impl JobEvents {
    /// Whether a queue tells of this.
    pub(crate) fn tells(self, what: Happened) -> bool {
        match self {
            Self::Off => false,
            Self::Terminal => is_terminal(what),
            Self::All => true,
        }
    }
}

/// What is told of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) stream: String,
    id: MessageId,
    at_ms: Millis,
    job: JobId,
    body: Value,
}

impl Told {
    pub(crate) fn draft(&self) -> Draft {
        let draft = Draft::new(self.stream.as_str(), self.body.to_string()).key(self.job.to_string());
        draft.time(Timestamp::from_millis(self.at_ms)).id(self.id)
    }
}

/// As an object holds them, one a line.
pub(crate) fn to_lines(told: &[Told]) -> Result<Bytes> {
    let mut lines = Vec::new();
    for one in told {
        serde_json::to_writer(&mut lines, one)
            .map_err(|error| Error::corrupt(format!("an event cannot be written: {error}")))?;
        lines.push(b'\n');
    }
    Ok(lines.into())
}

/// What [`to_lines`] has written.
pub(crate) fn from_lines(lines: &[u8]) -> Result<Vec<Told>> {
    let told = serde_json::Deserializer::from_slice(lines).into_iter().collect::<std::result::Result<_, _>>();
    told.map_err(|error| Error::corrupt(format!("events that waited for their stream cannot be read: {error}")))
}

/// What there is to tell of one event: one message for each job. `id` knows by which id a job in that place was enqueued.
pub(crate) fn told(queue: &str, shard: u8, event: &Event, id: impl Fn(SegmentId, u16) -> JobId) -> Vec<Told> {
    let [terminal, retry] = streams(queue);
    let stream = if is_terminal(event.what) { terminal } else { retry };
    let one = |index: u16| {
        let job = id(event.segment, index);
        let mut body = json!({ "queue": queue, "job": job, "event": name(event.what), "at_ms": event.at });
        if let Some(fence) = event.fence {
            body["fence"] = json!(fence);
        }
        match event.what {
            Happened::Dead(reason) => body["reason"] = json!(reason_name(reason)),
            Happened::Duplicate(of) => body["duplicate_of"] = json!(id(of.segment, of.index)),
            _ => {}
        }
        let id = message_id(queue, shard, event, index);
        Told { stream: stream.clone(), id, at_ms: event.at, job, body }
    };
    (event.range.from..event.range.to).map(one).collect()
}

/// The same for the same event, whoever publishes it.
fn message_id(queue: &str, shard: u8, event: &Event, index: u16) -> MessageId {
    let (segment, index, number) =
        (event.segment.number().to_be_bytes(), index.to_be_bytes(), event.number.to_be_bytes());
    let hashed = hash(&[queue.as_bytes(), &[shard], &segment, &index, &number]);
    let mut random = [0; 10];
    random.copy_from_slice(&hashed[..10]);
    let millis = u64::try_from(event.at).unwrap_or(0);
    MessageId::from(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().into_bytes())
}

fn name(what: Happened) -> &'static str {
    match what {
        Happened::Finished => "finished",
        Happened::Dead(_) => "dead",
        Happened::Cancelled => "cancelled",
        Happened::Duplicate(_) => "duplicate",
        Happened::Recovered => "recovered",
        Happened::Retried => "retried",
    }
}

fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Exhausted => "exhausted",
        Reason::ForGood => "failed_for_good",
        Reason::Stalled => "stalled",
        Reason::Damaged => "damaged",
        Reason::Forgotten => "transaction_forgotten",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{id::Class, ledger::Range};

    #[test]
    fn a_queue_that_no_stream_can_be_called_by_is_called_by_a_hash() {
        assert_eq!(streams("emails"), ["jobs.emails.terminal", "jobs.emails.retry"]);
        assert_eq!(streams("a.b-c_9")[0], "jobs.a.b-c_9.terminal");
        for queue in ["E-Mails", "a b", "ü", "a/b", "a..b"] {
            let [terminal, retry] = streams(queue);
            assert!(terminal.starts_with("jobs.q-") && terminal.parse::<StreamName>().is_ok(), "{terminal}");
            assert!(retry.parse::<StreamName>().is_ok(), "{retry}");
        }
        assert_ne!(streams("a b"), streams("a  b"));
    }

    #[test]
    fn an_event_has_the_same_id_whoever_publishes_it_and_no_two_share_one() {
        let segment = SegmentId::of_request("q", "7", 0, 1, Class::Normal);
        let range = Range { from: 2, to: 5 };
        let event = Event { number: 9, segment, range, what: Happened::Finished, at: 1_000, fence: None };
        let all_told = told("q", 1, &event, SegmentId::job);
        assert_eq!(from_lines(&to_lines(&all_told).unwrap()).unwrap(), all_told);
        let ids = |event: &Event| told("q", 1, event, SegmentId::job).iter().map(|told| told.id).collect();
        let first: Vec<MessageId> = ids(&event);
        assert_eq!(first, ids(&event));
        let second: Vec<MessageId> = ids(&Event { number: 10, ..event });
        let all: std::collections::BTreeSet<_> = first.iter().chain(&second).collect();
        assert_eq!(all.len(), 6);
    }
}
