//! Trimming: what is old enough, and copied and read by whoever must have it, is deleted.
//!
//! The order is what makes it safe. The partition's record is read first, then the settings, the archiver's record and the
//! groups; the boundary is raised by a swap on that very record, so that whoever has begun to keep messages meanwhile wins;
//! and only then segments are deleted. What cannot be read holds everything.

use super::{
    GroupName, Stream, StreamSettings,
    group::expire,
    layout,
    look::TRIM_AGE,
    partition::Partition,
    records::{Archived, Cursor, GroupBody, MetaBody, StreamBody},
};
use crate::{
    Error, Result,
    clock::Timestamp,
    record::{
        Plan,
        sealed::{self, Base, Ended, body},
    },
    storage::{Listed, Name, cas::Record as _},
};
use serde::Serialize;
use std::time::Duration;

/// Names in one listing and one bulk delete.
const PAGE: usize = 1000;

/// What a trim of one partition has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Trimmed {
    /// The partition.
    pub partition: u16,
    /// The offset of the first message that is kept.
    pub first_offset: u64,
    /// How many segments were deleted.
    pub segments: u64,
    /// Who keeps segments that are old enough to go, if anybody does.
    pub held_by: Option<String>,
    /// Groups that stopped keeping messages.
    pub expired: Vec<ExpiredGroup>,
}

/// A group that had no consumer for too long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExpiredGroup {
    /// Its name.
    pub group: String,
    /// The offset of the first message that it had not acknowledged.
    pub unacknowledged_from: u64,
    /// How many messages it had not acknowledged.
    pub lag: u64,
}

/// Who keeps messages, and from which segment on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keeper {
    pub(crate) who: String,
    pub(crate) from: u64,
}

/// A segment that is old enough by the store's own times.
fn is_old(segment: &Listed, now: Timestamp, age: Duration) -> bool {
    now.since(segment.modified) > age
}

/// The rule: the first segment that stays because of its age or of what comes after it, whoever wants to keep it.
///
/// `segments` are those of the log in order; the last of them stays. `count` is the first that the number of messages keeps.
pub(crate) fn first_kept(
    segments: &[(u64, Listed)],
    settings: &StreamSettings,
    now: Timestamp,
    slack: Duration,
    count: Option<u64>,
) -> Option<u64> {
    let (last, before) = segments.split_last()?;
    let mut after: u64 = segments.iter().map(|(_, listed)| listed.size).sum();
    for (number, listed) in before {
        after -= listed.size;
        let retention = &settings.retention;
        let too_old = retention.max_age.is_some_and(|age| is_old(listed, now, age.max(TRIM_AGE) + slack));
        let too_large = retention.max_bytes.is_some_and(|most| after >= most);
        let too_many = count.is_some_and(|first| *number < first);
        if !is_old(listed, now, TRIM_AGE + slack) || !(too_old || too_large || too_many) {
            return Some(*number);
        }
    }
    Some(last.0)
}

impl Stream {
    /// Deletes what is old enough and wanted by nobody, in every partition. Sweeping does this too.
    pub async fn trim(&self) -> Result<Vec<Trimmed>> {
        let mut trimmed = Vec::new();
        for number in 0..self.settings().await?.partitions {
            trimmed.push(self.partition(number).await?.trim(false).await?);
        }
        Ok(trimmed)
    }
}

