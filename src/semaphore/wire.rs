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
            if let Some(rest) = line.strip_prefix("pub(crate) struct ") {
                message = rest.trim_end_matches(" {").to_owned();
            } else if let Some(rest) = line.strip_prefix("#[prost(") {
                attribute = rest.trim_end_matches(")]").replace("bytes = \"bytes\"", "bytes");
            } else if let Some((name, _)) = line.strip_prefix("pub(crate) ").and_then(|rest| rest.split_once(": ")) {
                let (kind, tag) = (attribute.split(',').next().unwrap(), attribute.rsplit("= ").next().unwrap());
                derived.push(format!("{message} {name} {kind} {}", tag.trim_matches('"')));
            }
        }
        assert_eq!(derived, declared());
        assert_eq!(derived.len(), 19);
    }
}
