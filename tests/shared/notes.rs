//! A kind of record that lives in tests alone: notes that expire. Nothing in `src/` knows of it.
//!
//! `<namespace>/note/<name>` holds when a note ends, in milliseconds, and after a space when it was put off to, if it was;
//! `<namespace>/.note-index/<hour>/<name>` is its entry.

use async_trait::async_trait;
use leasehold::{
    Error, ErrorKind, Hour, Namespace, Result,
    clock::Timestamp,
    kind::{
        Chore, Content, Context, Damage, Declaration, Entry, Finding, Folder, Kind, Name, Object, Rules, SharedSetting,
        Step, Verdict,
    },
};
use leasehold_testkit::FaultStore;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// For how long a note is kept after it has ended.
pub(crate) const NOTE_KEPT: SharedSetting =
    SharedSetting::new("note_kept", Duration::from_secs(60), "How long notes are kept");

static DECLARATION: Declaration =
    Declaration { name: "note", folders, is_record: |below| !below.contains('/'), shared: Rules::of(&[NOTE_KEPT]) };

fn folders(top: &str) -> Vec<Folder> {
    let folder = |path, content| Folder { top: top.to_owned(), path, content };
    match Namespace::new(top) {
        Ok(_) => vec![
            folder(format!("{top}/note/"), Content::Records),
            folder(format!("{top}/.note-index/"), Content::Entries),
        ],
        Err(_) => Vec::new(),
    }
}

fn file(objects: &FaultStore, namespace: &str, name: &str, ends: Timestamp) {
    objects.put_object(&format!("{namespace}/.note-index/{}/{name}", Hour::of(ends).unwrap()), "");
}

/// Writes a note, entry first.
pub(crate) fn write(objects: &FaultStore, namespace: &str, name: &str, ends: Timestamp) {
    file(objects, namespace, name, ends);
    objects.put_object(&format!("{namespace}/note/{name}"), ends.as_millis().to_string());
}

/// The notes of a store.
#[derive(Debug)]
pub(crate) struct Notes {
    objects: FaultStore,
    /// Steps of the chore that were made, and how many it takes.
    pub(crate) steps: AtomicU64,
    pub(crate) chore_takes: AtomicU64,
}

impl Notes {
    pub(crate) fn new(objects: &FaultStore) -> Arc<Self> {
        Arc::new(Self { objects: objects.clone(), steps: AtomicU64::new(0), chore_takes: AtomicU64::new(1) })
    }

    /// When a note ends, and until when it was put off.
    fn read(&self, name: &str) -> Option<Result<(Timestamp, Option<Timestamp>)>> {
        let (body, _) = self.objects.object(name)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let millis = |text: &str| text.parse().map(Timestamp::from_millis);
        let mut parts = text.split(' ').map(millis);
        Some(match (parts.next(), parts.next().transpose()) {
            (Some(Ok(ends)), Ok(put_off)) => Ok((ends, put_off)),
            _ => Err(Error::new(ErrorKind::Corrupt, format!("{name} is no note"))),
        })
    }
}

#[async_trait]
impl Kind for Notes {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn settle(&self, entry: &Entry<'_>, cx: &Context) -> Result<Verdict> {
        let name = format!("{}/note/{}", entry.folder.top, entry.name);
        let Some(read) = self.read(&name) else { return Ok(Verdict::Stale) };
        let (ends, put_off) = read?;
        if Hour::of(ends)? > entry.hour {
            return Ok(Verdict::Stale);
        }
        if let Some(later) = put_off {
            if !cx.dry_run() {
                write(&self.objects, &entry.folder.top, entry.name, later);
            }
            return Ok(Verdict::Moved);
        }
        let over = cx.clocks().are_past(ends.plus(NOTE_KEPT.default)) && !cx.must_stop();
        Ok(if over { Verdict::DeleteFirst(vec![Name::new(name)]) } else { Verdict::Kept })
    }

    async fn check(&self, object: &Object<'_>, cx: &Context) -> Result<Option<Finding>> {
        let (top, short) = (&object.folder.top, object.name.last());
        if object.folder.content != Content::Records {
            let there = self.objects.object(&format!("{top}/note/{short}")).is_some();
            let missing = || Finding::new(Damage::MissingRecord, object.name, "an entry without its note").harmless();
            return Ok((!there).then(missing));
        }
        let ends = match self.read(object.name.as_str()) {
            Some(Ok((ends, _))) => ends,
            Some(Err(error)) => return Ok(Some(Finding::new(Damage::Unreadable, object.name, error.to_string()))),
            None => return Ok(None),
        };
        if self.objects.object(&format!("{top}/.note-index/{}/{short}", Hour::of(ends)?)).is_some() {
            return Ok(None);
        }
        let missing = Finding::new(Damage::MissingEntry, object.name, "a note without its entry");
        Ok(Some(match cx.repairs() {
            Some(_) => {
                file(&self.objects, top, short, ends);
                missing.repaired("the entry was written")
            }
            None => missing.advise("repair it"),
        }))
    }

    fn chores(&self, _tops: &[String]) -> Vec<Chore> {
        vec![Chore { name: "count".to_owned() }]
    }

    async fn step(&self, _chore: &Chore, _cx: &Context) -> Result<Step> {
        let made = self.steps.fetch_add(1, SeqCst) + 1;
        Ok(if made < self.chore_takes.load(SeqCst) { Step::More } else { Step::Done })
    }
}
