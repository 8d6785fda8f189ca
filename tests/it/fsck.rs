//! Damage is named, and repaired without losing what is held or letting a fence fall, whatever happens meanwhile.

mod failing;
mod forced;
mod repair;
mod settings;

use crate::processes::World;
use bytes::Bytes;
use leasehold::{
    Store,
    fsck::{Damage, FsckOptions, Report},
};
use std::collections::BTreeMap;

async fn look(store: &Store) -> Report {
    store.fsck(FsckOptions::new()).await.unwrap()
}

async fn repair(store: &Store) -> Report {
    store.fsck(FsckOptions::new().repair("test")).await.unwrap()
}

/// What was found, and on which objects.
fn found(report: &Report) -> Vec<(Damage, &str)> {
    report.findings.iter().map(|finding| (finding.damage, finding.name.as_str())).collect()
}

fn contents(world: &World) -> BTreeMap<String, Bytes> {
    world.objects.names().into_iter().map(|name| (name.clone(), world.objects.object(&name).unwrap().0)).collect()
}

/// Everything that a record can be damaged by, with what the damage is called.
fn damages(body: &Bytes) -> Vec<(&'static str, Bytes)> {
    let mut flipped = body.to_vec();
    flipped[20] ^= 0x10;
    vec![
        ("empty", Bytes::new()),
        ("cut", body.slice(..body.len() - 9)),
        ("a flipped bit", flipped.into()),
        ("garbage", Bytes::from_static(b"<html>502 Bad Gateway</html>")),
        ("too large", Bytes::from(vec![7; 3 << 20])),
    ]
}
