//! How leases are checked for damage.

use super::{
    OURS,
    engine::Engine,
    mend::{Closed, Damaged, Found, MendSlot},
    record::{self, KeySlot},
};
use crate::{
    Bucket, Decoded, Error, ErrorKind, Key, Namespace, Result,
    fsck::{Checkable, Content, Damage, Finding, Folder},
    index,
    store::{
        Name,
        cas::{self, Record as _},
    },
};
use async_trait::async_trait;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct LeaseCheck(pub(crate) Arc<Engine>);

#[async_trait]
impl Checkable for LeaseCheck {
    fn folders(&self, top: &str) -> Vec<Folder> {
        if Namespace::new(top).is_err() && top != OURS {
            return Vec::new();
        }
        let folder = |path: String, content| Folder { label: top.to_owned(), path, content };
        vec![folder(format!("{top}/meta/"), Content::Records), folder(index::lease_folder(top), Content::Entries)]
    }

    async fn check(&self, folder: &Folder, name: &Name, repair: Option<&str>) -> Result<Option<Finding>> {
        let namespace = Namespace::trusted(&folder.label);
        match folder.content {
            Content::Records => self.check_record(folder, namespace, name, repair).await,
            _ => self.check_entry(folder, namespace, name, repair).await,
        }
    }
}

impl LeaseCheck {
    async fn check_record(
        &self,
        folder: &Folder,
        namespace: Namespace,
        name: &Name,
        repair: Option<&str>,
    ) -> Result<Option<Finding>> {
        let short = name.as_str().strip_prefix(&folder.path).and_then(|name| name.strip_suffix(".pb"));
        let Some((short, decoded)) = short.and_then(|short| Some((short, Key::from_name(short).ok()?))) else {
            return Ok(Some(Finding::unknown(name)));
        };
        let key = match decoded {
            Decoded::Key(key) => Some(key),
            Decoded::Hashed => self.hashed_key(name, short).await?,
        };
        let Some(key) = key else {
            let why = "its key is too long for its name, and cannot be read";
            return Ok(Some(
                Finding::new(Damage::Unreadable, name, why)
                    .advise("whoever knows the key can free it: leasehold release KEY --force --reason TEXT"),
            ));
        };
        let slot = KeySlot { namespace, key };
        let seen = match cas::read(&self.0.backend, &slot).await {
            Ok(Some(seen)) => seen,
            // Nothing of ours deletes records; an operator may.
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => return self.unreadable(&slot, name, repair).await,
            Err(error) => return Err(error),
        };
        if let Err(error) = seen.record().must_be_ours(&slot.key) {
            let later = Finding::new(Damage::LaterFormat, name, error.to_string());
            return Ok(Some(later.key(&slot.key).harmless()));
        }
        let Some(lease) = &seen.record().lease else { return Ok(None) };
        let hour = Bucket::of(lease.expires)?;
        let entry = index::lease_entry(&slot.namespace, &slot.key, hour);
        if self.0.backend.get(&entry).await?.is_some() {
            return Ok(None);
        }
        // It may have been cleared and swept since it was read.
        let again = cas::read(&self.0.backend, &slot).await?;
        if again.is_none_or(|again| again.record().write_id() != seen.record().write_id()) {
            return Ok(None);
        }
        let missing = Finding::new(Damage::MissingEntry, &entry, format!("{} has a lease without an entry", slot.key));
        let missing = missing.key(&slot.key).advise("leasehold fsck --repair writes it");
        if repair.is_none() {
            return Ok(Some(missing));
        }
        // A hint: whatever became of the lease meanwhile, one too many does no harm.
        self.0.backend.file(&entry, index::lease_entry_body(&slot.key, lease.expires)).await?;
        Ok(Some(missing.repaired("the entry was written")))
    }

