//! The names of a queue's objects. A contract: readable by other tools, stable from the first release.
//!
//! ```text
//! <ns>/queue/<queue>/queue.json                                       settings of the queue
//! <ns>/queue/<queue>/in/<shard>/<class>/<segment>-<n>                 enqueued, due now; n jobs
//! <ns>/queue/<queue>/at/<shard>/<YYYYMMDDHHMM>/<class>-<segment>-<n>  due later, under the minute of its first job
//! <ns>/queue/<queue>/seg/<shard>/<segment>                            written by workers, named by the ledger only
//! <ns>/queue/<queue>/ledger/<shard>.pb                                the shard's ledger
//! <ns>/queue/<queue>/dead/<YYYYMMDDHH>/<shard>-<plan>-<n>             dead letters, under the hour of their expiry
//! ```
//!
//! What a listing shows and does not parse is foreign: it is counted, left alone and never read.

use super::id::{Class, SegmentId};
use crate::{Error, Key, Result, WriteId, clock::Timestamp};
use chrono::{DateTime, Datelike, NaiveDate, Timelike};
use std::{collections::HashSet, fmt};

/// The longest name of a queue: escaped it still fits into one part of an object's name without being hashed.
const LONGEST_QUEUE: usize = 64;

/// A UTC minute, written `YYYYMMDDHHMM`; of the years 1970 to 9999.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Minute(u32);

impl Minute {
    const LAST: u32 = 2_932_897 * 24 * 60 - 1;

    /// The minute that this instant is in; what lies outside is filed under the first or the last one.
    pub(crate) fn of(at: Timestamp) -> Self {
        Self(u32::try_from(at.as_millis().div_euclid(60_000).max(0)).unwrap_or(Self::LAST).min(Self::LAST))
    }

    pub(crate) fn start(self) -> Timestamp {
        Timestamp::from_millis(i64::from(self.0) * 60_000)
    }

    /// Minutes since 1970, for records.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        (number <= Self::LAST).then_some(Self(number))
    }

    fn parse(name: &str) -> Option<Self> {
        if name.len() != 12 || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let two = |at: usize| name.get(at..at + 2)?.parse::<u32>().ok();
        let day = NaiveDate::from_ymd_opt(name[..4].parse().ok()?, two(4)?, two(6)?)?;
        let minutes = day.and_hms_opt(two(8)?, two(10)?, 0)?.and_utc().timestamp().div_euclid(60);
        Self::from_number(u32::try_from(minutes).ok()?)
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = DateTime::from_timestamp(i64::from(self.0) * 60, 0).ok_or(fmt::Error)?;
        write!(f, "{:04}{:02}{:02}{:02}{:02}", at.year(), at.month(), at.day(), at.hour(), at.minute())
    }
}

impl fmt::Debug for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The folder that a segment stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// `in/`: due when it was enqueued.
    Inbox,
    /// `at/`: due later.
    At(Minute),
    /// `seg/`: never listed for absorbing; the ledger alone names it.
    Seg,
    /// No object at all: the ledger's row has the job's arguments itself.
    Inline,
}

/// All parts of the name of a segment's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentName {
    pub(crate) id: SegmentId,
    pub(crate) place: Place,
    /// How many jobs it has. Not part of the name in `seg/`.
    pub(crate) jobs: u16,
}

/// What a name in a listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    Segment(SegmentName),
    /// Nobody of ours has made it.
    Foreign,
}

/// All parts of the name of an object of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LettersName {
    /// `YYYYMMDDHH` of its expiry.
    pub(crate) hour: u64,
    pub(crate) shard: u8,
    pub(crate) plan: WriteId,
    pub(crate) jobs: u16,
}

/// The names of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    root: String,
}

impl Layout {
    /// `namespace` is one that was checked; the queue's name is any text of up to 64 bytes.
    pub(crate) fn new(namespace: &str, queue: &str) -> Result<Self> {
        if queue.is_empty() || queue.len() > LONGEST_QUEUE {
            let length = queue.len();
            return Err(Error::invalid(format!(
                "the name of a queue has 1 to {LONGEST_QUEUE} bytes (got {length}): choose a shorter one"
            )));
        }
        Ok(Self { root: format!("{namespace}/queue/{}", Key::new(queue)?.name()) })
    }

    pub(crate) fn settings(&self) -> String {
        format!("{}/queue.json", self.root)
    }

    pub(crate) fn ledger(&self, shard: u8) -> String {
        format!("{}/ledger/{shard}.pb", self.root)
    }

    /// The folder of everything that is due, for one LIST over all shards.
    pub(crate) fn inbox(&self) -> String {
        format!("{}/in/", self.root)
    }

    pub(crate) fn inbox_of(&self, shard: u8) -> String {
        format!("{}/in/{shard}/", self.root)
    }

    pub(crate) fn inbox_class(&self, shard: u8, class: Class) -> String {
        format!("{}/in/{shard}/{}/", self.root, class.number())
    }

    /// The folder of what is due later: its minutes in the order of time.
    pub(crate) fn later(&self, shard: u8) -> String {
        format!("{}/at/{shard}/", self.root)
    }

    /// The folder of what is due later, for one LIST over all shards.
    pub(crate) fn later_all(&self) -> String {
        format!("{}/at/", self.root)
    }

