//! Queues as a kind of record: what the sweeper, fsck and `store.json` know of them.

use super::{
    core::Shared,
    layout::{Layout, Listed},
    ledger,
};
use crate::{
    Hour, Namespace, Result,
    kind::{Chore, Content, Context, Damage, Declaration, Entry, Finding, Folder, Kind, Object, Rules, Step, Verdict},
    storage::Name,
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
        }
        Ok(Step::Done)
    }

    async fn check(&self, object: &Object<'_>, _cx: &Context) -> Result<Option<Finding>> {
        let below = object.name.as_str().strip_prefix(&object.folder.path).unwrap_or_default();
        let Some((queue, rest)) = below.split_once('/') else { return Ok(Some(Finding::unknown(object.name))) };
        let queue = match crate::Key::from_name(queue) {
            Ok(crate::Decoded::Key(key)) => String::from_utf8_lossy(key.as_bytes()).into_owned(),
            _ => return Ok(Some(Finding::unknown(object.name))),
        };
        let folder = rest.split('/').next().unwrap_or_default();
        match folder {
            "ledger" => self.check_ledger(object.name).await,
            "queue.json" | "dead" => Ok(None),
            "in" | "at" | "seg" => {
                let layout = Layout::new(&object.folder.top, &queue)?;
                let ours = layout.parse(object.name.as_str()) != Listed::Foreign
                    || layout.parse_seg(object.name.as_str()).is_some();
                Ok((!ours).then(|| Finding::unknown(object.name)))
            }
            _ => Ok(Some(Finding::unknown(object.name))),
        }
    }
}

impl JobKind {
    async fn check_ledger(&self, name: &Name) -> Result<Option<Finding>> {
        let Some(fetched) = self.0.backend.get(name).await? else { return Ok(None) };
        Ok(match ledger::decode(&fetched.body) {
            Ok(ledger) => ledger.check().err().map(|why| {
                Finding::new(Damage::Unreadable, name, why).advise("its jobs are not all in one place: report this")
            }),
            Err(ledger::Unusable::Later(format)) => {
                Some(Finding::new(Damage::LaterFormat, name, format!("format {format}")).harmless())
            }
            Err(ledger::Unusable::Damaged(why)) => Some(
                Finding::new(Damage::Unreadable, name, why)
                    .advise("nothing is run from this shard until the ledger is made again"),
            ),
        })
    }
}
