//! The JSON that the lock service speaks, for both ends of it.
//!
//! Times are milliseconds since 1970, durations are milliseconds. A fence is an integer below 2^53, which every JSON
//! parser keeps exact. A key that is not UTF-8 stands under `key_b64` instead of `key`.

#[path = "wire/jobs.rs"]
mod jobs;
#[path = "wire/semaphores.rs"]
mod semaphores;
#[path = "wire/sweeps.rs"]
mod sweeps;

pub(crate) use jobs::*;
pub(crate) use semaphores::*;
pub(crate) use sweeps::*;

use leasehold::{
    Fence, Key, LeaseId, Namespace,
    clock::Timestamp,
    layout::KeyJson,
    lease::{Grant, Holder, Status},
};
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// The header by which an acquire can be repeated.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The header by which one who waits says that another request will follow when this one times out: its place in the line
/// is kept. A service that does not know it takes the next request for a new one.
pub(crate) const WAIT: &str = "leasehold-wait";
pub(crate) const CONTINUES: &str = "continues";

/// The time to live of a lease whose request names none, where the limits of the store allow it.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Something that may be left out, and that is not `null` if it is there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A number that some languages write as `30000.0`. Not for fences, where a float may have lost a digit.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u64),
        Float(f64),
    }
    let wrong = || serde::de::Error::custom("not a whole number in the range that is allowed");
    let number = match Number::deserialize(deserializer).map_err(|_| wrong())? {
        Number::Whole(number) => number,
        // Below 2^53 a float is as exact as an integer.
        Number::Float(float) if float.fract() == 0. && (0. ..9e15).contains(&float) => float as u64,
        Number::Float(_) => return Err(wrong()),
    };
    T::try_from(number).map_err(|_| wrong())
}

/// An optional value of that kind.
fn maybe_whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    whole(deserializer).map(Some)
}

/// A request for a lease.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", example = "default", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The key, up to 1024 bytes.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, example = "orders/42", value_type = String)]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not UTF-8.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,340}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) key_b64: Option<String>,
    /// Who asks: for people who look, and for repeating a request.
    #[serde(default)]
    #[schema(max_length = 256, example = "worker-7")]
    pub(crate) owner: String,
    /// How long the lease lasts without being renewed. Beyond the store's limits it is refused.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, default = 30_000, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
    /// How long to wait while another one holds it. The service may wait for less, and says `timed_out` then.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, maximum = 4_294_967_295_u64)]
    pub(crate) wait_ms: u32,
    /// A word for whoever looks at the lease, up to 4 KiB.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096, value_type = String)]
    pub(crate) note: Option<String>,
}

/// A lease that is to go on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renew {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The key.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, value_type = String)]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not UTF-8.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,340}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) key_b64: Option<String>,
    /// Which lease, as the answer to its acquire said.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) lease_id: String,
    /// Another time to live than before.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
}

/// A lease that is to be given back.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The key.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, value_type = String)]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not UTF-8.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,340}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) key_b64: Option<String>,
    /// Which lease, as the answer to its acquire said.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) lease_id: String,
}

/// A fence that somebody came with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The key.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, value_type = String)]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not UTF-8.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,340}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) key_b64: Option<String>,
    /// The fence: an integer, not a float.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub(crate) fence: Fence,
}

/// What the fence is worth now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Checked {
    /// Whether it is the fence of the lease that is held now.
    pub(crate) current: bool,
    /// The fence of the last grant.
    pub(crate) last_fence: Option<u64>,
}

/// A candidate that wants to lead.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Campaign {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The election: a key that all candidates name.
    #[schema(min_length = 1, max_length = 1024, example = "scheduler")]
    pub(crate) name: String,
    /// Who stands.
    #[schema(max_length = 256, example = "node-1")]
    pub(crate) candidate: String,
    /// How long leading lasts without being renewed. Beyond the store's limits it is refused.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, default = 30_000, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
    /// How long to wait while another one leads.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, maximum = 4_294_967_295_u64)]
    pub(crate) wait_ms: u32,
    /// A word to those who follow, such as an address.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096, value_type = String)]
    pub(crate) note: Option<String>,
}

