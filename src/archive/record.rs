//! The archiver's record of one partition: how far it has come, and what it is doing.

use crate::{
    record::sealed::Body,
    stream::records::{ARCHIVE_FORMAT, Cursor},
};
use serde::{Deserialize, Serialize};

/// `archive.json`. What a trimmer reads of it is `stream::records::Archived`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ArchiveBody {
    /// Everything before this is in the archive.
    pub(crate) cursor: Cursor,
    /// Whether a trimmer is known to have seen it; until then nothing counts as archived.
    pub(crate) settled: bool,
    /// What is being written: carried out by whoever comes next exactly as it stands here.
    pub(crate) plan: Option<Plan>,
}

impl Body for ArchiveBody {
    const FORMAT: u32 = ARCHIVE_FORMAT;
    const WHAT: &'static str = "the archiver's record";
}

/// A range of messages, and the files that they go to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The domain of the archive.
    pub(crate) domain: String,
    /// The place after the last message.
    pub(crate) to: Cursor,
    /// The offset of the first message and of the last one.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Segments that cannot be read: left out, whoever carries it out.
    #[serde(default)]
    pub(crate) skipped: Vec<u64>,
    pub(crate) files: Vec<PlannedFile>,
}

/// One file of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedFile {
    pub(crate) name: String,
    /// Which messages are in it.
    pub(crate) digest: String,
    pub(crate) count: u64,
}
