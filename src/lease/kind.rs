//! Leases as a kind of record: what the sweeper, fsck and `store.json` know of them.

use super::{
    ended::{State, Watched},
    engine::Engine,
    layout,
    operation::Operation,
    record, settings,
    tidy::SessionFolders,
};
use crate::{
    Decoded, Error, Hour, Key, Namespace, Result,
    kind::{Chore, Content, Context, Declaration, Entry, Finding, Kind, Object, Step, Swept, Verdict},
    storage::{Name, cas::Slot},
    sync::Locked as _,
};
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Of leases that could not be judged, so many are remembered from one pass to the next.
const MOST_WATCHED: usize = 10_000;

/// How long after the end of its hour the lease of an entry has certainly been over for as long as stamps need.
const SETTLED_AFTER: Duration = Duration::from_secs(300);

pub(crate) static DECLARATION: Declaration =
    Declaration { name: "lease", folders: layout::folders, is_record: layout::is_record, shared: settings::RULES };

#[derive(Debug)]
pub(crate) struct LeaseKind {
    pub(super) engine: Arc<Engine>,
    /// What could not be judged by clocks, by the record's name. Found unchanged for long enough, it has ended.
    watched: Mutex<BTreeMap<Name, Watched>>,
    /// The folders of sessions that have ended.
    pub(super) folders: SessionFolders,
}

impl LeaseKind {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let folders = SessionFolders::new(engine.now().moment);
        Self { engine, watched: Mutex::default(), folders }
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<Name, Watched>> {
        self.watched.locked()
    }

    /// Remembers a lease that is in the way and cannot be judged.
    fn watch(&self, name: Name, there: Watched) {
        let mut watched = self.watched();
        if watched.len() < MOST_WATCHED || watched.contains_key(&name) {
            let first = watched.get(&name).copied();
            watched.insert(name, there.or_since(first));
        }
    }

    /// The key that an entry stands for; where its name is a hash, only the record says. `None` if there is no record.
    async fn key(&self, entry: &Entry<'_>) -> Result<Option<Key>> {
        match Key::from_name(entry.name) {
            Ok(Decoded::Key(key)) => return Ok(Some(key)),
            Ok(Decoded::Hashed) => {}
            Err(error) => return Err(Error::corrupt(error.to_string())),
        }
        let name = layout::record(&entry.folder.top, entry.name);
        let Some(fetched) = self.engine.backend.get(&name).await? else { return Ok(None) };
        let unreadable = |why| Error::corrupt(format!("the record {name} cannot be read: {why}"));
        let (key, _) = record::decode(fetched.body).map_err(unreadable)?;
        if key.name() != entry.name {
            return Err(Error::corrupt(format!("the record {name} is that of another key, {key}")));
        }
        Ok(Some(key))
    }
}

#[async_trait]
impl Kind for LeaseKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
        let namespace = Namespace::trusted(&object.folder.top);
        match object.folder.content {
            Content::Records => self.check_record(object, namespace, cx.repairs()).await,
            Content::Filed => self.check_session_entry(object, namespace, cx.repairs()).await,
            _ => self.check_entry(object, namespace, cx.repairs()).await,
        }
    }

    fn chores(&self, tops: &[String]) -> Vec<Chore> {
        self.folders.chores(tops, self.engine.now().moment)
    }

    async fn step(&self, _chore: &Chore, cx: &Context) -> Result<Step> {
        self.tidy(cx).await
    }

    fn swept(&self, swept: &Swept) {
        self.engine.counters.cleared_by_sweeper(swept.cleared);
    }

    async fn settle(&self, entry: &Entry<'_>, cx: &Context) -> Result<Verdict> {
        let dry_run = cx.dry_run();
        let engine = &self.engine;
        let Some(key) = self.key(entry).await? else { return Ok(Verdict::Stale) };
        let of_key = engine.keys.get(&Namespace::trusted(&entry.folder.top), &key);
        if !dry_run {
            // One time object for all entries of a run: it is written before their records are read.
            engine.backend.stamp_from(entry.hour.end().plus(SETTLED_AFTER)).await?;
        }
        // From before the read until after the swap: nothing of this process comes in between.
        let state = engine.lock_key(&of_key).await?;
        let mut operation = Operation::new(engine, &of_key, state);
        let name = of_key.slot.name();
        let watched = self.watched().get(&name).and_then(|watched| watched.long_enough(engine.now().moment));
        operation.read().await?;
        let view = operation.view_now();
        let session = layout::is_session(&entry.folder.top, &key);
        let Some(lease) = view.lease() else {
            // The key of a session is never granted again: once it is free, its record is of no use to anybody. Whatever is
            // filed under it goes first.
            let emptied =
                layout::session_of(&entry.folder.top, &key).is_none_or(|id| self.folders.is_empty(id, dry_run));
            if session && !emptied {
                return Ok(Verdict::Kept);
            }
            let delete = session && operation.state().record().is_some();
            return Ok(if delete { Verdict::DeleteFirst(vec![name]) } else { Verdict::Stale });
        };
        // A lease under a session has its entry elsewhere.
        if lease.session.is_some() || Hour::of(lease.expires)? > entry.hour {
            return Ok(Verdict::Stale);
        }
        let there = Watched::new(lease, view.readings.now.moment, &view.bounds());
        if !dry_run && engine.rules.host {
            operation.second_look(watched).await?;
        }
        match operation.view_now().state(watched) {
            State::Ended(_) => {}
            // It looks over, and the second witness is not asked.
            State::MayHaveEnded(_) if dry_run => {}
            _ => {
                self.watch(name, there);
                return Ok(Verdict::Kept);
            }
        }
        if dry_run {
            return Ok(Verdict::Cleared);
        }
        self.watched().remove(&name);
        let cleared = operation.clear(watched, true).await;
        if cleared.is_err() {
            operation.settled();
            operation.state().forget();
        }
        // The next pass finds the record of a session free, and deletes it.
        Ok(if cleared? && !session { Verdict::Cleared } else { Verdict::Kept })
    }
}
