//! What a [`FaultStore`](super::FaultStore) holds, and what a store that is right does with it.

use super::fault::Op;
use bytes::Bytes;
use leasehold::clock::Timestamp;
use md5::{Digest, Md5};
use object_store::{Attributes, Error, ObjectMeta, PutMode, PutResult, Result, UpdateVersion, path::Path};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt::{self, Debug, Write},
    ops::Bound,
};

pub(super) const STORE: &str = "FaultStore";

/// How many of the latest changes a stale listing may lack.
const RECENT: usize = 16;

/// A change that the store has made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Counts the changes of this store, from 1 on.
    pub seq: u64,
    /// [`Op::Put`] or [`Op::Delete`].
    pub op: Op,
    /// The object that was changed.
    pub name: String,
    /// What it holds now; `None` after a delete.
    pub body: Option<Bytes>,
    /// The store's own time.
    pub at: Timestamp,
}

/// Hears of every change, in order. It is called while the store is locked, so it must not use the store.
pub type Observer = Box<dyn Fn(&Applied) + Send + Sync>;

#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) body: Bytes,
    pub(super) at: Timestamp,
    pub(super) attributes: Attributes,
    e_tag: String,
}

impl Object {
    pub(super) fn meta(&self, location: &Path) -> ObjectMeta {
        ObjectMeta {
            location: location.clone(),
            last_modified: self.at.to_datetime().unwrap_or_default(),
            size: self.body.len() as u64,
            e_tag: Some(self.e_tag.clone()),
            version: None,
        }
    }
}

/// A write as it was asked for.
#[derive(Debug, Clone)]
pub(super) struct Put {
    pub(super) location: Path,
    pub(super) body: Bytes,
    pub(super) mode: PutMode,
    pub(super) attributes: Attributes,
}

/// In a map with an order, so that nothing depends on chance that no seed replays.
#[derive(Default)]
pub(super) struct Objects {
    map: BTreeMap<Path, Object>,
    /// The latest changes, oldest first, with what was there before.
    recent: VecDeque<(Path, Option<Object>)>,
    seq: u64,
    pub(super) observer: Option<Observer>,
}

impl Objects {
    pub(super) fn get(&self, location: &Path) -> Option<&Object> {
        self.map.get(location)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.map.keys()
    }

    pub(super) fn recent(&self) -> usize {
        self.recent.len()
    }

    pub(super) fn put(&mut self, put: Put, at: Timestamp) -> Result<PutResult> {
        let Put { location, body, mode, attributes } = put;
        check(&location, &mode, self.map.get(&location).map(|object| object.e_tag.as_str()))?;
        let e_tag = e_tag(&body);
        let object = Object { body: body.clone(), at, attributes, e_tag: e_tag.clone() };
        let before = self.map.insert(location.clone(), object);
        self.changed(Op::Put, location, before, Some(body), at);
        Ok(PutResult { e_tag: Some(e_tag), version: None, extensions: Default::default() })
    }

    /// Whether there was anything to delete.
    pub(super) fn delete(&mut self, location: &Path, at: Timestamp) -> bool {
        let before = self.map.remove(location);
        let was_there = before.is_some();
        if was_there {
            self.changed(Op::Delete, location.clone(), before, None, at);
        }
        was_there
    }

    fn changed(&mut self, op: Op, location: Path, before: Option<Object>, body: Option<Bytes>, at: Timestamp) {
        self.seq += 1;
        if let Some(observer) = &self.observer {
            observer(&Applied { seq: self.seq, op, name: location.to_string(), body, at });
        }
        self.recent.push_back((location, before));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// The first objects under `prefix` and after `after` in the order of their names, as they were before the
    /// latest `missed` changes.
    pub(super) fn list(&self, prefix: &Path, after: Option<&Path>, limit: usize, missed: usize) -> Vec<ObjectMeta> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut view: BTreeMap<&Path, &Object> = self
            .map
            .range((from, Bound::Unbounded))
            .take_while(|(path, _)| path.as_ref().starts_with(prefix.as_ref()))
            .collect();
        for (path, before) in self.recent.iter().rev().take(missed) {
            match before {
                Some(object) => view.insert(path, object),
                None => view.remove(path),
            };
        }
        // A prefix is made of whole segments, and does not list the object of its own name.
        let inside = |path: &Path| path.prefix_match(prefix).is_some_and(|mut rest| rest.next().is_some());
        view.into_iter()
            .filter(|(path, _)| inside(path) && after.is_none_or(|after| *path > after))
            .take(limit)
            .map(|(path, object)| object.meta(path))
            .collect()
    }
}

impl Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("seq", &self.seq).field("names", &self.map.keys()).finish_non_exhaustive()
    }
}

/// A hash of the body, as S3 has it: two objects with equal bodies have equal tags, and a body that comes back brings
/// its tag back.
fn e_tag(body: &[u8]) -> String {
    let mut tag = String::from('"');
    for byte in Md5::digest(body) {
        // Writing to a string cannot fail.
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    tag
}

/// Judges the condition of a write, with the errors that `object_store` makes of the answers of S3.
pub(super) fn check(location: &Path, mode: &PutMode, current: Option<&str>) -> Result<()> {
    let path = location.to_string();
    match (mode, current) {
        (PutMode::Overwrite, _) | (PutMode::Create, None) => Ok(()),
        (PutMode::Create, Some(_)) => Err(Error::AlreadyExists { path, source: "412 Precondition Failed".into() }),
        (PutMode::Update(UpdateVersion { e_tag: None, .. }), _) => {
            Err(Error::Generic { store: STORE, source: "ETag required for conditional put".into() })
        }
        (PutMode::Update(_), None) => Err(Error::Precondition { path, source: "404 Not Found".into() }),
        (PutMode::Update(UpdateVersion { e_tag: Some(expected), .. }), Some(current)) if expected != current => {
            Err(Error::Precondition { path, source: format!("{current} does not match {expected}").into() })
        }
        (PutMode::Update(_), Some(_)) => Ok(()),
    }
}
