//! How leases are checked for damage.

use super::{
    LeaseKind, layout,
    mend::{Closed, Damaged, MaybeDamaged, MendSlot, make_record, mend},
    operation::{file, file_under},
    others,
    record::{self, KeySlot},
};
use crate::{
    Decoded, Error, ErrorKind, Hour, Key, Namespace, Result, index,
    kind::{Damage, Finding, Object},
    storage::{
        Name,
        cas::{self, Record as _},
    },
};

impl LeaseKind {
    pub(super) async fn check_record(
        &self,
        object: &Object<'_>,
        namespace: Namespace,
        repair: Option<&str>,
    ) -> Result<Option<Finding>> {
        let name = object.name;
        let short = layout::key_name(&object.folder.path, name);
        let Some((short, decoded)) = short.and_then(|short| Some((short, Key::from_name(short).ok()?))) else {
            // What is named like a record and cannot be one of ours had its name from an earlier version.
            return Ok(Some(if short.is_some() { Finding::older(name) } else { Finding::unknown(name) }));
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
        let seen = match cas::read(&self.engine.backend, &slot).await {
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
        let hour = Hour::of(lease.expires)?;
        let entry = match lease.session {
            Some(session) => layout::session_entry(&slot.namespace, &slot.key, session.id),
            None => layout::entry(&slot.namespace, &slot.key, hour),
        };
        if self.engine.backend.get(&entry).await?.is_some() {
            return Ok(None);
        }
        // It may have been cleared and swept since it was read.
        let again = cas::read(&self.engine.backend, &slot).await?;
        if again.is_none_or(|again| again.record().write_id() != seen.record().write_id()) {
            return Ok(None);
        }
        let missing = Finding::new(Damage::MissingEntry, &entry, format!("{} has a lease without an entry", slot.key));
        let missing = missing.key(&slot.key).advise("leasehold fsck --repair writes it");
        if repair.is_none() {
            return Ok(Some(missing));
        }
        // A hint: whatever became of the lease meanwhile, one too many does no harm.
        match lease.session {
            Some(session) => file_under(&self.engine, &slot, session, lease.expires).await?,
            None => file(&self.engine, &slot, hour, lease.expires).await?,
        }
        Ok(Some(missing.repaired("the entry was written")))
    }

    async fn unreadable(&self, slot: &KeySlot, name: &Name, repair: Option<&str>) -> Result<Option<Finding>> {
        let seen = cas::read_twice(&self.engine.backend, &MendSlot(slot.clone())).await;
        let why = match seen {
            Ok(Some(seen)) => match seen.record() {
                MaybeDamaged::Readable(_) => return Ok(None),
                MaybeDamaged::Damaged(damaged) if damaged.is_later => {
                    let found = Finding::new(Damage::Unreadable, name, damaged.why.clone()).key(&slot.key);
                    return Ok(Some(found.advise(
                        "it says that a later version wrote it: repair it with that one; if it is only damaged, \
                         leasehold release KEY --force --reason TEXT",
                    )));
                }
                MaybeDamaged::Damaged(damaged) => damaged.why.clone(),
            },
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
            Err(error) => return Err(error),
        };
        let found = Finding::new(Damage::Unreadable, name, why).key(&slot.key);
        let Some(by) = repair else {
            return Ok(Some(found.advise("leasehold fsck --repair moves it aside; the key stays closed for as long as somebody may believe in the old lease")));
        };
        if others::may_hold(&self.engine, slot).await? {
            return Ok(Some(found.advise(
                "it may be held under a session, whose process would not notice that it was replaced: end that process, or \
                 vouch that the key is not held: leasehold release KEY --force --reason TEXT",
            )));
        }
        let of_key = self.engine.keys.get(&slot.namespace, &slot.key);
        let reason = format!("fsck: {}", found.detail);
        match mend(&self.engine, &of_key, &reason, by, Closed::WhileSomebodyMayBelieve).await {
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
        let backend = &self.engine.backend;
        let Some(fetched) = backend.get_oversized(name, &backend.coordination).await? else { return Ok(None) };
        if let Ok((key, _)) = record::decode(fetched.body.clone())
            && key.name() == short
        {
            return Ok(Some(key));
        }
        Ok(Damaged::key(&fetched.body, short))
    }

    pub(super) async fn check_entry(
        &self,
        object: &Object<'_>,
        namespace: Namespace,
        repair: Option<&str>,
    ) -> Result<Option<Finding>> {
        let name = object.name;
        let parsed = index::parse_entry(&object.folder.path, name);
        let Some((hour, short, decoded)) =
            parsed.and_then(|(hour, short)| Some((hour, short, Key::from_name(short).ok()?)))
        else {
            return Ok(Some(Finding::unknown(name)));
        };
        let backend = &self.engine.backend;
        let record = layout::record(namespace.as_str(), short);
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
            Decoded::Hashed => backend.get(name).await?.and_then(|entry| layout::key_in_entry(&entry.body)),
        };
        let Some(key) = key.filter(|key| key.name() == short) else {
            return Ok(Some(missing.advise("a sweep deletes it after its hour").harmless()));
        };
        let missing = missing.key(&key);
        if hour.end() <= self.engine.now().wall {
            return Ok(Some(missing.advise("its hour is over: a sweep deletes it").harmless()));
        }
        let Some(by) = repair else {
            return Ok(Some(missing.advise(
                "its record was removed, or a process died while it acquired: leasehold fsck --repair makes one that \
                 nobody holds",
            )));
        };
        let of_key = self.engine.keys.get(&namespace, &key);
        match make_record(&self.engine, &of_key, "fsck: an entry without its record", by).await {
            Ok(Some(fence)) => Ok(Some(missing.repaired(format!("a free record was made, with fence {fence}")))),
            // Another process is just acquiring it.
            Ok(None) => Ok(None),
            Err(error) => Err(Error::new(error.kind(), format!("no record could be made for {key}: {error}"))),
        }
    }
}