impl Partition {
    /// One trim. In a dry run nothing is changed, and what would be deleted is counted.
    pub(crate) async fn trim(&self, dry_run: bool) -> Result<Trimmed> {
        let backend = &self.shared.backend;
        // First of all: whatever begins to keep messages from here on makes the swap fail.
        let meta = self.meta().await?;
        let first = meta.as_ref().map(|meta| body(meta).first).unwrap_or_default();
        let mut report = Trimmed { partition: self.path.number, first_offset: first.offset, ..Trimmed::default() };
        let name = layout::settings(&self.path.namespace, &self.path.stream);
        let Some(stream) = sealed::read::<StreamBody>(backend, &name).await? else { return Ok(report) };
        let settings = &body(&stream).settings;
        let now = backend.write_time().await?;
        let Some(slack) = backend.stamp_slack() else {
            return Err(Error::unavailable(format!(
                "{}: the store's own times differ too much to trim by them",
                backend.place
            )));
        };
        self.expire_groups(settings, now, slack, dry_run, &mut report).await?;
        let (garbage, segments) = self.listed(first.number, settings).await?;
        let kept = self.first_kept(&segments, settings, now, slack).await?.unwrap_or(first.number);
        let keeper = self.keepers(settings, first.number).await?.into_iter().min_by_key(|keeper| keeper.from);
        let raised = keeper.as_ref().map_or(kept, |keeper| kept.min(keeper.from)).max(first.number);
        if let Some(keeper) = keeper.filter(|keeper| keeper.from < kept) {
            tracing::warn!(stream = %self.path.stream, partition = self.path.number, by = keeper.who, "a trim was held up");
            self.shared.counters.trims_held(1);
            report.held_by = Some(keeper.who);
        }
        let last = segments.last().map_or(raised, |(number, _)| *number);
        if !dry_run && raised > first.number {
            match self.raise(meta, raised, last).await? {
                Some(first) => report.first_offset = first.offset,
                // Somebody has begun to keep messages: the next trim looks around again.
                None => return Ok(report),
            }
        }
        let gone = segments.into_iter().filter(|(number, _)| *number < raised).map(|(_, listed)| listed.name);
        let names: Vec<Name> = garbage.into_iter().chain(gone).collect();
        report.segments = names.len() as u64;
        if !dry_run {
            report.segments = self.delete(&names).await?;
        }
        Ok(report)
    }

    /// Raises the boundary; `None` if the record was changed since it was read.
    async fn raise(&self, meta: Option<Base<MetaBody>>, to: u64, hint: u64) -> Result<Option<Cursor>> {
        let revision = meta.as_ref().map(|meta| meta.record().revision());
        let Some(first) = self.segment(to).await? else {
            return Err(Error::unavailable(format!(
                "{} is not there any more: look again later",
                self.path.segment(to)
            )));
        };
        let first = Cursor { offset: first.segment.base, number: to };
        let name = self.path.meta();
        let raised = sealed::change(&self.shared.backend, &name, meta, |there| {
            // Planned on what was read before the groups and the archiver were: on nothing else.
            if there.map(|there| there.revision()) != revision {
                return Ok(Plan::Stop(()));
            }
            let hint = there.map_or(0, |there| there.body.hint).max(hint);
            Ok(Plan::Write(MetaBody { first, hint }))
        });
        Ok(match raised.await? {
            Ended::Won(_) => Some(first),
            Ended::Stopped(()) => None,
        })
    }

    async fn delete(&self, names: &[Name]) -> Result<u64> {
        let mut deleted = 0;
        for names in names.chunks(PAGE) {
            let answer = self.shared.backend.delete(names).await;
            deleted += answer.gone.len() as u64;
            self.shared.counters.trimmed(answer.gone.len() as u64);
            if let Some(error) = answer.error {
                return Err(error);
            }
        }
        Ok(deleted)
    }

    /// What lies below the beginning of the log, and its first segments, in order: all of them only if their sizes or
    /// their number matter.
    async fn listed(&self, first: u64, settings: &StreamSettings) -> Result<(Vec<Name>, Vec<(u64, Listed)>)> {
        let whole = settings.retention.max_bytes.is_some() || settings.retention.max_messages.is_some();
        let (folder, mut after) = (self.path.log(), None);
        let (mut garbage, mut segments) = (Vec::new(), Vec::new());
        loop {
            let (objects, more) = self.shared.backend.objects(&folder, after.as_ref(), PAGE).await?;
            after = objects.last().map(|last| last.name.clone());
            for listed in objects {
                match layout::number(listed.name.last()) {
                    Some(number) if number < first => garbage.push(listed.name),
                    Some(number) => segments.push((number, listed)),
                    None => {}
                }
            }
            if !more || after.is_none() || !whole {
                return Ok((garbage, segments));
            }
        }
    }

    async fn first_kept(
        &self,
        segments: &[(u64, Listed)],
        settings: &StreamSettings,
        now: Timestamp,
        slack: Duration,
    ) -> Result<Option<u64>> {
        let count = match settings.retention.max_messages {
            Some(most) => {
                let keep_from = self.tail().await?.next.offset.saturating_sub(most);
                let (.., found) = self.search(|segment| segment.end() > keep_from).await?;
                found.map(|segment| segment.number)
            }
            None => None,
        };
        Ok(first_kept(segments, settings, now, slack, count))
    }