    async fn unreadable(&self, slot: &KeySlot, name: &Name, repair: Option<&str>) -> Result<Option<Finding>> {
        let seen = cas::read_twice(&self.0.backend, &MendSlot(slot.clone())).await;
        let why = match seen {
            Ok(Some(seen)) => match seen.record() {
                Found::Readable(_) => return Ok(None),
                Found::Damaged(damaged) if damaged.is_later => {
                    let found = Finding::new(Damage::Unreadable, name, damaged.why.clone()).key(&slot.key);
                    return Ok(Some(found.advise(
                        "it says that a later version wrote it: repair it with that one; if it is only damaged, \
                         leasehold release KEY --force --reason TEXT",
                    )));
                }
                Found::Damaged(damaged) => damaged.why.clone(),
            },
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
            Err(error) => return Err(error),
        };
        let found = Finding::new(Damage::Unreadable, name, why).key(&slot.key);
        let Some(by) = repair else {
            return Ok(Some(found.advise("leasehold fsck --repair moves it aside; the key stays closed for as long as somebody may believe in the old lease")));
        };
        let cell = self.0.cells.get(&slot.namespace, &slot.key);
        let reason = format!("fsck: {}", found.detail);
        match self.0.mend(&cell, &reason, by, Closed::WhileSomebodyMayBelieve).await {
            Ok(Some(mended)) => {
                let open = match mended.closed_until {
                    Some(until) => format!(
                        "closed until {until}, when nobody can believe in the old lease any more; release --force opens \
                         it before"
                    ),
                    None => "open at once: nobody can believe in the old lease any more".to_owned(),
                };
                Ok(Some(
                    found.repaired(format!("moved to {}; {open}; fences go on above {}", mended.aside, mended.fence)),
                ))
            }
            Ok(None) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                Ok(Some(found.advise(format!("could not be repaired: {error}"))))
            }
            Err(error) => Err(error),
        }
    }

    /// The key of a hashed name, from the record or from an entry, if either says one that has that name.
    async fn hashed_key(&self, name: &Name, short: &str) -> Result<Option<Key>> {
        let backend = &self.0.backend;
        let Some(fetched) = backend.get_whatever(name, &backend.coordination).await? else { return Ok(None) };
        if let Ok((key, _)) = record::decode(fetched.body.clone())
            && key.name() == short
        {
            return Ok(Some(key));
        }
        Ok(Damaged::key(&fetched.body, short))
    }

    async fn check_entry(
        &self,
        folder: &Folder,
        namespace: Namespace,
        name: &Name,
        repair: Option<&str>,
    ) -> Result<Option<Finding>> {
        let parsed = index::parse_entry(&folder.path, name);
        let Some((hour, short, decoded)) =
            parsed.and_then(|(hour, short)| Some((hour, short, Key::from_name(short).ok()?)))
        else {
            return Ok(Some(Finding::unknown(name)));
        };
        let backend = &self.0.backend;
        let record = Name::new(format!("{namespace}/meta/{short}.pb"));
        let there = async {
            match backend.get(&record).await {
                Ok(there) => Ok(there.is_some()),
                // Too large to be read, and there.
                Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
                Err(error) => Err(error),
            }
        };
        if there.await? {
            return Ok(None);
        }
        let missing = Finding::new(Damage::MissingRecord, name, "there is no record for this entry");
        let key = match decoded {
            Decoded::Key(key) => Some(key),
            Decoded::Hashed => backend.get(name).await?.and_then(|entry| index::key_in_entry(&entry.body)),
        };
        let Some(key) = key.filter(|key| key.name() == short) else {
            return Ok(Some(missing.advise("a sweep deletes it after its hour").harmless()));
        };
        let missing = missing.key(&key);
        if hour.end() <= self.0.now().wall {
            return Ok(Some(missing.advise("its hour is over: a sweep deletes it").harmless()));
        }
        let Some(by) = repair else {
            return Ok(Some(missing.advise(
                "its record was removed, or a process died while it acquired: leasehold fsck --repair makes one that \
                 nobody holds",
            )));
        };
        let cell = self.0.cells.get(&namespace, &key);
        match self.0.make_record(&cell, "fsck: an entry without its record", by).await {
            Ok(Some(fence)) => Ok(Some(missing.repaired(format!("a free record was made, with fence {fence}")))),
            // Somebody is just acquiring it.
            Ok(None) => Ok(None),
            Err(error) => Err(Error::new(error.kind(), format!("no record could be made for {key}: {error}"))),
        }
    }
}
