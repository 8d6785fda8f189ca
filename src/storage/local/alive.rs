//! Which processes of this host are alive: each keeps a lock on a file of its own, which ends with it however it ends.
//!
//! Where two processes do not share their boot-time clock (after a restart of the machine, or in containers that have boot
//! ids of their own), this says that the process that wrote a record has ended.

use super::{disk::open_lock, error::from_io, name::PRIVATE, share::Share};
use crate::ProcessId;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Of files that ended processes have left behind, so many are removed by each new one.
const REMOVED_AT_ONCE: usize = 64;

/// The lock of this process. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Alive {
    path: PathBuf,
    // Closing it gives the lock back.
    _file: File,
}

impl Drop for Alive {
    fn drop(&mut self) {
        // One that is left behind does no harm: the next process removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn folder(root: &Path) -> PathBuf {
    root.join(PRIVATE[0]).join(PRIVATE[1]).join("process")
}

/// Says from now on that this process is alive.
pub(crate) fn announce(root: &Path, process: ProcessId) -> object_store::Result<Alive> {
    let folder = folder(root);
    lock(root, &folder, process).map_err(|error| from_io("writing into", &folder, error))
}

fn lock(root: &Path, folder: &Path, process: ProcessId) -> io::Result<Alive> {
    let share = Share::of(root)?;
    share.make_folders(root, folder).map_err(|(_, error)| error)?;
    let path = folder.join(process.to_string());
    let file = loop {
        let file = open_lock(&path, share)?;
        file.lock()?;
        // Another process may have taken it for one that was left behind, before it was locked.
        if is_at(&file, &path)? {
            break file;
        }
    };
    // Left for the next one where it cannot be done.
    let _ = remove_left(folder, &path);
    Ok(Alive { path, _file: file })
}

/// Whether a process that has announced itself is not alive any more.
pub(crate) fn has_ended(root: &Path, process: ProcessId) -> io::Result<bool> {
    let file = match File::open(folder(root).join(process.to_string())) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    // Shared, so that two who ask do not take each other for the process.
    match file.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn remove_left(folder: &Path, mine: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.take(REMOVED_AT_ONCE) {
        let path = entry?.path();
        if path == mine {
            continue;
        }
        // Removed meanwhile, or another user's.
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let locked = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (locked.dev(), locked.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

// A file that is open is not removed there.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: u8) -> ProcessId {
        ProcessId::from([number; 16])
    }

    #[test]
    fn a_process_is_alive_until_its_lock_is_gone() {
        let root = tempfile::tempdir().unwrap();
        assert!(has_ended(root.path(), process(1)).unwrap(), "never announced");
        let alive = announce(root.path(), process(1)).unwrap();
        assert!(!has_ended(root.path(), process(1)).unwrap());
        assert!(!has_ended(root.path(), process(1)).unwrap(), "asking changes nothing");
        drop(alive);
        assert!(has_ended(root.path(), process(1)).unwrap());
    }

    #[test]
    fn what_killed_processes_left_is_removed_by_the_next_one_and_the_living_stay() {
        let root = tempfile::tempdir().unwrap();
        let alive = announce(root.path(), process(1)).unwrap();
        // As after a kill: the file is there, and nobody has it locked.
        File::create(folder(root.path()).join(process(2).to_string())).unwrap();
        assert!(has_ended(root.path(), process(2)).unwrap());
        let _other = announce(root.path(), process(3)).unwrap();
        assert!(!folder(root.path()).join(process(2).to_string()).exists());
        assert!(!has_ended(root.path(), process(1)).unwrap());
        drop(alive);
    }
}
