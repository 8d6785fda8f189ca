//! The archive: every message in exactly one file, whatever dies, is paused or is told nothing.

mod crashes;
mod files;
mod rolling;

use crate::{processes::World, stream::an_hour};
use flate2::read::MultiGzDecoder;
use leasehold::{
    Store,
    archive::{ArchiveSettings, Archiver},
    stream::{Draft, Stream},
};
use leasehold_testkit::FaultStore;
use std::io::Read as _;

/// A stream that is archived and kept for an hour.
pub(crate) async fn archived(store: &Store) -> Stream {
    let stream = store.stream("events").unwrap();
    stream.configure(an_hour().archive("audit")).await.unwrap();
    stream
}

pub(crate) fn archiver(store: &Store) -> Archiver {
    store.archiver("audit", ArchiveSettings::default()).unwrap()
}

pub(crate) async fn publish_many(stream: &Stream, count: usize) {
    stream.publish_many((0..count).map(|n| Draft::new("events.test", format!("{{\"n\":{n}}}")))).await.unwrap();
}

/// The names of all archive files.
pub(crate) fn files(objects: &FaultStore) -> Vec<String> {
    objects.names().into_iter().filter(|name| name.starts_with("archive/") && name.ends_with(".jsonl.gz")).collect()
}

/// The lines of a file.
pub(crate) fn lines(objects: &FaultStore, name: &str) -> Vec<serde_json::Value> {
    let (body, _) = objects.object(name).unwrap();
    let mut text = String::new();
    MultiGzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The offsets of all lines of all files, in the order of their names.
pub(crate) fn offsets(objects: &FaultStore) -> Vec<u64> {
    files(objects).iter().flat_map(|name| lines(objects, name)).map(|line| line["seq"].as_u64().unwrap()).collect()
}

pub(crate) fn each_once(world: &World, count: u64) {
    let mut there = offsets(&world.objects);
    there.sort_unstable();
    assert_eq!(there, (0..count).collect::<Vec<_>>(), "{:?}", files(&world.objects));
}
