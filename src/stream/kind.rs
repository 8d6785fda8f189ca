//! Streams as a kind of record: what the sweeper, fsck and `store.json` know of them.

use super::{
    Shared, StreamName,
    layout::{self, Parsed, PartitionPath},
    partition::Partition,
    records::{Archived, GroupBody, MetaBody, StreamBody},
};
use crate::{
    ErrorKind, Namespace, Result,
    kind::{
        Chore, Context, Damage, Declaration, Entry, Finding, Kind, Object, Rules, SharedSettings, Step, Stop, Verdict,
    },
    record::sealed::{self, Body, body},
    storage::Name,
    sync::Locked as _,
};
use async_trait::async_trait;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "stream",
    folders: layout::folders,
    is_record: |below| layout::parse(&Namespace::default(), below).is_some(),
    shared: Rules { settings: &[], may_change, stop },
};

fn may_change(_: &SharedSettings, _: &SharedSettings) -> Result<()> {
    Ok(())
}

fn stop(_: &SharedSettings, _: &SharedSettings) -> Stop {
    Stop::default()
}

#[derive(Debug)]
pub(crate) struct StreamKind {
    shared: Arc<Shared>,
    /// The partitions that are left to be trimmed in this pass, by namespace.
    left: Mutex<BTreeMap<String, VecDeque<PartitionPath>>>,
}

impl StreamKind {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, left: Mutex::default() }
    }

    fn partition(&self, path: PartitionPath) -> Partition {
        Partition { shared: Arc::clone(&self.shared), path }
    }

    /// Every partition of every stream of a namespace.
    async fn partitions(&self, namespace: &str) -> Result<VecDeque<PartitionPath>> {
        let backend = &self.shared.backend;
        let Ok(namespace) = Namespace::new(namespace) else { return Ok(VecDeque::new()) };
        let mut partitions = VecDeque::new();
        for stream in backend.folders(&layout::folder(namespace.as_str())).await? {
            let Ok(stream) = stream.parse::<StreamName>() else { continue };
            let name = layout::settings(&namespace, &stream);
            let Some(settings) = sealed::read::<StreamBody>(backend, &name).await? else { continue };
            for number in 0..body(&settings).settings.partitions {
                partitions.push_back(PartitionPath { namespace: namespace.clone(), stream: stream.clone(), number });
            }
        }
        Ok(partitions)
    }

    /// Whether a record can be read.
    async fn check_record<T: Body>(&self, name: &Name) -> Result<Option<Finding>> {
        self.judge(name, sealed::read::<T>(&self.shared.backend, name).await.map(drop))
    }

    fn judge(&self, name: &Name, read: Result<()>) -> Result<Option<Finding>> {
        match read {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let advice = "nothing of this partition is trimmed until an operator has looked at it";
                Ok(Some(Finding::new(Damage::Unreadable, name, error.to_string()).advise(advice)))
            }
            Err(error) if error.kind() == ErrorKind::Config => {
                Ok(Some(Finding::new(Damage::LaterFormat, name, error.to_string()).harmless()))
            }
            Err(error) => Err(error),
        }
    }

    async fn check_segment(&self, name: &Name, path: PartitionPath, number: u64) -> Result<Option<Finding>> {
        let partition = self.partition(path);
        let read = partition.segment(number).await;
        if matches!(read, Ok(None)) {
            return Ok(None);
        }
        if read.is_ok() && number < partition.beginning().await?.first.number {
            let below = Finding::new(Damage::OlderLayout, name, "below the beginning of its log: nobody reads it");
            return Ok(Some(below.advise("the next trim deletes it").harmless()));
        }
        self.judge(name, read.map(drop))
    }
}

#[async_trait]
impl Kind for StreamKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    // Streams file no entries: what is old is found by listing logs.
    async fn settle(&self, _: &Entry<'_>, _: &Context) -> Result<Verdict> {
        Ok(Verdict::Kept)
    }

    async fn check(&self, object: &Object<'_>, _: &Context) -> Result<Option<Finding>> {
        let name = object.name;
        let below = name.as_str().strip_prefix(&object.folder.path);
        let parsed = Namespace::new(&object.folder.top).ok().and_then(|namespace| layout::parse(&namespace, below?));
        match parsed {
            None => Ok(Some(Finding::unknown(name))),
            Some(Parsed::Settings(_)) => self.check_record::<StreamBody>(name).await,
            Some(Parsed::Meta(_)) => self.check_record::<MetaBody>(name).await,
            Some(Parsed::Group(..)) => self.check_record::<GroupBody>(name).await,
            Some(Parsed::Archive(_)) => self.check_record::<Archived>(name).await,
            Some(Parsed::Segment(path, number)) => self.check_segment(name, path, number).await,
        }
    }

    fn chores(&self, tops: &[String]) -> Vec<Chore> {
        let namespaces = tops.iter().filter(|top| Namespace::new(top).is_ok());
        namespaces.map(|top| Chore { name: format!("trim {top}") }).collect()
    }

    async fn step(&self, chore: &Chore, cx: &Context) -> Result<Step> {
        let Some(namespace) = chore.name.strip_prefix("trim ") else { return Ok(Step::Done) };
        let left = || self.left.locked();
        let known = left().get_mut(namespace).map(VecDeque::pop_front);
        let Some(next) = known else {
            let partitions = self.partitions(namespace).await?;
            if partitions.is_empty() {
                return Ok(Step::Done);
            }
            left().insert(namespace.to_owned(), partitions);
            return Ok(Step::More);
        };
        let Some(path) = next else {
            left().remove(namespace);
            return Ok(Step::Done);
        };
        // One that cannot be trimmed keeps none of the others waiting.
        if let Err(error) = self.partition(path.clone()).trim(cx.dry_run()).await {
            tracing::warn!(stream = %path.stream, partition = path.number, %error, "could not be trimmed");
            self.shared.counters.trims_failed(1);
        }
        Ok(Step::More)
    }
}
