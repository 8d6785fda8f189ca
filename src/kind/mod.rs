//! What the rest of the library knows of a kind of record: one trait, and nothing else.
//!
//! A new kind is one folder in the source and one implementation of [`Kind`], registered where a store is opened. The
//! sweeper, fsck, `store.json`, reports and metrics are made of what the kinds say; none of them knows one by name.
//!
//! An entry is looked at when its hour has been over for a while (`hour_grace`), and only by a sweep. A kind that
//! must notice something within seconds has to settle it whenever it is touched; the sweeper tidies what is not touched.

mod context;
mod finding;
mod swept;

pub use crate::{
    shared::{Rules, SharedSetting, SharedSettings, Stop},
    storage::{Clocks, Name},
};
pub use context::Context;
pub use finding::{Damage, Finding};
pub use swept::Swept;

use crate::{Hour, Result};
use async_trait::async_trait;
use std::fmt::Debug;

/// What stands in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// Records: looked at by fsck.
    Records,
    /// Index entries, in one folder for each hour: walked by the sweeper and looked at by fsck.
    Entries,
    /// Index entries that are not filed by the hour: looked at by fsck, and tidied by chores of their kind.
    Filed,
    /// Copies that were set aside: not looked at.
    Aside,
    /// Objects right in here, beside the other folders, are of an earlier layout: left alone, and named by fsck.
    OlderLayout,
}

/// A folder of one kind. Its path ends in a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// The folder right in the store that it is in: a namespace, or a name that begins with a dot.
    pub top: String,
    /// The whole path.
    pub path: String,
    /// What stands in it.
    pub content: Content,
}

/// What a kind says of itself before a store is opened.
#[derive(Debug)]
pub struct Declaration {
    /// The label that reports and metrics have for it.
    pub name: &'static str,
    /// The folders that it has inside of one that lies right in the store; none if it has nothing there.
    pub folders: fn(top: &str) -> Vec<Folder>,
    /// Whether the name of an object, below a folder of records, is that of a record: a store that has some is in use.
    pub is_record: fn(below: &str) -> bool,
    /// What all processes must agree on for it.
    pub shared: Rules,
}

/// An entry of an hour that has ended.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The folder that it is filed in.
    pub folder: &'a Folder,
    /// Its hour.
    pub hour: Hour,
    /// The last part of its name.
    pub name: &'a str,
}

/// An object that fsck looks at.
#[derive(Debug)]
pub struct Object<'a> {
    /// The folder that it was found in.
    pub folder: &'a Folder,
    /// Its whole name.
    pub name: &'a Name,
}

/// What is to be done about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It says nothing that is true any more: delete it.
    Stale,
    /// What it stands for has been settled by a compare-and-swap just now: delete it.
    Cleared,
    /// What it stands for goes on, and has been filed under a later hour just now: delete it.
    Moved,
    /// Delete these objects first, which no process may write any more, and the entry once all of that is confirmed.
    DeleteFirst(Vec<Name>),
    /// Leave it: the next pass looks at it again.
    Kept,
}

/// Work that is not an entry of an hour, such as trimming or archiving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chore {
    /// Tells it from other chores of its kind.
    pub name: String,
}

/// How far a chore has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// There is more to do in this pass.
    More,
    /// Nothing is left to do in this pass.
    Done,
}

/// A kind of record that can expire or be damaged.
#[async_trait]
pub trait Kind: Debug + Send + Sync {
    /// What it says of itself.
    fn declaration(&self) -> &'static Declaration;

    /// Looks at what an entry stands for, and settles it by a compare-and-swap if it has ended. In a
    /// [dry run](Context::dry_run) nothing is written.
    ///
    /// An error is counted, logged and the entry left alone: one bad record never stalls the rest. What takes long asks
    /// [`must_stop`](Context::must_stop) on its way and answers [`Verdict::Kept`].
    async fn settle(&self, entry: &Entry<'_>, cx: &Context) -> Result<Verdict>;

    /// Looks for damage in one object, and repairs what can be repaired if the check [repairs](Context::repairs).
    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>>;

    /// What there is to do in this pass that is not an entry of an hour, given the folders right in the store.
    fn chores(&self, _tops: &[String]) -> Vec<Chore> {
        Vec::new()
    }

    /// One step of a chore, about as much as settling an entry: steps are paced, counted and limited like entries.
    async fn step(&self, _chore: &Chore, _cx: &Context) -> Result<Step> {
        Ok(Step::Done)
    }

    /// Is told after every run that was not dry what was swept of this kind, for counters of its own.
    fn swept(&self, _swept: &Swept) {}
}
