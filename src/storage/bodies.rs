//! Requests for objects that are larger than a record: read by range, created once, and read again only if they changed.

use super::{
    Backend, Fetched, Name,
    answer::{is_bucket_missing, is_missing},
    backend::{Refusal, Version},
    cas::{Seen, Slot},
};
use crate::{Error, Result, clock::Timestamp};
use bytes::Bytes;
use object_store::{Error as StoreError, GetOptions, GetRange, PutMode};
use std::{ops::Range, time::Duration};

/// No object is created or read that is longer.
pub(crate) const LONGEST_OBJECT: usize = 16 << 20;

/// What is longer than this gets the time of a bulk request.
const LONG: usize = 256 << 10;

/// How often a read that failed for a passing reason is tried in all.
const TRIES: u32 = 3;

/// A part of an object.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) body: Bytes,
    /// How long the whole object is.
    pub(crate) whole: u64,
}

/// Which of the two ways to the store a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// For requests that a caller waits for.
    First,
    /// The one for listings and deletes: another connection.
    Second,
}

/// What a look at a record shows that was seen before.
#[derive(Debug)]
pub(crate) enum Again<R> {
    /// It is as it was.
    Same,
    /// This is there now.
    Now(Option<Seen<R>>),
}

impl Backend {
    /// Creates an object of up to 16 MiB, sent once. Anything but Ok says nothing about whether it is there.
    pub(crate) async fn create(&self, name: &Name, body: Bytes) -> Result<(), Refusal> {
        if body.len() > LONGEST_OBJECT {
            let length = body.len();
            let error = Error::invalid(format!("{name} has {length} bytes, at most {LONGEST_OBJECT} are allowed"));
            return Err(Refusal { conflict: false, error });
        }
        let limit = self.time_for(body.len());
        self.put(name, body, PutMode::Create, limit).await.map(drop)
    }

    fn time_for(&self, length: usize) -> Duration {
        if length > LONG { self.request_timeout.max(self.bulk_timeout) } else { self.request_timeout }
    }

    /// Reads some bytes of an object, tried again a few times when the failure looks like a passing one; `None` if there is no
    /// such object. An object that ends before `range` does gives what there is.
    pub(crate) async fn get_range(&self, name: &Name, range: Range<usize>, way: Way) -> Result<Option<Piece>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.get_range_once(name, &range, way).await {
                Err(error) if error.is_retryable() && tries < TRIES => self.pause(tries - 1).await,
                done => return done,
            }
        }
    }

    async fn get_range_once(&self, name: &Name, range: &Range<usize>, way: Way) -> Result<Option<Piece>> {
        let (from, to) = (range.start as u64, range.end.min(range.start + LONGEST_OBJECT) as u64);
        let handle = match way {
            Way::First => &self.coordination,
            Way::Second => &self.bulk,
        };
        let path = self.prefix.path(name);
        let options = GetOptions { range: Some(GetRange::Bounded(from..to)), ..GetOptions::default() };
        let read = async {
            let found = handle.as_ref().get_opts(&path, options).await?;
            let whole = found.meta.size;
            Ok(Piece { body: found.bytes().await?, whole })
        };
        match self.within(self.time_for(range.len()), read).await {
            Ok(piece) => Ok(Some(piece)),
            Err(error) if is_missing(&error) && !is_bucket_missing(&error) => Ok(None),
            Err(error) => Err(self.explain(error, "reading", name)),
        }
    }

    /// Reads a record again, if it is not as it was.
    pub(crate) async fn read_again<S: Slot>(&self, slot: &S, seen: &Seen<S::Record>) -> Result<Again<S::Record>> {
        let name = slot.name();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.get_changed(&name, seen.version()).await {
                Ok(None) => return Ok(Again::Same),
                Ok(Some(there)) => {
                    let read = there.map(|fetched| Seen::decode(slot, fetched)).transpose();
                    match read {
                        // It may have been damaged on its way here.
                        Err(_) if tries < TRIES => {}
                        read => return read.map(Again::Now),
                    }
                }
                Err(error) if error.is_retryable() && tries < TRIES => self.pause(tries - 1).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// `None` if it has this version still; otherwise what is there, if anything is.
    async fn get_changed(&self, name: &Name, version: &Version) -> Result<Option<Option<Fetched>>> {
        let path = self.prefix.path(name);
        let options = GetOptions { if_none_match: version.e_tag(), ..GetOptions::default() };
        let read = async {
            let found = self.coordination.as_ref().get_opts(&path, options).await?;
            let meta = found.meta.clone();
            Ok((meta, found.bytes().await?))
        };
        match self.within(self.request_timeout, read).await {
            Ok((meta, body)) => {
                let version = Version::new(meta.e_tag, meta.version);
                Ok(Some(Some(Fetched { body, version, modified: Timestamp::from(meta.last_modified) })))
            }
            Err(StoreError::NotModified { .. }) => Ok(None),
            Err(error) if is_missing(&error) && !is_bucket_missing(&error) => Ok(Some(None)),
            Err(error) => Err(self.explain(error, "reading", name)),
        }
    }

    /// Whether requests stay in this machine's memory and files.
    pub(crate) fn is_here(&self) -> bool {
        ["memory:", "file:"].iter().any(|start| self.place.starts_with(start))
    }

    /// Whether commits to one object should be spaced, and by how much: some stores take about one write a second to one
    /// name.
    pub(crate) fn spacing(&self) -> Duration {
        if self.place.starts_with("gs://") { Duration::from_millis(1100) } else { Duration::ZERO }
    }
}
