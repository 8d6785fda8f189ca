//! Writes and deletes: one at a time for a name, between all processes of the host.

use super::{
    blocking,
    disk::{Disk, is_at, lock_or_folder, open_lock},
    durable::Tag,
    error::{LocalError, STORE, from_io, is_full, is_missing, not_found},
    name::{Name, is_hour},
};
use crate::{
    clock::{Clock, Moment},
    timing::LONGEST_WRITE,
};
use object_store::{Error, PutMode, PutPayload, Result, UpdateVersion, path::Path as Location};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The lock of a share of the names: among the tasks of this process by the mutex, between processes by the file,
/// which is opened once, and neither renamed nor deleted.
pub(super) type Shard = Arc<tokio::sync::Mutex<Option<File>>>;

/// A sweeper removes a folder that is empty while a writer is about to fill it.
const TRIES: usize = 16;

impl Disk {
    pub(super) async fn put(self: &Arc<Self>, name: Name, body: PutPayload, mode: PutMode) -> Result<Tag> {
        self.in_turn(name, move |disk, name, caller| disk.put_locked(name, &body, &mode, caller)).await
    }

    /// Deletes one by one and flushes once. An entry that comes back after a power cut would do no harm, but somebody
    /// may delete what leads to it because it is gone.
    pub(super) async fn delete(self: &Arc<Self>, locations: Vec<Result<Location>>) -> Vec<Result<Location>> {
        let mut folders = BTreeSet::new();
        let mut answers = Vec::with_capacity(locations.len());
        for location in locations {
            let deleted = async {
                let name = Name::new(&self.root, &location?)?;
                let folder = name.folder.clone();
                let location = self.in_turn(name, Self::delete_locked).await?;
                folders.insert(folder);
                Ok(location)
            };
            answers.push(deleted.await);
        }
        let disk = Arc::clone(self);
        let flushed = blocking(move || {
            folders.iter().try_for_each(|folder| {
                // Fails, as it should, while there is anything in it.
                let removed = is_hour(folder) && fs::remove_dir(folder).is_ok();
                disk.sync_folder(if removed { folder.parent().unwrap_or(folder) } else { folder })
            })
        });
        if let Err(failed) = flushed.await {
            // The entries are gone, but may come back.
            answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| {
                let unknown = || LocalError::Interrupted(failed.to_string()).into();
                *answer = Err(self.check().err().unwrap_or_else(unknown));
            });
        }
        answers
    }

    /// Runs the work on a blocking thread, with the lock of the name, unless the caller has gone by then.
    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        name: Name,
        work: impl FnOnce(&Self, &Name, &Caller) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (here, caller) = Caller::new(Arc::clone(&self.clock));
        let shard = name.shard();
        let mut turn = Arc::clone(&self.shards[shard]).lock_owned().await;
        let disk = Arc::clone(self);
        let answer = blocking(move || {
            let _locked = Locked::new(&mut turn, &disk, shard)?;
            // The process may have waited for long: what was true before may not be now.
            disk.check()?;
            caller.is_here()?;
            work(&disk, &name, &caller)
        });
        let answer = answer.await;
        drop(here);
        answer
    }

    fn put_locked(&self, name: &Name, body: &PutPayload, mode: &PutMode, caller: &Caller) -> Result<Tag> {
        self.compare(name, mode)?;
        let tag = Tag::of(body.iter().map(AsRef::as_ref));
        // One per lock: what a killed writer left is overwritten by the next one, and never piles up.
        let staged = self.private.join(format!("tmp-{:02}", name.shard()));
        let published =
            self.stage(&staged, body).and_then(|()| caller.is_here()).and_then(|()| self.publish(&staged, name));
        if let Err(error) = published {
            let _ = fs::remove_file(&staged);
            return Err(error);
        }
        self.sync_folders(&name.folder)?;
        self.durable().remember(name.location.clone(), tag);
        Ok(tag)
    }

    /// Flushes the winning object before a conflict is reported, so that the loser can rely on it after a power cut.
    fn compare(&self, name: &Name, mode: &PutMode) -> Result<()> {
        let wanted = match mode {
            PutMode::Overwrite => return Ok(()),
            PutMode::Create => None,
            PutMode::Update(UpdateVersion { e_tag: Some(tag), .. }) => Some(tag.as_str()),
            PutMode::Update(_) => {
                return Err(Error::Generic { store: STORE, source: "an update needs an ETag".into() });
            }
        };
        let path = name.location.to_string();
        let current = self.load(name)?;
        match (&current, wanted) {
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                return Err(Error::Precondition { path, source: "there is no such object".into() });
            }
            (Some(current), Some(wanted)) if current.tag.to_string() == wanted => return Ok(()),
            (Some(current), _) => self.make_durable(name, current)?,
        }
        Err(match wanted {
            None => Error::AlreadyExists { path, source: "it was created before".into() },
            Some(wanted) => Error::Precondition { path, source: format!("it is not {wanted} any more").into() },
        })
    }

    /// The file has no name yet, so a failure here changes nothing; but a disk that fails to flush is not trusted.
    fn stage(&self, staged: &Path, body: &PutPayload) -> Result<()> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => LocalError::Replaced { path: self.private.clone() }.into(),
            io::ErrorKind::PermissionDenied => from_io("writing into", &self.private, error),
            _ => from_io("writing", staged, error),
        };
        let mut options = OpenOptions::new();
        self.share.prepare(&mut options).write(true).create_new(true);
        let mut file = match options.open(staged) {
            // Left by a killed writer, maybe another user's, who may not be written over; or a link to something else.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(staged).and_then(|()| options.open(staged))
            }
            opened => opened,
        }
        .map_err(failed)?;
        self.share.take_after(&file);
        body.iter().try_for_each(|chunk| file.write_all(chunk)).map_err(failed)?;
        self.try_sync(&file, staged).map_err(|error| match is_full(&error) {
            true => failed(error),
            false => self.fail(staged, &error),
        })
    }

    fn delete_locked(&self, name: &Name, _: &Caller) -> Result<Location> {
        self.durable().forget(&name.location);
        match fs::remove_file(&name.file) {
            Ok(()) => Ok(name.location.clone()),
            Err(error) if is_missing(&error) || name.file.is_dir() => Err(not_found(&name.location)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(from_io("deleting from", &name.folder, error))
            }
            Err(error) => Err(from_io("deleting", &name.file, error)),
        }
    }

    /// Makes the staged file the object, in one step, with its folder if need be.
    fn publish(&self, staged: &Path, name: &Name) -> Result<()> {
        let rename = || fs::rename(staged, &name.file).map_err(|error| (name.file.clone(), error));
        let mut outcome = rename();
        for _ in 0..TRIES {
            match &outcome {
                Err((_, error)) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
            outcome = self.share.make_folders(&self.root, &name.folder).and_then(|()| rename());
        }
        outcome.map_err(|(path, error)| match error.kind() {
            // Not a missing object: the folder, or the staged file, was taken away again and again.
            io::ErrorKind::NotFound => LocalError::Io { doing: "renaming onto", path, source: error.into() }.into(),
            // Replacing an object needs the right to write in its folder, not to the object itself.
            io::ErrorKind::PermissionDenied if path == name.file => from_io("writing into", &name.folder, error),
            io::ErrorKind::PermissionDenied => from_io("writing into", &path, error),
            _ => from_io("renaming onto", &path, error),
        })
    }
}

