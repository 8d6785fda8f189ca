//! What the sweeper knows of a kind of expiring record: this trait, and nothing else.

use crate::{Bucket, Result, store::Name};
use async_trait::async_trait;
use std::fmt::Debug;

/// One index: a folder of hours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shelf {
    /// The namespace, or whatever else its kind has one index for.
    pub(crate) label: String,
    /// Ends in a slash; the hours are right below it.
    pub(crate) folder: String,
}

/// An entry of an hour that has ended.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) shelf: &'a Shelf,
    pub(crate) bucket: Bucket,
    /// The last part of its name.
    pub(crate) name: &'a str,
}

/// What is to be done about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It says nothing that is true any more: delete it.
    Stale,
    /// What it stands for has been settled by a swap just now: delete it.
    Cleared,
    /// Delete this object first, which nobody may write any more, and the entry once that is confirmed.
    Over(Name),
    /// Leave it: the next pass will see.
    Kept,
}

/// A kind of record that can expire.
///
/// A new kind is one more implementation of this; nothing in the sweeper changes.
#[async_trait]
pub(crate) trait Sweepable: Debug + Send + Sync {
    /// What its objects are called in reports and metrics.
    fn kind(&self) -> &'static str;

    /// Where its entries are filed, given the folders that lie right in the store. Those are found by listing, once for
    /// all kinds, and not remembered.
    fn shelves(&self, folders: &[String]) -> Vec<Shelf>;

    /// Looks at what an entry stands for, and settles it by a swap if it has ended. With `dry_run` nothing is written.
    ///
    /// Whatever it returns an error for is counted, logged and left alone: one bad record never stalls the rest.
    async fn settle(&self, entry: &Entry<'_>, dry_run: bool) -> Result<Verdict>;
}