/// A lease that was granted or renewed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Lease {
    /// The namespace.
    pub(crate) namespace: String,
    /// The key, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_b64: Option<String>,
    /// Which lease it is: needed to renew it and to give it back.
    pub(crate) lease_id: String,
    /// Hand this to what the lease protects, and let that refuse lower ones than it has seen.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub(crate) fence: u64,
    /// Who holds it.
    pub(crate) owner: String,
    /// How long it lasts without being renewed.
    pub(crate) ttl_ms: u64,
    /// When it ends, by the clock of the service.
    pub(crate) expires_ms: i64,
    /// How long it lasts from when this is answered. Count it from before the request was sent, plus `waited_ms`.
    pub(crate) expires_in_ms: u64,
    /// How long the request was with the service, which may have waited for the key.
    #[serde(default)]
    pub(crate) waited_ms: u64,
}

/// Who holds a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct HeldBy {
    /// Which lease it is.
    pub(crate) lease_id: String,
    /// How the holder calls itself.
    pub(crate) owner: String,
    /// Its fence.
    pub(crate) fence: u64,
    /// When it was granted.
    pub(crate) granted_ms: i64,
    /// When it ends unless it is renewed.
    pub(crate) expires_ms: i64,
    /// How long it lasts without being renewed.
    pub(crate) ttl_ms: u64,
    /// What the holder has to say, as far as it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyStatus {
    /// The namespace.
    pub(crate) namespace: String,
    /// The key, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_b64: Option<String>,
    /// Who holds it now.
    pub(crate) holder: Option<HeldBy>,
    /// The fence of the last grant.
    pub(crate) last_fence: Option<u64>,
    /// Whether another process has asked for a turn.
    pub(crate) waited_for: bool,
    /// When it was last changed.
    pub(crate) written_ms: Option<i64>,
}

/// A page of keys.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyList {
    /// In the order of their names in the store.
    pub(crate) keys: Vec<KeyStatus>,
    /// What could not be read, and why.
    pub(crate) unreadable: Vec<String>,
    /// Where the next page begins: hand it in as `after`.
    pub(crate) next: Option<String>,
}

/// Who leads.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Leader {
    /// Nobody, if it is not there.
    pub(crate) leader: Option<HeldBy>,
}

/// A transaction.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Txn {
    /// Its id.
    pub(crate) txn: String,
    /// When it began.
    pub(crate) begun_ms: i64,
    /// What is known of it.
    pub(crate) answer: TxnAnswer,
}

/// What is known of a transaction. Forgotten does not mean aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TxnAnswer {
    Undecided,
    Committed,
    Aborted,
    Forgotten,
}

impl From<leasehold::decision::Answer> for TxnAnswer {
    fn from(answer: leasehold::decision::Answer) -> Self {
        use leasehold::decision::Answer;
        match answer {
            Answer::Undecided => Self::Undecided,
            Answer::Committed => Self::Committed,
            Answer::Aborted => Self::Aborted,
            Answer::Forgotten => Self::Forgotten,
        }
    }
}

impl From<TxnAnswer> for leasehold::decision::Answer {
    fn from(answer: TxnAnswer) -> Self {
        match answer {
            TxnAnswer::Undecided => Self::Undecided,
            TxnAnswer::Committed => Self::Committed,
            TxnAnswer::Aborted => Self::Aborted,
            TxnAnswer::Forgotten => Self::Forgotten,
        }
    }
}

/// What is to be decided.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    /// `commit` or `abort`.
    #[schema(value_type = TxnDecision)]
    pub(crate) decision: leasehold::decision::Decision,
    /// Who decides, for people who look.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) by: String,
}

/// What can be decided.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "stands for the library's own type in the description")]
pub(crate) enum TxnDecision {
    Commit,
    Abort,
}

