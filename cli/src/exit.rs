//! How the program ends: one number for each thing that a script would want to tell apart.

use crate::{config::Config, output, view::Holder};
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
/// `lock`, `elect` and `work`: the program itself failed, not the command that it runs.
pub(crate) const OWN_FAILURE: u8 = 125;
/// `lock`, `elect` and `work`: the command was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `lock`, `elect` and `work`: the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// Every number, what JSON calls it, and what it means: the one table behind `--help`, the manual and the documentation.
pub(crate) const TABLE: [(u8, &str, &str); 10] = [
    (0, "done", "done"),
    (FAILED, "failed", "failed; fsck, doctor, archive status and verify: something is wrong"),
    (USAGE, "usage", "the command line or the configuration is wrong"),
    (LOST, "lost", "the lease is lost, or was never held"),
    (HELD, "held", "held by another; get --exit-code: held"),
    (UNAVAILABLE, "unavailable", "the store did not answer, or what it did is not known"),
    (TIMED_OUT, "timed_out", "timed out"),
    (OWN_FAILURE, "own_failure", "lock, elect, work: the program itself failed, for any of the reasons 1 and 5"),
    (NOT_EXECUTABLE, "not_executable", "lock, elect, work: the command cannot be executed"),
    (NOT_FOUND, "not_found", "lock, elect, work: the command was not found"),
];

/// The table, as the manual and `--help` show it.
pub(crate) fn help() -> String {
    let lines: String = TABLE.iter().map(|(code, _, meaning)| format!("  {code:>3}  {meaning}\n")).collect();
    format!("Exit codes:\n{lines}\nDocumentation: docs/OPERATIONS.md in the source")
}

/// A failure with the number that the program ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// What happened, for programs. It stays when `lock` ends with a number of its own.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// Who holds the key, where that is the reason.
    pub(crate) holder: Option<Box<Holder>>,
}

/// What a command comes to: the number that the program ends with.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        let kind = TABLE.iter().find(|(known, ..)| *known == code).map_or("failed", |(_, kind, _)| kind);
        Self { code, kind, message: message.into(), holder: None }
    }

    /// This failure with hints that can be pasted: the library names commands without the store that this one talks to.
    pub(crate) fn pasteable(mut self, config: &Config) -> Self {
        for command in ["fsck", "store"] {
            self.message =
                self.message.replace(&format!("leasehold {command} "), &format!("{} ", config.command(&[command])));
        }
        self
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
            output::fail(&failure);
            ExitCode::from(failure.code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_the_same_table() {
        let operations = include_str!("../../docs/OPERATIONS.md");
        for (code, kind, meaning) in TABLE {
            let row = format!("| {code} | `{kind}` | {meaning} |");
            assert!(operations.contains(&row), "docs/OPERATIONS.md lacks the row {row}");
            assert!(help().contains(&format!("{code:>3}  {meaning}")));
        }
        let rows = operations.split("| code | in JSON |").nth(1).map(|table| table.split("\n\n").next());
        let rows = rows.flatten().map(|table| table.lines().filter(|line| line.starts_with("| ")).count());
        assert_eq!(rows, Some(TABLE.len()), "and no other");
    }
}
