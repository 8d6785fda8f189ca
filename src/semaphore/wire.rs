//! The protobuf messages of `proto/semaphore.proto`, kept in step with it by a test.

use crate::lease::wire::Lease;

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Semaphore {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) key: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) write_id: bytes::Bytes,
    #[prost(uint64, tag = "4")]
    pub(super) revision: u64,
    #[prost(uint32, tag = "5")]
    pub(super) size: u32,
    #[prost(uint64, tag = "6")]
    pub(super) last_fence: u64,
    #[prost(message, repeated, tag = "7")]
    pub(super) slots: Vec<Slot>,
    #[prost(message, repeated, tag = "8")]
    pub(super) waiting: Vec<Waiting>,
    #[prost(int64, tag = "9")]
    pub(super) written_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(super) hour: u64,
    #[prost(uint64, tag = "11")]
    pub(super) epoch: u64,
    #[prost(fixed32, tag = "15")]
    pub(super) checksum: u32,
}

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Slot {
    #[prost(uint32, tag = "1")]
    pub(super) number: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) lease: Option<Lease>,
    #[prost(int64, optional, tag = "3")]
    pub(super) beat_stamp_us: Option<i64>,
}

/// See `proto/semaphore.proto`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Waiting {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) process: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(super) since_ms: i64,
    #[prost(int64, tag = "3")]
    pub(super) until_ms: i64,
    #[prost(uint64, tag = "4")]
    pub(super) interval_ms: u64,
}

#[cfg(test)]
mod tests {
    /// The fields as the `.proto` declares them: `message name tag`.
    fn declared() -> Vec<String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let set = protox::compile([format!("{folder}/semaphore.proto")], [folder]).unwrap();
        let file = set.file.iter().find(|file| file.name().ends_with("semaphore.proto")).unwrap();
        let fields = file.message_type.iter().flat_map(|message| {
            let name = message.name().to_owned();
            message.field.iter().map(move |field| {
                let kind = field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase();
                format!("{name} {} {kind} {}", field.name(), field.number())
            })
        });
        fields.collect()
    }

    #[test]
    fn the_messages_are_those_of_the_proto_file() {
        let source = include_str!("wire.rs");
        let (mut message, mut attribute, mut derived) = (String::new(), String::new(), Vec::new());
        for line in source.lines().take_while(|line| !line.contains("cfg(test)")).map(str::trim) {
            if let Some(rest) = line.strip_prefix("pub(super) struct ") {
                message = rest.trim_end_matches(" {").to_owned();
            } else if let Some(rest) = line.strip_prefix("#[prost(") {
                attribute = rest.trim_end_matches(")]").replace("bytes = \"bytes\"", "bytes");
            } else if let Some((name, _)) = line.strip_prefix("pub(super) ").and_then(|rest| rest.split_once(": ")) {
                let (kind, tag) = (attribute.split(',').next().unwrap(), attribute.rsplit("= ").next().unwrap());
                derived.push(format!("{message} {name} {kind} {}", tag.trim_matches('"')));
            }
        }
        assert_eq!(derived, declared());
        assert_eq!(derived.len(), 19);
    }
}
