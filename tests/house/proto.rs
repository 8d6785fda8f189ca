//! The messages that the source derives are those that the files in `proto/` declare.

use crate::root;
use std::fs;

/// Each file of declarations, and the files of the source that derive its messages in its order.
const FILES: &[(&str, &[&str])] = &[
    ("jobs.proto", &["src/job/segment/wire.rs", "src/job/ledger/wire.rs"]),
    ("leasehold.proto", &["src/lease/wire.rs"]),
    ("semaphore.proto", &["src/semaphore/wire.rs"]),
    ("stream.proto", &["src/stream/wire.rs"]),
];

/// The fields as a `.proto` file declares them, one line each.
fn declared(file: &str) -> Vec<String> {
    let set = protox::compile([root().join("proto").join(file)], [root().join("proto")]).unwrap();
    let mut fields = Vec::new();
    // What it imports comes first.
    for message in set.file.last().into_iter().flat_map(|file| &file.message_type) {
        for field in &message.field {
            let kind = field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase();
            let label = match field.label().as_str_name() {
                "LABEL_REPEATED" => " repeated",
                _ if field.proto3_optional() || kind == "message" => " optional",
                _ => "",
            };
            fields.push(format!("{} {} {kind}{label} {}", message.name(), field.name(), field.number()));
        }
    }
    fields
}

/// The fields as a file of the source derives them, one line each.
fn derived(source: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let (mut message, mut attribute) = (String::new(), String::new());
    for line in source.lines().map(str::trim) {
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
fn the_messages_are_those_of_the_proto_files() {
    for (file, sources) in FILES {
        let source = |path: &&str| fs::read_to_string(root().join(path)).unwrap();
        let derived: Vec<String> = sources.iter().flat_map(|path| derived(&source(path))).collect();
        assert_eq!(derived, declared(file), "{file}");
        assert!(!derived.is_empty(), "{file}");
    }
    let files = fs::read_dir(root().join("proto")).unwrap();
    let mut files: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, FILES.iter().map(|(file, _)| *file).collect::<Vec<_>>(), "each file is checked");
}