    /// Everybody who keeps messages. What cannot be read is an error, and nothing is trimmed.
    async fn keepers(&self, settings: &StreamSettings, first: u64) -> Result<Vec<Keeper>> {
        let backend = &self.shared.backend;
        let mut keepers = Vec::new();
        if settings.archive.is_some() {
            let archived = sealed::read::<Archived>(backend, &self.path.archive()).await?;
            let archived = archived.as_ref().map(body).filter(|archived| archived.settled);
            let from = archived.map_or(first, |archived| archived.cursor.number);
            keepers.push(Keeper { who: "the archiver".to_owned(), from });
        }
        for (group, record) in self.groups().await? {
            let GroupBody { cursor, settled, expired_ms, .. } = body(&record);
            if expired_ms.is_none() {
                let from = if *settled { cursor.number } else { first };
                keepers.push(Keeper { who: format!("group {group}"), from });
            }
        }
        Ok(keepers)
    }

    /// All groups of this partition.
    pub(crate) async fn groups(&self) -> Result<Vec<(GroupName, Base<GroupBody>)>> {
        let (folder, mut after) = (self.path.groups(), None);
        let mut groups = Vec::new();
        loop {
            let (objects, more) = self.shared.backend.objects(&folder, after.as_ref(), PAGE).await?;
            for listed in &objects {
                let group = listed.name.last().strip_suffix(".json").and_then(|group| group.parse::<GroupName>().ok());
                let Some(group) = group else { continue };
                if let Some(record) = sealed::read(&self.shared.backend, &listed.name).await? {
                    groups.push((group, record));
                }
            }
            after = objects.last().map(|last| last.name.clone());
            if !more || after.is_none() {
                return Ok(groups);
            }
        }
    }

    /// Lets go of groups that have shown no sign of life for too long by the store's own times.
    async fn expire_groups(
        &self,
        settings: &StreamSettings,
        now: Timestamp,
        slack: Duration,
        dry_run: bool,
        report: &mut Trimmed,
    ) -> Result<()> {
        for (group, record) in self.groups().await? {
            let is_over = record.modified().is_some_and(|at| now.since(at) > settings.group_expiry + slack);
            if !is_over || body(&record).expired_ms.is_some() {
                continue;
            }
            let cursor = body(&record).cursor;
            let lag = self.tail().await?.next.offset.saturating_sub(cursor.offset);
            tracing::warn!(stream = %self.path.stream, %group, lag, from = cursor.offset, "a group has expired");
            report.expired.push(ExpiredGroup { group: group.to_string(), unacknowledged_from: cursor.offset, lag });
            if !dry_run {
                let seen = body(&record).clone();
                expire(self, &group, |there| *there == seen).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Retention;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Segments of 10 bytes, received an hour apart, the last one at hour `count - 1`.
    fn segments(count: i64) -> Vec<(u64, Listed)> {
        let listed = |number: i64| Listed {
            name: Name::new(format!("{number}")),
            size: 10,
            modified: Timestamp::from_millis(number * 3_600_000),
        };
        (0..count).map(|number| (number as u64, listed(number))).collect()
    }

    fn kept(retention: Retention, now_hours: i64, count: Option<u64>) -> Option<u64> {
        let settings = StreamSettings::default().retention(retention);
        first_kept(&segments(10), &settings, Timestamp::from_millis(now_hours * 3_600_000), Duration::ZERO, count)
    }

    #[test]
    fn age_bytes_and_count_decide_and_the_last_segment_stays() {
        assert_eq!(kept(Retention::forever(), 1000, None), Some(0));
        assert_eq!(kept(Retention::of_age(5 * HOUR), 9, None), Some(4), "five hours exactly is not more");
        assert_eq!(kept(Retention::of_age(5 * HOUR), 1000, None), Some(9));
        let bytes = Retention { max_bytes: Some(35), ..Retention::default() };
        assert_eq!(kept(bytes.clone(), 1000, None), Some(6), "never early: what stays is at least so much");
        assert_eq!(kept(Retention { max_bytes: Some(0), ..bytes }, 1000, None), Some(9));
        assert_eq!(kept(Retention::forever(), 1000, Some(3)), Some(3));
        assert_eq!(first_kept(&[], &StreamSettings::default(), Timestamp::default(), HOUR, None), None);
    }

    #[test]
    fn nothing_younger_than_an_hour_goes() {
        let nothing = Retention { max_bytes: Some(0), max_age: Some(Duration::ZERO), ..Retention::default() };
        assert_eq!(kept(nothing.clone(), 5, Some(9)), Some(4));
        let settings = StreamSettings::default().retention(nothing);
        let now = Timestamp::from_millis(5 * 3_600_000);
        assert_eq!(first_kept(&segments(10), &settings, now, HOUR, None), Some(3), "nor by clocks that differ");
    }
}
