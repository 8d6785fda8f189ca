//! The records of a stream, each changed by compare-and-swap: its settings, where a partition begins, how far a group is.

use super::StreamSettings;
use crate::record::sealed::Body;
use serde::{Deserialize, Serialize};

/// `stream.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamBody {
    /// Tells it from a stream of the same name that was there before: 16 hexadecimal digits.
    pub(crate) incarnation: String,
    pub(crate) settings: StreamSettings,
}

impl Body for StreamBody {
    const FORMAT: u32 = 1;
    const WHAT: &'static str = "the settings of a stream";
}

/// A place in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The offset of the next message.
    pub(crate) offset: u64,
    /// The number of the segment that it is in, or will be in.
    pub(crate) number: u64,
}

/// `meta.json`: where a partition begins. A missing one says that nothing was ever trimmed.
///
/// Whoever makes something that keeps messages from being trimmed (a group, an archiver, other settings) changes this
/// record last, and be it by its revision alone: a trimmer's change is based on what it read before it looked at those.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MetaBody {
    /// The first message that is kept.
    pub(crate) first: Cursor,
    /// A segment that was there once: the end of the log is looked for from here on.
    pub(crate) hint: u64,
}

impl Body for MetaBody {
    const FORMAT: u32 = 1;
    const WHAT: &'static str = "the record of a partition";
}

/// How far a group has read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct GroupBody {
    /// Everything before this is acknowledged.
    pub(crate) cursor: Cursor,
    /// Whether a trimmer is known to have seen it where it is now; until then it holds everything.
    pub(crate) settled: bool,
    /// The fence of the consumer that may acknowledge.
    pub(crate) fence: u64,
    /// Who that is, for people.
    pub(crate) consumer: String,
    /// When it stopped keeping messages, if it did.
    pub(crate) expired_ms: Option<i64>,
    /// How many messages were given up by its consumers.
    pub(crate) dead_letters: u64,
}

impl Body for GroupBody {
    const FORMAT: u32 = 1;
    const WHAT: &'static str = "the record of a group";
}

/// What a trimmer has to know of the archiver's record: how far messages are copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Archived {
    /// Everything before this is in the archive.
    pub(crate) cursor: Cursor,
    /// Whether a trimmer is known to have seen it; until then nothing counts as archived.
    pub(crate) settled: bool,
}

/// The format of the archiver's record.
pub(crate) const ARCHIVE_FORMAT: u32 = 1;

impl Body for Archived {
    const FORMAT: u32 = ARCHIVE_FORMAT;
    const WHAT: &'static str = "the archiver's record";
}
