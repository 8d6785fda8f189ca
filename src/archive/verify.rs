//! Checks an archive: names, ranges, counts and digests.

use super::{
    file,
    layout::{self, Range},
};
use crate::{
    Result,
    storage::{Backend, Name},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Names in one listing.
const PAGE: usize = 1000;

/// What a check of one domain has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// Files that were looked at.
    pub files: u64,
    /// Messages in them.
    pub messages: u64,
    /// Whatever is wrong, in words.
    pub problems: Vec<String>,
}

/// What all files of one range have together.
#[derive(Debug, Default)]
struct Found {
    /// The offsets of their messages.
    offsets: Vec<u64>,
}

/// Reads every file of a domain.
pub(crate) async fn verify(backend: &Backend, domain: &str) -> Result<Verified> {
    let (folder, mut after) = (layout::domain(domain), None);
    let mut verified = Verified::default();
    let mut ranges: BTreeMap<Range, Found> = BTreeMap::new();
    let damaged = format!("{folder}_damaged/");
    loop {
        let (objects, more) = backend.objects(&folder, after.as_ref(), PAGE).await?;
        for listed in &objects {
            if listed.name.as_str().starts_with(&damaged) {
                verified.problems.push(format!("{} was damaged in the stream and is not in a file", listed.name));
                continue;
            }
            check(backend, &listed.name, &mut ranges, &mut verified).await?;
        }
        after = objects.last().map(|last| last.name.clone());
        if !more || after.is_none() {
            break;
        }
    }
    for (range, found) in &mut ranges {
        found.offsets.sort_unstable();
        let (first, last) = (found.offsets.first(), found.offsets.last());
        let whole = found.offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if !whole || first != Some(&range.first) || last != Some(&range.last) {
            let count = found.offsets.len();
            verified.problems.push(format!("{}: {count} messages where its files say more or others", title(range)));
        }
    }
    let listed: Vec<&Range> = ranges.keys().collect();
    for pair in listed.windows(2) {
        let same = (&pair[0].stream, pair[0].partition, &pair[0].incarnation)
            == (&pair[1].stream, pair[1].partition, &pair[1].incarnation);
        if same && pair[0].last + 1 != pair[1].first {
            let what = if pair[0].last + 1 < pair[1].first { "nothing lies between" } else { "there is an overlap of" };
            verified.problems.push(format!("{what} {} and {}", title(pair[0]), title(pair[1])));
        }
    }
    Ok(verified)
}

fn title(range: &Range) -> String {
    let Range { stream, partition, first, last, .. } = range;
    format!("{stream}, partition {partition}, {first} to {last}")
}

async fn check(
    backend: &Backend,
    name: &Name,
    ranges: &mut BTreeMap<Range, Found>,
    verified: &mut Verified,
) -> Result<()> {
    let mut wrong = |why: String| verified.problems.push(format!("{name}: {why}"));
    let Some(range) = layout::parse(name) else {
        wrong("no name of an archive file".to_owned());
        return Ok(());
    };
    let Some(there) = backend.get_large(name).await? else { return Ok(()) };
    let (header, lines) = (file::header(&there.body), file::read(&there.body));
    let lines = match (header, lines) {
        (None, _) => {
            wrong("it has no digest in its header".to_owned());
            return Ok(());
        }
        (_, Err(why)) => {
            wrong(why);
            return Ok(());
        }
        (Some((digest, count)), Ok(lines)) => {
            if count != lines.len() as u64 || digest != file::digest(lines.iter().copied()) {
                wrong(format!("its {} lines are not those that its header says", lines.len()));
            }
            lines
        }
    };
    verified.files += 1;
    verified.messages += lines.len() as u64;
    ranges.entry(range).or_default().offsets.extend(lines.into_iter().map(|(offset, _)| offset));
    Ok(())
}