/// Tells work on a blocking thread that its caller has gone away: a write that its caller has given up must not
/// be applied minutes later, when another process lets go of the lock. (It may be applied; the caller cannot tell.)
///
/// Nor may one that this process slept over, together with its caller: a file's time is that of its staging, and whoever
/// judges by it whether something came too late would be told of the time before the sleep.
struct Caller {
    gone: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    since: Moment,
}

struct Here(Arc<AtomicBool>);

impl Caller {
    fn new(clock: Arc<dyn Clock>) -> (Here, Self) {
        let gone = Arc::new(AtomicBool::new(false));
        let since = clock.monotonic();
        (Here(Arc::clone(&gone)), Self { gone, clock, since })
    }

    fn is_here(&self) -> Result<()> {
        let gone = self.gone.load(Ordering::Acquire);
        match gone || self.clock.monotonic().since(self.since) > LONGEST_WRITE {
            true => Err(LocalError::Interrupted("the caller has given up".into()).into()),
            false => Ok(()),
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The lock between processes, held.
struct Locked<'a>(&'a mut Option<File>);

impl<'a> Locked<'a> {
    fn new(slot: &'a mut Option<File>, disk: &Disk, shard: usize) -> Result<Self> {
        let path = &disk.private.join(format!("lock-{shard:02}"));
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => LocalError::Replaced { path: path.to_path_buf() }.into(),
            _ => {
                let (doing, what) = lock_or_folder(path, &disk.private);
                from_io(doing, what, error)
            }
        };
        let file = match slot.take() {
            Some(file) => file,
            None => open_lock(path, disk.share).map_err(failed)?,
        };
        loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
                Ok(()) => break,
            }
        }
        // The file was removed: others would lock another one. Keeping ours refuses until the store is
        // reopened.
        let held = is_at(&file, path);
        let locked = Self(slot);
        *locked.0 = Some(file);
        match held {
            true => Ok(locked),
            false => Err(LocalError::Replaced { path: path.to_path_buf() }.into()),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing it lets go as well.
        if self.0.as_ref().is_some_and(|file| file.unlock().is_err()) {
            *self.0 = None;
        }
    }
}
