//! A message: as it is handed in, and as it comes out of a stream.

use crate::{Error, Generator, Result, clock::Timestamp, generator::GeneratorExt};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// The largest payload, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The longest subject, key and trace id, in bytes.
const MAX_TEXT: usize = 255;

/// Names a message: a UUID, of version 7 when the library makes it. Two messages with one id are one that was published
/// twice; a reader drops the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MessageId(Uuid);

impl MessageId {
    /// A fresh one that says when it was made.
    pub(crate) fn new(now: Timestamp, generator: &dyn Generator) -> Self {
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &generator.bytes()).into_uuid())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl From<[u8; 16]> for MessageId {
    fn from(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let uuid = Uuid::try_parse(text).ok().filter(|uuid| uuid.to_string() == text);
        uuid.map(Self)
            .ok_or_else(|| Error::invalid(format!("{text:?} is no message id: it must be a UUID in lower case")))
    }
}

impl TryFrom<String> for MessageId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<MessageId> for String {
    fn from(id: MessageId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A message that is to be published.
///
/// ```
/// use leasehold::stream::Draft;
///
/// let draft = Draft::new("events.audit.login", r#"{"user":"alice"}"#).key("alice").trace_id("4bf92f35");
/// # drop(draft);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Draft {
    pub(crate) subject: String,
    pub(crate) payload: Bytes,
    pub(crate) key: Option<String>,
    pub(crate) trace_id: Option<String>,
    pub(crate) time: Option<Timestamp>,
    pub(crate) id: Option<MessageId>,
}

impl Draft {
    /// With this subject and payload, at the time at which it is published, and with an id of its own.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), payload: payload.into(), key: None, trace_id: None, time: None, id: None }
    }

    /// Messages of one key go to one partition, and stay in order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What it belongs to, for whoever follows a request through several systems.
    pub fn trace_id(mut self, trace_id: impl Into<String>) -> Self {
        self.trace_id = Some(trace_id.into());
        self
    }

    /// When it happened, if that was not just now.
    pub fn time(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }

    /// An id of the caller's: publishing again with the same id lets readers drop the second.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// What is published, unless a rule is broken.
    pub(crate) fn into_message(self, now: Timestamp, generator: &dyn Generator) -> Result<Message> {
        let texts =
            [("subject", Some(&self.subject)), ("key", self.key.as_ref()), ("trace id", self.trace_id.as_ref())];
        for (what, text) in texts.into_iter().filter_map(|(what, text)| Some((what, text?))) {
            if text.is_empty() || text.len() > MAX_TEXT {
                let length = text.len();
                return Err(Error::invalid(format!(
                    "the {what} of a message must have 1 to {MAX_TEXT} bytes (got {length})"
                )));
            }
        }
        if self.payload.len() > MAX_PAYLOAD {
            return Err(Error::invalid(format!(
                "the payload of a message must have at most {MAX_PAYLOAD} bytes (got {}): store it elsewhere, and publish where",
                self.payload.len()
            )));
        }
        Ok(Message {
            offset: 0,
            id: self.id.unwrap_or_else(|| MessageId::new(now, generator)),
            subject: self.subject,
            time: Timestamp::from_millis(self.time.unwrap_or(now).as_millis()),
            key: self.key,
            trace_id: self.trace_id,
            payload: self.payload,
        })
    }
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Its place in its partition: one more with every message.
    pub offset: u64,
    /// Its id.
    pub id: MessageId,
    /// What it is about.
    pub subject: String,
    /// When it happened, in whole milliseconds, as its publisher said.
    pub time: Timestamp,
    /// Messages of one key are in one partition.
    pub key: Option<String>,
    /// What it belongs to.
    pub trace_id: Option<String>,
    /// What it says.
    pub payload: Bytes,
}

impl Message {
    /// About as many bytes as it has in the store.
    pub(crate) fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.payload.len() + self.subject.len() + text(&self.key) + text(&self.trace_id) + 48
    }
}
