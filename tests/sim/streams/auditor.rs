//! What must hold of streams and their archive at every moment, and what must have come of everything at the end.

use flate2::read::MultiGzDecoder;
use leasehold_testkit::FaultStore;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
};

const PARTITION: &str = "default/stream/events/000/";

/// What the processes have been told, and what was seen in the store.
#[derive(Debug, Default)]
pub struct Auditor {
    /// Acknowledged messages: what they say, by offset.
    pub acknowledged: BTreeMap<u64, String>,
    /// Numbers of segments that were ever there.
    numbers: BTreeSet<u64>,
    /// Groups that hold messages, and the offset that they began at.
    promised: BTreeMap<String, u64>,
    /// What was delivered to each group.
    pub delivered: BTreeMap<String, BTreeSet<u64>>,
    /// How far the consumer with this fence has been handed messages.
    pub handed: BTreeMap<(String, u64), u64>,
    /// The fence in a group's record, and the cursor when it came there.
    fences: BTreeMap<String, (u64, u64)>,
    pub violations: Vec<String>,
}

fn json(objects: &FaultStore, name: &str) -> Option<Value> {
    serde_json::from_slice(&objects.object(name)?.0).ok()
}

impl Auditor {
    pub fn says(&mut self, violation: String) {
        self.violations.push(violation);
    }

    /// Looks at the store after every request.
    pub fn look(&mut self, objects: &FaultStore) {
        let names = objects.names();
        let log = format!("{PARTITION}log/");
        let there: BTreeSet<u64> = names.iter().filter_map(|name| name.strip_prefix(&log)?.parse().ok()).collect();
        self.numbers.extend(&there);
        let meta = json(objects, &format!("{PARTITION}meta.json"));
        let first = |field: &str| meta.as_ref().and_then(|meta| meta["first"][field].as_u64()).unwrap_or(0);
        let boundary = first("number");
        if let Some(gone) = self.numbers.range(boundary..).find(|number| !there.contains(number)) {
            self.says(format!("deleted above the boundary: segment {gone} is gone and the log begins at {boundary}"));
        }
        let archived = json(objects, &format!("{PARTITION}archive.json"));
        let cursor = archived.filter(|record| record["settled"] == true);
        let cursor = cursor.and_then(|record| record["cursor"]["offset"].as_u64());
        if boundary > 0 && cursor.is_none_or(|cursor| cursor < first("offset")) {
            self.says(format!(
                "trimmed above the archiver: the log begins at {} and {cursor:?} is archived",
                first("offset")
            ));
        }
        for name in names.iter().filter(|name| name.starts_with(&format!("{PARTITION}group/"))) {
            if let Some(record) = json(objects, name) {
                self.look_at_group(name, &record, boundary);
            }
        }
    }

    fn look_at_group(&mut self, name: &str, record: &Value, boundary: u64) {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let group = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".json").to_owned();
        let (at, offset, fence) =
            (number(&record["cursor"]["number"]), number(&record["cursor"]["offset"]), number(&record["fence"]));
        let holds = record["settled"] == true && record["expired_ms"].is_null();
        if holds && at < boundary {
            self.says(format!("trimmed above a group: {group} is at segment {at} and the log begins at {boundary}"));
        }
        if holds {
            self.promised.entry(group.clone()).or_insert(offset);
        }
        let since = *self
            .fences
            .entry(group.clone())
            .and_modify(|known| {
                if known.0 != fence {
                    *known = (fence, offset);
                }
            })
            .or_insert((fence, offset));
        if since.0 > fence {
            self.says(format!("a fence went back: {group} from {} to {fence}", since.0));
        }
        let handed = self.handed.get(&(group.clone(), fence)).copied().unwrap_or(0);
        if offset > since.1.max(handed) {
            self.says(format!("a cursor was moved under its consumer: {group} to {offset}, handed out {handed}"));
            self.fences.insert(group, (fence, offset));
        }
    }

    /// Everything has come to rest, and is archived.
    pub fn settle(&mut self, objects: &FaultStore, end: u64) {
        let mut lines: Vec<(u64, String, String)> = Vec::new();
        for name in objects.names().into_iter().filter(|name| name.ends_with(".jsonl.gz")) {
            let Some((body, _)) = objects.object(&name) else { continue };
            let mut text = String::new();
            if MultiGzDecoder::new(&body[..]).read_to_string(&mut text).is_err() {
                self.says(format!("a file cannot be unpacked: {name}"));
            }
            let places: Vec<u64> = text
                .lines()
                .filter_map(|line| {
                    let line: Value = serde_json::from_str(line).ok()?;
                    let (seq, payload) = (line["seq"].as_u64()?, line["payload"].as_str()?.to_owned());
                    lines.push((seq, payload, line["message_id"].as_str()?.to_owned()));
                    Some(seq)
                })
                .collect();
            if !places.is_sorted() {
                self.says(format!("lines out of order: {name}"));
            }
        }
        lines.sort();
        let seqs: Vec<u64> = lines.iter().map(|line| line.0).collect();
        if seqs != (0..end).collect::<Vec<_>>() {
            let twice: Vec<u64> = seqs.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
            let missing: Vec<u64> = (0..end).filter(|seq| seqs.binary_search(seq).is_err()).collect();
            self.says(format!("not in exactly one file: missing {missing:?}, twice {twice:?} of {end}"));
        }
        for (offset, payload) in self.acknowledged.clone() {
            if !lines.iter().any(|line| line.0 == offset && line.1 == payload) {
                self.says(format!("an acknowledged message is lost: {payload} at {offset}"));
            }
        }
        for (group, begins) in self.promised.clone() {
            let delivered = self.delivered.entry(group.clone()).or_default();
            if let Some(lost) = (begins..end).find(|offset| !delivered.contains(offset)) {
                self.says(format!("a message of a group is lost: {lost} of {group}, which began at {begins}"));
            }
        }
    }
}
