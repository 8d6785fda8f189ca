//! Where the payloads of running jobs are while their commands run: files that nobody else may read.

use crate::exit::{Failure, OWN_FAILURE};
use leasehold::{Generator, OsGenerator, job::JobId};
use std::{
    fs::{DirBuilder, OpenOptions},
    io::Write,
    path::PathBuf,
};

/// A folder of this process, in the place for files that do not last.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

/// One payload; the file goes with it.
#[derive(Debug)]
pub(super) struct Payload(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self, Failure> {
        let mut bytes = [0; 8];
        OsGenerator::new().fill(&mut bytes);
        let path = std::env::temp_dir().join(format!("leasehold-work-{:016x}", u64::from_le_bytes(bytes)));
        Ok(Self(path))
    }

    /// Writes a payload, and makes the folder if it is not there.
    pub(super) fn write(&self, job: JobId, attempt: u32, payload: &[u8]) -> Result<Payload, Failure> {
        let path = self.0.join(format!("{job}-{attempt}"));
        let failed = |error: std::io::Error| {
            let message =
                format!("the payload cannot be written to {}: {error}; TMPDIR names another place", path.display());
            Failure::new(OWN_FAILURE, message)
        };
        let mut folder = DirBuilder::new();
        folder.recursive(true);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
            folder.mode(0o700);
            options.mode(0o600);
        }
        folder.create(&self.0).map_err(failed)?;
        // An attempt that was given back has the same number.
        let _ = std::fs::remove_file(&path);
        let mut file = options.open(&path).map_err(failed)?;
        let payload_file = Payload(path.clone());
        file.write_all(payload).map_err(failed)?;
        Ok(payload_file)
    }

    /// Removes the folder, once it is empty.
    pub(super) fn tidy(&self) {
        // It may never have been made.
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // A command may have taken it away.
        let _ = std::fs::remove_file(&self.0);
    }
}