/// What was decided, by whoever came first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Decided {
    /// The transaction.
    pub(crate) txn: String,
    /// The decision, which may not be the one that was asked for.
    #[schema(value_type = TxnDecision)]
    pub(crate) decision: leasehold::decision::Decision,
}

/// What went wrong (RFC 9457). Decide by `code`, which never changes its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    /// The code, for people.
    pub(crate) title: String,
    /// The HTTP status.
    pub(crate) status: u16,
    /// What happened, and what to do about it.
    pub(crate) detail: String,
    /// What happened, for programs.
    pub(crate) code: String,
    /// Who holds the key, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<Box<HeldBy>>,
    /// When to ask again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    /// The highest fence that is known for a key that was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_fence: Option<u64>,
    /// Why a lease was lost, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// What has become of each attempt that was answered for, where some answers were refused; those that were accepted hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) results: Option<Vec<AttemptResult>>,
    /// What has become of each job, where not all of them are known to be enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fates: Option<Vec<JobFate>>,
}

impl Problem {
    /// Why a lease was lost, as far as the service says.
    pub(crate) fn why(&self) -> &str {
        self.reason.as_deref().unwrap_or(&self.detail)
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn ms(at: Timestamp) -> i64 {
    at.as_millis()
}

impl Lease {
    /// `waited` is how long the request was here.
    pub(crate) fn of(grant: &Grant, waited: Duration) -> Self {
        let KeyJson { key, key_b64 } = grant.key().clone().into();
        Self {
            namespace: grant.namespace().to_string(),
            key,
            key_b64,
            lease_id: grant.lease_id().to_string(),
            fence: grant.fence().get(),
            owner: grant.owner().to_owned(),
            ttl_ms: millis(grant.ttl()),
            expires_ms: ms(grant.expires_at()),
            expires_in_ms: millis(grant.time_left()),
            waited_ms: millis(waited),
        }
    }
}

impl Lease {
    /// How long it may be believed in by who sent the request: it arrived after that, and was answered `waited_ms` later.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_millis(self.waited_ms.saturating_add(self.expires_in_ms))
    }
}

impl From<&Holder> for HeldBy {
    fn from(holder: &Holder) -> Self {
        Self {
            lease_id: holder.lease_id.to_string(),
            owner: holder.owner.clone(),
            fence: holder.fence.get(),
            granted_ms: ms(holder.granted_at),
            expires_ms: ms(holder.expires_at),
            ttl_ms: millis(holder.ttl),
            note: holder.note.as_ref().map(|note| String::from_utf8_lossy(note).into_owned()),
        }
    }
}

impl KeyStatus {
    pub(crate) fn of(namespace: &Namespace, status: &Status) -> Self {
        let KeyJson { key, key_b64 } = status.key.clone().into();
        Self {
            namespace: namespace.to_string(),
            key,
            key_b64,
            holder: status.holder.as_ref().map(HeldBy::from),
            last_fence: status.last_fence.map(Fence::get),
            waited_for: status.waited_for,
            written_ms: status.written_at.map(ms),
        }
    }
}

/// The key that a request names in either of two ways.
pub(crate) fn key(key: Option<String>, key_b64: Option<String>) -> leasehold::Result<Key> {
    KeyJson { key, key_b64 }.try_into()
}

/// The namespace that a request names, or the one that there always is.
pub(crate) fn namespace(name: Option<&str>) -> leasehold::Result<Namespace> {
    name.map_or_else(|| Ok(Namespace::default()), Namespace::new)
}

/// The id of a lease.
pub(crate) fn lease_id(text: &str) -> leasehold::Result<LeaseId> {
    text.parse()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use crate::bodies;
    use std::fs;

    #[test]
    fn whatever_is_sent_is_read_or_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/bodies");
        let mut seen = 0;
        for file in fs::read_dir(folder).unwrap() {
            bodies::hold(&fs::read(file.unwrap().path()).unwrap());
            seen += 1;
        }
        assert!(seen > 0, "{folder} is empty");
    }
}
