//! The protobuf messages of `proto/semaphore.proto`, kept in step with it by a test.

use crate::lease::wire::Lease;

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Semaphore {
    #[prost(uint32, tag = "1")]
    pub(crate) format: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) write_id: bytes::Bytes,
    #[prost(uint64, tag = "4")]
    pub(crate) revision: u64,
    #[prost(uint32, tag = "5")]
    pub(crate) size: u32,
    #[prost(uint64, tag = "6")]
    pub(crate) last_fence: u64,
    #[prost(message, repeated, tag = "7")]
    pub(crate) slots: Vec<Slot>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) waiting: Vec<Waiting>,
    #[prost(int64, tag = "9")]
    pub(crate) written_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(crate) hour: u64,
    #[prost(uint64, tag = "11")]
    pub(crate) epoch: u64,
    #[prost(fixed32, tag = "15")]
    pub(crate) checksum: u32,
}

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Slot {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) lease: Option<Lease>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) beat_stamp_us: Option<i64>,
}

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Waiting {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) process: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) since_ms: i64,
    #[prost(int64, tag = "3")]
    pub(crate) until_ms: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) interval_ms: u64,
}
