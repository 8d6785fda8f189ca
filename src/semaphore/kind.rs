//! Semaphores as a kind of record: what the sweeper and fsck know of them.

use super::{
    engine::Engine,
    layout,
    record::{self, FORMAT, SemaphoreSlot},
};
use crate::{
    Decoded, Error, ErrorKind, Hour, Key, Namespace, Result, index,
    kind::{Content, Context, Damage, Declaration, Entry, Finding, Kind, Object, Rules, Stop, Verdict},
    storage::cas::{self, Record as _},
};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};

/// How long after the end of its hour a slot of an entry has certainly been over for as long as stamps need.
const SETTLED_AFTER: Duration = Duration::from_secs(300);

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "semaphore",
    folders: layout::folders,
    is_record: layout::is_record,
    shared: Rules { settings: &[], may_change: |_, _| Ok(()), stop: |_, _| Stop::default() },
};

#[derive(Debug)]
pub(crate) struct SemaphoreKind(pub(crate) Arc<Engine>);

impl SemaphoreKind {
    /// The semaphore of a [name](Key::name); where that is a hash, only the record says. `None` if there is no record.
    async fn key(&self, top: &str, short: &str) -> Result<Option<Key>> {
        match Key::from_name(short) {
            Ok(Decoded::Key(key)) => return Ok(Some(key)),
            Ok(Decoded::Hashed) => {}
            Err(error) => return Err(Error::corrupt(error.to_string())),
        }
        let name = layout::record(top, short);
        let Some(fetched) = self.0.terms.backend().get(&name).await? else { return Ok(None) };
        let unreadable = |why| Error::corrupt(format!("the record {name} cannot be read: {why}"));
        let (key, _) = record::decode(fetched.body).map_err(unreadable)?;
        if key.name() != short {
            return Err(Error::corrupt(format!("the record {name} is that of another semaphore, {key}")));
        }
        Ok(Some(key))
    }

    async fn check_record(&self, object: &Object<'_>, repairs: bool) -> Result<Option<Finding>> {
        let (name, top) = (object.name, object.folder.top.as_str());
        let Some(short) = layout::key_name(&object.folder.path, name).filter(|short| Key::from_name(short).is_ok())
        else {
            return Ok(Some(Finding::unknown(name)));
        };
        let unreadable = |error: Error| {
            let advice = "stop every process that may hold a slot for max_ttl + margin, then move it away: the next one that \
                          asks makes it again, with higher fences";
            Finding::new(Damage::Unreadable, name, error.to_string()).advise(advice)
        };
        let key = match self.key(top, short).await {
            Ok(Some(key)) => key,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Some(unreadable(error))),
            Err(error) => return Err(error),
        };
        let slot = SemaphoreSlot { namespace: Namespace::trusted(top), key };
        let backend = self.0.terms.backend();
        let seen = match cas::read(backend, &slot).await {
            Ok(Some(seen)) => seen,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Some(unreadable(error).key(&slot.key))),
            Err(error) => return Err(error),
        };
        if seen.record().format > FORMAT {
            let later = Finding::new(Damage::LaterFormat, name, format!("it has format {}", seen.record().format));
            return Ok(Some(later.key(&slot.key).harmless()));
        }
        for holding in &seen.record().holders {
            let expires = holding.lease.expires;
            let entry = layout::entry(&slot.namespace, &slot.key, Hour::of(expires)?);
            if backend.get(&entry).await?.is_some() {
                continue;
            }
            // It may have been given back or swept since it was read.
            let again = cas::read(backend, &slot).await?;
            if again.is_none_or(|again| again.record().write_id() != seen.record().write_id()) {
                return Ok(None);
            }
            let missing =
                Finding::new(Damage::MissingEntry, &entry, format!("{} has a slot without an entry", slot.key));
            let missing = missing.key(&slot.key).advise("leasehold fsck --repair writes it");
            if !repairs {
                return Ok(Some(missing));
            }
            // A hint: whatever became of the slot meanwhile, one too many does no harm.
            backend.file(&entry, layout::entry_body(&slot.key, expires)).await?;
            return Ok(Some(missing.repaired("the entry was written")));
        }
        Ok(None)
    }

    async fn check_entry(&self, object: &Object<'_>) -> Result<Option<Finding>> {
        let name = object.name;
        let parsed = index::parse_entry(&object.folder.path, name).filter(|(_, short)| Key::from_name(short).is_ok());
        let Some((_, short)) = parsed else { return Ok(Some(Finding::unknown(name))) };
        let record = layout::record(&object.folder.top, short);
        match self.0.terms.backend().get(&record).await {
            Ok(Some(_)) => Ok(None),
            Ok(None) => {
                let missing = Finding::new(Damage::MissingRecord, name, "there is no record for this entry");
                Ok(Some(missing.advise("a sweep deletes it after its hour").harmless()))
            }
            // Too large to be read, and there.
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Kind for SemaphoreKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn settle(&self, entry: &Entry<'_>, cx: &Context) -> Result<Verdict> {
        let top = entry.folder.top.as_str();
        let Some(key) = self.key(top, entry.name).await? else { return Ok(Verdict::Stale) };
        if !cx.dry_run() {
            // One time object for all entries of a run: it is written before their records are read.
            self.0.terms.backend().stamp_from(entry.hour.end().plus(SETTLED_AFTER)).await?;
        }
        let cell = self.0.cell(&Namespace::trusted(top), &key);
        self.0.settle(&cell, entry.hour, cx.dry_run()).await
    }

    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
        match object.folder.content {
            Content::Records => self.check_record(object, cx.repairs().is_some()).await,
            _ => self.check_entry(object).await,
        }
    }
}
