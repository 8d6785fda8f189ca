//! What fsck finds.

use super::Name;
use crate::Key;
use serde::Serialize;
use std::fmt;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Damage {
    /// A record cannot be read.
    Unreadable,
    /// A record that ends has no entry: it would never be tidied.
    MissingEntry,
    /// An entry has no record.
    MissingRecord,
    /// A name that is none of ours.
    UnknownName,
    /// Written by a later version than this one.
    LaterFormat,
    /// Written by an earlier version, under a name that this one neither reads nor deletes.
    OlderLayout,
    /// What an entry stands for has ended together with what it hung on, and was not tidied yet.
    EndedWithOther,
}

impl Damage {
    /// The name that JSON has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::MissingEntry => "missing_entry",
            Self::MissingRecord => "missing_record",
            Self::UnknownName => "unknown_name",
            Self::LaterFormat => "later_format",
            Self::OlderLayout => "older_layout",
            Self::EndedWithOther => "ended_with_other",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What is wrong.
    pub damage: Damage,
    /// The object.
    pub name: String,
    /// The key that it belongs to, as text for people, where that is known.
    pub key: Option<String>,
    /// In a few words.
    pub detail: String,
    /// It does no harm, and nothing needs to be done about it.
    pub harmless: bool,
    /// What was done about it.
    pub repaired: Option<String>,
    /// What is left to do.
    pub advice: Option<String>,
}

impl Finding {
    /// Something is wrong with an object.
    pub fn new(damage: Damage, name: &Name, detail: impl Into<String>) -> Self {
        let name = name.as_str().to_owned();
        Self { damage, name, key: None, detail: detail.into(), harmless: false, repaired: None, advice: None }
    }

    /// A name that is none of ours.
    pub fn unknown(name: &Name) -> Self {
        Self::new(Damage::UnknownName, name, "no name that leasehold writes").advise("look at it, and move it away")
    }

    /// An object of an earlier layout.
    pub fn older(name: &Name) -> Self {
        let older = Self::new(Damage::OlderLayout, name, "of an earlier layout: neither read nor swept");
        older.advise("delete it once no process of the earlier version runs").harmless()
    }

    /// The key that it belongs to.
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// What is left to do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Nothing needs to be done about it.
    #[must_use]
    pub fn harmless(mut self) -> Self {
        self.harmless = true;
        self
    }

    /// It was repaired.
    #[must_use]
    pub fn repaired(mut self, what: impl Into<String>) -> Self {
        self.repaired = Some(what.into());
        self.advice = None;
        self
    }

    /// Whether an operator must still do something.
    pub fn is_open(&self) -> bool {
        !self.harmless && self.repaired.is_none()
    }
}
