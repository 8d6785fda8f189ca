//! Tidying what is left of sessions that have ended: the entries of leases that were held under them, then their records.

use super::{
    LeaseKind, layout,
    operation::Operation,
    others,
    record::{self, KeySlot},
};
use crate::{
    Error, Key, Namespace, Result, SessionId,
    clock::Moment,
    kind::{Chore, Context, Damage, Finding, Object, Step},
    storage::{
        Name,
        cas::{self, Slot},
        layout::OURS,
    },
    sync::Locked as _,
};
use futures_util::{StreamExt, stream};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// How many entries one step looks at, and how many of them side by side.
const PAGE: usize = 64;
const SIDE_BY_SIDE: usize = 16;

/// How often all folders are looked at, whether or not a session is known to have ended: an entry may land after its folder
/// was emptied.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(24 * 3600);

/// The folders of sessions that have ended, as far as a process knows.
#[derive(Debug)]
pub(super) struct SessionFolders(Mutex<Folders>);

#[derive(Debug)]
struct Folders {
    /// The namespaces, as the last pass found them.
    tops: Vec<String>,
    /// To be emptied.
    due: BTreeSet<SessionId>,
    /// Found empty: their session's record may go.
    empty: BTreeSet<SessionId>,
    looked: Moment,
}

impl SessionFolders {
    pub(super) fn new(now: Moment) -> Self {
        let (due, empty) = (BTreeSet::new(), BTreeSet::new());
        Self(Mutex::new(Folders { tops: Vec::new(), due, empty, looked: now }))
    }

    fn lock(&self) -> MutexGuard<'_, Folders> {
        self.0.locked()
    }

    /// Whether nothing is filed any more under a session that has ended. If that is not known, it is found out by a chore.
    pub(super) fn is_empty(&self, id: SessionId, dry_run: bool) -> bool {
        let mut folders = self.lock();
        let empty = folders.empty.remove(&id);
        if !empty && !dry_run {
            folders.due.insert(id);
        }
        empty
    }

    /// One chore, where a session is known to have ended or a day has passed.
    pub(super) fn chores(&self, tops: &[String], now: Moment) -> Vec<Chore> {
        let mut folders = self.lock();
        folders.tops = tops.iter().filter(|top| Namespace::new(top.as_str()).is_ok()).cloned().collect();
        let wanted = !folders.due.is_empty() || now.since(folders.looked) >= LOOKED_AT_EVERY;
        wanted.then(|| Chore { name: "sessions".to_owned() }).into_iter().collect()
    }
}

impl LeaseKind {
    /// One step: a page of one folder of a session that has ended.
    pub(super) async fn tidy(&self, cx: &Context) -> Result<Step> {
        if cx.dry_run() || cx.must_stop() {
            return Ok(Step::Done);
        }
        let now = self.engine.now().moment;
        let (tops, due, look) = {
            let folders = self.folders.lock();
            (folders.tops.clone(), folders.due.first().copied(), now.since(folders.looked) >= LOOKED_AT_EVERY)
        };
        if look {
            for top in &tops {
                self.look_at_folders(top).await?;
            }
            self.folders.lock().looked = now;
            return Ok(Step::More);
        }
        let Some(id) = due else { return Ok(Step::Done) };
        for top in &tops {
            let folder = layout::session_folder(top, id);
            let page = self.engine.backend.page(&folder, None, PAGE).await?;
            if !page.names.is_empty() {
                let deleted = self.empty(top, id, page.names).await?;
                // What could not be settled is left to the next pass, and with it the session's record.
                if deleted == 0 {
                    self.folders.lock().due.remove(&id);
                }
                return Ok(Step::More);
            }
        }
        let mut folders = self.folders.lock();
        folders.due.remove(&id);
        folders.empty.insert(id);
        Ok(Step::More)
    }

    /// Finds folders whose session has ended, or is gone.
    async fn look_at_folders(&self, top: &str) -> Result<()> {
        for folder in self.engine.backend.folders(&layout::session_index(top)).await? {
            let Ok(id) = folder.parse::<SessionId>() else { continue };
            let own = KeySlot { namespace: Namespace::trusted(OURS), key: layout::session_key(id)? };
            let seen = cas::read(&self.engine.backend, &own).await?;
            if seen.is_none_or(|seen| seen.record().lease.is_none()) {
                self.folders.lock().due.insert(id);
            }
        }
        Ok(())
    }

