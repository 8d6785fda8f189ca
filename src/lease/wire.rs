//! The protobuf messages of `proto/leasehold.proto`, kept in step with it by `tests/house`.

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Record {
    #[prost(uint32, tag = "1")]
    pub(crate) format: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) write_id: bytes::Bytes,
    #[prost(uint64, tag = "4")]
    pub(crate) revision: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) last_fence: u64,
    #[prost(message, optional, tag = "6")]
    pub(crate) lease: Option<Lease>,
    #[prost(message, optional, tag = "7")]
    pub(crate) waiting: Option<Mark>,
    #[prost(int64, tag = "8")]
    pub(crate) written_ms: i64,
    #[prost(uint64, tag = "9")]
    pub(crate) hour: u64,
    #[prost(int64, optional, tag = "10")]
    pub(crate) beat_stamp_us: Option<i64>,
    #[prost(message, optional, tag = "11")]
    pub(crate) forced: Option<Forced>,
    #[prost(uint64, tag = "12")]
    pub(crate) epoch: u64,
    #[prost(message, repeated, tag = "13")]
    pub(crate) asked: Vec<Asked>,
    #[prost(fixed32, tag = "15")]
    pub(crate) checksum: u32,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Lease {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(string, optional, tag = "2")]
    pub(crate) request_id: Option<String>,
    #[prost(string, tag = "3")]
    pub(crate) owner: String,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) process: bytes::Bytes,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) note: Option<bytes::Bytes>,
    #[prost(uint64, tag = "6")]
    pub(crate) fence: u64,
    #[prost(int64, tag = "7")]
    pub(crate) granted_ms: i64,
    #[prost(int64, tag = "8")]
    pub(crate) expires_ms: i64,
    #[prost(uint64, tag = "9")]
    pub(crate) ttl_ms: u64,
    #[prost(bytes = "bytes", tag = "10")]
    pub(crate) beat: bytes::Bytes,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) lasts_ms: Option<u64>,
    #[prost(message, optional, tag = "12")]
    pub(crate) boot: Option<Boot>,
    #[prost(message, optional, tag = "13")]
    pub(crate) session: Option<Session>,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Session {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) lease: bytes::Bytes,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Asked {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) lease: bytes::Bytes,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: bytes::Bytes,
    #[prost(string, tag = "4")]
    pub(crate) by: String,
    #[prost(string, tag = "5")]
    pub(crate) reason: String,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Boot {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(uint64, tag = "2")]
    pub(crate) at_ms: u64,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Forced {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) lease: bytes::Bytes,
    #[prost(string, tag = "2")]
    pub(crate) by: String,
    #[prost(string, tag = "3")]
    pub(crate) reason: String,
}

/// See `proto/leasehold.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Mark {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) process: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) since_ms: i64,
    #[prost(uint64, tag = "3")]
    pub(crate) interval_ms: u64,
}
