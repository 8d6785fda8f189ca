//! The protobuf messages of a ledger, as in `proto/jobs.proto`; a test keeps them in step.

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Ledger {
    #[prost(uint32, tag = "1")]
    pub(crate) format: u32,
    #[prost(string, tag = "2")]
    pub(crate) queue: String,
    #[prost(uint32, tag = "3")]
    pub(crate) shard: u32,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) write_id: bytes::Bytes,
    #[prost(uint64, tag = "5")]
    pub(crate) revision: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) epoch: u64,
    #[prost(int64, tag = "7")]
    pub(crate) now_ms: i64,
    #[prost(uint64, tag = "8")]
    pub(crate) fence_last: u64,
    #[prost(uint64, tag = "9")]
    pub(crate) gc_epoch: u64,
    #[prost(uint32, tag = "10")]
    pub(crate) next_row: u32,
    #[prost(uint64, tag = "11")]
    pub(crate) settings: u64,
    #[prost(message, optional, tag = "12")]
    pub(crate) policy: Option<Policy>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) rows: Vec<Row>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) claims: Vec<Claim>,
    #[prost(fixed32, tag = "15")]
    pub(crate) checksum: u32,
    #[prost(message, repeated, tag = "16")]
    pub(crate) sessions: Vec<Session>,
    #[prost(message, repeated, tag = "17")]
    pub(crate) ended: Vec<Ended>,
    #[prost(message, repeated, tag = "18")]
    pub(crate) finished: Vec<Finished>,
    #[prost(message, repeated, tag = "19")]
    pub(crate) dead: Vec<DeadPlan>,
    #[prost(message, repeated, tag = "20")]
    pub(crate) moves: Vec<MovePlan>,
    #[prost(message, repeated, tag = "21")]
    pub(crate) cancelling: Vec<JobRef>,
    #[prost(message, repeated, tag = "22")]
    pub(crate) unique: Vec<Unique>,
    #[prost(message, repeated, tag = "23")]
    pub(crate) limits: Vec<Limit>,
    #[prost(message, repeated, tag = "24")]
    pub(crate) schedules: Vec<Schedule>,
    #[prost(uint64, tag = "25")]
    pub(crate) tokens_milli: u64,
    #[prost(int64, tag = "26")]
    pub(crate) tokens_at_ms: i64,
    #[prost(fixed32, tag = "27")]
    pub(crate) turn: u32,
    #[prost(message, repeated, tag = "28")]
    pub(crate) outbox: Vec<Event>,
    #[prost(uint64, tag = "29")]
    pub(crate) next_event: u64,
    #[prost(bytes = "bytes", repeated, tag = "30")]
    pub(crate) outbox_spills: Vec<bytes::Bytes>,
    #[prost(message, optional, tag = "31")]
    pub(crate) counters: Option<Counters>,
    #[prost(message, repeated, tag = "32")]
    pub(crate) letters: Vec<Letters>,
    #[prost(message, repeated, tag = "33")]
    pub(crate) duplicates: Vec<Duplicate>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Letters {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) plan: bytes::Bytes,
    #[prost(uint64, tag = "2")]
    pub(crate) hour: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) jobs: u32,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) taken: Vec<u32>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) gone_ms: Option<i64>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Backoff {
    #[prost(uint32, tag = "1")]
    pub(crate) shape: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) base_ms: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) power: u32,
    #[prost(uint64, tag = "4")]
    pub(crate) cap_ms: u64,
    #[prost(uint32, tag = "5")]
    pub(crate) jitter_percent: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct KindPolicy {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) max_attempts: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) backoff: Option<Backoff>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) dead_retention_ms: Option<u64>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Policy {
    #[prost(bool, tag = "1")]
    pub(crate) paused: bool,
    #[prost(int64, optional, tag = "2")]
    pub(crate) paused_until_ms: Option<i64>,
    #[prost(uint32, tag = "3")]
    pub(crate) max_attempts: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) backoff: Option<Backoff>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) kinds: Vec<KindPolicy>,
    #[prost(uint32, tag = "6")]
    pub(crate) max_stalls: u32,
    #[prost(uint64, tag = "7")]
    pub(crate) session_ttl_ms: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) dead_retention_ms: u64,
    #[prost(uint32, optional, tag = "9")]
    pub(crate) key_limit: Option<u32>,
    #[prost(bool, tag = "10")]
    pub(crate) skip_waiting: bool,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) rate_milli: Option<u64>,
    #[prost(uint64, tag = "12")]
    pub(crate) unique_period_ms: u64,
    #[prost(uint64, tag = "13")]
    pub(crate) request_window_ms: u64,
    #[prost(uint32, tag = "14")]
    pub(crate) events: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Runs {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) from: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) length: Vec<u32>,
    #[prost(sint32, repeated, tag = "3")]
    pub(crate) priority: Vec<i32>,
    #[prost(sint64, repeated, tag = "4")]
    pub(crate) due_ms: Vec<i64>,
    #[prost(fixed32, repeated, tag = "5")]
    pub(crate) tenant: Vec<u32>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(crate) key: Vec<u64>,
    #[prost(uint32, repeated, tag = "7")]
    pub(crate) attempts: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub(crate) stalls: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub(crate) group: Vec<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub(crate) why: Vec<u32>,
    #[prost(fixed64, repeated, tag = "11")]
    pub(crate) claim: Vec<u64>,
    #[prost(uint32, repeated, tag = "12")]
    pub(crate) paused: Vec<u32>,
    #[prost(string, repeated, tag = "13")]
    pub(crate) error: Vec<String>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Unread {
    #[prost(uint32, tag = "1")]
    pub(crate) from: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) length: u32,
    #[prost(sint32, tag = "3")]
    pub(crate) priority: i32,
    #[prost(int64, tag = "4")]
    pub(crate) due_ms: i64,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Row {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    #[prost(fixed64, tag = "2")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) place: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) minute: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) jobs: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) open: u32,
    #[prost(bool, tag = "8")]
    pub(crate) request: bool,
    #[prost(message, repeated, tag = "9")]
    pub(crate) unread: Vec<Unread>,
    #[prost(message, optional, tag = "10")]
    pub(crate) runs: Option<Runs>,
    #[prost(uint32, repeated, tag = "11")]
    pub(crate) moved: Vec<u32>,
    #[prost(bytes = "bytes", tag = "12")]
    pub(crate) least: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "13")]
    pub(crate) greatest: bytes::Bytes,
    #[prost(bytes = "bytes", optional, tag = "14")]
    pub(crate) inline: Option<bytes::Bytes>,
    #[prost(fixed64, repeated, tag = "15")]
    pub(crate) tracked: Vec<u64>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Claim {
    #[prost(fixed64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) session: bytes::Bytes,
    #[prost(uint64, tag = "3")]
    pub(crate) fence: u64,
    #[prost(int64, tag = "4")]
    pub(crate) at_ms: i64,
    #[prost(message, optional, tag = "5")]
    pub(crate) items: Option<Runs>,
    #[prost(uint32, repeated, tag = "6")]
    pub(crate) rows: Vec<u32>,
    #[prost(bytes = "bytes", tag = "7")]
    pub(crate) open: bytes::Bytes,
    #[prost(uint32, repeated, tag = "8")]
    pub(crate) alone: Vec<u32>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Session {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) lease: bytes::Bytes,
    #[prost(string, tag = "3")]
    pub(crate) owner: String,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) last_write: bytes::Bytes,
    #[prost(int64, tag = "5")]
    pub(crate) until_ms: i64,
    #[prost(int64, tag = "6")]
    pub(crate) owns_until_ms: i64,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Ended {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) session: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) at_ms: i64,
    #[prost(bool, tag = "3")]
    pub(crate) held: bool,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Finished {
    #[prost(fixed64, tag = "1")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) place: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) minute: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) jobs: u32,
    #[prost(int64, tag = "6")]
    pub(crate) since_ms: i64,
    #[prost(int64, optional, tag = "7")]
    pub(crate) confirmed_ms: Option<i64>,
    #[prost(bool, tag = "8")]
    pub(crate) request: bool,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeadJob {
    #[prost(uint32, tag = "1")]
    pub(crate) row: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) index: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) reason: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) attempts: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) stalls: u32,
    #[prost(uint64, tag = "6")]
    pub(crate) fence: u64,
    #[prost(string, tag = "7")]
    pub(crate) error: String,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeadPlan {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(uint64, tag = "2")]
    pub(crate) hour: u64,
    #[prost(int64, tag = "3")]
    pub(crate) at_ms: i64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) jobs: Vec<DeadJob>,
    #[prost(uint32, optional, tag = "5")]
    pub(crate) raw_row: Option<u32>,
    #[prost(uint32, tag = "6")]
    pub(crate) raw_reason: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct MovePlan {
    #[prost(uint32, tag = "1")]
    pub(crate) row: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) index: u32,
    #[prost(string, tag = "3")]
    pub(crate) queue: String,
    #[prost(fixed64, tag = "4")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "5")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "6")]
    pub(crate) place: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) minute: u32,
    #[prost(sint32, tag = "8")]
    pub(crate) priority: i32,
    #[prost(int64, tag = "9")]
    pub(crate) due_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(crate) fence: u64,
    #[prost(int64, tag = "11")]
    pub(crate) at_ms: i64,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct JobRef {
    #[prost(fixed64, tag = "1")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) index: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Unique {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) hash: bytes::Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) job: Option<JobRef>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) ended_ms: Option<i64>,
    #[prost(message, optional, tag = "4")]
    pub(crate) first: Option<JobRef>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Duplicate {
    #[prost(message, optional, tag = "1")]
    pub(crate) job: Option<JobRef>,
    #[prost(message, optional, tag = "2")]
    pub(crate) of: Option<JobRef>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Limit {
    #[prost(fixed64, tag = "1")]
    pub(crate) key: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) most: u32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Schedule {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) slot_ms: i64,
    #[prost(int64, optional, tag = "3")]
    pub(crate) next_ms: Option<i64>,
    #[prost(uint64, tag = "4")]
    pub(crate) version: u64,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(string, tag = "6")]
    pub(crate) spec: String,
    #[prost(bool, tag = "7")]
    pub(crate) paused: bool,
    #[prost(int64, tag = "8")]
    pub(crate) look_back_ms: i64,
    #[prost(bool, tag = "9")]
    pub(crate) single: bool,
    #[prost(sint32, tag = "10")]
    pub(crate) priority: i32,
    #[prost(bytes = "bytes", tag = "11")]
    pub(crate) job: bytes::Bytes,
    #[prost(int64, repeated, tag = "12")]
    pub(crate) missed_ms: Vec<i64>,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Event {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) from: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) length: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) what: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) reason: u32,
    #[prost(message, optional, tag = "8")]
    pub(crate) of: Option<JobRef>,
    #[prost(int64, tag = "9")]
    pub(crate) at_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(crate) fence: u64,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Counters {
    #[prost(uint64, tag = "1")]
    pub(crate) absorbed: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) finished: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) dead: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) cancelled: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) duplicates: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) moved: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) failures: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) recovered: u64,
    #[prost(uint64, tag = "9")]
    pub(crate) stalls: u64,
    #[prost(uint64, tag = "10")]
    pub(crate) claimed: u64,
}
