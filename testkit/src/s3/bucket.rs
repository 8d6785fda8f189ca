//! The objects of the one bucket, and the rules by which they change. No HTTP: all of it happens under one lock.

use super::Flaw;
use bytes::Bytes;
use leasehold::clock::Timestamp;
use md5::{Digest, Md5};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// One version of an object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) body: Bytes,
    pub(super) etag: String,
    pub(super) modified: Timestamp,
}

impl Object {
    // As on S3, the ETag is the MD5 of the body: writing A, B, A brings the first ETag back. Clients must survive that.
    fn new(body: Bytes, modified: Timestamp) -> Self {
        let mut etag = String::from("\"");
        for byte in Md5::digest(&body) {
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Self { body, etag, modified }
    }

    /// Whether an `If-Match` or `If-None-Match` header names this version.
    pub(super) fn is_named_by(&self, tags: &str) -> bool {
        tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_matches('"') == self.etag.trim_matches('"'))
    }
}

/// What a write asks of the object that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    Anything,
    Absent,
    Matches(String),
}

/// Why a write was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmet {
    Precondition,
    NoSuchKey,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    objects: BTreeMap<String, Object>,
    // What the last write replaced, so that a stale listing can be shown without a copy of everything.
    undo: Vec<(String, Option<Object>)>,
    // Previous versions that a store with stale reads will still serve, once each.
    stale: BTreeMap<String, Object>,
    // How many writes have checked a name without the lock that should have covered the write as well.
    checked: BTreeMap<String, u64>,
    flaws: BTreeSet<Flaw>,
}

impl Bucket {
    pub(super) fn break_rule(&mut self, flaw: Flaw) {
        self.flaws.insert(flaw);
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    /// The objects as they are.
    pub(super) fn objects(&self) -> &BTreeMap<String, Object> {
        &self.objects
    }

    /// The objects as they were before the last write that changed anything.
    pub(super) fn before_the_last_write(&self) -> BTreeMap<String, Object> {
        let mut objects = self.objects.clone();
        for (name, before) in &self.undo {
            match before {
                Some(object) => objects.insert(name.clone(), object.clone()),
                None => objects.remove(name),
            };
        }
        objects
    }

    /// What a read is given: the truth, unless reads are stale.
    pub(super) fn read(&mut self, name: &str) -> Option<Object> {
        self.stale.remove(name).or_else(|| self.objects.get(name).cloned())
    }

    pub(super) fn check(&self, name: &str, condition: &Condition) -> Result<(), Unmet> {
        if self.has(Flaw::IgnoresPreconditions) {
            return Ok(());
        }
        match (condition, self.objects.get(name)) {
            (Condition::Anything, _) | (Condition::Absent, None) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Unmet::Precondition),
            (Condition::Matches(_), None) if self.has(Flaw::UpdatesTheMissing) => Ok(()),
            (Condition::Matches(_), None) => Err(Unmet::NoSuchKey),
            (Condition::Matches(tags), Some(object)) if object.is_named_by(tags) => Ok(()),
            (Condition::Matches(_), Some(_)) => Err(Unmet::Precondition),
        }
    }

    /// Counts a check that is not covered by the lock of its write; the number that was drawn.
    pub(super) fn draw_check(&mut self, name: &str) -> u64 {
        let checked = self.checked.entry(name.to_owned()).or_default();
        *checked += 1;
        *checked
    }

    /// Whether another write has checked this name since the one that drew `number`.
    pub(super) fn checked_since(&self, name: &str, number: u64) -> bool {
        self.checked.get(name).is_some_and(|checked| *checked > number)
    }

    /// Writes without looking; the new ETag.
    pub(super) fn write(&mut self, name: &str, body: Bytes, now: Timestamp) -> String {
        let object = Object::new(body, now);
        let etag = object.etag.clone();
        let before = self.objects.insert(name.to_owned(), object);
        if let (Some(before), true) = (&before, self.has(Flaw::StaleReads)) {
            self.stale.insert(name.to_owned(), before.clone());
        }
        self.undo = vec![(name.to_owned(), before)];
        etag
    }

    /// Deletes, as one write; names that are not there are no error.
    pub(super) fn delete<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let mut undo = Vec::new();
        for name in names {
            self.stale.remove(name);
            if let Some(object) = self.objects.remove(name) {
                undo.push((name.to_owned(), Some(object)));
            }
        }
        if !undo.is_empty() {
            self.undo = undo;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_with(name: &str, body: &'static str) -> (Bucket, String) {
        let mut bucket = Bucket::default();
        let etag = bucket.write(name, Bytes::from(body), Timestamp::default());
        (bucket, etag)
    }

    #[test]
    fn an_etag_is_the_quoted_md5_of_the_body() {
        assert_eq!(bucket_with("x", "").1, "\"d41d8cd98f00b204e9800998ecf8427e\"");
    }

    #[test]
    fn a_tag_matches_with_or_without_quotes_and_in_a_list() {
        let (bucket, etag) = bucket_with("x", "a");
        for tags in [etag.clone(), etag.trim_matches('"').to_owned(), format!("\"other\", {etag}"), "*".to_owned()] {
            assert_eq!(bucket.check("x", &Condition::Matches(tags)), Ok(()));
        }
        assert_eq!(bucket.check("x", &Condition::Matches("\"other\"".to_owned())), Err(Unmet::Precondition));
        assert_eq!(bucket.check("y", &Condition::Matches(etag)), Err(Unmet::NoSuchKey));
    }

    #[test]
    fn the_last_write_can_be_seen_as_not_yet_done() {
        let (mut bucket, _) = bucket_with("a", "1");
        bucket.write("b", Bytes::from("1"), Timestamp::default());
        assert_eq!(bucket.before_the_last_write().into_keys().collect::<Vec<_>>(), ["a"]);
        bucket.write("a", Bytes::from("2"), Timestamp::default());
        assert_eq!(bucket.before_the_last_write()["a"].body, "1");
        bucket.delete(["a", "b", "missing"]);
        assert_eq!(bucket.before_the_last_write().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        bucket.delete(["missing"]);
        assert_eq!(bucket.before_the_last_write().len(), 2, "a delete of nothing is no write");
    }
}
