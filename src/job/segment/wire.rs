//! The protobuf messages of a segment's table, as in `proto/jobs.proto`; a test keeps them in step.

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Table {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) segment: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) write_id: bytes::Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) made_ms: i64,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) txn: bytes::Bytes,
    #[prost(bool, tag = "5")]
    pub(crate) request: bool,
    #[prost(string, repeated, tag = "6")]
    pub(crate) texts: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) blocks: Vec<Block>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) jobs: Vec<Job>,
    #[prost(string, tag = "9")]
    pub(crate) source: String,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Block {
    #[prost(uint32, tag = "1")]
    pub(crate) stored: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) length: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) packing: u32,
    #[prost(fixed32, tag = "4")]
    pub(crate) checksum: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Part {
    #[prost(uint32, tag = "1")]
    pub(crate) name: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) block: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) offset: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) length: u32,
}

/// See `proto/jobs.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Job {
    #[prost(sint32, tag = "1")]
    pub(crate) priority: i32,
    #[prost(sint64, tag = "2")]
    pub(crate) due_ms: i64,
    #[prost(uint32, tag = "3")]
    pub(crate) kind: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) tenant: u32,
    #[prost(string, tag = "5")]
    pub(crate) key: String,
    #[prost(string, tag = "6")]
    pub(crate) unique_key: String,
    #[prost(string, tag = "7")]
    pub(crate) caller_id: String,
    #[prost(message, repeated, tag = "8")]
    pub(crate) parts: Vec<Part>,
    #[prost(uint32, tag = "9")]
    pub(crate) max_attempts: u32,
    #[prost(uint64, tag = "10")]
    pub(crate) timeout_ms: u64,
    #[prost(uint32, tag = "11")]
    pub(crate) attempts: u32,
    #[prost(uint32, tag = "12")]
    pub(crate) stalls: u32,
    #[prost(uint32, tag = "13")]
    pub(crate) group: u32,
    #[prost(uint64, tag = "14")]
    pub(crate) fence: u64,
    #[prost(string, tag = "15")]
    pub(crate) error: String,
    #[prost(bytes = "bytes", tag = "16")]
    pub(crate) id: bytes::Bytes,
    #[prost(uint32, tag = "17")]
    pub(crate) reason: u32,
}