    /// Clears what still names the session, and deletes the entries. Says how many.
    async fn empty(&self, top: &str, id: SessionId, names: Vec<Name>) -> Result<usize> {
        let settling: Vec<_> = names.into_iter().map(|name| self.settle_under(top, id, name)).collect();
        let settled: Vec<Result<Option<Name>>> = stream::iter(settling).buffered(SIDE_BY_SIDE).collect().await;
        let names = settled.into_iter().filter_map(|settled| match settled {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(session = %id, %error, "a lease under a session that has ended could not be cleared: left to the next pass");
                None
            }
        });
        let names: Vec<Name> = names.collect();
        let deleted = self.engine.backend.delete(&names).await;
        deleted.error.map_or(Ok(names.len()), Err)
    }

    /// The entry, if it stands for nothing any more: the key's record does not name the session, or was cleared just now.
    async fn settle_under(&self, top: &str, id: SessionId, name: Name) -> Result<Option<Name>> {
        let namespace = Namespace::trusted(top);
        let record = layout::record(top, name.last());
        let Some(fetched) = self.engine.backend.get(&record).await? else { return Ok(Some(name)) };
        let (key, found) = record::decode(fetched.body)
            .map_err(|why| Error::corrupt(format!("the record {record} cannot be read: {why}")))?;
        if found.lease.is_none_or(|lease| lease.session.is_none_or(|session| session.id != id)) {
            return Ok(Some(name));
        }
        Ok(self.clear_under(namespace, key, id).await?.then_some(name))
    }

    /// Clears a lease under a session if that has ended. True if the key's record does not name the session any more.
    async fn clear_under(&self, namespace: Namespace, key: Key, id: SessionId) -> Result<bool> {
        let engine = &self.engine;
        let entry = engine.keys.get(&namespace, &key);
        let state = engine.lock_key(&entry).await?;
        let mut operation = Operation::new(engine, &entry, state);
        operation.read().await?;
        others::second_look(&mut operation, None).await?;
        let cleared = operation.clear(None, true).await;
        if cleared.is_err() {
            operation.settled();
            operation.state().forget();
        }
        if cleared? {
            engine.counters.cleared_by_sweeper(1);
        }
        entry.queue.wake();
        let named = operation.known().lease().and_then(|lease| lease.session);
        Ok(named.is_none_or(|session| session.id != id))
    }

    /// What fsck finds about an entry under a session.
    pub(super) async fn check_session_entry(
        &self,
        object: &Object<'_>,
        namespace: Namespace,
        repair: Option<&str>,
    ) -> Result<Option<Finding>> {
        let name = object.name;
        let parsed = layout::parse_session_entry(&object.folder.path, name);
        let Some((id, short)) = parsed.filter(|(_, short)| Key::from_name(short).is_ok()) else {
            return Ok(Some(Finding::unknown(name)));
        };
        let record = layout::record(namespace.as_str(), short);
        let Some(fetched) = self.engine.backend.get(&record).await? else { return Ok(None) };
        // A record that cannot be read is found where it is.
        let Ok((key, found)) = record::decode(fetched.body) else { return Ok(None) };
        let Some(session) = found.lease.and_then(|lease| lease.session).filter(|session| session.id == id) else {
            return Ok(None);
        };
        let slot = KeySlot { namespace, key };
        if slot.name() != record || others::look(&self.engine, session).await? == others::Look::Alive {
            return Ok(None);
        }
        let ended =
            Finding::new(Damage::EndedWithOther, name, format!("{} is held under a session that is over", slot.key));
        let ended = ended.key(&slot.key).harmless();
        if repair.is_none() {
            return Ok(Some(ended.advise("whoever wants the key next takes it; a sweep clears it")));
        }
        Ok(Some(match self.clear_under(slot.namespace, slot.key, id).await? {
            true => ended.repaired("the lease was cleared"),
            false => ended.advise("its session has not ended for everybody yet: a sweep clears it"),
        }))
    }
}
