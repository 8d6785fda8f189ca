//! Everything that fuzzing was begun with, and what it found: see `fuzz/`.

use leasehold::internals::fuzz;
use std::fs;

/// Gives every file of a corpus to its target.
fn replay(target: &str, check: impl Fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty(), "{folder} is empty");
    for file in files {
        // A failure shows which file it was.
        println!("{}", file.display());
        check(&fs::read(&file).unwrap());
    }
}

#[test]
fn records() {
    replay("record", fuzz::record);
}

#[test]
fn markers() {
    replay("marker", fuzz::marker);
}

#[test]
fn store_json() {
    replay("store_json", fuzz::store_json);
}

#[test]
fn index_entries() {
    replay("entry", fuzz::entry);
}

#[test]
fn keys() {
    replay("key", fuzz::key);
}

#[test]
fn urls() {
    replay("url", fuzz::url);
}

#[test]
fn segments() {
    replay("segment", fuzz::segment);
}

#[test]
fn ledgers() {
    replay("ledger", fuzz::ledger);
}

#[test]
fn settings() {
    replay("settings", |data| {
        fuzz::settings(data);
        if let Some(settings) = std::str::from_utf8(data).ok().and_then(|text| toml::from_str(text).ok()) {
            fuzz::settings_hold(&settings);
        }
    });
}

#[test]
fn stream_segments() {
    replay("stream_segment", leasehold::internals::fuzz::stream_segment);
}
