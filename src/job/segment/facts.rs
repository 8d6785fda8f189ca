//! What a ledger needs to know of a segment: runs of jobs that are alike, and nothing of their parts.

use super::{Entry, Table};
use crate::{
    Fence,
    job::{
        id::{JobId, SegmentId, hash},
        ledger::{Run, Traits, Why},
    },
};

/// A segment as a ledger absorbs it. Made once when a table is read; a commit that is tried again uses it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) segment: SegmentId,
    pub(crate) jobs: u16,
    /// All jobs, in the order of the table.
    pub(crate) runs: Vec<Run>,
    /// The hashes of the unique keys, by index.
    pub(crate) unique: Vec<(u16, [u8; 16])>,
    /// The highest fence that one of its jobs has had elsewhere.
    pub(crate) fence: Option<Fence>,
    pub(crate) request: bool,
    /// The least and the greatest id in it, where they are not those of its own places.
    pub(crate) span: Option<(JobId, JobId)>,
}

impl Table {
    pub(crate) fn facts(&self) -> Facts {
        let mut runs: Vec<Run> = Vec::new();
        let mut unique = Vec::new();
        for (index, entry) in (0u16..).zip(&self.jobs) {
            let traits = traits(entry);
            match runs.last_mut() {
                Some(run) if run.traits == traits => run.to += 1,
                _ => runs.push(Run { from: index, to: index + 1, traits }),
            }
            unique.extend(entry.unique_key.as_ref().map(|key| (index, unique_hash(entry.key.as_deref(), key))));
        }
        let ids = || self.jobs.iter().filter_map(|entry| entry.history.id);
        Facts {
            segment: self.segment,
            jobs: u16::try_from(self.jobs.len()).unwrap_or(u16::MAX),
            runs,
            unique,
            fence: self.jobs.iter().filter_map(|entry| entry.history.fence).max(),
            request: self.request,
            span: ids().min().zip(ids().max()),
        }
    }
}

fn traits(entry: &Entry) -> Traits {
    let history = &entry.history;
    Traits {
        priority: entry.priority,
        due: entry.due.as_millis(),
        tenant: entry.tenant.as_ref().map_or(0, |tenant| tenant_hash(tenant)),
        key: entry.key.as_ref().map_or(0, |key| key_hash(key)),
        attempts: history.attempts,
        stalls: history.stalls,
        group: history.group,
        why: Why::New,
        claim: None,
        paused: false,
        error: history.error.clone(),
    }
}

/// By which the turns of tenants are told apart; never 0. Two that meet share one turn.
pub(crate) fn tenant_hash(tenant: &str) -> u32 {
    crc32c::crc32c(tenant.as_bytes()).max(1)
}

/// By which unique keys are told apart. With a key, a unique key holds among the jobs of that key: all of them are in
/// one shard.
pub(crate) fn unique_hash(key: Option<&str>, unique: &str) -> [u8; 16] {
    match key {
        Some(key) => hash(&[b"unique", key.as_bytes(), unique.as_bytes()]),
        None => hash(&[b"unique", unique.as_bytes()]),
    }
}

/// By which the limits of keys are counted; never 0.
pub(crate) fn key_hash(key: &str) -> u64 {
    let hash = hash(&[b"key", key.as_bytes()]);
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]]).max(1)
}
