//! The names of the objects of streams: a contract with other tools, spelt here and nowhere else.
//!
//! ```text
//! <namespace>/stream/<stream>/stream.json                          settings of the stream
//! <namespace>/stream/<stream>/<partition>/log/<number>             a segment of messages; 20 digits, created once
//! <namespace>/stream/<stream>/<partition>/meta.json                where the log begins, and a hint at its end
//! <namespace>/stream/<stream>/<partition>/group/<group>.json       how far a group has read
//! <namespace>/stream/<stream>/<partition>/archive.json             how far the archiver has come
//! ```

use super::{GroupName, StreamName};
use crate::{
    Namespace,
    kind::{Content, Folder},
    storage::Name,
};

/// What a name in the folder of streams stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parsed {
    Settings(StreamName),
    Meta(PartitionPath),
    Segment(PartitionPath, u64),
    Group(PartitionPath, GroupName),
    Archive(PartitionPath),
}

/// Where one partition is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartitionPath {
    pub(crate) namespace: Namespace,
    pub(crate) stream: StreamName,
    pub(crate) number: u16,
}

/// The folder of all streams of a namespace.
pub(crate) fn folder(namespace: &str) -> String {
    format!("{namespace}/stream/")
}

/// The settings of a stream.
pub(crate) fn settings(namespace: &Namespace, stream: &StreamName) -> Name {
    Name::new(format!("{}{stream}/stream.json", folder(namespace.as_str())))
}

impl PartitionPath {
    fn folder(&self) -> String {
        format!("{}{}/{:03}/", folder(self.namespace.as_str()), self.stream, self.number)
    }

    pub(crate) fn log(&self) -> String {
        format!("{}log/", self.folder())
    }

    pub(crate) fn segment(&self, number: u64) -> Name {
        Name::new(format!("{}log/{number:020}", self.folder()))
    }

    pub(crate) fn meta(&self) -> Name {
        Name::new(format!("{}meta.json", self.folder()))
    }

    pub(crate) fn groups(&self) -> String {
        format!("{}group/", self.folder())
    }

    pub(crate) fn group(&self, group: &GroupName) -> Name {
        Name::new(format!("{}group/{group}.json", self.folder()))
    }

    pub(crate) fn archive(&self) -> Name {
        Name::new(format!("{}archive.json", self.folder()))
    }
}

/// The number in the name of a segment.
pub(crate) fn number(text: &str) -> Option<u64> {
    (text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// What a name below the folder of streams of a namespace stands for; `None` if it is none of ours.
pub(crate) fn parse(namespace: &Namespace, below: &str) -> Option<Parsed> {
    let (stream, rest) = below.split_once('/')?;
    let stream: StreamName = stream.parse().ok()?;
    if rest == "stream.json" {
        return Some(Parsed::Settings(stream));
    }
    let (partition, rest) = rest.split_once('/')?;
    let digits = partition.len() == 3 && partition.bytes().all(|byte| byte.is_ascii_digit());
    let number: u16 = digits.then(|| partition.parse().ok())??;
    let path = PartitionPath { namespace: namespace.clone(), stream, number };
    match rest.split_once('/') {
        None if rest == "meta.json" => Some(Parsed::Meta(path)),
        None if rest == "archive.json" => Some(Parsed::Archive(path)),
        Some(("log", segment)) => Some(Parsed::Segment(path, self::number(segment)?)),
        Some(("group", group)) => {
            let group = group.strip_suffix(".json")?.parse().ok()?;
            Some(Parsed::Group(path, group))
        }
        _ => None,
    }
}

/// The folders that streams have in one that lies right in the store.
pub(crate) fn folders(top: &str) -> Vec<Folder> {
    if Namespace::new(top).is_err() {
        return Vec::new();
    }
    vec![Folder { top: top.to_owned(), path: folder(top), content: Content::Records }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        let namespace = Namespace::default();
        let stream: StreamName = "events.audit".parse().unwrap();
        let path = PartitionPath { namespace: namespace.clone(), stream: stream.clone(), number: 7 };
        let group: GroupName = "mail".parse().unwrap();
        assert_eq!(path.segment(12).as_str(), "default/stream/events.audit/007/log/00000000000000000012");
        for (name, parsed) in [
            (settings(&namespace, &stream), Parsed::Settings(stream.clone())),
            (path.meta(), Parsed::Meta(path.clone())),
            (path.segment(u64::MAX), Parsed::Segment(path.clone(), u64::MAX)),
            (path.group(&group), Parsed::Group(path.clone(), group.clone())),
            (path.archive(), Parsed::Archive(path.clone())),
        ] {
            let below = name.as_str().strip_prefix("default/stream/").unwrap();
            assert_eq!(parse(&namespace, below), Some(parsed));
        }
        for below in
            ["x", "x/0/meta.json", "x/0000/meta.json", "x/000/log/1", "x/000/group/a", "x/000/other", "X/stream.json"]
        {
            assert_eq!(parse(&namespace, below), None, "{below}");
        }
        assert_eq!(folders(".leasehold"), []);
    }
}
