//! What the index says of the hours that are not over: which keys may be held, without reading any of them.

use super::{Cursor, Leases, layout};
use crate::{
    Decoded, Error, Hour, Key, Result, index,
    storage::{Name, Walk},
};
use std::fmt;

/// A key that may be held: it has, or had, a lease that ends in an hour which is not over.
///
/// A hint and never truth: a lease that was given back leaves its entry for the sweeper. [`Leases::peek`] knows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filed {
    /// The key; `None` where its name is so long that only the record has all of it.
    pub key: Option<Key>,
    /// The hour that it is filed under.
    pub hour: Hour,
}

/// Some of the keys that may be held.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FiledKeys {
    /// In the order of their hours, then of their names.
    pub keys: Vec<Filed>,
    /// Whether there are more.
    pub more: bool,
}

impl Leases {
    /// The first `limit` keys that may be held now, by their index entries alone: one listing, no read. Not activity.
    pub async fn filed(&self, limit: usize) -> Result<FiledKeys> {
        let engine = &self.engine;
        let folder = layout::index_folder(self.namespace.as_str());
        let now = Hour::of(engine.now().wall.minus(engine.rules.max_clock_skew))?;
        // The name of an hour comes before those of its entries.
        let before = Name::new(format!("{folder}{now}"));
        let page = Walk::new(&folder, Some(before)).next(&engine.backend, limit.clamp(1, 1000)).await?;
        let entries = page.names.iter().filter_map(|name| index::parse_entry(&folder, name));
        let keys = entries.filter_map(|(hour, name)| match Key::from_name(name) {
            Ok(Decoded::Key(key)) => Some(Filed { key: Some(key), hour }),
            Ok(Decoded::Hashed) => Some(Filed { key: None, hour }),
            Err(_) => None,
        });
        Ok(FiledKeys { keys: keys.collect(), more: page.more })
    }

    /// A place in a listing of this namespace, from the text of an earlier one.
    pub fn cursor(&self, text: &str) -> Result<Cursor> {
        // Only a place: it need not be the name of a key.
        if text.is_empty() || !text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'-' | b'_')) {
            return Err(Error::invalid(format!("{text:?} is no place in a listing: take it from the page before")));
        }
        Ok(Cursor(layout::record(self.namespace.as_str(), text)))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(layout::without_suffix(self.0.last()))
    }
}
