//! Queues as a kind of record: what the sweeper, fsck and `store.json` know of them.

use super::{core::Shared, layout::Layout, settings::QueueSlot};
use crate::{
    Hour, Namespace, Result,
    kind::{Chore, Content, Context, Declaration, Entry, Finding, Folder, Kind, Object, Rules, Step, Verdict},
    storage::cas,
};
use async_trait::async_trait;
use std::sync::Arc;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "job",
    folders,
    is_record: |below| below.ends_with("/queue.json") || below.contains("/ledger/"),
    shared: Rules::of(&[]),
};

fn folders(top: &str) -> Vec<Folder> {
    if Namespace::new(top).is_err() {
        return Vec::new();
    }
    vec![Folder { top: top.to_owned(), path: root(top), content: Content::Records }]
}

pub(super) fn root(top: &str) -> String {
    format!("{top}/queue/")
}

/// All queues of an opened store.
#[derive(Debug)]
pub(crate) struct JobKind(pub(crate) Arc<Shared>);

#[async_trait]
impl Kind for JobKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    /// Queues have no entries by the hour: dead letters stand under the hour of their expiry themselves.
    async fn settle(&self, _entry: &Entry<'_>, _cx: &Context) -> Result<Verdict> {
        Ok(Verdict::Kept)
    }

    /// Tidying is paid by work: only a process that has used queues looks at their dead letters.
    fn chores(&self, tops: &[String]) -> Vec<Chore> {
        if !self.0.has_queues() {
            return Vec::new();
        }
        let namespaces = tops.iter().filter(|top| Namespace::new(top.as_str()).is_ok());
        namespaces.map(|top| Chore { name: top.clone() }).collect()
    }

    /// Deletes one bulk of dead letters whose hour is over.
    async fn step(&self, chore: &Chore, cx: &Context) -> Result<Step> {
        let backend = &self.0.backend;
        let root = root(&chore.name);
        for queue in backend.folders(&root).await? {
            let dead = format!("{root}{queue}/dead/");
            for hour in backend.folders(&dead).await? {
                let Ok(ends) = hour.parse::<Hour>() else { continue };
                if cx.must_stop() {
                    return Ok(Step::Done);
                }
                if cx.dry_run() || !cx.clocks().are_past(ends.end()) {
                    continue;
                }
                let page = backend.page(&format!("{dead}{hour}/"), None, 1000).await?;
                if page.names.is_empty() {
                    continue;
                }
                let deleted = backend.delete(&page.names).await;
                return match deleted.error {
                    Some(error) => Err(error),
                    None => Ok(Step::More),
                };
            }
            if let Some(name) = super::queues::name_of(&queue).filter(|_| !cx.dry_run())
                && self.keep_to_the_cap(&chore.name, &name).await? == Step::More
            {
                return Ok(Step::More);
            }
        }
        Ok(Step::Done)
    }

    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
        super::check::check(&self.0, object, cx).await
    }
}

impl JobKind {
    /// Deletes one bulk of the oldest dead letters of a queue that has more than it may keep.
    async fn keep_to_the_cap(&self, namespace: &str, queue: &str) -> Result<Step> {
        let backend = &self.0.backend;
        let layout = Arc::new(Layout::new(namespace, queue)?);
        let slot = QueueSlot { layout: Arc::clone(&layout), queue: queue.into() };
        let Some(seen) = cas::read(backend, &slot).await? else { return Ok(Step::Done) };
        let settings = &seen.record().settings;
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (page, more) = backend.objects(&layout.dead(), after.as_ref(), 1000).await?;
            after = page.last().map(|object| object.name.clone());
            all.extend(
                page.into_iter().filter_map(|object| Some((layout.parse_letters(object.name.as_str())?, object))),
            );
            if !more || after.is_none() {
                break;
            }
        }
        // Those that expire first are the oldest, but for kinds that are kept for other times.
        all.sort_by_key(|(letter, listed)| (letter.hour, listed.modified));
        let mut jobs: u64 = all.iter().map(|(name, _)| u64::from(name.jobs)).sum();
        let mut bytes: u64 = all.iter().map(|(_, object)| object.size).sum();
        let (mut names, mut dropped) = (Vec::new(), 0);
        for (name, object) in all {
            if (jobs <= settings.dead_jobs && bytes <= settings.dead_bytes) || names.len() >= 1000 {
                break;
            }
            jobs -= u64::from(name.jobs);
            bytes -= object.size;
            dropped += u64::from(name.jobs);
            names.push(object.name);
        }
        if names.is_empty() {
            return Ok(Step::Done);
        }
        tracing::warn!(queue, dropped, "a queue has more dead letters than it may keep: the oldest were dropped");
        let deleted = backend.delete(&names).await;
        self.0.dead_dropped.fetch_add(dropped, std::sync::atomic::Ordering::Relaxed);
        deleted.error.map_or(Ok(Step::More), Err)
    }
}
