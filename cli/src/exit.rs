//! How the program ends: one number for each thing that a script would want to tell apart.

use leasehold::{Error, ErrorKind};
use std::{fmt, process::ExitCode};

/// Something failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the configuration file is wrong.
pub(crate) const USAGE: u8 = 2;
/// The lease is lost, or was never held.
pub(crate) const LOST: u8 = 3;
/// Somebody else holds the key.
pub(crate) const HELD: u8 = 4;
/// The store did not answer, or what it did is not known.
pub(crate) const UNAVAILABLE: u8 = 5;
/// Timed out.
pub(crate) const TIMED_OUT: u8 = 124;
/// `lock` and `elect`: the program itself failed, not the command that it runs.
pub(crate) const OWN_FAILURE: u8 = 125;
/// `lock` and `elect`: the command was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `lock` and `elect`: the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The table that the manual and `--help` show.
pub(crate) const HELP: &str = "\
Exit codes:
    0  done
    1  failed; fsck and doctor: something is wrong
    2  the command line or the configuration is wrong
    3  the lease is lost, or was never held
    4  held by another
    5  the store did not answer, or what it did is not known
  124  timed out
  125  lock, elect: the program itself failed
  126  lock, elect: the command cannot be executed
  127  lock, elect: the command was not found

Documentation: docs/OPERATIONS.md in the source";

/// A failure with the number that the program ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

/// What a command comes to: the number that the program ends with.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(FAILED, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => USAGE,
            ErrorKind::Held => HELD,
            ErrorKind::Lost => LOST,
            ErrorKind::Unavailable | ErrorKind::Unknown => UNAVAILABLE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Says why on stderr, and gives the number.
pub(crate) fn end(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            crate::output::complain(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}
