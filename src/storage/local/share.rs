//! Whose files they are: all that is made in a store takes after the store's folder, whoever makes it and whatever his
//! umask, or the first user of a key, an hour or a lock would shut out all others.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

/// Owner and permissions of the store's folder, as they were when it was opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    #[cfg(unix)]
    mode: u32,
    #[cfg(unix)]
    uid: u32,
    #[cfg(unix)]
    gid: u32,
}

/// A folder that could not be made, and why.
pub(super) type NotMade = (PathBuf, io::Error);

#[cfg(unix)]
impl Share {
    pub(super) fn of(root: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::metadata(root)?;
        Ok(Self { mode: meta.mode(), uid: meta.uid(), gid: meta.gid() })
    }

    /// Nothing in a store is executed.
    fn file_mode(self) -> u32 {
        self.mode & 0o666
    }

    /// With the bit that hands its group on, and without the sticky one: whoever shares a store must be able to replace
    /// what another one has written.
    fn folder_mode(self) -> u32 {
        self.mode & 0o2777
    }

    /// Never open to more users than in the end, not even for a moment.
    pub(super) fn prepare(self, options: &mut OpenOptions) -> &mut OpenOptions {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(self.file_mode())
    }

    /// Gives an open file or folder the owner, the group and the permissions of the store's folder, as far as the user of
    /// this process may. Where he may not, it is left as it is: others may be shut out, which they are told.
    pub(super) fn take_after(self, file: &File) {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
        let Ok(meta) = file.metadata() else { return };
        let wanted = if meta.is_dir() { self.folder_mode() } else { self.file_mode() };
        // The superuser hands it to the owner of the store; others can choose among their groups.
        if meta.uid() != self.uid && fchown(file, Some(self.uid), Some(self.gid)).is_ok() {
            // Done.
        } else if meta.gid() != self.gid {
            let _ = fchown(file, None, Some(self.gid));
        }
        // Not as it was before: a change of owner takes bits away.
        if file.metadata().is_ok_and(|meta| meta.mode() & 0o7777 != wanted) {
            let _ = file.set_permissions(fs::Permissions::from_mode(wanted));
        }
    }

    /// Makes a folder below the root, with all those above it.
    ///
    /// Step by step from the root: what has just been made must not be changed through a path that somebody else may have
    /// led elsewhere meanwhile.
    pub(super) fn make_folders(self, root: &Path, folder: &Path) -> Result<(), NotMade> {
        use rustix::{
            fs::{Mode, OFlags, mkdirat, openat},
            io::Errno,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut here = File::open(root).map_err(|error| (root.into(), error))?;
        let mut path = root.to_path_buf();
        for part in folder.strip_prefix(root).into_iter().flat_map(Path::components) {
            let part = part.as_os_str();
            let below = path.join(part);
            let above = std::mem::replace(&mut path, below);
            let open = |flags| openat(&here, part, flags, Mode::empty()).map(File::from);
            let next = match open(flags) {
                Err(Errno::NOENT) => match mkdirat(&here, part, Mode::from_raw_mode(self.folder_mode())) {
                    Ok(()) => open(flags | OFlags::NOFOLLOW).inspect(|made| self.take_after(made)),
                    // Another process was faster.
                    Err(Errno::EXIST) => open(flags),
                    // It is the folder above that cannot be written.
                    Err(error) => return Err((above, error.into())),
                },
                there => there,
            };
            here = next.map_err(|error| (path.clone(), error.into()))?;
        }
        Ok(())
    }
}

/// Where files have neither owner nor mode, a new one takes after its folder by itself.
#[cfg(not(unix))]
impl Share {
    pub(super) fn of(_: &Path) -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) fn prepare(self, options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    pub(super) fn take_after(self, _: &File) {}

    pub(super) fn make_folders(self, _: &Path, folder: &Path) -> Result<(), NotMade> {
        fs::create_dir_all(folder).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if folder.exists() => (folder.into(), io::ErrorKind::NotADirectory.into()),
            // Another process made it before us and removed it before we looked.
            io::ErrorKind::AlreadyExists => (folder.into(), io::ErrorKind::NotFound.into()),
            _ => (folder.into(), error),
        })
    }
}
