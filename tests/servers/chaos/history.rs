//! What a process says that it did: one line each, written when it is known. A process that is killed says nothing more.

use leasehold::decision;
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// One thing that happened, from when it was asked for until its answer was there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) worker: String,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) event: Event,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// A lease was granted.
    Granted { key: String, fence: u64, lease: String },
    /// The resource said that it has made a write.
    Wrote { key: String, fence: u64, id: String },
    /// The resource had seen a higher fence.
    Refused { key: String, fence: u64 },
    /// What a transaction's decision is, by deciding or by reading.
    Answered { txn: String, answer: Answer },
    /// The sweeper ran.
    Swept { cleared: u64, deleted: u64, kept: u64, failures: u64 },
    /// A call failed.
    Failed { call: String, kind: String, message: String },
}

impl Event {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Granted { .. } => "granted".into(),
            Self::Wrote { .. } => "wrote".into(),
            Self::Refused { .. } => "refused by fence".into(),
            Self::Answered { answer, .. } => format!("answered {answer:?}"),
            Self::Swept { .. } => "swept".into(),
            Self::Failed { call, kind, .. } => format!("{call} failed as {kind}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Commit,
    Abort,
    Undecided,
    Forgotten,
}

impl From<decision::Answer> for Answer {
    fn from(answer: decision::Answer) -> Self {
        match answer {
            decision::Answer::Undecided => Self::Undecided,
            decision::Answer::Committed => Self::Commit,
            decision::Answer::Aborted => Self::Abort,
            decision::Answer::Forgotten => Self::Forgotten,
        }
    }
}

impl From<decision::Decided> for Answer {
    fn from(decided: decision::Decided) -> Self {
        match decided {
            decision::Decided::Decision(decision::Decision::Commit) => Self::Commit,
            decision::Decided::Decision(decision::Decision::Abort) => Self::Abort,
            decision::Decided::TooOld => Self::Forgotten,
        }
    }
}

/// Every line of a file, but for half a line at the end of a life.
pub(super) fn read(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}
