//! The protobuf messages of `proto/leasehold.proto`, kept in step with it by a test.

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

#[cfg(test)]
mod tests {
    /// The fields as a `.proto` declares them, one line each.
    fn declared() -> Vec<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/leasehold.proto");
        let set = protox::compile([path], [concat!(env!("CARGO_MANIFEST_DIR"), "/proto")]).unwrap();
        let mut fields = Vec::new();
        for message in &set.file[0].message_type {
            for field in &message.field {
                let kind = field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase();
                let optional = field.proto3_optional() || kind == "message";
                let (name, tag) = (field.name(), field.number());
                fields.push(format!(
                    "{} {name} {kind}{} {tag}",
                    message.name(),
                    if optional { " optional" } else { "" }
                ));
            }
        }
        fields
    }

    /// The fields of each message, as this file derives them.
    fn derived() -> Vec<String> {
        let source = include_str!("wire.rs");
        let mut fields = Vec::new();
        let (mut message, mut attribute) = (String::new(), String::new());
        for line in source.lines().take_while(|line| !line.contains("cfg(test)")).map(str::trim) {
            if let Some(rest) = line.strip_prefix("pub(crate) struct ") {
                message = rest.trim_end_matches(" {").to_owned();
            } else if let Some(rest) = line.strip_prefix("#[prost(") {
                attribute = rest.trim_end_matches(")]").replace("bytes = \"bytes\"", "bytes");
            } else if let Some(rest) = line.strip_prefix("pub(crate) ")
                && let Some((name, _)) = rest.split_once(": ")
            {
                let parts: Vec<&str> = attribute.split(", ").collect();
                let tag = parts.last().unwrap().trim_start_matches("tag = ").trim_matches('"');
                fields.push(format!("{message} {name} {} {tag}", parts[..parts.len() - 1].join(" ")));
            }
        }
        fields
    }

    #[test]
    fn the_messages_are_those_of_the_proto_file() {
        assert_eq!(derived(), declared());
        assert_eq!(declared().len(), 33);
    }
}
