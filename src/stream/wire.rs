//! The protobuf messages of a segment, as in `proto/stream.proto`.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Segment {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) base: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) write_id: bytes::Bytes,
    #[prost(int64, tag = "4")]
    pub(crate) appended_ms: i64,
    #[prost(message, repeated, tag = "5")]
    pub(crate) messages: Vec<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: bytes::Bytes,
    #[prost(string, tag = "2")]
    pub(crate) subject: String,
    #[prost(int64, tag = "3")]
    pub(crate) time_ms: i64,
    #[prost(string, optional, tag = "4")]
    pub(crate) key: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) trace_id: Option<String>,
    #[prost(bytes = "bytes", tag = "6")]
    pub(crate) payload: bytes::Bytes,
}