    /// The folder of what only the ledger names.
    pub(crate) fn seg(&self, shard: u8) -> String {
        format!("{}/seg/{shard}/", self.root)
    }

    pub(crate) fn dead(&self) -> String {
        format!("{}/dead/", self.root)
    }

    /// The object of a segment; none where the ledger has it all.
    pub(crate) fn segment(&self, name: &SegmentName) -> Option<String> {
        let SegmentName { id, place, jobs } = name;
        let (root, shard, class) = (&self.root, id.shard(), id.class().number());
        match place {
            Place::Inbox => Some(format!("{root}/in/{shard}/{class}/{id}-{jobs}")),
            Place::At(minute) => Some(format!("{root}/at/{shard}/{minute}/{class}-{id}-{jobs}")),
            Place::Seg => Some(format!("{root}/seg/{shard}/{id}")),
            Place::Inline => None,
        }
    }

    /// The prefix under which one LIST finds the segment of a job that the ledger does not know, if it is due now and if
    /// it is due later. The id of a delayed segment names its minute, unless it was made of a request id.
    pub(crate) fn look_up(&self, id: SegmentId) -> [String; 2] {
        let (shard, class) = (id.shard(), id.class());
        let minute = Minute::of(id.time());
        [
            format!("{}{id}-", self.inbox_class(shard, class)),
            format!("{}{minute}/{}-{id}-", self.later(shard), class.number()),
        ]
    }

    /// The object of the dead letters of one plan.
    pub(crate) fn dead_letters(&self, hour: u64, shard: u8, plan: WriteId, jobs: u16) -> String {
        format!("{}{hour:010}/{shard}-{plan}-{jobs}", self.dead())
    }

    /// What a listed name under `dead/` is.
    pub(crate) fn parse_letters(&self, name: &str) -> Option<LettersName> {
        let (hour, rest) = name.strip_prefix(&self.root)?.strip_prefix("/dead/")?.split_once('/')?;
        let mut parts = rest.splitn(2, '-');
        let (shard, rest) = (parts.next()?.parse().ok()?, parts.next()?);
        let (plan, jobs) = rest.rsplit_once('-')?;
        let parsed = LettersName {
            hour: hour.parse().ok()?,
            shard,
            plan: plan.parse().ok()?,
            jobs: jobs.parse().ok().filter(|jobs| *jobs > 0)?,
        };
        // Only the one spelling that we write.
        let LettersName { hour, shard, plan, jobs } = parsed;
        (self.dead_letters(hour, shard, plan, jobs) == name).then_some(parsed)
    }

    /// What a listed name under `in/` or `at/` is.
    pub(crate) fn parse(&self, name: &str) -> Listed {
        let parsed = name.strip_prefix(&self.root).and_then(parse_segment).filter(|parsed| {
            // Only the one spelling that we write, so that no segment has two names.
            self.segment(parsed).as_deref() == Some(name)
        });
        parsed.map_or(Listed::Foreign, Listed::Segment)
    }

    /// What a listed name under `seg/` is.
    pub(crate) fn parse_seg(&self, name: &str) -> Option<SegmentId> {
        let rest = name.strip_prefix(&self.root)?.strip_prefix("/seg/")?;
        let (shard, id) = rest.split_once('/')?;
        SegmentId::from_digits(id).filter(|id| id.shard().to_string() == shard)
    }
}

fn parse_segment(rest: &str) -> Option<SegmentName> {
    let mut parts = rest.strip_prefix('/')?.splitn(4, '/');
    let (folder, _shard, third, last) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (place, id, jobs) = match folder {
        "in" => {
            let (id, jobs) = last.split_once('-')?;
            (Place::Inbox, id, jobs)
        }
        "at" => {
            let (id, jobs) = last.split_once('-')?.1.split_once('-')?;
            (Place::At(Minute::parse(third)?), id, jobs)
        }
        _ => return None,
    };
    let jobs = jobs.parse().ok().filter(|jobs| *jobs > 0)?;
    Some(SegmentName { id: SegmentId::from_digits(id)?, place, jobs })
}

/// The UTC hour of an instant as the number `YYYYMMDDHH`; years 1970 to 9999.
pub(crate) fn hour_of(at: Timestamp) -> u64 {
    let minute = Minute::of(at);
    let Some(at) = DateTime::from_timestamp(i64::from(minute.0) * 60, 0) else { return 0 };
    let year = u64::try_from(at.year()).unwrap_or(0);
    [at.month(), at.day(), at.hour()].into_iter().fold(year, |number, two| number * 100 + u64::from(two))
}

/// What one look at a folder has shown, and how far that look has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    /// The folder or prefix that was listed.
    pub(crate) prefix: String,
    /// Whether it began at the folder's start.
    pub(crate) from_start: bool,
    /// The last name of a listing that was cut off, in a store that lists in order; none if it came to the end.
    pub(crate) cut_off_after: Option<String>,
    pub(crate) shown: HashSet<String>,
}

impl Listing {
    /// Whether it would have shown this name if it were there.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.from_start
            && name.starts_with(&self.prefix)
            && self.cut_off_after.as_deref().is_none_or(|last| name <= last)
    }

    /// Whether it proves that there was no such name when it was made.
    pub(crate) fn rules_out(&self, name: &str) -> bool {
        self.covers(name) && !self.shown.contains(name)
    }
}

#[cfg(test)]
mod tests;
