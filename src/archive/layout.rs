//! The names of archive files: a contract with other tools, spelt here and nowhere else.
//!
//! ```text
//! archive/<domain>/<YYYY>/<MM>/<DD>/<stream>-<partition>-<first>-<last>-<incarnation>.jsonl.gz
//! archive/<domain>/dt=<YYYY-MM-DD>/<the same>
//! archive/<domain>/_damaged/<stream>-<partition>-<number>-<incarnation>    a segment that could not be read, as it is
//! ```
//!
//! First and last are offsets of the range that was archived in one go: the same in each day's file of it.

use super::Days;
use crate::{
    clock::Timestamp,
    kind::{Content, Folder},
    storage::Name,
    stream::StreamName,
};
use std::fmt;

const TOP: &str = "archive";

/// A day in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Day(i64);

impl Day {
    pub(crate) fn of(time: Timestamp) -> Self {
        Self(time.as_millis().div_euclid(86_400_000))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = Timestamp::from_millis(self.0.saturating_mul(86_400_000)).to_datetime().unwrap_or_default();
        write!(f, "{}", at.format("%Y-%m-%d"))
    }
}

/// A range of one partition that is archived in one go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) stream: StreamName,
    pub(crate) partition: u16,
    pub(crate) incarnation: String,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

pub(crate) fn domain(domain: &str) -> String {
    format!("{TOP}/{domain}/")
}

pub(crate) fn file(domain: &str, days: Days, day: Day, range: &Range) -> Name {
    let date = day.to_string();
    let folder = match days {
        Days::Daily => date.replace('-', "/"),
        Days::Hive => format!("dt={date}"),
    };
    let Range { stream, partition, incarnation, first, last } = range;
    Name::new(format!("{TOP}/{domain}/{folder}/{stream}-{partition:03}-{first:020}-{last:020}-{incarnation}.jsonl.gz"))
}

pub(crate) fn damaged(domain: &str, stream: &StreamName, partition: u16, number: u64, incarnation: &str) -> Name {
    Name::new(format!("{TOP}/{domain}/_damaged/{stream}-{partition:03}-{number:020}-{incarnation}"))
}

/// The range that a file's name says; `None` for any other name.
pub(crate) fn parse(name: &Name) -> Option<Range> {
    let stem = name.last().strip_suffix(".jsonl.gz")?;
    let mut parts = stem.rsplitn(5, '-');
    let (incarnation, last, first, partition) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| if text.len() == 20 { text.parse().ok() } else { None };
    Some(Range {
        stream: parts.next()?.parse().ok()?,
        partition: partition.parse().ok()?,
        incarnation: incarnation.to_owned(),
        first: number(first)?,
        last: number(last)?,
    })
}

/// The folder that the archive has right in the store. Nobody looks into it but whoever asks for it.
pub(crate) fn folders(top: &str) -> Vec<Folder> {
    if top != TOP {
        return Vec::new();
    }
    vec![Folder { top: top.to_owned(), path: format!("{TOP}/"), content: Content::Aside }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_day_and_its_range() {
        let range = Range {
            stream: "events.audit-log".parse().unwrap(),
            partition: 2,
            incarnation: "00ff00ff00ff00ff".to_owned(),
            first: 10,
            last: 1009,
        };
        let day = Day::of(Timestamp::from_millis(1_771_027_200_000));
        let name = file("audit", Days::Daily, day, &range);
        let stem = "events.audit-log-002-00000000000000000010-00000000000000001009-00ff00ff00ff00ff.jsonl.gz";
        assert_eq!(name.as_str(), format!("archive/audit/2026/02/14/{stem}"));
        assert_eq!(name.as_str().split('/').count(), 6);
        assert_eq!(parse(&name), Some(range.clone()));
        let hive = file("audit", Days::Hive, day, &range);
        assert_eq!(hive.as_str(), format!("archive/audit/dt=2026-02-14/{stem}"));
        assert_eq!(parse(&hive), Some(range));
        assert_eq!(parse(&Name::new("archive/audit/2026/02/14/other.jsonl.gz")), None);
        assert_eq!(Day::of(Timestamp::from_millis(-1)).to_string(), "1969-12-31");
    }
}
